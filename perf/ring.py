#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Round trips between two cores: a cache line, a message through rings, an op through a rail.

    perf/ring.py --json FILE [--quick]       $PEERCACHE_BUILD: a release build

Runs ring_turns, whose two threads are pinned: see the top of ring_turns.c.
"""

import os
import subprocess

import bench

STREAMS = [1, 8, 32]


def main():
    options = bench.parse(__doc__)
    if os.cpu_count() < 2:
        print("ring: this benchmark needs two cores, and this machine has one")
        raise SystemExit(77)
    turns, runs = (20000, 7) if options.quick else (100000, 15)
    program = bench.cluster.find_program(bench.cluster.default_build(), "perf/ring_turns")
    out = subprocess.run([program, str(turns), str(runs)], check=True, text=True,
                         stdout=subprocess.PIPE).stdout
    took = {name: float(ns) for name, ns in (line.split() for line in out.splitlines())}
    bare = min(took["bare_one_line"], took["bare_two_lines"])
    text = f"median of {runs}, {turns} turns each"
    result = bench.Result("ring")
    result.figure("cache-line ping-pong", bare, "ns", text + "; the faster of one line and two")
    result.figure("ring round trip", took["rings"], "ns", text + "; an op ring and a done ring")
    result.figure("ring round trip / cache-line ping-pong", took["rings"] / bare, "ratio",
                  goal=("<=", 1.5))
    result.figure("round trip through a rail", took["rail"], "ns",
                  text + "; a running poll core takes an op, refuses it and answers")
    result.figure("round trip through a rail / cache-line ping-pong", took["rail"] / bare, "ratio")
    for batch in STREAMS:
        result.figure(f"one way, {batch} per publish", 1e3 / took[f"stream_{batch}"],
                      "M messages/s", f"64 bytes each; {text}")
    result.series("ring-rate", "Messages through one ring", "messages per publish", "M messages/s",
                  STREAMS, {"op ring": [1e3 / took[f"stream_{b}"] for b in STREAMS]})
    result.write(options.json)


if __name__ == "__main__":
    main()
