# SPDX-License-Identifier: Apache-2.0
"""Programs that play a member of a cluster of real engines: they speak its messages and hold
nothing."""

import os
import socket
import struct
import threading

os.environ.pop("PEERCACHE_SECURE", None)  # what is played here has no key

WIRE = 21  # WIRE_VERSION of engine/abi/wire.h
# engine/control/members/agreed.def with the values of a cluster that tests start
AGREED = ["cluster.id = default", "cluster.replicas = 2",
          "placement of keys = rendezvous-fnv1a-murmur3-cubic24", "slots of the directory = 65536",
          "owners of slots = 256", "hash of page keys = xxh3-128 with epochs",
          "bytes of a page unit = 4096"]


def text_hash(start, text):
    """agreed_text_hash() of engine/control/members/member_greet.c."""
    for byte in text:
        start = (start ^ byte) * 0x100000001b3 % (1 << 64)
    start += 1
    for factor in (0xff51afd7ed558ccd, 0xc4ceb9fe1a85ec53):
        start = (start ^ start >> 33) * factor % (1 << 64)
    return start ^ start >> 33


def version():
    """The field Hello.version."""
    return bytes([0x08, WIRE])


def agreement():
    """The fields agreed_hash and links of a Hello to engines of this host and user."""
    with open("/proc/sys/kernel/random/boot_id", "rb") as file:
        boot = file.read()
    net = os.stat("/proc/self/ns/net")
    agreed = 0
    for text in AGREED:
        agreed = text_hash(agreed, text.encode())
    reach = text_hash(0, boot + f" {net.st_dev} {net.st_ino} {os.geteuid()}".encode())
    links = text_hash(reach, b"soft over shm")
    return b"\x31" + struct.pack("<Q", agreed) + b"\xc9\x01" + struct.pack("<Q", links)


def bucket_bits(engines):
    """The weight of an engine: a member with the same one owns as many slots."""
    return (engines.figure(0, "directory_capacity_entries") // 4).bit_length() - 1


def member(name, incarnation, bits):
    """The field Hello.self of a member at port 9 of this host, where nothing listens."""
    number = bytearray()
    while incarnation > 0x7f:
        number.append(incarnation & 0x7f | 0x80)
        incarnation >>= 7
    number.append(incarnation)
    address = b"127.0.0.1"
    me = (bytes([0x0a, len(name)]) + name + b"\x10" + number + bytes([0x1a, len(address)]) +
          address + bytes([0x20, 9, 0x28, 1, 0x30, bits]))
    return bytes([0x12, len(me)]) + me


def frame(message):
    return struct.pack(">I", len(message)) + message


class GrayMember:
    """Says Hello to engines and sends heartbeats; answers no request."""

    def __init__(self, engines):
        self.stopped = threading.Event()
        self.me = member(b"gray", 0x075bcd15, bucket_bits(engines))
        self.links = [self.connected(port) for port in engines.port]
        self.thread = threading.Thread(target=self.beat)
        self.thread.start()

    def hello(self):
        return version() + self.me + agreement()

    def connected(self, port):
        link = socket.create_connection(("127.0.0.1", port))
        hello = self.hello()
        link.sendall(frame(b"\x0a" + bytes([len(hello)]) + hello))
        return link

    def beat(self):
        while not self.stopped.wait(0.05):
            for link in self.links:
                link.sendall(frame(b"\x12\x00"))
                link.setblocking(False)
                try:
                    while link.recv(1 << 20):
                        pass
                except BlockingIOError:
                    pass
                link.setblocking(True)

    def close(self):
        self.stopped.set()
        self.thread.join()
        for link in self.links:
            link.close()


class ProbedMember(GrayMember):
    """The same, but it answers probes while `serves` is set. It connects again, with Hello, when an
    engine closes its connection."""

    def __init__(self, engines):
        self.serves, self.beats, self.ports = True, 0, list(engines.port)
        super().__init__(engines)

    def beat(self):
        links, held = self.links, [b""] * len(self.links)
        while not self.stopped.wait(0.02):
            self.beats += 1
            for i, link in enumerate(links):
                try:
                    link.sendall(frame(b"\x12\x00"))
                    held[i] = self.answer(link, held[i] + self.received(link))
                except OSError:
                    link.close()
                    try:
                        links[i], held[i] = self.connected(self.ports[i]), b""
                    except OSError:
                        pass  # the next turn tries again

    @staticmethod
    def received(link):
        link.settimeout(0.001)
        try:
            got = link.recv(1 << 20)
        except TimeoutError:
            return b""
        finally:
            link.settimeout(10)
        if not got:
            raise ConnectionResetError
        return got

    def answer(self, link, data):
        """Answers the probes among the whole frames of `data`; returns the rest."""
        while len(data) >= 4 and len(data) >= 4 + (size := struct.unpack(">I", data[:4])[0]):
            message, data = data[4:4 + size], data[4 + size:]
            if self.serves and message.startswith(b"\x8a\x01"):  # Probe: ProbeAck is its copy
                link.sendall(frame(b"\x92\x01" + message[2:]))
        return data
