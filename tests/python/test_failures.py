# SPDX-License-Identifier: Apache-2.0
"""What comes of pages besides hits and misses is counted by name and logged with its remedy."""

import contextlib
import ctypes
import errno
import logging
import os
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest
from types import SimpleNamespace
from unittest import mock

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path[:0] = [os.path.join(ROOT, "tests", "cluster"), os.path.dirname(os.path.abspath(__file__)),
                os.path.join(os.environ.get("PEERCACHE_BUILD", ""), "engine/client/python")]
import harness  # noqa: E402
from simulator import CopiedPool, Pool, Tensor, config, content  # noqa: E402
from peercache import Session, memory  # noqa: E402
from peercache.store import PeerCacheStore  # noqa: E402

BATCH = 65536  # pages that the library takes in one call
SETTINGS = ["engine.unsealed_memory=yes", "engine.huge_pages=no"]


class FailureTest(harness.ClusterTest):
    """Base class: one engine for all tests of a class."""

    pool_bytes = "64MiB"
    first = int.from_bytes(os.urandom(4), "little") << 20

    @classmethod
    def setUpClass(cls):
        cls.engines = harness.cluster.Cluster(harness.BUILD, 1, pool_bytes=cls.pool_bytes,
                                              settings=SETTINGS).start()

    @classmethod
    def tearDownClass(cls):
        assert cls.engines.stop(), "an engine did not stop with status 0"

    def setUp(self):
        FailureTest.first += 1000000

    def keys(self, count):
        return [f"{self.first + i:064x}" for i in range(count)]

    def store(self, pool=None, **extra):
        store = PeerCacheStore(config((0, 5, 18), {
            "engine_socket": self.engines.sockets[0], "engine_start": False, "interface_v1": 1,
            "timeout_ms": 20000, "exists_timeout_ms": 20000, **extra}), {})
        self.addCleanup(store.close)
        if pool is not None:
            store.register_mem_pool_host(pool)
        return store

    def told(self, store, name, part, action, pages=1):
        """The action adds `pages` to errors[name], and a line with the name and the part."""
        before = store.counts()["errors"].get(name, 0)
        with self.assertLogs("peercache", logging.WARNING) as logs:
            action()
        self.assertEqual(store.counts()["errors"].get(name, 0) - before, pages, logs.output)
        self.assertTrue(any(name + ":" in line and part in line for line in logs.output),
                        logs.output)


class Results(FailureTest):
    def test_every_result_but_hit_and_miss_is_counted_and_logged(self):
        pool, keys = Pool(8, [4096]), self.keys(4)
        wide, large = Pool(2, [8] * 1025), Pool(2, [3 << 20])

        def on(shape, *names):
            store = self.store(shape)
            return store, lambda: store.batch_set_v1(list(names), shape.indices(range(len(names))))
        for name in ("", "k" * 1025):
            store, put = on(pool, name)
            self.told(store, "invalid", f"has {len(name)} bytes; give 1 to 1024", put)
            store, _ = on(pool)
            self.told(store, "invalid", "give 1 to 1024", lambda: store.batch_exists([name]))
            self.told(store, "invalid", "give 1 to 1024",
                      lambda: store.batch_get_v1([name], pool.indices([0])))
        store, put = on(wide, "wide")
        self.told(store, "invalid", "has 1025 segments; give 1 to 1024", put)
        store, put = on(large, "large", "larger")
        self.told(store, "invalid", "raise engine.pool_bytes", put, 2)
        store = self.store(pool)
        self.assertTrue(store.batch_set([keys[0]], [Tensor(bytes(100))]))
        self.told(store, "invalid", "of 200 bytes was given, but 100 bytes are stored",
                  lambda: store.batch_get([keys[0]], [Tensor(bytes(200))]))
        self.no_descriptors(self.store(pool), pool, keys)
        store.close()
        self.told(store, "closed", "closed", lambda: store.batch_exists(keys), 4)

    def no_descriptors(self, store, pool, keys):
        """Runs calls while this process has no descriptor left."""
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        session, held = Session(self.engines.sockets[0]), []
        self.addCleanup(session.close)
        resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 64,
                                                    limits[1]))
        try:
            try:
                while True:
                    held.append(os.open("/dev/null", os.O_RDONLY))
            except OSError:
                pass
            self.told(store, "no_channel", "ulimit -n", lambda: store.batch_exists(keys), 4)
            with self.assertRaises(OSError) as raised:
                session.clear("group", 1000)
            self.assertEqual(raised.exception.errno, errno.EMFILE)
        finally:
            for fd in held:
                os.close(fd)
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        self.assertEqual(store.batch_set_v1(keys[:1], pool.indices([0])), [True])

    def test_an_error_is_caught_as_the_subclass_that_its_errno_has(self):
        with tempfile.TemporaryDirectory() as folder, \
                socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as deaf:
            deaf.bind(folder + "/deaf")
            for path, subclass, number in (
                    (folder + "/none", FileNotFoundError, errno.ENOENT),
                    (folder + "/deaf/below", NotADirectoryError, errno.ENOTDIR),
                    (folder + "/deaf", ConnectionRefusedError, errno.ECONNREFUSED)):
                try:
                    Session(path)
                except subclass as error:
                    self.assertEqual((type(error), error.errno), (subclass, number))
                    self.assertIn(path, str(error))

    def test_a_result_is_logged_the_first_second_fourth_and_eighth_time(self):
        store = self.store(Pool(8, [4096]))
        with self.assertLogs("peercache", logging.WARNING) as logs:
            for _ in range(9):
                store.batch_exists([""] * 3)
        self.assertEqual([line.split("invalid: ")[1].split(" so far")[0] for line in logs.output],
                         [f"{3 * n} pages in {n} calls" for n in (1, 2, 4, 8)])
        self.assertEqual(store.counts()["errors"], {"invalid": 27})

    def test_staged_pages_of_wrong_shapes_are_refused_before_they_are_copied(self):
        session, at = Session(self.engines.sockets[0]), ctypes.create_string_buffer(8192)
        self.addCleanup(session.close)
        where = ctypes.addressof(at)
        for ptrs, sizes in (([0], [4096]), ([where], [0]), ([where], [(64 << 20) + 1]),
                            ([where, where], [2**64 - 1, 4097]), ([where, where], [2**63, 2**63])):
            for call in (session.set, session.get):
                with self.subTest(ptrs=ptrs, sizes=sizes):
                    self.assertEqual(call("x", self.keys(1), ptrs, sizes, 20000, True), [False])
        self.assertEqual(session.failures()["invalid"][:2], (10, 10))

    def test_a_staged_page_that_is_no_hit_is_left_as_it_was(self):
        """A miss is not the only one: what the stage has of an earlier page must not be copied."""
        session = Session(self.engines.sockets[0])
        self.addCleanup(session.close)
        keys, at = self.keys(3), ctypes.create_string_buffer(b"a" * 8192, 8192)
        where = ctypes.addressof(at)
        self.assertEqual(session.set("x", keys[:1], [where], [4096], 20000, True), [True])
        ctypes.memset(at, ord("b"), 8192)
        # of another length; a miss; no key
        self.assertEqual(session.get("x", [keys[0], keys[1], "", keys[0]],
                                     [where, where, where, where + 4096], [8192, 8192, 8192, 4096],
                                     20000, True), [False, False, False, True])
        self.assertEqual(at.raw, b"b" * 4096 + b"a" * 4096)
        self.assertEqual(session.failures()["invalid"][0], 2)

    def test_one_text_in_place_of_a_list_of_keys_is_refused(self):
        session = Session(self.engines.sockets[0])
        self.addCleanup(session.close)
        for keys in ("abc", b"abc"):
            with self.assertRaises(TypeError):
                session.exists("x", keys, 1000)


class Errors(FailureTest):
    def test_a_text_that_is_cut_ends_with_a_whole_character(self):
        with self.assertRaises(OSError) as raised:
            Session("\u00e9" * 300)
        self.assertEqual(raised.exception.errno, errno.ENAMETOOLONG)
        self.assertIn("is longer than 107 bytes: \u00e9", raised.exception.strerror)
        self.assertEqual(raised.exception.strerror[-5:], "\u00e9 ...")

    def test_calls_of_a_closed_session_tell_that_it_is_closed(self):
        session = Session(self.engines.sockets[0])
        session.close()
        for call in (lambda: session.clear("group", 1000), lambda: session.alloc(4096),
                     session.report):
            with self.assertRaisesRegex(ValueError, "the session is closed"):
                call()


class Long(FailureTest):
    pool_bytes = "640MiB"

    def test_a_call_of_any_length_is_split(self):
        session, count = Session(self.engines.sockets[0]), 2 * BATCH + 3
        self.addCleanup(session.close)
        memory_of = ctypes.create_string_buffer(bytes(range(64)), 64)
        keys, ptrs = self.keys(count), [ctypes.addressof(memory_of)] * count
        self.assertEqual(sum(session.set("x", keys, ptrs, 64, 300000)), count)
        self.assertEqual(sum(session.exists("x", keys, 300000)), count)
        self.assertEqual(session.prefix("x", keys, 300000), count)
        for staged in (False, True):
            ctypes.memset(memory_of, 0, 64)
            self.assertEqual(sum(session.get("x", keys, ptrs, 64, 300000, staged)), count)
            self.assertEqual(memory_of.raw, bytes(range(64)))
        for hole in (BATCH + 7, 3):
            self.assertEqual(session.remove("x", [keys[hole]], 300000), [True])
            self.assertEqual(session.prefix("x", keys, 300000), hole)
            self.assertEqual(session.exists("x", keys, 300000)[hole:hole + 2], [False, True])
        self.assertEqual(sum(session.remove("x", keys, 300000)), count - 2)
        self.assertEqual(session.failures(), {})

    def test_the_hybrid_controllers_prefix_of_a_whole_prompt_is_found(self):
        pool, count = Pool(1000, [64]), BATCH + 464
        store, keys = self.store(pool), self.keys(count)
        for at in range(0, count, 1000):
            part = keys[at:at + 1000]
            self.assertTrue(all(store.batch_set_v1(part, pool.indices(range(len(part))))))
        self.assertEqual(store.batch_exists(keys), count)
        self.assertEqual(store.batch_exists_v2(keys).kv_hit_pages, count)
        self.assertEqual(store.counts()["errors"], {})


class Protocol(harness.ClusterTest):
    def test_a_store_outlives_an_engine_of_another_protocol_and_tells_of_it_once(self):
        engines = self.start(1, pool_bytes="16MiB", settings=SETTINGS)
        store = PeerCacheStore(config((0, 5, 18), {
            "engine_socket": engines.sockets[0], "engine_start": False, "interface_v1": 1}), {})
        self.addCleanup(store.close)
        pool, keys = Pool(8, [4096]), [f"{i:064x}" for i in range(8)]
        store.register_mem_pool_host(pool)

        def put():
            return all(store.batch_set_v1(keys, pool.indices(range(8))))
        self.assertTrue(put())
        self.assertEqual(store.counts()["refusal"], "")
        engines.kill(0, signal.SIGTERM)
        with self.assertLogs("peercache", logging.INFO) as logs:
            with subprocess.Popen([sys.executable, "-c", harness.OTHER_PROTOCOL,
                                   engines.sockets[0]], stdout=subprocess.PIPE, text=True) as other:
                pid = int(other.stdout.readline())
                harness.wait_for(lambda: put() or store.counts()["refusal"], 30, "a refusal")
                tries = store.counts()["errors"]["gone"]
                while store.counts()["errors"]["gone"] < tries + 64 * 8:
                    self.assertFalse(put())
                why = store.counts()["refusal"]
                self.assertIn("restart the engine with its newer program", why)
                os.kill(pid, signal.SIGKILL)
            told = [line for line in logs.output if "gives no session" in line]
            self.assertEqual(len(told), 1, logs.output)
            self.assertTrue(told[0].startswith("ERROR") and told[0].endswith(why), told)
            self.assertTrue(any("gone: " in line and why in line for line in logs.output))
            engines.restart(0)
            harness.wait_for(put, 30, "pages are stored again")
            self.assertIn("is back after", logs.output[-1])
        self.assertEqual(store.counts()["refusal"], "")
        self.stop_cleanly(engines)


REPORTED = 1.1  # seconds: a client reports that a page is used once a second


class Prefixes(harness.ClusterTest):
    def store(self):
        """A store on an engine with a pool of 256 pages, and its host pool of 16."""
        engines = self.start(1, pool_bytes="16MiB", settings=SETTINGS)
        store = PeerCacheStore(config((0, 5, 18), {
            "engine_socket": engines.sockets[0], "engine_start": False, "interface_v1": 1,
            "timeout_ms": 20000, "exists_timeout_ms": 20000}), {})
        self.addCleanup(store.close)
        pool = Pool(16, [65536])
        store.register_mem_pool_host(pool)
        return store, pool

    def head_after(self, rounds, told=False):
        """Pages of a head that stay while tails fill the pool so often; told: they name it."""
        store, pool = self.store()
        head = [f"head{i}" for i in range(16)]
        self.assertEqual(store.batch_set_v1(head, pool.indices(range(16))), [True] * 16)
        due = time.monotonic() + REPORTED
        for n in range(20 * rounds):  # a round is a pool and a quarter
            if n % 7 == 6:
                harness.wait_for(lambda: time.monotonic() >= due, 5, "the next report")
                due = time.monotonic() + REPORTED
            tail = [f"tail{n % 20}.{i}" for i in range(16)]
            self.assertEqual(store.batch_set_v1(tail, pool.indices(range(16)), SimpleNamespace(
                prefix_keys=head if told else None)), [True] * 16)
        found = store.batch_exists(head)
        self.assertEqual(store.counts()["errors"], {})
        return found

    def test_what_stays_of_dialogues_that_grow_can_be_used(self):
        store, pool = self.store()
        kept = usable = 0
        began = time.monotonic()
        for turn in range(3):  # all together three times what the pool holds
            for n in range(16):
                due = began + (turn + n / 16) * REPORTED
                harness.wait_for(lambda due=due: time.monotonic() >= due, 5, "the next set")
                keys = [f"{n}.{i}" for i in range(16 * turn + 16)]
                self.assertEqual(store.batch_set_v1(keys[-16:], pool.indices(range(16)),
                    SimpleNamespace(prefix_keys=keys[:-16])), [True] * 16)
        for n in range(16):
            there = store._there(store._pools["kv"], [f"{n}.{i}" for i in range(48)])
            kept += sum(there)
            usable += (there + [False]).index(False)
        self.assertGreater(kept, 160)
        self.assertGreaterEqual(usable, 0.9 * kept, f"{usable} of {kept} pages can be used")
        self.assertEqual(store.counts()["errors"], {})

    def test_the_head_of_a_prompt_stays_while_its_tail_is_used(self):
        self.assertEqual(self.head_after(1, told=True), 16)

    def test_a_head_of_which_nothing_is_told_goes_first_once_pages_come_back(self):
        self.assertEqual(self.head_after(1), 16)
        self.assertEqual(self.head_after(2), 0)


class Registration(FailureTest):
    def lines(self, pool, name="kv", **extra):
        """The log of a store that registers the pool."""
        with self.assertLogs("peercache", logging.INFO) as logs:
            store = self.store(**extra)
            store.register_mem_host_pool_v2(pool, name)
        self.assertEqual(store.counts()["errors"], {})
        return store, "\n".join(logs.output)

    def test_pages_that_no_set_can_store_are_named_with_the_cure(self):
        large = Pool(2, [3 << 20])
        copied = CopiedPool(2, [3 << 20])
        copied.size_per_token = 3 << 20
        for pool, extra in ((large, {}), (large, {"interface_v1": 0}), (copied, {})):
            store, lines = self.lines(pool, **extra)
            self.assertIn("every set will be refused", lines)
            self.assertIn('"global_segment_size"', lines)
            self.assertIn(" 128 MiB or more", lines)
        self.assertIn("Lower --page-size", self.lines(Pool(1, [65 << 20]))[1])
        self.assertNotIn("refused", self.lines(Pool(2, [2 << 20]))[1])
        cured = self.start(1, pool_bytes="128MiB", settings=SETTINGS)
        store = PeerCacheStore(config((0, 5, 18), {
            "engine_socket": cured.sockets[0], "engine_start": False, "interface_v1": 1}), {})
        self.addCleanup(store.close)
        store.register_mem_pool_host(large)
        self.assertEqual(store.batch_set_v1(self.keys(1), large.indices([0])), [True])

    def test_pages_of_too_many_segments_are_named(self):
        wide = Pool(2, [8] * 1025)
        self.assertIn("a page has 1025 segments", self.lines(wide)[1])
        self.assertNotIn("1025", self.lines(Pool(2, [8] * 1024))[1])
        store, lines = self.lines(wide, "side")  # its pages are copied into one segment
        self.assertNotIn("1025", lines)
        transfer = SimpleNamespace(name="side", keys=self.keys(2),
                                   host_indices=wide.indices([0, 1]))
        self.assertEqual(store.batch_set_v2([transfer]), {"side": [True, True]})

    def test_the_log_promises_no_copies_only_where_none_are_made(self):
        pool = Pool(2, [4096], shm=True)
        store, lines = self.lines(pool)
        self.assertIn("no copies", lines)
        self.assertEqual(store.batch_set_v1(self.keys(2), pool.indices([0, 1])), [True, True])
        for name, extra, part in (("kv", {"interface_v1": 0}, '"interface_v1"'),
                                  ("side", {}, "SGLang may reuse it")):
            _, lines = self.lines(Pool(2, [4096], shm=True), name, **extra)
            self.assertNotIn("no copies", lines)
            self.assertIn(part, lines)
        self.assertIn("SGLang's own code copies", self.lines(CopiedPool(2, [4096]))[1])
        with mock.patch("peercache.store.calls_v1", lambda: False):
            self.assertIn("from 0.5.6 on", self.lines(Pool(2, [4096], shm=True))[1])

    def test_generic_calls_refuse_another_number_of_tensors_than_keys(self):
        store, keys = self.store(Pool(2, [4096])), self.keys(2)
        for count in (1, 3, 4):
            tensors = [Tensor(content(i, 4096)) for i in range(count)]
            self.assertFalse(store.batch_set(keys, tensors))
            self.assertEqual(store.batch_get(keys, tensors), [None, None])
        self.assertEqual(store.counts()["errors"], {"batch_set": 3, "batch_get": 3})
        self.assertEqual(store.counts()["sets"], 0)


@contextlib.contextmanager
def stderr_file():
    """What this process, the library included, writes to file descriptor 2."""
    kept = os.dup(2)
    with tempfile.TemporaryFile() as file:
        os.dup2(file.fileno(), 2)
        try:
            yield lambda: os.pread(file.fileno(), 1 << 20, 0).decode()
        finally:
            os.dup2(kept, 2)
            os.close(kept)


class Stopped(harness.ClusterTest):
    """An engine that does not answer: stopped, swapped out, or its host overloaded."""

    def setUp(self):
        self.engines = self.start(1, pool_bytes="64MiB", settings=SETTINGS)

    def store(self, pool=None, socket=None):
        store = PeerCacheStore(config((0, 5, 18), {
            "engine_socket": socket or self.engines.sockets[0], "engine_start": False,
            "interface_v1": 1, "timeout_ms": 400, "exists_timeout_ms": 200}), {})
        self.addCleanup(store.close)
        if pool is not None:
            store.register_mem_pool_host(pool)
            store.register_mem_host_pool_v2(pool, "side")
        return store

    def test_each_call_ends_by_its_deadline_whatever_it_opens(self):
        pool = Pool(8, [4096])
        used, keys = self.store(pool), [f"{i:064x}" for i in range(8)]
        indices = pool.indices(range(8))
        side = SimpleNamespace(name="side", keys=keys, host_indices=indices)
        calls = (lambda s: s.batch_exists(["b"] * 3 * BATCH),
                 lambda s: s.batch_get_v1(["b"] + keys[1:], indices),
                 lambda s: s.batch_set_v1(["b"] + keys[1:], indices),
                 lambda s: s.batch_set_v2([side]), lambda s: s.batch_get_v2([side]))
        harness.wait_for(lambda: all(used.batch_set_v1(keys, indices)) and
                         used.batch_exists(keys) == 8, 30, "the pages are stored")
        stores = [used] + [self.store(pool) for _ in calls]
        harness.freeze(self.engines.process[0])
        try:
            for store, call in [*zip(stores[1:], calls), *((used, call) for call in calls)]:
                began = harness.clock()
                threads = [threading.Thread(target=call, args=(store,)) for _ in range(3)]
                for thread in threads:
                    thread.start()
                for thread in threads:
                    thread.join()
                # a channel was awaited for 10 s, memory for 600 s
                self.assertLess(harness.clock() - began, 5 * harness.SLOW)
        finally:
            self.engines.process[0].send_signal(signal.SIGCONT)
        for store in stores[1:]:
            self.assertGreater(store.counts()["errors"]["timeout"], 0)
        harness.wait_for(lambda: all(used.batch_set_v1(["d"] + keys[1:], indices)), 30,
                         "the store works again")

    def test_a_call_whose_reads_write_its_memory_waits_until_the_engine_runs(self):
        """README.md names this exception. Only the engine can tell that the NIC writes no more."""
        engines = self.start(2, pool_bytes="64MiB", settings=SETTINGS)
        pool, written = Pool(8, [65536], shm=True), Pool(8, [65536])
        keys, indices = [f"{i:064x}" for i in range(8)], pool.indices(range(8))
        store, writer = (self.store(p, s) for p, s in zip((pool, written), engines.sockets))
        harness.wait_for(lambda: all(writer.batch_set_v1(keys, indices)), 30, "stored")
        # from here on the locations are known: a get begins with the READs
        harness.wait_for(lambda: all(store.batch_get_v1(keys, indices)), 30, "read")
        call = threading.Thread(target=store.batch_get_v1, args=(keys, indices))
        with stderr_file() as told:
            harness.freeze(engines.process[0])
            try:
                call.start()
                harness.wait_for(lambda: "to release the buffers of READs" in told() or
                                 not call.is_alive(), 30, "it tells that it waits")
                self.assertTrue(call.is_alive(), told())  # the deadline is long over
            finally:
                engines.process[0].send_signal(signal.SIGCONT)
            call.join()

    def test_a_registration_tells_that_it_goes_on_and_why_it_gives_up(self):
        pool, store = Pool(8, [4096] * 4, shm=True), self.store()
        asked = store._memory._session = mock.Mock(wraps=store._session)
        harness.freeze(self.engines.process[0])
        try:
            with mock.patch.object(memory.Progress, "first", 0.1), \
                    self.assertLogs("peercache", logging.INFO) as logs:
                store.register_mem_pool_host(pool)
        finally:
            self.engines.process[0].send_signal(signal.SIGCONT)
        self.assertIn("registering 0.0 GiB of pool kv goes on after", logs.output[0])
        self.assertIn("pool kv: copy (", logs.output[-1])
        self.assertIn("did not answer", logs.output[-1])
        self.assertEqual(asked.register.call_count, 1)  # each of them takes 10 s
        harness.wait_for(lambda: store.batch_set_v1(["a"], pool.indices([0])) == [True], 30,
                         "the store works again")


if __name__ == "__main__":
    unittest.main()
