# SPDX-License-Identifier: Apache-2.0
"""Values above 64 MiB, in parts, through Mooncake's class and LMCache's client, on two engines."""

import ctypes
import itertools
import json
import os
import random
import select
import signal
import sys
from unittest import mock

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path[:0] = [os.path.join(ROOT, "tests", "cluster"),
                os.path.join(os.environ.get("PEERCACHE_BUILD", ""), "engine/client/python")]
import harness  # noqa: E402
from peercache import values  # noqa: E402
from peercache.lmcache import Client  # noqa: E402
from peercache.mooncake import MooncakeDistributedStore  # noqa: E402

LONG = (70 << 20) + 5
MS = 60000
extra = {"engine_start": False, "timeout_ms": MS, "exists_timeout_ms": MS}


def memory(nbytes, byte=None):
    """New memory of random bytes, or of one byte, and its address."""
    data = bytearray(os.urandom(nbytes) if byte is None else bytes([byte]) * nbytes)
    return data, ctypes.addressof((ctypes.c_char * nbytes).from_buffer(data))


class EnginesTest(harness.ClusterTest):
    engines = None
    number = itertools.count()

    @classmethod
    def setUpClass(cls):
        cls.engines = harness.cluster.Cluster(harness.BUILD, 2, pool_bytes="512MiB",
                                              settings=harness.patient()).start()

    @classmethod
    def tearDownClass(cls):
        assert cls.engines.stop(), "an engine did not stop with status 0"

    def key(self):
        return f"{self.id()}-{next(self.number)}"


class Values(EnginesTest):
    def store(self, node):
        os.environ["PEERCACHE_EXTRA_CONFIG"] = json.dumps(
            {**extra, "engine_socket": self.engines.sockets[node]})
        store = MooncakeDistributedStore()
        self.assertEqual(store.setup("localhost", "", 0, 1 << 30, "tcp", "", ""), 0)
        self.addCleanup(store.close)
        return store

    def drop_part(self, store, key):
        """Removes the third part of a value, as an eviction does."""
        [(_, names)] = values.run(store._session, store._space, MS, values.lists([key]))
        self.assertEqual(len(names), 5)
        self.assertEqual(store._session.remove(store._space, names[2:3], MS), [True])
        return names

    def test_a_long_value_is_read_on_the_other_host(self):
        there, here, key = self.store(0), self.store(1), self.key()
        data, at = memory(LONG)
        self.assertEqual(there.put_from(key, at, LONG), 0)
        self.assertEqual((here.is_exist(key), here.get_size(key)), (1, LONG))
        room, to = memory(LONG + 9)
        self.assertEqual(here.get_into(key, to, LONG + 9), LONG)
        self.assertTrue(room[:LONG] == data)
        self.assertTrue(here.get(key) == data)
        cuts = [10, LONG - 30, 20]
        room, to = memory(LONG)
        self.assertEqual(here.batch_get_into_multi_buffers(
            [key, "none"], [[to, to + 10, to + LONG - 20]] * 2, [cuts] * 2), [LONG, -704])
        self.assertTrue(room == data)
        for short in (100, LONG - 1):
            self.assertEqual(here.get_into(key, to, short), -600)
        self.assertEqual(here.batch_get_into_multi_buffers([key], [[to]], [[LONG + 1]]), [-800])
        self.assertEqual(here.put_from("too long", to, values.VALUE_BYTES_MAX + 1), -600)
        for nbytes in (values.LIST.size, LONG):  # no address
            self.assertLess(here.put_from("null", 0, nbytes), 0)
        self.assertLess(here.get_into(key, 0, LONG), 0)
        self.assertEqual((there.remove(key), here.get_size(key)), (0, -704))

    def test_short_and_long_values_in_one_call(self):
        here, keys = self.store(0), [self.key() for _ in range(4)]
        sizes = [1000, LONG, values.LIST.size, 16 << 20]
        data, at = memory(sum(sizes))
        starts = [at + sum(sizes[:i]) for i in range(4)]
        self.assertEqual(here.batch_put_from(keys, starts, sizes), [0] * 4)
        room, to = memory(sum(sizes))
        self.assertEqual(self.store(1).batch_get_into(
            keys, [to + start - at for start in starts], sizes), sizes)
        self.assertTrue(room == data)

    def test_a_value_without_a_part_is_a_miss_and_can_be_put_again(self):
        store, key = self.store(0), self.key()
        data, at = memory(LONG)
        room, to = memory(LONG)
        for seen in (True, False):  # by a get, or by the next put only
            self.assertEqual(store.put_from(key, at, LONG), 0)
            self.drop_part(store, key)
            if seen:
                self.assertEqual(store.get_into(key, to, LONG), -704)
                self.assertEqual(store.is_exist(key), 0)
        self.assertEqual(store.put_from(key, at, LONG), 0)
        self.assertEqual(store.get_into(key, to, LONG), LONG)
        self.assertTrue(room == data)

    def test_what_looks_like_a_list_is_a_value(self):
        data, key = values.LIST.pack(values.MAGIC, 1 << 63, bytes(16)), self.key()
        for _ in range(2):  # the second one finds it
            self.assertEqual(self.store(0).put(key, data), 0)
        self.assertEqual(self.store(1).get(key), data)
        self.assertEqual(self.store(1).get_size(key), len(data))

    def play(self, session, turns, tasks):
        """Makes the calls of several steps in a random order. Returns what they return."""
        found: dict = {}
        waiting = {name: (steps, None) for name, steps in tasks.items()}
        while waiting:
            name = turns.choice(sorted(waiting))
            steps, results = waiting.pop(name)
            try:
                verb, *arguments = steps.send(results)
            except StopIteration as end:
                found[name] = end.value
                continue
            waiting[name] = steps, getattr(session, verb)(
                "turns", *arguments, MS, *values.NUMBERS[verb])
        return found

    def test_bytes_of_two_writers_are_never_mixed(self):
        seed = int(os.environ.get("SEED", random.randrange(1 << 32)))
        print("SEED", seed)
        turns, whole, session = random.Random(seed), 0, self.store(0)._session
        with mock.patch.multiple(values, PAGE_BYTES_MAX=1000, PART_BYTES=300):
            for _ in range(400):
                key, tasks, rooms = [self.key()], {}, {}
                for name in "ab":
                    nbytes = turns.choice((1001, 1100, 1800))
                    data, at = memory(nbytes, ord(name))
                    rooms[name] = data
                    cut = turns.randrange(1, nbytes)
                    tasks[name] = values.write(key, [at, at + cut], [cut, nbytes - cut])
                for name in "cde":
                    rooms[name], to = memory(1900, 0)
                    tasks[name] = values.read(key, [to], [1900])
                tasks["x"] = values.remove(key)
                found = self.play(session, turns, tasks)
                for name in "cde":
                    [nbytes] = found[name]
                    if nbytes:
                        whole += 1
                        self.assertIn(rooms[name][:nbytes], (rooms["a"], rooms["b"]))
                at = ctypes.addressof((ctypes.c_char * 1).from_buffer(rooms["b"]))
                self.play(session, turns, {"b": values.write(key, [at], [len(rooms["b"])])})
                [nbytes] = self.play(session, turns, {"e": values.read(key, [to], [1900])})["e"]
                self.assertIn(rooms["e"][:nbytes], (rooms["a"], rooms["b"]))
        self.assertGreater(whole, 30)


class LMCache(EnginesTest):
    """The client as LMCache's NativeConnectorL2Adapter drives it."""

    def client(self, node, **more):
        client = Client(**{**extra, "engine_socket": self.engines.sockets[node], **more})
        self.addCleanup(client.close)
        return client

    def ended(self, client, number, seconds=100):
        """What drain_completions() tells of the call, without its number, and the wakes."""
        poll, end = select.poll(), harness.clock() + seconds
        poll.register(client.event_fd(), select.POLLIN)
        for wakes in itertools.count(1):
            poll.poll(1000)
            for found, *rest in client.drain_completions():
                self.assertEqual(found, number)
                return (*rest, wakes)
            self.assertLess(harness.clock(), end)

    def call(self, client, verb, *arguments):
        ok, text, which, _ = self.ended(client, getattr(client, "submit_batch_" + verb)(*arguments))
        self.assertEqual(bool(text), not ok)
        return ok, which

    def test_chunks_pass_between_hosts(self):
        there, here = self.client(0), self.client(1)
        keys = [self.key() for _ in range(4)]
        sizes = (262144, LONG, 1, 7000)
        data = [memory(nbytes)[0] for nbytes in sizes]
        room = [memory(nbytes)[0] for nbytes in sizes]
        views = list(map(memoryview, room))
        self.assertEqual(self.call(here, "exists", keys), (True, [False] * 4))
        self.assertEqual(self.call(there, "set", keys, list(map(memoryview, data))),
                         (True, [True] * 4))
        self.assertEqual(self.call(here, "exists", [*keys, "none"]), (True, [True] * 4 + [False]))
        self.assertEqual(self.call(here, "get", keys, views), (True, [True] * 4))
        self.assertTrue(room == data)
        # other lengths than the values'
        self.assertEqual(self.call(here, "get", keys[::-1], views)[1], [False] * 4)
        self.assertEqual(self.call(here, "set", keys[:1], [views[3]]), (False, [False]))
        self.assertEqual(self.call(here, "delete", [*keys[:2], "none"]), (True, [True] * 3))
        self.assertEqual(self.call(there, "exists", keys)[1], [False, False, True, True])
        self.assertEqual(self.call(there, "set", [], []), (True, []))

    def test_a_call_in_flight_wakes_nobody_until_it_ends(self):
        there, here, key = self.client(0), self.client(1, timeout_ms=3000), self.key()
        data, room = memory(1 << 20)[0], memory(1 << 20)[0]
        self.assertEqual(self.call(there, "set", [key], [memoryview(data)])[0], True)
        harness.freeze(self.engines.process[1])
        try:
            number = here.submit_batch_get([key], [memoryview(room)])
            ok, _, which, wakes = self.ended(here, number)
        finally:
            os.kill(self.engines.process[1].pid, signal.SIGCONT)
        self.assertEqual((ok, which), (True, [False]))
        self.assertLess(wakes, 100)  # ten in a second

    def test_wrong_calls_end_with_a_text(self):
        client = self.client(0)
        for keys, views in ((["a"], [b"read-only"]), (["a"], [None]), (["a", "b"], [bytearray(1)]),
                            (["a"], [memoryview(bytearray(9))[::2]])):
            ok, text, which, _ = self.ended(client, client.submit_batch_get(keys, views))
            self.assertEqual((ok, which), (False, None), keys)
            self.assertTrue(text)
        client.close()
        self.assertGreater(client.submit_batch_exists(["a"]), 4)
        self.assertEqual(client.drain_completions()[0][1:3], (False, "the client is closed"))
        client.close()


if __name__ == "__main__":
    harness.unittest.main()
