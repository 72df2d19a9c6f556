# SPDX-License-Identifier: Apache-2.0
"""Channel for asyncio: the calls of `peercache.Session` as coroutines, without a thread.

    channel = peercache.aio.Channel(session)
    hits = await channel.get("llama-70b/bf16", keys, ptrs, sizes, 1000)

One event loop uses a channel. Its descriptor is in the loop only while calls are in flight. The
memory of a call is in use until the call is done: a coroutine that is cancelled ends when its call
has ended, at its deadline at the latest. One whose event loop has ended closes the channel.
"""

import asyncio

import peercache


class Channel:
    """Calls in flight on one `peercache.Channel`."""

    def __init__(self, session):
        self._channel = peercache.Channel(session)
        self._fd = self._channel.fileno()
        self._waiting = {}  # number of a call: its future
        self._closing = False

    async def get(self, name_space, keys, ptrs, sizes, timeout_ms):
        return await self._call(self._channel.get, name_space, keys, ptrs, sizes, timeout_ms)

    async def get_sized(self, name_space, keys, ptrs, sizes, timeout_ms):
        return await self._call(self._channel.get_sized, name_space, keys, ptrs, sizes, timeout_ms)

    async def set(self, name_space, keys, ptrs, sizes, timeout_ms):
        return await self._call(self._channel.set, name_space, keys, ptrs, sizes, timeout_ms)

    async def exists(self, name_space, keys, timeout_ms):
        return await self._call(self._channel.exists, name_space, keys, timeout_ms)

    async def remove(self, name_space, keys, timeout_ms):
        return await self._call(self._channel.remove, name_space, keys, timeout_ms)

    async def aclose(self):
        """Waits for the calls in flight, at most until their deadlines, then closes the channel.

        A call that begins meanwhile raises ValueError.
        """
        self._closing = True
        while self._waiting:
            await asyncio.wait(list(self._waiting.values()))
        self._channel.close()

    async def _call(self, submit, *arguments):
        if self._closing:
            raise ValueError("the channel is closed")
        loop = asyncio.get_running_loop()
        number, done, cancelled = submit(*arguments), loop.create_future(), None
        if not self._waiting:
            loop.add_reader(self._fd, self._turn, loop)
        self._waiting[number] = done
        self._turn(loop)
        while not done.done():
            try:
                await asyncio.wait([done])
            except asyncio.CancelledError as error:
                cancelled = error
            except GeneratorExit:  # the event loop ended with this call in flight
                self._closing = True
                self._channel.close()  # the memory of the calls is free after it
                raise
        if cancelled:
            raise cancelled
        return done.result()

    def _turn(self, loop):
        """Takes the calls that have ended."""
        for number, result in self._channel.poll():
            self._waiting.pop(number).set_result(result)
        if not self._waiting:
            loop.remove_reader(self._fd)
