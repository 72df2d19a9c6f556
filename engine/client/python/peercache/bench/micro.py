# SPDX-License-Identifier: Apache-2.0
"""micro, and compare without tags: the client library beside the store. Main thread.

Both make the same calls to the same engines: pages of one length, read from the second engine
through the first. The client library is measured by the C program of the same name.
"""

import argparse
import json
import os
import subprocess
from contextlib import closing
from typing import Any, Mapping

from peercache import launch
from peercache.bench import rows, sweep
from peercache.bench.client import Spec
from peercache.bench.clients import Clients, Stop
from peercache.bench.engines import Engines
from peercache.bench.histogram import Histogram

WORKING_BYTES, WORKING_PAGES = 256 << 20, 4096  # of one page size, at most


def program() -> str:
    """The C program. Raises FileNotFoundError."""
    found = os.environ.get("PEERCACHE_BENCH") or launch.find_program("peercache-bench")
    if not found:
        raise FileNotFoundError("the program peercache-bench is not found beside Python or on "
                                "PATH: give its path in $PEERCACHE_BENCH, or use --path store")
    return found


class Sized:
    """The measurements of one page size."""

    def __init__(self, options: argparse.Namespace, page_bytes: int) -> None:
        pages = max(min(WORKING_PAGES, WORKING_BYTES // page_bytes), 2 * options.batch_size)
        self.options = argparse.Namespace(**{
            **vars(options), "page_size": page_bytes, "layout": "mla", "tokens_per_page": 0,
            "processes": 1, "working_set": pages, "seed": page_bytes})
        self.group = sweep.Group("get", options.batch_size, [options.threads])
        self.sizes = sweep.Sizes(self.options, [self.group], sweep.rails_of(options))

    def what(self, engines: Engines, path: str) -> dict[str, Any]:
        """The parts of a row that are no results."""
        return {"path": path, "layout": "mla", "page_bytes": self.sizes.page,
                "batch": self.group.batch, "processes": 1, "readers": self.options.threads,
                "writers": 0, "tokens_per_page": 0,
                "ports": engines.ports["warning"] or engines.ports["kind"]}

    def transport(self, engines: Engines, stop: Stop) -> list[dict[str, Any]]:
        """The row of the C program; none after a stop, which ends it, too."""
        options = self.options
        done = subprocess.run(
            [program(), "get", "--sockets", f"{engines.near},{engines.far}", "--page-bytes",
             str(self.sizes.page), "--batch", str(self.group.batch), "--threads",
             str(options.threads), "--seconds", str(max(1, round(options.duration))),
             "--working-set", str(self.sizes.working_set * self.sizes.page), "--no-baseline",
             "--json", "/dev/stderr"], capture_output=True, text=True, check=False)
        if stop.requested:
            return []
        try:
            got = json.loads(done.stderr)
        except ValueError as error:
            raise RuntimeError(f"the C program ended with {done.returncode}: {done.stderr}"
                               ) from error
        return [transport_row(got, self.what(engines, "transport"))]

    def store(self, engines: Engines, stop: Stop) -> list[dict[str, Any]]:
        """The row of the store; none if a stop left nothing."""
        options, sizes = self.options, self.sizes
        sweep.preload(Spec(engines.far, sizes.page, 1, sizes.preload, sizes.working_set,
                           options.seed, index=sweep.PRELOADER))
        if stop.requested:
            return []
        specs = sweep.specs_of(options, engines.near, sizes, self.group)
        with closing(Clients(specs, stop)) as clients:
            stop.measuring = True
            results = clients.run(
                {"op": "get", "threads": options.threads, "writers": 0, "batch": self.group.batch,
                 "warmup": options.warmup, "seconds": options.duration, "number": 1},
                sweep.Progress(options.progress, f"store, {sizes.page} bytes"))
        return [in_calls(rows.row("get", result, **self.what(engines, "store")), result)
                for result in results.values() if result["calls"]]

    def measure(self, path: str, engines: Engines, stop: Stop, found: list[dict[str, Any]]) -> None:
        """Adds the rows of the path to `found`, until a stop."""
        if path != "store":
            found += self.transport(engines, stop)
            stop.measuring = bool(found)
        if path != "transport" and not stop.requested:
            found += self.store(engines, stop)
        if path == "both" and not stop.requested:
            print(f"{self.sizes.page} bytes: store / transport "
                  f"{found[-1]['pages_per_s'] / max(found[-2]['pages_per_s'], 1e-9):.2f}",
                  flush=True)


def in_calls(row: dict[str, Any], result: Mapping[str, Any]) -> dict[str, Any]:
    """The row with the rate that the C program gives: over the time in the calls."""
    row["pages_per_s"] = result["call_rate"]
    row["gb_per_s"] = result["call_rate"] * row["page_bytes"] / 1e9
    return row


def transport_row(got: Mapping[str, Any], what: Mapping[str, Any]) -> dict[str, Any]:
    """The row of the C program's JSON."""
    empty = {"threads": got["threads"], "calls": got["calls"] + got["missed_calls"],
             "hits": got["calls"] * got["batch"], "misses": got["misses"], "wrong": got["wrong"],
             "seconds": 0.0, "call_rate": got["pages_per_second"], "hit": Histogram(),
             "missed": Histogram(), "counted": {name: got[name] for name in (
                 "hits_local", "hits_remote")}}
    row = in_calls(rows.row("get", empty, **what), empty)
    for name in ("p50_us", "p95_us", "p99_us", "p999_us", "max_us", "missed_calls",
                 "missed_p50_us", "missed_p99_us"):
        row[name] = got[name]
    return row


def engines_of(options: argparse.Namespace, sized: list[Sized]) -> Engines:
    """The engines that --sockets names, else two for all page sizes."""
    if options.sockets:
        return Engines(options.sockets.split(","))
    near = max(one.sizes.near for one in sized)
    # The working set of each program and page size stays in the pool.
    far = sum(2 * one.sizes.far for one in sized)
    needed = near + far + max(one.sizes.clients for one in sized)
    if needed > options.max_bytes:
        raise ValueError(f"this run takes {needed >> 20} MiB of memory, more than --max-bytes, "
                         f"{options.max_bytes >> 20} MiB: lower the page sizes or --batch-size")
    return sweep.pair_of(options, near, far)


def run(options: argparse.Namespace) -> int:
    """Runs micro, or compare's sweep of page sizes. Returns the exit status."""
    stop = Stop()
    micro = options.command == "micro"
    sized = [Sized(options, nbytes)
             for nbytes in ([options.block_size] if micro else options.block_sizes)]
    path = options.path if micro else "both"
    if path != "store":
        program()
    found: list[dict[str, Any]] = []
    with closing(engines_of(options, sized)) as engines:
        def each() -> None:
            for one in sized:
                if not stop.requested:
                    one.measure(path, engines, stop, found)
        sweep.warn_of_ports(engines)
        return sweep.delivered(each, options, stop, engines, found)
