# SPDX-License-Identifier: Apache-2.0
"""The man pages, which help2man makes from --help.

    test_man.py PROGRAM... -- PAGE...     exit 77: groff is not installed
"""

import os
import re
import shutil
import subprocess
import sys
import unittest

PAIRS = []  # (program, its page)
ENV = {**os.environ, "LC_ALL": "C"}
SECTIONS = ["NAME", "SYNOPSIS", "DESCRIPTION", "OPTIONS", "EXAMPLES"]


def help_of(program):
    return subprocess.run([program, "--help"], capture_output=True, text=True, check=True,
                          env=ENV).stdout


def rendered(page):
    """(plain text, warnings) of a page. Lines are long, so that no word is hyphenated."""
    done = subprocess.run(["groff", "-man", "-Tascii", "-ww", "-rLL=2000n", "-rHY=0", "-P-cbou",
                           page], capture_output=True, text=True, env=ENV)
    return done.stdout, done.stderr


def options(text):
    return set(re.findall(r"(?<![\w-])--?[a-zA-Z][\w-]*", text))


class Pages(unittest.TestCase):
    def test_groff_warns_of_nothing(self):
        for _, page in PAIRS:
            with self.subTest(page=page):
                self.assertEqual(rendered(page)[1], "")

    def test_a_page_has_the_usual_sections(self):
        for _, page in PAIRS:
            with self.subTest(page=page):
                text = rendered(page)[0]
                for section in SECTIONS:
                    self.assertRegex(text, rf"(?m)^{section}$")
                self.assertIn("Exit status:", text)

    def test_a_page_has_each_option_and_each_word_of_help(self):
        for program, page in PAIRS:
            with self.subTest(page=page):
                given, text = help_of(program), rendered(page)[0]
                self.assertIn("--version", options(given))
                self.assertEqual(options(given) - options(text), set())
                words = set(re.findall(r"\w+", given)) - set(re.findall(r"\w+", text))
                self.assertEqual(words - {"Usage", "Options", "Examples", "Files"}, set())

    def test_a_page_names_its_program(self):
        for program, page in PAIRS:
            with self.subTest(page=page):
                name = os.path.basename(program)
                self.assertEqual(os.path.basename(page), name + ".1")
                self.assertRegex(rendered(page)[0], rf"NAME\n\s+{name} - \w")


if __name__ == "__main__":
    if not shutil.which("groff"):
        print("skipped: groff (package groff-base) is not installed")
        sys.exit(77)
    split = sys.argv.index("--")
    PAIRS = list(zip(sys.argv[1:split], sys.argv[split + 1:]))
    del sys.argv[1:]
    unittest.main(verbosity=2)
