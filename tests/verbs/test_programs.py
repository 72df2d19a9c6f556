# SPDX-License-Identifier: Apache-2.0
"""Third-party programs run on the software NIC: rdma-core's examples and perftest."""

import os
import re
import subprocess
import unittest

import ports

TESTS = ["ib_read_bw", "ib_write_bw", "ib_read_lat", "ib_write_lat"]
QUICK_CLOCK = ports.cluster.find_program(ports.BUILD, "tests/verbs/libquick_clock.so")
ports.need("ibv_devinfo", *TESTS)


class Examples(unittest.TestCase):
    def test_devinfo_shows_every_requested_port(self):
        done = ports.run(["--devices", "4", "--down", "mlx5_2", "--gbits", "400,100"],
                         "ibv_devinfo", "-v")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(len(re.findall(r"hca_id:\s+mlx5_[0-3]", done.stdout)), 4)
        self.assertEqual(len(re.findall("PORT_ACTIVE", done.stdout)), 3)
        self.assertEqual(len(re.findall("PORT_DOWN", done.stdout)), 1)
        self.assertEqual(len(re.findall(r"25.0 Gbps \(32\)", done.stdout)), 3)

    def test_devinfo_fails_for_a_device_that_does_not_exist(self):
        self.assertNotEqual(ports.run([], "ibv_devinfo", "-d", "mlx5_9").returncode, 0)


class Readmes(unittest.TestCase):
    """Runs every soft-connectx command of the READMEs as it is written there."""

    def test_every_command_of_the_readmes_runs(self):
        lines = set()
        for name in ("README.md", "tests/connectx/README.md"):
            with open(os.path.join(ports.ROOT, name), encoding="utf-8") as readme:
                lines |= {line.split("   #")[0].strip() for line in readme
                          if line.startswith("    tools/soft-connectx") and "COMMAND" not in line}
        self.assertTrue(any("ib_read_bw" in line for line in lines), lines)
        env = {k: v for k, v in os.environ.items() if k != "SOFT_CONNECTX_LIBRARY"}
        for line in lines:
            with self.subTest(line=line):
                done = subprocess.run(line, shell=True, cwd=ports.ROOT, env=env, text=True,
                                      capture_output=True, timeout=120 * ports.SLOW)
                self.assertEqual(done.returncode, 0, done.stdout + done.stderr)


class Perftest(unittest.TestCase):
    """Checks only the exit status: the measured values depend on this machine's scheduler."""

    def good(self, options, *arguments):
        env = {**os.environ, "LD_PRELOAD": QUICK_CLOCK}
        for test in TESTS:
            if (test.endswith("_lat") and "-q" in arguments or
                    test != "ib_read_bw" and "-e" in arguments):
                continue  # this program does not have this option
            with self.subTest(test=test):
                client, server, said = ports.pair(options, test, "-F", *arguments, env=env)
                self.assertEqual((client, server), (0, 0), said)

    def test_perftest_runs_on_one_queue_pair(self):
        self.good([], "-n", 500)

    def test_perftest_runs_on_four_queue_pairs(self):
        self.good([], "-n", 200, "-q", 4)

    def test_perftest_runs_with_events_of_the_completion_queue(self):
        self.good([], "-n", 200, "-e")

    def test_perftest_runs_with_every_size_up_to_8_MiB(self):
        self.good([], "-n", 20, "-a")

    def test_perftest_runs_over_roce(self):
        self.good(["--link", "roce"], "-n", 200, "-x", 3)


if __name__ == "__main__":
    unittest.main(verbosity=2)
