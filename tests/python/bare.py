# SPDX-License-Identifier: Apache-2.0
"""What test_deb.py and test_container.py share: commands, and a program in namespaces of its own
whose control groups are removed however it ends.

    bare.py FOLDER KIND     makes a control group and removes all that begin with FOLDER's name

Only what the tests cannot bring along raises Missing, which skips them: root, the tools,
namespaces, control groups, Debian's archive, PyPI. Limits are seconds of clock(): see harness.py.
"""

import glob
import os
import signal
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
TREE = os.path.dirname(os.path.dirname(HERE))
sys.path.insert(0, os.path.join(TREE, "tests", "cluster"))
import harness  # noqa: E402
from harness import wait_for  # noqa: E402

SLOW = harness.SLOW
LIMIT = 600  # of a command
LONG = 1800  # of a build, and of all that runs in namespaces
ABSENT = 77
ALONE = ["unshare", "--mount", "--net", "--pid", "--fork", "--kill-child", "--mount-proc"]


class Missing(Exception):
    """The test cannot run here."""


def run(*command, check=True, seconds=LIMIT, **options):
    """Runs a command; returns its output."""
    done = harness.run(command, seconds, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                       stderr=subprocess.STDOUT, text=True, **options)
    if check and done.returncode:
        raise AssertionError(f"{' '.join(command)} ended with {done.returncode}:\n"
                             f"{done.stdout[-3000:]}")
    return done.stdout


def run_outside(*command):
    """run() of a command whose failure means that something outside the tree is missing."""
    try:
        return run(*command)
    except AssertionError as error:
        raise Missing(error) from error


def expect(true, what):
    if not true:
        raise AssertionError(what)


def packages_make():
    """Makes the Debian packages; returns their paths without those of debug symbols."""
    paths = run(os.path.join(TREE, "tools", "package"), "deb", seconds=LONG).splitlines()
    return [path for path in paths if "-dbgsym_" not in path]


class Groups:
    """Control groups below the root of the host's, whose names begin with that of `folder`. kind:
    "memory", which limits memory with either version of the kernel's interface, or "tree". They
    outlive processes: main() removes them. `version`: the type of their file system."""

    def __init__(self, folder, kind):
        self.folder, self.prefix = os.path.join(folder, "groups"), os.path.basename(folder)
        self.version = "cgroup2"
        os.makedirs(self.folder, exist_ok=True)
        run("mount", "-t", "cgroup2", "cgroup2", self.folder)
        if kind == "memory":
            self.memory_enable()

    def memory_enable(self):
        with open(os.path.join(self.folder, "cgroup.controllers"), encoding="ascii") as file:
            second = "memory" in file.read()
        if second:
            self.write("cgroup.subtree_control", "+memory")
        else:
            run("umount", self.folder)
            run("mount", "-t", "cgroup", "-o", "memory", "memory", self.folder)
            self.version = "cgroup"

    def write(self, name, text):
        with open(os.path.join(self.folder, name), "w", encoding="ascii") as file:
            file.write(text)

    def make(self, name):
        path = os.path.join(self.folder, f"{self.prefix}-{name}")
        os.mkdir(path)
        return path

    def remove(self):
        """Removes all of them, also another process's, once no process is in them."""
        for path in glob.glob(os.path.join(self.folder, self.prefix + "-*")):
            wait_for(lambda path=path: group_remove(path), 60, f"{path} is empty")


def group_remove(path):
    """True if no process was in the group or those below it, which are then removed."""
    try:
        for below, _, _ in os.walk(path, topdown=False):
            os.rmdir(below)
    except OSError:
        return False
    return True


def groups_remove(folder, kind):
    """Removes the groups of a folder, in a mount namespace. Raises Missing if none can be made."""
    done = harness.run(["unshare", "--mount", sys.executable, os.path.abspath(__file__), folder,
                        kind], LIMIT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                       stderr=subprocess.STDOUT, text=True)
    if done.returncode == ABSENT:
        raise Missing(done.stdout)
    expect(done.returncode == 0, done.stdout)


def probe(folder, kind):
    """Raises Missing without root, the tools, namespaces or control groups."""
    if os.geteuid() or subprocess.run([os.path.join(TREE, "tools", "install"), "--deb", "--check"],
                                      stdout=subprocess.DEVNULL).returncode:
        raise Missing("needs root and tools/install --deb")
    run_outside(*ALONE, "true")
    groups_remove(folder, kind)


def main(name, kind, prepare, inside):
    """Runs prepare(folder, root), which returns a Python and words, then inside(folder, *words)
    with that Python in namespaces. kind: of its Groups. Returns the exit status: ABSENT if
    something is Missing."""
    if sys.argv[1:2] == ["--inside"]:
        inside(*sys.argv[2:])
        return 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    with tempfile.TemporaryDirectory(prefix=f"peercache-{name}-") as folder:
        try:
            probe(folder, kind)
            python, *words = prepare(folder, sys.argv[1] if len(sys.argv) > 1 else "")
        except Missing as why:
            print("skipped:", why)
            return ABSENT
        try:
            return harness.run([*ALONE, python, os.path.abspath(sys.argv[0]), "--inside", folder,
                                *words], LONG).returncode
        finally:
            groups_remove(folder, kind)


def try_groups(folder, kind):
    """Exit status ABSENT if control groups cannot be made here."""
    try:
        groups = Groups(folder, kind)
        groups.make("probe")
    except (OSError, AssertionError) as error:
        print("no control groups:", error)
        return ABSENT
    groups.remove()
    return 0


if __name__ == "__main__":
    sys.exit(try_groups(*sys.argv[1:]))
