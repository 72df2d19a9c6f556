#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a key and certificates cost: clusters with each take turns with ones in clear text.

    perf/secure.py --json FILE [--quick]     $PEERCACHE_BUILD: a release build

Publish: CPU time of the control plane's thread of the first of three engines (two owners a key)
for each page of 4 KiB that it stores, less what it takes when idle. Join: 16 engines start, until
each sees all: time, CPU time of their control planes, and bytes that the loopback interface
carried. Each figure is the median of the ratios of the rounds; the note has their range. It needs
a machine that does nothing else, and is no part of perf/run.
"""

import os
import statistics
import sys
import time

import bench

HOWS = ("", "psk", "tls")
TOLD = {"psk": "key", "tls": "certificates"}
# Of each figure: its name and the ratio that is wanted at most.
FIGURES = {"cpu_us": ("publish, control plane's CPU a page", 1.15), "p50_us": ("set, p50", 1.05),
           "get_us": ("get, p50", 1.05), "join_s": ("join of 16, time", 2),
           "join_cpu_s": ("join of 16, CPU of the control planes", 2),
           "join_bytes": ("join of 16, bytes", 2)}


def cluster(how, nodes, pool, *settings):
    os.environ["PEERCACHE_SECURE"] = how
    return bench.cluster.Cluster(bench.cluster.default_build(), nodes, pool, settings=settings)


def control_us(engines, i):
    pid = engines.engine_pid(i)
    with open(f"/proc/{pid}/task/{pid}/schedstat", encoding="ascii") as file:
        return int(file.read().split()[0]) / 1000


def published(engines):
    return engines.status(0)["counters"]["pages_published"], control_us(engines, 0), \
        time.monotonic()


def calls(how):
    """The costs of sets and gets."""
    engines = cluster(how, 3, "512MiB", "cluster.replicas=2").start()
    try:
        idle = control_us(engines, 0)
        time.sleep(1)
        idle = control_us(engines, 0) - idle
        before = published(engines)
        done = bench.peercache_bench(engines.sockets[:1], "set", "--page-bytes", 4096, "--batch",
                                     16, "--seconds", 3, "--working-set", "64MiB", "--no-baseline")
        pages, cpu, took = (b - a for a, b in zip(before, published(engines)))
        got = bench.peercache_bench(engines.sockets[:2], "get", "--page-bytes", "128KiB",
                                    "--batch", 32, "--seconds", 2, "--no-baseline")
        return {"cpu_us": (cpu - idle * took) / pages, "p50_us": done["p50_us"],
                "get_us": got["p50_us"]}
    finally:
        engines.stop()


def carried():
    with open("/proc/net/dev", encoding="ascii") as file:
        return next(int(line.split()[1]) for line in file if line.split()[0] == "lo:")


def join(how):
    engines = cluster(how, 16, "16MiB", "engine.huge_pages=no")
    begun, before = time.monotonic(), carried()
    try:
        engines.start()
        return {"join_s": time.monotonic() - begun, "join_bytes": carried() - before,
                "join_cpu_s": sum(control_us(engines, i) for i in range(16)) / 1e6}
    finally:
        engines.stop()


def main():
    options = bench.parse(__doc__)
    rounds = {calls: 2, join: 1} if options.quick else {calls: 20, join: 5}
    found = {key: {how: [] for how in HOWS} for key in FIGURES}
    for measure, count in rounds.items():
        for turn in range(count):
            for how in HOWS[turn % 3:] + HOWS[:turn % 3]:
                for key, value in measure(how).items():
                    found[key][how].append(value)
            print(f"{measure.__name__}: {turn + 1} of {count}", file=sys.stderr)
    result = bench.Result("secure")
    for key, (name, goal) in FIGURES.items():
        for how, told in TOLD.items():
            ratios = [a / b for a, b in zip(found[key][how], found[key][""])]
            result.figure(f"{name}: {told} / clear text", statistics.median(ratios), "ratio",
                          goal=("<=", goal))
            result.note(f"{name}, {told}: {min(ratios):.2f} to {max(ratios):.2f}; in clear text "
                        f"{statistics.median(found[key]['']):.3g}")
    result.write(options.json)
    for note in result.value["notes"]:
        print(note, file=sys.stderr)


if __name__ == "__main__":
    main()
