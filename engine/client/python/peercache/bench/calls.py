# SPDX-License-Identifier: Apache-2.0
"""get, set, exists and exists-get: what the C program measures, by the class that SGLang calls.

The engine of the last socket stores the pages; the threads call the engine of the first socket.
"""

import argparse
import ctypes
import json
import os
import random
import sys
import threading
import time
from contextlib import closing
from types import SimpleNamespace
from typing import Any, Optional, Sequence

from peercache import Session, config, keys
from peercache.bench.histogram import Histogram
from peercache.bench.hostpool import HostPool
from peercache.bench.stop import Stop
from peercache.pages import Indices
from peercache.store import PeerCacheStore

MODEL = "bench"  # the name under which pages are stored
GROUP = f"{keys.VERSION}|model={MODEL}|prefix=|tag="  # of those pages: keys.group()
TIMEOUT_MS = 10000  # deadline of a call: a busy host must not turn a slow one into a miss
WARM_CALLS = 8  # of a thread, as in the C program: connections are made and pages touched first


def populated(path: str) -> None:
    """Waits until the memory of the engine at this socket is populated, because that takes time
    from what is measured."""
    with closing(Session(path)) as session:
        while True:
            figures = json.loads(session.report())["figures"]
            if figures.get("memory_populated_bytes", 0) >= figures.get("memory_bytes", 0):
                return
            time.sleep(0.1)


def clear(path: str) -> None:
    """Removes the pages of this program from the engine at this socket."""
    try:
        with closing(Session(path)) as session:
            session.clear(GROUP, TIMEOUT_MS)
    except OSError as error:
        print(f"peercache-bench: the pages of this run stay in the engine at {path}: {error}; "
              f"remove them with peercachectl clear --namespace '{GROUP}'", file=sys.stderr)


class Client:
    """A store attached to a running engine, and a host pool that all threads share, as in SGLang.
    """

    def __init__(self, options: argparse.Namespace, socket: str, slots: int) -> None:
        """slots: pages of the pool. Raises OSError if no engine serves there or gives memory."""
        self.options, self.slots = options, slots
        self.pages = max(options.working_set // options.page_bytes, options.batch)
        segments = 1 if options.shape == "mla" else 2
        self.store = PeerCacheStore(SimpleNamespace(
            tp_rank=0, tp_size=1, model_name=MODEL, is_mla_model=segments == 1,
            extra_config={"engine_socket": socket, "engine_start": False, "interface_v1": 1,
                          "timeout_ms": TIMEOUT_MS, "exists_timeout_ms": TIMEOUT_MS}), {})
        nbytes = options.page_bytes * slots
        if options.private_memory:
            self.memory = ctypes.create_string_buffer(nbytes)
            base = ctypes.addressof(self.memory)
        else:
            base = self.store._session.alloc(nbytes)  # pylint: disable=protected-access
        ctypes.memset(base, 1, nbytes)
        self.pool = HostPool(base, slots, options.page_bytes, segments)
        self.store.register_mem_pool_host(self.pool)

    def keys(self, first: int, count: int) -> list[str]:
        """Keys of pages in sequence, of the length of SGLang's page hashes."""
        return [f"{self.options.seed:032x}{first + i:032x}" for i in range(count)]

    def preload(self) -> None:
        """Stores the working set. Raises RuntimeError if a page is not stored."""
        for first in range(0, self.pages, self.slots):
            numbers = range(first, min(first + self.slots, self.pages))
            for slot, number in enumerate(numbers):
                self.pool.mark(slot, number)
            hits = self.store.batch_set_v1(self.keys(first, len(numbers)),
                                           Indices(range(len(numbers))))
            if not all(hits):
                raise RuntimeError(
                    f"storing page {first + hits.index(False)} of {self.pages} before the "
                    f"measurement failed: {self.store.counts()['errors']}: raise "
                    "engine.pool_bytes or lower --working-set")


class Caller(threading.Thread):
    """A client thread. It owns `batch` slots of the client's pool.

    Attributes:
        hits, misses: pages of the measured calls. wrong: pages that were read with other bytes than
        those stored. call_ns: time in the measured calls.
        hit, missed: latencies of calls whose pages were all hits; of the others.
        error: what ended it early.
    """

    def __init__(self, client: Client, index: int, stop: Stop, line: threading.Barrier) -> None:
        """line: where all threads begin to measure."""
        super().__init__(daemon=True)
        self.client, self.stop, self.line = client, stop, line
        self.op, self.batch = client.options.command, client.options.batch
        self.slots = Indices(range(index * self.batch, (index + 1) * self.batch))
        self.random = random.Random(f"{client.options.seed} {index}")
        # Pages that are stored anew. No run has those of an earlier one with its seed: a thread
        # stores fewer pages than nanoseconds go by.
        self.next = (index + 1 << 64) + time.time_ns()
        self.hits = self.misses = self.wrong = self.call_ns = 0
        self.hit, self.missed = Histogram(), Histogram()
        self.error: Optional[Exception] = None

    def choose(self) -> int:
        """The number of the next call's first page: a random run of stored pages, or new ones."""
        if self.op != "set":
            return self.random.randrange(self.client.pages - self.batch + 1)
        first, self.next = self.next, self.next + self.batch
        for i, slot in enumerate(self.slots):
            self.client.pool.mark(slot, first + i)
        return first

    def call(self, names: Sequence[str]) -> int:
        """Makes the op's call as SGLang does. Returns the number of hits."""
        store = self.client.store
        if self.op == "set":
            return sum(store.batch_set_v1(names, self.slots))
        if self.op == "get":
            return sum(store.batch_get_v1(names, self.slots))
        found = store.batch_exists(names)
        if self.op == "exists" or not found:
            return found
        return sum(store.batch_get_v1(names[:found], Indices(self.slots[:found])))

    def right(self, first: int) -> bool:
        """True if one page of the call, which had only hits, has the bytes that were stored."""
        i = self.random.randrange(self.batch)
        return self.client.pool.marked(self.slots[i], first + i)

    def one(self) -> tuple[int, int]:
        """Makes one call. Returns the hits and the time in ns."""
        first = self.choose()
        names = self.client.keys(first, self.batch)
        began = time.perf_counter_ns()
        hits = self.call(names)
        took = time.perf_counter_ns() - began
        if hits == self.batch and self.op in ("get", "exists-get"):
            self.wrong += not self.right(first)
        return hits, took

    def measure(self) -> None:
        """Makes calls for --seconds, and at least one."""
        for _ in range(WARM_CALLS):
            self.one()
        self.line.wait()
        end = time.perf_counter_ns() + int(self.client.options.seconds * 1e9)
        while True:
            hits, took = self.one()
            self.hits += hits
            self.misses += self.batch - hits
            self.call_ns += took
            (self.hit if hits == self.batch else self.missed).add(took)
            if self.stop.requested or time.perf_counter_ns() >= end:
                return

    def run(self) -> None:
        try:
            self.measure()
        except Exception as error:  # pylint: disable=broad-except
            self.error = error
            self.line.abort()


def result_of(client: Client, callers: Sequence[Caller]) -> dict[str, Any]:
    """The result with the names of the C program's JSON; the rate counts the time in the calls."""
    options, counts = client.options, client.store.counts()
    rate = sum(c.hits * 1e9 / c.call_ns for c in callers)
    hit, missed = (sum((getattr(c, name) for c in callers), Histogram())
                   for name in ("hit", "missed"))
    return {"mode": options.command, "api": "python", "shape": options.shape,
            "page_bytes": options.page_bytes, "batch": options.batch, "threads": options.threads,
            "pages_per_second": rate,
            "gbps": 0 if options.command == "exists" else rate * options.page_bytes / 1e9,
            "p50_us": hit.us(.5), "p95_us": hit.us(.95), "p99_us": hit.us(.99),
            "p999_us": hit.us(.999), "max_us": hit.max_ns / 1e3, "calls": hit.total,
            "missed_p50_us": missed.us(.5), "missed_p99_us": missed.us(.99),
            "missed_calls": missed.total, "misses": sum(c.misses for c in callers),
            "wrong": sum(c.wrong for c in callers),
            **{name: counts[name] for name in ("hits_local", "hits_remote", "bytes_staged")}}


def show(got: dict[str, Any], path: str) -> None:
    """Prints a result as the C program does. path: of the JSON, or ""."""
    print("{mode} (Python, {shape}): {page_bytes}-byte pages, batch {batch}, {threads} threads: "
          "{pages_per_second:.0f} pages/s, {gbps:.2f} GB/s\n  a call of hits: p50 {p50_us:.1f} us, "
          "p95 {p95_us:.1f} us, p99 {p99_us:.1f} us, p99.9 {p999_us:.1f} us, max {max_us:.1f} us; "
          "{missed_calls} other calls: p50 {missed_p50_us:.1f} us\n  not hits {misses}, wrong "
          "{wrong}; pages read: local {hits_local}, remote {hits_remote}".format(**got))
    text = json.dumps(got) + "\n"
    if path == "-":
        sys.stdout.write(text)
    elif path:
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)


def measured(options: argparse.Namespace, near: str, far: str) -> dict[str, Any]:
    """Stores pages at `far` and measures calls at `near`."""
    stop = Stop()
    if options.command != "set":
        holder = Client(options, far, options.batch)
        with closing(holder.store):
            holder.preload()
    client = Client(options, near, options.batch * options.threads)
    with closing(client.store):
        line = threading.Barrier(options.threads)
        callers = [Caller(client, index, stop, line) for index in range(options.threads)]
        stop.measuring = True
        for caller in callers:
            caller.start()
        for caller in callers:
            caller.join()
        failed = [caller.error for caller in callers if caller.error]
        if failed:
            raise RuntimeError(f"a thread ended early: {failed[0]!r}")
        return result_of(client, callers)


def run(options: argparse.Namespace) -> int:
    """Runs the measurement. Returns 1 if a page was wrong or no page was moved."""
    listed = options.sockets or os.environ.get("PEERCACHE_SOCKETS", "")
    sockets = listed.split(",") if listed else [config.default_socket()]
    near, far = sockets[0], sockets[-1]
    for path in {near, far}:
        populated(path)
    try:
        got = measured(options, near, far)
    finally:
        for path in {near, far}:
            clear(path)
    show(got, options.json)
    return 1 if got["wrong"] or not got["pages_per_second"] else 0
