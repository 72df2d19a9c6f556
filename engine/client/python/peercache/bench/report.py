# SPDX-License-Identifier: Apache-2.0
"""Writes what served has measured: a table, and JSON and an HTML page with plots in one folder.

Main thread. A table is pairs of a title and the name of a column.
"""

import json
import os
import time
from typing import Any, Iterator, Mapping, Sequence

from peercache.bench import plot
from peercache.bench.plot import text

TABLE = (("run", "run"), ("turn", "turn"), ("requests", "requests"), ("failed", "failed"),
         ("prompt tokens", "prompt_tokens"), ("hit %", "hit_ratio"),
         ("hits / bound %", "bound_ratio"), ("L1 (device)", "device_tokens"),
         ("L2 (host)", "host_tokens"), ("L3 (storage)", "storage_tokens"),
         ("TTFT p50 ms", "ttft_p50_ms"), ("TTFT p99 ms", "ttft_p99_ms"),
         ("requests/s", "requests_per_s"))
EXPLAINED = (
    "TTFT: the time to the first token. Hits are prompt tokens that were cached: of the device "
    "(L1), of host memory (L2), of storage (L3). The bound is what a store without bounds would "
    "hit: in the first run the whole pages of the prompt of the turn before, later all whole pages "
    "before a prompt's last token.")
PERCENT = ("hit_ratio", "bound_ratio")


def warnings_of(report: Mapping[str, Any]) -> list[str]:
    """What a reader of the figures must know first."""
    early = "interrupted" if report["interrupted"] else ""
    if report["failed"]:
        early = f"failed, {report['failed']}"
    return [*report["notes"], *([f"{early}: these are the results until then"] if early else [])]


def cell(name: str, value: Any) -> str:
    """A value of a row as a table has it."""
    if value is None:
        return "-" if name in PERCENT else "unknown"
    if name in PERCENT:
        return f"{value * 100:.2f}"
    return plot.amount(value) if isinstance(value, (int, float)) else str(value)


def cells_of(rows: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """The table with its titles. Failed requests have a column if there are any."""
    shown = [(title, name) for title, name in TABLE
             if name != "failed" or any(row[name] for row in rows)]
    return [[title for title, _ in shown],
            *([cell(name, row[name]) for _, name in shown] for row in rows)]


def page(report: Mapping[str, Any]) -> Iterator[str]:
    """The HTML page of a run."""
    yield "<!doctype html><meta charset=utf-8><title>peercache-bench served</title>"
    yield f"<style>{plot.STYLE}</style><h1>peercache-bench served</h1>"
    yield "".join(f'<p class="not">{text(warning)}</p>' for warning in warnings_of(report))
    yield (f"<p>{text(report['created_at'])}, PeerCache {text(report['peercache'])}, "
           f"{text(', '.join(report['servers']))}.</p>")
    for series in report["series"]:
        yield from plot.part(series)
    yield "<h2>Figures</h2>"
    yield from plot.table((), [(name, f"{plot.amount(value)} {unit}")
                               for name, value, unit in report["figures"]], 2)
    yield "<h2>All rows</h2>"
    head, *rows = cells_of(report["rows"])
    yield from plot.table(head, rows, 0)
    yield f"<p>{text(EXPLAINED)}</p><h2>How</h2>"
    yield from plot.table((), report["options"].items(), 2)


def write(report: Mapping[str, Any], folder: str) -> str:
    """Writes the report's two files. Returns their path without extension. Raises OSError."""
    os.makedirs(folder, exist_ok=True)
    base = path = os.path.join(folder, time.strftime("served-%Y%m%d-%H%M%S", time.gmtime()))
    number = 1
    while os.path.exists(path + ".json"):
        number += 1
        path = f"{base}.{number}"
    with open(path + ".json", "w", encoding="utf-8") as file:
        json.dump(report, file, indent=1)
    with open(path + ".html", "w", encoding="utf-8") as file:
        file.write("\n".join(page(report)) + "\n")
    return path


def show(report: Mapping[str, Any]) -> None:
    """Prints the table of a run."""
    print(f"\npeercache-bench served: {', '.join(report['servers'])}")
    for warning in warnings_of(report):
        print(warning)
    cells = cells_of(report["rows"])
    widths = [max(len(line[i]) for line in cells) for i in range(len(cells[0]))]
    for line in cells:
        print("  ".join(one.ljust(width) if i == 0 else one.rjust(width)
                        for i, (one, width) in enumerate(zip(line, widths))).rstrip())
    for name, value, unit in report["figures"]:
        print(f"{name}: {plot.amount(value)} {unit}")


def deliver(report: Mapping[str, Any], folder: str) -> int:
    """Prints and writes a report. Returns the exit status: 1 if a request failed."""
    show(report)
    path = write(report, folder)
    print(f"\nwrote {path}.json\nwrote {path}.html")
    return 1 if any(row["failed"] for row in report["rows"]) else 0
