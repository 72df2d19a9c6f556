# SPDX-License-Identifier: Apache-2.0
"""peercache-meta of PeerCache 0.8 is a seed for engines, peercache-storage-server a storage host.
peercache-0.8.4.json has their names and flags.
"""

import io
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import unittest
from unittest import mock

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PACKAGE = os.path.join(os.environ.get("PEERCACHE_BUILD", ""), "engine/client/python")
sys.path[:0] = [os.path.join(ROOT, "tests", "cluster"), os.path.join(ROOT, "tests", "python"),
                PACKAGE]
import harness  # noqa: E402
from simulator import config  # noqa: E402
from peercache import config as meaning, former, store  # noqa: E402

sys.path.insert(0, os.path.join(PACKAGE, "peercache"))
import _peercache  # noqa: E402

with open(os.path.join(ROOT, "tests", "python", "peercache-0.8.4.json"), encoding="utf-8") as file:
    OLD = json.load(file)["console_scripts"]
MODULES = {"peercache-meta": "peercache.examples.launch_meta",
           "peercache-storage-server": "peercache.examples.launch_storage"}
NEEDED = ["--discovery-addr", "10.0.0.1:31998", "--protocol", "tcp"]
VALUES = {"--bind": "0.0.0.0:31998", "--member-ttl": "6.0", "--discovery-addr": "10.0.0.2:31998",
          "--global-segment-size": "64mb", "--disk-path": "/data/peercache/", "--disk-size":
          "100gb", "--protocol": "tcp", "--metrics-port": "31997"}
FLAGS = ("--verbose", "--no-disk")


class Former(unittest.TestCase):
    def checked(self, settings):
        """Does the engine accept the settings, without what must exist on this host?"""
        settings = {**settings, "cluster.address": "127.0.0.1", "cluster.bind": "",
                    "disk.paths": "", "metrics.port": 0}
        command = [harness.program("engine/peercache-engine"), "--check"]
        for name, value in settings.items():
            command += ["--set", f"{name}={value}"]
        done = harness.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.assertEqual(done.returncode, 0, done.stdout)

    def executed(self, program, *words):
        """The settings of the engine that a program becomes, and what it printed."""
        engine = harness.program("engine/peercache-engine")
        with mock.patch.object(os, "execv") as execv, mock.patch.object(os, "makedirs"), \
                mock.patch("sys.stderr", io.StringIO()) as stderr, \
                mock.patch.dict(os.environ, {"PEERCACHE_ENGINE": engine}):
            program(words)
        path, line = execv.call_args.args
        self.assertEqual((path, line[0]), (engine, "peercache-engine"))
        return dict(word.split("=", 1) for word in line[2::2]), stderr.getvalue()

    def storage(self, *words):
        return self.executed(former.storage_server, *NEEDED, *words)

    def test_every_flag_gives_a_line_that_the_engine_accepts(self):
        program = "peercache-storage-server"
        for flag in OLD[program]:
            words = [flag] if flag in FLAGS else [flag, VALUES.get(flag, "soft")]
            with self.subTest(flag=flag):
                self.checked(self.storage(*words)[0])
        for flag in OLD["peercache-meta"]:
            with self.subTest(flag=flag):
                words = [flag] if flag in FLAGS else [flag, VALUES[flag]]
                self.checked(self.executed(former.meta, *words)[0])

    def test_the_settings_are_those_that_the_flags_mean(self):
        got, _ = self.executed(former.meta, "--bind", "0.0.0.0:4000", "--member-ttl", "6",
                               "--verbose")
        self.assertEqual(
            [got[name] for name in ("rail.devices", "cluster.address", "cluster.bind",
                                    "cluster.port", "cluster.dead_after_ms", "log.level")],
            ["none", "auto", "0.0.0.0", "4000", "6000", "debug"])
        got, _ = self.executed(former.meta, "--bind", "[fd00::1]:4000")
        self.assertEqual((got["cluster.address"], got.get("cluster.bind")), ("fd00::1", None))
        got, _ = self.executed(
            former.storage_server, "--discovery-addr", "10.0.0.1:31998", "--device-names",
            "mlx5_0,mlx5_1", "--global-segment-size", "64gb", "--disk-path", "/data/a", "--node-id",
            "a", "--metrics-port", "4001", "--local-hostname", "10.0.0.9", "--verbose")
        for name, value in {
                "cluster.seeds": "10.0.0.1:31998", "rail.devices": "mlx5_0,mlx5_1",
                "engine.pool_bytes": str(32 << 30), "disk.paths": "/data/a", "engine.name": "a",
                "disk.bytes": str(100 << 30), "metrics.port": "4001", "log.level": "debug",
                "cluster.address": "10.0.0.9", "engine.role": "storage"}.items():
            self.assertEqual(got[name], value, name)

    def test_flags_that_do_not_act_as_given_are_named(self):
        for words, wanted in (
                ([], []), (["--no-disk"], []),
                (["--no-disk", "--disk-size", "1gb"], ["disk_size=1gb"]),
                (["--no-disk", "--disk-path", "/d"], ["disk_path=/d"]),
                (["--device-name", "mlx5_0", "--metrics-port", "0"],
                 ["device_name=mlx5_0", "metrics_port=0"])):
            found = re.findall(r"^does not act as given: (\S+) \(", self.storage(*words)[1],
                               re.M)
            self.assertEqual(sorted(found), wanted, words)

    def meta(self, folder, port):
        """Starts peercache-meta; returns the process, and its socket once it serves."""
        socket = f"{folder}/seed-{port}.sock"
        meta = subprocess.Popen(
            [sys.executable, "-m", MODULES["peercache-meta"], "--bind", f"127.0.0.1:{port}"],
            stderr=subprocess.PIPE, text=True,
            env={**os.environ, "PYTHONPATH": PACKAGE, "PEERCACHE_SOCKET": f"{folder}/engine.sock",
                 "PEERCACHE_ENGINE": harness.program("engine/peercache-engine")})
        self.addCleanup(meta.stderr.close)
        self.addCleanup(meta.wait)
        self.addCleanup(meta.kill)
        line = meta.stderr.readline()
        self.assertIn("peercache-meta runs peercache-engine --set rail.devices=none", line)
        self.assertIn("a seed only", meta.stderr.readline())
        return meta, socket

    def test_stores_of_two_hosts_find_each_other_through_peercache_meta(self):
        folder = tempfile.mkdtemp(prefix="peercache-")
        # an engine ends after its store has closed
        self.addCleanup(harness.remove_folder, folder)
        port, *ports = harness.cluster.free_ports(3)
        meta, socket = self.meta(folder, port)
        stores = []
        for i, own in enumerate(ports):
            stores.append(store.PeerCacheStore(config((0, 5, 18), {
                "engine_socket": f"{folder}/{i}.sock", "discovery_addr": f"127.0.0.1:{port}",
                "local_hostname": "127.0.0.1", "protocol": "tcp", "metrics_enabled": False,
                "global_segment_size": "64mb", "engine_settings": {"cluster.port": str(own)},
                "engine_path": harness.program("engine/peercache-engine")})))
            self.addCleanup(stores[-1].close)

        def members():
            done = harness.run([harness.program("tools/peercachectl"), "--socket", socket, "--json",
                                "members"], capture_output=True, text=True)
            return sorted(m["rails"] for m in json.loads(done.stdout)["members"])
        harness.wait_for(lambda: members() == [0, 1, 1], 60, "two engines and the seed")
        meta.send_signal(signal.SIGTERM)
        self.assertEqual(harness.ended(meta), 0)

    def test_each_mode_and_policy_puts_the_bytes_where_0_8_4_put_them(self):
        for mode, policy, role, wanted in (
                ("p2p", "local", "auto", {}), ("p2p", "both", "inference", {}),
                ("slotmap", "storage", "auto", {}),
                ("hybrid", "local", "auto", {"engine.write_policy": "local"}),
                ("hybrid", "both", "inference", {"engine.write_policy": "both"}),
                ("hybrid", "storage", "auto", {"engine.write_policy": "storage"}),
                ("centralized", "local", "auto", {"engine.write_policy": "storage"}),
                ("centralized", "both", "inference", {"engine.write_policy": "storage"}),
                ("p2p", "local", "storage", {"engine.role": "storage"}),
                ("centralized", "local", "storage", {"engine.role": "storage"})):
            with self.subTest(mode=mode, policy=policy, role=role):
                got = meaning.read({"mode": mode, "write_policy": policy, "role": role})
                self.assertEqual({name: value for name, value in got.settings.items() if name in
                                  ("engine.role", "engine.write_policy")}, wanted)
                self.assertEqual([one.split("=")[0] for one in got.idle],
                                 ["mode"] * (mode == "slotmap") +
                                 ["write_policy"] * (policy != "local" and mode != "hybrid"))
        folder = tempfile.mkdtemp(prefix="peercache-")
        self.addCleanup(harness.remove_folder, folder)
        for given in ({"mode": "p2p", "write_policy": "both"},
                      {"mode": "hybrid", "write_policy": "both"}, {"mode": "centralized"}):
            with self.subTest(given=given):
                self.mode(folder, given, given["mode"] != "p2p")

    def mode(self, folder, given, offers):
        """A storage server and the engine of a store; `offers`: it offers its pages."""
        port, own, metrics = harness.cluster.free_ports(3)
        sockets = [f"{folder}/{name}.{port}" for name in ("storage", "own")]
        engine = harness.program("engine/peercache-engine")
        server = subprocess.Popen(
            [sys.executable, "-m", MODULES["peercache-storage-server"], "--discovery-addr",
             f"127.0.0.1:{port}", "--local-hostname", "127.0.0.1", "--no-disk", "--protocol", "tcp",
             "--global-segment-size", "64mb", "--metrics-port", str(metrics), "--node-id",
             "storage"], stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": PACKAGE, "PEERCACHE_SOCKET": sockets[0],
                 "PEERCACHE_ENGINE": engine})
        self.addCleanup(server.wait)
        self.addCleanup(server.kill)
        one = store.PeerCacheStore(config((0, 5, 18), {
            "engine_socket": sockets[1], "discovery_addr": f"127.0.0.1:{port}", "node_id": "own",
            "local_hostname": "127.0.0.1", "protocol": "tcp", "metrics_enabled": False,
            "global_segment_size": "16mb", "engine_path": engine, **given,
            "engine_settings": {"cluster.port": str(own)}}), {})
        self.addCleanup(one.close)

        def ctl(*words):
            return json.loads(harness.run(
                [harness.program("tools/peercachectl"), "--socket", sockets[1], "--namespace", "s",
                 "--json", *words], capture_output=True, text=True).stdout)

        def holders(key):
            return {one["name"] for one in ctl("explain", key)["holders"]}
        harness.wait_for(lambda: len(ctl("members")["members"]) == 2 and
                         ctl("status")["figures"]["storage_hosts"] == offers, 60, "both hosts")
        session = _peercache.Session(sockets[1])
        keys = [f"page {n}" for n in range(300)]  # more than the own pool has room for
        base = session.alloc(65536)
        for key in keys:
            self.assertEqual(session.set("s", [key], [base], 65536, 20000), [True])
        session.release(base)
        session.close()
        if offers:
            harness.wait_for(lambda: holders(keys[0]) == {"storage"}, 60, "the first is evicted")
            harness.wait_for(lambda: holders(keys[-1]) == {"own", "storage"}, 60, "the last stays")
        else:  # old pages stay as long as none has come back
            self.assertEqual([holders(key) for key in (keys[0], keys[-50])], [{"own"}, set()])

    def test_peercache_meta_without_an_engine_says_so(self):
        done = harness.run([sys.executable, "-m", MODULES["peercache-meta"]], capture_output=True,
                           text=True, env={**os.environ, "PYTHONPATH": PACKAGE,
                                           "PEERCACHE_ENGINE": "/nonexistent"})
        self.assertEqual(done.returncode, 2)
        self.assertIn("give the path of peercache-engine", done.stderr)

    def test_a_wrong_value_is_refused(self):
        done = harness.run([sys.executable, "-m", MODULES["peercache-meta"], "--bind", "nonsense"],
                           capture_output=True, text=True,
                           env={**os.environ, "PYTHONPATH": PACKAGE})
        self.assertEqual(done.returncode, 2)
        self.assertIn("give host:port", done.stderr)

    def test_every_console_script_of_0_8_4_is_one_of_the_wheel(self):
        with open(os.path.join(ROOT, "pyproject.toml"), encoding="utf-8") as project:
            table = project.read().split("[project.scripts]\n")[1].split("\n\n")[0]
        scripts = [line.split(" = ")[0] for line in table.splitlines()]
        self.assertLessEqual(set(OLD), set(scripts) | {"peercache-bench"})


if __name__ == "__main__":
    unittest.main()
