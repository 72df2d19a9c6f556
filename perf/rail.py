#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The cost of one page for the poll core: op from a client's ring, READs of payload and head, done.

    perf/rail.py --json FILE [--quick]       $PEERCACHE_BUILD: a release build

Runs rail_cost.c, whose stub device has no link, completes everything at once and moves only page
heads. Only the time inside rail_step() counts. For comparison, the same WQEs, flags and doorbells
by dv/hot.h alone, recorded and posted again after each run: the ratio is that of the two minima.
And, if valgrind is installed, the instructions per page.
"""

import os
import shutil
import statistics
import subprocess
import sys

import bench

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "tests", "verbs"))
import test_instructions  # noqa: E402

GOAL_NS = 120
LONG = ["--bytes", "131072", "--window", "256"]
# The first case is the headline: a pool that has run for a while has its pages anywhere.
CASES = [
    ("4 KiB pages stored anywhere", ["--scattered"]),
    ("4 KiB pages stored in sequence", []),
    ("4 KiB pages, client on another core", ["--other-core"]),
    ("128 KiB pages", LONG),
    ("128 KiB pages in 64 segments", LONG + ["--segments", "64"]),
    ("runs of 1 x 4 KiB stored anywhere", ["--run", "1", "--scattered"]),
    ("runs of 32 x 4 KiB stored in sequence", ["--run", "32"]),
    ("runs of 32 x 4 KiB stored anywhere", ["--run", "32", "--scattered"]),
    ("runs of 4 x 128 KiB stored in sequence", LONG + ["--run", "4"]),
    ("runs of 4 x 128 KiB stored anywhere", LONG + ["--run", "4", "--scattered"]),
    ("runs of 32 x 128 KiB stored in sequence", LONG + ["--run", "32"]),
    ("runs of 32 x 128 KiB stored anywhere", LONG + ["--run", "32", "--scattered"]),
    ("runs of 8 x 128 KiB in 8 segments", LONG + ["--run", "8", "--segments", "8"]),
    ("runs of 1 x 128 KiB in 64 segments", LONG + ["--run", "1", "--segments", "64"]),
    ("look-ups of 32 buckets", ["--run", "32", "--lookup", "--scattered"]),
]
# Every figure of a lease stands beside that of tail.
CASES += [(name + ", by lease", arguments + ["--lease"])
          for name, arguments in CASES if name.startswith("runs of")]
GOALS = {"runs of 32 x 4 KiB stored in sequence": 250, "runs of 32 x 4 KiB stored anywhere": 320,
         "runs of 4 x 128 KiB stored in sequence": 500,
         "runs of 32 x 128 KiB stored in sequence": 350}
GOALS.update({name + ", by lease": goal for name, goal in list(GOALS.items())})
COUNTED_PAGES = 19200


def run(program, arguments, runs, pages):
    """
    Per page: medians of the nanoseconds in rail, device, client, dv/hot.h alone, of WQEs, CQEs and
    doorbells; and the ratio of the minima of rail and dv/hot.h.
    """
    out = subprocess.run([program, "--runs", str(runs), "--pages", str(pages), *arguments],
                         capture_output=True, text=True, timeout=300, check=True).stdout
    columns = list(zip(*[[float(word) for word in line.split()] for line in out.splitlines()]))
    return [statistics.median(column) for column in columns], min(columns[0]) / min(columns[3])


def measure(program, quick):
    runs, pages = (5, 96000) if quick else (9, 384000)
    result = bench.Result("rail")
    for name, arguments in CASES:
        columns, ratio = run(program, arguments, runs, pages)
        rail, device, client, bare, wqes, cqes, bells = columns
        if name == CASES[0][0]:
            result.figure("4 KiB pages that one poll core could read", round(1000 / rail, 2),
                          "M pages/s", "the reciprocal of the cost")
        result.figure(name, round(rail, 1), "ns",
                      f"median of {runs}, {pages} pages each; {ratio:.1f} x dv/hot.h alone, "
                      f"{bare:.1f} ns; the device took {device:.0f} ns and the client "
                      f"{client:.0f}; {wqes:.2f} WQEs, {cqes:.2f} CQEs and {bells:.2f} "
                      f"doorbells per page", ("<=", GOAL_NS) if name == CASES[0][0] else None)
    for name, arguments in CASES if shutil.which("valgrind") else []:
        if "--other-core" in arguments:
            continue
        collected, _ = test_instructions.instructions(
            ["measured_step"], [program, "--runs", "1", "--pages", str(COUNTED_PAGES), *arguments])
        result.figure(f"{name}, instructions", round(collected / COUNTED_PAGES), "instructions",
                      "callgrind, in rail_step() alone",
                      ("<=", GOALS[name]) if name in GOALS else None)
    result.note("not included: the link, the client's own time, wake-ups")
    return result


def main():
    options = bench.parse(__doc__)
    measure(bench.program("perf/rail_cost"), options.quick).write(options.json)


if __name__ == "__main__":
    main()
