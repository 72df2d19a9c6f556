# SPDX-License-Identifier: Apache-2.0
"""Events of pages for routers: what peercache-routers publishes of the pages of an engine."""

import argparse
import ctypes
import errno
import os
import struct
import sys
import tempfile
import threading
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path[:0] = [os.path.join(ROOT, "tests", "cluster"),
                os.path.join(os.environ.get("PEERCACHE_BUILD", ""), "engine/client/python")]
import harness  # noqa: E402
from peercache import Channel, Session, events  # noqa: E402

# Every event has the members that the subscriber in Dynamo's router reads.
MEMBERS = {"event_id", "timestamp", "event_type", "model_name", "block_size", "additional_salt",
           "lora_name", "tenant_id", "backend_id", "medium", "dp_rank", "group_id", "object_key",
           "seq_hashes", "base_block_idx"}


def unpack(data, at=0):
    """The value in msgpack that pack() makes, and the end of it."""
    kind, at = data[at], at + 1
    if kind == 0xc0:
        return None, at
    if kind == 0xcf:
        return struct.unpack_from(">Q", data, at)[0], at + 8
    count, = struct.unpack_from(">I", data, at)
    at += 4
    if kind == 0xdb:
        return data[at:at + count].decode("utf-8", "surrogateescape"), at + count
    found = []
    for _ in range(count * (2 if kind == 0xdf else 1)):
        item, at = unpack(data, at)
        found.append(item)
    return (dict(zip(found[::2], found[1::2])) if kind == 0xdf else found), at


class Published(list):
    """A publisher that keeps the messages."""

    send = list.append


def seen(messages):
    """[(sequence number, type, key), ...] of messages, each of which is checked."""
    found = []
    for topic, number, payload in messages:
        (when, listed, rank), end = unpack(payload)
        assert (topic, end, rank) == (b"", len(payload), 0) and len(listed) <= events.SEND_MAX
        assert abs(when / 1000 - time.time()) < 600
        for event in listed:
            more = {"parent_hash", "token_ids"} if event["event_type"] == "stored" else set()
            assert set(event) == MEMBERS | more, event
            assert [event[name] for name in ("backend_id", "medium", "seq_hashes")] == [
                "host", "cpu", []]
            found.append((struct.unpack(">Q", number)[0], event["event_type"],
                          event["object_key"], event["event_id"]))
    assert [event[3] for event in found] == list(range(found[0][3], found[0][3] + len(found))) \
        if found else True
    return [event[:3] for event in found]


class EventsTest(harness.ClusterTest):
    def setUp(self):
        # each test is a process of its own, whose extension reads the variable once
        self.folder = tempfile.mkdtemp(prefix="peercache-events-")
        self.addCleanup(harness.remove_folder, self.folder)
        os.environ["PEERCACHE_EVENTS"] = os.path.join(self.folder, "texts")
        self.engines = self.start(2, pool_bytes="16MiB")
        self.session = Session(self.engines.sockets[0])
        self.addCleanup(self.session.close)

    def opened(self, **options):
        given = argparse.Namespace(**{"texts": os.environ["PEERCACHE_EVENTS"], "backend": "host",
                                      "known": 1000, **options})
        made = events.Events(self.session, Published(), given)
        self.addCleanup(made.inbox.close)
        return made

    def put(self, keys, space="a|b", channel=None):
        memory = self.session.alloc(4096)
        if channel:
            channel.set(space, keys, [memory] * len(keys), 4096, 60000)
            while not channel.poll():
                pass
        else:
            self.assertEqual(self.session.set(space, keys, [memory] * len(keys), 4096, 60000),
                             [True] * len(keys))
        self.session.release(memory)

    @staticmethod
    def turn(watched):
        watched.publisher.clear()
        watched.hear()
        watched.look()
        watched.flush()
        return seen(watched.publisher)

    def test_what_is_stored_and_what_is_gone(self):
        watched = self.opened()
        keys = [f"key {n}" for n in range(130)]
        self.put(keys)
        first = self.turn(watched)
        self.assertEqual({event[1] for event in first}, {"stored"})
        self.assertEqual(sorted(event[2] for event in first), sorted(keys))
        self.assertEqual(sorted({event[0] for event in first}), [0, 1, 2])  # 64 events a message
        self.assertEqual(self.turn(watched), [])
        self.put(keys)  # they are known
        self.assertEqual(self.turn(watched), [])
        channel = Channel(self.session)
        self.put(["by a channel"], channel=channel)
        channel.close()
        self.assertEqual(self.turn(watched), [(3, "stored", "by a channel")])
        self.assertEqual(self.session.remove("a|b", keys[:2], 60000), [True, True])
        gone = []
        harness.wait_for(lambda: gone.extend(self.turn(watched)) or len(gone) >= 2, 60, "removed")
        self.assertEqual(sorted(event[1:] for event in gone),
                         [("removed", "key 0"), ("removed", "key 1")])
        self.put(keys[:1])
        self.assertEqual([event[1:] for event in self.turn(watched)], [("stored", "key 0")])

    def test_what_is_evicted_is_removed(self):
        watched = self.opened(known=100000)
        for n in range(100):  # 25 MB into pools of 16 MiB
            self.put([f"{n} {k}" for k in range(64)])
            watched.hear()
        stored, removed = set(), set()
        for _ in range(8):
            for _, kind, key in self.turn(watched):
                (stored if kind == "stored" else removed).add(key)
        there = {page[1].decode() for page, new in watched.pages.items() if not new}
        self.assertEqual(there, stored - removed)
        results = self.session.exists("a|b", sorted(there), 60000)
        self.assertGreater(sum(results), 0.9 * len(there))
        self.assertLess(len(there), 16 << 8)

    def test_more_than_is_known_is_forgotten_and_said(self):
        watched = self.opened(known=10)
        self.put([f"few {n}" for n in range(10)])
        self.assertEqual(len(self.turn(watched)), 10)
        self.put(["one more"])
        self.assertEqual([event[1] for event in self.turn(watched)], ["removed", "stored"])
        self.assertEqual(len(watched.pages), 10)

    def test_an_engine_that_is_gone_removes_nothing(self):
        watched = self.opened()
        self.put(["kept"])
        self.assertEqual([event[1:] for event in self.turn(watched)], [("stored", "kept")])
        self.engines.kill(0)
        for _ in range(3):
            self.assertEqual(self.turn(watched), [])
        self.assertEqual(len(watched.pages), 1)

    def test_a_page_that_was_not_stored_is_given_up(self):
        watched = self.opened()
        self.put(["kept"])
        self.assertEqual([event[1:] for event in self.turn(watched)], [("stored", "kept")])
        watched.pages[("a|b", b"never")] = time.monotonic() - events.NEW_S - 1
        watched.pages[("a|b", b"soon")] = time.monotonic()
        self.assertEqual(self.turn(watched), [])
        self.assertEqual(list(watched.pages), [("a|b", b"soon"), ("a|b", b"kept")])

    def test_a_look_up_that_fails_loses_no_page(self):
        watched, session = self.opened(), self.session
        for space in ("down", "wrong", "good"):
            self.put(["key"], space)

        def match(space, *more):
            if space != "good":
                raise OSError(errno.ENOTCONN, space) if space == "down" else ValueError(space)
            return session.match(space, *more)
        watched.session = argparse.Namespace(match=match)
        self.assertEqual([event[1:] for event in self.turn(watched)], [("stored", "key")])
        self.assertEqual({page[0] for page in watched.pages}, {"down", "good"})

    def test_datagrams_of_any_bytes_harm_nothing(self):
        watched = self.opened()
        sender = events.socket.socket(events.socket.AF_UNIX, events.socket.SOCK_DGRAM)
        for datagram in (b"", b"\0", b"\5\0ab", b"\1\0n\0\0", b"\1\0n\xff\xff" + b"k" * 2000,
                         b"\1\0\xff\2\0\xfe\xff", b"\1\0\0\1\0k", os.urandom(3000)):
            sender.sendto(datagram, os.environ["PEERCACHE_EVENTS"])
        sender.close()
        self.assertEqual(self.turn(watched), [])
        self.put(["after"])
        self.assertEqual([event[1:] for event in self.turn(watched)], [("stored", "after")])

    def test_over_zeromq(self):
        try:
            publisher = events.Publisher(f"ipc://{self.folder}/zmq")
        except OSError as error:
            self.skipTest(f"libzmq5: {error}")
        watched = self.opened()
        watched.publisher = publisher
        zmq = publisher.zmq
        subscriber = ctypes.c_void_p(zmq.zmq_socket(ctypes.c_void_p(zmq.zmq_ctx_new()), 2))
        limit = ctypes.c_int(20000)
        zmq.zmq_setsockopt(subscriber, 27, ctypes.byref(limit), ctypes.c_size_t(4))  # RCVTIMEO
        zmq.zmq_setsockopt(subscriber, 6, b"", ctypes.c_size_t(0))  # SUBSCRIBE
        self.assertEqual(zmq.zmq_connect(subscriber, f"ipc://{self.folder}/zmq".encode()), 0)
        room = ctypes.create_string_buffer(65536)

        def receive():
            parts = []
            for _ in range(3):
                size = zmq.zmq_recv(subscriber, room, ctypes.c_size_t(len(room)), 0)
                self.assertGreaterEqual(size, 0)
                parts.append(room.raw[:size])
            return parts

        got = []
        reader = threading.Thread(target=lambda: got.append(receive()))
        reader.start()
        n = 0
        while not got:  # until the subscription has come
            self.put([f"sent {n}"])
            watched.hear()
            watched.look()
            watched.flush()
            reader.join(0.02)
            n += 1
            self.assertLess(n, 2000)
        (number, kind, key), = seen(got)
        self.assertEqual((kind, key), ("stored", f"sent {number}"))
        with self.assertRaises(OSError):
            events.Publisher("tcp://nowhere:x")


if __name__ == "__main__":
    harness.main()
