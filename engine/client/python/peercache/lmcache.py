# SPDX-License-Identifier: Apache-2.0
"""Client: the class that LMCache's L2 adapter `native_plugin` loads.

    lmcache server ... --l2-adapter '{"type": "native_plugin", "module_path": "peercache.lmcache",
        "class_name": "Client", "adapter_params": {"discovery_addr": "10.0.0.1:31998"}}'

adapter_params are keys of the extra config. LMCache submits from its threads, and takes what has
ended in one that waits for event_fd(); no thread is made here. The memory of a submitted call is
in use until drain_completions() has returned its number.
"""

import contextlib
import logging
import os
import select
import threading
import time
from typing import Any, Optional, Sequence

from peercache import Channel
from peercache import config as configuration
from peercache import keys as names
from peercache import values
from peercache.guard import Guarded, guarded
from peercache.places import place

logger = logging.getLogger("peercache")


def stored(keys: Sequence[str], views: Sequence[memoryview]) -> values.Steps:
    """Stores buffers, unless the keys have values."""
    if not keys:
        return []
    kept: list = []
    found = [place(view, None, False, kept) for view in views]
    results = yield from values.write(values.keys_of(keys), *map(list, zip(*found)))
    return [result == values.HIT for result in results]


def loaded(keys: Sequence[str], views: Sequence[memoryview]) -> values.Steps:
    """Reads values that have exactly the length of their buffers."""
    if not keys:
        return []
    kept: list = []
    ptrs, sizes = map(list, zip(*(place(view, None, True, kept) for view in views)))
    lengths = yield from values.read(values.keys_of(keys), ptrs, sizes)
    return [length == nbytes for length, nbytes in zip(lengths, sizes)]


def there(keys: Sequence[str]) -> values.Steps:
    """Looks which keys have values."""
    return [result == values.HIT for result in (yield ("exists", values.keys_of(keys)))]


def gone(keys: Sequence[str]) -> values.Steps:
    """Removes values."""
    results = yield from values.remove(values.keys_of(keys))
    return [result in (values.HIT, values.MISS) for result in results]


class Client(Guarded):
    """LMCache's connector over the engine of this host. Any thread may call any method."""

    def __init__(self, **extra: Any) -> None:
        config = configuration.read({"engine_start": True, **extra})
        config.warn()
        self._space = "|".join(["lm1", *(f"{name}={names.escape(value)}" for name, value in
                                         zip(("prefix", "tag"), config.tags))])
        self._timeout = config.timeout_ms
        self._turn = threading.Lock()  # of what follows
        self._calls: dict[int, tuple] = {}  # number in the channel -> own number, deadline, steps
        self._ended: list[tuple] = []
        self._number = 0
        self._channel: Any = None
        self._attach(config)
        try:
            self._channel = Channel(self._session)
            self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
            self._ready = select.epoll()
            self._ready.register(self._wake, select.EPOLLIN)
            self._ready.register(self._channel.fileno(), select.EPOLLIN)
        except BaseException:
            super().close()
            raise

    def event_fd(self) -> int:
        """Readable when drain_completions() may have something to do."""
        return self._ready.fileno()

    def submit_batch_set(self, keys: Sequence[str], views: Sequence[memoryview]) -> int:
        """Stores buffers, unless the keys have values. Returns the number of the call."""
        return self._submit(stored(keys, views))

    def submit_batch_get(self, keys: Sequence[str], views: Sequence[memoryview]) -> int:
        """Reads values that have exactly the length of their buffers. Returns the number."""
        return self._submit(loaded(keys, views))

    def submit_batch_exists(self, keys: Sequence[str]) -> int:
        """Looks which keys have values. Returns the number of the call."""
        return self._submit(there(keys))

    def submit_batch_delete(self, keys: Sequence[str]) -> int:
        """Removes values. Returns the number of the call."""
        return self._submit(gone(keys))

    def _submit(self, steps: values.Steps) -> int:
        with self._turn:
            self._number += 1
            self._go_on(self._number, time.monotonic() + self._timeout / 1000, steps, None)
            if self._ended and self._channel:
                os.eventfd_write(self._wake, 1)
            return self._number

    def _go_on(self, number: int, end: float, steps: values.Steps, results: Any) -> None:
        """Submits the next call of the steps, or ends them."""
        try:
            if self._channel is None:
                raise ValueError("the client is closed")
            verb, *arguments = steps.send(results)
            rest = max(1, int((end - time.monotonic()) * 1000))
            self._calls[getattr(self._channel, verb)(
                self._space, *arguments, rest, *values.NUMBERS[verb])] = number, end, steps
        except StopIteration as stop:
            missed = stop.value.count(False)
            ok = not missed or steps.__name__ != stored.__name__
            self._ended.append((number, ok, "" if ok else f"{missed} of {len(stop.value)} keys "
                                "are not stored: the log of peercache tells why", stop.value))
        except Exception as error:  # pylint: disable=broad-except
            self._failed("a call of LMCache", error)
            self._ended.append((number, False, str(error), None))

    @guarded(list)
    def drain_completions(self) -> list[tuple[int, bool, str, Optional[list[bool]]]]:
        """(number, all keys done, why not, which) of each call that has ended. Does not wait."""
        with self._turn:
            if self._channel:
                with contextlib.suppress(BlockingIOError):  # the channel's turn
                    os.eventfd_read(self._wake)
                for number, results in self._channel.poll():
                    self._go_on(*self._calls.pop(number), results)
            ended, self._ended = self._ended, []
            return ended

    def _after_fork(self) -> None:
        super()._after_fork()
        self._turn = threading.Lock()

    def close(self) -> None:
        """Ends the calls in flight, at their deadlines at the latest, and detaches."""
        with self._turn:
            channel, self._channel = self._channel, None
        if channel:
            channel.close()
            self._ready.close()
            os.close(self._wake)
        super().close()
