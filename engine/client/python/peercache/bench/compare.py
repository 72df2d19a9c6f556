# SPDX-License-Identifier: Apache-2.0
"""Compares two kept runs, which their tags name. Main thread."""

import argparse
import glob
import json
import os
import time
from typing import Any, Iterator, Mapping, Sequence

from peercache.bench import plot
from peercache.bench.plot import text
from peercache.bench.report import FORMAT, free_name, page_head, warnings_of, wrong_pages
from peercache.bench.rows import is_latency, key_of

COMPARED = (("pages/s", "pages_per_s"), ("p50 us", "p50_us"), ("p99 us", "p99_us"))


def kept(folder: str, tag: str) -> dict[str, Any]:
    """The newest report with this tag. Raises ValueError if there is none."""
    found = []
    for path in glob.glob(os.path.join(glob.escape(folder), "*.json")):
        try:
            with open(path, encoding="utf-8") as file:
                report = json.load(file)
            if report["format"] == FORMAT and report["tag"] == tag:
                found.append((os.stat(path).st_mtime, path, report))
        except (OSError, ValueError, KeyError, TypeError):
            continue  # no report of this program
    if not found:
        raise ValueError(f"no run in {folder} has the tag {tag}: run a command with --tag {tag}, "
                         "or name the folder with --out-dir")
    return max(found, key=lambda one: one[:2])[2]


def name_of(row: Mapping[str, Any]) -> str:
    """What a row measured, in words."""
    writers = f", {row['writers']} writers" if row["writers"] else ""
    latency = " latency" if is_latency(row) else ""
    return (f"{row['op']}{latency} ({row['path']}), {row['page_bytes']} B, batch {row['batch']}, "
            f"{row['threads']} threads{writers}")


def pairs_of(old: Mapping[str, Any], new: Mapping[str, Any]
             ) -> tuple[list[tuple[Any, Any]], int]:
    """The rows of both reports with the same settings, and the number of rows without a partner."""
    at = {key_of(row): row for row in new["rows"]}
    pairs = [(row, at[key]) for row in old["rows"] if (key := key_of(row)) in at]
    return pairs, len(old["rows"]) + len(new["rows"]) - 2 * len(pairs)


def ratio(old: float, new: float) -> str:
    """new / old as text."""
    return f"{new / old:.2f}" if old else "-"


def lines_of(tags: Sequence[str], pairs: Sequence[tuple[Any, Any]]) -> Iterator[list[str]]:
    """The table: a row of titles, then one for each pair and figure."""
    yield ["", "figure", *tags, f"{tags[1]} / {tags[0]}"]
    for old, new in pairs:
        for label, name in COMPARED:
            yield [name_of(old), label, plot.amount(old[name]), plot.amount(new[name]),
                   ratio(old[name], new[name])]


def page(tags: Sequence[str], pairs: Sequence[tuple[Any, Any]], notes: Sequence[str]
         ) -> Iterator[str]:
    """The HTML page of a comparison."""
    yield from page_head(f"peercache-bench: {tags[1]} beside {tags[0]}", notes)
    for op in dict.fromkeys(old["op"] for old, _ in pairs):
        part = [(old, new) for old, new in pairs if old["op"] == op and not is_latency(old)]
        if len(part) > 1:
            yield from plot.part({
                "title": f"{op}: pages/s{'; ' + notes[0] if notes else ''}", "x_label": "threads",
                "y_label": "pages/s", "x": [old["threads"] for old, _ in part],
                "lines": {tags[0]: [old["pages_per_s"] for old, _ in part],
                          tags[1]: [new["pages_per_s"] for _, new in part]}})
    yield "<table>"
    for cells in lines_of(tags, pairs):
        yield "<tr>" + "".join(f"<td>{text(one)}</td>" for one in cells) + "</tr>"
    yield "</table>"


def run(options: argparse.Namespace) -> int:
    """Prints and writes the comparison of two tags. Returns the exit status: 1 if a page of one
    was wrong."""
    reports = [kept(options.out_dir, tag) for tag in options.tags]
    pairs, alone = pairs_of(*reports)
    if not pairs:
        raise ValueError(f"the runs {' and '.join(options.tags)} have no row in common: give both "
                         "the same command, page size, batch size and threads")
    notes = [f"{tag}: {warning}" for tag, report in zip(options.tags, reports)
             for warning in warnings_of(report)]
    if reports[0]["ports"]["kind"] != reports[1]["ports"]["kind"]:
        notes.append("the runs used different kinds of ports: the ratios compare these")
    if reports[0]["host"]["name"] != reports[1]["host"]["name"]:
        notes.append("the runs were made on different hosts")
    if alone:
        notes.append(f"{alone} rows are in one run only and left out")
    for note in notes:
        print(note)
    cells = list(lines_of(options.tags, pairs))
    widths = [max(len(line[i]) for line in cells) for i in range(len(cells[0]))]
    for line in cells:
        print("  ".join(one.ljust(width) for one, width in zip(line, widths)).rstrip())
    name = f"compare-{options.tags[0]}-{options.tags[1]}-{time.strftime('%Y%m%d-%H%M%S')}"
    path = free_name(options.out_dir, name)
    with open(path + ".html", "w", encoding="utf-8") as file:
        file.write("\n".join(page(options.tags, pairs, notes)) + "\n")
    print(f"\nwrote {path}.html")
    return 1 if any(map(wrong_pages, reports)) else 0
