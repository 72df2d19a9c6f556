# SPDX-License-Identifier: Apache-2.0
"""A disk whose I/O hangs: a cgroup of the kernel holds the engine's I/O back until it is told to
let it through. The engine serves on, and no engine after it uses what the I/O may still touch."""

import json
import os
import shutil
import tempfile
import time
import unittest

import harness

SEGMENT = 4 << 20
SETTINGS = [f"disk.segment_bytes={SEGMENT}", f"disk.bytes={40 * SEGMENT}",
            "engine.pool_bytes=16MiB", "disk.timeout_ms=10000"]
BYTES = 16384
PAGES = 2000  # twice the pool
REST_US = 20000 * harness.SLOW
V1, V2 = "/sys/fs/cgroup/blkio", "/sys/fs/cgroup"


def whole_disk(path):
    """major:minor of the disk that has the file system of `path`; None: it has no disk."""
    number = os.stat(path).st_dev
    block = f"/sys/dev/block/{os.major(number)}:{os.minor(number)}"
    if not os.path.exists(block):
        return None
    block = os.path.realpath(block)
    if os.path.exists(f"{block}/partition"):
        block = os.path.dirname(block)
    with open(f"{block}/dev", encoding="ascii") as file:
        return file.read().strip()


class Dam:
    """A cgroup whose I/O to one disk is held back on request."""
    def __init__(self, device):
        self.device = device
        self.v2 = not os.path.isdir(V1)
        self.path = f"{V2 if self.v2 else V1}/peercache-test-{os.getpid()}"

    def make(self):
        os.mkdir(self.path)
        self.hold(False)

    def write(self, name, text):
        with open(f"{self.path}/{name}", "w", encoding="ascii") as file:
            file.write(text)

    def add(self, pid):
        self.write("cgroup.procs", str(pid))

    def hold(self, yes):
        # One byte a second: the first request waits longer than any test.
        if self.v2:
            limit = 1 if yes else "max"
            self.write("io.max", f"{self.device} rbps={limit} wbps={limit}")
            return
        for way in ("read", "write"):
            self.write(f"blkio.throttle.{way}_bps_device", f"{self.device} {int(yes)}")

    def close(self):
        self.hold(False)
        end = time.monotonic() + 30
        while time.monotonic() < end:
            try:
                return os.rmdir(self.path)
            except OSError:
                time.sleep(0.05)  # its last process is ending


@unittest.skipUnless(os.geteuid() == 0, "holding I/O back needs root")
class HangTest(harness.ClusterTest):
    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="peercache-test-disk-")
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        self.results = os.path.join(self.folder, "results")
        device = whole_disk(self.folder)
        self.dam = Dam(device)
        try:
            if not device:
                raise OSError(f"{self.folder} is on no disk")
            self.dam.make()
        except OSError as e:
            self.skipTest(f"this machine cannot hold I/O back: {e}")
        self.addCleanup(self.dam.close)

    def filled(self, **options):
        engines = self.start(1, settings=SETTINGS, disk=self.folder, **options)
        got = self.kept(engines, "set", "--rest-us", int(REST_US))
        self.assertEqual(got.get("hit"), PAGES, got)
        harness.wait_for(lambda: engines.status(0)["disk"]["spills"] == 0, 30, "all written")
        self.dam.add(engines.engine_pid(0))
        return engines

    def reader(self, engines, *arguments):
        return harness.tool("tests/cluster/kept", *arguments, "--results", self.results, "--bytes",
                            BYTES, "--count", PAGES, sockets=engines.sockets)

    def kept(self, engines, *arguments):
        status, out, err = harness.finish(self.reader(engines, *arguments))
        self.assertEqual(status, 0, err)
        return json.loads(out)

    def memory_hits(self, engines):
        """Gets of pages in memory only. Returns their p99, us."""
        status, out, err = harness.finish(harness.tool(
            "tools/peercache-bench", "get", "--seconds", 3, "--batch", 1, "--page-bytes", BYTES,
            "--working-set", "1MiB", "--no-baseline", "--verify", "--json", "-",
            sockets=engines.sockets))
        self.assertEqual(status, 0, err)
        got = json.loads(out[out.index("{"):])
        self.assertEqual(got["wrong"], 0)
        return got["p99_us"]

    def path(self, engines):
        return engines.status(0)["disk"]["paths"][0]

    def test_a_path_that_hangs_leaves_service_and_memory_is_served_meanwhile(self):
        engines = self.filled()
        before = self.memory_hits(engines)
        self.dam.hold(True)
        readers = [self.reader(engines, "find", "--timeout-ms", "500") for _ in range(2)]
        self.addCleanup(lambda: [reader.kill() for reader in readers])
        harness.wait_for(lambda: engines.status(0)["disk"]["promotes"] > 0, 20, "reads hang")
        meanwhile = self.memory_hits(engines)
        print(f"p99 of memory hits: {before:.1f} us, {meanwhile:.1f} us while the path hangs")
        harness.wait_for(lambda: self.path(engines)["state"] == "out", 40, "it is out of service")
        self.assertIn("disk_failed", [f["id"] for f in engines.status(0)["health"]["findings"]])
        after = self.memory_hits(engines)
        print(f"p99 afterwards: {after:.1f} us")
        for reader in readers:
            status, out, err = harness.finish(reader)
            self.assertEqual(status, 0, err)
            self.assertEqual(json.loads(out)["wrong"], 0)
        self.dam.hold(False)
        self.assertEqual(self.kept(engines, "find")["wrong"], 0)
        self.stop_cleanly(engines)

    def test_io_that_ends_after_its_engine_was_killed_delays_the_disk_of_the_next_one(self):
        engines = self.filled(keeper=True)
        self.dam.hold(True)
        reader = self.reader(engines, "find", "--timeout-ms", "500")
        self.addCleanup(reader.kill)
        harness.wait_for(lambda: engines.status(0)["disk"]["promotes"] > 0, 20, "reads hang")
        engines.crash(0)
        reader.kill()
        reader.communicate()
        # The next engine serves its memory. The I/O of the one before may still end: its slots stay
        # reserved, and its disk stays closed.
        held = time.monotonic() + 5
        while time.monotonic() < held:
            status = engines.status(0)
            self.assertNotEqual(status["disk"]["paths"][0]["state"], "up")
            self.assertGreater(status["figures"]["client_credits_reserved"], 0)
        self.assertGreater(self.kept(engines, "find", "--timeout-ms", "500")["read"], 0)
        self.dam.hold(False)
        harness.wait_for(lambda: self.path(engines)["state"] == "up", 30, "the disk is open")
        harness.wait_for(lambda: engines.figure(0, "client_credits_reserved") == 0, 30,
                         "slots return")
        got = self.kept(engines, "find")
        self.assertEqual(got["wrong"], 0)
        self.assertGreater(got["read"], PAGES * 9 // 10)
        self.stop_cleanly(engines)


if __name__ == "__main__":
    harness.main()
