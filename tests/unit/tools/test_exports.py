# SPDX-License-Identifier: Apache-2.0
"""The public header, the version script and the built library list the same functions.

    test_exports.py LIBRARY     exit 77: readelf (binutils) is not installed
"""

import os
import re
import shutil
import subprocess
import sys
import unittest

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", "..", ".."))
CLIENT = os.path.join(ROOT, "engine", "client")
LIBRARY = ""


def read(name):
    with open(os.path.join(CLIENT, name), encoding="utf-8") as file:
        return file.read()


def declared():
    """The functions that the header marks with PC_API."""
    code = re.sub(r"/\*.*?\*/", "", read("peercache.h"), flags=re.S)
    return sorted(re.findall(r"^PC_API\b[^;(]*?(\w+)\(", code, re.M))


def scripted():
    """The names between `global:` and `local:` of the version script."""
    text = re.sub(r"#.*", "", read("libpeercache.map"))
    return re.search(r"global:(.*)local:", text, re.S)[1].replace(";", " ").split()


def exported():
    """(name, version) of every global symbol that the library defines."""
    out = subprocess.run(["readelf", "-W", "--dyn-syms", LIBRARY], capture_output=True, text=True,
                         check=True, env={**os.environ, "LC_ALL": "C"}).stdout
    rows = [line.split() for line in out.splitlines() if re.match(r"\s*\d+: ", line)]
    # columns: number, value, size, type, binding, visibility, section, name
    names = [row[7] for row in rows
             if len(row) > 7 and row[4] != "LOCAL" and row[6] not in ("UND", "ABS")]
    return sorted(tuple(name.split("@@")) for name in names)


class Exports(unittest.TestCase):
    def test_the_header_declares_functions(self):
        self.assertIn("pc_open", declared())
        self.assertIn("pc_version", declared())

    def test_the_version_script_lists_the_functions_of_the_header(self):
        self.assertEqual(scripted(), declared())

    def test_the_library_exports_the_functions_of_the_header_with_a_version(self):
        self.assertEqual(exported(), [(name, "PEERCACHE_0") for name in declared()])


if __name__ == "__main__":
    LIBRARY = sys.argv.pop(1)
    if not shutil.which("readelf"):
        print("skipped: readelf (package binutils) is not installed")
        sys.exit(77)
    unittest.main(verbosity=2)
