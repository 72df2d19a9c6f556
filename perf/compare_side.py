# SPDX-License-Identifier: Apache-2.0
"""One process of perf/compare: the producer or the reader of one of the systems, called as SGLang
calls it. The engine and PeerCache both have a module peercache with a class PeerCacheStore, so each
process runs in the interpreter of its system. This file makes the same calls, timing and checks for
all of them.

    compare_side.py {"side": "engine"|"other"|"mooncake", "role": "produce"|"read", ...}

Results are lines of JSON on standard output. A line on standard input starts the next phase.
"""

import ctypes
import json
import mmap
import os
import random
import struct
import sys
import threading
import time
from types import SimpleNamespace

JOIN_SECONDS = 60
UNTOUCHED = 255


class Pool:
    """Stands in for a host pool of SGLang: pages one after another, one object each (MLA)."""

    page_size, layout, dtype = 1, "page_first", "bf16"

    def __init__(self, base, pages, page_bytes):
        self.base, self.page_bytes, self.nbytes = base, page_bytes, pages * page_bytes
        self.kv_buffer = SimpleNamespace(data_ptr=lambda: base, numel=lambda: self.nbytes,
                                         element_size=lambda: 1)

    def get_page_buffer_meta(self, indices):
        at, each = self.base, self.page_bytes
        return [at + i * each for i in indices], [each] * len(indices)


class Indices(list):
    def tolist(self):
        return self


class Mooncake:
    """Mooncake Store with the calls of the other two. The producer provides all of its memory."""

    def __init__(self, extra):
        from mooncake.store import MooncakeDistributedStore
        self.store = MooncakeDistributedStore()
        status = self.store.setup(extra["host"], "P2PHANDSHAKE", extra["segment_bytes"], 16 << 20,
                                  "rdma", "mlx5_0", extra["master"])
        if status:
            raise SystemExit(f"Mooncake: setup() returned {status}")

    def register_mem_pool_host(self, pool):
        self.pool = pool
        if self.store.register_buffer(pool.base, pool.nbytes):
            raise SystemExit("Mooncake: register_buffer() failed")

    def batch_set_v1(self, keys, indices):
        places, sizes = self.pool.get_page_buffer_meta(indices)
        return [status == 0 for status in self.store.batch_put_from(keys, places, sizes)]

    def batch_get_v1(self, keys, indices):
        places, sizes = self.pool.get_page_buffer_meta(indices)
        return [got == size for got, size in
                zip(self.store.batch_get_into(keys, places, sizes), sizes)]

    def batch_exists(self, keys):
        return sum(found == 1 for found in self.store.batch_is_exist(keys))

    def close(self):
        self.store.close()


class Costs:
    """CPU seconds and context switches of the threads of several processes since reset(). Threads
    whose names begin with soft- are those of the software ConnectX; they are counted as "ports",
    and so is the time for which other threads step it in sched_yield() (tests/connectx/yield.c)."""

    def __init__(self, pids):
        self.pids = [os.getpid(), *pids]
        self.reset()

    def reset(self):
        self.before = self.sample()

    @staticmethod
    def stepped(pid):
        """{thread: CPU seconds for which it stepped the software ConnectX} of a process."""
        folder = f"/proc/{pid}/fd"
        for fd in os.listdir(folder):
            try:
                if not os.readlink(f"{folder}/{fd}").startswith("/memfd:soft-connectx-yields"):
                    continue
                with open(f"{folder}/{fd}", "rb") as file:
                    pairs = struct.iter_unpack("=QQ", file.read())
                    return {str(thread): ns / 1e9 for thread, ns in pairs if thread}
            except OSError:
                continue  # the descriptor was closed
        return {}

    def sample(self):
        """{(pid, thread): (name, CPU seconds, voluntary, involuntary switches)}"""
        got = {}
        for pid in self.pids:
            stepped = self.stepped(pid)
            got[pid, "ports"] = ("soft-yields", sum(stepped.values()), 0, 0)
            for task in os.listdir(f"/proc/{pid}/task"):
                at = f"/proc/{pid}/task/{task}"
                try:
                    with open(f"{at}/schedstat") as file:
                        cpu_s = int(file.read().split()[0]) / 1e9
                    with open(f"{at}/status") as file:
                        status = dict(line.split(":", 1) for line in file if ":" in line)
                except OSError:
                    continue  # the thread has ended
                got[pid, task] = (status["Name"].strip(), cpu_s - stepped.get(task, 0),
                                  int(status["voluntary_ctxt_switches"]),
                                  int(status["nonvoluntary_ctxt_switches"]))
        return got

    def of(self, pages, page_bytes, own_s):
        """Costs of `pages` pages since reset(): CPU seconds per GB of the hosts' threads and of the
        ports, and for each kind of thread CPU time and switches per page. The thread that calls
        this has spent `own_s` CPU seconds in the calls of its system; the rest was the checks."""
        sums, own = {}, (str(os.getpid()), str(threading.get_native_id()))
        for key, (name, *now) in self.sample().items():
            kind = "ports" if name.startswith("soft-") else name.rstrip("0123456789-")
            kind = "reader" if tuple(map(str, key)) == own else kind
            before = self.before.get(key, (name, 0, 0, 0))[1:]
            sums[kind] = [a + b - c for a, b, c in zip(sums.get(kind, (0, 0, 0)), now, before)]
        sums["reader"][0] = own_s
        pages = max(pages, 1)
        gb = pages * page_bytes / 1e9
        ports_s = sums.get("ports", [0])[0]
        return {"host_s_per_gb": (sum(each[0] for each in sums.values()) - ports_s) / gb,
                "ports_s_per_gb": ports_s / gb,
                "switches_per_page": sum(v + i for _, v, i in sums.values()) / pages,
                "threads": {kind: {"us_per_page": round(cpu * 1e6 / pages, 2),
                                   "sleeps_per_page": round(v / pages, 3),
                                   "preempted_per_page": round(i / pages, 3)}
                            for kind, (cpu, v, i) in sorted(sums.items()) if cpu > 0.001}}


class Side:
    def __init__(self, given):
        self.given, self.batch, self.pages = given, given["batch"], given["pages"]
        self.page_bytes, self.seed = given["page_bytes"], given["seed"]
        slots = self.batch
        self.store = self.open()
        if given["side"] == "engine":
            self.base = self.store._session.alloc(slots * self.page_bytes)
        else:
            self.memory = mmap.mmap(-1, slots * self.page_bytes)
            self.base = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))
        ctypes.memset(self.base, 1, slots * self.page_bytes)
        self.pool = Pool(self.base, slots, self.page_bytes)
        self.random = random.Random(self.seed)

    def open(self):
        if self.given["side"] == "mooncake":
            return Mooncake(self.given["extra"])
        from peercache.store import PeerCacheStore
        if self.given["side"] == "engine" and self.given["still"]:
            # no page arrives, so the CRC32C of the sample would not match
            self.given["extra"]["verify"] = "never"
        return PeerCacheStore(SimpleNamespace(
            tp_rank=0, tp_size=1, pp_rank=0, pp_size=1, model_name="compare", is_mla_model=True,
            extra_config=self.given["extra"]))

    def register(self):
        """Registers the host pool with the store. PeerCache creates its pool of served pages in
        this call, so both of its nodes must have joined before."""
        end = time.monotonic() + JOIN_SECONDS
        while self.given["side"] == "other" and len(self.store.runtime.ring) < 2:
            if time.monotonic() > end:
                raise SystemExit("the two nodes did not find each other")
            time.sleep(0.02)
        self.store.register_mem_pool_host(self.pool)

    def content(self, number):
        """The bytes of a page; they differ from those of every other page at every place."""
        eight = (self.seed * 1000003 + number * 2654435761 & (1 << 64) - 1).to_bytes(8, "little")
        return eight * (self.page_bytes // 8)

    def keys(self, first, count):
        return [f"{self.seed:032x}{first + i:032x}" for i in range(count)]

    def right(self, slot, number):
        """Whether the page arrived in a slot that held UNTOUCHED before; or, where the ports move
        no pages, whether nothing arrived."""
        got = ctypes.string_at(self.base + slot * self.page_bytes, self.page_bytes)
        if self.given["still"]:
            return got == bytes([UNTOUCHED]) * self.page_bytes
        return got == self.content(number)

    def produce(self):
        for first in range(0, self.pages, self.batch):
            count = min(self.batch, self.pages - first)
            for i in range(count):
                ctypes.memmove(self.base + i * self.page_bytes, self.content(first + i),
                               self.page_bytes)
            done = self.store.batch_set_v1(self.keys(first, count), Indices(range(count)))
            if not all(done):
                raise SystemExit(f"{done.count(False)} of {count} pages could not be stored")

    def verify_all(self):
        """Reads every page once and compares every byte; returns (wrong, missing)."""
        wrong = missing = 0
        for first in range(0, self.pages, self.batch):
            count = min(self.batch, self.pages - first)
            ctypes.memset(self.base, UNTOUCHED, count * self.page_bytes)
            done = self.store.batch_get_v1(self.keys(first, count), Indices(range(count)))
            missing += done.count(False)
            wrong += sum(ok and not self.right(i, first + i) for i, ok in enumerate(done))
        return wrong, missing

    def measure(self, seconds, ask):
        """Gets random runs of pages. With `ask`, each get follows an exists of the same keys, as in
        a prefetch. The two calls are timed separately."""
        indices, got = Indices(range(self.batch)), {"wrong": 0, "missing": 0}
        hits, exists_s, get_s, own_s = 0, 0.0, 0.0, 0.0
        costs = Costs(self.given.get("pids", []))
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            first = self.random.randrange(self.pages - self.batch + 1)
            keys = self.keys(first, self.batch)
            slot = self.random.randrange(self.batch)
            ctypes.memset(self.base + slot * self.page_bytes, UNTOUCHED, self.page_bytes)
            own_s -= time.thread_time()
            from_s = time.perf_counter()
            if ask and self.store.batch_exists(keys) != self.batch:
                raise SystemExit("exists did not find pages that were stored")
            between_s = time.perf_counter()
            done = self.store.batch_get_v1(keys, indices)
            get_s += time.perf_counter() - between_s
            own_s += time.thread_time()
            exists_s += between_s - from_s
            hits += sum(map(bool, done))
            got["missing"] += self.batch - sum(map(bool, done))
            got["wrong"] += bool(done[slot]) and not self.right(slot, first + slot)
        cost = costs.of(hits, self.page_bytes, own_s)
        if not ask:
            return {**got, "get_per_s": hits / get_s, "get_cost": cost}
        return {**got, "get_after_exists_per_s": hits / get_s, "exists_per_s": hits / exists_s,
                "both_per_s": hits / (get_s + exists_s), "both_cost": cost}

    def measure_first(self, seconds):
        """Calls exists for keys that this client has not requested before. The engine's client
        caches the places of pages, so each pass over the keys uses a new client."""
        found, exists_s, end = 0, 0.0, time.monotonic() + seconds
        while time.monotonic() < end:
            if self.given["side"] == "engine":
                store = self.open()
                store.register_mem_pool_host(self.pool)
                store.batch_exists([f"{self.seed:064x}"] * 2)  # makes the client attach and connect
            else:
                store = self.store
            for first in range(0, self.pages, self.batch):
                keys = self.keys(first, min(self.batch, self.pages - first))
                from_s = time.perf_counter()
                found += store.batch_exists(keys)
                exists_s += time.perf_counter() - from_s
            if store is not self.store:
                store.close()
        return found / exists_s


def say(**what):
    print(json.dumps(what), flush=True)


def main():
    given = json.loads(sys.argv[1])
    side = Side(given)
    say(up=True)
    side.register()
    if given["role"] == "produce":
        side.produce()
        say(published=side.pages)
    else:
        sys.stdin.readline()
        wrong, missing = side.verify_all()
        alone, asked = (side.measure(given["seconds"], ask) for ask in (False, True))
        first = side.measure_first(given["seconds"])
        say(**{**alone, **asked, "exists_first_per_s": first,
               "wrong": wrong + alone["wrong"] + asked["wrong"],
               "missing": missing + alone["missing"] + asked["missing"]})
    sys.stdin.readline()
    side.store.close()


if __name__ == "__main__":
    main()
