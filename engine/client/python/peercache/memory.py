# SPDX-License-Identifier: Apache-2.0
"""How the engine reaches a pool's memory, in order: its memfds, an import of verbs, copying.

What a pool got is logged once and counted. Copying always works: libpeercache stages what nobody
registered.
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
                # The mapping is exported already (the tensor); this export ends at once.
                yield ctypes.addressof(ctypes.c_char.from_buffer(mapping)), len(mapping), fd
        return
    fd = getattr(pool, "fd", None)
    buffer = getattr(pool, "kv_buffer", None)
    if isinstance(fd, int) and fd >= 0 and hasattr(buffer, "data_ptr"):
        nbytes = buffer.numel() * buffer.element_size()
        page = mmap.PAGESIZE
        yield buffer.data_ptr(), min(os.fstat(fd).st_size, -(-nbytes // page) * page), fd


def import_verbs(_session: Any, _pool: Any) -> list[Range]:
    """The seam for registering the caller's own memory with the engine's device and PD.

    It needs ibv_import_device() and ibv_import_pd() of an mlx5 NIC; the software NIC has neither.
    """
    return []


class Memory:
    """What of the process's memory is registered with the engine."""

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
        """Registers what can be of a pool; `samples` are addresses in each of its buffers."""
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
