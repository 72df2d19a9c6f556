# SPDX-License-Identifier: Apache-2.0
"""Tests of tools/test: its options, and which tests tools/reach.py finds for changed files.

    test_test.py BUILD      the build folder whose tests are looked up
"""

import os
import subprocess
import sys
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
BUILD = os.path.realpath(sys.argv.pop(1))
sys.path.insert(0, os.path.join(ROOT, "tools"))
import reach  # noqa: E402


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


if __name__ == "__main__":
    unittest.main()
