# SPDX-License-Identifier: Apache-2.0
"""Memory registered in extents of 64 KiB: pages that cross the ends of extents arrive whole."""

import json
import unittest

import harness

KIB = 1024
EXTENT = 64 * KIB
PAGES = [(4 * KIB, 1), (20 * KIB, 1), (72 * KIB, 1), (128 * KIB, 1), (1000 * KIB, 1),
         (20 * KIB, 7), (72 * KIB, 16), (1000 * KIB, 61)]  # bytes, segments
BYTES = 16 << 20


class Extents(harness.ClusterTest):
    def read(self, **options):
        engines = self.start(2, pool_bytes="512MiB", settings=[f"rail.mr_bytes={EXTENT}"],
                             **options)
        for size, segments in PAGES:
            pages = BYTES // size
            process = harness.tool("tests/cluster/staged", "--registered", "--page-bytes", size,
                                   "--pages", pages, "--segments", segments,
                                   "--batch", 1, "--batch", 32, sockets=engines.sockets)
            status, out, err = harness.finish(process)
            self.assertEqual(status, 0, out + err)
            report = json.loads(out)
            self.assertEqual(report.pop("extents"), -(-pages * size // EXTENT))
            for batch, got in report.items():
                with self.subTest(size=size, segments=segments, batch=batch):
                    self.assertEqual(got, {"hit": pages, "wrong": 0, "bytes_staged": 0})
            # The engine deregisters the extents after the process has closed its session.
            harness.wait_for(lambda: engines.figure(1, "client_extents") == 0, 20,
                             "all extents are deregistered")
        counters = engines.status(1)["rails"][0]["counters"]
        self.assertEqual(counters["ops_invalid"], 0)
        self.assertEqual(counters["cqes_error"], 0)
        self.stop_cleanly(engines)

    def test_pages_across_the_ends_of_extents_arrive_whole(self):
        self.read()

    @unittest.skipIf(harness.SLOW > 1, "a sanitizer and the interposer cannot both come first")
    def test_pages_across_the_ends_of_extents_arrive_whole_through_libmlx5(self):
        self.read(device="mlx5")


if __name__ == "__main__":
    harness.main()
