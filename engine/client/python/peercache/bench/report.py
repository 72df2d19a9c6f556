# SPDX-License-Identifier: Apache-2.0
"""Writes what a run has measured: JSON, CSV and HTML with plots in one folder. Main thread.

A Kind says what is different: POINTS are rows of calls to the store, served.KIND those of requests
to a server.
"""

import csv
import json
import os
import platform
import time
from dataclasses import dataclass
from typing import Any, Callable, Iterator, Mapping, Optional, Sequence

import peercache
from peercache.bench import plot
from peercache.bench.options import applied
from peercache.bench.plot import text
from peercache.bench.rows import COLUMNS, TABLE, cell, columns, is_latency, key_of, table

FORMAT = "peercache-bench 2"  # of the JSON; compare reads no other
Row = Mapping[str, Any]


@dataclass(frozen=True)
class Kind:
    """What the rows of a report are.

    columns: of the CSV file. table: pairs of title and name. explained: below the table. warnings,
    series: of a report. wrong(report): the number of results that make the exit status 1, moved:
    false if nothing was measured. For compare: key, name: of a row; compared: labels and names;
    options: what is no part of the key, but changes the figures.
    """

    columns: Sequence[str]
    table: Sequence[tuple[str, str]]
    explained: str
    warnings: Callable[[Mapping[str, Any]], list[str]]
    series: Callable[[Mapping[str, Any]], Iterator[dict[str, Any]]]
    wrong: Callable[[Mapping[str, Any]], int]
    moved: Callable[[Row], Any]
    key: Callable[[Row], tuple[Any, ...]]
    name: Callable[[Row], str]
    compared: Sequence[tuple[str, str]]
    options: Sequence[str]


def host() -> dict[str, Any]:
    """The machine, for a reader of the report."""
    model = ""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            model = next((line.split(":", 1)[1].strip() for line in file
                          if line.startswith("model name")), "")
    except OSError:
        pass
    return {"name": platform.node(), "system": platform.platform(),
            "processor": model or platform.machine(), "processors": os.cpu_count(),
            "python": platform.python_version()}


def made(options: Mapping[str, Any], ports: Mapping[str, Any], engine: str,
         rows: Sequence[Mapping[str, Any]], interrupted: bool, failed: str) -> dict[str, Any]:
    """The report of a run, as JSON has it. options: the command line; what changes nothing is left
    out. failed: the error that ended it early, or ""."""
    return {"format": FORMAT, "created_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "command": options["command"], "tag": options["tag"], "options": applied(options),
            "host": host(), "ports": dict(ports), "peercache": peercache.__version__,
            "engine": engine, "interrupted": interrupted, "failed": failed,
            "rows": list(rows)}


def wrong_pages(report: Mapping[str, Any]) -> int:
    """The number of pages that were read with wrong bytes."""
    return sum(row["wrong"] for row in report["rows"])


def warnings_of(report: Mapping[str, Any], kind: Kind) -> list[str]:
    """What a reader of the figures must know first."""
    early = "interrupted" if report["interrupted"] else ""
    if report["failed"]:
        early = f"failed, {report['failed']}"
    return list(filter(None, [report["ports"]["warning"], *kind.warnings(report),
                              early and f"{early}: these are the results until then"]))


def point_name(row: Row) -> str:
    """What a row measured, in words."""
    writers = f", {row['readers']} readers, {row['writers']} writers" if row["writers"] else ""
    latency = " latency" if is_latency(row) else ""
    return (f"{row['op']}{latency} ({row['path']}), {row['page_bytes']} B, batch {row['batch']}, "
            f"{row['threads']} threads{writers}")


def title_of(series: str, report: Mapping[str, Any]) -> str:
    """The title of a plot: it names software ports."""
    warning = report["ports"]["warning"]
    return f"{series} ({warning})" if warning else series


def sweeps(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[Mapping[str, Any]]]:
    """The rows of each op that has several numbers of threads, in their order, without latency."""
    found: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        if not is_latency(row):
            found.setdefault(row["op"], []).append(row)
    return {op: part for op, part in found.items() if len({r["threads"] for r in part}) > 1}


def series_of(report: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The plots of a run: rates by threads, of look-ups apart, and latency by threads of each op;
    one of the latencies of what was no sweep."""
    found = sweeps(report["rows"])
    x = sorted({r["threads"] for part in found.values() for r in part})

    def line(part: Sequence[Mapping[str, Any]], name: str) -> list[Optional[float]]:
        at = {r["threads"]: r[name] for r in part}
        return [at.get(threads) for threads in x]

    for what, name, looked_up in (("pages/s", "pages_per_s", False), ("GB/s", "gb_per_s", False),
                                  ("tokens/s", "tokens_per_s", False),
                                  ("keys/s", "pages_per_s", True)):
        lines = {op: line(part, name) for op, part in found.items()
                 if (op == "exists") == looked_up}
        if lines:
            yield {"title": title_of(f"{what} by threads", report), "x_label": "threads",
                   "y_label": what, "x": x, "lines": lines}
    for op, part in found.items():
        yield {"title": title_of(f"latency of a call, {op}", report), "x_label": "threads",
               "y_label": "us", "x": x,
               "lines": {label: line(part, name) for label, name in (
                   ("p50", "p50_us"), ("p95", "p95_us"), ("p99", "p99_us"))}}
    rest = [r for r in report["rows"] if r["op"] not in found or is_latency(r)]
    if rest:
        shares = ("p50_us", "p95_us", "p99_us", "p999_us", "max_us")
        yield {"title": title_of("latency of a call", report), "x_label": "share of the calls",
               "y_label": "us", "x": ["p50", "p95", "p99", "p99.9", "max"],
               "lines": {f"{r['op']}, batch {r['batch']}, {r['page_bytes']} B":
                         [r[name] for name in shares] for r in rest[:8]}}


def page_head(title: str, warnings: Sequence[str]) -> Iterator[str]:
    """The begin of an HTML page; each warning is a line of its own."""
    yield f"<!doctype html><meta charset=utf-8><title>{text(title)}</title>"
    yield f"<style>{plot.STYLE}</style><h1>{text(title)}</h1>"
    yield "".join(f'<p class="not">{text(warning)}</p>' for warning in warnings)


def page(report: Mapping[str, Any], kind: Kind) -> Iterator[str]:
    """The HTML page of a run."""
    name = f"peercache-bench {report['command']} {report['tag']}".strip()
    yield from page_head(name, warnings_of(report, kind))
    engine = report["engine"] and f"engine {report['engine']}, "
    yield (f"<p>{text(report['created_at'])}, PeerCache {text(report['peercache'])}, "
           f"{text(engine)}{text(report['ports']['kind'])} "
           f"{text(', '.join(report['ports']['devices']))}.</p>")
    for series in kind.series(report):
        yield from plot.part(series)
    if report.get("figures"):
        yield "<h2>Figures</h2>"
        yield from plot.table((), [(name, f"{plot.amount(value)} {unit}")
                                   for name, value, unit in report["figures"]], 2)
    yield "<h2>All rows</h2>"
    shown = columns(report["rows"], kind.table)
    yield from plot.table([title for title, _ in shown], [
        [cell(name, row[name]) for _, name in shown] for row in report["rows"]], 0)
    yield f"<p>{text(kind.explained)}</p>"
    for title, pairs in (("How", report["options"]), ("The machine", report["host"])):
        yield f"<h2>{title}</h2>"
        yield from plot.table((), pairs.items(), 2)


def free_name(folder: str, name: str) -> str:
    """A path without extension in the folder that no report has."""
    path, number = os.path.join(folder, name), 1
    while any(os.path.exists(path + end) for end in (".json", ".csv", ".html")):
        number += 1
        path = os.path.join(folder, f"{name}.{number}")
    return path


def write(report: Mapping[str, Any], folder: str, kind: Kind) -> str:
    """Writes the report's three files. Returns their path without extension. Raises OSError."""
    os.makedirs(folder, exist_ok=True)
    options = report["options"]
    what = f"{report['command']}-{options.get('op') or options.get('path') or ''}".rstrip("-")
    kind_of_ports = report["ports"]["kind"].lower().replace(" ", "-")
    ports = "rdma" if kind_of_ports == "nic" else kind_of_ports
    parts = ["hicache", what, ports, report["tag"],
             time.strftime("%Y%m%d-%H%M%S", time.gmtime())]
    path = free_name(folder, "-".join(filter(None, parts)))
    with open(path + ".json", "w", encoding="utf-8") as file:
        json.dump(report, file, indent=1)
    with open(path + ".csv", "w", encoding="utf-8", newline="") as file:
        lines = csv.DictWriter(file, kind.columns)
        lines.writeheader()
        lines.writerows(report["rows"])
    with open(path + ".html", "w", encoding="utf-8") as file:
        file.write("\n".join(page(report, kind)) + "\n")
    return path


def show(report: Mapping[str, Any], kind: Kind) -> None:
    """Prints the table of a run."""
    print(f"\npeercache-bench {report['command']}: {report['ports']['kind']} "
          f"{', '.join(report['ports']['devices'])}")
    for warning in warnings_of(report, kind):
        print(warning)
    for line in table(report["rows"], kind.table):
        print(line)
    for name, value, unit in report.get("figures", ()):
        print(f"{name}: {plot.amount(value)} {unit}")


POINTS = Kind(
    COLUMNS, TABLE, "Rates are hits over the time from the first measured call to the last; a page "
    "of a look-up is a key that was found. Latencies are of one call: of calls whose pages were "
    "all hits, and apart of those with a miss.",
    lambda report: [f"{wrong_pages(report)} pages had wrong bytes"] if wrong_pages(report) else [],
    series_of, wrong_pages, lambda row: row["pages"], key_of, point_name,
    (("pages/s", "pages_per_s"), ("p50 us", "p50_us"), ("p99 us", "p99_us")), ("working_set",))


def deliver(report: Mapping[str, Any], folder: str, kind: Kind = POINTS) -> int:
    """Prints and writes a report. Returns the exit status: 1 if something was wrong, or nothing
    moved."""
    show(report, kind)
    path = write(report, folder, kind)
    print(f"\nwrote {path}.json\nwrote {path}.csv\nwrote {path}.html")
    return 0 if any(map(kind.moved, report["rows"])) and not kind.wrong(report) else 1
