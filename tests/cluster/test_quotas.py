# SPDX-License-Identifier: Apache-2.0
"""A process that takes all it can get, or sends no request, leaves other clients enough."""

import contextlib
import fcntl
import os
import select
import socket
import threading
import time

import harness
from test_hostile import CHANNEL_OPEN, HELLO, REGION_ADD, Client

F_ADD_SEALS, F_SEAL_SHRINK = 1033, 2
SESSIONS_MAX = 64


def hung_up(connection):
    readable, _, _ = select.select([connection], [], [], 0)
    return bool(readable) and connection.recv(1) == b""


class Quotas(harness.ClusterTest):
    def setUp(self):
        self.engines = self.start(2, pool_bytes="32MiB")

    def tearDown(self):
        """Checks that other clients are served as before, with their own registered memory."""
        self.replay(self.engines, "--requests", 30, "--namespace", self.id())

    def client(self):
        client = Client(self.engines.sockets[0], 20 * harness.SLOW)
        self.addCleanup(client.close)
        return client

    def take_all(self, client, kind, arguments=(), fds=()):
        """Requests until refused; returns (number granted, reason of the refusal)."""
        for n in range(2000):
            reply, got = client.ask(kind, *arguments, fds=fds)
            client.fds += got
            if reply[4] < 0:
                return n, reply[7].rstrip(b"\0").decode()
        self.fail("2000 requests were granted; no quota limits them")

    def memory(self):
        fd = os.memfd_create("ranges", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        self.addCleanup(os.close, fd)
        os.ftruncate(fd, 4096)
        fcntl.fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK)
        return fd

    def test_one_process_cannot_take_all_memory_ranges(self):
        greedy, fd = self.client(), self.memory()
        got, why = self.take_all(greedy, REGION_ADD, (0, 4096), [fd])
        self.assertGreaterEqual(got, 64)
        self.assertRegex(why, rf"registered {got} memory ranges.*\d+ of \d+ are left.*release")
        other = self.client()  # must still be able to open a channel
        got, why = self.take_all(other, REGION_ADD, (0, 4096), [fd])
        self.assertGreaterEqual(got, 64)

    def test_one_process_cannot_take_all_channels(self):
        greedy = self.client()
        got, why = self.take_all(greedy, CHANNEL_OPEN)
        self.assertRegex(why, rf"{got + 1} channels open.*\d+ of 256 are left.*Close some")
        got, why = self.take_all(self.client(), CHANNEL_OPEN)
        self.assertGreaterEqual(got + 1, 16)

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
        reply, got = client.ask(HELLO)
        client.fds += got
        self.assertEqual(reply[4], 0)
        self.assertEqual(self.engines.figure(0, "client_sessions"), 2)
        harness.wait_for(lambda: all(hung_up(s) for s in silent), 20,
                         "connections without a request are closed")
        self.assertEqual(self.engines.status(0)["counters"]["clients_silent"], len(silent))
        self.assertEqual(client.ask(HELLO)[0][4], 0, "a client that has sent a request stays")


if __name__ == "__main__":
    harness.main()
