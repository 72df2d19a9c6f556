# SPDX-License-Identifier: Apache-2.0
"""A host pool that SGLang registered: the addresses of its pages and the namespaces of their keys.

A page of a pool has len(ptrs) / len(keys) segments, in every pool and layout. SGLang lists K and V
of a layer_first pool by turns, layer by layer. Their pages are stored with all K before all V: the
segments then lie at one distance, and the engine reads the page in a run with others.

With split heads, the tensor-parallel sizes of the hosts differ and `tp_lcm_size` is their least
common multiple. Each page is then stored as `tp_lcm_size` objects, one per share of the heads, of
which this rank has `tp_lcm_size / tp_size`. A host of another tensor-parallel size finds the shares
that it needs.
"""

from dataclasses import replace
from typing import Any, Optional, Sequence

from peercache.keys import Shape, name_space


def plain(name: Any) -> str:
    """Text of a pool name or hit policy: a str, or an enum whose value is the text.

    SGLang's PoolName is a str enum, and its str() differs by version.
    """
    return str(getattr(name, "value", name))


class Indices(list):
    """Stands in for a CPU int64 tensor where torch is missing: has the method that a pool uses."""

    def tolist(self) -> list:
        """The indices."""
        return self


def first_page(pool: Any) -> Any:
    """Token indices of the pool's first page: a CPU int64 tensor, or a list without torch."""
    try:
        import torch
    except ImportError:
        return Indices(range(page_size_of(pool)))
    return torch.arange(page_size_of(pool), dtype=torch.int64)


def page_size_of(pool: Any) -> int:
    """Tokens per page of the pool; 1 if the pool does not tell."""
    return int(getattr(pool, "page_size", 1) or 1)


# Names of the types that SGLang stores as torch.uint8, by those of torch and of SGLang's setting.
# "auto" is stored so only if the model's weights ask for it, and means e4m3 then.
STORED_AS_BYTES = {"torch.float8_e4m3fn": "fp8_e4m3", "torch.float8_e4m3fnuz": "fp8_e4m3fnuz",
                   "torch.float8_e5m2": "fp8_e5m2", "auto": "fp8_e4m3"}


def dtype_setting(name: str) -> str:
    """SGLang's data type of KV caches, of torch or of its setting; "" if it is not known.

    name: of the pool; those of a draft may have a type of their own. The setting is found from
    0.5.19 on, and in a scheduler only.
    """
    try:
        from sglang.srt import runtime_context as context
        from sglang.srt.utils import is_hip
        setting = str(context.get_model().kv_cache_dtype)
        if name.startswith("draft"):
            own = getattr(context.get_spec(), "speculative_draft_kv_cache_dtype", None)
            setting = setting if own is None else str(own)
        if is_hip() and (setting == "auto" or setting.startswith("fp8")):
            from sglang.srt.mem_cache.kv_cache_dtype import fp8_dtype  # AMD: one for all of 8 bits
            return str(fp8_dtype)
        return setting
    except (ImportError, AttributeError, ValueError):  # ValueError: not published yet
        return ""


def dtype_of(pool: Any, name: str) -> str:
    """Data type of the elements of the pool of that name, as text.

    pool.dtype is the type in which they are stored: torch.uint8 for types of 8 bits and less.
    Device pools know the real one, and host pools know theirs up to 0.5.18.
    """
    stored = str(getattr(pool, "dtype", ""))
    if stored != "torch.uint8":
        return stored
    device = getattr(getattr(pool, "device_pool", None), "dtype", None)
    real = dtype_setting(name) if device is None else str(device)
    return f"{stored}:{STORED_AS_BYTES.get(real, real)}"


def differs_by_rank(pool: Any, name: str) -> bool:
    """True for Mamba states and for K and V split by heads.

    Each tensor-parallel rank has other bytes of these pools, even if the anchor pool holds MLA
    pages, which are equal on all ranks.
    """
    return name == "mamba" or any(
        base.__name__.startswith(("MHAToken", "Mamba")) for base in type(pool).__mro__)


def by_turns(pool: Any, segments: int) -> bool:
    """True if a page's segments are K and V of each layer by turns.

    Only the pool's class and layout decide, so that all hosts store the same order of bytes.
    """
    return getattr(pool, "layout", "") == "layer_first" and segments % 2 == 0 and \
        any(base.__name__ == "MHATokenToKVPoolHost" for base in type(pool).__mro__)


class Pool:
    """One registered host pool. Nothing changes after __init__, so any thread may use it.

    Attributes:
        pool: SGLang's host pool, which owns the memory.
        name: the pool's name, such as "kv" or "mamba".
        page_size: tokens per page.
        split: shares of the heads per page on this rank; 1 without split heads.
        by_turns: True if K and V are listed by turns, and stored one after the other.
        per_rank: True if the bytes differ by tensor-parallel rank although the model is MLA.
        samples: an address in each segment of the first page; empty without addresses.
        segments, page_bytes: of a page as it is stored, which is one share of the heads; 0 without
            addresses.
        flat_bytes: bytes of a page of the generic calls; 0: not known.
        spaces: one namespace per share of the heads; empty if the pool gives no addresses.
        refusal: why the pool gives no addresses; "" if it does, or if it is logical.
        logical: True for an anchor without bytes of its own.
        flat: namespace of the generic calls, whose pages have another order of bytes.
    """

    def __init__(self, pool: Any, name: str, config: Any, tags: tuple[str, str]) -> None:
        """config: SGLang's HiCacheStorageConfig. tags: Config.tags."""
        self.pool, self.name = pool, name
        self.page_size = page_size_of(pool)
        self.split, self.by_turns = 1, False
        self.per_rank = bool(getattr(config, "is_mla_model", False)) and \
            differs_by_rank(pool, name)
        lcm = getattr(config, "tp_lcm_size", None)
        tp_rank = getattr(config, "tp_rank", 0) or 0
        tp_size = getattr(config, "tp_size", 1) or 1
        if getattr(config, "should_split_heads", False) and lcm and \
                hasattr(pool, "get_split_heads_page_buffer_meta"):
            self.split = lcm // tp_size
        self.samples: list[int] = []
        self.segments = self.page_bytes = 0
        self.spaces: list[str] = []
        self.refusal = ""
        meta = None
        try:
            meta = self._locate(first_page(pool))
        except (AttributeError, NotImplementedError, ValueError, AssertionError) as error:
            self.refusal = f"{type(error).__name__}: {error}"
        # An anchor has no bytes: its get_page_buffer_meta() returns None. If that method raises,
        # the pool has bytes, but gives no addresses of them.
        self.logical = meta is None and not self.refusal and \
            getattr(pool, "kv_buffer", None) is None
        if meta is None:
            nbytes = int(getattr(pool, "size_per_token", 0) or 0) * self.page_size
            whole = self._shape(0, nbytes)
            self.flat = name_space(config, tags, name, whole, flat=True)
            self.flat_bytes = nbytes
            return
        ptrs, sizes = meta
        self.by_turns = self.split == 1 and by_turns(pool, len(ptrs))
        self.samples = list(ptrs)
        nbytes = sum(sizes) // self.split
        self.segments, self.page_bytes = len(ptrs) // self.split, nbytes
        self.flat_bytes = nbytes * self.split
        shape = self._shape(self.segments, nbytes)
        ranks: list[Optional[tuple[int, int]]] = [None]
        if self.split > 1:
            ranks = [(tp_rank * self.split + i, lcm) for i in range(self.split)]
        self.spaces = [name_space(config, tags, name, shape, rank=rank) for rank in ranks]
        whole = replace(shape, segments=0, page_bytes=nbytes * self.split, by_turns=False)
        self.flat = name_space(config, tags, name, whole, flat=True)

    def _shape(self, segments: int, nbytes: int) -> Shape:
        """The layout of this pool's pages, which have these numbers of segments and bytes."""
        pool = self.pool
        return Shape(segments, nbytes, self.page_size, layout=str(getattr(pool, "layout", "")),
                     dtype=dtype_of(pool, self.name),
                     form=str(getattr(pool, "storage_format_tag", None) or ""),
                     per_rank=self.per_rank, by_turns=self.by_turns,
                     first_layer=int(getattr(pool, "start_layer", None) or 0))

    def _locate(self, indices: Any) -> Optional[tuple[list[int], list[int]]]:
        """Addresses and lengths in bytes of the segments of these pages; None: the pool has none.
        """
        if self.split > 1:
            meta = self.pool.get_split_heads_page_buffer_meta(indices, self.split)
        else:
            meta = self.pool.get_page_buffer_meta(indices)
        if meta is None or meta[0] is None:
            return None
        return meta

    def _check(self, keys: Sequence[str], indices: Any) -> None:
        """Raises ValueError unless there are page_size indices per key."""
        if indices is None or len(indices) != len(keys) * self.page_size:
            raise ValueError(f"pool {self.name}: {len(keys)} keys of {self.page_size} tokens, "
                             f"{0 if indices is None else len(indices)} indices")

    def first_indices(self, keys: Sequence[str], indices: Any) -> list[int]:
        """The first token index of each page, which SGLang's pool uses as the page's name.

        Raises ValueError unless `indices` has page_size token indices per key.
        """
        self._check(keys, indices)
        return [int(index) for index in indices[::self.page_size]]

    def batches(self, keys: Sequence[str], indices: Any) -> list[tuple[str, list, list]]:
        """(namespace, ptrs, sizes) for each call to the session, one call per share of the heads.

        Each call is for all keys. ptrs are addresses, sizes bytes; len(ptrs) / len(keys)
        consecutive ones make a page. Raises ValueError unless `indices` has page_size token
        indices per key.
        """
        self._check(keys, indices)
        ptrs, sizes = self._locate(indices) or ([], [])
        if self.by_turns:
            ptrs = one_after_other(ptrs, self.segments)
            sizes = one_after_other(sizes, self.segments)
        if self.split == 1:
            return [(self.spaces[0], ptrs, sizes)]
        each = len(ptrs) // len(keys) // self.split
        return [(space, share(ptrs, i, each, self.split), share(sizes, i, each, self.split))
                for i, space in enumerate(self.spaces)]


def share(flat: list, part: int, each: int, parts: int) -> list:
    """Selects one part of every page. `flat` has `parts` parts per page, of `each` entries each."""
    out = [None] * (len(flat) // parts)
    for k in range(each):
        out[k::each] = flat[part * each + k::parts * each]
    return out


def one_after_other(flat: list, each: int) -> list:
    """Puts the even entries of every page before the odd ones. A page has `each` entries."""
    out = [None] * len(flat)
    for k in range(each):
        out[k % 2 * (each // 2) + k // 2::each] = flat[k::each]
    return out
