# SPDX-License-Identifier: Apache-2.0
"""Registration of the pools' memory with the engine.

For each pool, Memory lets the engine map the pool's memfds (shm). It registers other memory, also
of GPUs, with the engine's NICs (verbs). Otherwise pages are copied through memory of libpeercache
(copy), which always works: libpeercache stages unregistered memory.
The way that is used for a pool is logged once and counted.
"""

import ctypes
import errno
import logging
import math
import mmap
import os
import threading
import time
from typing import Any, Iterator, Optional

logger = logging.getLogger("peercache")
Range = tuple[int, int, int]  # address, length in bytes, memfd


def memfds_of(pool: Any) -> Iterator[Range]:
    """Yields the ranges of the pool's memory that are mappings of memfds from offset 0 on.

    The pool keeps the memfds open. It tells them as allocator.fds and allocator.mms (SGLang's shm
    allocator), or as fd and kv_buffer.
    """
    allocator = getattr(pool, "allocator", None)
    fds = getattr(allocator, "fds", None) or []
    mappings = getattr(allocator, "mms", None) or []
    if fds and len(fds) == len(mappings):
        for fd, mapping in zip(fds, mappings):
            if isinstance(fd, int) and isinstance(mapping, mmap.mmap) and fd >= 0:
                # addressof() needs an export of the mapping's buffer, which ends with this line;
                # the pool's tensor holds an export of its own.
                yield ctypes.addressof(ctypes.c_char.from_buffer(mapping)), len(mapping), fd
        return
    fd = getattr(pool, "fd", None)
    buffer = getattr(pool, "kv_buffer", None)
    if isinstance(fd, int) and fd >= 0 and hasattr(buffer, "data_ptr"):
        nbytes = buffer.numel() * buffer.element_size()
        page = mmap.PAGESIZE
        yield buffer.data_ptr(), min(os.fstat(fd).st_size, -(-nbytes // page) * page), fd


def buffers_of(pool: Any) -> Iterator[tuple[int, int, Any]]:
    """Yields address, length in bytes and owner of the memory of the pool's tensors.

    They are attributes of the pool, or elements of lists there. Tensors may share their memory.
    """
    for value in list(vars(pool).values()) if hasattr(pool, "__dict__") else []:
        for tensor in value if isinstance(value, (list, tuple)) else [value]:
            if not hasattr(tensor, "data_ptr") or not hasattr(tensor, "element_size") or \
                    getattr(getattr(tensor, "device", None), "type", "cpu") not in ("cpu", "cuda"):
                continue
            if hasattr(tensor, "untyped_storage"):
                tensor = tensor.untyped_storage()
                yield tensor.data_ptr(), tensor.nbytes(), tensor
            else:
                yield tensor.data_ptr(), tensor.numel() * tensor.element_size(), tensor


def range_of(thing: Any) -> tuple[int, int]:
    """Returns address and length in bytes of a torch tensor, or of an array on a GPU.

    For Session.register(): session.register(*range_of(tensor), -1). Raises ValueError for one
    with gaps, whose memory is more than its elements.
    """
    if hasattr(thing, "data_ptr"):
        if not thing.is_contiguous():
            raise ValueError("a tensor with gaps has no range of memory: give the one it views")
        return thing.data_ptr(), thing.numel() * thing.element_size()
    about = thing.__cuda_array_interface__
    if about.get("strides"):
        raise ValueError("an array with strides has no range of memory: give the one it views")
    return about["data"][0], math.prod(about["shape"]) * int(about["typestr"][2:])


class Progress:
    """Logs that something still goes on, after 5, 10, 20, 40, ... s, until the block ends."""

    first = 5.0  # seconds

    def __init__(self, what: str) -> None:
        self.what, self.began = what, time.monotonic()
        self.ended = threading.Event()

    def __enter__(self) -> None:
        threading.Thread(target=self._tell, name="peercache-progress", daemon=True).start()

    def __exit__(self, *_error: Any) -> None:
        self.ended.set()

    def _tell(self) -> None:
        wait = self.first
        while not self.ended.wait(wait):
            logger.info("peercache: %s goes on after %.0f s", self.what,
                        time.monotonic() - self.began)
            wait = time.monotonic() - self.began


class Memory:
    """The ranges of this process's memory that are registered with the engine.

    SGLang registers its pools one after the other, so add() needs no lock. The registrations end
    with the session.

    Attributes:
        paths: the way of each pool by its name: shm, verbs, copy or mixed.
        counts: number of pools by way.
    """

    def __init__(self, session: Any) -> None:
        self._session = session
        self._ranges: list[tuple[int, int]] = []
        # Owners of memory that NICs write to: if it were freed, its address could be used again.
        self._owners: list[Any] = []
        self._staged = ""  # why pages of the GPU memory that was registered last are staged
        self.paths: dict[str, str] = {}
        self.counts = {"shm": 0, "verbs": 0, "copy": 0, "mixed": 0}

    def _register(self, name: str, pool: Any) -> Optional[OSError]:
        """Registers the pool's memfds, each once. Returns the last refusal.

        An engine that does not answer does not get the next range.
        """
        refusal = None
        for base, nbytes, fd in memfds_of(pool):
            if (base, nbytes) in self._ranges:
                continue
            try:
                with Progress(f"registering {nbytes / 2**30:.1f} GiB of pool {name}"):
                    self._session.register(base, nbytes, fd)
                self._ranges.append((base, nbytes))
            except OSError as error:
                refusal = error
                if error.errno == errno.ETIMEDOUT:
                    break
        return refusal

    def _import(self, name: str, pool: Any, samples: list[int]) -> Optional[OSError]:
        """Registers the buffers that samples are in with the NICs. Returns the first refusal."""
        for base, nbytes, owner in buffers_of(pool):
            if not any(base <= address < base + nbytes and not self.covers(address)
                       for address in samples):
                continue
            try:
                with Progress(f"registering {nbytes / 2**30:.1f} GiB of pool {name}"):
                    self._staged = self._session.register(base, nbytes, -1) or self._staged
            except OSError as error:
                return error
            self._ranges.append((base, nbytes))
            self._owners.append(owner)
        return None

    def covers(self, address: int) -> bool:
        """True if the address lies in a registered range."""
        return any(base <= address < base + nbytes for base, nbytes in self._ranges)

    def add(self, name: str, pool: Any, samples: list[int], copied: str = "") -> str:
        """Registers the pool's memory. Returns the pool's way: shm, verbs, mixed or copy.

        samples: an address in each of the pool's buffers. Mixed: only some of the buffers are
        registered. copied: why the calls copy the pages of this pool although its memory may be
        registered; "": they do not. If the engine refuses a range, or does not answer, the reason
        is logged and nothing is raised. May block for minutes while the engine pins a large range.
        """
        refused = self._register(name, pool)
        owners, error, self._staged = len(self._owners), None, ""
        if not copied and (refused is None or refused.errno != errno.ETIMEDOUT):
            error = self._import(name, pool, samples)
        if error is not None and error.errno not in (errno.EOPNOTSUPP, errno.EPERM):
            refused = refused or error
        refusal = str(refused or "")
        covered = sum(self.covers(address) for address in samples)
        if not covered:
            reason = str(error.strerror).rsplit("request 8: ", 1)[-1] if error else ""
            path, why = "copy", ('ordinary memory: one copy; "allocator": "shm" in the extra '
                                 "config avoids it (SGLang 0.5.17 and later)"
                                 + (f"; NICs cannot write to it: {reason}" if error else ""))
        elif covered < len(samples):
            path, why = "mixed", "some of its buffers are not registered: they are copied"
        elif self._staged:
            path, why = "copy", f"GPU memory, through staging: {self._staged}"
        elif len(self._owners) > owners:
            path, why = "verbs", "no copies"
        else:
            path, why = "shm", "the engine maps its memfds: no copies"
        if self.paths.get(name) != path:
            self.counts[path] += 1
            self.paths[name] = path
            logger.log(logging.WARNING if refusal else logging.INFO, "peercache: pool %s: %s (%s)",
                       name, path, copied or refusal or why)
        return path
