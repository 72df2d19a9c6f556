# SPDX-License-Identifier: Apache-2.0
"""Session.get_sized() on real engines: here, on another host, and on the disk of either."""

import ctypes
import os
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path[:0] = [os.path.join(ROOT, "tests", "cluster"),
                os.path.join(os.environ.get("PEERCACHE_BUILD", ""), "engine/client/python")]
import harness  # noqa: E402
from peercache import Session  # noqa: E402

LENGTHS = [1, 4096, 65535, 65536, 65537, 300000, 1 << 20]
ROOM = 1 << 20


class Sized(harness.ClusterTest):
    def session(self, engines, i):
        session = Session(engines.sockets[i], "always", 1)
        self.addCleanup(session.close)
        return session

    def store(self, session, name, lengths=LENGTHS):
        """Stores a page of each length. Returns {key: bytes}."""
        pages = {f"{name}-{n}": os.urandom(n) for n in lengths}
        for key, page in pages.items():
            self.assertEqual(session.set("s", [key], [page_at(page)], len(page), 20000), [True])
        return pages

    def read(self, session, pages, room, staged=False):
        """Gets the pages in one call, each into `room` bytes; checks lengths and bytes."""
        out = ctypes.create_string_buffer(b"\xa5" * (room * len(pages)), room * len(pages))
        at = ctypes.addressof(out)
        got = session.get_sized("s", list(pages), [at + i * room for i in range(len(pages))], room,
                                20000, staged)
        for i, page in enumerate(pages.values()):
            self.assertEqual(got[i], len(page) if len(page) <= room else -len(page))
            if got[i] > 0:
                self.assertEqual(out.raw[i * room:i * room + got[i]], page)
            if staged:  # what is behind the page stays as it was
                rest = out.raw[i * room + max(got[i], 0):(i + 1) * room]
                self.assertEqual(rest, b"\xa5" * len(rest))

    def promotes(self, engines):
        return engines.status(0)["counters"].get("disk_promotes", 0)

    def test_pages_in_memory(self):
        engines = self.start(2, pool_bytes="128MiB")
        sessions = [self.session(engines, i) for i in range(2)]
        pages = self.store(sessions[0], "m")
        for session in sessions:
            registered = session.alloc(2 * ROOM)
            for room in (1, 65536, 65537, ROOM):
                for staged in (False, True):
                    self.read(session, pages, room, staged)
            key, page = f"m-{LENGTHS[4]}", pages[f"m-{LENGTHS[4]}"]
            self.assertEqual(session.get_sized(
                "s", [key, "absent"], [registered, registered + ROOM], ROOM, 20000),
                [len(page), 0])
            self.assertEqual(ctypes.string_at(registered, len(page)), page)
            self.assertGreater(session.counts()["longer"], 0)
            self.assertEqual(session.failures(), {})
        self.assertEqual(sessions[1].counts()["corrupt"], 0)
        self.assertEqual(sessions[1].counts()["stale"], 0)

    def test_a_longer_page_is_counted_by_the_next_get(self):
        engines = self.start(1, pool_bytes="64MiB")
        session = self.session(engines, 0)
        self.store(session, "u", [8192])
        out = ctypes.create_string_buffer(8192)
        for room in (1, 8192):
            session.get_sized("s", ["u-8192"], [ctypes.addressof(out)], room, 20000)

        def counted():
            return [engines.figure(0, f"get_{name}_pages_total") for name in ("usable", "local")]
        harness.wait_for(lambda: counted()[1] == 1, 30, "the hit is counted")
        self.assertEqual(counted(), [1, 1])

    def test_pages_on_disk(self):
        with tempfile.TemporaryDirectory(prefix="peercache-disk-") as folder:
            engines = self.start(2, pool_bytes="64MiB", disk=folder, settings=[
                "disk.bytes=512MiB", "disk.segment_bytes=4MiB"])
            sessions = [self.session(engines, i) for i in range(2)]
            for reader in (0, 1):
                # of one size class with those that follow, which evict them to disk
                pages = self.store(sessions[0], f"d{reader}", [ROOM - n for n in (0, 1, 2, 4095)])
                big = os.urandom(ROOM)
                for n in range(160):
                    sessions[0].set("s", [f"big-{reader}-{n}"], [page_at(big)], len(big), 20000)
                before = self.promotes(engines)
                self.read(sessions[reader], pages, ROOM - 2)
                self.read(sessions[reader], pages, ROOM)
                self.assertGreaterEqual(self.promotes(engines) - before, len(pages))


def page_at(page):
    """The address of the bytes of an object that lives on."""
    return ctypes.cast(ctypes.c_char_p(page), ctypes.c_void_p).value


if __name__ == "__main__":
    harness.main()
