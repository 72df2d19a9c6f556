# SPDX-License-Identifier: Apache-2.0
"""A file that a log line, a finding, an answer of the doctor or --help names is installed: one of
FILES of tools/pages.py, which wheel and Debian package have (python_install, python_deb), or a
program. A file of the source tree may be named if the message says `of the source tree`."""

import ast
import glob
import os
import re
import sys
import unittest

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", "..", ".."))
sys.path.insert(0, os.path.join(ROOT, "tools"))
import pages  # noqa: E402

NAME = re.compile(r"(?<![\w$@%./*-])((?:[\w.-]+/)*[\w-]+\."
                  r"(?:md|conf|ya?ml|json|html|txt|def|h|c|py)"
                  r"|(?:tools|config|tests|engine|perf|dv|numa)/[\w./-]+"
                  r"|setup-host)(?![\w/-])(?!\.[a-z])(?! of the source tree)")
# What the compiler prints, and what the user of the program writes.
COMPILED = re.compile(r"static_assert\s*\([^;]*;|^\s*#.*$", re.M)
WRITTEN = {"out.json", "ShareGPT.json"}
C = [path for folder in ("engine", "numa", "dv", "config", "tools") for end in ("c", "h", "def")
     for path in glob.glob(f"{folder}/**/*.{end}", recursive=True, root_dir=ROOT)]
PYTHON = glob.glob("engine/client/python/**/*.py", recursive=True, root_dir=ROOT)
OTHERS = [path for pattern in (
    "config/examples/*.conf", "config/examples/*.yml", "config/systemd/*.in",
    "config/debian/peercache.conf")
          for path in glob.glob(pattern, root_dir=ROOT)]


def read(path):
    with open(os.path.join(ROOT, path), encoding="utf-8") as file:
        return file.read()


def c_texts(text):
    """The texts of a C source. One that is nothing but a name is a path, and no message."""
    return re.findall(r'"((?:[^"\\\n]|\\.)*)"', COMPILED.sub("", text))


def python_texts(text):
    """The texts of a Python source without docstrings."""
    tree = ast.parse(text)
    documents = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    return [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and
            isinstance(node.value, str) and id(node) not in documents]


def named():
    """{name: a file whose messages have it}."""
    found = {}
    for paths, texts in ((C, c_texts), (PYTHON, python_texts), (OTHERS, lambda text: [text])):
        for path in paths:
            for text in texts(read(path)):
                found.update((name, path) for name in NAME.findall(text) if name != text)
    return found


class Named(unittest.TestCase):
    def test_each_named_file_is_installed(self):
        places = set(pages.places().values())
        known = places | {os.path.basename(place) for place in places} | WRITTEN
        found = named()
        self.assertEqual({name: path for name, path in found.items() if name not in known}, {})
        # the folder of the pages in --help, the alerts
        self.assertLessEqual({"getting-started.md", "RUNBOOK.md", "SETTINGS.md"}, set(found))

    def test_names_are_found(self):
        for text in ("see config/limits.h", "setup-host --apply", "run tools/cluster.py\\n",
                     "read NOTES.md."):
            self.assertEqual(len(NAME.findall(text)), 1, text)
        for text in ("/etc/peercache.conf", "perf/compare of the source tree", "tools/",
                     "peercache-setup-host", "engine.socket"):
            self.assertEqual(NAME.findall(text), [], text)


if __name__ == "__main__":
    unittest.main()
