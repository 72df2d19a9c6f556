# SPDX-License-Identifier: Apache-2.0
"""Tests which libsoftconnectx.so tools/soft-connectx preloads. The libraries are empty files."""

import os
import shutil
import subprocess
import tempfile
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))


class Library(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="peercache-")
        self.addCleanup(folder.cleanup)
        self.root = os.path.realpath(folder.name)
        os.mkdir(os.path.join(self.root, "tools"))
        shutil.copy(os.path.join(ROOT, "tools", "soft-connectx"), os.path.join(self.root, "tools"))

    def build(self, name, age, content=""):
        path = os.path.join(self.root, name, "tests", "connectx", "libsoftconnectx.so")
        os.makedirs(os.path.dirname(path))
        with open(path, "w", encoding="ascii") as file:
            file.write(content)
        os.utime(path, (1e9 - age, 1e9 - age))
        return path

    def run_tool(self, *arguments, **variables):
        env = {k: v for k, v in os.environ.items()
               if k not in ("SOFT_CONNECTX_LIBRARY", "PEERCACHE_BUILD", "LD_PRELOAD")}
        return subprocess.run([os.path.join(self.root, "tools", "soft-connectx"), *arguments,
                               "printenv", "SOFT_CONNECTX_LIBRARY"], capture_output=True,
                              text=True, env={**env, **variables}, cwd=self.root, timeout=60)

    def taken(self, *arguments, **variables):
        done = self.run_tool(*arguments, **variables)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout.strip()

    def test_the_newest_build_is_used(self):
        release = self.build("build/release", 10)  # tools/demo
        self.assertEqual(self.taken(), release)
        gcc = self.build("build/gcc", 5)  # tools/test
        self.assertEqual(self.taken(), gcc)
        plain = self.build("build", 1)
        self.assertEqual(self.taken(), plain)

    def test_a_build_with_a_sanitizer_is_ignored(self):
        gcc = self.build("build/gcc", 10)
        self.build("build/gcc-address+undefined", 1, "__asan_init")
        self.build("build/gcc-thread", 1, "__tsan_init")
        self.assertEqual(self.taken(), gcc)

    def test_a_named_library_is_preferred(self):
        self.build("build/gcc", 1)
        a, b, c = (self.build(name, 10) for name in "abc")
        self.assertEqual(self.taken(PEERCACHE_BUILD="a"), a)
        self.assertEqual(self.taken(PEERCACHE_BUILD="a", SOFT_CONNECTX_LIBRARY=b), b)
        self.assertEqual(self.taken("--library", c, PEERCACHE_BUILD="a"), c)

    def test_without_a_build_the_error_tells_how_to_build(self):
        for variables in ({}, {"PEERCACHE_BUILD": "/nowhere"}):
            done = self.run_tool(**variables)
            self.assertEqual(done.returncode, 2)
            self.assertIn("meson compile -C build/release", done.stderr)


if __name__ == "__main__":
    unittest.main(verbosity=2)
