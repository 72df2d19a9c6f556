# SPDX-License-Identifier: Apache-2.0
"""Limits of cgroups and of processes: the engine names them, and clients do not pay for its memory.

Tests make cgroups of version 1 or 2 and are skipped where they may not.
"""

import ctypes
import itertools
import json
import os
import re
import resource
import signal
import subprocess
import tempfile
import unittest

import harness

MIB = 1 << 20


NAMES = {"memory": ("memory.limit_in_bytes", "memory.usage_in_bytes"),
         "pids": ("pids.max", "pids.current"), "cpu": ("cpu.cfs_quota_us", "cpu.shares")}
NAMES_2 = {"memory": ("memory.max", "memory.current"), "pids": ("pids.max", "pids.current"),
           "cpu": ("cpu.max", "cpu.weight")}


def parents(controller):
    """Folders in which a group with a limit may be made, and the names of its files."""
    with open("/proc/self/mountinfo", encoding="ascii") as file:
        for line in file:
            mount = line.split()[4]
            kind, _, options = line.split(" - ")[1].split()[:3]
            if kind == "cgroup" and controller in options.split(","):
                yield mount, *NAMES[controller]
            elif kind == "cgroup2":
                yield mount, *NAMES_2[controller]


class Group:
    """A cgroup with a limit of its own; programs run in it by inside()."""

    def __init__(self, controller, limit=None):
        for folder, self.limit, self.usage in parents(controller):
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
        raise unittest.SkipTest(f"no cgroup with a limit of {controller} can be made here")

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


def engine(folder):
    """The command of an engine whose files are in the folder."""
    return [harness.program("engine/peercache-engine"), *(x for text in (
        f"engine.socket={folder}/s", "engine.pool_bytes=64MiB", "engine.huge_pages=no",
        f"cluster.port={harness.cluster.free_port()}", "metrics.port=0") for x in ("--set", text))]


class Limits(harness.ClusterTest):
    def group(self, controller="memory", limit=None):
        group = Group(controller, limit)
        self.addCleanup(harness.wait_for, group.close, 20, "the group is empty")
        return group

    def folder(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        return folder.name

    def resident(self, pid):
        """Bytes of memory of memfds that the process has mapped and touched or populated."""
        with open(f"/proc/{pid}/status", encoding="ascii") as file:
            found = re.search(r"^RssShmem:\s*(\d+) kB", file.read(), re.M)
        return int(found.group(1)) << 10 if found else 0  # it ends

    def refused(self, command, *words, **options):
        """The engine ends with status 1 and one error that has these words."""
        done = harness.run(command, capture_output=True, text=True, **options)
        self.assertEqual(done.returncode, 1, done.stderr)
        for word in words:
            self.assertIn(word, done.stderr)

    def test_a_limit_below_the_pool_is_an_error_at_the_start(self):
        group = self.group(limit=48 * MIB)
        self.refused(group.inside(*engine(self.folder())), f"{group.limit} of cgroup",
                     "engine.pool_bytes")

    def test_a_limit_of_file_sizes_is_named(self):
        for bytes_ in (0, 4096, 32 * MIB):
            with self.subTest(bytes=bytes_):
                self.refused(
                    engine(self.folder()), f"RLIMIT_FSIZE is {bytes_} bytes", "LimitFSIZE",
                    preexec_fn=lambda: resource.setrlimit(  # pylint: disable=W0640
                        resource.RLIMIT_FSIZE, (bytes_, bytes_)))

    def test_a_limit_of_open_files_is_named_with_what_is_needed(self):
        for rails, least in (("soft", 88), ("soft,soft", 112)):
            for files in (16, 32, least - 1):
                with self.subTest(rails=rails, files=files):
                    self.refused(
                        [*engine(self.folder()), "--set", f"rail.devices={rails}"],
                        f"RLIMIT_NOFILE is {files}, this engine needs {least} open files",
                        preexec_fn=lambda: resource.setrlimit(  # pylint: disable=W0640
                            resource.RLIMIT_NOFILE, (files, files)))
            folder = self.folder()
            process = subprocess.Popen(  # pylint: disable=R1732
                ["sh", "-c", f'ulimit -n {least} && exec "$@"', "sh", *engine(folder), "--set",
                 f"rail.devices={rails}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            self.addCleanup(process.wait)
            self.addCleanup(process.kill)
            harness.wait_for(lambda: harness.run(
                [harness.program("tools/peercachectl"), "--socket", f"{folder}/s", "put", "a",
                 "--string", "b"], capture_output=True).returncode == 0, 30, "a client is served")

    def test_a_limit_of_file_sizes_does_not_end_a_client(self):
        engines = self.start(1, pool_bytes="16MiB")
        done = harness.run(
            [harness.program("tools/peercache-bench"), "get", "--seconds", "1"],
            capture_output=True,
            text=True, env={**os.environ, "PEERCACHE_SOCKETS": engines.sockets[0]},
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096)))
        self.assertIn("RLIMIT_FSIZE", done.stderr)
        self.assertGreater(done.returncode, 0, "it ends by itself")
        self.stop_cleanly(engines)

    def test_a_limit_of_threads_is_named(self):
        for tasks in (1, 2, 3):
            with self.subTest(tasks=tasks):
                group = self.group("pids", tasks)
                self.refused(group.inside(*engine(self.folder())), "no further thread",
                             "pids.max of cgroup", "allows 0 more", "TasksMax=")

    def serves(self, pid):
        """The engine has populated all of its pool, and takes a stop signal."""
        try:
            with open(f"/proc/{pid}/smaps", encoding="ascii") as file:
                maps = file.read()
        except ProcessLookupError:
            return False  # it ends
        found = re.findall(r"^Size:\s*(\d+) kB\n(?:\w+:.*\n)*?Rss:\s*(\d+) kB", maps, re.M)
        with open(f"/proc/{pid}/status", encoding="ascii") as file:
            takes = re.search(r"^SigCgt:\s*(\w+)", file.read(), re.M)
        return takes and int(takes.group(1), 16) >> (signal.SIGTERM - 1) & 1 and \
            any(64 * MIB <= int(size) << 10 == int(rss) << 10 for size, rss in found)

    def test_the_kernel_never_ends_an_engine_for_its_limit(self):
        """Limits around the pool's size: served, or refused by name, but never killed."""
        ends = set()
        # with MALLOC_PERTURB_ the engine writes to all memory that it allocates: 32 MiB more
        for perturb, limit in itertools.product(("0", "1"), range(64, 136, 8)):
            group = self.group(limit=limit * MIB)
            with tempfile.TemporaryDirectory() as folder, \
                    self.subTest(limit=limit, perturb=perturb):
                process = subprocess.Popen(
                    group.inside(*engine(folder)), stderr=subprocess.PIPE, text=True,
                    env={**os.environ, "MALLOC_PERTURB_": perturb})
                harness.wait_for(lambda: process.poll() is not None or self.serves(process.pid),
                                 60, "the engine has ended, or has populated its pool")
                process.terminate()
                _, err = harness.cluster.communicate(process, 60)
                self.assertIn(process.returncode, (0, 1), err)
                ends.add((perturb, process.returncode))
                if process.returncode:
                    self.assertIn(f"{group.limit} of cgroup", err)
        if harness.SLOW == 1:  # sanitizers need more memory
            self.assertEqual(len(ends), 4, "limits that suffice, and others")

    def stop_thread(self, pid, name):
        """Stops the thread of this name. Returns what lets it go on."""
        libc = ctypes.CDLL(None, use_errno=True)
        libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
        tid, = [tid for tid, comm in harness.tasks(pid, "comm") if comm.strip() == name]
        if libc.ptrace(0x4206, tid, None, None) < 0:  # PTRACE_SEIZE
            self.skipTest(f"cannot trace: {os.strerror(ctypes.get_errno())}")
        self.assertEqual(libc.ptrace(0x4207, tid, None, None), 0)  # PTRACE_INTERRUPT
        os.waitpid(tid, 0x40000000)  # __WALL
        return lambda: self.assertEqual(libc.ptrace(17, tid, None, None), 0)  # PTRACE_DETACH

    def paid(self, engines, batches):
        """Bytes that the cgroup of a client pays, which stores 16 MiB a batch."""
        group = self.group()
        done = subprocess.run(
            group.inside(harness.program("tests/cluster/filler"), "--batches", str(batches),
                         "--timeout-ms", "60000"), check=False, capture_output=True, text=True,
            env={**os.environ, "PEERCACHE_SOCKETS": engines.sockets[0]})
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(json.loads(done.stdout), {"hit": batches * 64})
        return group.used()

    def test_clients_pay_for_no_more_of_the_pool_than_they_touch_first(self):
        engines = self.start(1, pool_bytes="1GiB")  # it takes longer than a look at it
        pid = engines.process[0].pid

        def left():
            figures = engines.status(0)["figures"]
            return figures["memory_bytes"] - figures["memory_populated_bytes"]

        go_on = self.stop_thread(pid, "pc-populate")
        before, paid = left(), self.paid(engines, 20)
        harness.wait_for(lambda: before - left() >= paid - 24 * MIB, 20, "the status counts it")
        go_on()
        harness.wait_for(lambda: left() == 0, 60, "the memory is populated")
        self.assertGreaterEqual(self.resident(pid), 1 << 30)
        # what a group uses for the programs themselves is far less
        self.assertGreater(paid, 24 * MIB)
        self.assertLess(self.paid(engines, 40), 24 * MIB)
        self.stop_cleanly(engines)


if __name__ == "__main__":
    harness.main()
