# SPDX-License-Identifier: Apache-2.0
"""Addresses and lengths of the pages that callers of the generic methods pass.

A page is a contiguous tensor, an object with a buffer (bytes, bytearray, memoryview, an array of
numpy), or an address with its length. The caller owns its memory.
"""

import ctypes
from typing import Any, Optional, Sequence

PAGE_BYTES_MAX = 64 << 20  # bytes of the longest page (config/limits.h)


def place(page: Any, nbytes: Optional[int], written: bool, kept: list) -> tuple[int, int]:
    """Address and length in bytes of a page. Raises ValueError or TypeError for what is no page.

    nbytes: the length that the caller gives; None: that of the page. written: the page is a
    destination. kept: gets an object that must live until the call has ended.
    """
    if isinstance(page, int):
        if nbytes is None:
            raise ValueError("an address needs its length: give target_sizes")
        return page, nbytes
    if hasattr(page, "data_ptr"):
        if not page.is_contiguous():
            raise ValueError("a page's tensor is not contiguous")
        address, length = page.data_ptr(), page.numel() * page.element_size()
    else:
        view = memoryview(page)
        if not view.c_contiguous:
            raise ValueError("a page's buffer is not contiguous")
        if view.readonly and written:
            raise ValueError("a page that is read needs writable memory: give a bytearray")
        length = view.nbytes
        kind = ctypes.c_char * length
        kept.append(kind.from_buffer_copy(view) if view.readonly else kind.from_buffer(view))
        address = ctypes.addressof(kept[-1])
    if nbytes is None:
        return address, length
    if nbytes > length:
        raise ValueError(f"target_sizes has {nbytes} bytes for a page of {length}")
    return address, nbytes


def places_of(keys: Sequence[str], pages: Any, sizes: Any, written: bool,
              kept: list) -> list[tuple[int, int]]:
    """place() of each page; ValueError unless there is one page, and one size, per key."""
    pages = list(pages)
    lengths = [None] * len(pages) if sizes is None else [int(nbytes) for nbytes in sizes]
    if len(pages) != len(keys) or len(lengths) != len(keys):
        raise ValueError(f"{len(keys)} keys, but {len(pages)} pages and {len(lengths)} sizes: "
                         "give one page per key")
    return [place(page, nbytes, written, kept) for page, nbytes in zip(pages, lengths)]
