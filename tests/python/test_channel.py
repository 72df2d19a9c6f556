# SPDX-License-Identifier: Apache-2.0
"""Calls that do not wait: peercache.Channel with poll(), and peercache.aio.Channel, on engines."""

import asyncio
import ctypes
import os
import select
import signal
import sys
import threading

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path[:0] = [os.path.join(ROOT, "tests", "cluster"),
                os.path.join(os.environ.get("PEERCACHE_BUILD", ""), "engine/client/python")]
import harness  # noqa: E402
from peercache import Channel, Session, aio  # noqa: E402

BYTES, PAGES, MS = 65536, 16, 20000


class Pages:
    """PAGES pages and room for them."""

    def __init__(self, name):
        self.keys = [f"{name}-{n}" for n in range(PAGES)]
        self.data = os.urandom(PAGES * BYTES)
        self.into = ctypes.create_string_buffer(PAGES * BYTES)
        self.source = ctypes.create_string_buffer(self.data, PAGES * BYTES)
        self.to = [ctypes.addressof(self.into) + n * BYTES for n in range(PAGES)]
        self.of = [ctypes.addressof(self.source) + n * BYTES for n in range(PAGES)]

    def read(self):
        return self.into.raw == self.data


class ChannelTest(harness.ClusterTest):
    def setUp(self):
        self.engines = self.start(2, pool_bytes="64MiB")
        self.sessions = [Session(socket) for socket in self.engines.sockets]
        for session in self.sessions:
            self.addCleanup(session.close)

    def stored(self, name):
        pages = Pages(name)
        stored = self.sessions[0].set("s", pages.keys, pages.of, BYTES, MS)
        self.assertEqual(stored, [True] * PAGES)
        return pages

    def freeze(self):
        """No rail of the second engine turns, so that its reads stay in flight."""
        harness.freeze(self.engines.process[1])
        self.addCleanup(self.thaw)

    def thaw(self):
        os.kill(self.engines.process[1].pid, signal.SIGCONT)


class Poll(ChannelTest):
    def drain(self, channel, count):
        """The results of `count` calls, by number."""
        results, poll = {}, select.poll()
        poll.register(channel.fileno(), select.POLLIN)
        while len(results) < count:
            results.update(channel.poll())
            if len(results) < count:
                self.assertTrue(poll.poll(MS))
        return results

    def test_calls_of_each_kind(self):
        pages, more, channel = self.stored("a"), Pages("b"), Channel(self.sessions[1])
        longer = channel.get_sized("s", pages.keys[:2] + ["none"], more.to[:3], [BYTES, 9, 9], MS)
        numbers = [channel.get("s", pages.keys, pages.to, BYTES, MS),
                   channel.exists("s", ["none", pages.keys[0]], MS),
                   channel.set("s", more.keys, more.of, BYTES, MS),
                   channel.get("s", [], [], [], MS)]
        results = self.drain(channel, 5)
        self.assertEqual(results[longer], [BYTES, -BYTES, 0])
        self.assertEqual([results[n] for n in numbers],
                         [[True] * PAGES, [False, True], [True] * PAGES, []])
        self.assertTrue(pages.read())
        removed = channel.remove("s", more.keys[:2] + ["none"], MS)
        self.assertEqual(self.drain(channel, 1), {removed: [True, True, False]})
        self.assertEqual(channel.poll(), [])
        with self.assertRaises(ValueError):
            channel.get("s", pages.keys, pages.to, BYTES, MS, True)
        with self.assertRaises(TypeError):
            Channel(None)
        before = self.sessions[1].counts()
        channel.close()
        after = self.sessions[1].counts()
        self.assertEqual(after["hits_remote"] - before["hits_remote"], PAGES + 1)
        self.assertEqual((after["hit"], after["longer"]), (2 * PAGES + 4, 1))
        for call in (channel.fileno, lambda: channel.exists("s", ["a"], MS)):
            with self.assertRaises(ValueError):
                call()

    def test_what_ends_a_call(self):
        """The close of the channel in another thread, its last reference, its engine's death."""
        for end in ("channel", "dealloc", "engine"):
            pages = self.stored(end)
            session = Session(self.engines.sockets[1])
            channel = Channel(session)
            self.freeze()
            number = channel.get("s", pages.keys, pages.to, BYTES, MS)
            self.assertEqual(channel.poll(), [])
            fd = os.dup(channel.fileno())
            waiter = select.poll()
            waiter.register(fd, select.POLLIN)
            if end == "dealloc":
                del channel
            else:
                ender = threading.Thread(target=channel.close if end == "channel"
                                         else self.engines.process[1].kill)
                ender.start()
                if end == "engine":
                    ender.join()
                    self.assertEqual(self.drain(channel, 1), {number: [False] * PAGES})
                else:
                    self.assertTrue(waiter.poll(MS))
                    ender.join()
                    self.assertEqual(channel.poll(), [(number, [False] * PAGES)])
            os.close(fd)
            session.close()
            self.thaw()

    def test_each_call_has_a_number_of_its_own(self):
        """One thread takes what others submit, also before their calls have returned."""
        channel, submitted, taken = Channel(self.sessions[1]), [[], [], []], []
        usual = sys.getswitchinterval()
        self.addCleanup(sys.setswitchinterval, usual)
        sys.setswitchinterval(1e-5)

        def submit(numbers):
            for _ in range(3000):
                numbers.append(channel.exists("s", ["none"], MS))
        threads = [threading.Thread(target=submit, args=(numbers,)) for numbers in submitted]
        for thread in threads:
            thread.start()
        while len(taken) < 9000:
            taken += [number for number, _ in channel.poll()]
        for thread in threads:
            thread.join()
        self.assertEqual(sorted(sum(submitted, [])), sorted(taken))
        channel.close()

    def test_a_child_of_fork(self):
        pages, channel = self.stored("f"), Channel(self.sessions[1])
        number = channel.get("s", pages.keys, pages.to, BYTES, MS)
        child = os.fork()
        if not child:
            right = channel.poll() == [(number, [False] * PAGES)]
            try:
                channel.fileno()
                right = False
            except OSError:
                channel.close()
            os._exit(not right)
        self.assertEqual(os.waitpid(child, 0)[1], 0)
        self.assertEqual(self.drain(channel, 1), {number: [True] * PAGES})
        self.assertTrue(pages.read())

    def test_children_of_a_process_whose_threads_use_the_channel(self):
        pages, channel, ended = self.stored("t"), Channel(self.sessions[0]), threading.Event()

        def use():
            while not ended.is_set():
                channel.get("s", pages.keys, pages.to, BYTES, MS)
                channel.poll()
        threads = [threading.Thread(target=use) for _ in range(3)]
        for thread in threads:
            thread.start()
        try:
            for _ in range(100):
                child = os.fork()
                if not child:
                    signal.alarm(60)
                    for _ in range(20):
                        channel.poll()
                    channel.close()
                    os._exit(0)
                self.assertEqual(os.waitpid(child, 0)[1], 0)
        finally:
            ended.set()
            for thread in threads:
                thread.join()

    def test_numbers_of_other_packages(self):
        class Number:
            def __init__(self, value):
                self.value = value

            def __index__(self):
                return self.value
        pages = self.stored("i")
        got = self.sessions[1].get("s", pages.keys, list(map(Number, pages.to)),
                                   [Number(BYTES)] * PAGES, MS)
        self.assertEqual(got, [True] * PAGES)
        self.assertTrue(pages.read())
        for sizes in (-1, [-1], [Number(1 << 64)]):
            with self.assertRaises(TypeError):
                self.sessions[1].get("s", ["i"], pages.to[:1], sizes, MS)


class Aio(ChannelTest):
    def test_many_calls_at_once(self):
        groups = [self.stored(f"g{n}") for n in range(20)]

        async def both():
            channel = aio.Channel(self.sessions[1])
            for _ in range(3):
                got = await asyncio.gather(*(
                    channel.get("s", p.keys, p.to, BYTES, MS) for p in groups))
                self.assertEqual(got, [[True] * PAGES] * 20)
            self.assertEqual(await channel.exists("s", ["none"], MS), [False])
            self.assertEqual(await channel.get_sized("s", groups[0].keys[:1], groups[0].to[:1],
                                                     BYTES, MS), [BYTES])
            self.assertEqual(await channel.set("s", ["n"], groups[0].of[:1], BYTES, MS), [True])
            self.assertEqual(await channel.remove("s", ["n"], MS), [True])
            await channel.aclose()
        asyncio.run(both())
        self.assertTrue(all(p.read() for p in groups))

    def test_a_wait_costs_few_turns_and_a_task_may_be_cancelled(self):
        pages, turns = self.stored("w"), []

        async def wait():
            channel = aio.Channel(self.sessions[1])
            turn = channel._turn
            channel._turn = lambda loop: (turns.append(1), turn(loop))
            self.freeze()
            calls = [asyncio.create_task(channel.get("s", pages.keys, pages.to, BYTES, MS))
                     for _ in range(2)]
            await asyncio.sleep(1)  # not a wait: turns are counted over this time
            counted = len(turns)
            calls[0].cancel()
            late = asyncio.create_task(channel.aclose())
            with self.assertRaises(asyncio.TimeoutError):  # its memory is still read into
                await asyncio.wait_for(asyncio.shield(calls[0]), 0.2)
            with self.assertRaises(ValueError):
                await channel.exists("s", ["none"], MS)
            self.assertFalse(late.done())
            self.thaw()
            self.assertEqual(await calls[1], [True] * PAGES)
            await late
            await channel.aclose()
            self.assertTrue(calls[0].cancelled())
            self.assertTrue(pages.read())
            return counted
        self.assertLess(asyncio.run(wait()), 40)

    def interrupted(self, pages):
        """A channel, and the coroutine of a get in flight whose event loop has ended."""
        for _ in range(100):  # the get may be done at once
            loop, channel = asyncio.new_event_loop(), aio.Channel(self.sessions[1])
            task = loop.create_task(channel.get("s", pages.keys, pages.to, BYTES, MS))
            loop.call_soon(loop.stop)
            loop.run_forever()
            loop.close()
            if not task.done():
                return channel, task.get_coro()
        return self.fail("each get was done at once")

    def test_a_loop_that_ends_leaves_no_memory_in_use(self):
        pages = self.stored("l")
        channel, coroutine = self.interrupted(pages)
        coroutine.close()  # as the interpreter does when the task is freed
        ctypes.memset(pages.into, 0, PAGES * BYTES)
        harness.wait_for(channel._channel.poll, 30, "the call has ended")
        self.assertEqual(pages.into.raw.count(0), PAGES * BYTES)

    def test_a_session_is_closed_after_its_channels(self):
        pages = self.stored("c")

        async def wait():
            channel, other = aio.Channel(self.sessions[1]), Channel(self.sessions[1])
            self.freeze()
            call = asyncio.create_task(channel.get("s", pages.keys, pages.to, BYTES, MS))
            await asyncio.sleep(0)
            self.sessions[1].close()
            for late in (other.exists, lambda *_: Channel(self.sessions[1])):
                with self.assertRaises(ValueError):
                    late("s", ["none"], MS)
            self.thaw()
            self.assertEqual(await call, [True] * PAGES)
            with self.assertRaises(RuntimeError):
                self.sessions[1].__init__(self.engines.sockets[1])
            await channel.aclose()
            del other
        asyncio.run(wait())
        self.assertTrue(pages.read())
        self.sessions[1].__init__(self.engines.sockets[1])  # nothing is left of the closed one


if __name__ == "__main__":
    harness.main()
