# SPDX-License-Identifier: Apache-2.0
"""How a pool's pages limit the length of a usable prefix: SGLang's PoolHitPolicy, by value.

Older versions of SGLang lack the enum or some of its members, so names are compared as text.
"""

from typing import Any, Callable, Sequence

ALL_PAGES = "all_pages"  # every page of the prefix
TRAILING_PAGES = "trailing_pages"  # the prefix's last pages, one per key of the transfer
BLOCK_GROUPS = "block_groups"  # a second form of the KV pages: a group of keys per block


def windows(there: Sequence[bool], size: int) -> list[bool]:
    """For each prefix length from 1 on: True if its last `size` pages (or all, if fewer) are
    stored.
    """
    fits, run = [], 0
    for length, hit in enumerate(there, 1):
        run = run + 1 if hit else 0
        fits.append(run >= min(max(size, 1), length))
    return fits


def longest(fits: Sequence[bool]) -> int:
    """The longest prefix that fits; fits[n - 1] is the prefix of n pages."""
    return max((length for length, fit in enumerate(fits, 1) if fit), default=0)


def group_pages(transfer: Any, span: int, prefix: Callable[[Sequence[str]], int]) -> int:
    """Number of KV pages that the leading complete groups of transfer.keys cover; 0: no verdict.

    prefix(keys) returns the number of leading keys that are stored. A block of block_pages KV pages
    is stored when all its group_pages keys are.
    """
    block = int(getattr(transfer, "block_pages", 0) or 0)
    group = int(getattr(transfer, "group_pages", 0) or 0)
    if block <= 0 or group <= 0 or not transfer.keys:
        return 0
    return min(prefix(transfer.keys) // group * block, span)
