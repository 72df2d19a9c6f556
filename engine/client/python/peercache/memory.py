# SPDX-License-Identifier: Apache-2.0
"""How the engine reaches a pool's memory. Tried in this order: the pool's memfds, an import of
verbs objects, copying.

The way found for a pool is logged once and counted. Copying always works: libpeercache stages
unregistered memory.
"""

import ctypes
import logging
import mmap
import os
from typing import Any, Iterator

logger = logging.getLogger("peercache")
Range = tuple[int, int, int]  # base, bytes, memfd


def memfds_of(pool: Any) -> Iterator[Range]:
    """The pool's buffers that are mappings of memfds."""
    allocator = getattr(pool, "allocator", None)
    fds = getattr(allocator, "fds", None) or []
    mappings = getattr(allocator, "mms", None) or []
    if fds and len(fds) == len(mappings):
        for fd, mapping in zip(fds, mappings):
            if isinstance(fd, int) and isinstance(mapping, mmap.mmap) and fd >= 0:
                # The tensor already exports the mapping's buffer; this second export ends at once.
                yield ctypes.addressof(ctypes.c_char.from_buffer(mapping)), len(mapping), fd
        return
    fd = getattr(pool, "fd", None)
    buffer = getattr(pool, "kv_buffer", None)
    if isinstance(fd, int) and fd >= 0 and hasattr(buffer, "data_ptr"):
        nbytes = buffer.numel() * buffer.element_size()
        page = mmap.PAGESIZE
        yield buffer.data_ptr(), min(os.fstat(fd).st_size, -(-nbytes // page) * page), fd


def import_verbs(_session: Any, _pool: Any) -> list[Range]:
    """Placeholder for registering the caller's own memory with the engine's device and PD. Returns
    no range.
    """
    return []


class Memory:
    """The ranges of this process's memory that are registered with the engine."""

    def __init__(self, session: Any) -> None:
        self._session = session
        self._ranges: list[tuple[int, int]] = []
        self.paths: dict[str, str] = {}  # pool -> shm, verbs, copy or mixed
        self.counts = {"shm": 0, "verbs": 0, "copy": 0, "mixed": 0}

    def _register(self, found: Range) -> str:
        base, nbytes, fd = found
        if (base, nbytes) in self._ranges:
            return ""
        try:
            self._session.register(base, nbytes, fd)
        except OSError as error:
            return str(error)
        self._ranges.append((base, nbytes))
        return ""

    def covers(self, address: int) -> bool:
        return any(base <= address < base + nbytes for base, nbytes in self._ranges)

    def add(self, name: str, pool: Any, samples: list[int]) -> str:
        """Registers the pool's memfds and returns its way: shm, verbs, mixed or copy.

        samples: an address in each of the pool's buffers. A refusal by the engine is logged, not
        raised.
        """
        refusals, path = [], "shm"
        for found in memfds_of(pool):
            refusal = self._register(found)
            if refusal:
                refusals.append(refusal)
        covered = sum(self.covers(address) for address in samples)
        if not covered:
            path = "verbs" if import_verbs(self._session, pool) else "copy"
        elif covered < len(samples):
            path = "mixed"
        why = {"shm": "the engine maps its memfds: no copies", "verbs": "imported: no copies",
               "mixed": "part of it is no memfd: those buffers are copied"}.get(
                   path, refusals[0] if refusals else "ordinary memory: one copy; "
                   '"allocator": "shm" in the extra config avoids it (SGLang 0.5.17 on)')
        if self.paths.get(name) != path:
            self.counts[path] += 1
            self.paths[name] = path
            logger.info("peercache: pool %s: %s (%s)", name, path, why)
        return path
