# SPDX-License-Identifier: Apache-2.0
"""Compares two kept runs, which their tags name. Main thread."""

import argparse
import glob
import json
import os
import time
from typing import Any, Iterator, Mapping, Optional, Sequence

from peercache.bench import plot, served
from peercache.bench.report import FORMAT, POINTS, Kind, free_name, page_head, warnings_of
from peercache.bench.rows import is_latency


def kept(folder: str, tag: str) -> dict[str, Any]:
    """The newest report with this tag. Raises ValueError if there is none of this version."""
    found, others = [], []
    for path in glob.glob(os.path.join(glob.escape(folder), "*.json")):
        try:
            with open(path, encoding="utf-8") as file:
                report = json.load(file)
            if report["tag"] == tag and report["format"] == FORMAT:
                found.append((os.stat(path).st_mtime, path, report))
            elif report["tag"] == tag and str(report["format"]).startswith("peercache-bench "):
                others.append((os.stat(path).st_mtime, path))
        except (OSError, ValueError, KeyError, TypeError):
            continue  # no report of this program
    if not found and others:
        raise ValueError(f"{max(others)[1]} is of another version of peercache-bench: measure it "
                         "again")
    if not found:
        raise ValueError(f"no run in {folder} has the tag {tag}: run a command with --tag {tag}, "
                         "or name the folder with --out-dir")
    return max(found, key=lambda one: one[:2])[2]


def kind_of(reports: Sequence[Mapping[str, Any]]) -> Kind:
    """What the rows of both reports are. Raises ValueError if they differ in kind."""
    kinds = [served.KIND if report["command"] == "served" else POINTS for report in reports]
    if kinds[0] is not kinds[1]:
        raise ValueError(f"{reports[0]['command']} and {reports[1]['command']} measure different "
                         "things: give the tags of two runs of one command")
    return kinds[0]


def pairs_of(old: Mapping[str, Any], new: Mapping[str, Any], kind: Kind
             ) -> tuple[list[tuple[Any, Any]], int]:
    """The rows of both reports with the same settings, and the number of rows without a partner."""
    at = {kind.key(row): row for row in new["rows"]}
    pairs = [(row, at[key]) for row in old["rows"] if (key := kind.key(row)) in at]
    return pairs, len(old["rows"]) + len(new["rows"]) - 2 * len(pairs)


def ratio(old: Optional[float], new: Optional[float]) -> str:
    """new / old as text."""
    return f"{new / old:.2f}" if old and new is not None else "-"


def amount(value: Optional[float]) -> str:
    """A figure as text."""
    return "-" if value is None else plot.amount(value)


def differences(reports: Sequence[Mapping[str, Any]], kind: Kind) -> list[str]:
    """A note with the options in which two runs differ although their rows have one key, if any."""
    found = []
    for name in kind.options:
        old, new = (report["options"].get(name) for report in reports)
        if old != new:
            found.append(f"--{name.replace('_', '-')} is {old or 'nothing'} and {new or 'nothing'}")
    return ["the runs differ, which the ratios compare, too: " + ", ".join(found)] if found else []


def lines_of(tags: Sequence[str], pairs: Sequence[tuple[Any, Any]], kind: Kind
             ) -> Iterator[list[str]]:
    """The table: a row of titles, then one for each pair and figure."""
    yield ["", "figure", *tags, f"{tags[1]} / {tags[0]}"]
    for old, new in pairs:
        for label, name in kind.compared:
            yield [kind.name(old), label, amount(old[name]), amount(new[name]),
                   ratio(old[name], new[name])]


def page(tags: Sequence[str], pairs: Sequence[tuple[Any, Any]], notes: Sequence[str], kind: Kind
         ) -> Iterator[str]:
    """The HTML page of a comparison."""
    yield from page_head(f"peercache-bench: {tags[1]} beside {tags[0]}", notes)
    for op in dict.fromkeys(old["op"] for old, _ in pairs) if kind is POINTS else ():
        part = [(old, new) for old, new in pairs if old["op"] == op and not is_latency(old)]
        if len(part) > 1:
            yield from plot.part({
                "title": f"{op}: pages/s{'; ' + notes[0] if notes else ''}", "x_label": "threads",
                "y_label": "pages/s", "x": [old["threads"] for old, _ in part],
                "lines": {tags[0]: [old["pages_per_s"] for old, _ in part],
                          tags[1]: [new["pages_per_s"] for _, new in part]}})
    yield from plot.table((), lines_of(tags, pairs, kind), len(tags) + 3)


def run(options: argparse.Namespace) -> int:
    """Prints and writes the comparison of two tags. Returns the exit status: 1 if a result of one
    was wrong."""
    reports = [kept(options.out_dir, tag) for tag in options.tags]
    kind = kind_of(reports)
    pairs, alone = pairs_of(*reports, kind)
    if not pairs:
        both = "number of --url" if kind is served.KIND else \
            "command, page size, batch size and threads"
        raise ValueError(f"the runs {' and '.join(options.tags)} have no row in common: give both "
                         f"the same {both}")
    notes = [f"{tag}: {warning}" for tag, report in zip(options.tags, reports)
             for warning in warnings_of(report, kind)]
    if reports[0]["ports"]["kind"] != reports[1]["ports"]["kind"]:
        notes.append("the runs used different kinds of ports: the ratios compare these")
    if reports[0]["host"]["name"] != reports[1]["host"]["name"]:
        notes.append("the runs were made on different hosts")
    notes += differences(reports, kind)
    if alone:
        notes.append(f"{alone} rows are in one run only and left out")
    for note in notes:
        print(note)
    cells = list(lines_of(options.tags, pairs, kind))
    widths = [max(len(line[i]) for line in cells) for i in range(len(cells[0]))]
    for line in cells:
        print("  ".join(one.ljust(width) for one, width in zip(line, widths)).rstrip())
    name = f"compare-{options.tags[0]}-{options.tags[1]}-{time.strftime('%Y%m%d-%H%M%S')}"
    path = free_name(options.out_dir, name)
    with open(path + ".html", "w", encoding="utf-8") as file:
        file.write("\n".join(page(options.tags, pairs, notes, kind)) + "\n")
    print(f"\nwrote {path}.html")
    return 1 if any(map(kind.wrong, reports)) else 0
