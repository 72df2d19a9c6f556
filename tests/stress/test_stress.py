# SPDX-License-Identifier: Apache-2.0
"""One engine evicts and refills its pool continuously, and 4 threads read from another engine.

$PEERCACHE_READS: number of pages to read (default 1,000,000).
"""

import json
import os
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "cluster"))
import harness  # noqa: E402

READS = int(os.environ.get("PEERCACHE_READS", "1000000"))
POOL = ["engine.limbo_ms=0", "engine.huge_pages=no"]


class Stress(harness.ClusterTest):
    def read(self, settings, reads, *arguments, status=0):
        """Runs `readers` with two engines that have small pools; returns its counts."""
        engines = self.start(2, pool_bytes="4MiB", settings=POOL + settings)
        process = harness.tool("tests/stress/readers", "--reads", reads, *arguments,
                               sockets=engines.sockets)
        got, out, err = harness.finish(process, 400)
        self.assertEqual(got, status, out + err)
        print(out)
        self.stop_cleanly(engines)
        return json.loads(out)

    def test_a_read_that_overlaps_the_reuse_of_a_slot_is_never_a_hit(self):
        got = self.read([], READS)
        self.assertGreaterEqual(got["reads"], READS)
        self.assertEqual(got["wrong"], 0)
        self.assertEqual(got["other"], 0)
        self.assertGreater(got["stale"], 0, "no READ overlapped the reuse of a slot")
        self.assertGreater(got["hits"], READS // 10)

    def test_without_the_head_check_the_same_readers_find_wrong_pages(self):
        got = self.read(["test.skip_head_check=yes"], READS // 10)
        self.assertGreater(got["wrong"], 0, "the readers cannot detect wrong pages")


if __name__ == "__main__":
    unittest.main(verbosity=2)
