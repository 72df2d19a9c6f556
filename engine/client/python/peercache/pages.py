# SPDX-License-Identifier: Apache-2.0
"""A registered host pool: the addresses of its pages and the namespaces of their keys.

nseg = len(ptrs) / len(keys) covers every pool and layout. With split heads a page is several
objects, one for each rank of the least common multiple of the tensor-parallel sizes, so that hosts
of another tensor-parallel size find their objects.
"""

from dataclasses import replace
from typing import Any, Optional, Sequence

from peercache.keys import Shape, name_space


def plain(name: Any) -> str:
    """PoolName is a str enum whose str() differs by version."""
    return str(getattr(name, "value", name))


class _Indices(list):
    def tolist(self) -> list:
        return self


def first_page(pool: Any) -> Any:
    try:
        import torch
    except ImportError:
        return _Indices(range(page_size_of(pool)))
    return torch.arange(page_size_of(pool), dtype=torch.int64)


def page_size_of(pool: Any) -> int:
    return int(getattr(pool, "page_size", 1) or 1)


def differs_by_rank(pool: Any, name: str) -> bool:
    """Mamba states and K/V by heads are split over tensor-parallel ranks whatever the anchor is."""
    return name == "mamba" or any(
        base.__name__.startswith(("MHAToken", "Mamba")) for base in type(pool).__mro__)


class Pool:
    """One registered host pool. Read-only after it is made; any thread."""

    def __init__(self, pool: Any, name: str, config: Any, tag: str) -> None:
        self.pool, self.name = pool, name
        self.page_size = page_size_of(pool)
        self.split = 1
        self.per_rank = bool(getattr(config, "is_mla_model", False)) and \
            differs_by_rank(pool, name)
        form = str(getattr(pool, "storage_format_tag", None) or "")
        lcm = getattr(config, "tp_lcm_size", None)
        tp_rank = getattr(config, "tp_rank", 0) or 0
        tp_size = getattr(config, "tp_size", 1) or 1
        if getattr(config, "should_split_heads", False) and lcm and \
                hasattr(pool, "get_split_heads_page_buffer_meta"):
            self.split = lcm // tp_size
        self.samples: list[int] = []
        self.spaces: list[str] = []  # empty: the pool gives no addresses of pages
        self.refusal = ""
        meta = None
        try:
            meta = self._locate(first_page(pool))
        except (AttributeError, NotImplementedError, ValueError, AssertionError) as error:
            self.refusal = f"{type(error).__name__}: {error}"
        # An anchor answers that it has no bytes; a pool that raises has bytes without addresses.
        self.logical = meta is None and not self.refusal and \
            getattr(pool, "kv_buffer", None) is None
        if meta is None:
            nbytes = int(getattr(pool, "size_per_token", 0) or 0) * self.page_size
            whole = Shape(0, nbytes, self.page_size, str(getattr(pool, "layout", "")),
                          str(getattr(pool, "dtype", "")), form, self.per_rank)
            self.flat = name_space(config, tag, name, whole, flat=True)
            return
        ptrs, sizes = meta
        self.samples = list(ptrs)
        nbytes = sum(sizes) // self.split
        shape = Shape(len(ptrs) // self.split, nbytes, self.page_size,
                      str(getattr(pool, "layout", "")), str(getattr(pool, "dtype", "")),
                      form, self.per_rank)
        ranks: list[Optional[tuple[int, int]]] = [None]
        if self.split > 1:
            ranks = [(tp_rank * self.split + i, lcm) for i in range(self.split)]
        self.spaces = [name_space(config, tag, name, shape, rank=rank) for rank in ranks]
        whole = replace(shape, segments=0, page_bytes=nbytes * self.split)
        self.flat = name_space(config, tag, name, whole, flat=True)

    def _locate(self, indices: Any) -> Optional[tuple[list[int], list[int]]]:
        if self.split > 1:
            meta = self.pool.get_split_heads_page_buffer_meta(indices, self.split)
        else:
            meta = self.pool.get_page_buffer_meta(indices)
        if meta is None or meta[0] is None:
            return None
        return meta

    def _check(self, keys: Sequence[str], indices: Any) -> None:
        if indices is None or len(indices) != len(keys) * self.page_size:
            raise ValueError(f"pool {self.name}: {len(keys)} keys of {self.page_size} tokens, "
                             f"{0 if indices is None else len(indices)} indices")

    def first_indices(self, keys: Sequence[str], indices: Any) -> list[int]:
        """The first token index of each page, by which SGLang's pool names the page."""
        self._check(keys, indices)
        return [int(index) for index in indices[::self.page_size]]

    def batches(self, keys: Sequence[str], indices: Any) -> list[tuple[str, list, list]]:
        """(namespace, ptrs, sizes) for each call to make; each call has all the keys."""
        self._check(keys, indices)
        ptrs, sizes = self._locate(indices) or ([], [])
        if self.split == 1:
            return [(self.spaces[0], ptrs, sizes)]
        each = len(ptrs) // len(keys) // self.split
        return [(space, share(ptrs, i, each, self.split), share(sizes, i, each, self.split))
                for i, space in enumerate(self.spaces)]


def share(flat: list, part: int, each: int, parts: int) -> list:
    """From parts * each entries per page, the `each` entries of one part."""
    out = [None] * (len(flat) // parts)
    for k in range(each):
        out[k::each] = flat[part * each + k::parts * each]
    return out
