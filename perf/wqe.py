#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Cost of posting a 64-byte READ and polling its completion: libibverbs compared with dv/hot.h.

    perf/wqe.py --json FILE [--quick]        $PEERCACHE_BUILD: a release build

Both use queue pairs that libmlx5 made on the same software ConnectX, and 32 READs per doorbell; the
program is that of tests/verbs/test_instructions.py. Measures nanoseconds and, if valgrind is
installed, instructions. The work of the software NIC on another thread is not included.
"""

import os
import re
import shutil
import statistics
import subprocess
import sys

import bench

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "tests", "verbs"))
import test_instructions  # noqa: E402

WAYS = [("verbs", "ibv_post_send, ibv_poll_cq"), ("hot", "dv_post, dv_ring, dv_poll")]
PARTS = ["post", "poll"]


def nanoseconds(program, way, runs, rounds):
    """Medians of the nanoseconds per READ of post and of poll."""
    found = []
    for _ in range(runs):
        out = subprocess.run([program, way, str(rounds)], capture_output=True, text=True,
                             timeout=300, check=True).stdout
        match = re.search(r"post_ns (\S+) poll_ns (\S+)", out)
        found.append((float(match[1]), float(match[2])))
    return [statistics.median(column) for column in zip(*found)]


def measure(program, quick):
    runs, rounds = (3, 1000) if quick else (9, 4000)
    result = bench.Result("wqe")
    for unit in ["ns"] + (["instructions"] if shutil.which("valgrind") else []):
        both = {}
        for way, calls in WAYS:
            values = (nanoseconds(program, way, runs, rounds) if unit == "ns" else
                      [test_instructions.count(program, way, [part]) for part in PARTS])
            both[way] = sum(values)
            text = f"median of {runs}, {32 * rounds} READs each" if unit == "ns" else "callgrind"
            for part, value in zip(PARTS, values):
                result.figure(f"{part}: {calls}", round(value, 1), unit, text)
        result.figure(f"dv/hot.h / libibverbs, post and poll, {unit}",
                      round(both["hot"] / both["verbs"], 3), "ratio")
    result.note("one doorbell for 32 READs; every READ is signalled")
    return result


def main():
    options = bench.parse(__doc__)
    measure(bench.program("tests/verbs/count_reads"), options.quick).write(options.json)


if __name__ == "__main__":
    main()
