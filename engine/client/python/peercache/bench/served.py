# SPDX-License-Identifier: Apache-2.0
"""peercache-bench served: what running servers of SGLang gain. Main thread.

The dialogues are of dialogues.py, the requests of server.py, the measurements of turns.py.
"""

import argparse
import contextlib
import json
import sys
from typing import Any, Mapping, Sequence

from peercache.bench import dialogues, report, sweep, turns
from peercache.bench.clients import Stop
from peercache.bench.report import Kind, Row
from peercache.bench.server import SOURCES, Server, Url
from peercache.bench.turns import BASE, Store, Table

TABLE = (("run", "run"), ("turn", "turn"), ("requests", "requests"), ("failed", "failed"),
         ("prompt tokens", "prompt_tokens"), ("hit %", "hit_ratio"),
         ("hits / bound %", "bound_ratio"),
         *((f"L{i} ({source})", source + "_tokens") for i, source in enumerate(SOURCES, 1)),
         ("TTFT p50 ms", "ttft_p50_ms"), ("TTFT p99 ms", "ttft_p99_ms"),
         ("requests/s", "requests_per_s"))
TOLD = ("page_size", "version", "model_path", "hicache_storage_backend", "tp_size", "dp_size")
PAGE_MAX = 1 << 20  # tokens


def page_of(server: Server, told: Mapping[str, Any], given: int) -> int:
    """The page size of a server, in tokens. Raises ValueError if it is not known."""
    page = given or told.get("page_size")
    if not isinstance(page, int) or not 1 <= page <= PAGE_MAX:
        raise ValueError(f"{server.name} does not tell its page size: give --page-size")
    return page


def stores_of(options: argparse.Namespace) -> tuple[list[Store], dict[str, dict[str, Any]]]:
    """The columns, and what each server tells of itself, by URL. Raises RuntimeError and ValueError
    for URLs that are no servers of SGLang."""
    servers = [Url(url) for url in options.url]
    if len(set(options.url)) < len(servers):
        raise ValueError("a --url is given twice: each must be another host")
    base = [Url(options.no_cache)] if options.no_cache else []
    told = {server.name: server.info() for server in base + servers}
    page = page_of(servers[0], told[servers[0].name], options.page_size)
    stores = [Store(BASE, base, page, cache=False)] if base else []
    return stores + [Store("served", servers, page)], {
        name: {key: one[key] for key in TOLD if key in one} for name, one in told.items()}


def notes_of(table: Table) -> list[str]:
    """What a reader of the figures must know: failures, unknown sources, caches that had pages."""
    notes = [f"failed requests: {count}, {table.first[cause]}"
             for cause, count in table.failed().most_common()]
    unknown = [name for name, part, _ in table.columns()
               if turns.together(part).sum("storage") is None]
    if unknown:
        notes.append(f"{', '.join(unknown)}: whether hits came from L1, L2 or L3 is unknown: these "
                     "servers tell no cached_tokens_details, which SGLang 0.5.10 does")
    for name, part in table.phases[0].items() if table.phases else ():
        hits = turns.together(part).sum("hits") or 0 if part else 0
        if name == BASE and hits:
            notes.append(f"{name}: {hits} tokens hit: this server has a cache")
        elif hits and hits > turns.together(part).bound:
            notes.append(f"{name}: more hits than its own prompts explain: the servers had these "
                         "prompts already; empty their caches, or give another --seed")
    return notes


def run_name(row: Row) -> str:
    """What a row measured, in words."""
    return f"{row['run']}, " + ("all turns" if row["turn"] == "all" else f"turn {row['turn']}")


KIND = Kind(
    turns.COLUMNS, TABLE, "TTFT: the time to the first token. Hits are prompt tokens that were "
    "cached: of the device (L1), of host memory (L2), of storage (L3). The bound is what a store "
    "without bounds would hit: in the first run the whole pages of the prompt of the turn before, "
    "later all whole pages before a prompt's last token.",
    lambda kept: list(kept["notes"]), lambda kept: iter(kept["series"]),
    lambda kept: sum(row["failed"] for row in kept["rows"]), lambda row: row["requests"],
    lambda row: (row["run"], row["phase"], row["turn"]), run_name,
    (("TTFT p50 ms", "ttft_p50_ms"), ("TTFT p99 ms", "ttft_p99_ms"), ("hit ratio", "hit_ratio"),
     ("requests/s", "requests_per_s")),
    ("dialogues", "vocabulary", "users", "turns", "concurrency", "output_tokens", "prompt_max",
     "page_size"))


def made(options: argparse.Namespace, table: Table, servers: Mapping[str, Any], interrupted: bool,
         failed: str) -> dict[str, Any]:
    """The report, as JSON has it."""
    ports = {"kind": "SGLang", "devices": list(servers), "warning": ""}
    return {**report.made(vars(options), ports, "", table.rows(), interrupted, failed),
            "servers": dict(servers), "notes": notes_of(table),
            "figures": list(turns.figures(table)), "series": list(turns.series(table))}


def told(row: Mapping[str, Any]) -> None:
    """Prints a turn that was measured."""
    bound = row["bound_ratio"]
    print(f"{run_name(row)}: {row['requests']} requests, {row['failed']} failed, hits "
          f"{row['hit_ratio']:.1%}" + (f" ({bound:.1%} of the bound)" if bound is not None else "")
          + f", TTFT p50 {row['ttft_p50_ms']:,.0f} ms, p99 {row['ttft_p99_ms']:,.0f} ms",
          flush=True)


def measured(options: argparse.Namespace) -> int:
    """Measures the servers and delivers the report. Returns the exit status."""
    stop = Stop()
    prompts: Sequence[Sequence[dialogues.Prompt]] = \
        dialogues.read(options) if options.dialogues else dialogues.made(options)
    stores, servers = stores_of(options)
    options.page_size = stores[-1].page  # for the report
    progress = sweep.Progress(options.progress)

    def turn_ended(row: Mapping[str, Any]) -> None:
        progress.end()
        told(row)

    def replied(what: str, replies: int, failed: int) -> None:
        progress.show(f"{replies:,} replies, {failed:,} failed", what)

    table = Table(prompts, options, lambda: stop.requested, turn_ended, replied)

    def measure() -> None:
        stop.measuring = True
        table.measure(stores)

    def deliver(interrupted: bool, failed: str) -> int:
        kept = made(options, table, servers, interrupted, failed)
        if options.json and options.json != "-":
            with open(options.json, "w", encoding="utf-8") as file:
                json.dump(kept, file, indent=1)
        elif options.json:
            json.dump(kept, sys.__stdout__, indent=1)
        return report.deliver(kept, options.out_dir, KIND)

    return sweep.ended(measure, stop, table.rows, deliver)


def run(options: argparse.Namespace) -> int:
    """Runs the command. Returns the exit status."""
    with contextlib.redirect_stdout(sys.stderr) if options.json == "-" else \
            contextlib.nullcontext():
        return measured(options)
