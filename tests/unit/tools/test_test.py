# SPDX-License-Identifier: Apache-2.0
"""Tests of tools/test: its options, which tests tools/reach.py finds for changed files, and what
tools/testlog.py makes of a log.

    test_test.py BUILD      the build folder whose tests are looked up
"""

import json
import os
import subprocess
import sys
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
BUILD = os.path.realpath(sys.argv.pop(1))
sys.path.insert(0, os.path.join(ROOT, "tools"))
import reach  # noqa: E402
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
        for text in ("--changed", "--all", "tools/test --suite unit", "examples:"):
            self.assertIn(text, done.stdout)


class Reach(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.files, cls.tests = reach.Files(BUILD, ROOT), reach.all_tests(BUILD)

    def reached(self, *files):
        return [test["name"] for test in reach.reached(self.files, files, self.tests)]

    def test_as_a_program_it_prints_names(self):
        done = tool("reach.py", BUILD, "numa/README.md")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertEqual(done.stdout.splitlines(), self.reached("numa/README.md"))

    def test_a_source_reaches_the_tests_that_are_linked_with_it(self):
        found = self.reached("engine/control/pages/pool.c")
        self.assertIn("control_pool", found[:8])
        self.assertIn("death", found)
        self.assertNotIn("abi_ring", found)
        self.assertNotIn("client_get", found)

    def test_a_header_reaches_what_was_compiled_with_it(self):
        self.assertIn("tools_hooks", self.reached("engine/control/pages/pages.h"))

    def test_a_module_of_tests_reaches_the_scripts_that_import_it(self):
        found = self.reached("tests/cluster/harness.py")
        self.assertIn("death", found)
        self.assertIn("stress", found + ["stress"] * (BUILD.endswith("no-hooks")))
        self.assertNotIn("control_pool", found)

    def test_a_file_that_no_test_reads_reaches_the_house_rules_only(self):
        self.assertEqual(self.reached("perf/recipes/none" + ".bt"), ["tidy"])

    def test_a_test_that_changed_comes_first(self):
        self.assertEqual(self.reached("tests/cluster/test_death.py")[0], "death")
        self.assertEqual(self.reached("tests/unit/control/pages/test_index.c")[0], "control_index")

    def test_a_document_reaches_the_house_rules_and_the_tests_that_name_it(self):
        found = self.reached("numa/README.md")
        self.assertIn("tidy", found)
        self.assertNotIn("death", found)
        self.assertIn("control_metrics_table", self.reached("engine/METRICS.md"))

    def test_a_build_file_reaches_the_tests_below_its_folder(self):
        found = self.reached("tests/unit/abi/meson.build")
        self.assertIn("abi_ring", found)
        self.assertNotIn("control_pool", found)


class Graph(unittest.TestCase):
    """What tools/reach.py reads, and the order in which tests run."""

    graph = reach.read_graph([
        "build a.o | extra$ file: c_COMPILER ../../x/a.c | gen.h || order\n",
        " DEPFILE = no$:thing\n",
        "build lib.a: STATIC a.o b$:c.o\n", "# build no: thing\n"])
    deps = reach.read_deps(["a.o: #deps 2, deps mtime 1 (VALID)", "    ../../x/a.c",
                            "    ../../x/a.h", "", "b.o: #deps 0, deps mtime 1 (STALE)"])

    def test_inputs_and_headers_are_read(self):
        self.assertEqual(self.graph, {"a.o": ["../../x/a.c", "gen.h", "order"],
                                      "extra file": ["../../x/a.c", "gen.h", "order"],
                                      "lib.a": ["a.o", "b:c.o"]})
        self.assertEqual(self.deps, {"a.o": ["../../x/a.c", "../../x/a.h"], "b.o": []})

    def test_a_target_is_made_from_all_that_its_inputs_are_made_from(self):
        files = reach.Files.__new__(reach.Files)
        files.build, files.root = "/r/build/gcc", "/r"
        files.graph, files.deps = self.graph, self.deps
        files.of_path, files.of_target = {}, {}
        self.assertEqual(files.target("lib.a"), {
            "x/a.c", "x/a.h", "build/gcc/a.o", "build/gcc/b:c.o", "build/gcc/gen.h",
            "build/gcc/order"})

    def test_imports_are_found(self):
        self.assertEqual(list(reach.imported("import a.b\nfrom c import d\n")),
                         ["a.b", "c", "c.d"])

    def test_the_test_itself_and_that_of_the_name_are_the_closest(self):
        for place, path in enumerate((
                "tests/unit/control/pages/test_pool_evict.c", "engine/control/pages/pool.c",
                "engine/control/pages/tier.c")):
            self.assertEqual(reach.rank({"name": "control_pool_evict"}, {path}, set(), 9)[0],
                             place)

    def test_as_many_tests_run_as_the_time_allows_and_at_least_one(self):
        rows = [{"name": name, "suite": ["unit"], "is_parallel": False} for name in "abc"]
        took = {"a": reach.SECONDS + 1, "b": reach.SECONDS - 1}
        chosen, left, _ = reach.fitting(rows, took)
        self.assertEqual(([row["name"] for row in chosen], left), (["b"], [rows[0], rows[2]]))
        self.assertEqual(reach.fitting(rows[:1], took)[:2], (rows[:1], []))


class Log(unittest.TestCase):
    def test_results_are_counted_and_named(self):
        rows = [("a", "OK"), ("b", "FAIL"), ("c", "TIMEOUT"), ("d", "ERROR"),
                ("e", "UNEXPECTEDPASS"), ("f", "EXPECTEDFAIL"), ("g", "INTERRUPT"),
                ("i", "a result of the future")]
        lines = [json.dumps({"name": "p:unit / " + n, "result": r, "duration": 2})
                 for n, r in rows]
        lines.append(json.dumps({"name": "p:soft+hooks / h / i", "result": "SKIP",
                                 "stdout": "x\nno NIC here\n", "duration": 1.5}))
        tests = testlog.results(lines + [""])
        self.assertEqual(testlog.count(tests), (2, 6, 1))
        self.assertEqual([t.name for t in tests if t.kind == "passed"], ["a", "f"])
        self.assertEqual([t.name for t in tests if t.kind == "failed"],
                         ["b", "c", "d", "e", "g", "i"])
        self.assertEqual([(t.suite, t.text) for t in tests if t.kind == "skipped"],
                         [("soft", "no NIC here")])
        self.assertEqual([line.split()[:4] for line in testlog.table(tests)],
                         [["unit", "8", "tests", "16"], ["soft", "1", "tests", "2"]])
        self.assertEqual(testlog.summed(testlog.count([])), "0 passed, 0 failed, 0 skipped")


if __name__ == "__main__":
    unittest.main()
