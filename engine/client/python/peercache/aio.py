# SPDX-License-Identifier: Apache-2.0
"""Channel for asyncio: the calls of `peercache.Session` as coroutines, without a thread.

    channel = peercache.aio.Channel(session)
    hits = await channel.get("llama-70b/bf16", keys, ptrs, sizes, 1000)

One event loop uses a channel. Its descriptor is in the loop only while calls are in flight. The
memory of a call is in use until the call is done, also if its task was cancelled: aclose() waits
for all.
"""

import asyncio

import peercache


class Channel:
    """Calls in flight on one `peercache.Channel`."""

    def __init__(self, session):
        self._channel = peercache.Channel(session)
        self._fd = self._channel.fileno()
        self._waiting = {}  # number of a call: its future

    async def get(self, name_space, keys, ptrs, sizes, timeout_ms):
        return await self._call(self._channel.get(name_space, keys, ptrs, sizes, timeout_ms))

    async def get_sized(self, name_space, keys, ptrs, sizes, timeout_ms):
        return await self._call(self._channel.get_sized(name_space, keys, ptrs, sizes, timeout_ms))

    async def set(self, name_space, keys, ptrs, sizes, timeout_ms):
        return await self._call(self._channel.set(name_space, keys, ptrs, sizes, timeout_ms))

    async def exists(self, name_space, keys, timeout_ms):
        return await self._call(self._channel.exists(name_space, keys, timeout_ms))

    async def remove(self, name_space, keys, timeout_ms):
        return await self._call(self._channel.remove(name_space, keys, timeout_ms))

    async def aclose(self):
        """Waits for the calls in flight, at most until their deadlines, then closes the channel."""
        if self._waiting:
            await asyncio.wait([waiting[1] for waiting in self._waiting.values()])
        self._channel.close()

    async def _call(self, number):
        loop = asyncio.get_running_loop()
        future, done = loop.create_future(), loop.create_future()
        if not self._waiting:
            loop.add_reader(self._fd, self._turn, loop)
        self._waiting[number] = future, done
        self._turn(loop)
        return await future

    def _turn(self, loop):
        """Takes the calls that have ended. `done` ends with the call, `future` with its task."""
        for number, result in self._channel.poll():
            future, done = self._waiting.pop(number)
            done.set_result(None)
            if not future.done():
                future.set_result(result)
        if not self._waiting:
            loop.remove_reader(self._fd)
