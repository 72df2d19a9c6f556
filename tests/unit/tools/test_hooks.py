# SPDX-License-Identifier: Apache-2.0
"""An engine that serves has none of the test hooks: neither in its symbols nor in --help nor in its
strings. One that was built with them has them all, so a renamed hook is noticed here.

    test_hooks.py ENGINE with|without     exit 77: nm or strings (binutils) is not installed
"""

import shutil
import subprocess
import sys
import unittest

SYMBOLS = ["dv_leave_out", "dv_test_fault", "model_clock_turn", "test_hooks_open"]
SETTINGS = ["clock_file", "fault_file", "limbo_announced", "skip_head_check"]
STRINGS = [*SETTINGS, "WRONG BYTES", "TESTS ONLY", "MEASUREMENTS ONLY", "doorbell=80ns"]
ENGINE, WITH = "", False


def output(*command):
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


class TestHooks(unittest.TestCase):
    def check(self, text, words):
        for word in words:
            self.assertEqual(word in text, WITH, word)

    def test_symbols(self):
        names = [line.split()[-1] for line in output("nm", ENGINE).splitlines()]
        self.assertIn("rail_step", names)
        self.check(names, SYMBOLS)

    def test_help(self):
        text = output(ENGINE, "--help")
        self.assertIn("  validate = ", text)
        self.check(text, [f"  {name} = " for name in SETTINGS] + ["[test]"])

    def test_strings(self):
        text = output("strings", "--data", ENGINE)
        self.assertIn("soft.model", text)
        self.check(text, STRINGS)

    def test_settings_are_refused_by_a_build_without_hooks(self):
        for setting in ("test.skip_head_check=no", "soft.model=400G,still"):
            done = subprocess.run([ENGINE, "--check", "--set", setting], capture_output=True,
                                  text=True)
            self.assertEqual(done.returncode, 0 if WITH else 2, done.stderr)
            if not WITH:
                self.assertIn("-Dtest_hooks=true", done.stderr)


if __name__ == "__main__":
    if not (shutil.which("nm") and shutil.which("strings")):
        print("nm or strings is not there: install binutils")
        sys.exit(77)
    ENGINE, WITH = sys.argv[1], sys.argv[2] == "with"
    unittest.main(argv=sys.argv[:1])
