# SPDX-License-Identifier: Apache-2.0
"""Pages on the disk of another host: found by the directory, promoted by their holder."""

import json
import os
import shutil
import signal
import tempfile

import harness

SEGMENT = 4 << 20
SETTINGS = [f"disk.segment_bytes={SEGMENT}", f"disk.bytes={40 * SEGMENT}",
            "engine.pool_bytes=8MiB"]
BYTES = 16384
PAGES = 2000  # four times a pool
REST_US = 20000 * harness.SLOW  # between two batches of 16 pages: the disk keeps up


class RemoteTest(harness.ClusterTest):
    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="peercache-test-disk-")
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        self.results = os.path.join(self.folder, "results")

    def counter(self, engines, name, i):
        return engines.status(i)["counters"][name]

    def kept(self, engines, i, command, *arguments, pages=PAGES):
        process = harness.tool("tests/cluster/kept", command, "--results", self.results,
                               "--bytes", BYTES, "--count", pages, "--timeout-ms", 20000,
                               *arguments, sockets=[engines.sockets[i]])
        status, out, err = harness.finish(process)
        self.assertEqual(status, 0, err)
        return json.loads(out)

    def filled(self, nodes=2, **options):
        """Engine 0 stores PAGES pages; most of them are then only on its disk."""
        settings = [*SETTINGS, *options.pop("settings", [])]
        for slower in (1, 4, 16):
            engines = self.start(nodes, settings=settings, disk=self.folder, **options)
            got = self.kept(engines, 0, "set", "--rest-us", min(999999, int(REST_US * slower)))
            self.assertEqual(got.get("hit"), PAGES, got)
            self.whole(engines, 0)
            if not self.counter(engines, "disk_drops", 0):
                self.assertGreater(self.counter(engines, "pages_evicted", 0), PAGES // 2)
                return engines
            self.stop_cleanly(engines)  # this machine is busy: the disk was slower
        return self.skipTest("the disk of this machine is too slow: pages were dropped")

    def whole(self, engines, i):
        """Nothing is being written, and all owners have acknowledged all entries."""
        def quiet():
            status = engines.status(i)
            return status["disk"]["spills"] == 0 and all(
                m["queued"] + m["unacknowledged"] == 0 for m in status["members"])

        harness.wait_for(quiet, 30, "no page is being written, and no entry is in flight")

    def published(self, engines, i):
        """All entries of engine i are: a key of peercachectl has those of several pages."""
        harness.wait_for(lambda: self.settled(engines, i), 60, "all are published")

    def settled(self, engines, i):
        figures = engines.status(i)["figures"]
        return not figures["directory_moving"] and figures["directory_owners_behind"] == 0

    def find_all(self, engines, i):
        """Every page is found and read, except those that the holder evicted unwritten meanwhile
        because its disk was slower: these are counted."""
        got = self.kept(engines, i, "find")
        lost = PAGES - got["read"]
        self.assertEqual((got["kept"], got["wrong"]), (PAGES, 0))
        self.assertLessEqual(lost, self.counter(engines, "disk_drops", 0), got)
        self.assertLess(lost, PAGES // 10)
        self.assertGreaterEqual(got["found"], got["read"])

    def ctl(self, engines, i, *words, expect=0):
        done = harness.run([harness.program("tools/peercachectl"), "--socket",
                            engines.sockets[i], *words], capture_output=True, text=True)
        self.assertEqual(done.returncode, expect, done.stdout + done.stderr)
        return done.stdout


class Reading(RemoteTest):
    def test_every_page_is_read_from_the_disk_of_another_host(self):
        engines = self.filled()
        self.find_all(engines, 1)
        self.assertGreater(self.counter(engines, "disk_hits_remote", 0), PAGES // 4)
        self.assertEqual(self.counter(engines, "pages_published", 1), 0, "no copy here")
        # Pins end when the pages were read: a Touch came for all but those of the last batches,
        # whose reader may have left before its engine took its last reports.
        self.assertGreater(self.counter(engines, "pages_used_remotely", 0), PAGES * 9 // 10)
        harness.wait_for(lambda: engines.status(0)["disk"]["pins"] == 0, 20, "no pin is left")
        self.assertEqual(self.counter(engines, "pages_corrupt", 0), 0)
        self.stop_cleanly(engines)

    def test_explain_names_the_disk_and_changes_nothing(self):
        engines = self.start(2, settings=SETTINGS, disk=self.folder, keeper=False)
        self.ctl(engines, 0, "put", "key", "--string", "value")
        engines.kill(0, signal.SIGTERM)  # it is on disk then
        engines.restart(0)
        # From the first moment on, while its entry comes, no host takes the page for its own.
        harness.wait_for(lambda: self.explained(engines, 0), 30, "its host has it")
        found = harness.wait_for(lambda: self.explained(engines, 1), 30, "the other host finds it")
        self.assertEqual((found["verdict"], found["here"]), ("on disk", "nowhere"))
        self.assertIn(engines.status(0)["name"], found["text"])
        found = self.explained(engines, 0)
        self.assertEqual((found["verdict"], found["here"]), ("on disk", "disk"))
        self.assertIn("on the disk of this host", found["text"])
        self.assertEqual(self.counter(engines, "disk_promotes", 0), 0)
        self.assertEqual(self.ctl(engines, 1, "get", "key"), "value")
        self.assertGreater(self.counter(engines, "disk_promotes", 0), 0)
        self.assertEqual(self.explained(engines, 1)["verdict"], "present")
        self.stop_cleanly(engines)

    def explained(self, engines, i):
        done = harness.run([harness.program("tools/peercachectl"), "--socket",
                            engines.sockets[i], "explain", "key", "--json"],
                           capture_output=True, text=True)
        return json.loads(done.stdout) if done.returncode == 0 else None


class Changes(RemoteTest):
    def test_pages_are_found_on_the_disk_of_a_holder_that_was_killed(self):
        engines = self.filled()
        engines.kill(0)  # without an orderly stop: pages that were only in memory are lost
        engines.restart(0)
        engines.wait_members(2)
        harness.wait_for(lambda: engines.status(0)["disk"]["paths"][0]["state"] == "up", 30, "up")
        on_disk = engines.figure(0, "disk_pages")
        self.assertGreater(on_disk, PAGES // 2)
        harness.wait_for(lambda: self.settled(engines, 0), 60, "all are published")
        got = self.kept(engines, 1, "find")
        self.assertEqual(got["wrong"], 0)
        self.assertEqual((got["found"], got["read"]), (on_disk, on_disk), got)
        self.stop_cleanly(engines)


class Faults(RemoteTest):
    def test_a_holder_that_is_killed_while_others_read_costs_no_hang_and_no_wrong_page(self):
        engines = self.filled()
        process = harness.tool("tests/cluster/kept", "find", "--results", self.results, "--bytes",
                               BYTES, "--count", PAGES, "--timeout-ms", 2000,
                               sockets=[engines.sockets[1]])
        harness.wait_for(lambda: self.counter(engines, "disk_asks", 1) > 50, 30, "it reads")
        engines.kill(0)
        status, out, err = harness.finish(process)
        self.assertEqual(status, 0, err)
        got = json.loads(out)
        self.assertEqual(got["wrong"], 0)
        self.assertLess(got["read"], PAGES)
        self.assertGreater(got["read"], 0)
        self.assertEqual(engines.figure(1, "client_sessions"), 1)
        self.stop_cleanly(engines)

    def test_files_that_are_gone_are_misses_and_their_entries_go(self):
        engines = self.filled()
        path = engines.disks[0]
        for name in os.listdir(path):
            if name.startswith("peercache-disk.0"):
                os.truncate(os.path.join(path, name), 0)
        got = self.kept(engines, 1, "find")
        self.assertEqual(got["wrong"], 0)
        self.assertLess(got["read"], PAGES)
        # The path left service: no entry of a page on disk is left, so that exists tells the truth.
        in_memory = engines.figure(0, "pages")
        harness.wait_for(lambda: self.kept(engines, 1, "find")["found"] <= in_memory, 30, "gone")
        self.stop_cleanly(engines)


if __name__ == "__main__":
    harness.main()
