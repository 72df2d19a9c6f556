# SPDX-License-Identifier: Apache-2.0
"""A store that flips one bit of the first page that it has read, in SGLang's host pool.

A test attaches it in place of PeerCacheStore, to show that the comparison of answers notices one
wrong byte. The bit is in the exponent of a bfloat16, so that the value differs by far.
"""

import ctypes

from peercache.store import PeerCacheStore

BYTE, BIT = 1, 0x40


class FlippedStore(PeerCacheStore):
    """Attributes: flipped: True once a page is wrong."""

    flipped = False

    def _move(self, what, pool, keys, indices, staged=False):
        hits = super()._move(what, pool, keys, indices, staged)
        if what == "prefetch" and any(hits) and not self.flipped:
            at = next(ptrs[hits.index(True) * (len(ptrs) // len(keys))]
                      for _, ptrs, _ in pool.batches(keys, indices))
            byte = ctypes.c_ubyte.from_address(at + BYTE)
            byte.value ^= BIT
            FlippedStore.flipped = True
        return hits
