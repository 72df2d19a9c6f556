# SPDX-License-Identifier: Apache-2.0
"""A process that takes all it can get, or sends no request, leaves other clients enough."""

import fcntl
import os
import select
import socket

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
        self.assertEqual(self.engines.status(0)["clients"]["sessions"], 2)
        harness.wait_for(lambda: all(hung_up(s) for s in silent), 20,
                         "connections without a request are closed")
        self.assertEqual(self.engines.status(0)["counters"]["clients_silent"], len(silent))
        self.assertEqual(client.ask(HELLO)[0][4], 0, "a client that has sent a request stays")


if __name__ == "__main__":
    harness.main()
