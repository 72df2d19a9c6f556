# SPDX-License-Identifier: Apache-2.0
"""An extra config of PeerCache 0.8.4 starts an engine with the disk, the metrics and the calls that
it had there; what differs is in the log with both numbers. config/MIGRATION.md says the same.
"""

import array
import contextlib
import json
import logging
import os
import re
import signal
import sys
import tempfile
import types
import unittest
import urllib.error
import urllib.request
from unittest import mock

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path[:0] = [os.path.join(ROOT, "tests", "cluster"), os.path.dirname(os.path.abspath(__file__)),
                os.path.join(os.environ.get("PEERCACHE_BUILD", ""), "engine/client/python")]
import harness  # noqa: E402
from simulator import CopiedPool, Pool, Tensor, config, content  # noqa: E402
from peercache import config as configuration, launch, migration  # noqa: E402
from peercache.store import PeerCacheStore  # noqa: E402

MIB = 1 << 20


def former(**more):
    """A config of 0.8.4: each of its keys is one of 0.8.4."""
    return {"backend_name": "peercache", "module_path": "peercache.store",
            "class_name": "PeerCacheStore", "interface_v1": 1, "protocol": "tcp",
            "discovery_addr": f"127.0.0.1:{harness.cluster.free_port()}", **more}


class TimedPool(CopiedPool):
    """A pool with a clock: each copy, and each page that is made for one, takes a second."""

    seconds = 0

    def get_data_page(self, index, flat=True):
        self.seconds += 1
        return super().get_data_page(index, flat)

    def get_dummy_flat_data_page(self):
        self.seconds += 1
        return super().get_dummy_flat_data_page()

    def set_from_flat_data_page(self, index, data_page):
        self.seconds += 1
        super().set_from_flat_data_page(index, data_page)


class Folder(unittest.TestCase):
    """Each test has a folder, with the default of "disk_path" below it."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="peercache-", dir=harness.BUILD)
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.disk = os.path.join(self.folder, "data", "peercache")
        patch = mock.patch.object(configuration, "DISK_PATH", self.disk)
        patch.start()
        self.addCleanup(patch.stop)


class Disk(Folder):
    def settings(self, level=None, **keys):
        """The settings disk.* of an engine that is started, and the lines of that level."""
        read = configuration.read(former(**keys))
        if level is None:
            with self.assertNoLogs("peercache", logging.INFO):
                return launch.disk_settings(read), []
        with self.assertLogs("peercache", logging.INFO) as logs:
            found = launch.disk_settings(read)
        self.assertEqual([line.split(":")[0] for line in logs.output], [level])
        return found, logs.output

    def test_the_default_folder_is_made_and_named(self):
        with mock.patch.object(configuration, "DISK_BYTES", 64 * MIB):
            found, lines = self.settings("INFO")
        self.assertEqual(found, {"disk.paths": self.disk, "disk.bytes": str(64 * MIB),
                                 "disk.segment_bytes": str(8 * MIB)})
        self.assertTrue(os.path.isdir(self.disk))
        self.assertIn(f"{self.disk}, 64 MiB", lines[0])

    def test_a_default_folder_that_cannot_be_made_is_one_line_and_no_disk(self):
        with open(os.path.join(self.folder, "data"), "w", encoding="ascii"):
            found, lines = self.settings("WARNING", disk_size="64mb")
        self.assertEqual(found, {})
        self.assertRegex(lines[0], "no disk: .*cannot be made: Not a directory.*disk_path")

    def test_a_default_that_does_not_fit_the_file_system_is_one_line_and_no_disk(self):
        found, lines = self.settings("WARNING", disk_size="16tb")
        self.assertEqual(found, {})
        self.assertRegex(lines[0], rf"has \d+ MiB free, and {1 << 24} MiB are allocated")

    def test_a_tenth_of_the_file_system_stays_free_and_own_files_count_as_room(self):
        os.makedirs(self.disk)
        for name, room in (("another", False), ("peercache-disk.00000", True)):
            with open(os.path.join(self.disk, name), "wb") as file:
                os.posix_fallocate(file.fileno(), 0, 8 * MIB)
            free = types.SimpleNamespace(f_bavail=56, f_frsize=MIB, f_blocks=0)
            with mock.patch.object(launch.os, "statvfs", return_value=free):
                found, _ = self.settings("INFO" if room else "WARNING", disk_size="64mb")
            self.assertEqual(bool(found), room)
            full = types.SimpleNamespace(f_bavail=56, f_frsize=MIB, f_blocks=60)
            with mock.patch.object(launch.os, "statvfs", return_value=full):
                self.assertEqual(self.settings("WARNING", disk_size="64mb")[0], {})

    def test_a_disk_that_is_allocated_stays_when_the_file_system_becomes_full(self):
        os.makedirs(self.disk)
        path = os.path.join(self.disk, "peercache-disk.00000")
        full = types.SimpleNamespace(f_bavail=0, f_frsize=MIB, f_blocks=1 << 20)
        for allocated, size in ((63, "64mb"), (64, "64mb"), (65, "70mb"), (64, "70mb")):
            with open(path, "wb") as file:
                os.posix_fallocate(file.fileno(), 0, allocated * MIB)
            segments = int(size[:-2]) // 8 * 8  # MiB of whole segments
            with mock.patch.object(launch.os, "statvfs", return_value=full):
                found, _ = self.settings("INFO" if allocated >= segments else "WARNING",
                                         disk_size=size)
            self.assertEqual(found.get("disk.paths"),
                             self.disk if allocated >= segments else None, (allocated, size))

    def test_a_given_folder_is_made_without_a_word_and_its_size_is_not_judged(self):
        path = os.path.join(self.folder, "a", "b")
        found, _ = self.settings(disk_path=path, disk_size="16tb")
        self.assertEqual((found["disk.paths"], os.path.isdir(path)), (path, True))
        self.assertFalse(os.path.exists(self.disk))

    def test_a_given_folder_that_cannot_be_made_is_one_line_and_the_engine_has_the_other(self):
        with open(os.path.join(self.folder, "file"), "w", encoding="ascii"):
            wrong, right = (os.path.join(self.folder, *names) for names in (("file", "a"), ("b",)))
        found, lines = self.settings("WARNING", disk_path=f"{wrong},{right}")
        self.assertEqual((found["disk.paths"], os.path.isdir(right)), (f"{wrong},{right}", True))
        self.assertRegex(lines[0], f'"disk_path": {wrong} cannot be made: Not a directory: .*'
                         "no disk there: give a directory that this user can write")

    def test_false_and_keys_of_this_project_mean_no_default_disk(self):
        self.assertEqual(self.settings(disk_enabled=False)[0], {"disk.paths": ""})
        for key, value in (("timeout_ms", 5000), ("engine_start", True), ("engine_settings", {})):
            self.assertEqual(self.settings(**{key: value})[0], {})
        self.assertFalse(os.path.exists(self.disk))
        found, _ = self.settings("INFO", disk_enabled=True, timeout_ms=5000, disk_size="64mb")
        self.assertEqual(found["disk.paths"], self.disk)
        found, _ = self.settings(disk_enabled=True, engine_settings={"disk.paths": "/d"})
        self.assertEqual(found["disk.paths"], "/d")

    def test_sizes_below_six_segments_of_the_default_get_smaller_ones(self):
        for given, segment in ((6 * MIB, MIB), (12 * MIB - 1, MIB), (100 * MIB, 16 * MIB),
                               (1536 * MIB - 1, 128 * MIB), (1536 * MIB, None)):
            found = configuration.read(former(disk_path="/d", disk_size=given)).settings
            self.assertEqual(found.get("disk.segment_bytes"), segment and str(segment))
            self.assertGreaterEqual(given, 6 * (segment or 0))


class Share(unittest.TestCase):
    def lines(self, ranks, **keys):
        read = configuration.read(former(**keys), ranks)
        with contextlib.ExitStack() as stack:
            logs = stack.enter_context(self.assertLogs("peercache"))
            logging.getLogger("peercache").warning("the end")
            launch.warn_of_share(read)
            return logs.output[1:]

    def test_the_pool_of_a_host_is_named_beside_that_of_all_ranks(self):
        line, = self.lines(8, global_segment_size="64mb")
        self.assertIn("has 64 MiB for all ranks", line)
        self.assertIn("512 MiB for the 8 ranks", line)
        self.assertEqual(self.lines(1, global_segment_size="64mb"), [])
        self.assertEqual(self.lines(8, global_segment_size="64mb", engine_start=True), [])


class Engine(Folder):
    """One engine for each test, which its first store starts as that of 0.8.4 would."""

    def setUp(self):
        super().setUp()
        env = {"PEERCACHE_SOCKET": os.path.join(self.folder, "run", "engine.sock"),
               "PEERCACHE_ENGINE": harness.program("engine/peercache-engine")}
        patch = mock.patch.dict(os.environ, env)
        patch.start()
        self.addCleanup(patch.stop)
        self.port = harness.cluster.free_port()
        self.socket = env["PEERCACHE_SOCKET"]

    def store(self, ranks=1, pool=None, **keys):
        given = former(metrics_bind_host="127.0.0.1", metrics_port=self.port, **keys)
        store = PeerCacheStore(config((0, 5, 18), given, tp_size=ranks), {})
        self.addCleanup(self.ended)
        self.addCleanup(store.close)
        store.register_mem_pool_host(pool or Pool(8, [4096]))
        return store

    def ended(self):
        """Waits for the keeper, so that nothing writes into the folder when it is removed."""
        harness.wait_for(lambda: launch.keeper_ended(
            configuration.read({"engine_socket": self.socket})), 60, "the engine ends")

    def report(self, store):
        return json.loads(store._session.report())

    def http(self, path):
        try:
            url = f"http://127.0.0.1:{self.port}{path}"
            with urllib.request.urlopen(url, timeout=60) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, ""

    def test_a_config_of_0_8_4_has_its_disk_its_metrics_and_a_line_for_each_difference(self):
        with self.assertLogs("peercache", logging.INFO) as logs:
            store = self.store(ranks=8, global_segment_size="1mb", disk_size="64mb")
        settings = self.report(store)["settings"]
        self.assertEqual((settings["disk.paths"], settings["disk.bytes"]), (self.disk, 64 * MIB))
        self.assertEqual(settings["engine.pool_bytes"], 4 * MIB)
        harness.wait_for(lambda: [path["state"] for path in self.report(store)["disk"]["paths"]]
                         == ["up"], 60, "the disk serves")
        said = "\n".join(logs.output)
        self.assertEqual(said.count("32 MiB for the 8 ranks of this server"), 1)
        self.assertEqual(said.count("as in PeerCache 0.8"), 1)
        self.assertEqual(said.count("global_segment_size=1mb (4mb are used"), 1)
        self.assertIn("peercache_read_requests_total{node=", self.http("/metrics")[1])
        for path in ("/", "/dashboard", "/index.html"):
            self.assertIn("<html", self.http(path)[1])
        keys = [f"{i:064x}" for i in range(3000)]  # 12 MB: three times the pool
        for at in range(0, 3000, 100):
            store.batch_set(keys[at:at + 100], [content(i, 4096) for i in range(at, at + 100)])
            harness.wait_for(lambda: self.report(store)["figures"]["disk_spill_bytes"] == 0, 60,
                             "the pages are on the disk")
        target, hits = bytearray(4096), 0
        for i in range(3000):
            if store.get(keys[i], target):
                hits += 1
                self.assertEqual(target, content(i, 4096))
        self.assertGreater(hits, 2000, "more pages than the pool has room for")

    def test_every_key_of_0_8_4_is_a_setting_of_the_engine_or_in_one_line(self):
        path = os.path.join(self.folder, "given")
        keys = {"mode": "hybrid", "write_policy": "both", "role": "inference", "device_name": "",
                "device_names": "mlx5_0", "ib_port": 2, "gid_index": 5,
                "max_channels_per_peer": 32, "global_segment_size": "48mb",
                "directory_replicas": 8, "local_hostname": "127.0.0.1", "disk_enabled": True,
                "disk_path": path, "disk_size": "48mb", "metrics_enabled": True,
                "metrics_dashboard": True, "node_id": "node-a", "prefix": "p",
                "heartbeat_interval": 1.0, "member_ttl": 8.0}
        with open(os.path.join(ROOT, "tests/python/peercache-0.8.4.json"),
                  encoding="utf-8") as file:
            defaults = json.load(file)["keys"]
        keys.update({key: defaults[key] for key in migration.WITHOUT_EFFECT})
        given = {*former(**keys), "metrics_port", "metrics_bind_host"}
        self.assertEqual(set(defaults), given - {"backend_name", "module_path", "class_name"})
        with self.assertLogs("peercache", logging.WARNING) as logs:
            store = self.store(**keys)
        line, = [line for line in logs.output if "do not act as given" in line]
        for key in ("device_names", "ib_port", "gid_index", "max_channels_per_peer",
                    "directory_replicas", *migration.WITHOUT_EFFECT):
            self.assertEqual(len(re.findall(rf"\b{key}={re.escape(str(keys[key]))} \(", line)), 1)
        settings = self.report(store)["settings"]
        for name, value in {
                "rail.devices": "soft", "rail.gid_index": 5, "rail.qps_per_peer": 8,
                "engine.write_policy": "both", "engine.role": "peer",
                "engine.pool_bytes": 48 * MIB, "cluster.replicas": 4, "engine.name": "node-a",
                "cluster.address": "127.0.0.1", "disk.paths": path, "disk.bytes": 48 * MIB,
                "metrics.port": self.port, "metrics.address": "127.0.0.1", "metrics.compat": "0.8",
                "metrics.dashboard": True, "cluster.heartbeat_ms": 1000,
                "cluster.dead_after_ms": 8000}.items():
            self.assertEqual(settings[name], value, name)
        self.assertEqual(self.http("/healthz")[0], 200)

    def test_metrics_dashboard_false_leaves_the_metrics(self):
        self.store(metrics_dashboard=False, disk_enabled=False, global_segment_size="64mb")
        self.assertEqual([self.http(path)[0] for path in ("/", "/dashboard", "/metrics")],
                         [404, 404, 200])

    def test_bytes_arrays_and_addresses_are_stored_and_read(self):
        store = self.store(disk_enabled=False, global_segment_size="64mb")
        data = content(7, 4096)
        numbers = array.array("d", range(512))
        tensor = Tensor(data)
        for name, value in (("bytes", data), ("bytearray", bytearray(data)), ("tensor", tensor),
                            ("view", memoryview(b"x" + data)[1:]), ("array", numbers)):
            self.assertTrue(store.set(name, value), name)
            target = bytearray(4096)
            self.assertIs(store.get(name, target), target)
            self.assertEqual(target, bytes(numbers) if name == "array" else data)
        self.assertTrue(store.set("address", target_location=tensor.data_ptr(), target_sizes=4096))
        other = Tensor(bytes(4096))
        self.assertEqual(store.get("address", other.data_ptr(), 4096), other.data_ptr())
        self.assertEqual(other.bytes(), data)
        array_target = array.array("d", bytes(4096))
        self.assertIs(store.get("array", array_target), array_target)
        self.assertEqual(array_target, numbers)
        self.assertTrue(store.batch_set(["a", "b"], [data, data], target_sizes=[4096, 8]))
        self.assertIsNotNone(store.get("b", bytearray(8)))
        self.assertEqual(store.batch_get(["a", "b"]), [None, None])
        self.assertEqual(store.counts()["errors"], {})

    def test_what_is_no_page_is_named_and_no_exception(self):
        store = self.store(disk_enabled=False, global_segment_size="64mb")
        data = content(7, 4096)
        self.assertTrue(store.set("k", data))
        for call, said in (
                (lambda: store.get("k", data), "needs writable memory: give a bytearray"),
                (lambda: store.get("k", 4096), "an address needs its length"),
                (lambda: store.set("k", "text"), "a bytes-like object is required"),
                (lambda: store.set("k", memoryview(data)[::2]), "is not contiguous"),
                (lambda: store.batch_set(["k"], [data], target_sizes=[4097]), "for a page of 4096"),
                (lambda: store.batch_set(["k"], [data], target_sizes=[-1]), "negative"),
                (lambda: store.batch_set(["k", "l"], [data]), "one page per key")):
            store._errors.clear()  # so that the first one of each is logged
            with self.assertLogs("peercache", logging.ERROR) as logs:
                self.assertFalse(call())
            self.assertIn(said, logs.output[0])
        self.assertFalse(store.set("nothing"))

    def test_check_server_follows_the_engine_and_warmup_does_nothing(self):
        store = self.store(disk_enabled=False, global_segment_size="64mb")
        self.assertIsNone(store.warmup())
        self.assertIs(store.check_server(), True)
        engine = self.report(store)["pid"]
        os.kill(engine, signal.SIGKILL)
        harness.wait_for(lambda: not store._session.attached(), 60, "the loss is seen")
        harness.wait_for(store.check_server, 60, "the engine is back")
        self.assertNotEqual(self.report(store)["pid"], engine)
        store.close()
        self.assertIs(store.check_server(), False)
        self.assertNotIn("closed", store.counts()["errors"], "a question is no call of pages")

    def test_calls_after_close_are_misses_that_are_counted(self):
        pool = Pool(8, [4096])
        store = self.store(pool=pool, disk_enabled=False, global_segment_size="64mb")
        self.assertTrue(store.set("k", bytes(4096)))
        store.close()
        with self.assertLogs("peercache", logging.WARNING) as logs:
            self.assertIs(store.set("l", bytes(4096)), False)
            self.assertIsNone(store.get("k", bytearray(4096)))
            self.assertIs(store.exists("k"), False)
            self.assertEqual(store.batch_get_v1(["k"], pool.indices([0])), [False])
            self.assertIsNone(store.clear())
        self.assertGreaterEqual(store.counts()["errors"]["closed"], 3)
        self.assertIn("peercache: closed: 1 pages in 1 calls", logs.output[0])

    def test_get_stats_has_the_pages_and_gigabytes_a_second_of_each_batch(self):
        store = self.store(disk_enabled=False, global_segment_size="64mb")
        with mock.patch("peercache.store.time.monotonic", side_effect=range(0, 1000, 2)):
            store.batch_set(["a", "b", "c"], [bytes(4096)] * 3)
            store.batch_get(["a", "b"], [bytearray(4096) for _ in range(2)])
        stats = store.get_stats()
        self.assertEqual((list(stats.backup_pgs), list(stats.prefetch_pgs)), ([3], [2]))
        self.assertAlmostEqual(stats.backup_bandwidth[0], 3 * 4096 / 1e9 / 2)
        self.assertAlmostEqual(stats.prefetch_bandwidth[0], 2 * 4096 / 1e9 / 2)
        self.assertEqual(list(store.get_stats().backup_pgs), [], "each batch is told once")

    def test_the_rate_of_get_stats_includes_the_copies_by_sglangs_pool(self):
        pool = TimedPool(8, [4096])
        store = self.store(pool=pool, disk_enabled=False, global_segment_size="64mb")
        with mock.patch("peercache.store.time.monotonic", side_effect=lambda: pool.seconds):
            store.batch_set_v1(["a", "b", "c"], pool.indices(range(3)))
            store.batch_get_v1(["a", "b"], pool.indices(range(4, 6)))
        stats = store.get_stats()
        self.assertEqual((list(stats.backup_pgs), list(stats.prefetch_pgs)), ([3], [2]))
        self.assertAlmostEqual(stats.backup_bandwidth[0], 3 * 4096 / 1e9 / 3)
        self.assertAlmostEqual(stats.prefetch_bandwidth[0], 2 * 4096 / 1e9 / 4)


if __name__ == "__main__":
    unittest.main()
