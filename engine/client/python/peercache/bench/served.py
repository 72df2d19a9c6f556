# SPDX-License-Identifier: Apache-2.0
"""peercache-bench served: what running servers of SGLang gain. Main thread.

The dialogues are of dialogues.py, the requests of server.py, the measurements of turns.py.
"""

import argparse
import contextlib
import json
import sys
import time
from typing import Any, Mapping, Optional, Sequence

import peercache
from peercache.bench import dialogues, report, turns
from peercache.bench.server import Server, Url
from peercache.bench.stop import Stop
from peercache.bench.turns import BASE, Store, Table

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


def made(options: argparse.Namespace, table: Table, servers: Mapping[str, Any], interrupted: bool,
         failed: str) -> dict[str, Any]:
    """The report, as JSON has it. failed: the error that ended the run early, or ""."""
    return {"created_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "command": "served", "options": vars(options), "peercache": peercache.__version__,
            "interrupted": interrupted, "failed": failed, "rows": table.rows(),
            "servers": dict(servers), "notes": notes_of(table),
            "figures": list(turns.figures(table)), "series": list(turns.series(table))}


class Progress:
    """Lines on standard error while a turn runs."""

    def __init__(self, seconds: Optional[float]) -> None:
        self.terminal = sys.stderr.isatty()
        self.every = (1.0 if self.terminal else 5.0) if seconds is None else seconds
        self.what, self.line = "", ""
        self.begun = self.shown = time.monotonic()

    def show(self, what: str, replies: int, failed: int) -> None:
        """Prints a line, if the last one is old enough. what: a new one begins."""
        now = time.monotonic()
        if what != self.what:
            self.what, self.begun, self.shown = what, now, now
        if not self.every or now < self.shown + self.every:
            return
        self.shown = now
        self.line = f"  {what}: {now - self.begun:.0f} s, {replies:,} replies, {failed:,} failed"
        print(self.line, end="\r" if self.terminal else "\n", file=sys.stderr, flush=True)

    def turn_ended(self, row: Mapping[str, Any]) -> None:
        """Clears the line of a terminal, and prints a turn that was measured."""
        if self.terminal and self.line:
            print(" " * len(self.line), end="\r", file=sys.stderr, flush=True)
        bound = row["bound_ratio"]
        print(f"{row['run']}, turn {row['turn']}: {row['requests']} requests, {row['failed']} "
              f"failed, hits {row['hit_ratio']:.1%}"
              + (f" ({bound:.1%} of the bound)" if bound is not None else "")
              + f", TTFT p50 {row['ttft_p50_ms']:,.0f} ms, p99 {row['ttft_p99_ms']:,.0f} ms",
              flush=True)


def deliver(options: argparse.Namespace, kept: Mapping[str, Any]) -> int:
    """Writes the report where it is wanted. Returns the exit status."""
    if options.json == "-":
        json.dump(kept, sys.__stdout__, indent=1)
    elif options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(kept, file, indent=1)
    return report.deliver(kept, options.out_dir)


def measured(options: argparse.Namespace) -> int:
    """Measures the servers, and delivers the report of what a stop or an error has left. Returns
    the exit status; raises the error, and KeyboardInterrupt if a stop left nothing."""
    stop = Stop()
    prompts: Sequence[Sequence[dialogues.Prompt]] = \
        dialogues.read(options) if options.dialogues else dialogues.made(options)
    stores, servers = stores_of(options)
    options.page_size = stores[-1].page  # for the report
    progress = Progress(options.progress)
    table = Table(prompts, options, lambda: stop.requested, progress.turn_ended, progress.show)
    failure: Optional[Exception] = None
    stop.measuring = True
    try:
        table.measure(stores)
    except (OSError, RuntimeError, ValueError) as error:
        failure = error
    status = deliver(options, made(options, table, servers, stop.requested, str(failure or ""))) \
        if table.rows() else 0
    if failure:
        raise failure
    if not table.rows():
        raise KeyboardInterrupt
    return status


def run(options: argparse.Namespace) -> int:
    """Runs the command. Returns the exit status."""
    with contextlib.redirect_stdout(sys.stderr) if options.json == "-" else \
            contextlib.nullcontext():
        return measured(options)
