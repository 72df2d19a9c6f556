# SPDX-License-Identifier: Apache-2.0
"""Limits of cgroups: the engine keeps its own, and the clients' do not pay for its memory.

The tests make cgroups of version 1 or 2 and are skipped where they may not.
"""

import os
import re
import subprocess
import tempfile
import unittest

import harness

MIB = 1 << 20


def parents():
    """Folders in which a group with a memory limit may be made, and the names of its files."""
    with open("/proc/self/mountinfo", encoding="ascii") as file:
        for line in file:
            mount = line.split()[4]
            kind, _, options = line.split(" - ")[1].split()[:3]
            if kind == "cgroup" and "memory" in options.split(","):
                yield mount, "memory.limit_in_bytes", "memory.usage_in_bytes"
            elif kind == "cgroup2":
                yield mount, "memory.max", "memory.current"


class Group:
    """A cgroup with a memory limit of its own; programs run in it by inside()."""

    def __init__(self, limit=None):
        for folder, self.limit, self.usage in parents():
            self.path = os.path.join(folder, f"peercache-test-{os.getpid()}-{id(self)}")
            try:
                os.mkdir(self.path)
            except OSError:
                continue
            try:
                if limit:
                    self.write(self.limit, limit)
                self.used()
                return
            except OSError:
                self.close()
        raise unittest.SkipTest("no cgroup with a memory limit can be made here")

    def write(self, name, value):
        with open(os.path.join(self.path, name), "w", encoding="ascii") as file:
            file.write(str(value))

    def used(self):
        with open(os.path.join(self.path, self.usage), encoding="ascii") as file:
            return int(file.read())

    def inside(self, *command):
        return ["sh", "-c", f'echo $$ >{self.path}/cgroup.procs && exec "$@"', "sh", *command]

    def close(self):
        try:
            os.rmdir(self.path)
        except OSError:
            return False  # a process in it has not ended yet
        return True


class Memory(harness.ClusterTest):
    def group(self, limit=None):
        group = Group(limit)
        self.addCleanup(harness.wait_for, group.close, 20, "the group is empty")
        return group

    def resident(self, pid):
        """Bytes of memory of memfds that the process has mapped and touched or populated."""
        with open(f"/proc/{pid}/status", encoding="ascii") as file:
            found = re.search(r"^RssShmem:\s*(\d+) kB", file.read(), re.M)
        return int(found.group(1)) << 10 if found else 0  # it ends

    def test_a_limit_below_the_pool_is_an_error_at_the_start(self):
        group = self.group(48 * MIB)
        with tempfile.TemporaryDirectory() as folder:
            done = harness.run(group.inside(
                harness.program("engine/peercache-engine"), "--set", f"engine.socket={folder}/s",
                "--set", "engine.pool_bytes=64MiB", "--set", "engine.huge_pages=no",
                "--set", f"cluster.port={harness.cluster.free_port()}",
                "--set", "metrics.port=0"), capture_output=True, text=True)
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertIn(f"{group.limit} of cgroup", done.stderr)
        self.assertIn("engine.pool_bytes", done.stderr)

    def test_the_kernel_never_ends_an_engine_for_its_limit(self):
        """Limits around the pool's size: served, or refused by name, but never killed."""
        refused = 0
        for limit in range(64, 92, 4):
            group = self.group(limit * MIB)
            with tempfile.TemporaryDirectory() as folder:
                process = subprocess.Popen(group.inside(
                    harness.program("engine/peercache-engine"),
                    "--set", f"engine.socket={folder}/s", "--set", "engine.pool_bytes=64MiB",
                    "--set", "engine.huge_pages=no", "--set", "metrics.port=0",
                    "--set", f"cluster.port={harness.cluster.free_port()}"),
                    stderr=subprocess.PIPE, text=True)
                harness.wait_for(lambda: process.poll() is not None or
                                 self.resident(process.pid) >= 64 * MIB, 60,
                                 "the engine has ended or populated its pool")
                process.terminate()
                _, err = harness.cluster.communicate(process, 60)
                with self.subTest(limit=limit):
                    self.assertIn(process.returncode, (0, 1), err)
                    if process.returncode:
                        refused += 1
                        self.assertIn(f"{group.limit} of cgroup", err)
        self.assertGreater(refused, 0)

    def test_clients_do_not_pay_for_the_pool(self):
        group = self.group()
        engines = self.start(1, pool_bytes="64MiB")
        harness.wait_for(lambda: self.resident(engines.process[0].pid) >= 64 * MIB, 60,
                         "the pool is populated")
        done = subprocess.run(
            group.inside(harness.program("tests/cluster/filler"), "--batches", "3",
                         "--timeout-ms", "60000"), check=False, capture_output=True, text=True,
            env={**os.environ, "PEERCACHE_SOCKETS": engines.sockets[0]})
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn('"hit"', done.stdout)
        # 48 MiB were stored; what the group has used for the programs themselves is far less.
        self.assertLess(group.used(), 24 * MIB)
        self.stop_cleanly(engines)


if __name__ == "__main__":
    harness.main()
