#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The cost of one page for the poll core: op from a client's ring, READs of payload and head, done.

    perf/rail.py --json FILE [--quick]       $PEERCACHE_BUILD: a release build

Runs rail_cost.c, whose stub device has no link, completes everything at once and moves only page
heads. Only the time inside rail_step() counts. For comparison, the same READs by dv/hot.h alone;
and, if valgrind is installed, the instructions per page.
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
# The first case is the headline: a pool that has run for a while has its pages anywhere.
CASES = [
    ("4 KiB pages stored anywhere", ["--scattered"]),
    ("4 KiB pages stored in sequence", []),
    ("4 KiB pages, client on another core", ["--other-core"]),
    ("128 KiB pages", ["--bytes", "131072"]),
    ("128 KiB pages in 64 segments", ["--bytes", "131072", "--segments", "64"]),
]
BARE = ("dv/hot.h alone, both READs of each page signalled", ["--bare"])
COUNTED_PAGES = 19200


def run(program, arguments, runs, pages):
    """Medians per page: nanoseconds in the rail, in the device and in the client, WQEs, CQEs."""
    out = subprocess.run([program, "--runs", str(runs), "--pages", str(pages), *arguments],
                         capture_output=True, text=True, timeout=300, check=True).stdout
    rows = [[float(word) for word in line.split()] for line in out.splitlines()]
    return [statistics.median(column) for column in zip(*rows)]


def measure(program, quick):
    runs, pages = (5, 100000) if quick else (9, 400000)
    figures = []
    for name, arguments in CASES + [BARE]:
        rail, device, client, wqes, cqes = run(program, arguments, runs, pages)
        figure = {"name": name, "value": round(rail, 1), "unit": "ns",
                  "text": f"median of {runs}, {pages} pages each; in the same run the device took "
                          f"{device:.0f} ns and the client {client:.0f}; {wqes:.2f} WQEs and "
                          f"{cqes:.2f} CQEs per page"}
        if name == CASES[0][0]:
            figure.update(goal=f"<= {GOAL_NS}", met=rail <= GOAL_NS)
            figures.append({"name": "4 KiB pages that one poll core could read",
                            "value": round(1000 / rail, 2), "unit": "M pages/s",
                            "text": "the reciprocal of the cost"})
        figures.append(figure)
    for name, arguments in CASES[:2] + CASES[3:] if shutil.which("valgrind") else []:
        collected, _ = test_instructions.instructions(
            ["measured_step"], [program, "--runs", "1", "--pages", str(COUNTED_PAGES), *arguments])
        figures.append({"name": f"{name}, instructions", "value": round(collected / COUNTED_PAGES),
                        "unit": "instructions", "text": "callgrind, in rail_step() alone"})
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
