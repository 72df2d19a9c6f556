# SPDX-License-Identifier: Apache-2.0
"""What the classes over a session share: they attach, survive a fork(), close, and log failures."""

import functools
import logging
import os
import threading
import weakref
from typing import Any, Callable, Optional

from peercache.config import Config
from peercache.launch import Attachment

logger = logging.getLogger("peercache")


def grew(before: int, now: int) -> bool:
    """True if a number that grows has reached or passed one of 1, 2, 4, 8, ..."""
    return now.bit_length() > before.bit_length()


def guarded(otherwise: Optional[Callable[..., Any]]) -> Callable:
    """Decorator for a method that must not raise.

    It counts and logs an exception of the method and returns otherwise(arguments) instead; None:
    the exception is the caller's. It logs what came of pages that are neither hits nor misses. It
    also checks around each call whether the engine was lost or is back, and logs that once.
    """
    def wrap(method: Callable) -> Callable:
        @functools.wraps(method)
        def call(self: "Guarded", *args: Any, **kwargs: Any) -> Any:
            attachment = self._attachment
            if attachment:
                attachment.look()
            try:
                return method(self, *args, **kwargs)
            except Exception as error:  # pylint: disable=broad-except
                if otherwise is None:
                    raise
                self._failed(method.__name__, error)
            finally:
                if attachment and attachment.lost_at is not None:
                    attachment.look()  # the call may have attached again
                self._tell_failures()
            try:
                return otherwise(*args, **kwargs)
            except Exception as error:  # pylint: disable=broad-except
                self._failed(method.__name__, error)
                return otherwise(())
        return call
    return wrap


stores: weakref.WeakSet = weakref.WeakSet()  # of this process and, after a fork(), of its parent


def after_fork() -> None:
    """In a child of fork(): makes the inherited stores safe to call and to close."""
    for store in list(stores):
        store._after_fork()


os.register_at_fork(after_in_child=after_fork)


class Guarded:
    """A base of the classes that others call. Any thread may call any method at any time."""

    _attachment: Optional[Attachment] = None
    _session: Any = None  # of the last attachment, also when it is closed; None: never attached

    def _attach(self, config: Config) -> None:
        """Attaches to the engine, and may start one. Raises as Attachment does."""
        self._lock = threading.Lock()
        self._errors: dict[str, int] = {}
        self._told: dict[str, int] = {}  # name of a result -> calls with it when it was looked at
        self._attachment = Attachment(config)
        self._session = self._attachment.session
        if config.quota or config.ttl_s:
            self._session.limits(config.quota or -1, config.ttl_s or -1)
        stores.add(self)

    def _failed(self, what: str, error: Exception) -> None:
        """Counts an error of `what`, and logs the 1st, 2nd, 4th, 8th, ... of them."""
        with self._lock:
            count = self._errors[what] = self._errors.get(what, 0) + 1
        if grew(count - 1, count):
            logger.error("peercache: %s failed (%d so far), its pages are reported as "
                         "misses: %s: %s", what, count, type(error).__name__, error,
                         exc_info=count == 1)

    def _tell_failures(self) -> None:
        """Logs results that are neither hits nor misses, the 1st, 2nd, 4th, ... time of each.

        A child of fork() logs once that the store is not its own.
        """
        session = self._session
        for name, (pages, calls, text) in session.failures().items() if session else ():
            with self._lock:
                told = self._told.get(name, 0)
                self._told[name] = max(told, calls)
            if grew(told, calls) and not (told and name == "inherited"):
                logger.warning("peercache: %s: %d pages in %d calls so far are no hits: %s",
                               name, pages, calls, text)

    def _after_fork(self) -> None:
        """In a child of fork(): the threads that may have held these locks do not exist."""
        self._lock = threading.Lock()
        if self._attachment:
            self._attachment.lock = threading.Lock()

    @guarded(lambda: None)
    def close(self) -> Any:
        """Waits for running calls, detaches, and releases the engine that this store started.

        May be called twice. Later calls report misses.
        """
        if self._attachment is None:
            return
        with self._lock:
            attachment, self._attachment = self._attachment, None
        if attachment:
            attachment.close()
