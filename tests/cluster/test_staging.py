# SPDX-License-Identifier: Apache-2.0
"""Reads pages of another host into unregistered memory: each is a hit with the right bytes."""

import json

import harness

KIB = 1024
SIZES = [4 * KIB, 8 * KIB, 16 * KIB, 20 * KIB, 32 * KIB, 64 * KIB, 72 * KIB, 128 * KIB]
BATCHES = [1, 16, 32, 64, 128, 1024]
BYTES = 32 << 20  # read per page size; several times the size of the staging region


class Staging(harness.ClusterTest):
    def test_every_page_is_a_hit_at_every_size_and_batch(self):
        self.read("8MiB", SIZES)

    def test_the_setting_sizes_it(self):
        for staging, size in (("4MiB", 128 * KIB), ("64MiB", 3000 * KIB)):
            self.read(staging, [size])

    def read(self, staging, sizes):
        engines = self.start(2, pool_bytes="512MiB", settings=[f"engine.staging_bytes={staging}"])
        for size in sizes:
            pages = BYTES // size
            process = harness.tool("tests/cluster/staged", "--page-bytes", size, "--pages", pages,
                                   *[x for n in BATCHES for x in ("--batch", n)],
                                   sockets=engines.sockets)
            status, out, err = harness.finish(process)
            self.assertEqual(status, 0, out + err)
            report = json.loads(out)
            self.assertEqual(report.pop("extents"), 0)
            for batch, got in report.items():
                with self.subTest(size=size, batch=batch):
                    self.assertEqual(got, {"hit": pages, "wrong": 0, "bytes_staged": pages * size})
        self.assertEqual(engines.status(1)["rails"][0]["counters"]["ops_invalid"], 0)
        self.stop_cleanly(engines)


if __name__ == "__main__":
    harness.main()
