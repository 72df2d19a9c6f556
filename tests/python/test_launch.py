# SPDX-License-Identifier: Apache-2.0
"""The store starts and ends an engine; the extra config has every key of PeerCache 0.8.4.
"""

import fcntl
import json
import logging
import multiprocessing
import multiprocessing.pool
import os
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

try:
    import tomllib
except ImportError:  # Python 3.10
    tomllib = None

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path[:0] = [os.path.join(ROOT, "tests", "cluster"), os.path.dirname(os.path.abspath(__file__)),
                os.path.join(os.environ.get("PEERCACHE_BUILD", ""), "engine/client/python")]
import harness  # noqa: E402
from simulator import Pool, config, content  # noqa: E402
from peercache import config as configuration, launch, migration  # noqa: E402
from peercache.store import PeerCacheStore, calls_v1, ranks_of  # noqa: E402

SETTINGS = {"engine.huge_pages": "no", "rail.polling": "adaptive"}


def engines_at(socket):
    """Process ids of the engines that listen on this socket."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                words = file.read().split(b"\0")
        except OSError:
            continue
        if words[0].endswith(b"peercache-engine") and f"engine.socket={socket}".encode() in words:
            found.append(int(pid))
    return found


def keepers_of(socket):
    """Process ids of the keepers of this socket."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                words = file.read().split(b"\0")
        except OSError:
            continue
        if words[0].endswith(b"peercache-keeper") and socket.encode() in words:
            found.append(int(pid))
    return found


def extra(socket, **more):
    """An extra config that starts an engine with the software NIC at this socket."""
    return {"engine_socket": socket, "interface_v1": 1, "protocol": "tcp",
            "engine_path": harness.program("engine/peercache-engine"),
            "global_segment_size": "64mb",
            "engine_settings": {**SETTINGS, "cluster.port": harness.cluster.free_port()}, **more}


def rank(given, index, barrier, results):
    """Runs in one scheduler process. results: (pages stored, number of pages found, engines)."""
    pool = Pool(8, [4096])
    barrier.wait()
    store = PeerCacheStore(config((0, 5, 18), given, is_mla_model=True, tp_rank=index), {})
    store.register_mem_pool_host(pool)
    for page in range(8):
        pool.write(page, content(page, 4096))
    keys = [f"{i:064x}" for i in range(8)]
    stored = index or all(store.batch_set_v1(keys, pool.indices(range(8))))
    barrier.wait()
    results.put((bool(stored), store.batch_exists(keys), engines_at(given["engine_socket"])))
    results.close()
    results.join_thread()  # so that the rank killed below holds no lock of the queue
    barrier.wait()
    if index == 0:
        os.kill(os.getpid(), signal.SIGKILL)  # the death of a rank releases the engine too
    store.close()


class Engines(unittest.TestCase):
    """Base class: each test has a folder with the socket of the engine that its stores start."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="peercache-")
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.socket = os.path.join(folder.name, "run", "engine.sock")

    def gone(self):
        """Waits until no engine runs at the socket."""
        harness.wait_for(lambda: not engines_at(self.socket), 30, "the engine ends")


class Launch(Engines):
    def test_the_first_of_several_ranks_starts_one_engine_and_the_last_ends_it(self):
        context = multiprocessing.get_context("spawn")
        barrier, results = context.Barrier(4), context.Queue()
        ranks = [context.Process(target=rank, args=(extra(self.socket), i, barrier, results))
                 for i in range(4)]
        for process in ranks:
            process.start()
        seen = [results.get(timeout=120) for _ in ranks]
        for process in ranks:
            process.join(60)
        self.assertEqual([row[:2] for row in seen], [(True, 8)] * 4)
        self.assertEqual(len({tuple(row[2]) for row in seen}), 1)
        self.assertEqual(len(seen[0][2]), 1)
        self.assertEqual([p.exitcode for p in ranks], [-signal.SIGKILL, 0, 0, 0])
        self.gone()

    def test_one_process_attaches_several_times_in_a_row(self):
        for _ in range(3):
            store = PeerCacheStore(config((0, 5, 9), extra(self.socket)), {})
            self.assertEqual(len(engines_at(self.socket)), 1)
            store.close()
            # the engine of the last store has ended when close() returns
            self.assertEqual((os.path.exists(self.socket), engines_at(self.socket)), (False, []))

    def test_close_returns_at_once_while_another_store_is_open(self):
        first, last = (PeerCacheStore(config((0, 5, 18), extra(self.socket)), {})
                       for _ in range(2))
        with mock.patch.object(launch.time, "sleep", side_effect=AssertionError("it waits")):
            first.close()
        last.close()
        self.assertEqual(engines_at(self.socket), [])

    def test_an_engine_that_dies_is_started_again(self):
        store = PeerCacheStore(config((0, 5, 18), extra(self.socket, timeout_ms=500)), {})
        self.addCleanup(store.close)
        pool = Pool(8, [4096])
        store.register_mem_pool_host(pool)
        keys = [f"{i:064x}" for i in range(8)]
        harness.wait_for(lambda: all(store.batch_set_v1(keys, pool.indices(range(8)))), 30,
                         "pages are stored")
        first, = engines_at(self.socket)
        os.kill(first, signal.SIGKILL)
        harness.wait_for(lambda: all(store.batch_set_v1(keys, pool.indices(range(8))))
                         and engines_at(self.socket) != [first], 30, "sets work again")
        store.close()
        self.gone()

    def test_engine_keep_leaves_the_engine_running_after_the_last_store(self):
        PeerCacheStore(config((0, 5, 18), extra(self.socket, engine_keep=True)), {}).close()
        engine, = engines_at(self.socket)
        store = PeerCacheStore(config((0, 5, 18), {"engine_socket": self.socket}), {})
        self.assertEqual(engines_at(self.socket), [engine])
        store.close()
        with open(f"/proc/{engine}/stat", encoding="ascii") as stat:
            keeper = int(stat.read().rsplit(")", 1)[1].split()[1])
        os.kill(keeper, signal.SIGTERM)
        self.gone()

    def test_an_engine_that_gets_sigterm_alone_is_started_again(self):
        store = PeerCacheStore(config((0, 5, 18), extra(self.socket, timeout_ms=500)), {})
        self.addCleanup(store.close)
        pool = Pool(8, [4096])
        store.register_mem_pool_host(pool)
        keys = [f"{i:064x}" for i in range(8)]
        for _ in range(3):
            first, = engines_at(self.socket)
            began = time.monotonic()
            os.kill(first, signal.SIGTERM)
            harness.wait_for(lambda: all(store.batch_set_v1(keys, pool.indices(range(8))))
                             and engines_at(self.socket) not in ([], [first]), 30,
                             "sets work again")
            print(f"SIGTERM to the next set that works: {time.monotonic() - began:.2f} s",
                  file=sys.stderr)
        store.close()
        self.gone()

    def test_loss_and_return_of_the_engine_are_logged_in_one_line_each(self):
        store = PeerCacheStore(config((0, 5, 18), extra(self.socket, timeout_ms=500)), {})
        self.addCleanup(store.close)
        pool = Pool(8, [4096])
        store.register_mem_pool_host(pool)
        keys = [f"{i:064x}" for i in range(8)]
        for how in (signal.SIGKILL, signal.SIGTERM):
            first, = engines_at(self.socket)
            back, over = threading.Event(), threading.Event()

            def work():
                while not over.is_set():
                    if all(store.batch_set_v1(keys, pool.indices(range(8)))):
                        if engines_at(self.socket) not in ([], [first]):
                            back.set()
                    store.batch_exists(keys)

            with self.assertLogs("peercache", logging.INFO) as logs:
                threads = [threading.Thread(target=work) for _ in range(3)]
                os.kill(first, how)
                for thread in threads:
                    thread.start()
                self.assertTrue(back.wait(30 * harness.SLOW))
                over.set()
                for thread in threads:
                    thread.join()
            lines = [line for line in logs.output if "the engine at" in line]
            self.assertEqual([line.split(":")[0] for line in lines], ["WARNING", "INFO"],
                             logs.output)
            self.assertIn(f"the engine at {self.socket} is gone", lines[0])
            self.assertIn(f"the engine at {self.socket} is back", lines[1])
        with self.assertLogs("peercache", logging.INFO) as logs:
            store.close()
            store.batch_exists(keys)
        self.assertEqual(len(logs.output), 1)
        self.assertIn("closed: 8 pages", logs.output[0])
        self.gone()

    def test_a_loss_and_return_between_two_calls_are_logged_too(self):
        store = PeerCacheStore(config((0, 5, 18), extra(self.socket)), {})
        self.addCleanup(store.close)
        store.register_mem_pool_host(Pool(8, [4096]))
        first, = engines_at(self.socket)
        os.kill(first, signal.SIGKILL)

        def served():
            try:
                launch.Session(self.socket).close()
            except OSError:
                return False
            return engines_at(self.socket) not in ([], [first])
        harness.wait_for(served, 30, "the next engine serves")
        with self.assertLogs("peercache", logging.INFO) as logs:
            harness.wait_for(lambda: store.batch_exists(["0"]) == 0 and len(logs.output) > 1, 30,
                             "the loss and the return are logged")
        lines = [line for line in logs.output if "the engine at" in line]
        self.assertEqual([line.split(":")[0] for line in lines], ["WARNING", "INFO"])

    def test_a_socket_has_only_one_keeper(self):
        """A store made while the keeper restarts the engine waits for it and starts no other."""
        store = PeerCacheStore(config((0, 5, 18), extra(self.socket)), {})
        self.addCleanup(store.close)
        first, = engines_at(self.socket)
        os.kill(first, signal.SIGKILL)
        other = PeerCacheStore(config((0, 5, 18), extra(self.socket)), {})
        self.addCleanup(other.close)
        self.assertNotEqual(engines_at(self.socket), [first])
        self.assertEqual(len(engines_at(self.socket)), 1)
        self.assertEqual(len(keepers_of(self.socket)), 1)
        os.kill(*keepers_of(self.socket), signal.SIGHUP)
        store.close()
        other.close()
        self.gone()

    def test_a_store_waits_for_a_keeper_that_ends_and_then_starts_an_engine(self):
        os.mkdir(os.path.dirname(self.socket))
        ending = launch.FileLock(self.socket + ".keeper", fcntl.LOCK_EX)
        with self.assertLogs("peercache", logging.INFO) as logs, \
                multiprocessing.pool.ThreadPool(1) as thread:
            coming = thread.apply_async(
                lambda: PeerCacheStore(config((0, 5, 18), extra(self.socket)), {}))
            harness.wait_for(lambda: any("waiting for the keeper" in line for line in logs.output),
                             20, "the store waits for the keeper")
            ending.release()
            coming.get(60 * harness.SLOW).close()
        self.gone()

    def test_settings_that_a_running_engine_does_not_have_are_named_once(self):
        given = extra(self.socket)
        first = PeerCacheStore(config((0, 5, 18), given), {})
        with self.assertLogs("peercache", logging.WARNING) as logs:
            logging.getLogger("peercache").warning("a line")
            PeerCacheStore(config((0, 5, 18), given), {}).close()
            self.assertEqual(len([one for one in logs.output if "other settings" in one]), 0)
            PeerCacheStore(config((0, 5, 18), {**given, "global_segment_size": "32mb",
                                               "disk_path": "/d"}), {}).close()
        lines = [one for one in logs.output if "other settings" in one]
        self.assertEqual(len(lines), 1)
        self.assertIn('engine.pool_bytes = 67108864, not 33554432 ("global_segment_size")',
                      lines[0])
        self.assertIn('disk.paths = nothing, not /d ("disk_path")', lines[0])
        first.close()

    def test_the_error_tells_why_an_engine_cannot_start(self):
        given = extra(self.socket, engine_settings={"engine.nonsense": 1})
        with self.assertRaisesRegex(RuntimeError, "nonsense"):
            PeerCacheStore(config((0, 5, 18), given), {})
        given["engine_path"] = "/nowhere/peercache-engine"
        with self.assertRaisesRegex(FileNotFoundError, "engine_path = '/nowhere/peercache-engine'"):
            PeerCacheStore(config((0, 5, 18), given), {})
        with self.assertRaises(OSError):
            PeerCacheStore(config((0, 5, 18), {"engine_socket": self.socket,
                                               "engine_start": False}), {})
        self.gone()


LISTEN = "import socket; socket.socket(fileno=0).listen(16)"


class Restarting(Engines):
    """The test plays systemd: it holds the socket of an engine that has ended."""

    def setUp(self):
        super().setUp()
        os.mkdir(os.path.dirname(self.socket))
        self.held = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.addCleanup(self.held.close)
        self.held.bind(self.socket)
        subprocess.run([sys.executable, "-c", LISTEN], stdin=self.held, check=True)

    def start_next(self):
        command = [harness.program("engine/peercache-engine")]
        for name, value in {**SETTINGS, "engine.socket": self.socket, "metrics.port": 0,
                            "engine.pool_bytes": "64MiB",
                            "cluster.port": harness.cluster.free_port()}.items():
            command += ["--set", f"{name}={value}"]
        engine = subprocess.Popen(
            ["sh", "-c", 'LISTEN_FDS=1 LISTEN_PID=$$ exec "$@" 3<&0 </dev/null', "sh", *command],
            stdin=self.held, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.addCleanup(engine.wait)
        self.addCleanup(engine.kill)

    def opened(self, thread, **more):
        """The result of a rank that attaches meanwhile, and when it has found that it waits."""
        given = {"engine_socket": self.socket, "interface_v1": 1, **more}
        with self.assertLogs("peercache", logging.WARNING) as logs:
            coming = thread.apply_async(lambda: PeerCacheStore(config((0, 5, 18), given), {}))
            harness.wait_for(lambda: coming.ready() or any("is being restarted" in line
                                                           for line in logs.output),
                             60, "the store waits")
        return coming

    def test_ranks_wait_for_the_engine_that_systemd_starts_again(self):
        with multiprocessing.pool.ThreadPool(2) as thread:
            ranks = [self.opened(thread, engine_start=start) for start in (True, False)]
            self.assertEqual([rank.ready() for rank in ranks], [False, False])
            self.start_next()
            for rank in ranks:
                rank.get(60 * harness.SLOW).close()

    def test_the_wait_ends_with_the_reason(self):
        with multiprocessing.pool.ThreadPool(1) as thread, \
                mock.patch.object(launch, "START_SECONDS", 6):
            with self.assertRaisesRegex(OSError, "restarts it.*read its log"):
                self.opened(thread).get(60 * harness.SLOW)

    def test_a_socket_that_is_given_up_ends_the_wait(self):
        with multiprocessing.pool.ThreadPool(1) as thread:
            rank = self.opened(thread, engine_start=False)
            self.held.close()
            os.unlink(self.socket)
            with self.assertRaises((FileNotFoundError, ConnectionError)):
                rank.get(60 * harness.SLOW)


class Failing(Engines):
    """An engine that accepts its settings but cannot start: no NIC has its cluster.address.

    A script stands in for the engine's program and counts the starts.
    """

    def setUp(self):
        super().setUp()
        self.starts = os.path.join(self.folder, "starts")
        self.program = os.path.join(self.folder, "engine")
        with open(self.program, "w", encoding="ascii") as script:
            script.write(f"#!/bin/sh\necho start >>{self.starts}\n"
                         f"exec {harness.program('engine/peercache-engine')} \"$@\"\n")
        os.chmod(self.program, 0o755)
        keeper = mock.patch.dict(
            os.environ, PEERCACHE_KEEPER=harness.program("engine/peercache-keeper"))
        keeper.start()
        self.addCleanup(keeper.stop)
        self.given = extra(self.socket, engine_path=self.program, local_hostname="192.0.2.1")

    def refused(self):
        """Returns a rank's error text and the time until it was raised."""
        began = time.monotonic()
        with self.assertRaises(RuntimeError) as caught:
            PeerCacheStore(config((0, 5, 18), self.given), {})
        return str(caught.exception), time.monotonic() - began

    def count(self):
        """Number of starts of the engine's program."""
        with open(self.starts, encoding="ascii") as file:
            return len(file.readlines())

    def test_every_rank_raises_the_engines_message_after_one_start(self):
        with multiprocessing.pool.ThreadPool(8) as ranks:
            together = ranks.map(lambda _: self.refused(), range(8))
        series = [self.refused() for _ in range(8)]
        print(f"8 ranks together: {max(s for _, s in together):.2f} s, in series: "
              f"{sum(s for _, s in series):.2f} s", file=sys.stderr)
        for why, _ in together + series:
            self.assertRegex(why, r"cannot listen on 192\.0\.2\.1 port \d+: .*Set cluster\.address")
            self.assertIn('cluster.address is set by "local_hostname" of the extra config', why)
        self.assertEqual(self.count(), 1)

    def test_other_settings_or_the_end_of_the_pause_allow_another_start(self):
        self.refused()
        with mock.patch.object(launch, "FAILED_SECONDS", 0):
            self.refused()
        self.assertEqual(self.count(), 2)
        del self.given["local_hostname"]
        PeerCacheStore(config((0, 5, 18), self.given), {}).close()
        self.assertEqual(self.count(), 3)
        self.gone()

    def test_the_error_quotes_only_the_log_of_this_start(self):
        os.makedirs(os.path.dirname(self.socket))
        with open(self.socket + ".log", "w", encoding="ascii") as log:
            log.write("an old complaint\n")
        why, _ = self.refused()
        self.assertNotIn("complaint", why)

    def test_the_error_for_an_impossible_socket_names_its_key(self):
        for path, error in ((f"{self.folder}/a/b/e.sock", FileNotFoundError),
                            ("/proc/version/e.sock", NotADirectoryError),
                            ("/proc/sys/e.sock", OSError)):
            with self.assertRaises(error) as caught:
                PeerCacheStore(config((0, 5, 18), {**self.given, "engine_socket": path}), {})
            self.assertIn(f"engine_socket = '{path}'", str(caught.exception))

    def test_the_error_for_a_missing_keeper_names_the_remedy(self):
        with mock.patch.dict(os.environ, PEERCACHE_KEEPER="/nowhere/peercache-keeper"):
            with self.assertRaisesRegex(FileNotFoundError, "PEERCACHE_KEEPER"):
                PeerCacheStore(config((0, 5, 18), self.given), {})

    def test_a_program_that_cannot_run_is_not_started_again(self):
        with open(self.program, "w", encoding="ascii") as script:
            script.write("#!/nowhere/interpreter\n")
        why, _ = self.refused()
        self.assertIn(f"cannot run {self.program}", why)


class Keys(unittest.TestCase):
    """The keys that PeerCache 0.8.4 accepts in its extra config."""

    def test_the_keys_become_settings_of_the_engine(self):
        got = configuration.read({
            "discovery_addr": "127.0.0.1:31998,127.0.0.2:31998", "protocol": "rdma",
            "device_names": "mlx5_0, mlx5_1", "global_segment_size": "8gb",
            "directory_replicas": 3, "gid_index": 5, "max_channels_per_peer": 16,
            "heartbeat_interval": 2.0, "member_ttl": "6", "node_id": "n1",
            "local_hostname": "127.0.0.9", "engine_socket": "/x"}).settings
        self.assertEqual(got, {
            "engine.socket": "/x", "engine.pool_bytes": str(4 << 30),
            "rail.devices": "mlx5_0,mlx5_1", "cluster.seeds": "127.0.0.1:31998,127.0.0.2:31998",
            "cluster.port": "31998", "cluster.address": "127.0.0.9", "rail.gid_index": "5",
            "rail.qps_per_peer": "8", "cluster.replicas": "3", "engine.name": "n1",
            "cluster.heartbeat_ms": "2000", "cluster.dead_after_ms": "6000"})

    def refused(self, key, value, **more):
        """Asserts that the error names key, value and remedy. Returns the text from the remedy on.
        """
        with self.assertRaises(ValueError) as caught:
            configuration.read({key: value, **more})
        start = f'"{key}": {json.dumps(value)}: give '
        self.assertIn(start, str(caught.exception))
        return str(caught.exception).split(start, 1)[1]

    def test_the_error_for_an_invalid_value_names_key_and_remedy(self):
        rows = {
            "gid_index": ["x", -2, 256, 1.5, True, [3]],
            "ib_port": ["x", 0, 256, 2], "max_channels_per_peer": [0, "many", -1],
            "directory_replicas": [0, "2 or 3"],
            "global_segment_size": [0, "0", "0gb", "0.0gb", -1, "-4gb", "4 parsecs", "1.2.3gb",
                                    True, ["4gb"], float("inf"), "4mb4", "2000tb"],
            "verify": ["some", 1, ["always"]], "verify_one_in": [0, 1000001, "often"],
            "quota": [0, "1 page"], "ttl_s": [0, 31536001, "1h"],
            "timeout_ms": [0, -5, "soon", 1e20], "exists_timeout_ms": [0, "x"],
            "heartbeat_interval": [0, -1, "x", 100, float("nan")], "member_ttl": [0, "x", 601],
            "mode": ["peer2peer", 1, ["p2p"]], "role": ["reader", ["auto"]],
            "write_policy": ["remote"], "protocol": ["roce", "RDMAA", ["tcp"]],
            "device_name": [["mlx5_0"], "mlx5_0,,mlx5_1", "mlx5_0,", "a b"],
            "device_names": [["mlx5_0", "mlx5_1"], "mlx5_0,mlx5_0", {"a": 1}],
            "discovery_addr": [["10.0.0.1:31998"], "10.0.0.1", "10.0.0.1:", ":31998", "a:0",
                               "a:65536", "a:x", "10.0.0.1:1,,10.0.0.2:1", "fd00::1:31998",
                               "n" * 64 + ":1"],
            "local_hostname": [["h"], "h" * 64], "node_id": [["n"], "n" * 64, "a\nb", True],
            "prefix": [["p"], {"p": 1}], "extra_backend_tag": [["t"]],
            "namespace_secret_file": [["/x"]], "psk_file": [["/x"]], "tls_dir": [["/x"]],
            "engine_socket": [["/x"], "/" + "x" * 107], "engine_path": [["/x"]],
            "engine_log": [{"x": 1}], "engine_start": ["maybe", 2, [True]],
            "engine_keep": ["keep"], "interface_v1": ["v1", [1], "0", "false", "No", " off"],
            "engine_settings": ["engine.huge_pages=no", [1], {"huge_pages": 1},
                                {"rail.cores": [1, 2]}, {"a.b.c": 1}],
            "metrics_enabled": ["maybe", [1]], "metrics_dashboard": ["x"],
            "metrics_port": [-1, 65536, "x", True], "metrics_bind_host": [["h"], "h" * 64],
            "disk_enabled": ["maybe", [1]], "disk_path": [["/a"], "/" + "a" * 1023],
            "disk_size": [0, "x", [1]],
        }
        fixes = {}
        for key, values in rows.items():
            for value in values:
                with self.subTest(key=key, value=value):
                    more = {"device_names": "mlx5_0"} if key == "ib_port" else {}
                    fixes[key] = self.refused(key, value, **more)
        self.assertEqual(set(rows), set(configuration.READERS), "this test covers every key")
        self.assertEqual(fixes["gid_index"], "a whole number from -1 to 255")
        self.assertIn("rdma or tcp", fixes["protocol"])
        self.assertIn("without quotes", fixes["interface_v1"])

    def test_one_error_names_all_invalid_values(self):
        with self.assertRaises(ValueError) as caught:
            configuration.read({"gid_index": "x", "role": "reader", "global_segment_size": 0})
        for key in ("gid_index", "role", "global_segment_size"):
            self.assertIn(f'"{key}": ', str(caught.exception))

    def test_the_error_names_values_that_contradict_each_other(self):
        self.assertIn("two heartbeats", self.refused("member_ttl", 3, heartbeat_interval=2))
        self.assertIn("at most 1tb for each NIC, of which there are 2", self.refused(
            "global_segment_size", "3tb", device_names="mlx5_0,mlx5_1"))
        for nbytes in ("5mb", "17tb"):
            self.assertIn("6mb to 16tb", self.refused("disk_size", nbytes, disk_path="/d"))

    def test_values_at_their_bounds_are_accepted(self):
        def read(**extra):
            return configuration.read(extra).settings
        self.assertEqual(read(member_ttl=4, heartbeat_interval=2)["cluster.dead_after_ms"], "4000")
        self.assertEqual(read(heartbeat_interval=0.1)["cluster.dead_after_ms"], "3000")
        alone = read(member_ttl=6)
        self.assertEqual(alone["cluster.dead_after_ms"], "6000")
        self.assertNotIn("cluster.heartbeat_ms", alone)
        for nbytes in ("6mb", "16tb"):
            self.assertIn("disk.bytes", read(disk_path="/d", disk_size=nbytes))
        self.assertEqual(read(global_segment_size="2tb", device_names="mlx5_0,mlx5_1")
                         ["engine.pool_bytes"], str(1 << 40))
        self.assertIn("n" * 63 + ":1", read(discovery_addr="n" * 63 + ":1")["cluster.seeds"])
        self.refused("node_id", "\u00e4" * 32)  # 64 bytes
        with mock.patch("os.listdir", lambda _: ["mlx5_1", "mlx5_0"]):
            self.assertEqual(read()["rail.devices"], "mlx5_0")

    def test_names_of_hosts_are_left_to_the_engine(self):
        """It tries all addresses of a name, and refuses a loopback one that other hosts get."""
        got = configuration.read({"discovery_addr": "head:1,[fd00::1]:2"}).settings
        self.assertEqual(got["cluster.seeds"], "head:1,[fd00::1]:2")
        self.assertEqual(got["cluster.address"], "auto")
        got = configuration.read({"discovery_addr": "head:1", "local_hostname": "head"})
        self.assertEqual(got.settings["cluster.address"], "head")
        self.assertEqual(got.origins["cluster.address"], "local_hostname")
        self.assertEqual(got.idle, [])
        self.assertNotIn("cluster.address", configuration.read({}).settings)

    def test_torch_knows_the_ranks_of_a_server_with_dp_attention(self):
        """Its tp_size is the number of ranks that share an attention."""
        given = SimpleNamespace(tp_size=2, pp_size=2)
        for begun, ranks in ((True, 16), (False, 4)):
            torch = SimpleNamespace(distributed=SimpleNamespace(
                is_available=lambda: True, is_initialized=lambda begun=begun: begun,
                get_world_size=lambda: 16))
            with mock.patch.dict(sys.modules, {"torch": torch}):
                self.assertEqual(ranks_of(given), ranks)
        for torch in (None, SimpleNamespace(), SimpleNamespace(distributed=SimpleNamespace(
                is_available=lambda: False))):
            with mock.patch.dict(sys.modules, {"torch": torch}):
                self.assertEqual((ranks_of(given), ranks_of(None)), (4, 1))

    def test_the_version_of_sglang_decides_whether_it_calls_the_v1_methods(self):
        for version, calls in (("0.5.5", False), ("0.5.5.post3", False), ("0.5.6", True),
                               ("0.5.10", True), ("0.6.0", True), ("0.0.0.dev1", True),
                               ("a checkout", True)):
            with mock.patch("importlib.metadata.version", lambda _, version=version: version):
                self.assertEqual(calls_v1(), calls, version)

    def test_the_default_member_ttl_is_three_heartbeats(self):
        """As in PeerCache 0.8.2. The engine's own default is too short for this heartbeat."""
        got = configuration.read({"heartbeat_interval": 2}).settings
        self.assertEqual((got["cluster.heartbeat_ms"], got["cluster.dead_after_ms"]),
                         ("2000", "6000"))

    def test_valid_values_are_accepted_in_every_spelling(self):
        for value, nbytes in ((4 << 20, 4 << 20), ("1g", 1 << 30), ("1.5GiB", 3 << 29),
                              (" 64 MB ", 64 << 20), (1e9, 10**9 // 4096 * 4096)):
            got = configuration.read({"global_segment_size": value, "protocol": "tcp"}).settings
            self.assertEqual(got["engine.pool_bytes"], str(nbytes))
        for value in (True, 1, "1", "yes", "ON", "true"):
            self.assertTrue(configuration.read({"engine_keep": value}).engine_keep)
        for value in (False, 0, "0", "no", "off", "", None):
            self.assertFalse(configuration.read({"engine_keep": value}).engine_keep)
        for value in (True, 1, "1", "yes", "ON", "true", False, 0, "", None):  # as SGLang reads it
            self.assertEqual(configuration.read({"interface_v1": value}).interface_v1, bool(value))
        got = configuration.read({"gid_index": "3.0", "protocol": "RDMA", "ib_port": "1",
                                  "device_names": "mlx5_bond_0", "timeout_ms": "250",
                                  "discovery_addr": "[::1]:31998", "prefix": 7,
                                  "engine_settings": {"engine.huge_pages": False,
                                                      "rail.spin_us": 5}})
        self.assertEqual(got.settings["rail.gid_index"], "3")
        self.assertEqual(got.settings["engine.huge_pages"], "no")
        self.assertEqual(got.settings["rail.spin_us"], "5")
        self.assertEqual((got.timeout_ms, got.tags, got.idle), (250, ("7", ""), []))

    @unittest.skipUnless(tomllib, "Python 3.10 has no tomllib")
    def test_engine_settings_may_be_a_table_as_toml_reads_it(self):
        """A key with a dot that is not quoted makes a table within the table."""
        wanted = {"engine.huge_pages": "no", "engine.limbo_ms": "5", "rail.spin_us": "7"}
        for text in ('[engine_settings]\nengine.huge_pages = false\nengine.limbo_ms = 5\n'
                     'rail.spin_us = "7"',
                     '[engine_settings]\n"engine.huge_pages" = "no"\n'
                     '[engine_settings.engine]\nlimbo_ms = 5\n[engine_settings.rail]\nspin_us = 7',
                     'engine_settings = {engine = {huge_pages = false, limbo_ms = 5}, '
                     'rail.spin_us = 7}'):
            got = configuration.read({**tomllib.loads(text), "protocol": "tcp"})
            self.assertEqual({name: got.settings[name] for name in wanted}, wanted)
            self.assertEqual(got.origins["rail.spin_us"], "engine_settings")
        for bad in ({"a": {"b": {"c": 1}}}, {"a": 1}, {"a": {}, "b": [1]}, {"a": {"b": [1]}},
                    {"a.b": 1, "a": {"b": 2}}, {"A": {"b": 1}}, {"a": {"": 1}}, {"a": {"b": None}}):
            with self.assertRaisesRegex(ValueError, "engine_settings"):
                configuration.read({"engine_settings": bad, "protocol": "tcp"})

    def test_unknown_keys_and_those_that_do_not_act_as_given_cause_one_warning_each(self):
        with open(os.path.join(ROOT, "tests/python/peercache-0.8.4.json"),
                  encoding="utf-8") as file:
            known = json.load(file)["keys"]
        known.update(discovery_addr="127.0.0.1:31998", mode="slotmap", write_policy="both",
                     protocol="tcp", vnodes=100, max_masters=5, metrics_port=0)
        with self.assertLogs("peercache", logging.WARNING) as logs:
            got = configuration.read({**known, "what": 1, "is": 2})
            got.warn()
        self.assertEqual(len(logs.output), 2)
        self.assertIn("ignored: is, what", logs.output[0])
        self.assertNotIn("metrics.port", got.settings, "0 would mean no metrics")
        named = {"mode", "write_policy", "gid_index", "max_channels_per_peer", "metrics_port",
                 *migration.WITHOUT_EFFECT}
        self.assertEqual({one.split("=")[0] for one in got.idle}, named)
        for key in named:
            self.assertRegex(logs.output[1], rf"\b{key}={known[key]} \(\w")
        with self.assertNoLogs("peercache", logging.WARNING):
            configuration.read({"discovery_addr": "127.0.0.1:31998", "disk_enabled": False,
                                "metrics_enabled": "false", "mode": "p2p",
                                "rdma_bind_host": None, "node_id": "",
                                "backend_name": "peercache", "allocator": "shm"}).warn()

    def test_keys_that_do_not_act_as_given_are_named_with_what_to_do(self):
        disk = {"disk_path": "/d", "disk_size": "2gb"}
        rows = [({"disk_size": "2gb"}, 'disk_size=2gb (there is no disk without "disk_path")'),
                ({"disk_enabled": False, **disk}, 'disk_path=/d ("disk_enabled" is false)'),
                ({"disk_enabled": 0, "disk_size": "2gb"}, "disk_size=2gb ("),
                ({"control_port": 31999}, "control_port=31999 ("), ({"rdma_port": 1}, "rdma_port="),
                ({"max_channels_per_peer": 9}, "max_channels_per_peer=9 (8 are used"),
                ({"directory_replicas": 5}, "directory_replicas=5 (4 are used"),
                ({"global_segment_size": "7mb", "device_names": "a,b"},
                 "global_segment_size=7mb (4mb are used for each NIC"),
                ({"ib_port": 2, "protocol": "tcp"}, "ib_port=2 (the software NIC"),
                ({"metrics_port": 0}, "metrics_port=0 (one engine serves the metrics"),
                ({"metrics_enabled": False, "metrics_port": 1}, "metrics_port=1 ("),
                ({"metrics_enabled": False, "metrics_port": 0},
                 'metrics_port=0 ("metrics_enabled" is false)'),
                ({"metrics_enabled": 0, "metrics_bind_host": "::"}, "metrics_bind_host=:: ("),
                ({"metrics_enabled": 0, "metrics_dashboard": False}, "metrics_dashboard=False ("),
                ({"device_name": "a", "device_names": "b"}, 'device_name=a ("device_names" is'),
                ({"device_names": "b", "protocol": "tcp"}, "device_names=b ("),
                ({"verify": "always", "verify_one_in": 5}, "verify_one_in=5 ("),
                ({"engine_start": False, "engine_keep": True}, "engine_keep=True ("),
                ({"engine_start": False, "engine_path": "/x"}, "engine_path=/x ("),
                ({"metrics_port": 5, "engine_settings": {"metrics.port": 6}},
                 'metrics_port: metrics.port in "engine_settings" overrides it')]
        rows += [({key: value}, f"{key}={value} ({why}") for key, values in migration.VALUES.items()
                 for value, why in values.items()]
        for given, wanted in rows:
            with self.subTest(extra=given):
                found = configuration.read(given).idle
                self.assertTrue(any(one.startswith(wanted) for one in found), found)
        for given in ({"disk_enabled": True, **disk}, {"max_channels_per_peer": 8, "role": "auto"},
                      {"device_names": "mlx5_0", "gid_index": 3, "verify_one_in": 7, "ib_port": 1},
                      {"directory_replicas": 4, "global_segment_size": "4mb", "mode": "p2p"},
                      {"discovery_addr": "127.0.0.1:1", "disk_size": "2gb"},
                      {"metrics_port": 5, "engine_settings": {"metrics.port": 5}}):
            self.assertEqual(configuration.read(given).idle, [])

    def test_an_engine_that_is_told_of_no_other_host_is_named(self):
        for extra, alone in (({}, True), ({"discovery_addr": "127.0.0.1:1"}, False),
                             ({"engine_settings": {"cluster.etcd": "http://127.0.0.1:1"}}, False)):
            self.assertEqual(configuration.read(extra).alone, alone)
        with self.assertLogs("peercache", logging.INFO) as logs:
            configuration.read({}).warn()
        self.assertIn('without "discovery_addr"', logs.output[0])

    def test_paths_are_absolute_or_begin_at_the_home_directory(self):
        with mock.patch.dict(os.environ, {"HOME": "/home/me"}):
            got = configuration.read({"engine_socket": "~/e.sock", "disk_path": "/a, ~/b",
                                      "engine_log": " ~/log "})
            with mock.patch.dict(os.environ, {"PEERCACHE_SOCKET": "~/p.sock"}):
                self.assertEqual(configuration.read({}).engine_socket, "/home/me/p.sock")
        self.assertEqual((got.engine_socket, got.engine_log), ("/home/me/e.sock", "/home/me/log"))
        self.assertEqual(got.settings["disk.paths"], "/a,/home/me/b")
        for bad in ("e.sock", "./e.sock", "~you/e.sock", "$HOME/e.sock", "/run/${USER}/e.sock",
                    '"/e.sock"', "'/e.sock'"):
            for name in ("engine_socket", "engine_path", "engine_log", "disk_path"):
                self.assertIn("an absolute path", self.refused(name, bad))
        self.refused("disk_path", "/a,b")
        with mock.patch.dict(os.environ, {"PEERCACHE_SOCKET": "p.sock"}):
            with self.assertRaisesRegex(ValueError, "absolute path.*PEERCACHE_SOCKET.*p.sock"):
                configuration.read({})

    def test_only_settings_that_were_given_and_differ_are_named(self):
        extra = {"global_segment_size": "64mb", "protocol": "tcp", "gid_index": -1,
                 "directory_replicas": 2, "discovery_addr": "127.0.0.1:7,127.0.0.2:7",
                 "metrics_enabled": False,
                 "engine_settings": {"engine.huge_pages": "off", "rail.mr_bytes": "64KiB"}}
        running = {"engine.pool_bytes": 64 << 20, "rail.devices": "soft", "rail.gid_index": -1,
                   "soft.link": "tcp", "cluster.replicas": 2, "cluster.port": 7,
                   "cluster.seeds": "127.0.0.1:7, 127.0.0.2:7", "engine.huge_pages": False,
                   "cluster.address": "10.0.0.1",  # what the engine has chosen for "auto"
                   "metrics.port": 0, "rail.mr_bytes": 65536, "engine.name": "n",
                   "disk.paths": "/d"}
        config = configuration.read(extra)
        self.assertEqual(config.differences(running), [])
        other = {"engine.pool_bytes": 1, "rail.devices": "mlx5_0", "cluster.port": 8,
                 "engine.huge_pages": True, "metrics.port": 5, "rail.mr_bytes": 4}
        self.assertEqual(len(config.differences({**running, **other})), len(other))
        self.assertIn('engine.huge_pages = yes, not off ("engine_settings")',
                      config.differences({**running, **other}))
        self.assertEqual(configuration.read({}).differences({"engine.pool_bytes": 1}), [])

    def test_the_package_needs_neither_sglang_nor_torch(self):
        code = ("import sys\nfor name in ('torch', 'sglang', 'numpy'): sys.modules[name] = None\n"
                "import peercache, peercache.store\n")
        package = os.path.join(os.environ["PEERCACHE_BUILD"], "engine/client/python")
        subprocess.run([sys.executable, "-c", code], check=True,
                       env={**os.environ, "PYTHONPATH": package})


if __name__ == "__main__":
    unittest.main()
