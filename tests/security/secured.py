# SPDX-License-Identifier: Apache-2.0
"""Shared by the tests of this folder: clusters with keys, strangers, and what is between."""

import os
import select
import socket
import sys
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))),
                                "cluster"))
import harness  # noqa: E402
import played_member  # noqa: E402

REFUSED_SECONDS = 1  # within which a stranger is refused
PLAIN_REFUSED = bytes([0x15, 3, 1, 0, 2, 2, 70])  # the alert protocol_version, in clear


def keygen(path):
    """Makes a file with a key; returns its line."""
    harness.run([harness.program("tools/peercachectl"), "keygen", path], check=True,
                capture_output=True)
    with open(path, encoding="ascii") as file:
        return [line for line in file if not line.startswith("#")][0]


def write_keys(path, *lines):
    """Replaces a file of keys at once, as an operator does."""
    with open(os.open(path + ".new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w",
              encoding="ascii") as file:
        file.write("".join(lines))
    os.rename(path + ".new", path)


def answer(port, data, seconds=10):
    """What an engine answers to these bytes until it closes, and after which time it closed."""
    begun = time.monotonic()
    got = b""
    with socket.create_connection(("127.0.0.1", port), timeout=seconds * harness.SLOW) as link:
        try:
            link.sendall(data)
            while more := link.recv(1 << 16):
                got += more
        except ConnectionError:
            pass
    return got, time.monotonic() - begun


def hello(name=b"stranger"):
    """A frame with the Hello of a member that fits."""
    text = played_member.version() + played_member.member(name, 0x075bcd15, 10) + \
        played_member.agreement()
    return played_member.frame(b"\x0a" + bytes([len(text)]) + text)


class Between:
    """Connects each that comes to a port with another port; keeps what the first end sends."""

    def __init__(self, to):
        self.to, self.sent = to, []
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.ended = threading.Event()
        self.threads = [threading.Thread(target=self.accept, daemon=True)]
        self.threads[0].start()

    def accept(self):
        while not self.ended.is_set():
            if select.select([self.listener], [], [], 0.1)[0]:
                near = self.listener.accept()[0]
                self.threads.append(threading.Thread(target=self.carry, args=[near], daemon=True))
                self.threads[-1].start()

    def carry(self, near):
        sent = bytearray()
        self.sent.append(sent)
        with near:
            try:
                with socket.create_connection(("127.0.0.1", self.to)) as far:
                    while not self.ended.is_set():
                        for end in select.select([near, far], [], [], 0.1)[0]:
                            data = end.recv(1 << 16)
                            if not data:
                                return
                            (far if end is near else near).sendall(data)
                            if end is near:
                                sent += data
            except OSError:
                pass

    def close(self):
        self.ended.set()
        for thread in self.threads:
            thread.join()
        self.listener.close()
