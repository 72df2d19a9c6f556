# SPDX-License-Identifier: Apache-2.0
"""A program that plays a hostile member of a cluster of real engines. It runs as a process of its
own, so that the test's clients do not wait for it.

    played_liar.py WHAT PORT[,PORT...] BITS ARGUMENT...

    joins COUNT          COUNT connections from one address, each with an invented name and ref
    lists LENGTH         lists of LENGTH elements in each message that has lists, a link for each
    removals NAME:INCARNATION:ADDRESS:PORT...  says for 5 s that these members are removed
    accusations NAME:INCARNATION:ADDRESS:PORT...  the same in a cluster of a few members
    claims NAME:INCARNATION:ADDRESS:PORT...  Hellos with absurd values, and with names of these
    flood SECONDS        gossip at full speed
It prints how many links an engine has closed."""

import socket
import struct
import sys
import time

from played_member import agreement, frame, version

ALIVE, CLAIMED, REMOVED, LEFT = range(4)
LISTED_MAX = 1024  # longer lists close the link


def varint(value):
    out = bytearray()
    while value > 0x7f:
        out.append(value & 0x7f | 0x80)
        value >>= 7
    return bytes(out) + bytes([value])


def field(number, value):
    """An integer is a varint, bytes have a length."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    return varint(number << 3 | 2) + varint(len(value)) + value


def member(name, incarnation, bits, address=b"127.0.0.1", port=9):
    return (field(1, name) + field(2, incarnation) + field(3, address) + field(4, port) +
            field(5, 1) + field(6, bits))


def hello(me, members=()):
    return frame(field(1, version() + field(2, me) + b"".join(field(3, m) for m in members) +
                       agreement()))


def record(me, state, admission):
    return field(1, me) + field(2, state) + field(3, admission) + field(4, 600000)


def news(records):
    return frame(field(26, b"".join(field(1, r) for r in records)))


def heartbeat(digest=1):
    return frame(field(2, b"\x09" + struct.pack("<Q", digest)))


class Liar:
    def __init__(self, ports, bits):
        self.ports, self.bits, self.closed = ports, bits, 0

    def link(self, name, port=None, bits=None, number=0x40000000, members=()):
        link = socket.create_connection(("127.0.0.1", port or self.ports[0]), 10)
        link.sendall(hello(member(name, number, self.bits if bits is None else bits), members))
        return link

    def send(self, link, data):
        """False: the engine has closed the link."""
        try:
            link.setblocking(False)
            try:
                while link.recv(1 << 20):
                    pass
                self.closed += 1
                return False
            except BlockingIOError:
                pass
            link.settimeout(10)
            link.sendall(data)
            return True
        except OSError:
            self.closed += 1
            return False

    def joins(self, count):
        links = []
        for i in range(count):
            try:
                links.append(self.link(b"invented-%d" % i, number=0x50000000 + i))
            except OSError:
                self.closed += 1
            if len(links) > 200:
                links.pop(0).close()
        for link in links:
            link.close()

    def lists(self, length):
        others = [member(b"listed-%d" % i, 0x60000000 + i, self.bits) for i in range(length)]
        for members, message in ((others, b""), ((), news([record(m, ALIVE, 1) for m in others])),
                                 ((), news([record(m, REMOVED, 5) for m in others]))):
            with self.link(b"liar", members=members) as link:
                for _ in range(20 if length <= LISTED_MAX else 3000):
                    if not self.send(link, message):
                        break
                    time.sleep(0.01)

    def accusations(self, victims):
        self.removals(victims, 0)

    def removals(self, victims, invented=40):
        """With enough invented members the engines have rings, and records admit."""
        crowd = [self.link(b"crowd-%d" % i, port, 1, 0x60000000 + i)
                 for port in self.ports for i in range(invented)]
        end = time.monotonic() + 5
        link = self.link(b"liar")
        admission = 1
        while time.monotonic() < end:
            admission += 1
            said = [news([record(member(v[0], v[1], self.bits, v[2], v[3]), state, admission)
                          for v in victims]) for state in (CLAIMED, REMOVED, LEFT)]
            if not self.send(link, b"".join(said)):
                link = self.link(b"liar")
            time.sleep(0.02)
        for link in crowd:
            link.close()

    def claims(self, victims):
        """The largest weight, weights beyond it, other numbers out of range; names and refs that
        other members have. The members with impossible values are kept for a moment."""
        said = [member(b"huge", 0x41000000, 31)]
        said += [member(b"wrong", 0x43000000, bits) for bits in (32, 63, 2 ** 32 - 1, 2 ** 63)]
        said += [field(1, b"wrong") + field(2, 0x44000000) + field(3, b"127.0.0.1") + field(4, port)
                 + field(5, rails) + field(6, 10)
                 for port, rails in ((0, 1), (65536, 1), (9, 0), (9, 16), (9, 2 ** 32 - 1))]
        said += [member(name, 0x45000000, self.bits) for name in (b"", b"a b", b"n" * 64, b"\xff")]
        for name, incarnation, address, port in victims:
            said += [member(name, 0x46000000, self.bits),
                     member(b"thief", incarnation & 0xffffffff, self.bits),
                     member(b"thief", incarnation, self.bits, address, port)]
        for _ in range(10):
            links = []
            for me in said:
                for port in self.ports:
                    links.append(socket.create_connection(("127.0.0.1", port), 10))
                    links[-1].sendall(hello(me))
            time.sleep(0.2)
            for link in links:
                self.send(link, heartbeat())
                link.close()

    def flood(self, seconds):
        end, turn = time.monotonic() + seconds, 0
        links = [self.link(b"flood", port) for port in self.ports]
        while time.monotonic() < end:
            turn += 1
            crowd = [record(member(b"flood-%d-%d" % (turn, i), 0x60000000 + 100 * turn + i, 1),
                            ALIVE, turn) for i in range(100)]
            data = heartbeat(digest=turn) * 20 + news(crowd)
            for i, link in enumerate(links):
                if not self.send(link, data):
                    links[i] = self.link(b"flood", self.ports[i])


def main():
    what, ports, bits, *more = sys.argv[1:]
    liar = Liar([int(port) for port in ports.split(",")], int(bits))
    if what in ("removals", "accusations", "claims"):
        victims = [victim.rsplit(":", 3) for victim in more]
        getattr(liar, what)([(v[0].encode(), int(v[1]), v[2].encode(), int(v[3])) for v in victims])
    else:
        getattr(liar, what)(int(more[0]))
    print(liar.closed)


if __name__ == "__main__":
    main()
