# SPDX-License-Identifier: Apache-2.0
"""Bad input gets one clear error and has no other effect."""

import os
import re
import socket
import struct
import tempfile

import harness


def engine(*arguments, seconds=20, **options):
    return harness.run([harness.program("engine/peercache-engine"), *arguments],
                       capture_output=True, text=True, seconds=seconds, **options)


def settings(**values):
    return [x for k, v in values.items() for x in ("--set", f"{k.replace('__', '.')}={v}")]


class Engine(harness.ClusterTest):
    def refused(self, done, *words):
        self.assertNotEqual(done.returncode, 0)
        for word in words:
            self.assertIn(word, done.stderr)
        self.assertNotRegex(done.stderr, r"Sanitizer|Assertion|Segmentation")

    def test_a_wrong_config_value_names_file_line_and_fix(self):
        with tempfile.NamedTemporaryFile("w", suffix=".conf") as f:
            f.write("[engine]\npool_bytes = 12 parsecs\n[rail]\npoling = busy\n")
            f.flush()
            done = engine("--config", f.name)
            self.refused(done, f"{f.name}:2", "pool_bytes", "12 parsecs")
            self.refused(done, "poling", "polling")
        self.refused(engine("--config", "/nowhere/x.conf"), "/nowhere/x.conf")
        self.refused(engine("--set", "engine.pool_bytes"), "engine.pool_bytes")

    def test_check_refuses_what_the_start_refuses(self):
        with tempfile.TemporaryDirectory() as d, tempfile.NamedTemporaryFile() as file:
            os.mkdir(f"{d}/disk")
            for values, *words in (
                    ({"cluster__seeds": "fe80::1:31998"}, "cluster.seeds"),
                    ({"cluster__seeds": "127.0.0.1:99999"}, "cluster.seeds"),
                    ({"cluster__etcd": "ftp://127.0.0.1:2379"}, "cluster.etcd"),
                    ({"cluster__etcd": "http://127.0.0.1:2379",
                      "cluster__etcd_password_file": f"{d}/none"}, "No such file"),
                    ({"cluster__address": "203.0.113.1"}, "203.0.113.1", "Cannot assign"),
                    ({"cluster__address": "0.0.0.0"}, "cluster.address"),
                    ({"cluster__address": "192.0.2.1", "cluster__bind": "127.0.0.1"},
                     "cluster.bind"),
                    ({"rail__devices": "mlx5_99"}, "mlx5_99"),
                    ({"rail__cores": "999"}, "rail.cores"),
                    ({"disk__paths": f"{d}/disk,,{d}"}, "disk.paths", "empty name"),
                    ({"disk__paths": f"{d}/disk", "disk__segment_bytes": "1MiB"},
                     "disk.segment_bytes", "65535"),
                    ({"disk__paths": f"{d}/disk,{d}", "disk__bytes": "9TiB"},
                     "disk.segment_bytes", "65535"),
                    ({"engine__socket": f"{d}/a/b/e.sock"}, "engine.socket"),
                    ({"engine__pool_bytes": "900GiB"}, "pool_bytes"),
                    ({"metrics__address": "203.0.113.1", "metrics__port": 31990},
                     "metrics.address", "Cannot assign"),
                    ({"engine__name": "two words"}, "engine.name")):
                with self.subTest(settings=values):
                    more = settings(**{"engine__socket": f"{d}/e.sock",
                                       "engine__pool_bytes": "16MiB", "metrics__port": 0,
                                       "cluster__port": harness.cluster.free_port(), **values})
                    done = engine(*more, "--check")
                    self.refused(done, *words)
                    self.assertEqual(done.returncode, 2)
                    self.refused(engine(*more), words[0])
            # An engine starts without its disk, and says so; --check knows it before.
            for values, *words in (
                    ({"disk__paths": f"{d}/none"}, f"{d}/none", "No such file"),
                    ({"disk__paths": file.name}, file.name, "Not a directory"),
                    ({"disk__paths": f"{d}/disk", "disk__bytes": "15TiB"},
                     "disk.bytes", "file system")):
                with self.subTest(settings=values):
                    done = engine(*settings(**values), "--check")
                    self.refused(done, *words)
                    self.assertEqual(done.returncode, 2)

    def test_check_accepts_the_settings_of_an_engine_that_serves(self):
        with tempfile.TemporaryDirectory() as d:
            engines = self.start(1, pool_bytes="16MiB", disk=d,
                                 settings=["disk.segment_bytes=1MiB", "disk.bytes=16MiB"])
            with socket.create_server(("127.0.0.1", 0)) as used:  # as the engine's own port
                done = engine(*settings(
                    engine__socket=engines.sockets[0], engine__pool_bytes="16MiB",
                    cluster__port=engines.port[0], disk__paths=engines.disks[0],
                    disk__segment_bytes="1MiB", disk__bytes="16MiB",
                    metrics__address="127.0.0.1", metrics__port=used.getsockname()[1]), "--check")
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn("the settings are valid", done.stdout)
            for what in ("only the start can tell", "engine.socket", "cluster.port", "metrics.port",
                         "cores", "disk.paths", "huge pages", "locked memory", "cgroup", "NICs",
                         "seeds"):
                self.assertIn(what, done.stdout)
            self.stop_cleanly(engines)

    def test_check_refuses_hosts_and_paths_that_cannot_be_meant(self):
        for setting in ("cluster.address", "cluster.bind", "metrics.address"):
            for value, why in (("10.0.0.256", "not an IPv4 address"), ("$HOST", "not expanded")):
                self.refused(engine("--set", f"{setting}={value}", "--check"),
                             f"{setting} = {value}: ", why)
        for seeds, why in (("a:1,10.0.0.256:31998", "= 10.0.0.256: not an IPv4"),
                           ("$SEEDS", "= $SEEDS: variables are not expanded")):
            self.refused(engine("--set", f"cluster.seeds={seeds}", "--check"), why)
        with tempfile.TemporaryDirectory() as d:
            os.mkdir(f"{d}/a")
            os.mkdir(f"{d}/b")
            os.symlink(f"{d}/a", f"{d}/link")
            for other in ("a", "a/", "./a", "b/../a", "link"):
                self.refused(engine("--set", f"disk.paths={d}/a,{d}/{other}", "--check"),
                             f"{d}/a and {d}/{other} are one directory")
            done = engine("--set", f"disk.paths={d}/a,{d}/b", "--check")
            self.assertEqual(done.returncode, 0, done.stderr)

    def test_help_version_and_plan_print_and_exit(self):
        for option in ("--help", "--version", "--plan"):
            done = engine(option)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertTrue(done.stdout)
        self.assertIn("engine.pool_bytes", engine("--help").stdout.replace("[engine] ", "engine."))
        self.refused(engine("--no-such-option"), "--help")


class Peers(harness.ClusterTest):
    def test_bad_messages_from_a_peer_end_the_connection_only(self):
        engines = self.start(2, pool_bytes="16MiB", settings=["cluster.security=none"])
        address = (engines.address[0], engines.port[0])
        frames = {
            "oversized": struct.pack(">I", 0xffffffff) + b"x" * 100,
            "empty": struct.pack(">I", 0),
            "garbage": struct.pack(">I", 64) + os.urandom(64),
            "http": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
            "truncated": struct.pack(">I", 500) + b"\x0a\x05",
        }
        for name, frame in frames.items():
            with self.subTest(frame=name), socket.create_connection(address) as s:
                s.settimeout(20 * harness.SLOW)
                s.sendall(frame)
                if name == "truncated":
                    s.shutdown(socket.SHUT_WR)
                while s.recv(65536):
                    pass
        self.assertGreater(engines.status(0)["counters"]["messages_bad"], 2)
        engines.wait_members(2)
        self.replay(engines, "--requests", 50)
        self.stop_cleanly(engines)

    def test_an_announced_length_allocates_no_memory(self):
        engines = self.start(1, pool_bytes="16MiB")

        def resident():
            with open(f"/proc/{engines.process[0].pid}/status") as f:
                return int(re.search(r"VmRSS:\s+(\d+)", f.read())[1])
        before = resident()
        many = []
        for _ in range(20):
            s = socket.create_connection((engines.address[0], engines.port[0]))
            s.sendall(struct.pack(">I", 4 << 20) + b"\0" * 1000)
            many.append(s)
        self.assertIsNotNone(engines.status(0))
        self.assertLess(resident() - before, 20000, "KiB for 20 connections that announce 4 MiB")
        for s in many:
            s.close()
        self.stop_cleanly(engines)


class Clients(harness.ClusterTest):
    def ctl(self, *arguments, **options):
        return harness.run([harness.program("tools/peercachectl"), *arguments],
                           capture_output=True, text=True, **options)

    def test_a_socket_without_an_engine_is_named(self):
        done = self.ctl("--socket", "/nowhere/e.sock", "status")
        self.assertEqual(done.returncode, 2)
        self.assertIn("/nowhere/e.sock", done.stderr)

    def test_a_socket_of_another_user_is_refused(self):
        if os.geteuid():
            self.skipTest("needs root to become another user")
        engines = self.start(1, pool_bytes="16MiB")
        os.chmod(engines.directory, 0o755)
        os.chmod(engines.sockets[0], 0o666)
        copy = os.path.join(engines.directory, "peercachectl")
        done = self.as_other_user(copy, "--socket", engines.sockets[0], "status")
        self.assertEqual(done.returncode, 2, done.stdout + done.stderr)
        self.assertRegex(done.stderr, r"user|uid|permission|Permission")
        self.assertIsNotNone(engines.status(0))
        self.stop_cleanly(engines)

    def as_other_user(self, _copy, *arguments):
        """Runs peercachectl as user 65534, from an open file because its folder may be private."""
        path = harness.program("tools/peercachectl")
        libraries = os.path.join(harness.BUILD, "engine", "client")
        fd = os.open(path, os.O_RDONLY)

        def drop():
            os.setgroups([])
            os.setgid(65534)
            os.setuid(65534)
        return harness.run([f"/proc/self/fd/{fd}", *arguments], pass_fds=[fd], preexec_fn=drop,
                           capture_output=True, text=True,
                           env={**os.environ, "LD_LIBRARY_PATH": libraries})

    def test_a_page_larger_than_the_largest_class_is_refused(self):
        engines = self.start(1, pool_bytes="16MiB")
        process = harness.tool("tools/peercache-bench", "replay", "--page-bytes", "32MiB",
                               "--requests", 3, sockets=engines.sockets)
        status, _, err = harness.finish(process)
        self.assertEqual(status, 2)
        self.assertIn("pool_bytes", err)
        self.stop_cleanly(engines)

    def test_ctl_puts_gets_and_removes_values(self):
        engines = self.start(2, pool_bytes="64MiB")
        a, b = engines.sockets
        data = os.urandom(60123)
        with tempfile.TemporaryDirectory() as d:
            with open(f"{d}/in", "wb") as f:
                f.write(data)
            self.assertEqual(self.ctl("--socket", a, "put", "file", f"{d}/in").returncode, 0)
            done = self.ctl("--socket", b, "get", "file", "-o", f"{d}/out")
            self.assertEqual(done.returncode, 0, done.stderr)
            with open(f"{d}/out", "rb") as f:
                self.assertEqual(f.read(), data)
            self.assertEqual(self.ctl("--socket", b, "exists", "file").returncode, 0)
            self.assertEqual(self.ctl("--socket", b, "rm", "file").returncode, 0)
            self.assertEqual(self.ctl("--socket", a, "exists", "file").returncode, 1)
            self.assertEqual(self.ctl("--socket", a, "get", "file").returncode, 1)
            self.assertEqual(self.ctl("--socket", a, "put", "e", "--string", "").returncode, 0)
            self.assertEqual(self.ctl("--socket", b, "get", "e").stdout, "")
        self.assertEqual(self.ctl("--socket", a, "frobnicate").returncode, 2)
        self.stop_cleanly(engines)


class Manners(harness.ClusterTest):
    def test_idle_engines_use_less_than_5_percent_of_a_core(self):
        engines = self.start(2, pool_bytes="64MiB")
        self.replay(engines, "--requests", 20)
        self.assert_idle(engines)
        self.stop_cleanly(engines)

    def test_no_file_is_left_behind(self):
        def shared():
            """Names in a folder that other tests use meanwhile, too."""
            return {name for name in os.listdir("/dev/shm") if "peercache" in name}
        before = shared()
        engines = self.start(2, pool_bytes="64MiB")
        self.replay(engines, "--requests", 20)
        sockets = list(engines.sockets)
        engines.kill(0)
        self.assertEqual(shared() - before, set())
        engines.restart(0)
        for i in range(2):
            engines.kill(i, 15)
        self.assertEqual([s for s in sockets if os.path.exists(s)], [])
        self.assertEqual(shared() - before, set())


if __name__ == "__main__":
    harness.main()
