# SPDX-License-Identifier: Apache-2.0
"""bare.py, test_deb.py and test_container.py with commands that are played: what skips these tests,
and what is a fault. A killed test leaves no control group; that needs root and tools/install --deb.
"""

import contextlib
import io
import os
import signal
import subprocess
import sys
import tempfile
import unittest
from unittest import mock

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import bare  # noqa: E402
import test_container  # noqa: E402
import test_deb  # noqa: E402
from bare import harness  # noqa: E402

# Its group has a process when it prints its folder.
LEFT = """
import subprocess, sys
sys.path.insert(0, {here!r})
import bare

def inside(folder):
    group = bare.Groups(folder, "tree").make("left")
    subprocess.Popen(["sh", "-c", 'echo $$ >"$0/cgroup.procs"; echo "$1"; exec sleep infinity',
                      group, folder]).wait()

sys.exit(bare.main("bare", "tree", lambda *_: (sys.executable,), inside))
"""


class Commands:
    """Plays run(): commands have no output, and the one with the words `failing` fails."""

    def __init__(self, failing):
        self.failing = failing

    def __call__(self, *command, **_):
        if self.failing in " ".join(command):
            raise AssertionError(f"{self.failing} fails")
        if command[0] == "debootstrap":
            os.makedirs(os.path.join(command[-1], "etc"))
        if command[:2] == ("dpkg-deb", "-R"):
            os.makedirs(os.path.join(command[-1], "DEBIAN"))
            with open(command[-1] + "/DEBIAN/control", "w", encoding="utf-8") as file:
                file.write("Version: 1\n")
        return ""


class Skips(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.package = os.path.join(self.folder, "a_1_amd64.deb")
        open(self.package, "w").close()

    def main(self, test, failing):
        """The exit status of a test one of whose commands fails before its hosts are made."""
        played = Commands(failing)
        with contextlib.ExitStack() as stack:
            for module in (bare, test):
                stack.enter_context(mock.patch.object(module, "run", played))
            stack.enter_context(mock.patch.object(test, "packages_make", lambda: [self.package]))
            stack.enter_context(mock.patch.object(bare, "probe"))
            stack.enter_context(mock.patch.object(sys, "argv", ["test.py"]))
            stack.enter_context(mock.patch("signal.signal"))
            stack.enter_context(contextlib.redirect_stdout(io.StringIO()))
            return bare.main("bare", "tree", test.prepare, None)

    def test_an_archive_or_pypi_that_does_not_answer_skips(self):
        for test, failing in ((test_deb, "debootstrap"), (test_deb, "apt-get -q update"),
                              (test_container, "debootstrap"),
                              (test_container, "apt-get -q update"),
                              (test_container, "bin/pip install")):
            with self.subTest(test=test.__name__, failing=failing):
                self.assertEqual(self.main(test, failing), bare.ABSENT)

    def test_a_fault_of_a_package_or_the_dockerfile_is_no_skip(self):
        for test, failing in ((test_deb, "lintian"), (test_deb, "dpkg-deb -R"),
                              (test_deb, "dpkg-deb -b"), (test_deb, "--download-only"),
                              (test_container, "sh -ec apt-get update")):
            with self.subTest(test=test.__name__, failing=failing), \
                    self.assertRaisesRegex(AssertionError, failing):
                self.main(test, failing)

    def test_missing_namespaces_skip(self):
        done = subprocess.CompletedProcess((), 0)
        with mock.patch.object(os, "geteuid", return_value=0), \
                mock.patch.object(subprocess, "run", return_value=done), \
                mock.patch.object(bare, "ALONE", ["false"]):
            self.assertRaises(bare.Missing, bare.probe, self.folder, "tree")

    def test_control_groups_that_cannot_be_written_skip(self):
        """As in a container whose own processes are in the root of its groups."""
        os.makedirs(os.path.join(self.folder, "groups", "cgroup.subtree_control"))  # no file
        with open(os.path.join(self.folder, "groups", "cgroup.controllers"), "w",
                  encoding="ascii") as file:
            file.write("cpu memory\n")
        with mock.patch.object(bare, "run", Commands("umount")), \
                contextlib.redirect_stdout(io.StringIO()):
            self.assertEqual(bare.try_groups(self.folder, "memory"), bare.ABSENT)
        for status, error in ((bare.ABSENT, bare.Missing), (1, AssertionError)):
            done = subprocess.CompletedProcess((), status, "")
            with mock.patch.object(harness, "run", return_value=done):
                self.assertRaises(error, bare.groups_remove, self.folder, "memory")


class Killed(unittest.TestCase):
    def groups(self):
        """The names of all control groups of the host."""
        with tempfile.TemporaryDirectory() as folder:
            return bare.run("unshare", "--mount", "sh", "-ec",
                            'mount -t cgroup2 cgroup2 "$0"; ls "$0"', folder).split()

    def test_a_killed_test_leaves_no_control_group(self):
        with tempfile.NamedTemporaryFile("w", suffix=".py") as script:
            script.write(LEFT.format(here=bare.HERE))
            script.flush()
            process = subprocess.Popen([sys.executable, script.name], stdout=subprocess.PIPE,
                                       text=True)
            self.addCleanup(process.stdout.close)
            self.addCleanup(process.kill)
            said = process.stdout.readline().strip()
            if said.startswith("skipped: "):
                self.skipTest(said)
            group = os.path.basename(said) + "-left"
            self.assertIn(group, self.groups())
            process.send_signal(signal.SIGTERM)
            harness.ended(process)
        self.assertEqual(process.returncode, 128 + signal.SIGTERM)
        self.assertNotIn(group, self.groups())
        self.assertFalse(os.path.exists(said))


if __name__ == "__main__":
    unittest.main()
