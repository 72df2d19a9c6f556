#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What the directory's promises cost: sets of pages that are stored already, and removes.

    perf/directory.py --json FILE [--quick] [--beside BUILD]

$PEERCACHE_BUILD: a release build. directory_calls.c defines a round. With --beside, a second build
of another version takes turns with it, round by round, and each figure has its ratio to that one.
"""

import os
import statistics
import subprocess

import bench

WHAT = {
    "here": ("set of present pages of this host", "ns/page"),
    "here_known": ("set of present pages of this host, locations remembered", "ns/page"),
    "there": ("set of present pages of another host", "ns/page"),
    "there_known": ("set of present pages of another host, locations remembered", "ns/page"),
    "store": ("set of new pages", "ns/page"),
    "remove_batch": ("remove of pages of this host, in batches", "ns/page"),
    "remove_here_50": ("remove of one page of this host, p50", "us"),
    "remove_here_99": ("remove of one page of this host, p99", "us"),
    "remove_there_50": ("remove of one page of another host, p50", "us"),
    "remove_there_99": ("remove of one page of another host, p99", "us"),
}


class Side:
    """Engines of one build, and the client that calls them."""

    def __init__(self, build, nodes):
        self.engines = bench.cluster.Cluster(
            build, nodes, "1GiB", settings=["engine.huge_pages=no"])
        self.engines.start()
        self.client = subprocess.Popen(
            [bench.cluster.find_program(build, "perf/directory_calls")], text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            env={**os.environ, "PEERCACHE_SOCKETS": ",".join(self.engines.sockets)})

    def round(self):
        self.client.stdin.write("round\n")
        self.client.stdin.flush()
        words = self.client.stdout.readline().split()
        if not words:
            raise SystemExit(f"directory_calls exited with {self.client.wait()}")
        return {name: float(value) for name, value in zip(words[::2], words[1::2])}

    def stop(self):
        self.client.stdin.close()
        self.client.wait()
        self.engines.stop()


def measure(builds, nodes, rounds):
    """Rounds of all builds in turn; a list of rounds for each."""
    sides, got = [], [[] for _ in builds]
    try:
        for build in builds:
            sides.append(Side(build, nodes))
        for side in sides:
            side.round()  # touches the pools
        for n in range(rounds):
            for i in range(len(sides)) if n % 2 else reversed(range(len(sides))):
                got[i].append(sides[i].round())
    finally:
        for side in sides:
            side.stop()
    return got


def main():
    options = bench.parse(__doc__, lambda parser: (
        parser.add_argument("--beside", metavar="BUILD", help="a build of another version"),
        parser.add_argument("--nodes", type=int, default=2, help="engines (default 2)")))
    builds = [bench.cluster.default_build()] + ([options.beside] if options.beside else [])
    got = measure(builds, options.nodes, 9 if options.quick else 31)
    result = bench.Result("directory")
    text = f"{options.nodes} engines; median of {len(got[0])} rounds of 1,024 pages of 128 KiB " \
        "in batches of 32, or of 400 removes"
    for name, (what, unit) in WHAT.items():
        value = statistics.median(r[name] for r in got[0])
        result.figure(what, value, unit, text)
        if options.beside:
            other = statistics.median(r[name] for r in got[1])
            ratio = statistics.median(a[name] / b[name] for a, b in zip(*got))
            result.figure(f"{what}: ratio", ratio, "ratio", f"the other build: {other:.4g} {unit}")
    for name in ("here", "there", "there_known"):
        ratio = statistics.median(r[name] / r["store"] for r in got[0])
        result.figure(f"{WHAT[name][0]} / set of new pages", ratio, "ratio", text, ("<=", 0.05))
    result.write(options.json)


if __name__ == "__main__":
    main()
