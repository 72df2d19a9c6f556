# SPDX-License-Identifier: Apache-2.0
"""Programs of PeerCache 0.8 that have no successor of their own print the engine's line that means
the same, which the engine accepts. programs-0.8.4.json has their names and flags.
"""

import contextlib
import io
import json
import os
import shlex
import subprocess
import sys
import tomllib
import unittest
from unittest import mock

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PACKAGE = os.path.join(os.environ.get("PEERCACHE_BUILD", ""), "engine/client/python")
sys.path[:0] = [os.path.join(ROOT, "tests", "cluster"), PACKAGE]
import harness  # noqa: E402
from peercache import former  # noqa: E402

with open(os.path.join(ROOT, "tests", "python", "programs-0.8.4.json"), encoding="utf-8") as file:
    OLD = json.load(file)["console_scripts"]
MODULES = {"peercache-meta": "peercache.examples.launch_meta",
           "peercache-storage-server": "peercache.examples.launch_storage"}
NEEDED = {"peercache-storage-server": ["--discovery-addr", "10.0.0.1:31998", "--protocol", "tcp"]}
VALUES = {"--bind": "0.0.0.0:31998", "--member-ttl": "6.0", "--discovery-addr": "10.0.0.2:31998",
          "--global-segment-size": "64mb", "--disk-path": "/data/peercache/", "--disk-size":
          "100gb", "--protocol": "tcp", "--metrics-port": "31997"}
FLAGS = ("--verbose", "--no-disk")


class Former(unittest.TestCase):
    def replaced(self, program, *words):
        """The settings of the engine's line that the program prints."""
        done = harness.run([sys.executable, "-m", MODULES[program], *words], capture_output=True,
                           text=True, env={**os.environ, "PYTHONPATH": PACKAGE})
        self.assertEqual(done.returncode, 2, done.stderr)
        return self.settings(done.stderr)

    def settings(self, said):
        """The settings of the engine's line in what a program printed."""
        line = next((text for text in said.splitlines()
                     if text.startswith("    peercache-engine")), None)
        self.assertTrue(line, said)
        return dict(word.split("=", 1) for word in shlex.split(line)[2::2])

    def checked(self, settings):
        """Does the engine accept the settings, without what must exist on this host?"""
        settings = {**settings, "cluster.address": "127.0.0.1", "cluster.bind": "",
                    "disk.paths": "", "metrics.port": 0}
        command = [harness.program("engine/peercache-engine"), "--check"]
        for name, value in settings.items():
            command += ["--set", f"{name}={value}"]
        done = harness.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.assertEqual(done.returncode, 0, done.stdout)

    def test_every_flag_gives_a_line_that_the_engine_accepts(self):
        for program in MODULES:
            for flag in OLD[program]:
                words = [flag] if flag in FLAGS else [flag, VALUES.get(flag, "soft")]
                with self.subTest(program=program, flag=flag):
                    self.checked(self.replaced(program, *NEEDED.get(program, []), *words))

    def test_the_settings_are_those_that_the_flags_mean(self):
        got = self.replaced("peercache-meta", "--bind", "0.0.0.0:4000", "--member-ttl", "6")
        self.assertEqual((got["cluster.bind"], got["cluster.port"], got["cluster.dead_after_ms"]),
                         ("0.0.0.0", "4000", "6000"))
        got = self.replaced(
            "peercache-storage-server", "--discovery-addr", "10.0.0.1:31998", "--device-names",
            "mlx5_0,mlx5_1", "--global-segment-size", "64gb", "--disk-path", "/data/a", "--node-id",
            "a", "--metrics-port", "4001", "--local-hostname", "10.0.0.9", "--verbose")
        for name, value in {
                "cluster.seeds": "10.0.0.1:31998", "rail.devices": "mlx5_0,mlx5_1",
                "engine.pool_bytes": str(32 << 30), "disk.paths": "/data/a", "engine.name": "a",
                "disk.bytes": str(100 << 30), "metrics.port": "4001", "log.level": "debug",
                "cluster.address": "10.0.0.9"}.items():
            self.assertEqual(got[name], value, name)

    def test_the_line_of_peercache_meta_fits_the_ports_of_the_host(self):
        for devices, link in ((["soft"], "tcp"), (["mlx5_0"], None)):
            said = io.StringIO()
            with mock.patch.object(former.config, "rails", return_value=devices), \
                    contextlib.redirect_stderr(said):
                self.assertEqual(former.meta([]), 2)
            got = self.settings(said.getvalue())
            self.assertEqual((got["rail.devices"], got.get("soft.link")), (devices[0], link))
            self.assertRegex(said.getvalue(), r'"tcp", a host\s+with a NIC needs rail.devices=soft')

    def test_a_wrong_value_is_refused(self):
        done = harness.run([sys.executable, "-m", MODULES["peercache-meta"], "--bind", "nonsense"],
                           capture_output=True, text=True,
                           env={**os.environ, "PYTHONPATH": PACKAGE})
        self.assertEqual(done.returncode, 2)
        self.assertIn("give host:port", done.stderr)

    def test_every_console_script_of_0_8_4_is_one_of_the_wheel(self):
        with open(os.path.join(ROOT, "pyproject.toml"), "rb") as project:
            scripts = tomllib.load(project)["project"]["scripts"]
        self.assertEqual(set(scripts) | {"peercache-bench"}, set(OLD))  # that one is a C program


if __name__ == "__main__":
    unittest.main()
