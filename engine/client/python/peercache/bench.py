# SPDX-License-Identifier: Apache-2.0
"""Measures PeerCacheStore as SGLang calls it. `peercache-bench --api python` runs this module.

    python3 -m peercache.bench get|set|exists --sockets A,B [OPTION]...

Each thread has a store and a pool of one batch of pages. It calls batch_get_v1, batch_set_v1 or
batch_exists. With --shape mha a page has two segments, K and V. The measured time includes
get_page_buffer_meta(), as in SGLang. The engine of the last socket stores the pages; the threads
call the engine of the first socket.
"""

import argparse
import ctypes
import json
import os
import random
import signal
import sys
import threading
import time
from types import SimpleNamespace
from typing import Any

from peercache import __version__, config
from peercache.store import PeerCacheStore


class Indices(list):
    """Stands in for a CPU int64 tensor: has the one method that a pool uses."""

    def tolist(self) -> list:
        """The indices."""
        return self


class Pool:
    """Stands in for SGLang's host pool: pages of one token, each of `segments` equal segments.

    base: address of the memory, which the caller keeps. All first segments come first in it, then
    all second ones.
    """

    page_size, layout, dtype = 1, "page_first", "bf16"

    def __init__(self, base: int, pages: int, page_bytes: int, segments: int) -> None:
        self.each = page_bytes // segments
        self.bases = [base + i * pages * self.each for i in range(segments)]
        self.kv_buffer = None if not base else SimpleNamespace()

    def get_page_buffer_meta(self, indices: Indices) -> tuple[list[int], list[int]]:
        """Addresses and lengths in bytes of the pages' segments."""
        each = self.each
        ptrs = [base + page * each for page in indices.tolist() for base in self.bases]
        return ptrs, [each] * len(ptrs)

    def mark(self, page: int, number: int) -> None:
        """Writes `number` at the start of each segment of a page, for marked()."""
        for base in self.bases:
            at = base + page * self.each
            ctypes.memmove(at, number.to_bytes(8, "little"), min(8, self.each))

    def marked(self, page: int, number: int) -> bool:
        """True if each segment of the page starts with `number`."""
        size = min(8, self.each)
        return all(ctypes.string_at(base + page * self.each, size)
                   == number.to_bytes(8, "little")[:size] for base in self.bases)


class Worker:
    """A store with its pool, and the results of its calls. One thread at a time uses it.

    Attributes:
        done, misses: numbers of pages, without the calls that warm up.
        wrong: number of pages whose bytes were not those stored.
        took: seconds of each call whose pages were all hits.
        missed: seconds of each other call.
    """

    def __init__(self, options: argparse.Namespace, socket: str, index: int) -> None:
        """socket: path of the engine's socket. index: number of the worker, unique in this run."""
        self.options, self.index = options, index
        given = {"engine_socket": socket, "engine_start": False, "interface_v1": 1,
                 "timeout_ms": 10000}
        self.store = PeerCacheStore(SimpleNamespace(
            tp_rank=0, tp_size=1, model_name="bench", is_mla_model=options.shape == "mla",
            extra_config=given), {})
        nbytes = options.page_bytes * options.batch
        session = self.store._session  # pylint: disable=protected-access
        if options.private_memory:
            self.memory = ctypes.create_string_buffer(nbytes)
            base = ctypes.addressof(self.memory)
        else:
            base = session.alloc(nbytes)
        ctypes.memset(base, 1, nbytes)
        self.pool = Pool(base, options.batch, options.page_bytes,
                         1 if options.shape == "mla" else 2)
        self.store.register_mem_pool_host(self.pool)
        self.indices = Indices(range(options.batch))
        self.random = random.Random(options.seed + index)
        self.done = self.misses = self.wrong = self.next = 0
        self.took: list[float] = []
        self.missed: list[float] = []

    def key(self, number: int) -> str:
        """Key of a page, of the length of SGLang's page hashes."""
        return f"{self.options.seed:032x}{number:032x}"

    def preload(self, pages: int) -> None:
        """Stores `pages` pages for the measurement. Exits the program if one is not stored."""
        for first in range(0, pages, self.options.batch):
            numbers = range(first, min(first + self.options.batch, pages))
            for page, number in enumerate(numbers):
                self.pool.mark(page, number)
            hits = self.store.batch_set_v1([self.key(n) for n in numbers],
                                           Indices(range(len(numbers))))
            if not all(hits):
                raise SystemExit(f"storing {pages} pages before the measurement failed: "
                                 f"{self.store.counts()}; raise engine.pool_bytes or lower "
                                 "--working-set")

    def batch(self, mode: str, pages: int) -> None:
        """Makes one call and measures it. A get or exists takes a random run of `pages` pages."""
        count = self.options.batch
        if mode == "set":
            first = pages + (self.index << 40) + self.next
            self.next += count
        else:
            first = self.random.randrange(pages - count + 1)
        keys = [self.key(first + i) for i in range(count)]
        if mode == "set":
            for page in range(count):
                self.pool.mark(page, first + page)
        began = time.perf_counter()
        if mode == "get":
            hits = sum(self.store.batch_get_v1(keys, self.indices))
        elif mode == "set":
            hits = sum(self.store.batch_set_v1(keys, self.indices))
        else:
            hits = self.store.batch_exists(keys)
        (self.took if hits == count else self.missed).append(time.perf_counter() - began)
        self.done += hits
        self.misses += count - hits
        if mode == "get" and hits == count:
            page = self.random.randrange(count)
            self.wrong += not self.pool.marked(page, first + page)

    def run(self, mode: str, pages: int, seconds: float) -> None:
        """Makes calls for this time, after a few that open connections and touch the memory."""
        for _ in range(8):
            self.batch(mode, pages)
        self.done = self.misses = 0
        self.took, self.missed = [], []
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.batch(mode, pages)


def parse() -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(prog="peercache-bench --api python", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--version", action="version",
                        version=f"peercache-bench {__version__}")
    parser.add_argument("mode", choices=["get", "set", "exists"])
    parser.add_argument("--sockets", default="")
    parser.add_argument("--page-bytes", type=config.size, default=128 << 10)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=3)
    parser.add_argument("--working-set", type=config.size, default=256 << 20)
    parser.add_argument("--shape", choices=["mla", "mha"], default="mla")
    parser.add_argument("--private-memory", action="store_true")
    parser.add_argument("--seed", type=int, default=time.time_ns())
    parser.add_argument("--json", default="")
    return parser.parse_args()


def report(options: argparse.Namespace, workers: list[Worker]) -> dict[str, Any]:
    """Sums the workers' results: pages/s, GB/s, microseconds per call, and counts of pages."""
    took = sorted(t for w in workers for t in w.took) or [0.0]
    missed = sorted(t for w in workers for t in w.missed) or [0.0]
    # As for the C API, the rate is the sum of the threads' rates, each over the time in its calls.
    rate = sum(w.done / sum(w.took + w.missed) for w in workers if w.took or w.missed)
    counts = [w.store.counts() for w in workers]
    return {
        "mode": options.mode, "api": "python", "shape": options.shape,
        "page_bytes": options.page_bytes, "batch": options.batch, "threads": options.threads,
        "pages_per_second": rate,
        "gbps": 0 if options.mode == "exists" else rate * options.page_bytes / 1e9,
        "p50_us": took[len(took) // 2] * 1e6, "p99_us": took[len(took) * 99 // 100] * 1e6,
        "missed_p50_us": missed[len(missed) // 2] * 1e6,
        "missed_calls": sum(len(w.missed) for w in workers),
        "misses": sum(w.misses for w in workers), "wrong": sum(w.wrong for w in workers),
        "hits_local": sum(c["hits_local"] for c in counts),
        "hits_remote": sum(c["hits_remote"] for c in counts),
        "bytes_staged": sum(c["bytes_staged"] for c in counts)}


def main() -> int:
    """Runs the measurement. Returns 1 if a page was wrong or no page was moved."""
    # A call into the library does not end for Python's handler: the signal ends the program.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    options = parse()
    listed = options.sockets or os.environ.get("PEERCACHE_SOCKETS", "")
    sockets = listed.split(",") if listed else [config.default_socket()]
    pages = max(options.working_set // options.page_bytes, options.batch)
    workers = [Worker(options, sockets[0], i) for i in range(options.threads)]
    if options.mode != "set":
        far = Worker(options, sockets[-1], options.threads)
        far.preload(pages)
        far.store.close()
    threads = [threading.Thread(target=w.run, args=(options.mode, pages, options.seconds))
               for w in workers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    got = report(options, workers)
    for worker in workers:
        worker.store.close()
    print("{mode} (Python, {shape}): {page_bytes}-byte pages, batch {batch}, {threads} threads: "
          "{pages_per_second:.0f} pages/s, {gbps:.2f} GB/s\n  a call of hits: p50 {p50_us:.1f} us, "
          "p99 {p99_us:.1f} us; {missed_calls} other calls: p50 {missed_p50_us:.1f} us; not hits "
          "{misses}, wrong {wrong}; pages read: local {hits_local}, remote "
          "{hits_remote}".format(**got))
    if options.json:
        text = json.dumps(got) + "\n"
        if options.json == "-":
            sys.stdout.write(text)
        else:
            with open(options.json, "w", encoding="utf-8") as file:
                file.write(text)
    return 1 if got["wrong"] or not got["pages_per_second"] else 0


if __name__ == "__main__":
    status = main()
    try:
        sys.stdout.flush()
    except OSError as failure:
        print(f"peercache-bench: cannot write to standard output: {failure.strerror}",
              file=sys.stderr)
        os._exit(2)
    sys.exit(status)
