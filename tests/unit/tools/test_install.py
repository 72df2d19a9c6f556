# SPDX-License-Identifier: Apache-2.0
"""Tests the parts of tools/install. Nothing is installed."""

import os
import subprocess
import tempfile
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))


def install(*arguments, **variables):
    return subprocess.run([os.path.join(ROOT, "tools", "install"), *arguments], text=True,
                          capture_output=True, stdin=subprocess.DEVNULL, timeout=60,
                          env={**os.environ, **variables})


class Parts(unittest.TestCase):
    def packages(self, *part):
        done = install(*part, "--list")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        return done.stdout.split()

    def test_each_part_includes_the_parts_before_it(self):
        parts = [self.packages(part) for part in ("--run", "--build", "--test")]
        for less, more in zip(parts, parts[1:]):
            self.assertEqual(more[:len(less)], less)
            self.assertGreater(len(more), len(less))
        for part in parts:
            self.assertEqual(len(part), len(set(part)), "a package is listed twice")

    def test_a_wheel_without_its_packages_names_them(self):
        self.assertTrue({"gcc", "make", "python3-venv"} <= set(self.packages("--wheel")))
        with tempfile.TemporaryDirectory() as folder:
            with open(os.path.join(folder, "dpkg-query"), "w", encoding="ascii") as file:
                file.write("#!/bin/sh\n")
            os.chmod(file.name, 0o755)
            done = subprocess.run([os.path.join(ROOT, "tools", "package"), "wheel"], text=True,
                                  capture_output=True, stdin=subprocess.DEVNULL, timeout=60,
                                  env={**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"})
        self.assertEqual((done.returncode, done.stdout), (1, ""))
        self.assertIn("run tools/install --wheel", done.stderr)

    def test_packages_are_made_with_what_builds_and_what_checks_them(self):
        build, deb = self.packages("--build"), self.packages("--deb")
        self.assertEqual(deb[:len(build)], build)
        self.assertTrue({"debhelper", "lintian"} <= set(deb) - set(build))
        self.assertEqual(len(deb), len(set(deb)), "a package is listed twice")

    def test_without_a_part_it_is_everything_that_tests_need(self):
        self.assertEqual(self.packages(), self.packages("--test"))

    def test_a_demo_needs_no_package_of_tests(self):
        build = self.packages("--build")
        for name in ("clang", "valgrind", "qemu-user", "gcc-aarch64-linux-gnu", "spin",
                     "perftest", "clang-format", "g++", "libcmocka-dev"):
            self.assertNotIn(name, build)

    def test_a_program_needs_no_compiler_to_run(self):
        for name in self.packages("--run"):
            self.assertFalse(name.endswith("-dev") or name in ("gcc", "meson", "pkg-config"), name)

    def test_an_extra_alone_brings_only_itself(self):
        self.assertEqual(self.packages("--prometheus", "--etcd"), [])
        self.assertIn("chromium-headless-shell", self.packages("--browser"))
        self.assertNotIn("gcc", self.packages("--browser"))

    def test_wrong_usage_is_named(self):
        for arguments, text in ((["--tests"], "unknown option --tests"),
                                (["--run", "--build"], "--run and --build: one part"),
                                (["--sysroot", "mips"], "arm64 is the only one")):
            done = install(*arguments)
            self.assertEqual(done.returncode, 2, done.stderr)
            self.assertIn(text, done.stderr)

    def test_a_check_names_what_is_missing_and_installs_nothing(self):
        folder = os.path.join(ROOT, "tests", "unit", "tools")
        done = install("--check", "--run", PATH=folder)
        self.assertNotEqual(done.returncode, 0)
        done = install("--help")
        self.assertEqual(done.returncode, 0)
        self.assertIn("tools/install --build", done.stdout)


if __name__ == "__main__":
    unittest.main()
