# SPDX-License-Identifier: Apache-2.0
"""The engine on libmlx5: the demo gives the same counts; a refused setting comes with a fix."""

import json
import os
import re
import socket
import struct
import subprocess
import sys
import tempfile
import unittest

import ports



def engine(options, *values, before=()):
    with tempfile.TemporaryDirectory() as d:
        program = os.path.join(ports.BUILD, "engine/peercache-engine")
        line = [*before, *ports.command(options, program)]
        for value in [f"engine.socket={d}/e.sock", "engine.pool_bytes=64MiB",
                      "engine.huge_pages=no", f"cluster.port={ports.cluster.free_port()}", *values]:
            line += ["--set", value]
        return subprocess.run(line, capture_output=True, text=True, timeout=30 * ports.SLOW)


class Refusals(unittest.TestCase):
    def refused(self, done, *words):
        self.assertEqual(done.returncode, 1, done.stderr)
        for word in words:
            self.assertIn(word, done.stderr)
        self.assertNotRegex(done.stderr, r"Sanitizer|Assertion|Segmentation")

    def test_a_device_that_does_not_exist_is_refused(self):
        self.refused(engine(["--devices", "2"], "rail.devices=mlx5_7"), "no NIC mlx5_7",
                     "mlx5_0", "mlx5_1")

    def test_a_port_that_is_down_is_refused(self):
        self.refused(engine(["--down", "mlx5_0"], "rail.devices=mlx5_0"), "not active (down)",
                     "check the cable")

    def test_a_gid_index_that_does_not_exist_or_has_another_type_is_refused(self):
        self.refused(engine([], "rail.devices=mlx5_0", "rail.gid_index=9"), "no GID at index 9",
                     "gid_index = -1")
        self.refused(engine(["--link", "roce"], "rail.devices=mlx5_0", "rail.gid_index=2"),
                     "not RoCE v2", "gid_index = -1")

    def test_memory_that_may_not_be_locked_is_refused(self):
        ports.need("setpriv", "prlimit")
        done = engine([], "rail.devices=mlx5_0", before=[
            "prlimit", "--memlock=65536", "setpriv", "--bounding-set", "-ipc_lock", "--inh-caps",
            "-ipc_lock"])
        self.refused(done, "RLIMIT_MEMLOCK is 64 KiB", "ulimit -l")

    def test_a_pool_larger_than_a_region_may_be_is_refused(self):
        self.refused(engine(["--mr-bytes", "1048576"], "rail.devices=mlx5_0"), "max_mr_size",
                     "smaller pool")


class Events(unittest.TestCase):
    def port(self, log, up):
        """Sets the port's link up or down: sends a datagram to the NIC that its GID names."""
        number = int(re.search(r"7c00:0:([0-9a-f]+) ", log)[1], 16)
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as s:
            s.sendto(struct.pack("<QII", 0x31736d2d78636f73, 3, up),  # struct uv_message
                     f"\0soft-connectx-{number}".encode())

    def test_a_port_that_loses_and_regains_its_link_is_reported(self):
        engines = ports.cluster.Cluster(ports.BUILD, 1, pool_bytes="64MiB", device="mlx5")
        self.addCleanup(engines.stop)
        engines.start()
        self.port(engines.log(0), 0)
        engines.wait("the port's loss", lambda: "port 1 lost its link" in engines.log(0))
        self.port(engines.log(0), 1)
        engines.wait("the port's return", lambda: "has its link again" in engines.log(0))


class Demo(unittest.TestCase):
    def demo(self, device):
        with tempfile.NamedTemporaryFile(suffix=".json") as out:
            done = subprocess.run(
                [sys.executable, os.path.join(ports.ROOT, "tools", "demo"), "--no-install",
                 "--requests", "300", "--device", device, "--json", out.name], text=True,
                env={**os.environ, "PEERCACHE_BUILD": ports.BUILD}, capture_output=True,
                timeout=240 * ports.SLOW)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            with open(out.name) as f:
                return json.load(f), done.stdout

    def test_the_demo_counts_the_same_as_on_the_engine_s_own_queues(self):
        soft, said_soft = self.demo("soft")
        mlx5, said_mlx5 = self.demo("mlx5")
        lines = [[x for x in said.splitlines() if x.startswith(("requests", "sets", "wrong"))]
                 for said in (said_soft, said_mlx5)]
        self.assertEqual(lines[0][:2], lines[1][:2])
        self.assertIn("wrong pages 0", lines[1][2])
        self.assertEqual(soft.keys(), mlx5.keys())


if __name__ == "__main__":
    unittest.main(verbosity=2)
