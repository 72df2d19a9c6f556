#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The cost of one page for the poll core: op from a client's ring, READs of payload and head, done.

    perf/rail.py --json FILE [--quick]       $PEERCACHE_BUILD: a release build

Runs rail_cost.c, whose stub device has no link, completes everything at once and moves only page
heads. Only the time inside rail_step() counts. For comparison, the same WQEs, flags and doorbells
by dv/hot.h alone, recorded and posted again after each run: the ratio is that of the two minima.
And, if valgrind is installed, the instructions per page.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys

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
    figures = []
    for name, arguments in CASES:
        columns, ratio = run(program, arguments, runs, pages)
        rail, device, client, bare, wqes, cqes, bells = columns
        figure = {"name": name, "value": round(rail, 1), "unit": "ns",
                  "text": f"median of {runs}, {pages} pages each; {ratio:.1f} x dv/hot.h alone, "
                          f"{bare:.1f} ns; the device took {device:.0f} ns and the client "
                          f"{client:.0f}; {wqes:.2f} WQEs, {cqes:.2f} CQEs and {bells:.2f} "
                          f"doorbells per page"}
        if name == CASES[0][0]:
            figure.update(goal=f"<= {GOAL_NS}", met=rail <= GOAL_NS)
            figures.append({"name": "4 KiB pages that one poll core could read",
                            "value": round(1000 / rail, 2), "unit": "M pages/s",
                            "text": "the reciprocal of the cost"})
        figures.append(figure)
    for name, arguments in CASES if shutil.which("valgrind") else []:
        if "--other-core" in arguments:
            continue
        collected, _ = test_instructions.instructions(
            ["measured_step"], [program, "--runs", "1", "--pages", str(COUNTED_PAGES), *arguments])
        figure = {"name": f"{name}, instructions", "value": round(collected / COUNTED_PAGES),
                  "unit": "instructions", "text": "callgrind, in rail_step() alone"}
        if name in GOALS:
            figure.update(goal=f"<= {GOALS[name]}", met=figure["value"] <= GOALS[name])
        figures.append(figure)
    return figures


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", required=True)
    parser.add_argument("--quick", action="store_true")
    args = parser.parse_args()
    build = os.environ.get("PEERCACHE_BUILD", "build")
    figures = measure(os.path.join(build, "perf", "rail_cost"), args.quick)
    with open(args.json, "w", encoding="utf-8") as file:
        json.dump({"name": "rail", "modelled": False, "figures": figures, "series": [],
                   "notes": ["not included: the link, the client's own time, wake-ups"]},
                  file, indent=1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
