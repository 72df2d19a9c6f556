# SPDX-License-Identifier: Apache-2.0
"""Tests of tools/test: its options, and what tools/testlog.py makes of a log."""

import json
import os
import subprocess
import sys
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
sys.path.insert(0, os.path.join(ROOT, "tools"))
import testlog  # noqa: E402


def tool(name, *arguments):
    return subprocess.run([os.path.join(ROOT, "tools", name), *arguments], text=True,
                          capture_output=True, stdin=subprocess.DEVNULL, timeout=60)


class Options(unittest.TestCase):
    def test_what_cannot_be_run_is_refused_with_the_reason(self):
        for arguments, text in (
                (["--compiler", "tcc"], "invalid choice: 'tcc'"),
                (["--arch", "arm64", "--sanitize", "address"], "without sanitizers only"),
                (["--fuzz"], "with --compiler clang only"),
                (["--ci", "--suite", "unit"], "names its variants and suites itself"),
                (["--ci", "--all"], "not allowed with"),
                (["--retry"], "unrecognized arguments: --retry")):
            done = tool("test", *arguments)
            self.assertEqual(done.returncode, 2, done.stderr)
            self.assertIn(text, done.stderr)

    def test_help_has_examples(self):
        done = tool("test", "--help")
        self.assertEqual(done.returncode, 0)
        for text in ("--all", "tools/test --suite unit", "examples:"):
            self.assertIn(text, done.stdout)


class Log(unittest.TestCase):
    def test_results_are_counted_and_named(self):
        long = "\n".join(f"line {n}" for n in range(100))
        rows = [("a", "OK"), ("b", "FAIL"), ("c", "TIMEOUT"), ("d", "ERROR"),
                ("e", "UNEXPECTEDPASS"), ("f", "EXPECTEDFAIL"), ("g", "INTERRUPT"),
                ("i", "a result of the future")]
        lines = [json.dumps({"name": "p:unit / " + n, "result": r, "duration": 2, "stdout": long})
                 for n, r in rows]
        lines.append(json.dumps({"name": "p:soft+hooks / h / i", "result": "SKIP",
                                 "stdout": "x\nno NIC here\n", "duration": 1.5}))
        tests = testlog.results(lines + [""])
        self.assertEqual(testlog.count(tests), (2, 6, 1))
        self.assertEqual([t.name for t in tests if t.kind == "passed"], ["a", "f"])
        self.assertEqual([t.name for t in tests if t.kind == "failed"],
                         ["b", "c", "d", "e", "g", "i"])
        said = list(testlog.failures(tests))
        self.assertEqual(said[1:3] + said[-1:], ["failed: b: fail", "line 70", "line 99"])
        self.assertEqual(len([line for line in said if line.startswith("failed: ")]), 6)
        self.assertEqual([(t.suite, t.text) for t in tests if t.kind == "skipped"],
                         [("soft", "no NIC here")])
        self.assertEqual([line.split()[:4] for line in testlog.table(tests)],
                         [["unit", "8", "tests", "16"], ["soft", "1", "tests", "2"]])
        self.assertEqual(testlog.summed(testlog.count([])), "0 passed, 0 failed, 0 skipped")


if __name__ == "__main__":
    unittest.main()
