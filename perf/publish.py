#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""CPU time of the housekeeping thread for each page that is set, by directory owners.

    perf/publish.py --json FILE [--quick]     $PEERCACHE_BUILD: a release build

One client thread sets pages of 4 KiB, each a new key, through the first of four engines; with N
owners its entry goes to N engines. The thread's time on a CPU is read from /proc before and after.
It includes credits, the index, eviction, the messages and their acknowledgements, and, as the
engine owns entries itself, the local shard.
"""

import json
import os
import subprocess
import time

import bench

ENGINES = 4
BATCHES = [16, 128]
OWNERS = [1, 2, 3]
GOAL_US = 1e6 / 3 / 50000  # a third of a core at 50,000 pages/s


def thread_us(pid):
    """User and system time of the engine's main thread, its control plane, in us."""
    with open(f"/proc/{pid}/task/{pid}/schedstat", encoding="ascii") as file:
        return int(file.read().split()[0]) / 1000


def measure(owners, batch, seconds):
    program = bench.cluster.find_program(bench.cluster.default_build(), "tools/peercache-bench")
    engines = bench.cluster.Cluster(
        bench.cluster.default_build(), ENGINES, "256MiB",
        settings=[f"cluster.replicas={owners}", "engine.huge_pages=no"])
    try:
        engines.start()
        pid = engines.engine_pid(0)
        time.sleep(1)
        idle_us, idle_s = thread_us(pid), time.monotonic()
        time.sleep(1)
        idle_us = (thread_us(pid) - idle_us) / (time.monotonic() - idle_s)
        before = engines.status(0)["counters"]["pages_published"], thread_us(pid)
        began = time.monotonic()
        subprocess.run(
            [program, "set", "--page-bytes", "4096", "--batch", str(batch), "--working-set",
             "2GiB", "--no-baseline", "--keep-pages", "--seconds", str(seconds)],
            check=True, stdout=subprocess.DEVNULL,
            env={**os.environ, "PEERCACHE_SOCKETS": engines.sockets[0]})
        took = time.monotonic() - began
        after = engines.status(0)["counters"]["pages_published"], thread_us(pid)
    finally:
        engines.stop()
    pages = after[0] - before[0]
    return {"pages/s": pages / took, "us": (after[1] - before[1] - idle_us * took) / pages}


def main():
    options = bench.parse(__doc__)
    seconds = 2 if options.quick else 6
    result = bench.Result("publish")
    for owners in OWNERS:
        for batch in BATCHES:
            got = measure(owners, batch, seconds)
            print(owners, batch, json.dumps(got), flush=True)
            result.figure(
                f"housekeeping a page, {owners} owner{'s' * (owners > 1)}, batch {batch}",
                got["us"], "us", f"at {got['pages/s']:,.0f} pages/s, one client thread, pages of "
                f"4 KiB, {ENGINES} engines on this machine",
                ("<=", GOAL_US) if owners == 3 and batch == 128 else None)
    result.note(f"Goal: {GOAL_US:.1f} us is a third of a core at 50,000 pages/s.")
    result.write(options.json)


if __name__ == "__main__":
    main()
