# SPDX-License-Identifier: Apache-2.0
"""perf/saturate.py over real engines with modelled rails: it runs, and its figures are plausible.
No speed is asserted, but no modelled rail may be faster than its port."""

import json
import os
import sys

import harness

sys.path.insert(0, os.path.join(harness.ROOT, "perf"))
import bench  # noqa: E402


class Saturate(harness.ClusterTest):
    def test_a_quick_run_marks_its_modelled_figures(self):
        done = harness.run(
            [sys.executable, os.path.join(harness.ROOT, "perf", "saturate.py"), "--quick",
             "--json", "/dev/stderr"], text=True, capture_output=True,
            seconds=300,
            env={**os.environ, "PEERCACHE_BUILD": harness.BUILD, "PEERCACHE_SATURATE_S": "0.1"})
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        result = json.loads(done.stderr[done.stderr.index("{"):done.stderr.rindex("}") + 1])
        self.assertIsNone(bench.check(result))
        self.assertTrue(result["modelled"])
        figures = {f["name"]: f for f in result["figures"]}
        for name, figure in figures.items():
            self.assertGreater(figure["value"], 0, name)
            self.assertTrue("modelled" in figure["text"] or "real bytes" in name, name)
        ratio = next(f for n, f in figures.items() if n.endswith("/ ceiling"))
        self.assertLess(ratio["value"], 1.1)  # margin for preemption by other tests
        for rails in (4, 8):  # the headline is never more than the client could request
            stream = {n: f for n, f in figures.items() if n.startswith(f"{rails} x 400G, 128 KiB")}
            both = next(f for n, f in stream.items() if "min(poll cores, client thread)" in n)
            poll = next(f for n, f in stream.items() if "poll cores alone / ceiling" in n)
            page_ns = next(f for n, f in stream.items() if "client's thread for a page" in n)
            client = (128 << 10) / page_ns["value"] / (rails * 49.0)
            self.assertLessEqual(both["value"], min(poll["value"], client) * 1.001)
            self.assertIn("charged", both["text"])
            self.assertTrue(any("bare loop / ceiling" in n for n in stream))
        alone = next(f for n, f in figures.items() if "a lone batch" in n)
        self.assertGreater(alone["value"], 1.0)

    def test_engines_log_once_that_their_rails_are_modelled(self):
        engines = self.start(1, settings=["rail.devices=soft,soft", "soft.model=200G,still"])
        for rail in engines.status(0)["rails"]:
            self.assertEqual((rail["modelled"], rail["figures"]["rail_link_bytes_per_second"]),
                             (True, 25e9))
        self.assertEqual(engines.log(0).count("MODELLED"), 1)
        self.assertIn("WRONG BYTES", engines.log(0))
        self.stop_cleanly(engines)

    def test_bytes_are_right_over_a_modelled_link(self):
        engines = self.start(2, settings=["rail.devices=soft,soft", "soft.model=400G,rtt=50us"])
        for more in ([], ["--threads", 2, "--processes"]):
            status, out, err = harness.finish(harness.tool(
                "perf/stream", "--page-bytes", 300000, "--pages", 64, "--seconds", "0.5",
                "--verify", *more, sockets=engines.sockets))
            self.assertEqual(status, 0, out + err)
            self.assertEqual(json.loads(out)["wrong"], 0)
            self.assertGreater(json.loads(out)["pages_per_s"], 0)
        self.stop_cleanly(engines)


if __name__ == "__main__":
    harness.main()
