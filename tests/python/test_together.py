# SPDX-License-Identifier: Apache-2.0
"""All engines on one cluster at once, of which an engine is killed and restarted in the middle.

    test_together.py [--seconds N]              60 s; the whole test is --seconds 600
    test_together.py USER SOCKET SOCKET         one user: vllm, lmcache or mooncake

The users: SGLang's prefix tree with each of its five kinds of pools, vLLM's tier, LMCache's L2
adapter, and Mooncake's class. Each stores pages on one host and reads them on another, without
pause, and compares every byte. None may get a wrong one, or wait past the deadlines of its calls.
The environments are those of test_mooncake_engines.py and tests/sglang.
"""

import ctypes
import json
import os
import random
import subprocess
import sys
import tempfile
import threading
import time

import test_mooncake_engines as others
from test_mooncake_engines import PACKAGE, ROOT, environment, harness

SECONDS = 60
TIMEOUT_MS, EXISTS_MS = 5000, 1000  # the defaults
SLACK = 3  # seconds of clock() beyond the deadlines of the calls of a turn
KINDS = (("mha", "page_first_direct", 4), ("mha", "layer_first", 1),
         ("mla", "page_first_direct", 4), ("dsa", "page_first_direct", 64),
         ("swa", "page_first_direct", 1))
extra = {"engine_start": False, "timeout_ms": TIMEOUT_MS, "exists_timeout_ms": EXISTS_MS}


def turn(call, *arguments):
    """[pages that were right, wrong, missed, longest wait, when it ended] of a turn of a user.

    call returns the first three, and may return seconds by a clock of its own.
    """
    began = harness.clock()
    right, wrong, missed, *waited = call(*arguments)
    return [right, wrong, missed, *(waited or [harness.clock() - began]), time.monotonic()]


# ---- users in programs of their own --------------------------------------------------------------


def mooncake(sockets):
    """Mooncake's class: batches of values of 4 KiB to 1 MiB."""
    from peercache.mooncake import MooncakeDistributedStore
    stores = []
    for path in sockets:
        os.environ["PEERCACHE_EXTRA_CONFIG"] = json.dumps({**extra, "engine_socket": path})
        stores.append(MooncakeDistributedStore())
        assert stores[-1].setup("localhost", "", 0, 64 << 20, "tcp", "", "") == 0
    put, get = stores
    room = (ctypes.c_char * (8 << 20))()
    ptrs = [ctypes.addressof(room) + (i << 20) for i in range(8)]

    def call(number):
        keys = [f"{number} {i}" for i in range(8)]
        sizes = [random.randint(4 << 10, 1 << 20) for _ in keys]
        values = [random.randbytes(size) for size in sizes]
        for ptr, value in zip(ptrs, values):
            ctypes.memmove(ptr, value, len(value))
        codes = put.batch_put_from(keys, ptrs, sizes)
        ctypes.memset(ptrs[0], 0, len(room))
        found = get.batch_is_exist(keys)
        lengths = get.batch_get_into(keys, ptrs, [1 << 20] * 8)
        right = [length == size and ctypes.string_at(ptr, size) == value
                 for length, size, ptr, value in zip(lengths, sizes, ptrs, values)]
        wrong = sum(length >= 0 and not good for length, good in zip(lengths, right))
        assert len(codes) == len(found) == 8
        return sum(right), wrong, 8 - sum(right) - wrong
    return call, (2 * TIMEOUT_MS + EXISTS_MS) / 1000


def lmcache(sockets):
    """LMCache's L2 adapter `native_plugin`: batches of chunks of 512 KiB."""
    from lmcache.cli.commands.bench.l2_adapter_bench import data
    from lmcache.v1.distributed.l2_adapters import native_plugin_l2_adapter as plugin
    put, get = (plugin._create_native_plugin_l2_adapter(plugin.NativePluginL2AdapterConfig(
        "peercache.lmcache", "Client", {**extra, "engine_socket": path})) for path in sockets)
    import torch
    nbytes, count = 512 << 10, 8
    buffers = [data.make_aligned_tensor(count * nbytes) for _ in range(2)]

    def wait(descriptor, result):
        while True:
            assert data.wait_eventfd(descriptor, 60), "LMCache's adapter does not answer"
            if (found := result()):
                return found

    def call(number):
        keys = data.make_object_keys(count, "m", number * count)
        stored, loaded = (data.make_memory_objects(buffer, count, nbytes, 0) for buffer in buffers)
        buffers[0].copy_(torch.randint(0, 255, (count * nbytes,), dtype=torch.uint8))
        buffers[1].zero_()
        put.submit_store_task(keys, stored)
        wait(put.get_store_event_fd(), put.pop_completed_store_tasks)
        task = get.submit_lookup_and_lock_task(keys, {})
        wait(get.get_lookup_and_lock_event_fd(), lambda: get.query_lookup_and_lock_result(task))
        get.submit_unlock(keys)
        task = get.submit_load_task(keys, loaded)
        done = wait(get.get_load_event_fd(), lambda: get.query_load_result(task))
        right = wrong = 0
        for i, (one, other) in enumerate(zip(stored, loaded)):
            same = torch.equal(one.raw_data, other.raw_data)
            right += done.test(i) and same
            wrong += done.test(i) and not same
        return right, wrong, count - right - wrong
    return call, 3 * TIMEOUT_MS / 1000


def vllm(sockets):
    """vLLM's tiering classes, as in test_vllm.py."""
    import test_vllm
    _, spec = test_vllm.config_of_page()
    put, get = (test_vllm.Host(name, {**spec, **extra, "engine_socket": path})
                for name, path in zip("ab", sockets))

    def call(number):
        keys = test_vllm.keys_of(f"{number} ")
        put.store(keys)
        told = get.load(keys)
        return told.count("right"), told.count("WRONG"), told.count("MISS")
    return call, (2 * TIMEOUT_MS + EXISTS_MS) / 1000


def program(user, *sockets):
    """Makes turns, each a line of JSON, for the seconds in the line that it reads."""
    call, limit = {"mooncake": mooncake, "lmcache": lmcache, "vllm": vllm}[user](sockets)
    print("limit", limit, flush=True)
    end, number = float(sys.stdin.readline()) + time.monotonic(), 0
    while time.monotonic() < end:
        number += 1
        print("turn", json.dumps(turn(call, number)), flush=True)
    os._exit(0)


# ---- the cluster ---------------------------------------------------------------------------------


class Together(harness.ClusterTest):
    seconds = SECONDS
    python = sglang = None

    def start_program(self, user, python, sockets):
        """A user in a program of its own, which is ready: (the program, its output)"""
        said = open(os.path.join(self.folder, user), "w+", encoding="utf-8")
        process = subprocess.Popen(
            [python, __file__, user, *sockets], stdin=subprocess.PIPE, stdout=said, stderr=said,
            text=True, env={**os.environ, "PYTHONPATH": PACKAGE, "PYTHONHASHSEED": "0",
                            "OMP_NUM_THREADS": "1"})
        self.addCleanup(said.close)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)

        def ready():
            said.seek(0)
            text = said.read()
            self.assertIsNone(process.poll(), text[-4000:])
            return "\nlimit " in "\n" + text
        harness.wait_for(ready, 200, user + " is ready")
        return process, said

    def run_program(self, user, process, said):
        process.communicate(f"{self.seconds}\n")
        said.seek(0)
        text = said.read()
        self.assertEqual(process.returncode, 0, text[-4000:])
        rows = [line.partition(" ")[::2] for line in text.splitlines()]
        self.users[user] = float(dict(rows)["limit"]), [
            json.loads(rest) for word, rest in rows if word == "turn"]

    def run_tree(self, kind, here, there):
        """SGLang's tree: one host inserts the pages of requests, the other one fetches them."""
        def call(seed):
            pages = 20
            here.do("insert", seed=seed, pages=pages)
            [got] = there.do("fetch", seed=seed, pages=pages)
            for host in (here, there):
                host.do("flush")
            return got["on_device"], got["wrong"], pages - got["on_device"] - got["wrong"]

        self.users["SGLang " + " ".join(map(str, kind))] = (
            # each of insert and fetch: an exists and a set or get, for each pool
            2 * 2 * (TIMEOUT_MS + EXISTS_MS) / 1000,
            [turn(call, seed) for seed in self.until_the_end()])

    def until_the_end(self):
        """1, 2, 3, ..., until the time is over."""
        number = 0
        while time.monotonic() < self.end:
            number += 1
            yield number

    def test_each_reads_its_bytes_and_nobody_waits_past_its_deadline(self):
        engines = self.start(3, pool_bytes="512MiB", settings=["engine.unsealed_memory=yes"])
        import hosts
        self.users, failed = {}, []
        with tempfile.TemporaryDirectory(prefix="peercache-") as self.folder:
            pairs = [[hosts.Host(self.folder, f"{n}{name}", engines.sockets[(n + i) % 3], 1)
                      for i, name in enumerate("ab")] for n in range(len(KINDS))]
            ranks = hosts.start([host for pair in pairs for host in pair], "tree", self.sglang)
            self.addCleanup(ranks.wait)
            for (pool, layout, page_size), pair in zip(KINDS, pairs):
                for host in pair:
                    host.do("make", pool=pool, layout=layout, page_size=page_size, pages=256,
                            extra={"backend_name": "peercache", "module_path": "peercache.store",
                                   "class_name": "PeerCacheStore", "interface_v1": 1, **extra,
                                   "engine_socket": host.engine_socket})
            work = [(self.run_tree, kind, *pair) for kind, pair in zip(KINDS, pairs)]
            work += [(self.run_program, user, *self.start_program(
                user, python, [engines.sockets[i] for i in on])) for user, python, on in (
                    ("vllm", self.python, (0, 1)), ("lmcache", self.python, (1, 2)),
                    ("mooncake", sys.executable, (2, 1)))]
            self.end = time.monotonic() + self.seconds

            def guarded(call, *arguments):
                try:
                    call(*arguments)
                except BaseException as error:  # pylint: disable=broad-except
                    failed.append((call.__name__, arguments[0], error))
            threads = [threading.Thread(target=guarded, args=words) for words in work]
            for thread in threads:
                thread.start()
            time.sleep(self.seconds / 2)  # not a wait: the engines work meanwhile
            killed = time.monotonic()
            engines.kill(1)
            time.sleep(2)  # the same, without it
            engines.restart(1)
            back = time.monotonic()
            for thread in threads:
                thread.join()
            for pair in pairs:
                for host in pair:
                    host.close()
        self.assertEqual(failed, [])
        self.assertEqual(len(self.users), len(KINDS) + 3)
        for name, (limit, turns) in self.users.items():
            parts = [[t for t in turns if low < t[4] <= high] for low, high in (
                (0, killed), (killed, back + 10), (back + 10, float("inf")))]
            print(f"{name}: pages right, wrong, missed before the kill; until 10 s after the "
                  "restart; after:", *([sum(t[i] for t in part) for i in range(3)]
                                       for part in parts),
                  f"longest turn {max(t[3] for t in turns):.2f} s of {limit:.1f}")
            with self.subTest(user=name):
                self.assertEqual(sum(t[1] for t in turns), 0, "wrong pages")
                self.assertLess(max(t[3] for t in turns), (limit + SLACK) * harness.SLOW)
                for part in (parts[0], parts[2] or turns[-1:]):
                    self.assertGreater(sum(t[0] for t in part), sum(t[2] for t in part))


def main():
    if "--seconds" in sys.argv:
        at = sys.argv.index("--seconds")
        Together.seconds = float(sys.argv[at + 1])
        del sys.argv[at:at + 2]
    try:
        _, Together.sglang = environment.prepare("newest")
    except environment.Missing as why:
        print(f"skipped: {why}")
        return 77
    return others.main(Together)


if __name__ == "__main__":
    sys.exit(program(*sys.argv[1:]) if sys.argv[1:2] and sys.argv[1] in (
        "vllm", "lmcache", "mooncake") else main())
