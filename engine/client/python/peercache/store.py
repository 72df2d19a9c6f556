# SPDX-License-Identifier: Apache-2.0
"""PeerCacheStore: the storage backend (L3) that SGLang's HiCache loads.

    --hicache-storage-backend dynamic --hicache-storage-backend-extra-config
    '{"backend_name":"peercache","module_path":"peercache.store",
      "class_name":"PeerCacheStore","interface_v1":1}'

An exception ends the SGLang thread in which it is raised. No method of the store therefore raises
one: the store counts and logs the error, and reports the pages as misses.

One C call moves a batch. SGLang calls the store in three ways: the v1 methods (addresses of pages
in the KV pool), the v2 methods (several pools in one call), and the generic methods (one tensor per
page). The pages of the generic methods have another order of bytes, so these methods use a
namespace of their own. The configuration decides in which of the two namespaces `batch_exists`
looks up the keys.
"""

import importlib.metadata
import logging
import os
import re
import sys
import threading
import time
from typing import Any, Callable, Optional, Sequence

# Only this name exists in every version of the module, so it is imported alone.
try:
    from sglang.srt.mem_cache.hicache_storage import HiCacheStorage
except ModuleNotFoundError as missing:  # without SGLang: tests, benchmarks
    if (missing.name or "").split(".")[0] != "sglang":
        raise
    HiCacheStorage = object

from peercache import config as configuration
from peercache import hits
from peercache import keys as names
from peercache.guard import Guarded, guarded
from peercache._peercache import SEGMENTS_MAX
from peercache.memory import Memory
from peercache.pages import Pool, plain
from peercache.places import PAGE_BYTES_MAX, places_of
from peercache.stats import Stats

HIT, MISS, STALE = 0, 1, 2  # of enum pc_result

logger = logging.getLogger("peercache")
KV = "kv"  # name of the pool of the KV pages
RANKS_WRITE = ("mamba",)  # per-rank pools of an MLA model that SGLang stores from every rank
CLEAR_MS = 120000  # deadline of clear()
PAGES_IN_POOL = 32  # of the longest pages that a pool takes (control/pages/pool.c)
V1_SINCE = (0, 5, 6)  # older versions of SGLang call only the generic methods of a dynamic backend


def none_of(keys: Sequence = (), *_args: Any, **_kwargs: Any) -> list[bool]:
    """False for each key: result of a batch that failed."""
    return [False] * len(keys or ())


def none_of_pools(transfers: Sequence = (), *_args: Any, **_kwargs: Any) -> dict[str, list[bool]]:
    """False for each key of each pool: result of a v2 batch that failed."""
    return {plain(t.name): [False] * len(t.keys or ()) for t in transfers or ()}


def nothing(value: Any) -> Callable:
    """A function that returns `value` for any arguments."""
    return lambda *_args, **_kwargs: value


def ranks_of(storage_config: Any) -> int:
    """Number of schedulers of the server, on all of its hosts.

    With DP attention tp_size is the number of ranks that share an attention; torch knows them all.
    """
    torch = getattr(sys.modules.get("torch"), "distributed", None)
    if torch and torch.is_available() and torch.is_initialized():
        return torch.get_world_size()
    return (getattr(storage_config, "tp_size", None) or 1) * \
        (getattr(storage_config, "pp_size", None) or 1)


def pool_result(pages: int, extra: dict[str, int], restorable: list[int]) -> Any:
    """SGLang's PoolTransferResult, or an object with the same attributes without SGLang.

    pages: length of the longest usable prefix. extra: each pool's own longest prefix. restorable:
    all usable prefix lengths. All numbers are KV pages.
    """
    try:
        from sglang.srt.mem_cache import hicache_storage
        make = hicache_storage.PoolTransferResult
    except (ImportError, AttributeError):
        from types import SimpleNamespace
        return SimpleNamespace(kv_hit_pages=pages, extra_pool_hit_pages=extra,
                               restorable_prefix_pages=restorable)
    if "restorable_prefix_pages" in getattr(make, "__dataclass_fields__", {}):  # 0.5.19 on
        return make(pages, extra, restorable)
    return make(pages, extra)


def calls_v1() -> bool:
    """True if the installed SGLang calls the v1 methods when "interface_v1" is set.

    Also True without SGLang.
    """
    try:
        found = re.match(r"(\d+)\.(\d+)\.(\d+)", importlib.metadata.version("sglang"))
    except importlib.metadata.PackageNotFoundError:
        return True
    version = tuple(map(int, found.groups())) if found else (0, 0, 0)
    return version == (0, 0, 0) or version >= V1_SINCE  # SGLang built from a checkout


def one(value: Any) -> Optional[list]:
    """A batch of one value; None stays None."""
    return None if value is None else [value]


class PeerCacheStore(Guarded, HiCacheStorage):
    """The L3 backend of one scheduler process.

    Threads: any thread may call any method at any time, also close(). A call runs in the calling
    thread, without the interpreter's lock while it moves pages.

    Arguments: `keys` are SGLang's page hashes (str). `host_indices` are token indices in the
    registered host pool (a CPU int64 tensor); page_size consecutive ones make one page. Of
    `extra_info` the store reads `prefix_keys`: the pages before `keys`, which count as used.

    Ownership: the caller owns the memory of all pages. After a call has returned, the engine and
    the store no longer read or write that memory.

    Time: each C call of a get or a set ends within "timeout_ms" of the extra config (5000), each C
    call of a look-up within "exists_timeout_ms" (1000). It takes longer only while an RDMA READ
    into the pages is in flight. There is one C call per pool and per share of the heads.

    Errors: no method raises. Pages that cannot be moved or found are misses, and a failure is
    counted in counts()["errors"] and logged. Only __init__ raises: ValueError for an invalid extra
    config, OSError or RuntimeError if no engine can be used.
    """

    def __init__(self, storage_config: Any = None, extra: Any = None) -> None:
        """Attaches to the engine, and starts one if none runs. May block for about two minutes.

        storage_config: SGLang's HiCacheStorageConfig, with the extra config in `extra_config`.
        extra: a dict of the same keys, which overrides that one; other values are ignored.
        """
        given = dict(getattr(storage_config, "extra_config", None) or {})
        if isinstance(extra, dict):
            given.update(extra)
        self.config = configuration.read(given, ranks_of(storage_config))
        self.config.warn()
        self.storage_config = storage_config
        self.registered_pools: dict[str, Any] = {}
        self._pools: dict[str, Pool] = {}
        self._unknown_policies: set[str] = set()
        self._stats = Stats()
        self._before = threading.local()  # .keys: what the thread looked up last
        self._v1 = self.config.interface_v1 and calls_v1()
        self._attach(self.config)
        self._memory = Memory(self._session)

    def _after_fork(self) -> None:
        super()._after_fork()
        self._stats = Stats()

    def counts(self) -> dict[str, Any]:
        """Counters since the store was made, for people and tests.

        Returns a dict: the numbers of Session.counts() (calls, pages, bytes) and four more
        entries. "errors": number of errors by method, and of pages by every result that is neither
        a hit nor a miss ("timeout", "no_channel", ...). "memory": number of pools by the way in
        which the engine reaches them (shm, verbs, copy or mixed). "paths": that way, by name of the
        pool. "refusal": what an engine answered that gives no session any more, or "". Any thread.
        """
        counts: dict[str, Any] = dict(self._session.counts())
        counts["errors"] = {**self._errors, **{name: pages for name, (pages, _, _) in
                                               self._session.failures().items()}}
        counts["memory"] = dict(self._memory.counts)
        counts["paths"] = dict(self._memory.paths)
        counts["refusal"] = self._session.refusal()
        return counts

    # ---- pools --------------------------------------------------------------------------------

    def _register(self, host_pool: Any, name: str) -> None:
        """Makes the Pool of a host pool and registers its memory. A group's pools come first."""
        for entry in getattr(host_pool, "entries", None) or ():  # a HostPoolGroup
            self._register(entry.host_pool, plain(entry.name))
        anchor = getattr(host_pool, "anchor_entry", None)
        if anchor is not None:
            host_pool = anchor.host_pool
        self.registered_pools[name] = host_pool
        known = self._pools.get(name)
        if known and known.pool is host_pool:
            return
        pool = Pool(host_pool, name, self.storage_config, self.config.tags)
        if pool.refusal and not pool.logical:
            logger.warning("peercache: pool %s gives no addresses of its pages (%s): SGLang's own "
                           "code copies each page", name, pool.refusal)
        if pool.per_rank and name not in RANKS_WRITE and \
                (getattr(self.storage_config, "tp_size", None) or 1) > 1:
            logger.warning("peercache: pool %s has different bytes on each tensor-parallel rank, "
                           "but SGLang stores only rank 0's share beside an MLA pool: ranks above "
                           "0 miss it, and pages that need it are misses", name)
        if pool.logical:
            logger.info("peercache: pool %s is an anchor without bytes of its own", name)
        else:
            self._memory.add(name, host_pool, pool.samples, self._copied(pool))
            self._check_page(pool)
        self._pools[name] = pool

    def _copied(self, pool: Pool) -> str:
        """Why the calls copy the pages of this pool, whatever its memory is; "": they do not."""
        if not pool.spaces:
            return "SGLang's own code copies each page, because the pool gives no addresses"
        if pool.name != KV:
            return "each page is copied once, because SGLang may reuse it during the call"
        if not self._v1:
            return 'SGLang copies each page: set "interface_v1": 1 in the extra config' \
                if calls_v1() else "SGLang copies each page: versions from 0.5.6 on do not"
        return ""

    def _check_page(self, pool: Pool) -> None:
        """Logs an error if the engine will refuse every set of this pool's pages, and the cure."""
        flat = not pool.spaces or (pool.name == KV and not self._v1)
        nbytes = pool.flat_bytes if flat else pool.page_bytes
        most = self._session.page_bytes_max()
        if most and nbytes > PAGE_BYTES_MAX:
            logger.error("peercache: pool %s: a page has %d bytes, and no engine stores more than "
                         "%d: every set will be refused. Lower --page-size", pool.name, nbytes,
                         PAGE_BYTES_MAX)
        elif most and nbytes > most:
            logger.error("peercache: pool %s: a page has %d bytes, and the pools of this host take "
                         "at most %d: every set will be refused. Raise \"global_segment_size\" "
                         "(engine.pool_bytes of an engine that runs already) to %d MiB or more for "
                         "each NIC, or lower --page-size", pool.name, nbytes, most,
                         (PAGES_IN_POOL << (nbytes - 1).bit_length()) >> 20)
        if not flat and pool.name == KV and pool.segments > SEGMENTS_MAX:
            logger.error("peercache: pool %s: a page has %d segments, and a call takes at most %d: "
                         "every get and set will be refused. Use --hicache-mem-layout page_first",
                         pool.name, pool.segments, SEGMENTS_MAX)

    @guarded(nothing(None))
    def register_mem_pool_host(self, mem_pool_host: Any) -> None:
        """Registers the host pool of the KV pages. SGLang calls it once, before all other calls.

        The pool must stay mapped until close(). An object with `entries` (HostPoolGroup) registers
        each of its pools. Registering pinned memory can block for minutes.
        """
        self.mem_pool_host = mem_pool_host
        self._register(mem_pool_host, KV)

    @guarded(nothing(None))
    def register_mem_host_pool_v2(self, host_pool: Any, host_pool_name: Any) -> None:
        """Registers a host pool under a name (str or PoolName), which v2 transfers give.

        The pool must stay mapped until close(). A pool that is registered already is left as it is.
        """
        self._register(host_pool, plain(host_pool_name))

    def on_host_pools_registered(self) -> None:
        """Does nothing. SGLang calls it after the last pool; _register() has prepared each pool.
        """

    def _flat(self) -> str:
        """Namespace of the generic calls. Raises RuntimeError before the KV pool is registered."""
        pool = self._pools.get(KV)
        if not pool:
            raise RuntimeError("no pool is registered yet")
        return pool.flat

    # ---- one pool's pages ---------------------------------------------------------------------

    def _move(self, what: str, pool: Pool, keys: Sequence[str], indices: Any,
              staged: bool = False, gap: bool = False) -> list[bool]:
        """Moves pages of one pool. Returns True for each page that was read or stored.

        what: "prefetch" reads pages into the pool, "backup" stores pages of the pool. staged: the
        engine uses copies, so that it never touches the pool's memory. gap: a page before these is
        not stored, so they are evicted first. Raises ValueError or TypeError for wrong arguments.
        """
        if pool.logical:
            return [True] * len(keys)
        if not keys:
            return []
        if not pool.spaces:
            return self._move_copies(what, pool, keys, indices)
        return self._call(what, keys, pool.batches(keys, indices), staged, gap)

    def _transfer(self, what: str, keys: Sequence[str],
                  batches: Sequence[tuple[str, Sequence[int], Sequence[int]]],
                  staged: bool = False, gap: bool = False) -> tuple[list[bool], int]:
        """Moves pages by one C call per batch. Arguments as of _move().

        batches: namespace, addresses and lengths in bytes, each for all keys. A page is moved when
        each of the calls has moved its part. Returns True for each page that was moved, and the
        mean bytes of a page.
        """
        verb = self._session.get if what == "prefetch" else self._session.set
        moved: list[bool] = []
        page_bytes = 0
        for space, ptrs, sizes in batches:
            part = verb(space, keys, ptrs, sizes, self.config.timeout_ms, staged, False, gap)
            moved = [a and b for a, b in zip(moved, part)] if moved else part
            page_bytes += sum(sizes) // len(keys)
        return moved, page_bytes

    def _count(self, what: str, moved: Sequence[bool], page_bytes: int, began: float) -> None:
        """Counts moved pages; their time is from `began`, of time.monotonic(), to this call."""
        done = sum(moved)
        if done:
            self._stats.add(what, done, done * page_bytes, time.monotonic() - began)

    def _call(self, what: str, keys: Sequence[str],
              batches: Sequence[tuple[str, Sequence[int], Sequence[int]]],
              staged: bool = False, gap: bool = False) -> list[bool]:
        """Moves pages by _transfer() and counts them. Returns True for each page that was moved."""
        began = time.monotonic()
        moved, page_bytes = self._transfer(what, keys, batches, staged, gap)
        self._count(what, moved, page_bytes, began)
        return moved

    def _call_places(self, what: str, space: str, keys: Sequence[str],
                     places: Sequence[tuple[int, int]]) -> list[bool]:
        """_call() for pages of one segment each."""
        ptrs, sizes = zip(*places)
        return self._call(what, keys, [(space, ptrs, sizes)])

    def _move_copies(self, what: str, pool: Pool, keys: Sequence[str],
                     indices: Any) -> list[bool]:
        """Moves pages of a pool that gives no addresses.

        SGLang's pool converts each page to and from one flat tensor, in the calling thread and
        before the call ends. The bytes are in the order of the generic calls. The rate that is
        counted includes the conversions.
        """
        at = pool.first_indices(keys, indices)
        began = time.monotonic()
        if what == "prefetch":
            pages = [pool.pool.get_dummy_flat_data_page() for _ in at]
        else:
            pages = [pool.pool.get_data_page(index, flat=True).contiguous() for index in at]
        places = places_of(keys, pages, None, what == "prefetch", [])
        ptrs, sizes = zip(*places)
        moved, page_bytes = self._transfer(what, keys, [(pool.flat, ptrs, sizes)])
        if what == "prefetch":
            for index, page, hit in zip(at, pages, moved):
                if hit:
                    pool.pool.set_from_flat_data_page(index, page)
        self._count(what, moved, page_bytes, began)
        return moved

    def _prefix(self, pool: Pool, keys: Sequence[str]) -> int:
        """Number of leading keys whose pages of this pool are stored, with all their shares."""
        if pool.logical:
            return len(keys)
        found = len(keys)
        for space in pool.spaces or [pool.flat]:
            found = min(found, self._session.prefix(space, keys, self.config.exists_timeout_ms))
        return found

    def _there(self, pool: Pool, keys: Sequence[str], storing: bool = False,
               missing: Sequence[int] = ()) -> list[bool]:
        """True for each key whose page of this pool is stored, with all its shares.

        storing: a set follows, so the engine is told of these pages before it makes room. missing:
        results that make it false, of enum pc_result; by default all but a hit.
        """
        there = [True] * len(keys)
        for space in [] if pool.logical else pool.spaces or [pool.flat]:
            part = self._session.exists(space, keys, self.config.exists_timeout_ms, True, storing)
            there = [a and (b not in missing if missing else b == HIT)
                     for a, b in zip(there, part)]
        return there

    def _use_prefix(self, extra_info: Any, keys: Sequence[str], storing: bool = False) -> bool:
        """Looks up the KV pages before `keys` of a call, so that their holders keep them.

        SGLang asks for the tail of a prompt only: its own memory has served the head. But the tail
        is of no use to others without it. SGLang names the head if
        "hicache_storage_pass_prefix_keys" is set. If not, the pages before those of a set are what
        its thread looked up just before, if some of that is stored: SGLang has a thread for each,
        other callers do not. Returns False if one of them is missing; it is not if its owner could
        not be asked. No error is raised.
        """
        try:
            named = list(getattr(extra_info, "prefix_keys", None) or ())  # SGLang appends to it
            looked, self._before.keys, head = getattr(self._before, "keys", []), [], named
            if storing and looked and not named:
                known = keys and keys[0] in looked
                head = looked[:looked.index(keys[0])] if known else looked
            there = head and self._there(self._pools[KV], head, storing, (MISS, STALE))
            if not storing:
                self._before.keys = named + list(keys)
            return all(there) or not named and not there[0]
        except Exception as error:  # pylint: disable=broad-except
            self._failed("look-up of a prefix", error)
            return True

    # ---- v1 -----------------------------------------------------------------------------------

    @guarded(none_of)
    def batch_get_v1(self, keys: list[str], host_indices: Any,
                     extra_info: Any = None) -> list[bool]:
        """Reads KV pages into the KV pool. Returns True for each page whose bytes are there.

        The content of a page with False is undefined.
        """
        return self._move("prefetch", self._pools[KV], keys, host_indices)

    @guarded(none_of)
    def batch_set_v1(self, keys: list[str], host_indices: Any,
                     extra_info: Any = None) -> list[bool]:
        """Stores KV pages of the KV pool. Returns True for each page that every node can find."""
        gap = not self._use_prefix(extra_info, keys, storing=True)
        return self._move("backup", self._pools[KV], keys, host_indices, gap=gap)

    @guarded(nothing(0))
    def batch_exists(self, keys: list[str], extra_info: Any = None) -> int:
        """Number of leading keys whose KV pages are stored. A hint: a later get may miss.

        The pages found count as used, so that their holders evict other pages first.
        """
        pages = self._kv_prefix(keys)
        self._use_prefix(extra_info, keys)
        return pages

    def _kv_prefix(self, keys: Sequence[str]) -> int:
        """Number of leading keys whose KV pages are stored.

        The keys are looked up in the namespace that KV pages have with this configuration: that of
        the v1 methods, or that of the generic ones.
        """
        pool = self._pools[KV]
        if self._v1 or pool.logical:
            return self._prefix(pool, keys)
        return self._session.prefix(pool.flat, keys, self.config.exists_timeout_ms)

    # ---- v2 -----------------------------------------------------------------------------------

    def _move_v2(self, what: str, transfers: Sequence[Any],
                 gap: bool = False) -> dict[str, list[bool]]:
        """Runs _move() for each transfer. An error in one pool does not affect the others."""
        results: dict[str, list[bool]] = {}
        for transfer in transfers or ():
            name, keys = plain(transfer.name), transfer.keys or []
            try:
                # SGLang may reuse a sidecar page during the call, so these pages are staged.
                results[name] = self._move(what, self._pools[name], keys, transfer.host_indices,
                                           staged=name != KV, gap=gap)
            except Exception as error:  # pylint: disable=broad-except
                self._failed(f"{what} of pool {name}", error)
                results[name] = [False] * len(keys)
        return results

    @guarded(none_of_pools)
    def batch_get_v2(self, transfers: Sequence[Any],
                     extra_info: Any = None) -> dict[str, list[bool]]:
        """Reads pages into several pools. Returns one bool per key, by the name of the pool.

        transfers: SGLang's PoolTransfers, with `name`, `keys` and `host_indices`. Pages of pools
        other than "kv" are written at the end of the call, and only after a hit, because SGLang may
        reuse them during the call.
        """
        return self._move_v2("prefetch", transfers)

    @guarded(none_of_pools)
    def batch_set_v2(self, transfers: Sequence[Any],
                     extra_info: Any = None) -> dict[str, list[bool]]:
        """Stores pages of several pools. Returns one bool per key, by the name of the pool.

        transfers: SGLang's PoolTransfers, with `name`, `keys` and `host_indices`. Pages of pools
        other than "kv" are copied before they are stored, because SGLang may reuse them during the
        call.
        """
        keys = next((t.keys for t in transfers or () if plain(t.name) == KV), None)
        gap = not self._use_prefix(extra_info, keys or (), storing=True)
        return self._move_v2("backup", transfers, gap)

    def batch_exists_v2(self, keys: list[str], pool_transfers: Optional[Sequence[Any]] = None,
                        extra_info: Any = None) -> Any:
        """Looks up the prefixes of `keys` that all pools can restore. Returns a PoolTransferResult.

        pool_transfers: one PoolTransfer per pool beside "kv"; its `hit_policy` decides which pages
        of that pool a prefix needs. The result's kv_hit_pages is the longest usable prefix,
        restorable_prefix_pages lists the lengths of all usable prefixes, and extra_pool_hit_pages
        has each pool's own longest prefix by name. All numbers are KV pages. A hint: a later get
        may miss.
        """
        found = self._exists_v2(keys, pool_transfers)
        self._use_prefix(extra_info, keys)
        return pool_result(*found)

    @guarded(lambda *_args, **_kwargs: (0, {}, []))
    def _exists_v2(self, keys: list[str], pool_transfers: Optional[Sequence[Any]]
                   ) -> tuple[int, dict[str, int], list[int]]:
        """(longest usable prefix, each pool's own longest prefix, all usable prefix lengths).

        All numbers are KV pages.
        """
        pages = self._kv_prefix(keys)
        own = {KV: pages}
        usable = [True] * pages  # usable[n - 1]: the prefix of n pages
        for transfer in (pool_transfers or ()) if pages else ():
            name, pool = plain(transfer.name), self._pools[plain(transfer.name)]
            policy = plain(getattr(transfer, "hit_policy", hits.ALL_PAGES))
            if policy == hits.BLOCK_GROUPS:  # another form of the KV pages: limits no prefix
                own[name] = hits.group_pages(transfer, len(keys),
                                             lambda some, pool=pool: self._prefix(pool, some))
                continue
            if policy == hits.ALL_PAGES:
                found = self._prefix(pool, keys[:pages])
                fits = [n < found for n in range(pages)]
            elif policy == hits.TRAILING_PAGES:
                fits = hits.windows(self._there(pool, keys[:pages]), len(transfer.keys or ()))
            else:
                fits = [False] * pages
                self._warn_of_policy(policy, name)
            own[name] = hits.longest(fits)
            usable = [a and b for a, b in zip(usable, fits)]
        return (hits.longest(usable), {name: found for name, found in own.items() if found},
                [n for n, fit in enumerate(usable, 1) if fit])

    def _warn_of_policy(self, policy: str, name: str) -> None:
        """Logs an unknown hit policy once."""
        if policy not in self._unknown_policies:
            self._unknown_policies.add(policy)
            logger.warning("peercache: hit policy %s of pool %s is unknown to this version: its "
                           "pages are reported as misses", policy, name)

    # ---- generic ------------------------------------------------------------------------------

    @guarded(lambda keys=(), *_args, **_kwargs: [None] * len(keys or ()))
    def batch_get(self, keys: list[str], target_locations: Any = None,
                  target_sizes: Any = None) -> list[Any]:
        """Reads one page into each target. Returns the target, or None for a miss, per key.

        target_locations: host memory that the caller owns, one per key: contiguous tensors,
        writable buffers, or addresses with their lengths in target_sizes. Without targets, all are
        misses.
        """
        if not keys or target_locations is None:
            return [None] * len(keys or ())
        kept: list[Any] = []
        targets = list(target_locations)
        places = places_of(keys, targets, target_sizes, True, kept)
        if not any(nbytes for _, nbytes in places):
            return targets  # pages of an anchor without bytes
        found = self._call_places("prefetch", self._flat(), keys, places)
        return [target if hit else None for target, hit in zip(targets, found)]

    @guarded(nothing(False))
    def batch_set(self, keys: list[str], values: Any = None, target_locations: Any = None,
                  target_sizes: Any = None) -> bool:
        """Stores one page per key. Returns True if every node can find every page.

        target_locations, else values: host memory that the caller owns, one per key: tensors, of
        which those that are not contiguous are copied first, buffers (bytes), or addresses with
        their lengths in target_sizes.
        """
        if not keys:
            return True
        pages = values if target_locations is None else target_locations
        if pages is None:
            return False
        pages = [page.contiguous() if hasattr(page, "contiguous") and hasattr(page, "data_ptr")
                 else page for page in pages]
        kept: list[Any] = []
        places = places_of(keys, pages, target_sizes, False, kept)
        if not any(nbytes for _, nbytes in places):
            return True  # pages of an anchor without bytes
        return all(self._call_places("backup", self._flat(), keys, places))

    @guarded(nothing(None))
    def get(self, key: str, target_location: Any = None, target_sizes: Any = None) -> Any:
        """batch_get() of one key: returns target_location, or None for a miss."""
        return self.batch_get([key], one(target_location), one(target_sizes))[0]

    @guarded(nothing(False))
    def set(self, key: str, value: Any = None, target_location: Any = None,
            target_sizes: Any = None) -> bool:
        """batch_set() of one key: returns True if every node can find the page."""
        return self.batch_set([key], one(value), one(target_location), one(target_sizes))

    @guarded(nothing(False))
    def exists(self, key: str) -> bool:
        """batch_exists() of one key: True if its KV page is stored."""
        return self.batch_exists([key]) == 1

    # ---- the rest -----------------------------------------------------------------------------

    @guarded(nothing(None))
    def clear(self) -> None:
        """Removes all pages of this model and tag from this host, those of other ranks too.

        In memory and on disk, whatever process has stored them. Other hosts keep theirs: SGLang
        calls each host. May take CLEAR_MS.
        """
        spaces = {space for pool in self._pools.values() for space in [*pool.spaces, pool.flat]}
        removed = sum(self._session.clear(group, CLEAR_MS)
                      for group in sorted({names.group(space) for space in spaces}))
        logger.info("peercache: clear() removed the pages of %d keys from this host", removed)

    @guarded(nothing(None))
    def get_stats(self) -> Any:
        """SGLang's StorageMetrics of the batches since the previous call: pages, and GB/s.

        Without SGLang, an object with the same four lists.
        """
        return self._stats.take()

    @guarded(nothing(False))
    def check_server(self) -> bool:
        """True while the engine serves this store; False after close().

        Looks for a lost engine once more, as any call of pages does.
        """
        if self._attachment is None:
            return False
        if KV in self._pools and not self._session.attached():
            self._kv_prefix(["check_server"])
        return self._session.attached()

    def warmup(self) -> None:
        """Does nothing: the constructor has attached, and a thread's first call opens its channel.
        """
