# SPDX-License-Identifier: Apache-2.0
"""perf/run over real engines: one benchmark, its results and the report. No speed is asserted."""

import json
import os
import tempfile
import unittest

import harness


class Perf(unittest.TestCase):
    def test_a_quick_run_writes_results_and_a_report(self):
        with tempfile.TemporaryDirectory(prefix="peercache-perf-") as out:
            done = harness.run(
                [os.path.join(harness.ROOT, "perf", "run"), "--quick", "--only", "calls",
                 "--no-install", "--out", out, "--json", "-"], text=True, capture_output=True,
                seconds=300,
                env={**os.environ, "PEERCACHE_BUILD": harness.BUILD,
                     "PEERCACHE_CALLS": "remote get"})
            self.assertEqual(done.returncode, 0, done.stderr)
            results = json.loads(done.stdout)
            self.assertEqual([(r["name"], r["status"]) for r in results["benches"]],
                             [("calls", "ok")])
            figures = results["benches"][0]["result"]["figures"]
            self.assertTrue(all(figure["value"] > 0 for figure in figures), figures)
            with open(os.path.join(out, "report.html")) as f:
                self.assertIn("remote get, 128 KiB, batch 32", f.read())


if __name__ == "__main__":
    harness.main()
