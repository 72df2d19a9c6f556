# SPDX-License-Identifier: Apache-2.0
"""Compares MooncakeDistributedStore of PeerCache with that of Mooncake Store. Both run on
tools/soft-connectx, as in perf/compare, and get the same calls.

    perf/classes.py --mooncake ~/venv      a virtual environment with
                                           mooncake-transfer-engine-non-cuda==0.3.13.post1

Each system has a producer and a reader, one thread in one process each; Mooncake has its master,
PeerCache the engines of two hosts. The systems take turns, each alone on the machine, and a figure
is the median ratio of the rounds. Every page is compared once after it was put, then one page of
each get. Exit status: 0; 1: wrong pages or a failure.
"""

import contextlib
import ctypes
import importlib.machinery
import itertools
import json
import mmap
import os
import random
import statistics
import sys
import time
import zlib

HERE = os.path.dirname(os.path.abspath(__file__))
ROUNDS, SECONDS = 5, 0.3
CASES = [(4 << 10, 128), (16 << 10, 64), (128 << 10, 32), (1 << 20, 8), (4 << 20, 4)]
SET_BYTES = 128 << 20  # pages of a case, together
GOALS = {(128 << 10, "batch_get_into"): 5, (4 << 20, "batch_get_into"): 1.5}
ONE_BY_ONE = 4  # pages of a turn of a call that takes one key


class Side:
    """The producer or the reader of one system."""

    def __init__(self, given):
        from mooncake.store import MooncakeDistributedStore
        self.store, self.given = MooncakeDistributedStore(), given
        status = self.store.setup(given["host"], "P2PHANDSHAKE", given["segment_bytes"], 64 << 20,
                                  "rdma", "mlx5_0", given["master"])
        if status:
            raise SystemExit(f"setup() returned {status}")
        self.bytes = max(page_bytes * batch for page_bytes, batch in CASES)
        self.memory = mmap.mmap(-1, self.bytes)
        self.base = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))
        ctypes.memset(self.base, 1, self.bytes)
        if self.store.register_buffer(self.base, self.bytes):
            raise SystemExit("register_buffer() failed")
        self.random, self.wrong, self.missing = random.Random(given["seed"]), 0, 0

    def case(self, page_bytes, batch, name):
        self.page_bytes, self.batch, self.name = page_bytes, batch, name
        self.seed = self.given["seed"] + zlib.crc32(name.encode())
        self.pages = min(8192, SET_BYTES // page_bytes)
        self.ptrs = [self.base + i * page_bytes for i in range(batch)]
        half = page_bytes // 2
        self.halves = [[ptr, ptr + half] for ptr in self.ptrs]
        self.sizes, self.both = [page_bytes] * batch, [[half, half]] * batch

    def key(self, number):
        return f"{self.name}-{number:064x}"

    def content(self, number):
        return (number * 2654435761 + self.seed).to_bytes(8, "little") * \
            (self.page_bytes // 8)

    def fill(self, first):
        for i, ptr in enumerate(self.ptrs):
            ctypes.memmove(ptr, self.content(first + i), self.page_bytes)

    def check(self, slot, number, found):
        """Compares a page that arrived where UNTOUCHED bytes were."""
        self.missing += not found
        self.wrong += bool(found) and \
            ctypes.string_at(self.ptrs[slot], self.page_bytes) != self.content(number)

    # ---- calls of the producer: 0 or a code for each key -------------------------------------

    def put(self, keys):
        return [self.store.put(key, memoryview(self.memory)[i * self.page_bytes:][:self.page_bytes])
                for i, key in enumerate(keys)]

    def put_from(self, keys):
        return [self.store.put_from(key, ptr, self.page_bytes)
                for key, ptr in zip(keys, self.ptrs)]

    def batch_put_from(self, keys):
        return self.store.batch_put_from(keys, self.ptrs, self.sizes)

    def batch_put_from_multi_buffers(self, keys):
        return self.store.batch_put_from_multi_buffers(keys, self.halves, self.both)

    PUTS = ("put", "put_from", "batch_put_from_multi_buffers", "batch_put_from")

    def produce(self, verb):
        """Puts all pages with one of these calls. Returns pages/s."""
        self.store.remove_all(True)
        spent = 0.0
        for first in range(0, self.pages, self.batch):
            self.fill(first)
            keys = [self.key(first + i) for i in range(self.batch)]
            began = time.perf_counter()
            codes = getattr(self, verb)(keys)
            spent += time.perf_counter() - began
            if any(codes):
                raise SystemExit(f"{verb}: {codes}")
        return {verb: self.pages / spent}

    # ---- calls of the reader: the number of pages that it got --------------------------------

    def get(self, keys, slot):
        values = [self.store.get(key) for key in keys[slot:slot + 1]]
        ctypes.memmove(self.ptrs[slot], values[0], len(values[0]))
        return {slot: len(values[0])}

    def get_into(self, keys, slot):
        return {slot: self.store.get_into(keys[slot], self.ptrs[slot], self.page_bytes)}

    def batch_get_into(self, keys, _slot):
        return dict(enumerate(self.store.batch_get_into(keys, self.ptrs, self.sizes)))

    def batch_get_into_multi_buffers(self, keys, _slot):
        return dict(enumerate(self.store.batch_get_into_multi_buffers(
            keys, self.halves, self.both)))

    def batch_is_exist(self, keys, slot):
        found = self.store.batch_is_exist(keys)
        ctypes.memmove(self.ptrs[slot], self.content(self.first + slot), self.page_bytes)
        return {i: answer * self.page_bytes for i, answer in enumerate(found)}

    GETS = ("get", "get_into", "batch_get_into_multi_buffers", "batch_get_into", "batch_is_exist")

    def read(self, verb):
        """Compares every page that the verb has put. Then, after the last one, gets some."""
        for first in range(0, self.pages, self.batch):
            ctypes.memset(self.base, 255, self.batch * self.page_bytes)
            found = self.batch_get_into([self.key(first + i) for i in range(self.batch)], 0)
            for i, got in found.items():
                self.check(i, first + i, got == self.page_bytes)
        rates = {}
        for verb in self.GETS if verb == self.PUTS[-1] else ():
            spent, pages = 0.0, 0
            while spent < self.given["seconds"]:
                self.first = self.random.randrange(self.pages - self.batch + 1)
                keys = [self.key(self.first + i) for i in range(self.batch)]
                slot = self.random.randrange(self.batch)
                ctypes.memset(self.ptrs[slot], 255, self.page_bytes)
                began = time.perf_counter()
                found = getattr(self, verb)(keys, slot)
                spent += time.perf_counter() - began
                pages += sum(got == self.page_bytes for got in found.values())
                self.check(slot, self.first + slot, found[slot] == self.page_bytes)
            rates[verb] = pages / spent
        return {"rates": rates, "wrong": self.wrong, "missing": self.missing}


def side():
    """One process. A line on standard input is a case."""
    given = json.loads(sys.argv[1])
    made = Side(given)
    print(json.dumps({"up": True}), flush=True)
    for line in sys.stdin:
        verb, *case = json.loads(line)
        made.case(*case)
        answer = made.produce(verb) if given["role"] == "produce" else made.read(verb)
        print(json.dumps(answer), flush=True)
    os._exit(0)  # Mooncake's client may hang when it ends


def ask(process, *case):
    process.process.stdin.write(json.dumps(case).encode() + b"\n")
    process.process.stdin.flush()
    return process.answer()


@contextlib.contextmanager
def pair(compare, command, env_of, **given):
    """The producer and the reader of a system, attached."""
    made = {}
    try:
        for role in ("produce", "read"):
            made[role] = compare.Process(
                command, env_of(role), "classes.py", role=role, **given,
                host=f"127.0.0.1:{compare.cluster.free_port()}",
                segment_bytes=4 * SET_BYTES if role == "produce" else 0)
            made[role].answer()
        yield made
    finally:
        for process in made.values():
            process.close()


@contextlib.contextmanager
def system(compare, name, place, given):
    """The producer and the reader of the engine or of Mooncake, which is in `place`."""
    if name == "Mooncake":
        with compare.mooncake(place) as (_, port, command, env), \
                pair(compare, command, lambda _: env, side=name, master=f"127.0.0.1:{port}",
                     **given) as made:
            yield made
        return
    build = compare.cluster.default_build()
    package = os.path.join(build, "engine", "client", "python")
    engines = compare.cluster.Cluster(build, 2, 4 * SET_BYTES, device="mlx5")

    def env_of(role):
        return {**os.environ, "PYTHONPATH": os.pathsep.join(
            [package + "/peercache/as_mooncake", package]),
            "PEERCACHE_EXTRA_CONFIG": json.dumps({
                "engine_start": False, "timeout_ms": 20000, "exists_timeout_ms": 20000,
                "engine_socket": engines.sockets[role == "produce"]})}
    try:
        engines.start()
        with pair(compare, [*compare.ports(), sys.executable], env_of, side=name, master="",
                  **given) as made:
            yield made
    finally:
        engines.stop()


def figures(result, rows):
    """Adds the ratios; `rows`: {(page bytes, batch): {system: [rates of a round]}}"""
    for (page_bytes, batch), both in rows.items():
        ours, theirs = both["engine"], both["Mooncake"]
        for verb in ours[0]:
            goal = GOALS.get((page_bytes, verb))
            result.figure(
                f"{page_bytes >> 10} KiB x {batch} {verb}: engine / Mooncake",
                statistics.median(a[verb] / b[verb] for a, b in zip(ours, theirs)), "ratio",
                f"{statistics.median(a[verb] for a in ours):.0f} and "
                f"{statistics.median(b[verb] for b in theirs):.0f} pages/s; median of {len(ours)} "
                "turns", goal=(">=", goal) if goal else None)


def main():
    compare = importlib.machinery.SourceFileLoader(
        "compare", os.path.join(HERE, "compare")).load_module()
    bench = compare.bench

    def arguments(parser):
        parser.add_argument("--mooncake", metavar="DIR", required=True,
                            help="virtual environment of Mooncake Store")
        parser.add_argument("--kib", type=lambda text: list(map(int, text.split(","))),
                            help="lengths of pages: 128,4096 (4,16,128,1024,4096)")

    options = bench.parse(__doc__, arguments)
    cases = [case for case in CASES if not options.kib or case[0] >> 10 in options.kib]
    rounds = 2 if options.quick else ROUNDS
    given = {"seed": random.getrandbits(40), "seconds": SECONDS}
    rows, bad = {case: {"engine": [], "Mooncake": []} for case in cases}, 0
    for number, name in itertools.product(range(rounds), ("engine", "Mooncake")):
        with system(compare, name, options.mooncake, given) as sides:
            for case, turn in itertools.product(cases, range(2)):  # the first touches the memory
                rates = {}
                for verb in Side.PUTS:
                    put, got = (ask(sides[role], verb, *case, f"{number}-{turn}-{verb}")
                                for role in ("produce", "read"))
                    rates.update({**put, **got["rates"]})
                bad += got["wrong"] + got["missing"]  # of all turns of this side
                print(number, case, name, rates, got, flush=True)
                if turn:
                    rows[case][name].append(rates)
    result = bench.Result("classes")
    figures(result, rows)
    result.figure("wrong or missing pages", bad, "pages")
    result.write(options.json)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(side() if sys.argv[1:2] and sys.argv[1].startswith("{") else main())
