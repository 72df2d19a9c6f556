# SPDX-License-Identifier: Apache-2.0
"""peercache-bench with --api python: SGLang's class is measured as the C program measures the
library. The runs are short, and no test asserts on speed."""

import json
import os
import signal
import sys
import unittest
from unittest import mock

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path[:0] = [os.path.join(ROOT, "tests", "cluster"),
                os.path.join(os.environ.get("PEERCACHE_BUILD", ""), "engine/client/python")]
import harness  # noqa: E402
from peercache.bench import calls, options  # noqa: E402
from peercache.bench.histogram import Histogram  # noqa: E402

OWN = {"api", "shape", "bytes_staged"}  # what the C program's JSON does not have
SMALL = ["--page-bytes", "8KiB", "--working-set", "2MiB", "--batch", 16, "--seconds"]


class Calls(harness.ClusterTest):
    def bench(self, engines, *words):
        process = harness.tool("tools/peercache-bench", *words, sockets=engines.sockets)
        self.addCleanup(process.communicate)
        self.addCleanup(process.kill)
        return process

    def done(self, engines, *words, expect=0):
        """The report of a run, which leaves no page."""
        status, out, err = harness.finish(self.bench(engines, *words, "--json", "-"))
        self.assertEqual(status, expect, out + err)
        self.assertEqual([engines.figure(i, "pages") for i in range(2)], [0, 0])
        return json.loads(out[out.index("{"):])

    def test_all_calls_are_measured_and_the_report_is_that_of_the_c_program(self):
        engines = self.start(2, pool_bytes="64MiB")
        for op in options.OPS:
            names = set(self.done(engines, op, "--no-baseline", *SMALL, 1)) - {
                "memcpy_gbps", "memcpy_ratio", "version", "json_version"}
            for shape, threads in (("mla", 1), ("mha", 3)):
                with self.subTest(op=op, shape=shape):
                    got = self.done(engines, op, "--api", "python", "--shape", shape,
                                    "--threads", threads, *SMALL, "0.3")
                    self.assertEqual(set(got) - OWN, names)
                    self.assertEqual((got["misses"], got["wrong"], got["missed_calls"]), (0, 0, 0))
                    self.assertGreater(got["pages_per_second"], 0)
                    self.assertEqual(got["hits_remote"] > 0, "get" in op)
                    self.assertEqual(got["hits_local"], 0)
                    shares = [got[f"{name}_us"] for name in ("p50", "p95", "p99", "p999", "max")]
                    self.assertEqual(shares, sorted(shares))
        self.stop_cleanly(engines)

    def test_a_wrong_page_is_status_1(self):
        engines = self.start(1, pool_bytes="64MiB")
        given = options.parse(["get", "--sockets", engines.sockets[0], "--page-bytes", "4096",
                               "--working-set", "1MiB", "--seconds", "0.1"])
        right = calls.HostPool.mark
        with mock.patch.object(
                calls.HostPool, "mark", lambda pool, page, number: right(pool, page, number + 1)), \
                mock.patch("signal.signal"):
            self.assertEqual(calls.run(given), 1)
        self.stop_cleanly(engines)

    def test_ctrl_c_ends_it_with_what_it_has(self):
        engines = self.start(1, pool_bytes="64MiB")
        process = self.bench(engines, "get", "--api", "python", *SMALL, 600)
        harness.wait_for(lambda: engines.status(0)["calls"]["get"]["batches"] > 100, 60,
                         "it measures")
        process.send_signal(signal.SIGINT)
        status, out, err = harness.finish(process, 30)
        self.assertEqual(status, 0, out + err)
        self.assertRegex(out, r"get \(Python, mla\): 8192-byte pages, .* [1-9]\d* pages/s")
        self.assertIn("ending with what it has", err)
        self.assertEqual(engines.figure(0, "pages"), 0)
        self.stop_cleanly(engines)

    def test_a_pool_that_is_too_small_ends_it_with_the_reason(self):
        engines = self.start(1, pool_bytes="16MiB")
        status, out, err = harness.finish(self.bench(
            engines, "get", "--api", "python", "--page-bytes", "16MiB", "--batch", 1,
            "--working-set", "1GiB"))
        self.assertEqual(status, 2, out)
        self.assertIn("raise engine.pool_bytes or lower --working-set", err)
        self.stop_cleanly(engines)


class Command(unittest.TestCase):
    def run_it(self, *words):
        done = harness.run([harness.program("tools/peercache-bench"), *words],
                           capture_output=True, text=True)
        return done.returncode, done.stdout + done.stderr

    def test_each_part_of_the_program_has_its_help(self):
        status, said = self.run_it("--help")
        self.assertEqual(status, 0)
        for command in (*options.OPS, "remove", "serve", "served", "policy"):
            self.assertRegex(said, rf"(?m)^  {command} ")
        for command in options.OPS:
            status, said = self.run_it(command, "--api", "python", "--help")
            self.assertEqual(status, 0, said)
            self.assertRegex(said, rf"^usage: peercache-bench {command} ")
        self.assertRegex(self.run_it("served", "--help")[1],
                         r"^usage: .*\n\nReports are left in ./peercache-bench-results, ")

    def test_wrong_usage_is_status_2(self):
        for words, text in ((["nonsense"], '"nonsense" is not a command'),
                            (["get", "--api", "java"], "give c or python"),
                            (["get", "--api", "python", "--threads", "17"], "17"),
                            (["get", "--api", "python", "--page-bytes", "1GiB"],
                             "give 1 to 67108864 bytes"),
                            (["get", "--present"], "--present is an option of set"),
                            (["set", "--absent"], "--absent is an option of get and exists"),
                            (["set", "--stored"], "--stored is an option of get, exists")):
            status, said = self.run_it(*words)
            self.assertEqual(status, 2, said)
            self.assertIn(text, said)


class Times(unittest.TestCase):
    def test_percentiles_are_exact_within_a_bucket(self):
        one, other = Histogram(), Histogram()
        for ns in range(1, 1001):
            (one if ns % 2 else other).add(1000 * ns)
        both = one + other
        self.assertEqual((both.total, both.max_ns), (1000, 10 ** 6))
        for share in (.5, .95, .99):
            self.assertAlmostEqual(both.us(share) / (1000 * share), 1, delta=0.01)
        self.assertEqual(Histogram().us(.5), 0)


if __name__ == "__main__":
    unittest.main()
