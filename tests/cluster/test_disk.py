# SPDX-License-Identifier: Apache-2.0
"""Pages that go to disk and come back, with real engines and files; faults of the files."""

import glob
import json
import os
import random
import shutil
import signal
import subprocess
import tempfile
import unittest

import harness

SEGMENT = 4 << 20
SETTINGS = [f"disk.segment_bytes={SEGMENT}", f"disk.bytes={24 * SEGMENT}"]
POOL = "8MiB"  # a third of the pages of REPLAY
REPLAY = ("--requests", 200)
RATE = 32 << 20  # bytes a second of a replay


class DiskTest(harness.ClusterTest):
    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="peercache-test-disk-")
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)

    def disk(self, engines, i=0):
        return engines.status(i)["disk"]

    def counter(self, engines, name, i=0):
        return engines.status(i)["counters"][name]

    def findings(self, engines, i=0):
        return {f["id"]: f["text"] for f in engines.status(i)["health"]["findings"]}

    def filled(self):
        """An engine that has replayed REPLAY, so that its disk has most of the pages."""
        engines = self.start(1, pool_bytes=POOL, settings=SETTINGS, disk=self.folder)
        got = self.replay(engines, *REPLAY, "--bytes-per-s", int(RATE / harness.SLOW))
        self.assertEqual((got["wrong"], got["sets_failed"]), (0, 0))
        self.assertGreater(got["hits_disk"], 0)
        return engines

    def filled_without_drops(self):
        """As filled(), so slowly that the disk got every page that was evicted."""
        expected = self.describe(*REPLAY)
        for rate in (RATE, RATE / 4, RATE / 8, RATE / 32):
            engines = self.start(1, pool_bytes=POOL, settings=SETTINGS, disk=self.folder)
            got = self.replay(engines, *REPLAY, "--bytes-per-s", int(rate / harness.SLOW))
            self.assertEqual(got["wrong"], 0)
            if got["drops"] == 0:
                self.assertEqual(got["hits"], expected["prefix_hits"])
                self.assertEqual(got["sets"], expected["different_blocks"])
                return engines
            self.stop_cleanly(engines)  # this machine is busy: the disk was slower
        raise unittest.SkipTest("the disk of this machine is too slow: pages were dropped")

    def again(self, engines):
        """Replays the same requests; every page was stored before. Returns its summary."""
        return self.replay(engines, *REPLAY, "--bytes-per-s", int(RATE / harness.SLOW))

    def segments(self, engines):
        return sorted(glob.glob(os.path.join(engines.disks[0], "peercache-disk.[0-9]*")))


class Pages(DiskTest):
    def test_every_page_that_left_memory_is_hit_again(self):
        engines = self.filled_without_drops()
        blocks = self.describe(*REPLAY)["blocks"]
        got = self.again(engines)
        self.assertEqual(got["wrong"], 0)
        if got["drops"] == 0:
            self.assertEqual((got["hits"], got["sets"]), (blocks, 0))
        disk = self.disk(engines)
        pages = engines.figure(0, "disk_pages")
        self.assertGreater(pages, 0)
        self.assertEqual([p["state"] for p in disk["paths"]], ["up"])
        self.assertLessEqual(pages * 16384, engines.figure(0, "disk_written_bytes_total"))
        # A clean page is not written again: far less was written than was evicted.
        spills, evicted = (self.counter(engines, n) for n in ("disk_spills", "pages_evicted"))
        self.assertLess(spills, evicted)
        self.assertLessEqual(spills, self.describe(*REPLAY)["different_blocks"])
        self.assertNotIn("disk_failed", self.findings(engines))
        self.stop_cleanly(engines)

    def test_an_engine_without_a_disk_has_none(self):
        engines = self.start(1, pool_bytes=POOL)
        got = self.replay(engines, *REPLAY)
        self.assertEqual((got["hits_disk"], got["drops"]), (0, 0))
        self.assertEqual(self.disk(engines)["paths"], [])
        self.assertEqual(self.counter(engines, "disk_misses"), 0, "no client asks for a disk")
        self.stop_cleanly(engines)

    def test_pages_are_found_again_after_a_restart(self):
        engines = self.filled()
        pages = engines.figure(0, "disk_pages")
        engines.kill(0, signal.SIGTERM)
        engines.restart(0)
        harness.wait_for(lambda: self.disk(engines)["paths"][0]["state"] == "up", 20, "disk open")
        self.assertGreaterEqual(engines.figure(0, "disk_pages"), pages * 9 // 10)
        got = self.again(engines)
        self.assertEqual(got["wrong"], 0)
        self.assertGreater(got["hits_disk"], 0)
        self.stop_cleanly(engines)

    def restarted(self, engines, how):
        """Ends the engine with a signal; the next one has its disk."""
        engines.kill(0, how)
        engines.restart(0)
        harness.wait_for(lambda: self.disk(engines)["paths"][0]["state"] == "up", 30, "disk open")

    def ctl(self, engines, *words, expect=0):
        done = harness.run([harness.program("tools/peercachectl"), "--socket",
                            engines.sockets[0], *words], capture_output=True, text=True)
        self.assertEqual(done.returncode, expect, done.stdout + done.stderr)
        return done.stdout

    def test_pages_in_memory_are_on_disk_after_an_orderly_stop(self):
        engines = self.start(1, pool_bytes=POOL, settings=SETTINGS, disk=self.folder)
        harness.wait_for(lambda: self.disk(engines)["paths"][0]["state"] == "up", 30, "disk open")
        keys = [f"key{n}" for n in range(12)]
        for key in keys:
            self.ctl(engines, "put", key, "--string", f"value of {key}")
        self.assertEqual(self.counter(engines, "disk_spills"), 0, "no eviction was near")
        self.restarted(engines, signal.SIGTERM)
        self.assertGreaterEqual(engines.figure(0, "disk_pages"), len(keys))
        for key in keys:
            self.assertEqual(self.ctl(engines, "get", key), f"value of {key}")
        self.assertGreaterEqual(self.counter(engines, "disk_hits"), len(keys))
        self.stop_cleanly(engines)


class Moving(DiskTest):
    """Slots that the disk reads into and writes from, while clients of another host READ them."""
    PROMOTES, REMOTE, STALE = 10000, 10000, 100  # what must have happened

    def reader(self, sockets):
        """Reads pages at random until it is ended, and compares every byte. Its pages are four
        times the pool of the engine with the last socket, which stores them."""
        return harness.tool("tools/peercache-bench", "get", "--seconds", 600, "--batch", 16,
                            "--page-bytes", "16KiB", "--working-set", "32MiB", "--seed", 7,
                            "--no-baseline", "--verify", "--json", "-", sockets=sockets)

    def test_remote_reads_of_slots_that_the_disk_uses_are_never_wrong(self):
        engines = self.start(2, pool_bytes=POOL, settings=SETTINGS, disk=self.folder)
        holder, other = engines.sockets
        sockets = [[holder], [other, holder]]
        readers = [self.reader(at) for at in sockets]
        self.addCleanup(lambda: [reader.kill() for reader in readers])
        ended, base = [], [0, 0, 0]

        def counts():
            return [self.counter(engines, "disk_promotes"),
                    self.counter(engines, "pages_used_remotely"),
                    self.counter(engines, "entries_stale", 1)]

        def moved():
            for i, reader in enumerate(readers):
                if reader.poll() is not None:  # the disk was too slow to store all pages in time
                    ended.append(harness.finish(reader))
                    self.assertEqual(ended[-1][0], 2, ended)
                    self.assertLess(len(ended), 10, ended)
                    readers[i] = self.reader(sockets[i])
                    base[:] = counts()  # so that the new one does its part
            return all(now - was >= least for now, was, least in zip(
                counts(), base, (self.PROMOTES, self.REMOTE, self.STALE)))

        harness.wait_for(moved, 240, "pages move, and are READ meanwhile, some too late")
        for i, reader in enumerate(readers):
            harness.end_early(reader)
            status, out, err = harness.finish(reader)
            self.assertEqual(status, 0, err)
            got = json.loads(out[out.index("{"):])
            self.assertEqual(got["wrong"], 0)
            self.assertGreater(got[("hits_local", "hits_remote")[i]], 0)
        self.assertEqual([self.counter(engines, "pages_corrupt", i) for i in range(2)], [0, 0])
        self.stop_cleanly(engines)


class Faults(DiskTest):
    def test_flipped_bits_are_misses_and_the_path_leaves_service(self):
        engines = self.filled()
        rng = random.Random(int(os.environ.get("SEED", "1")))
        for name in self.segments(engines):
            with open(name, "r+b") as file:
                for unit in range(2, SEGMENT // 4096):
                    at = unit * 4096 + rng.randrange(4096)
                    file.seek(at)
                    byte = file.read(1)[0]
                    file.seek(at)
                    file.write(bytes([byte ^ 1 << rng.randrange(8)]))
                os.fsync(file.fileno())
        got = self.again(engines)
        self.assertEqual((got["wrong"], got["sets_failed"]), (0, 0))
        self.assertLess(got["hits"], got["blocks"])
        path, = self.disk(engines)["paths"]
        self.assertGreater(path["crc_errors"], 0)
        harness.wait_for(lambda: "disk_failed" in self.findings(engines), 10, "the finding")
        self.assertIn("wrong bytes", self.disk(engines)["paths"][0]["reason"])
        self.assertEqual(engines.log(0).count("out of service"), 1, "logged once")
        self.serves_on(engines)

    def serves_on(self, engines, i=0):
        """Sets and gets work as without a disk."""
        got = self.replay(engines, "--requests", 20, "--namespace", "after")
        self.assertEqual((got["sets_failed"], got["wrong"]), (0, 0))
        self.assertGreater(got["hits"], 0)
        self.stop_cleanly(engines)

    @unittest.skipUnless(os.geteuid() == 0, "mounting a small file system needs root")
    def test_a_full_file_system_leaves_the_engine_without_that_path(self):
        mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={2 * SEGMENT}", "none",
                                  self.folder], capture_output=True)
        if mounted.returncode:
            self.skipTest("this machine does not allow mounts")
        self.addCleanup(subprocess.run, ["umount", "-l", self.folder])
        engines = self.start(1, pool_bytes=POOL, settings=SETTINGS, disk=self.folder)
        harness.wait_for(lambda: "disk_failed" in self.findings(engines), 20, "the finding")
        self.serves_on(engines)


if __name__ == "__main__":
    harness.main()
