# SPDX-License-Identifier: Apache-2.0
"""PeerCacheLinker: the external cache linker that SGLang (0.5.23 on) loads instead of HiCache.

Pages go between the pools of the GPU and the engines: LINKER.md has the launch line, and what
happens to a lost page. The extra config is that of PeerCacheStore.
"""

import logging
import queue
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any, Optional

import torch
from sglang.srt.mem_cache.hicache_storage import HiCacheStorageConfig, PoolName
from sglang.srt.mem_cache.hybrid_cache.linker_pool_assembler import resolve_hybrid_device_pool_group
from sglang.srt.mem_cache.unified_cache.unified_cache_linker import (
    LayerWiseLoadCounter, UnifiedCacheLinker)
from sglang.srt.runtime_context import get_model, get_parallel
from sglang.srt.utils import get_device_module

from peercache.pages import plain
from peercache.store import PeerCacheStore

logger = logging.getLogger("peercache")


class DeviceStore(PeerCacheStore):
    """The store of a linker. SGLang keeps the device pages of a call until it has ended."""

    def _copied(self, pool: Any) -> str:
        return ""

    def reaches(self, name: Any) -> bool:
        """True if all buffers of the pool are registered: a CPU cannot copy those of a GPU."""
        pool = self._pools.get(plain(name))
        return pool is not None and all(map(self._memory.covers, pool.samples))

    def move(self, what: str, transfers: list) -> list[str]:
        """Moves the pages of all transfers ("prefetch" or "backup"). Returns the keys of the rest.

        A prefetch reads those once more: the engine may be back, or another host has the page.
        """
        lost = []
        for transfer in transfers:
            pool, keys, at = self._pools[plain(transfer.name)], transfer.keys, transfer.host_indices
            for _ in range(2 if what == "prefetch" else 1):
                moved = self._move(what, pool, keys, at)
                left = [i for i, done in enumerate(moved) if not done]
                if not left:
                    break
                keys = [keys[i] for i in left]
                at = at.reshape(-1, pool.page_size)[left].reshape(-1)
            lost += keys if left else []
        return lost

    def failed(self, what: str, error: BaseException) -> None:
        """Counts it and logs each one: SGLang aborts requests, or pages are not stored."""
        with self._lock:
            self._errors[what] = self._errors.get(what, 0) + 1
        logger.error("peercache: %s failed: %s", what, error)


class PeerCacheLinker(UnifiedCacheLinker):
    """The linker of one scheduler process, whose thread calls all methods.

    One thread loads and one stores. SGLang takes one verdict for all loads of a batch: a page that
    was lost since its look-up, and is not there when it is READ again, aborts the batch's requests.
    The next look-up does not find it. Nothing that is stored replaces what another rank has stored.
    """

    def __init__(self, server_args: Any, params: Any, *, components: Any,
                 extra_config: Optional[dict] = None, forward_stream: Any = None) -> None:
        """Attaches to the engine and registers the pools. Arguments: SGLang's."""
        del server_args  # published, see runtime_context
        self.forward_stream = forward_stream
        self.group = resolve_hybrid_device_pool_group(
            kvcache=params.token_to_kv_pool_allocator.get_kvcache(), page_size=params.page_size,
            params=params, components=components)
        self.pools = self.group.entry_map
        rank, size = 0, get_parallel().tp_size
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            ranks = params.attn_tp_cache_group or params.tp_cache_group
            rank = torch.distributed.get_rank(group=ranks)
            size = torch.distributed.get_world_size(group=ranks)
        self.stores = rank == 0 or not self.group.rank_replicated
        self.store = DeviceStore(HiCacheStorageConfig(
            tp_rank=rank, tp_size=size, pp_rank=params.pp_rank, pp_size=params.pp_size,
            attn_cp_rank=params.attn_cp_rank, attn_cp_size=params.attn_cp_size,
            is_mla_model=self.group.rank_replicated, enable_storage_metrics=False,
            is_page_first_layout=False, model_name=get_model().model_path,
            extra_config={**(extra_config or {}), "interface_v1": 1}))
        if PoolName.KV not in self.pools:  # the pages of the other pools are those of the tree
            self.store.register_mem_pool_host(SimpleNamespace(
                page_size=params.page_size, kv_buffer=None,
                get_page_buffer_meta=lambda _indices: None))
        for entry in self.group.entries:
            entry.dtype = entry.kv_buffer[0].dtype  # pages of other types have other keys
            self.store.register_mem_host_pool_v2(entry, entry.name)
            if entry.kv_buffer[0].is_cuda and not self.store.reaches(entry.name):
                raise RuntimeError(f"GPU memory of pool {plain(entry.name)} is not registered")
        self.layer_done_counter = LayerWiseLoadCounter(self.group.num_layers)
        if PoolName.MAMBA in self.pools:
            params.req_to_token_pool.register_layer_transfer_counter(self.layer_done_counter)
        self._queued: dict[str, list] = {}
        self._done: "queue.SimpleQueue[bool]" = queue.SimpleQueue()
        self._start()

    def _start(self) -> None:
        self._loader = ThreadPoolExecutor(1, "peercache-load")
        self._offloader = ThreadPoolExecutor(1, "peercache-offload")

    def _stop(self) -> None:
        """Waits for what has begun, and forgets the rest."""
        self._queued.clear()
        self._loader.shutdown()
        self._offloader.shutdown()

    def lookup(self, rid: str, transfers: list) -> list[int]:
        """Every number of leading pages of KV that all pools can restore."""
        wanted = self.group.resolve_transfers(transfers)
        keys = next((list(t.keys) for t in transfers if t.name == PoolName.KV), [])
        if not wanted or not keys:
            return []
        found = self.store.batch_exists_v2(keys, [t for t in wanted if t.name != PoolName.KV])
        return found.restorable_prefix_pages or []

    def load(self, rid: str, transfers: list) -> bool:
        """Queues a load. The tree has taken out what is in its pools: pools may be missing."""
        wanted = self.group.resolve_transfers(transfers, allow_partial=True, allow_missing_kv=True)
        if wanted:
            if rid in self._queued:
                raise RuntimeError(f"a load of request {rid} is queued already")
            self._queued[rid] = wanted
        return bool(wanted)

    def cancel_queued_load(self, rid: str) -> bool:
        """True if the load had not begun."""
        return self._queued.pop(rid, None) is not None

    def start_layer_wise_loading(self) -> int:
        """Begins the queued loads. Returns the number of the batch; -1: there are none."""
        if not self._queued:
            return -1
        loads, self._queued = self._queued, {}
        index = self.layer_done_counter.update_producer()
        ready = get_device_module().Event()  # the indices, and the pages' last readers
        ready.record()
        self._loader.submit(self._load, index, loads, ready)
        return index

    def _load(self, index: int, loads: dict[str, list], ready: Any) -> None:
        try:
            ready.synchronize()
            lost = {rid: self.store.move("prefetch", wanted) for rid, wanted in loads.items()}
            lost = {rid: keys for rid, keys in lost.items() if keys}
            if lost:
                raise RuntimeError("pages that a look-up has found are gone, so SGLang aborts the "
                                   "batch: " + ", ".join(f"{len(keys)} of request {rid}"
                                                         for rid, keys in lost.items()))
            for layer in range(self.group.num_layers):
                self.layer_done_counter.complete(index, layer)
        except BaseException as error:  # pylint: disable=broad-except
            self.store.failed("a load of the linker", error)
            self.layer_done_counter.fail(index, error)

    def finish_layer_wise_loading(self, counter_index: int) -> bool:
        """Waits until nothing writes to the pages of the batch. True if all have arrived."""
        return self.layer_done_counter.finish(counter_index)

    def offload(self, transfers: list, session_id: Optional[str] = None) -> bool:
        """Queues pages to be stored. They are read until the offload is complete."""
        wanted = self.group.resolve_transfers(transfers, allow_partial=True)
        if not wanted:
            return False
        if self.stores:
            self._offloader.submit(self._offload, wanted, self.record_offload_ready())
        else:
            self._done.put(True)
        return True

    def _offload(self, transfers: list, ready: list) -> None:
        stored = False
        try:
            for event in ready:
                event.synchronize()
            stored = not self.store.move("backup", transfers)
        except BaseException as error:  # pylint: disable=broad-except
            self.store.failed("an offload of the linker", error)
        self._done.put(stored)

    def num_completed_offloads(self) -> int:
        """Offloads whose results were not taken."""
        return self._done.qsize()

    def pop_completed_offload(self) -> bool:
        """The result of the oldest one."""
        return self._done.get_nowait()

    def reset(self) -> None:
        """Ends all transfers. What is stored stays."""
        self._stop()
        self._done = queue.SimpleQueue()
        self.layer_done_counter.reset()
        self._start()

    def close(self) -> None:
        """Ends all transfers and leaves the engine."""
        self._stop()
        self.store.close()
