# SPDX-License-Identifier: Apache-2.0
"""get, set and exists: what the C program measures, through the store. Main thread.

The engine of the last socket stores the pages; the threads call the engine of the first socket.
"""

import argparse
import json
import os
import sys
from contextlib import closing
from typing import Any

from peercache import config
from peercache.bench.client import Client, Spec, pools_of
from peercache.bench.clients import Clients, Stop
from peercache.bench.engines import Engines
from peercache.bench.sweep import PRELOADER

WARM_SECONDS = 0.1  # connections are made and pages touched first


def result_of(options: argparse.Namespace, got: dict[str, Any], ports: dict[str, Any]
              ) -> dict[str, Any]:
    """The result with the names of the C program's JSON; the rate counts the time in the calls."""
    rate, counted = got["call_rate"], got["counted"]
    return {"mode": options.command, "api": "python", "shape": options.shape,
            "page_bytes": options.page_bytes, "batch": options.batch, "threads": options.threads,
            "pages_per_second": rate,
            "gbps": 0 if options.command == "exists" else rate * options.page_bytes / 1e9,
            "p50_us": got["hit"].us(.5), "p95_us": got["hit"].us(.95), "p99_us": got["hit"].us(.99),
            "p999_us": got["hit"].us(.999), "max_us": got["hit"].max_ns / 1e3,
            "calls": got["hit"].total, "missed_p50_us": got["missed"].us(.5),
            "missed_p99_us": got["missed"].us(.99), "missed_calls": got["missed"].total,
            "misses": got["misses"], "wrong": got["wrong"],
            "hits_local": counted.get("hits_local", 0),
            "hits_remote": counted.get("hits_remote", 0),
            "bytes_staged": counted.get("bytes_staged", 0), "ports": ports["kind"]}


def show(got: dict[str, Any], warning: str) -> None:
    """Prints a result as the C program does."""
    print("{mode} (Python, {shape}): {page_bytes}-byte pages, batch {batch}, {threads} threads: "
          "{pages_per_second:.0f} pages/s, {gbps:.2f} GB/s\n  a call of hits: p50 {p50_us:.1f} us, "
          "p95 {p95_us:.1f} us, p99 {p99_us:.1f} us, p99.9 {p999_us:.1f} us, max {max_us:.1f} us; "
          "{missed_calls} other calls: p50 {missed_p50_us:.1f} us\n  not hits {misses}, wrong "
          "{wrong}; pages read: local {hits_local}, remote {hits_remote}".format(**got))
    if warning:
        print(f"  {warning}")


def run(options: argparse.Namespace) -> int:
    """Runs the measurement. Returns 1 if a page was wrong or no page was moved."""
    stop = Stop()
    listed = options.sockets or os.environ.get("PEERCACHE_SOCKETS", "")
    with closing(Engines(listed.split(",") if listed else [config.default_socket()])) as engines:
        return measured(options, stop, engines)


def measured(options: argparse.Namespace, stop: Stop, engines: Engines) -> int:
    """What run() does with the engines."""
    pages = max(options.working_set // options.page_bytes, options.batch)

    def spec(socket: str, threads: int, index: int) -> Spec:
        stores, slots = pools_of(options.batch, threads)
        return Spec(socket, options.page_bytes, 1 if options.shape == "mla" else 2, slots, pages,
                    options.seed, stores, index, options.private_memory, options.log_level,
                    options.log_file)

    if options.command != "set":
        far = Client(spec(engines.far, 1, PRELOADER))
        with closing(far.store):
            far.preload()
    with closing(Clients([spec(engines.near, options.threads, 0)], stop)) as clients:
        stop.measuring = True
        results = clients.run({"op": options.command, "threads": options.threads, "writers": 0,
                               "batch": options.batch, "warmup": WARM_SECONDS,
                               "seconds": options.seconds, "number": 1}, lambda _sums: None)
    if not results:
        raise RuntimeError("interrupted while a call waits: no results")
    if stop.requested and not results[options.command]["calls"]:
        raise KeyboardInterrupt
    got = result_of(options, results[options.command], engines.ports)
    show(got, engines.ports["warning"])
    if options.json:
        text = json.dumps(got) + "\n"
        if options.json == "-":
            sys.stdout.write(text)
        else:
            with open(options.json, "w", encoding="utf-8") as file:
                file.write(text)
    return 1 if got["wrong"] or not got["pages_per_second"] else 0
