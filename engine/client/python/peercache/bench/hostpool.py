# SPDX-License-Identifier: Apache-2.0
"""Stands in for SGLang's host pool. The caller owns the memory; one thread at a time for a page."""

import ctypes
from types import SimpleNamespace

from peercache.pages import Indices

MARK = (1 << 64) - 1  # the bits of a page's number that mark() writes


class HostPool:
    """Pages of one token, each of `segments` equal segments: one for MLA, K and V for MHA.

    base: address of the memory, which the caller keeps. All first segments come first in it, then
    all second ones.
    """

    page_size, layout, dtype = 1, "page_first", "bf16"

    def __init__(self, base: int, pages: int, page_bytes: int, segments: int) -> None:
        self.each = page_bytes // segments
        self.bases = [base + i * pages * self.each for i in range(segments)]
        self.kv_buffer = None if not base else SimpleNamespace()

    def get_page_buffer_meta(self, indices: Indices) -> tuple[list[int], list[int]]:
        """Addresses and lengths in bytes of the pages' segments."""
        each = self.each
        ptrs = [base + page * each for page in indices.tolist() for base in self.bases]
        return ptrs, [each] * len(ptrs)

    def mark(self, page: int, number: int) -> None:
        """Writes `number` at the start of each segment of a page, for marked()."""
        for base in self.bases:
            at = base + page * self.each
            ctypes.memmove(at, (number & MARK).to_bytes(8, "little"), min(8, self.each))

    def marked(self, page: int, number: int) -> bool:
        """True if each segment of the page starts with `number`."""
        size = min(8, self.each)
        wanted = (number & MARK).to_bytes(8, "little")[:size]
        return all(ctypes.string_at(base + page * self.each, size) == wanted
                   for base in self.bases)
