# SPDX-License-Identifier: Apache-2.0
"""pc_clear() and `peercachectl clear` on real engines: memory, disk, pages on the way, restarts."""

import ctypes
import json
import os
import signal
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path[:0] = [os.path.join(ROOT, "tests", "cluster"),
                os.path.join(os.environ.get("PEERCACHE_BUILD", ""), "engine/client/python")]
import harness  # noqa: E402
from peercache import Session  # noqa: E402

BYTES = 65536
DISK = ["disk.bytes=256MiB", "disk.segment_bytes=4MiB"]


class Clear(harness.ClusterTest):
    page = ctypes.create_string_buffer(b"x" * BYTES, BYTES)

    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="peercache-disk-")
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def session(self, engines, i):
        session = Session(engines.sockets[i], "never", 1)
        self.addCleanup(session.close)
        return session

    def keys(self, count, name="k"):
        return [f"{name}{n:063x}" for n in range(count)]

    def store(self, session, space, keys):
        """Stores pages of 64 KiB and asserts that all are stored."""
        for at in range(0, len(keys), 64):
            some = keys[at:at + 64]
            self.assertTrue(all(session.set(
                space, some, [ctypes.addressof(self.page)] * len(some), BYTES, 20000)))

    def found(self, session, space, keys):
        """The number of keys that a get of this session reads."""
        out = ctypes.create_string_buffer(BYTES)
        return sum(sum(session.get(space, [key], [ctypes.addressof(out)], BYTES, 20000))
                   for key in keys)

    def ctl(self, engines, i, *words):
        done = harness.run([harness.program("tools/peercachectl"), "--socket",
                            engines.sockets[i], *words], capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    def on_disk(self, engines, i):
        return engines.figure(i, "disk_pages")

    def test_a_group_goes_whichever_process_and_rank_has_stored_it(self):
        engines = self.start(2, pool_bytes="64MiB")
        here, other, there = (self.session(engines, i) for i in (0, 0, 1))
        keys = self.keys(100)
        for space in ("a||rank0", "a||rank1", "a", "ab||rank0", "b"):
            self.store(here, space, keys)
        self.store(there, "a||rank2", keys)
        # what another channel remembers of the pages is of no use afterwards
        self.assertEqual(self.found(there, "a||rank0", keys), 100)
        self.assertEqual(sum(other.exists("a||rank1", keys, 20000)), 100)
        self.assertEqual(other.clear("a", 60000), 300)
        for session in (here, other, there):
            for space in ("a||rank0", "a||rank1", "a"):
                self.assertEqual(self.found(session, space, keys), 0)
            for space in ("ab||rank0", "b", "a||rank2"):
                self.assertEqual(self.found(session, space, keys[:10]), 10)
        self.assertEqual(sum(other.exists("a||rank1", keys, 20000)), 0)
        harness.wait_for(lambda: sum(there.exists("a||rank0", keys, 20000)) == 0, 30,
                         "the owners have dropped the entries")
        self.assertEqual(other.clear("a", 60000), 0)
        self.store(here, "a||rank0", keys)
        self.assertEqual(self.found(there, "a||rank0", keys), 100)
        with self.assertRaisesRegex(OSError, "no group"):
            here.clear("a||rank0", 1000)
        self.stop_cleanly(engines)

    def test_the_command_empties_a_namespace_or_the_host(self):
        engines = self.start(1, pool_bytes="16MiB")
        session = self.session(engines, 0)
        self.store(session, "a||x", self.keys(20))
        self.store(session, "b", self.keys(20))
        self.assertIn("20 keys of namespace a ", self.ctl(engines, 0, "clear", "--namespace", "a"))
        self.assertEqual(self.found(session, "b", self.keys(20)), 20)
        got = json.loads(self.ctl(engines, 0, "clear", "--json"))
        self.assertEqual((got["removed"], got["json_version"]), (20, 3))
        status = engines.status(0)
        self.assertEqual([status["figures"][name] for name in ("pages", "directory_entries")],
                         [0, 0])
        self.stop_cleanly(engines)

    def test_pages_on_disk_and_on_the_way_there_stay_away(self):
        engines = self.start(2, pool_bytes="16MiB", settings=DISK, disk=self.folder)
        here, there = self.session(engines, 0), self.session(engines, 1)
        old, other = self.keys(700), self.keys(100, "o")
        self.store(here, "b", other)
        self.store(here, "a||x", old)  # 44 MiB: most are on disk, being written or dropped
        harness.wait_for(lambda: self.on_disk(engines, 0) > 50, 30, "pages are on disk")
        self.assertGreater(self.found(there, "a||x", old[:300]) +
                           self.found(here, "a||x", old[300:]), 0)
        removed = here.clear("a", 60000)
        self.assertGreater(removed, 100)
        left = self.found(there, "b", other)
        for session in (here, there):
            self.assertEqual(self.found(session, "a||x", old), 0)
        for how in (signal.SIGTERM, signal.SIGKILL):
            self.store(here, "a||y", self.keys(700, how.name))
            self.assertGreater(here.clear("a", 60000), 0)
            engines.kill(0, how)
            engines.restart(0)
            engines.wait_members(2)
            for session in (here, there):
                harness.wait_for(lambda: session.attached() or session.exists("a", ["k"], 1000), 30,
                                 "attached")
                self.assertEqual(self.found(session, "a||x", old), 0)
                if how == signal.SIGTERM:  # a kill may come before the disk has noted the last ones
                    self.assertEqual(self.found(session, "a||y", self.keys(700, how.name)), 0)
        if left:  # what eviction and the restarts have left of another group
            self.assertGreaterEqual(self.found(there, "b", other), 0)
        self.stop_cleanly(engines)

    def test_pages_of_a_group_that_is_cleared_again_and_again_are_never_found_later(self):
        """Sets go on in another group while pages move between memory and disk."""
        engines = self.start(1, pool_bytes="16MiB", settings=DISK, disk=self.folder)
        session = self.session(engines, 0)
        for round_ in range(8):
            keys = self.keys(150, f"{round_}-")
            self.store(session, "a||x", keys)
            session.exists("a||x", keys, 20000)  # brings some back from disk
            self.store(session, "b", self.keys(60, f"b{round_}-"))
            session.clear("a", 60000)
            self.assertEqual(self.found(session, "a||x", keys), 0)
        self.assertEqual(session.clear("a", 60000), 0)
        begun = harness.clock()
        session.clear(None, 60000)
        self.assertLess(harness.clock() - begun, 60)
        harness.wait_for(lambda: self.on_disk(engines, 0) == 0, 30, "the disk is empty")
        self.stop_cleanly(engines)

    def test_a_stopped_engine_does_not_keep_the_caller(self):
        engines = self.start(1, pool_bytes="16MiB")
        session = self.session(engines, 0)
        self.store(session, "a", self.keys(1))
        harness.freeze(engines.process[0])
        try:
            with self.assertRaises(TimeoutError):
                session.clear("a", 200)
        finally:
            os.kill(engines.process[0].pid, signal.SIGCONT)
        harness.wait_for(lambda: self.found(session, "a", self.keys(1)) == 0, 30, "it goes on")
        self.stop_cleanly(engines)


if __name__ == "__main__":
    harness.main()
