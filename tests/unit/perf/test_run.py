# SPDX-License-Identifier: Apache-2.0
"""perf/run with fake benchmarks: the files it writes, and what it reports about those that fail."""

import contextlib
import importlib.machinery
import importlib.util
import io
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
RUN = os.path.join(ROOT, "perf", "run")
PLENTY_SECONDS = 120

HEAD = f"import sys; sys.path.insert(0, {os.path.join(ROOT, 'perf')!r}); import bench\n"
GOOD = HEAD + """
options = bench.parse("a benchmark")
r = bench.Result("good")
r.figure("turns", 213.0, "ns", "median of 9")
r.figure("ratio", 1.2, "ratio", goal=("<=", 1.5))
r.figure("rate", 3, "M/s", goal=(">=", 8))
r.series("s", "a plot", "rails", "GB/s", [1, 2, 4], {"engine": [1, 2, None], "ceiling": [1, 2, 4]})
r.note("quick" if options.quick else "long")
r.write(options.json)
"""
MODELLED = HEAD + """
options = bench.parse("a benchmark")
r = bench.Result("modelled", modelled=True)
r.figure("all rails", 380.5, "GB/s", "8 rails, modelled", goal=(">=", 380))
r.series("s", "fill", "rails", "GB/s", [1, 8], {"engine": [48, 380]})
r.write(options.json)
"""
FAKES = {
    "good": GOOD,
    "modelled": MODELLED,
    "fails": "print('the cause of the failure'); raise SystemExit(3)",
    "silent": "",
    "nonsense": "import sys; open(sys.argv[2], 'w').write('{\"name\": \"x\", \"modelled\": 0}')",
    "lacks": "print('this machine has no NIC'); raise SystemExit(77)",
    "leaves": GOOD + "import subprocess; subprocess.Popen(['sleep', '600'])\n",
    "waits": "import sys, time\nprint('waiting', flush=True)\ntime.sleep(600)",
}


def load():
    loader = importlib.machinery.SourceFileLoader("perf_run", RUN)
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("perf_run", loader))
    sys.dont_write_bytecode = True
    loader.exec_module(module)
    return module


class Folder(unittest.TestCase):
    """A folder of fake benchmarks; call() runs perf/run on it."""

    @classmethod
    def setUpClass(cls):
        cls.dir = tempfile.TemporaryDirectory(prefix="peercache-perf-")
        cls.addClassCleanup(cls.dir.cleanup)
        cls.out = os.path.join(cls.dir.name, "out")
        for name, text in FAKES.items():
            cls.fake(name, text)
        cls.run_module = load()
        cls.run_module.cluster.make_build = lambda **_: cls.dir.name

    @classmethod
    def fake(cls, name, text):
        with open(os.path.join(cls.dir.name, name + ".py"), "w") as f:
            f.write(text)

    @classmethod
    def call(cls, *names):
        arguments = ["--no-install", "--quick", "--out", cls.out, "--only", ",".join(names)]
        with contextlib.redirect_stderr(io.StringIO()):
            status = cls.run_module.main(arguments, {n: f"the {n}" for n in FAKES}, cls.dir.name)
        with open(os.path.join(cls.out, "results.json")) as f:
            results = json.load(f)
        with open(os.path.join(cls.out, "report.html")) as f:
            report = f.read()
        return status, {row["name"]: row for row in results["benches"]}, results, report


class Report(Folder):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        names = [name for name in FAKES if name != "waits"]
        cls.status, cls.rows, cls.results, cls.report = cls.call(*names)

    def test_the_machine_is_described(self):
        for key in ("cpu", "cores", "memory_bytes", "kernel", "huge_pages", "revision", "load",
                    "load_after", "governor", "siblings", "build"):
            self.assertIn(key, self.results["machine"])

    def test_figures_are_shown_with_their_goals_met_or_not(self):
        self.assertEqual(self.rows["good"]["result"]["notes"], ["quick"])
        self.assertRegex(self.report, r"ratio.*1\.2 ratio.*&lt;= 1\.5: <span class=\"met\">met")
        self.assertRegex(self.report, r"rate.*3 M/s.*&gt;= 8: <span class=\"not\">not met")
        self.assertIn("2 of 3 goals met", self.report)

    def test_a_modelled_figure_is_called_modelled_in_heading_row_and_plot(self):
        tag = '<span class="modelled">modelled</span>'
        self.assertIn(f'<h2 id="modelled">modelled {tag}', self.report)
        self.assertEqual(self.report.count(f"<td>all rails {tag}"), 2)  # summary, its own table
        self.assertEqual(self.report.count(tag), 3)  # nothing else is tagged
        self.assertIn("fill (modelled)", self.report)
        self.assertIn("GB/s (modelled)", self.report)

    def test_a_series_is_drawn_line_by_line_with_a_gap_for_a_missing_value(self):
        drawn = re.search(r"<svg.*?a plot.*?</svg>", self.report)[0]
        lines = re.findall(r'<polyline points="([^"]*)"[^>]*?(stroke-dasharray)?[^>]*?/>', drawn)
        self.assertEqual([len(points.split()) for points, _ in lines], [2, 3])
        self.assertEqual(drawn.count("stroke-dasharray"), 1)  # the ceiling
        self.assertIn(">ceiling</text>", drawn)

    def test_a_benchmark_that_fails_is_reported_and_does_not_stop_the_others(self):
        self.assertEqual(self.status, 1)
        self.assertEqual({name: row["status"] for name, row in self.rows.items()}, {
            "fails": "failed", "silent": "failed", "nonsense": "failed", "leaves": "failed",
            "lacks": "skipped", "good": "ok", "modelled": "ok"})
        self.assertIn("ended with 3", self.rows["fails"]["reason"])
        self.assertIn("the cause of the failure", self.rows["fails"]["said"])
        self.assertEqual(self.rows["lacks"]["reason"], "this machine has no NIC")
        self.assertIn("FAILED: ended with 3", self.report)

    def test_the_goals_are_a_table_in_markdown(self):
        with open(os.path.join(self.out, "report.md")) as f:
            table = f.read()
        self.assertIn("| good | rate | 3 M/s | >= 8 | not met |", table)
        self.assertIn("| modelled | all rails (modelled) | 380 GB/s | >= 380 | met |", table)
        self.assertIn("| fails | | failed: ended with 3 | | |", table)

    def test_a_process_that_a_benchmark_left_running_is_killed(self):
        self.assertIn("left 1 process", self.rows["leaves"]["reason"])
        self.assertEqual(self.run_module.children(), [])


class Again(Folder):
    def test_an_older_result_is_not_used_and_a_skipped_benchmark_is_no_failure(self):
        status, rows, _, _ = self.call("good", "lacks")
        self.assertEqual((status, rows["good"]["status"]), (0, "ok"))
        self.fake("good", "")
        self.assertEqual(self.call("good")[1]["good"]["status"], "failed")

    def test_an_interrupt_stops_the_benchmark_and_reports_the_finished_ones(self):
        command = [sys.executable, "-c", f"""
import sys; sys.path.insert(0, {os.path.dirname(os.path.abspath(__file__))!r})
import test_run; r = test_run.load(); r.cluster.make_build = lambda **_: {self.dir.name!r}
sys.exit(r.main(["--no-install", "--out", {self.out!r}, "--only", "lacks,waits,fails"],
                {{n: n for n in test_run.FAKES}}, {self.dir.name!r}))"""]
        process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        log, end = os.path.join(self.out, "waits.log"), time.monotonic() + PLENTY_SECONDS
        while not os.path.exists(log) or not os.path.getsize(log):
            self.assertLess(time.monotonic(), end)
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        self.assertEqual(process.wait(timeout=PLENTY_SECONDS), 130)
        with open(os.path.join(self.out, "results.json")) as f:
            rows = json.load(f)["benches"]
        self.assertEqual([r["status"] for r in rows], ["skipped", "stopped"])


class Command(unittest.TestCase):
    def test_the_benchmarks_are_listed_and_an_unknown_name_is_refused(self):
        listed = subprocess.run([RUN, "--list"], capture_output=True, text=True)
        self.assertEqual(listed.returncode, 0, listed.stderr)
        self.assertIn("calls ", listed.stdout)
        wrong = subprocess.run([RUN, "--only", "call"], capture_output=True, text=True)
        self.assertEqual(wrong.returncode, 2)
        self.assertIn("no benchmark call; there are:", wrong.stderr)

    def test_compare_without_peercache_prints_the_reason_and_is_skipped(self):
        with tempfile.TemporaryDirectory(prefix="peercache-perf-") as empty:
            done = subprocess.run([os.path.join(ROOT, "perf", "compare"), "--peercache", empty],
                                  capture_output=True, text=True)
        self.assertEqual(done.returncode, load().SKIPPED, done.stderr)
        self.assertIn("PeerCache is not there", done.stdout)
        self.assertIn("--peercache DIR", done.stdout)


if __name__ == "__main__":
    unittest.main()
