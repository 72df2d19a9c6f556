# SPDX-License-Identifier: Apache-2.0
"""Tests MooncakeDistributedStore with two engines: the answers that Mooncake 0.3.13 gives."""

import contextlib
import ctypes
import errno
import json
import logging
import os
import subprocess
import sys
import tempfile
import threading
from types import ModuleType
from unittest import mock

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PACKAGE = os.path.join(os.environ.get("PEERCACHE_BUILD", ""), "engine/client/python")
sys.path[:0] = [os.path.join(ROOT, "tests", "cluster"), PACKAGE]
import harness  # noqa: E402
from test_fork import in_child  # noqa: E402
from peercache import mooncake  # noqa: E402
from peercache.mooncake import (MooncakeDistributedStore, ReplicateConfig,  # noqa: E402
                                SoftPinAction)

SETUP = ("localhost", "P2PHANDSHAKE", 64 << 20, 16 << 20, "tcp", "", "127.0.0.1:50051")
DEVICE = os.environ.get("PEERCACHE_DEVICE", "soft")  # mlx5: of a child
AS_MOONCAKE = "from peercache.programs import as_mooncake; as_mooncake()"


def memory(nbytes, fill=b""):
    """(memory, its address)"""
    kept = (ctypes.c_char * nbytes)(*fill)
    return kept, ctypes.addressof(kept)


class Mooncake(harness.ClusterTest):
    engines = None
    tests = 0

    @classmethod
    def setUpClass(cls):
        cls.engines = harness.cluster.Cluster(harness.BUILD, 2, pool_bytes="64MiB", device=DEVICE,
                                              settings=harness.patient()).start()

    @classmethod
    def tearDownClass(cls):
        assert cls.engines.stop(), "an engine did not stop with status 0"

    def setUp(self):
        Mooncake.tests += 1
        self.prefix = f"test {os.getpid()} {self.tests} "

    def environment(self, engines, node, **extra):
        return {"PEERCACHE_EXTRA_CONFIG": json.dumps(
            {"engine_socket": engines.sockets[node], "engine_start": False, "timeout_ms": 20000,
             "exists_timeout_ms": 20000, **extra})}

    def store(self, node=0, engines=None, arguments=SETUP, extra=None, **named):
        store = MooncakeDistributedStore()
        with mock.patch.dict(os.environ,
                             self.environment(engines or self.engines, node, **(extra or {}))):
            self.assertEqual(store.setup(*arguments, **named), 0)
        self.addCleanup(store.close)
        return store

    def key(self, name):
        return self.prefix + name

    def keys(self, *names):
        return list(map(self.key, names))

    def test_the_codes_are_those_of_mooncake(self):
        s, far, key, keys = self.store(), self.store(1), self.key, self.keys
        kept, p = memory(4096, b"0123456789abcdefghij")
        self.assertEqual(far.put(key("hello"), b"hello"), 0)
        self.assertEqual(s.batch_put_from_multi_buffers(keys("two"), [[p, p + 10]], [[10, 10]]),
                         [0])
        rows = [  # answer, method, arguments
            (0, s.put, key("hello"), b"world"), (0, s.put, key("hello"), b"longer than it"),
            (b"hello", s.get, key("hello")),
            (-600, s.put, key("empty"), b""), (-600, s.put, "", b"x"), (b"", s.get, ""),
            (-600, s.put, key("hello"), b""), (0, s.is_exist, key("empty")),
            (0, s.is_exist, ""), (0, s.put, key("z" * 4096), b"abc"),
            (b"abc", far.get, key("z" * 4096)), (b"", s.get, key("z" * 4095)),
            (b"", s.get, key("none")), (-704, s.get_size, key("none")),
            (5, s.get_size, key("hello")),
            (-704, s.get_into, key("none"), p, 10), (-704, s.remove, key("none")),
            (0, s.is_exist, key("none")), (1, s.is_exist, key("hello")),
            ([1, 0], s.batch_is_exist, keys("hello", "none")),
            ([1, 0], s.batch_probe_key, keys("hello", "none"), "LastHitOnly", 2),
            ([-600] * 2, s.batch_probe_key, keys("hello", "none"), "all", 1),
            (-600, s.get_into, key("hello"), p, 3), (-600, s.get_into, key("hello"), p, 0),
            (5, s.get_into, key("hello"), p, 100), (-600, s.get_into, key("hello"), 0, 100),
            (5, s.get_into, key("hello"), p, (64 << 20) + 1),
            ([5, -704, -600], s.batch_get_into, keys("hello", "none", "hello"),
             [p, p + 100, p + 200], [50, 50, 3]),
            ([-600] * 2, s.batch_get_into, keys("hello", "none"), [p], [50]),
            ([-600] * 2, s.batch_put_from, keys("a", "b"), [p], [50]),
            ([-600, 0], s.batch_put_from, keys("z1", "z2"), [p, p], [0, 5]),
            (-600, s.put_from, key("null"), 0, 10),
            ([20], s.batch_get_into_multi_buffers, keys("two"), [[p + 100, p + 200]], [[10, 10]]),
            ([-600], s.batch_get_into_multi_buffers, keys("two"), [[p + 100, p + 200]], [[5, 5]]),
            ([-800], s.batch_get_into_multi_buffers, keys("two"), [[p + 100, p + 200]], [[10, 15]]),
            ([-704], s.batch_get_into_multi_buffers, keys("none"), [[p + 100]], [[10]]),
            ([-600] * 2, s.batch_get_into_multi_buffers, keys("two", "x"), [[p]], [[20]]),
            ([-600], s.batch_put_from_multi_buffers, keys("il"), [[p, p]], [[20]]),
            ([-600], s.batch_put_from_multi_buffers, keys("ns"), [[]], [[]]),
            ([0], s.batch_put_from_multi_buffers, keys("ms"), [[p, p + 1] * 2500], [[1] * 5000]),
            ([5000], s.batch_get_into_multi_buffers, keys("ms"), [[p + 9, p + 7] * 2500],
             [[1] * 5000]),
            ([0, 0, 0], s.batch_put_from_multi_buffers, keys("m1", "m2", "m3"),
             [[p, p], [p], [p, p]], [[10, 0], [3], [1, 1]]),
            ([10, 3, 2], s.batch_get_into, keys("m1", "m2", "m3"), [p + 100, p + 200, p + 300],
             [90] * 3),
            ([], s.batch_get_into, [], [], []), ([], s.batch_put_from, [], [], []),
            ([], s.batch_is_exist, []), ([], s.batch_remove, []),
            ([], s.batch_get_into_multi_buffers, [], [], []),
            (None, s.get_buffer, key("none")),
            ([b"hello", b""], s.get_batch, keys("hello", "none")),
            (0, s.put_batch, keys("p1", "p2"), [b"1", b"22"]),
            (-600, s.put_batch, keys("p1", "p2"), [b"1"]),
            (-600, s.put_batch, keys("p1", "p3"), [b"1", b""]), (0, s.put_batch, [], []),
            (0, s.put_parts, key("pp"), b"ab", b"", bytearray(b"cd"), memoryview(b"e-f")[::2]),
            (b"abcdef", far.get, key("pp")), (-600, s.put_parts, key("pn"), b""),
            (0, s.register_buffer, p, 4096), (-600, s.register_buffer, p, 4096),
            (-600, s.register_buffer, p + 8, 10), (0, s.unregister_buffer, p),
            (-600, s.unregister_buffer, p), (-600, s.register_buffer, p, 0),
            (-600, s.register_buffer, 0, 10), (-600, s.register_buffer, 4096, 10),
            (0, s.upsert, key("hello"), b"replaced by another"),
            (b"replaced by another", far.get, key("hello")), (-600, s.upsert, key("hello"), b""),
            (1, far.is_exist, key("hello")),
            ([0, -704], s.batch_remove, keys("hello", "none"), True),
            (0, s.is_exist, key("hello")), (b"", far.get, key("hello")),
            (-600, s.put, key("big"), bytes((16 << 20) + 1)), (0, s.health_check)]
        for answer, method, *words in rows:
            self.assertEqual(method(*words), answer, (method.__name__, words))
        self.assertEqual(kept.raw[:5], b"hello")
        self.assertRegex(s.get_hostname(), r"^localhost:1[2-4]\d\d\d$")
        for wrong in (lambda: s.put(key("s"), "text"), lambda: s.put(3, b"x"),
                      lambda: s.batch_is_exist("text"), lambda: s.put_from(key("s"), 4096, -1),
                      lambda: s.get_into(key("s"), -1, 5), lambda: s.get_into(key("s"), 1 << 64, 5),
                      lambda: s.batch_put_from_multi_buffers([key("s")], [[1, 1]], [[-5, 6]])):
            self.assertRaises(TypeError, wrong)

    def test_memory_stays_registered_until_the_engine_has_answered(self):
        store, session = MooncakeDistributedStore(), mock.Mock()
        kept, p = memory(4096)
        self.assertEqual(store.register_buffer(p, 4096), 0)
        with mock.patch("peercache.guard.Attachment", lambda _: mock.Mock(
                lost_at=None, session=session)):
            session.report.return_value = "{}"
            self.assertEqual(store.setup(*SETUP), 0)
        session.register.assert_called_once_with(p, 4096, -1)
        for error, answer in ((errno.ETIMEDOUT, -600), (errno.EBUSY, -600), (errno.ENOENT, 0)):
            session.release.side_effect = OSError(error, "told")
            self.assertEqual(store.unregister_buffer(p), answer)
        self.assertEqual((kept[0], store._buffers), (b"\0", {}))

    def test_two_threads_set_up_once(self):
        both, attached = threading.Barrier(2), []

        def attach(config):
            attached.append(config)
            with contextlib.suppress(threading.BrokenBarrierError):
                both.wait(1)  # for the other thread, which does not come
            return mock.Mock(lost_at=None, session=mock.Mock(
                report=lambda: "{}", inherited=lambda: False))

        store = MooncakeDistributedStore()
        with mock.patch("peercache.guard.Attachment", attach):
            threads = [threading.Thread(target=store.setup, args=SETUP) for _ in range(2)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        self.assertEqual(len(attached), 1)

    def test_a_child_of_fork_sets_up_a_store_of_its_own(self):
        s = self.store()
        self.assertEqual(s.put(self.key("k"), b"parent"), 0)

        def child():
            if (s.get(self.key("k")), s.is_exist(self.key("k"))) != (b"", 0):
                return False
            with mock.patch.dict(os.environ, self.environment(self.engines, 1)):
                return s.setup(*SETUP) == 0 and s.get(self.key("k")) == b"parent" and \
                    s.put(self.key("l"), b"child") == 0 and s.close() == 0
        self.assertEqual(in_child(child), 0)
        self.assertEqual((s.get(self.key("k")), s.get(self.key("l"))), (b"parent", b"child"))

    def test_results_of_the_library_become_codes_by_name(self):
        with open(os.path.join(ROOT, "engine/client/peercache.h"), encoding="utf-8") as file:
            text = file.read()
        number = {name: int(text.split(f"PC_{name} = ")[1].split(",")[0]) for name in
                  ("HIT", "MISS", "STALE", "UNREACHABLE", "TIMEOUT", "FULL", "INVALID", "GONE")}
        session = mock.Mock(exists=lambda space, keys, ms: [False] * len(keys))
        store = MooncakeDistributedStore()
        session.get_sized.return_value = [0]
        store._attachment = mock.Mock(session=session, lost_at=None)
        for name, put, removed in (
                ("HIT", 0, 0), ("MISS", -800, -704), ("STALE", -800, -704),
                ("UNREACHABLE", -900, -900), ("TIMEOUT", -900, -900), ("FULL", -200, -900),
                ("INVALID", -600, -600), ("GONE", -900, -900)):
            session.set.return_value = session.remove.return_value = [number[name]]
            self.assertEqual((store.batch_put_from(["k"], [1], [1]), store.batch_remove(["k"])),
                             ([put], [removed]), name)

    def test_a_buffer_has_the_bytes_of_its_value(self):
        s, value = self.store(), os.urandom(1 << 20)
        self.assertEqual(self.store(1).put(self.key("v"), value), 0)
        short, none = s.batch_get_buffer(self.keys("v", "none"))
        self.assertIsNone(none)
        self.assertEqual((short.size(), len(short), bytes(short)), (len(value), len(value), value))
        self.assertEqual(memoryview(short)[5:9], value[5:9])
        self.assertEqual(ctypes.string_at(short.ptr(), 99), value[:99])

    @harness.unittest.skipUnless(DEVICE == "mlx5", "a child of the next test runs it")
    def test_pages_are_read_into_registered_memory(self):
        s, far, keys = self.store(), self.store(1), self.keys("a", "b")
        values, (kept, p) = [os.urandom(99999) for _ in keys], memory(1 << 20)
        self.assertEqual(far.put_batch(keys, values), 0)
        rows = []
        for call, answer in ((s.register_buffer, 0), (s.unregister_buffer, 0)):
            self.assertEqual(call(*(p, 1 << 20)[:2 if call == s.register_buffer else 1]), answer)
            before = s._session.counts()["bytes_staged"]
            ctypes.memset(p, 0, 1 << 20)
            self.assertEqual(s.batch_get_into(keys, [p + 64, p + 200001], [100000] * 2),
                             [99999] * 2)
            self.assertEqual([kept.raw[at:at + 99999] for at in (64, 200001)], values)
            rows.append(s._session.counts()["bytes_staged"] - before)
        self.assertEqual(rows, [0, 2 * 99999])

    @harness.unittest.skipIf(DEVICE == "mlx5" or harness.SLOW > 1, "it is the child of this test")
    def test_buffers_are_registered_with_the_nics(self):
        mlx5 = harness.cluster.Cluster(harness.BUILD, device="mlx5")
        done = harness.run(
            [*mlx5.before, sys.executable, __file__,
             "Mooncake.test_pages_are_read_into_registered_memory"], 120, capture_output=True,
            text=True, env={**os.environ, "PEERCACHE_DEVICE": "mlx5"})
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertNotIn("skipped", done.stderr)

    def test_a_session_holds_what_it_has_found(self):
        s, keys = self.store(), self.keys("a", "b", "none")
        values = {key: os.urandom(3000) for key in keys[:2]}
        for key, value in values.items():
            self.assertEqual(self.store(1).put(key, value), 0)
        kept, p = memory(4096)
        first = (keys[:1], [[p, p + 100]], [[50, 60]], [[7, 2940]])
        self.assertEqual(s.batch_get_into_multi_buffer_ranges(*first), [-600])
        self.assertEqual(s.batch_get_session_start(keys), [0, 0, -704])
        self.assertEqual(s.batch_get_session_start(keys[:1]), [0])
        self.assertEqual(s.batch_remove(keys[:2]), [0, 0])
        for _ in range(2):
            self.assertEqual(s.batch_get_into_multi_buffer_ranges(*first), [110])
            self.assertEqual(kept.raw[:50] + kept.raw[100:160],
                             values[keys[0]][7:57] + values[keys[0]][2940:])
            self.assertEqual(s.batch_get_session_end(keys), 0)  # the other session goes on
            self.assertEqual(s.batch_get_into_multi_buffer_ranges(
                keys[1:], [[p], [p]], [[1], [1]], [[0], [0]]), [-600, -600])
        self.assertEqual(s.batch_get_into_multi_buffer_ranges(*first), [-600])
        self.assertEqual(s._held, {})

    def test_ranges_stay_within_values_and_buffers(self):
        s, (kept, p) = self.store(), memory(64)
        self.assertEqual(s.put(self.key("v"), b"0123456789"), 0)
        self.assertEqual(s.batch_get_session_start(self.keys("v")), [0])
        for sizes, offsets in (([11], [0]), ([1], [10]), ([5], [-1]), ([1, 1], [0])):
            self.assertEqual(s.batch_get_into_multi_buffer_ranges(
                self.keys("v"), [[p]], [sizes], [offsets]), [-600])
        one = ([p], [self.keys("v", "none")], [[[0, 60], [0]]], [[[1, 0], [0]]], [[[4, 5], [1]]])
        self.assertEqual(s.get_into_ranges(*one), [[[-600, -600], [-600]]])
        s.register_buffer(p, 64)
        self.assertEqual(s.get_into_ranges(*one), [[[4, -600], [-600]]])
        self.assertEqual(kept.raw, b"1234" + bytes(60))

    def test_tenants_share_no_values_and_remove_all_removes_one_tenants_on_all_hosts(self):
        mine, theirs = self.store(0, tenant_id="a"), self.store(1, tenant_id="b")
        far = self.store(1, tenant_id="a", extra={"prefix": ""})
        other = self.store(1, tenant_id="a", extra={"prefix": "p"})
        for store, text in ((mine, b"a"), (theirs, b"b"), (other, b"c")):
            self.assertEqual(store.put(self.key("k"), text), 0)
        self.assertEqual(far.put(self.key("far"), b"x"), 0)
        self.assertEqual([store.get(self.key("k")) for store in (mine, far, theirs, other)],
                         [b"a", b"a", b"b", b"c"])
        self.assertEqual(mine.remove_all(True), 1)
        self.assertEqual([store.batch_is_exist(self.keys("k", "far")) for store in
                          (mine, far, theirs, other)], [[0, 0], [0, 0], [1, 0], [1, 0]])

    def test_threads_share_a_store(self):
        s, wrong = self.store(), []

        def work(thread):
            for i in range(50):
                key, value = self.key(f"{thread} {i}"), bytes([thread, i]) * 9000
                if s.put(key, value) or s.get(key) != value or s.remove(key):
                    wrong.append(key)
        threads = [threading.Thread(target=work, args=(i,)) for i in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(wrong, [])

    def test_without_an_engine_nothing_is_found_and_nothing_is_negative_that_asks(self):
        s = MooncakeDistributedStore()
        self.assertEqual((s.health_check(), s.get("k"), s.is_exist("k"), s.put("k", b"x"),
                          s.get_buffer("k"), s.remove("k"), s.remove_all(), s.close()),
                         (1, b"", 0, -600, None, -600, -600, 0))
        engines = self.start(1, pool_bytes="16MiB")
        s = self.store(0, engines, extra={"timeout_ms": 1000, "exists_timeout_ms": 1000})
        self.assertEqual(s.setup(*SETUP), 0)
        self.assertEqual((s.put("k", b"x"), s.is_exist("k")), (0, 1))
        engines.kill(0)
        # the bytes of a known location are still mapped
        harness.wait_for(lambda: not s.is_exist("k") and s.health_check() == 2, 60,
                         "the engine is missed")
        self.assertEqual((s.is_exist("k"), s.batch_is_exist(["k", "l"]), s.get("k")),
                         (0, [0, 0], b""))
        self.assertEqual((s.put("l", b"x"), s.health_check()), (-900, 2))
        self.assertEqual((s.close(), s.close(), s.put("k", b"x"), s.is_exist("k"),
                          s.health_check()), (0, 0, -600, 0, 1))

    def test_both_forms_of_setup_and_what_they_mean(self):
        names = ("local_hostname", "metadata_server", "global_segment_size", "local_buffer_size",
                 "protocol", "rdma_devices", "master_server_addr")
        given = dict(zip(names, SETUP), global_segment_size="64MB", local_buffer_size="1 KB")
        s = self.store(arguments=[given])
        self.assertEqual((s.put(self.key("k"), bytes(1024)), s.put(self.key("l"), bytes(1025))),
                         (0, -600))
        for wrong in ({**given, "global_segment_size": "50%"}, {"local_hostname": "localhost"}):
            with self.assertLogs("peercache", logging.ERROR):
                self.assertEqual(MooncakeDistributedStore().setup(config=wrong), -600)
        self.store(arguments=("host:1", "", 0, 1 << 20, "rdma", "", ""))  # vLLM's are empty
        with self.assertRaisesRegex(TypeError, "tenant"):
            MooncakeDistributedStore().setup(*SETUP, tenant="a")
        with mock.patch.dict(os.environ, {"PEERCACHE_EXTRA_CONFIG": '{"timeout_ms": 7}'}):
            found = mooncake.extra_config({
                **given, "protocol": "rdma", "rdma_devices": "mlx5_0", "ssd_offload_path": "/ssd"})
        self.assertEqual(found, {
            "engine_start": True, "protocol": "rdma", "device_names": "mlx5_0", "timeout_ms": 7,
            "discovery_addr": "127.0.0.1:50051", "global_segment_size": "64MB",
            "disk_enabled": False})
        lmcache = {"device_name": "mlx5_1", "master_server_address": "10.0.0.1:1"}
        self.assertEqual(mooncake.extra_config(lmcache), {
            "engine_start": True, "disk_enabled": False, "device_names": "mlx5_1",
            "discovery_addr": "10.0.0.1:1"})
        config = mooncake.configuration.read(found)
        self.assertFalse(config.former or config.disk_default)
        found = mooncake.extra_config({**given, "enable_ssd_offload": "true", "protocol": "",
                                       "ssd_offload_path": "/ssd", "master_server_addr": ""})
        self.assertEqual((found["disk_enabled"], found["disk_path"]), (True, "/ssd"))
        with mock.patch.dict(os.environ, {"PEERCACHE_EXTRA_CONFIG": '{"engine_start": false}'}):
            self.assertEqual(mooncake.extra_config(given), {"engine_start": False})
        with mock.patch.dict(os.environ, {"PEERCACHE_EXTRA_CONFIG": "{"}), \
                self.assertRaisesRegex(ValueError, "PEERCACHE_EXTRA_CONFIG"):
            mooncake.extra_config(given)

    def test_what_has_no_effect_is_said_once(self):
        pinned = ReplicateConfig()
        pinned.soft_pin_ttl_ms, pinned.replica_num = 1000, 3
        for wrong in (-1, 1 << 64, "x"):
            with self.assertRaises(TypeError):
                pinned.soft_pin_ttl_ms = wrong
        with self.assertLogs("peercache", logging.INFO) as log, mock.patch.dict(
                sys.modules, {"vllm.distributed.kv_transfer": ModuleType("vllm")}):
            s = self.store(enable_client_http_server=True)
            self.assertEqual(s.put(self.key("k"), b"x", pinned), -600)
            pinned.soft_pin_action = SoftPinAction.ENABLE
            self.assertEqual([s.put(key, b"xyz", pinned) for key in self.keys("k", "l")], [0, 0])
            self.assertEqual((s.put(self.key("k"), b"xx"), s.get(self.key("k"))), (0, b"xyz"))
        said = "\n".join(log.output)
        for text in ("metadata_server has no effect", "enable_client_http_server has no effect",
                     "ReplicateConfig.replica_num has no effect", "PYTHONHASHSEED is not set",
                     "mooncake.store is PeerCache: the engine at", "its pool of 64 MiB",
                     "invalid: 1 pages"):
            self.assertEqual(said.count(text), 1, said)
        self.assertNotIn("longer:", said)
        with self.assertRaisesRegex(AttributeError, "PeerCache's.* has no 'remove_by_regex'"):
            s.remove_by_regex("a")

    def run_as_mooncake(self, code, path=""):
        done = harness.run([sys.executable, "-c", AS_MOONCAKE, sys.executable, "-c", code],
                           capture_output=True, text=True, env={
                               **os.environ, **self.environment(self.engines, 0),
                               "PYTHONPATH": os.pathsep.join(filter(None, (PACKAGE, path)))})
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout.strip()

    def test_peercache_as_mooncake_puts_the_store_before_an_installed_mooncake(self):
        self.store().put(self.key("k"), b"found")
        engine = "\ntry:\n    from mooncake.engine import who\n    print(who)\n" \
                 "except ModuleNotFoundError as error:\n    print(error.name)"
        code = "from mooncake.store import MooncakeDistributedStore, ReplicateConfig\n" \
               f"s = MooncakeDistributedStore()\nassert s.setup(*{SETUP}) == 0\n" \
               f"print(s.get({self.key('k')!r}))\ns.close()" + engine
        self.assertEqual(self.run_as_mooncake(code), "b'found'\nmooncake")
        with tempfile.TemporaryDirectory() as folder:
            os.mkdir(folder + "/mooncake")
            for name in ("__init__", "engine", "store", "other"):
                with open(f"{folder}/mooncake/{name}.py", "w", encoding="ascii") as file:
                    file.write(f"who = 'installed {name}'\n")
            self.assertEqual(
                self.run_as_mooncake(code + "\nfrom mooncake.other import who; print(who)", folder),
                "b'found'\ninstalled engine\ninstalled other")
        done = subprocess.run([sys.executable, "-c", AS_MOONCAKE, "/nothing/there"], text=True,
                              env={**os.environ, "PYTHONPATH": PACKAGE}, capture_output=True,
                              check=False)
        self.assertEqual((done.returncode, done.stderr.strip()), (
            1, "peercache-as-mooncake: cannot run '/nothing/there': No such file or directory"))


if __name__ == "__main__":
    harness.unittest.main()
