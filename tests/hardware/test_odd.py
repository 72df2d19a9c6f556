# SPDX-License-Identifier: Apache-2.0
"""Two engines over pretended ConnectX whose ports are as users have them, or differ from what the
code assumes (tests/connectx/odd.c): pages are read beside evictions, and none is wrong.

$PEERCACHE_READS: pages to read in each (5,000); with more than 100,000 some differ alone, too.
"""

import json
import os
import sys
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path[:0] = [os.path.join(ROOT, "tests", "cluster")]
import harness  # noqa: E402

READS = int(os.environ.get("PEERCACHE_READS", "5000"))
SECONDS = 900  # in which the pages are read
TRIES = 5  # runs until chance gives a wrong page
LEASE, CRC = "rail.validate=lease", "rail.validate=crc"
# odd ports, and what the engines need for them: the pages are right with it
PORTS = [
    ("vlan,bond", ["rail.devices=mlx5_bond_0"]),
    ("gids,mtu,qps", ["rail.devices=mlx5_0,mlx5_1"]),
    ("nobf,syndrome,relaxed,torn,order", [LEASE]), ("tail,stale,torn,order,relaxed", [CRC])]
if READS > 100000:
    PORTS += [("order", [LEASE]), ("tail", [CRC]), ("stale", [CRC])]


class Engines(harness.cluster.Cluster):
    def __init__(self, odd, settings):
        super().__init__(harness.BUILD, 2, device="mlx5", pool_bytes="4MiB",
                         settings=harness.patient(["engine.huge_pages=no", *settings]))
        self.before += ["--link", "roce", "--devices", "2", "--odd", odd]


class Odd(harness.ClusterTest):
    def read(self, odd, settings, reads=READS):
        engines = Engines(odd, settings)
        self.addCleanup(engines.stop)
        engines.start()
        status, out, err = harness.finish(harness.tool(
            "tests/stress/readers", "--reads", reads, "--seconds", SECONDS,
            sockets=engines.sockets), SECONDS + 100)
        self.assertEqual(status, 0, out + err + engines.log(1)[-2000:])
        print(odd, *settings, out.strip(), flush=True)
        self.stop_cleanly(engines)
        return json.loads(out)

    def test_pages_are_right_on_every_port(self):
        for odd, settings in PORTS:
            with self.subTest(odd):
                got = self.read(odd, settings)
                self.assertEqual(got["wrong"], 0)
                self.assertGreater(got["hits"], READS // 20)

    def test_without_the_fallback_a_late_line_gives_wrong_pages(self):
        for _ in range(TRIES):
            got = self.read("tail", [LEASE], max(READS, 20000))
            if got["wrong"]:
                break
        self.assertGreater(got["wrong"], 0, "the readers cannot detect wrong pages")


if __name__ == "__main__":
    unittest.main(verbosity=2)
