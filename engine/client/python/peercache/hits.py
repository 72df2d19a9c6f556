# SPDX-License-Identifier: Apache-2.0
"""Hit policies: which pages of a pool SGLang needs to restore a prefix of the KV pages.

The names are the values of SGLang's enum PoolHitPolicy. They are compared as text, because older
versions of SGLang lack the enum or some of its members.
"""

from typing import Any, Callable, Sequence

ALL_PAGES = "all_pages"  # a prefix needs all its pages
TRAILING_PAGES = "trailing_pages"  # a prefix needs its last pages, one per key of the transfer
BLOCK_GROUPS = "block_groups"  # the pool holds a second form of the KV pages; it limits no prefix


def windows(there: Sequence[bool], size: int) -> list[bool]:
    """Tells for each prefix length whether the last `size` pages of the prefix are stored.

    there[n] tells whether page n is stored. Element n - 1 of the result is for the prefix of n
    pages. A prefix of fewer than `size` pages needs all its pages.
    """
    fits, run = [], 0
    for length, hit in enumerate(there, 1):
        run = run + 1 if hit else 0
        fits.append(run >= min(max(size, 1), length))
    return fits


def longest(fits: Sequence[bool]) -> int:
    """Length of the longest usable prefix, or 0. fits[n - 1] is for the prefix of n pages."""
    return max((length for length, fit in enumerate(fits, 1) if fit), default=0)


def group_pages(transfer: Any, span: int, prefix: Callable[[Sequence[str]], int]) -> int:
    """Number of KV pages that the leading complete groups of transfer.keys cover.

    transfer: SGLang's PoolTransfer. Its keys are groups of group_pages keys; each group stores one
    block of block_pages KV pages, and a block is stored when all keys of its group are. span: upper
    limit of the result. prefix(keys) returns the number of leading keys that are stored. Returns 0
    without keys, or if the transfer has no group or block size.
    """
    block = int(getattr(transfer, "block_pages", 0) or 0)
    group = int(getattr(transfer, "group_pages", 0) or 0)
    if block <= 0 or group <= 0 or not transfer.keys:
        return 0
    return min(prefix(transfer.keys) // group * block, span)
