# SPDX-License-Identifier: Apache-2.0
"""Compares the speed of the Python API with the C API, against the same two engines.

By default the test runs one round and prints the rates. With $PEERCACHE_SPEED=1, on a machine
without other load, it runs several rounds and requires minimum rates. C and Python alternate, and
the best round of each is compared, because other programs may disturb a round.
"""

import json
import os
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))),
                                "cluster"))
import harness  # noqa: E402

STRICT = os.environ.get("PEERCACHE_SPEED") == "1"
ROUNDS = 4 if STRICT else 1


class Speed(harness.ClusterTest):
    def bench(self, engines, *arguments):
        """Pages per second of one run of peercache-bench, which must read correct pages only."""
        process = harness.tool("tools/peercache-bench", *arguments, "--seconds", 1,
                               "--no-baseline", "--working-set", "128MiB",
                               "--seed", 7, "--json", "-", sockets=engines.sockets)
        status, out, err = harness.finish(process)
        self.assertEqual(status, 0, out + err)
        got = json.loads(out[out.index("{"):])
        self.assertEqual((got["wrong"], got["misses"]), (0, 0))
        return got["pages_per_second"]

    def rate(self, what, least, *arguments):
        """Measures the Python API; in a strict run, the rate must be at least `least` pages/s."""
        engines = self.start(2, pool_bytes="1GiB")
        best = 0
        for _ in range(2 * ROUNDS if STRICT else 1):
            best = max(best, self.bench(engines, *arguments, "--api", "python"))
            if best >= least:
                break
        print(f"{what}: {best:.0f}/s", file=sys.stderr)
        if STRICT:
            self.assertGreaterEqual(best, least)

    def test_128_kib_mla_pages_are_read_as_fast_as_by_the_c_api(self):
        engines = self.start(2, pool_bytes="1GiB")
        arguments = ("get", "--page-bytes", "128KiB", "--batch", 32, "--threads", 1)
        rates = {"c": [], "python": []}
        for _ in range(ROUNDS):
            for api, seen in rates.items():
                seen.append(self.bench(engines, *arguments, "--api", api))
        ratio = max(rates["python"]) / max(rates["c"])
        print(f"128 KiB, 32 a call: C {max(rates['c']):.0f}, Python {max(rates['python']):.0f} "
              f"pages/s, ratio {ratio:.2f}", file=sys.stderr)
        if STRICT:
            self.assertGreaterEqual(ratio, 0.9)

    def test_4_kib_pages_are_read_at_the_minimum_rate(self):
        self.rate("4 KiB pages, 128 a call", 100000, "get", "--page-bytes", "4KiB",
                  "--batch", 128)

    def test_keys_are_looked_up_at_the_minimum_rate(self):
        self.rate("exists, 128 keys a call", 1000000, "exists", "--page-bytes", "4KiB",
                  "--batch", 128)


if __name__ == "__main__":
    unittest.main()
