# SPDX-License-Identifier: Apache-2.0
"""Pages set on one engine and read by another: exact counts, right bytes, over every link."""

import os

import harness


class Replay(harness.ClusterTest):
    def check(self, engines, *arguments):
        expected = self.describe(*arguments)
        got = self.replay(engines, *arguments)
        self.assertEqual(got["requests"], expected["requests"])
        self.assertEqual(got["blocks"], expected["blocks"])
        self.assertEqual(got["hits"], expected["prefix_hits"])
        self.assertEqual(got["sets"], expected["different_blocks"])
        for nothing in ("wrong", "late", "sets_failed", "stale", "evictions", "timeouts"):
            self.assertEqual(got[nothing], 0, nothing)
        self.assertEqual(got["hits_local"] + got["hits_remote"], got["hits"])
        self.assertGreater(got["hits_remote"], 0)
        return got

    def test_two_engines_hit_exactly_the_pages_stored_before(self):
        engines = self.start(2, pool_bytes="256MiB")
        self.check(engines, "--requests", 600)
        self.stop_cleanly(engines)

    def test_four_engines_look_up_through_each_other(self):
        engines = self.start(4, pool_bytes="128MiB")
        self.check(engines, "--requests", 400)
        reads = sum(engines.status(i)["rails"][0]["counters"]["buckets_read"] for i in range(4))
        self.assertGreater(reads, 0, "directory buckets are read one-sidedly")
        self.stop_cleanly(engines)

    def test_two_engines_work_over_tcp(self):
        engines = self.start(2, pool_bytes="256MiB", link="tcp")
        self.check(engines, "--requests", 300)
        self.stop_cleanly(engines)

    def test_memory_that_the_engine_cannot_map_is_read_through_staging(self):
        engines = self.start(2, pool_bytes="128MiB")
        got = self.check(engines, "--requests", 200, "--private-memory")
        self.assertEqual(got["get_bytes_staged"] > 0, True)
        self.stop_cleanly(engines)

    def test_odd_page_sizes_work(self):
        for page_bytes in (1, 4097, 70272, 1540096):
            with self.subTest(page_bytes=page_bytes):
                engines = self.start(2, pool_bytes="512MiB")
                self.check(engines, "--requests", 40, "--page-bytes", page_bytes)
                self.stop_cleanly(engines)

    def test_the_published_trace_gives_its_known_counts(self):
        if not os.path.exists(harness.TRACE):
            self.skipTest(f"no {harness.TRACE}")
        engines = self.start(4, pool_bytes="256MiB")
        got = self.check(engines, "--trace", harness.TRACE, "--requests", 1000)
        self.assertEqual((got["blocks"], got["hits"]), (27305, 5791))
        self.stop_cleanly(engines)

    def test_engines_work_in_separate_network_namespaces(self):
        if os.geteuid():
            self.skipTest("network namespaces need root")
        engines = self.start(2, pool_bytes="256MiB", link="tcp", netns=True)
        self.check(engines, "--requests", 300)
        self.stop_cleanly(engines)


class Eviction(harness.ClusterTest):
    def test_a_pool_that_is_too_small_only_loses_hits(self):
        arguments = ("--requests", 800, "--page-bytes", 16384)
        expected = self.describe(*arguments)
        quarter = expected["different_blocks"] * 16384 // 8
        engines = self.start(2, pool_bytes=quarter)
        got = self.replay(engines, *arguments)
        self.assertGreater(got["evictions"], 0)
        self.assertLess(got["hits"], expected["prefix_hits"])
        self.assertGreater(got["hits"], 0)
        self.assertEqual((got["wrong"], got["late"]), (0, 0))
        self.stop_cleanly(engines)

    def test_page_sizes_share_one_pool(self):
        engines = self.start(2, pool_bytes="32MiB")
        for page_bytes in (4096, 8192, 4096, 262144, 65536, 4096, 1 << 20):
            got = self.replay(engines, "--requests", 60, "--page-bytes", page_bytes,
                              "--namespace", f"size{page_bytes}")
            self.assertEqual((got["wrong"], got["late"]), (0, 0))
            self.assertEqual(got["sets_failed"], 0, page_bytes)
        self.stop_cleanly(engines)


if __name__ == "__main__":
    harness.main()
