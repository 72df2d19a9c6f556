# SPDX-License-Identifier: Apache-2.0
"""One client process of a benchmark: stores with their host pools, and threads that call them.

    python3 -m peercache.bench.client FD     started by clients.py

FD is a pipe of multiprocessing. In: the fields of the Spec, then ("run", point) and ("stop", None).
Out: ("ready", None), ("progress", sums) during a point, ("done", results by op), or ("failed",
text). The end of the pipe ends the process, so none outlives the benchmark.
"""

import ctypes
import logging
import os
import random
import signal
import sys
import threading
import time
from collections import Counter
from dataclasses import dataclass
from multiprocessing.connection import Connection
from types import SimpleNamespace
from typing import Any, Mapping, Optional, Sequence

from peercache.bench.engines import MODEL
from peercache.bench.histogram import Histogram
from peercache.bench.hostpool import HostPool
from peercache.pages import Indices
from peercache.store import PeerCacheStore

OPS = ("get", "set", "exists", "exists-get")
TIMEOUT_MS = 10000  # deadline of a call: a busy host must not turn a slow one into a miss
STORE_THREADS = 16  # of one store: the channels that an engine gives a session in any case
TELL_SECONDS = 0.2  # between two progress messages
COUNTS = ("hits_local", "hits_remote", "bytes_staged")
KEYS_KEPT = 1 << 18  # keys of the working set that are made once; those of a larger one per call


@dataclass
class Spec:
    """What a client process is told once.

    page_bytes: of a page with all its segments. slots: pages of the host pool of each of its
    `stores`. seed: of keys and order; processes of one run share it. index: number of the process,
    unique in a run.
    """

    socket: str
    page_bytes: int
    segments: int
    slots: int
    working_set: int
    seed: int
    stores: int = 1
    index: int = 0
    private_memory: bool = False
    log_level: str = "warning"
    log_file: str = ""


def log_to(level: str, path: str) -> None:
    """Sends the package's log to standard error and, with a path, to that file, too.

    Raises OSError if the file cannot be opened.
    """
    handlers: list[logging.Handler] = [logging.StreamHandler()]
    try:
        handlers += [logging.FileHandler(path)] if path else []
    except OSError as error:
        raise OSError(f"--log-file {path}: {error.strerror}") from error
    logging.basicConfig(level=level.upper(), handlers=handlers,
                        format="%(asctime)s %(levelname)s %(message)s")


def pools_of(batch: int, threads: int) -> tuple[int, int]:
    """The stores of a process with this number of threads, and the pages of each host pool."""
    return -(-threads // STORE_THREADS), batch * min(threads, STORE_THREADS)


class Client:
    """A store attached to a running engine, and its host pool. Up to STORE_THREADS threads share
    them, as in SGLang."""

    def __init__(self, spec: Spec) -> None:
        """Raises OSError if no engine serves at spec.socket or it gives no memory."""
        self.spec = spec
        given = {"engine_socket": spec.socket, "engine_start": False, "interface_v1": 1,
                 "timeout_ms": TIMEOUT_MS, "exists_timeout_ms": TIMEOUT_MS}
        self.store = PeerCacheStore(SimpleNamespace(
            tp_rank=0, tp_size=1, model_name=MODEL, is_mla_model=spec.segments == 1,
            extra_config=given), {})
        nbytes = spec.page_bytes * spec.slots
        if spec.private_memory:
            self.memory = ctypes.create_string_buffer(nbytes)
            base = ctypes.addressof(self.memory)
        else:
            base = self.store._session.alloc(nbytes)  # pylint: disable=protected-access
        ctypes.memset(base, 1, nbytes)
        self.pool = HostPool(base, spec.slots, spec.page_bytes, spec.segments)
        self.store.register_mem_pool_host(self.pool)
        self.kept: list[str] = []
        if spec.working_set <= KEYS_KEPT:
            self.kept = self.keys(0, spec.working_set)

    def keys(self, first: int, count: int) -> list[str]:
        """Keys of pages in sequence, of the length of SGLang's page hashes."""
        if first + count <= len(self.kept):
            return self.kept[first:first + count]
        return [f"{self.spec.seed:032x}{first + i:032x}" for i in range(count)]

    def preload(self) -> None:
        """Stores the working set. Raises RuntimeError if a page is not stored."""
        pages = self.spec.working_set
        for first in range(0, pages, self.spec.slots):
            numbers = range(first, min(first + self.spec.slots, pages))
            for slot, number in enumerate(numbers):
                self.pool.mark(slot, number)
            hits = self.store.batch_set_v1(self.keys(first, len(numbers)),
                                           Indices(range(len(numbers))))
            if not all(hits):
                raise RuntimeError(
                    f"storing page {first + hits.index(False)} of {pages} before the measurement "
                    f"failed: {self.store.counts()['errors']}: raise the engine's pool "
                    "(engine.pool_bytes, --global-segment-size) or lower --working-set")


def counted(clients: Sequence[Client]) -> Counter[str]:
    """The sums of the stores' numbers that a result has: COUNTS and the errors by name."""
    sums: Counter[str] = Counter()
    for counts in (client.store.counts() for client in clients):
        sums.update({name: counts[name] for name in COUNTS})
        sums.update(counts["errors"])
    return sums


class Window:
    """The time of a point that counts. It begins when each thread has made a first call, which
    opens its connections, and the warm-up is over.

    Attributes:
        warm_ns, end_ns: calls that begin between them count; of the clock perf_counter_ns.
    """

    def __init__(self, threads: int, point: dict[str, Any]) -> None:
        self.warmup, self.seconds = float(point["warmup"]), float(point["seconds"])
        self.warm_ns = self.end_ns = 0
        self.barrier = threading.Barrier(threads, self._begin)
        self.stopped = False

    def _begin(self) -> None:
        self.warm_ns = time.perf_counter_ns() + int(self.warmup * 1e9)
        self.end_ns = self.warm_ns + int(self.seconds * 1e9)

    def wait(self) -> bool:
        """Waits for the first calls of the others. False after a stop."""
        try:
            self.barrier.wait()
        except threading.BrokenBarrierError:
            pass
        return not self.stopped

    def stop(self) -> None:
        """Ends the point now."""
        self.stopped = True
        self.barrier.abort()


class Caller:
    """One thread of a point. Its numbers are read by the main thread while it runs.

    Attributes:
        calls, hits, misses: of the measured time; pages for hits and misses.
        wrong: pages that were read with other bytes than those stored.
        call_ns: time in the measured calls.
        hit, missed: latencies of calls whose pages were all hits; of the others.
        first_ns, last_ns: when the first measured call began and the last one ended.
    """

    def __init__(self, client: Client, point: dict[str, Any], op: str, index: int) -> None:
        """index: number of the thread in its process. It owns `batch` slots of the client's pool.
        """
        self.client, self.op, self.batch = client, op, int(point["batch"])
        first = index % STORE_THREADS * self.batch
        self.slots = Indices(range(first, first + self.batch))
        self.random = random.Random(f"{client.spec.seed} {client.spec.index} {index}")
        # Pages that are stored anew. No run has those of an earlier one with its seed: a thread
        # stores fewer pages than nanoseconds go by.
        self.next = (int(point["number"]) << 96) + (client.spec.index << 80) + (index << 64) + \
            time.time_ns()
        self.calls = self.hits = self.misses = self.wrong = self.call_ns = 0
        self.first_ns = self.last_ns = 0
        self.hit, self.missed = Histogram(), Histogram()

    def choose(self) -> int:
        """The number of the next call's first page: a random run of stored pages, or new ones."""
        if self.op != "set":
            return self.random.randrange(self.client.spec.working_set - self.batch + 1)
        first, self.next = self.next, self.next + self.batch
        for i, slot in enumerate(self.slots):
            self.client.pool.mark(slot, first + i)
        return first

    def call(self, keys: Sequence[str]) -> int:
        """Makes the op's call as SGLang does. Returns the number of hits."""
        store = self.client.store
        if self.op == "set":
            return sum(store.batch_set_v1(keys, self.slots))
        if self.op == "get":
            return sum(store.batch_get_v1(keys, self.slots))
        found = store.batch_exists(keys)
        if self.op == "exists" or not found:
            return found
        return sum(store.batch_get_v1(keys[:found], Indices(self.slots[:found])))

    def right(self, first: int) -> bool:
        """True if one page of the call, which had only hits, has the bytes that were stored."""
        i = self.random.randrange(self.batch)
        return self.client.pool.marked(self.slots[i], first + i)

    def one(self) -> tuple[int, int, int, bool]:
        """Makes one call. Returns when it began and ended (ns), the hits, and if a page was wrong.
        """
        first = self.choose()
        keys = self.client.keys(first, self.batch)
        began = time.perf_counter_ns()
        hits = self.call(keys)
        ended = time.perf_counter_ns()
        wrong = hits == self.batch and self.op in ("get", "exists-get") and not self.right(first)
        return began, ended, hits, wrong

    def run(self, window: Window) -> None:
        """Makes calls until the window ends, and at least one that counts."""
        self.one()
        going = window.wait()
        while going and not window.stopped:
            if self.calls and time.perf_counter_ns() >= window.end_ns:
                return
            began, ended, hits, wrong = self.one()
            self.wrong += wrong
            if began < window.warm_ns:
                continue
            self.first_ns, self.last_ns = self.first_ns or began, ended
            self.calls += 1
            self.hits += hits
            self.misses += self.batch - hits
            self.call_ns += ended - began
            (self.hit if hits == self.batch else self.missed).add(ended - began)


def merge(total: dict[str, Any], one: Mapping[str, Any]) -> None:
    """Adds the result of a thread, or of a process and op, to `total`, an empty dict at first.

    "seconds" are from the first call to the last one: all processes share a clock.
    """
    for name, value in one.items():
        if name == "first_ns":  # 0 without calls
            value = min(filter(None, (total.get(name), value)), default=0)
        elif name == "last_ns":
            value = max(total.get(name, 0), value)
        elif name in total:
            value = total[name] + value
        total[name] = value
    total["seconds"] = (total["last_ns"] - total["first_ns"]) / 1e9


def result(callers: Sequence[Caller], grown: Counter[str]) -> dict[str, Any]:
    """The sum of the threads of one op. grown: what counted() grew by."""
    total: dict[str, Any] = {}
    for c in callers:
        # as in the C program: the sum of the threads' rates, each over the time in its calls
        rate = c.hits * 1e9 / c.call_ns if c.call_ns else 0
        merge(total, {"threads": 1, "calls": c.calls, "hits": c.hits, "misses": c.misses,
                      "wrong": c.wrong, "first_ns": c.first_ns, "last_ns": c.last_ns,
                      "call_rate": rate, "hit": c.hit, "missed": c.missed})
    return {**total, "counted": grown}


class Host:
    """Reads messages and runs points. Main thread."""

    def __init__(self, pipe: Connection) -> None:
        self.pipe, self.open = pipe, True

    def tell(self, what: str, value: Any = None) -> None:
        """Writes one message. The pipe may have ended, as in next()."""
        try:
            self.pipe.send((what, value))
        except (BrokenPipeError, ConnectionResetError):
            self.open = False

    def next(self, seconds: Optional[float]) -> Any:
        """The next message; None: none came in time (seconds None: no limit), or the pipe ended."""
        try:
            return self.pipe.recv() if self.pipe.poll(seconds) else None
        except (EOFError, OSError):
            self.open = False
            return None

    def run(self, clients: Sequence[Client], point: dict[str, Any]) -> None:
        """Runs one point and tells its results. A stop ends it early."""
        callers = [Caller(clients[i // STORE_THREADS], point, op, i) for i, op in enumerate(
            [point["op"]] * point["threads"] + ["set"] * point["writers"])]
        before, window = counted(clients), Window(len(callers), point)
        threads = [threading.Thread(target=caller.run, daemon=True, args=(window,))
                   for caller in callers]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            message = self.next(TELL_SECONDS)
            if message is not None or not self.open:
                window.stop()
            if not self.open:
                os._exit(1)  # the benchmark has ended; a call may wait for its deadline
            self.tell("progress", Counter(calls=sum(c.calls for c in callers),
                                          hits=sum(c.hits for c in callers),
                                          pages=sum(c.hits + c.misses for c in callers)))
        grown = counted(clients) - before
        self.tell("done", {op: result([c for c in callers if c.op == op], grown)
                           for op in dict.fromkeys(caller.op for caller in callers)})


def main() -> int:
    """Runs points until the pipe ends. Returns 1 after a failure."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    host = Host(Connection(int(sys.argv[1])))
    given = host.next(None)
    if given is None:
        return 1
    try:
        spec = Spec(**given)
        log_to(spec.log_level, spec.log_file)
        clients = [Client(spec) for _ in range(spec.stores)]
    except (OSError, RuntimeError, ValueError) as error:
        host.tell("failed", str(error))
        return 1
    host.tell("ready")
    while host.open:
        what, point = host.next(None) or ("", None)
        if what == "run":
            host.run(clients, point)
    for client in clients:
        client.store.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
