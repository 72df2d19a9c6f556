# SPDX-License-Identifier: Apache-2.0
"""A client that writes false data into its rings and requests: only its session ends or its op is
refused.

The test itself implements the attach protocol of engine/abi/segment.h and writes into the rings.
"""

import contextlib
import mmap
import os
import re
import select
import socket
import struct
import threading
import time

import harness

REQUEST, REPLY = struct.Struct("<IHHIIQQ"), struct.Struct("<IHHIiQQ224s")
MAGIC = 0x50434131
with open(os.path.join(harness.ROOT, "engine", "abi", "segment.h"), encoding="ascii") as header:
    VERSION = int(re.search(r"#define ABI_VERSION (\d+)", header.read())[1])
HELLO, CHANNEL_OPEN, REGION_ADD = 1, 2, 4
RING_HEADER, OP_SLOTS, DONE_SLOTS, CTL_SLOTS = 128, 2048, 2048, 4096
STATISTICS, OP_RING = 4096, 8192
DONE_RING = OP_RING + RING_HEADER + OP_SLOTS * 64
CTL_RING = DONE_RING + RING_HEADER + DONE_SLOTS * 16
CTL_DONE = CTL_RING + RING_HEADER + CTL_SLOTS * 64
HEADER, ENTRY = struct.Struct("<IIBBHHHIIQ"), struct.Struct("<IIQQQ")
SEGMENT = struct.Struct("<QIHH")
CTL = struct.Struct("<QBBHHHQQIIIIQQ")
TURN_AT, FIRST_TURN, SECOND_TURN = 14, b"\0\x80", b"\1\x80"
OP_PAGE, CTL_PUBLISH, CTL_RETURN = 2, 2, 3
INVALID = 6
SESSIONS_MAX = 64


class Client:
    """One session and one channel, without libpeercache."""

    def __init__(self, path, seconds):
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket.settimeout(seconds)
        self.socket.connect(path)
        self.serial = 0
        self.fds = self.ask(HELLO)[1]
        self.kick_control, self.kick_rail = self.fds[1], self.fds[5]
        reply, fds = self.ask(CHANNEL_OPEN)
        self.fds += fds
        self.staging = reply[6]
        self.memory = mmap.mmap(fds[0], CTL_DONE + RING_HEADER + CTL_SLOTS * 32)

    def ask(self, kind, a=0, b=0, magic=MAGIC, version=VERSION, fds=()):
        self.serial += 1
        request = REQUEST.pack(magic, version, kind, self.serial, 0, a, b)
        socket.send_fds(self.socket, [request], list(fds))
        data, got, _, _ = socket.recv_fds(self.socket, REPLY.size, 64)
        return (REPLY.unpack(data) if data else None), got

    def publish(self, ring, slots, turn=FIRST_TURN):
        """Writes 64-byte slots from slot 0 on; the sequence number of the first slot last."""
        for i, slot in reversed(list(enumerate(slots))):
            at = ring + RING_HEADER + 64 * i
            self.memory[at:at + 64] = slot.ljust(64, b"\0")
            self.memory[at + TURN_AT:at + TURN_AT + 2] = turn
        for fd in (self.kick_control, self.kick_rail):
            os.write(fd, struct.pack("<Q", 1))

    def await_done(self, ring, seconds):
        """Waits for the first completion; returns where it is."""
        at = ring + RING_HEADER
        harness.wait_for(lambda: self.memory[at + TURN_AT:at + TURN_AT + 2] == FIRST_TURN,
                         seconds, "an answer")
        return at

    def done(self, seconds):
        """The first completion of a run: (cookie, hit, stale, status)."""
        return struct.unpack_from("<IIIB", self.memory, self.await_done(DONE_RING, seconds))

    def ctl_done(self, seconds):
        """The first completion of the control plane: (cookie, status)."""
        at = self.await_done(CTL_DONE, seconds)
        return struct.unpack_from("<Q8xI", self.memory, at)

    def ended(self):
        """True if the engine has closed the session."""
        readable, _, _ = select.select([self.socket], [], [], 0)
        return bool(readable) and self.socket.recv(1) == b""

    def close(self):
        self.memory.close()
        self.socket.close()
        for fd in self.fds:
            os.close(fd)


def op(cookie=7, segments=1, peer=1, region=0, unit=0, ref=1, length=4096, to=0):
    """An encoded OP_PAGE. `to`: region and offset of its only segment."""
    deadline = (time.monotonic_ns() // 1024 + 60 * 10 ** 6) % 2 ** 32
    return HEADER.pack(cookie, ref, OP_PAGE, 0, segments | region << 10, peer, 0, length, deadline,
                       to >> 48 << 48 | length) + \
        ENTRY.pack(unit, 1, to % 2 ** 48, 1, 2)


class Hostile(harness.ClusterTest):
    def setUp(self):
        self.engines = self.start(2, pool_bytes="32MiB")

    def tearDown(self):
        """Checks that other clients are served as before and that the hostile session is freed."""
        self.replay(self.engines, "--requests", 30, "--namespace", self.id())
        harness.wait_for(lambda: self.engines.figure(0, "client_sessions") == 1, 20,
                         "only the session of this status request is left")
        self.assertEqual(self.engines.figure(0, "client_channels"), 0)
        self.stop_cleanly(self.engines)

    def client(self):
        client = Client(self.engines.sockets[0], 20 * harness.SLOW)
        self.addCleanup(client.close)
        return client

    def ends(self, client):
        harness.wait_for(client.ended, 20, "the session is ended")
        client.socket.close()

    def spoil(self, ring, slots, done):
        """Publishes invalid ops until the done ring is full, then stores an impossible index."""
        client = self.client()
        client.publish(ring, [b""] * slots)
        harness.wait_for(lambda: client.memory[ring:ring + 4] == struct.pack("<I", slots), 20,
                         "the engine takes all of them")
        client.memory[done:done + 4] = struct.pack("<I", 0x12345678)
        client.publish(ring, [b""], SECOND_TURN)
        self.ends(client)

    def test_a_process_that_is_refused_again_and_again_is_a_finding(self):
        engines = self.start(1, pool_bytes="16MiB")

        def found():
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as client:
                client.connect(engines.sockets[0])
                client.send(REQUEST.pack(MAGIC, VERSION + 1, HELLO, 1, 0, 0, 0))
                client.recv(REPLY.size)
            return [f["text"] for f in engines.status(0)["health"]["findings"]
                    if f["id"] == "client_refused"]
        self.assertEqual(found(), [], "one that tries once is none")
        self.assertIn(f"the last is process {os.getpid()}: the library has version {VERSION + 1}",
                      harness.wait_for(found, 30, "a finding")[0])
        self.assertEqual(engines.log(0).count("is refused: the library has version"), 1)
        self.stop_cleanly(engines)

    def test_an_impossible_index_of_a_done_ring_ends_the_session(self):
        self.spoil(OP_RING, OP_SLOTS, DONE_RING)
        self.assertEqual(self.engines.status(0)["rails"][0]["counters"]["rings_broken"], 1)

    def test_an_impossible_index_of_the_ctl_done_ring_ends_the_session(self):
        self.spoil(CTL_RING, CTL_SLOTS, CTL_DONE)
        self.assertEqual(self.engines.status(0)["counters"]["rings_broken"], 1)

    def test_an_op_with_more_segments_than_were_published_ends_the_session(self):
        client = self.client()
        client.publish(OP_RING, [op(segments=400, length=400)])
        self.ends(client)

    def test_regions_of_others_are_refused(self):
        for region in (0, 32, 33, 63, 1023, 65535):
            with self.subTest(region=region):
                client = self.client()
                client.publish(OP_RING, [op(to=region << 48)])
                self.assertEqual(client.done(20), (7, 0, 0, INVALID))
                client.socket.close()

    def test_places_beyond_their_region_are_refused(self):
        for offset, length in ((1 << 63, 4096), (8 << 20, 4096), ((8 << 20) - 1, 4096)):
            with self.subTest(offset=offset):
                client = self.client()
                segments = (SEGMENT.pack(offset, length, client.staging, 0) +
                            SEGMENT.pack(0, 4096, client.staging, 0))
                client.publish(OP_RING, [op(segments=2, length=length + 4096), segments])
                self.assertEqual(client.done(20), (7, 0, 0, INVALID))
                client.socket.close()

    def test_the_single_place_inside_an_op_is_checked_too(self):
        for offset in ((1 << 48) - 1, 8 << 20, (8 << 20) - 1):
            with self.subTest(offset=offset):
                client = self.client()
                client.publish(OP_RING, [op(to=client.staging << 48 | offset)])
                self.assertEqual(client.done(20), (7, 0, 0, INVALID))
                client.socket.close()

    def test_a_client_cannot_publish_or_return_a_page_without_a_credit(self):
        client = self.client()
        forged = CTL.pack(9, CTL_PUBLISH, 0, 1, 0, 0, 1, 2, 4096, 5, 1, 0, 2 ** 62, 0)
        returned = CTL.pack(9, CTL_RETURN, 15, 0, 0, 0, 0, 0, 4096, 0xffffffff, 1, 0, 0, 0)
        client.publish(CTL_RING, [returned, forged])
        self.assertEqual(client.ctl_done(20), (9, INVALID))
        client.socket.close()

    def test_wrong_requests_are_refused_with_a_text(self):
        for name, arguments in {
            "version": dict(kind=HELLO, version=99),
            "kind": dict(kind=77),
            "no memfd": dict(kind=REGION_ADD, a=0, b=4096),
        }.items():
            with self.subTest(name=name):
                client = self.client()
                reply, _ = client.ask(**arguments)
                if reply is not None:
                    self.assertLess(reply[4], 0)
                    self.assertTrue(reply[7].rstrip(b"\0"))
                client.socket.close()

    def test_memory_that_could_shrink_is_refused(self):
        client = self.client()
        fd = os.memfd_create("unsealed", os.MFD_CLOEXEC)
        self.addCleanup(os.close, fd)
        os.ftruncate(fd, 1 << 20)
        reply, _ = client.ask(REGION_ADD, 0, 1 << 20, fds=[fd])
        self.assertLess(reply[4], 0)
        self.assertIn(b"seal", reply[7].lower())
        client.socket.close()

    def test_a_client_cannot_shrink_the_pool(self):
        client = self.client()
        pool = client.fds[3]
        with self.assertRaises(PermissionError):
            os.ftruncate(pool, 0)
        for read_only in (client.fds[0], client.fds[2], client.fds[4]):
            with self.assertRaises((PermissionError, OSError)):
                mmap.mmap(read_only, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE)
        client.socket.close()

    def test_a_client_that_takes_and_blocks_the_kicks_of_others_stops_none(self):
        """All clients share the eventfds that wake the control plane and the poll cores."""
        client, stop = self.client(), threading.Event()
        kicks = [client.kick_control, client.kick_rail]
        for fd in kicks:
            os.set_blocking(fd, True)  # a flag of the open file, which the engine has, too

        def spoil(fd):
            full = (2**64 - 2).to_bytes(8, "little")
            poll = select.poll()
            poll.register(fd, select.POLLIN | select.POLLOUT)
            while not stop.is_set():
                for _, events in poll.poll(10):
                    if events & select.POLLIN:
                        os.preadv(fd, [bytearray(8)], -1, os.RWF_NOWAIT)
                    elif events & select.POLLOUT:
                        os.eventfd_write(fd, 1)
                if int(time.monotonic() * 10) % 2:
                    with contextlib.suppress(BlockingIOError):
                        os.set_blocking(fd, False)
                        os.write(fd, full)
                        os.set_blocking(fd, True)

        threads = [threading.Thread(target=self.ignoring(spoil), args=(fd,)) for fd in kicks]
        for thread in threads:
            thread.start()
        try:
            self.replay(self.engines, "--requests", 30, "--namespace", "spoilt")
        finally:
            stop.set()
            for fd in kicks:
                os.set_blocking(fd, False)
            for thread in threads:
                thread.join()
            client.socket.close()

    @staticmethod
    def ignoring(spoil):
        def run(fd):
            while True:
                try:
                    return spoil(fd)
                except BlockingIOError:
                    pass  # another one was faster
        return run

    def test_silent_connections_block_no_client(self):
        silent = []
        for _ in range(2 * SESSIONS_MAX):
            s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            self.addCleanup(s.close)
            s.connect(self.engines.sockets[0])  # blocks while the engine's backlog is full
            silent.append(s)
        client = self.client()  # while the silent connections are open
        self.assertEqual(client.ask(HELLO)[0][4], 0)
        harness.wait_for(lambda: all(select.select([s], [], [], 0)[0] and s.recv(1) == b""
                                     for s in silent), 20,
                         "connections without a request are closed")
        self.assertEqual(self.engines.status(0)["counters"]["clients_silent"], len(silent))
        self.assertEqual(client.ask(HELLO)[0][4], 0, "a client that has sent a request stays")
        client.socket.close()


if __name__ == "__main__":
    harness.main()
