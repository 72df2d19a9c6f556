# SPDX-License-Identifier: Apache-2.0
"""Drives SGLang's prefix tree, hybrid controllers and pools on the CPU as SGLang's scheduler does.

The tree is HiRadixCache in 0.5.18, and in later versions the one tree of all models. A test sends
requests, which are the methods of Rank. There are two groups of them:
  the tree (insert, evict, fetch)   runs the scheduler's loop, which stores pages by write_through,
                                    write_back or write_through_selective. A request prefetches
                                    pages and loads them to the device pools, whose bytes are
                                    compared.
  the controller (write, read)      fills host pages of every pool, stores, prefetches and compares
                                    them. It serves pools whose device side needs a GPU.
The bytes of a page depend on the request, the page, the pool and, where ranks differ, the rank.
"""

import json
import time
from array import array
from types import SimpleNamespace

import torch

import pools
from pages import HostPage, content
# The sampler is not used here: each rank would import it with 700 modules when it starts.
from sglang.srt import runtime_context
from sglang.srt.distributed import parallel_state
from sglang.srt.layers import sampler  # pylint: disable=unused-import
from sglang.srt.mem_cache import base_prefix_cache as base
from sglang.srt.mem_cache import registry, utils
from sglang.srt.mem_cache.cache_init_params import CacheInitParams
from sglang.srt.mem_cache.hicache_storage import PoolHitPolicy, PoolName, PoolTransfer
from sglang.srt.mem_cache.radix_cache import RadixKey
from sglang.srt.server_args import ServerArgs

SETTINGS = {"float8_e4m3fn": "fp8_e4m3", "float8_e5m2": "fp8_e5m2"}  # of SGLang, by torch's types
SECONDS = 600.0  # a wait of this length is a hang, however busy the machine is


def until(condition, what):
    """Waits until condition() is true. Raises TimeoutError(what) after SECONDS."""
    end = time.monotonic() + SECONDS
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(what)
        time.sleep(0.001)


class Rank:
    """One tensor-parallel rank: a scheduler's tree, controller, store and pools. plan: see rank.py.

    All ranks must make the same number of turns of the scheduler's loop, because the turns contain
    collective operations. Each loop therefore ends on a condition that is equal on all ranks.
    """

    def __init__(self, plan):
        self.plan, self.tree, self.requests = plan, None, 0
        self.rank, self.ranks = plan["tp_rank"], plan["tp_size"]
        self.publish(pool="mha", layout="page_first", page_size=1, extra={})
        parallel_state.init_distributed_environment(
            world_size=self.ranks, rank=self.rank, local_rank=self.rank, backend="gloo",
            distributed_init_method="file://" + plan["rendezvous"])
        widths = {} if hasattr(runtime_context, "SpawnRanks") else \
            {"tensor_model_parallel_size": self.ranks}
        parallel_state.initialize_model_parallel(backend="gloo", **widths)

    def publish(self, **plan):
        """Sets this process's server arguments, as SGLang's command line does."""
        self.args = ServerArgs(
            model_path="dummy", served_model_name="model", device="cpu", tp_size=self.ranks,
            page_size=plan["page_size"], enable_hierarchical_cache=True, hicache_ratio=2.0,
            hicache_io_backend="direct", hicache_mem_layout=plan["layout"],
            kv_cache_dtype=SETTINGS.get(plan.get("dtype"), "auto"),
            hicache_write_policy=plan.get("write", "write_through"),
            hicache_storage_prefetch_policy=plan.get("prefetch", "wait_complete"),
            hicache_storage_backend="dynamic",
            hicache_storage_backend_extra_config=json.dumps(
                {"prefetch_threshold": 1, **plan["extra"]}))
        if not hasattr(runtime_context, "SpawnRanks"):  # up to 0.5.18
            self.args.hicache_mem_layout = plan["layout"]
            runtime_context.publish(self.args, role="scheduler")
            return
        self.args._mamba_cache_chunk_size = 64  # otherwise SGLang reads it from the model's config
        runtime_context.publish(self.args, role="scheduler",
                                ranks=runtime_context.SpawnRanks(world_rank=self.rank))
        # SGLang would choose a layout that fits its GPU kernels; no kernel runs here.
        runtime_context.get_context().override("test", hicache_mem_layout=plan["layout"])

    def make(self, **plan):
        """Makes a tree with its controller, store and pools, after closing the previous ones."""
        self.close()
        self.publish(**plan)
        dtype = getattr(torch, plan.pop("dtype", "bfloat16"))
        self.plan.update(plan)
        self.page_size = plan["page_size"]
        self.pool = pools.KINDS[plan["pool"]](plan["pages"] * self.page_size, self.page_size,
                                              self.ranks, dtype)
        self.group = parallel_state.get_tp_group().cpu_group
        params = CacheInitParams(
            disable=False, req_to_token_pool=self.pool.requests,
            token_to_kv_pool_allocator=self.pool.allocator, page_size=self.page_size,
            tp_cache_group=self.group, sliding_window_size=self.pool.window)
        self.tree = self.tree_of(params)
        self.pool.add_drafts(self.tree)
        self.controller = self.tree.cache_controller
        for pool in self.entries().values():
            pool.pin_memory = False  # there is no GPU to pin for
        self.store = self.controller.storage_backend
        return self.started()

    def make_device_pools(self):
        """Makes the device pools of every kind, to import all that they need."""
        for kind in pools.KINDS.values():
            kind(64 * kind.usual_page, kind.usual_page, self.ranks)

    def tree_of(self, params):
        """The prefix tree of this version of SGLang."""
        try:
            from sglang.srt.mem_cache.hiradix_cache import HiRadixCache  # up to 0.5.18
        except ModuleNotFoundError:
            worker = SimpleNamespace(register_hicache_layer_transfer_counter=lambda _counter: None)
            return registry.create_tree_cache(registry.TreeCacheBuildContext(
                server_args=self.args, params=params, tp_worker=worker, model_config=None,
                is_hybrid_swa=self.pool.window is not None, disable_radix_cache=False,
                is_hybrid_ssm=self.pool.requests is not None, enable_hierarchical_cache=True,
                tp_size=self.ranks, tp_rank=self.rank, tp_group=None))
        return HiRadixCache(params=params, server_args=self.args)

    def started(self):
        """Waits until all threads of the controller are alive."""
        until(self.alive, "threads")
        return {}

    def alive(self):
        c = self.controller
        names = ("prefetch_thread", "backup_thread", "prefetch_io_aux_thread",
                 "prefetch_sync_thread")
        return all(getattr(c, name).is_alive() for name in names if hasattr(c, name))

    def close(self):
        if self.tree is not None:
            self.tree.shutdown()
        self.tree = None

    def key(self, seed, pages):
        """The key of a request's first `pages` pages: its token numbers, determined by the seed."""
        return RadixKey(array("q", [seed * 100000 + i for i in range(pages * self.page_size)]))

    def replicated(self, name):
        """True if the pool has the same bytes on all ranks."""
        return self.controller.storage_config.is_mla_model and name != "mamba" and \
            not type(self.entries()[name]).__name__.startswith("MHA")

    # ---- the tree -----------------------------------------------------------------------------

    def events(self, condition, what):
        """Runs the scheduler's loop until condition() is true, which is so on all ranks together.
        """
        end = time.monotonic() + SECONDS
        while not condition():
            self.tree.check_hicache_events()
            time.sleep(0.001)
            if time.monotonic() > end:
                raise TimeoutError(what)

    def idle(self):
        """True if no page is being written to the host pool or to the store."""
        return not (self.tree.ongoing_write_through or self.tree.ongoing_backup
                    or self.controller.write_queue)

    def insert(self, seed, pages):
        """Inserts a request whose pages are computed: they are in the device pools and the tree."""
        found = self.match(seed, pages)
        indices = self.on_device(found)
        if len(indices) < pages * self.page_size:  # else this repeats a request
            indices = self.pool.allocator.alloc(pages * self.page_size)
            self.pool.fill(indices, lambda buffer: content(seed, buffer, self.device_rank()))
        self.tree.insert(base.InsertParams(key=self.key(seed, pages), value=indices))
        self.events(self.idle, "backup")
        return {}

    def device_rank(self):
        """The rank on which the bytes of the device pools depend."""
        return 0 if self.replicated("kv") else self.rank

    def evict(self, pages):
        """Evicts pages from the device, which with write_back stores them."""
        self.tree.evict(base.EvictParams(num_tokens=pages * self.page_size,
                                         swa_num_tokens=pages * self.page_size))
        self.events(self.idle, "backup")
        return {}

    def flush(self):
        """Acts as SGLang's /flush_cache: afterwards only the store has pages."""
        self.tree.reset()
        self.pool.allocator.clear()
        return self.started()

    def handle(self):
        """Makes the identity of a new request, which is a string up to 0.5.18."""
        self.requests += 1
        name = f"request{self.requests}"
        return base.CacheRequestHandle(name, 0) if hasattr(base, "CacheRequestHandle") else name

    def prefetched(self, handle):
        """True if no rank has pages of this request left to read."""
        if hasattr(self.tree, "has_ongoing_prefetch"):
            return not self.tree.has_ongoing_prefetch(handle)
        found = self.tree.ongoing_prefetch.get(handle)
        operation = found[-1] if found else None
        done = operation is None or (
            operation.host_indices is not None and
            operation.completed_tokens == len(operation.hash_value) * self.page_size)
        agreed = torch.tensor(int(done))
        torch.distributed.all_reduce(agreed, torch.distributed.ReduceOp.MIN, group=self.group)
        return bool(agreed.item())

    def on_device(self, found):
        """Returns the indices of the matched tokens that are on the device."""
        if hasattr(found, "device_indices"):  # up to 0.5.18
            return found.device_indices
        return self.tree.path_device_indices(found.last_device_node)

    def match(self, seed, pages):
        """The part of the request that the tree has."""
        return self.tree.match_prefix(base.MatchPrefixParams(key=self.key(seed, pages)))

    def fetch(self, seed, pages, at_once=False, assume=0):
        """Runs a request for these pages: prefetches them, loads them to the device, compares them.

        at_once: do not wait for the prefetch, as with the policy best_effort. assume: number of
        pages that are read without a look-up. Returns numbers of pages, and the prefetch's seconds.
        """
        handle = self.handle()
        found = self.match(seed, pages)
        began = time.monotonic()
        self.tree.prefetch_from_storage(
            handle, found.last_host_node, self.key(seed, pages).token_ids,
            **({"storage_hit_end": assume * self.page_size} if assume else {}))
        if self.plan.get("prefetch") == "best_effort" and not at_once:
            self.events(lambda: self.prefetched(handle), "prefetch")
        self.events(lambda: self.tree.check_prefetch_progress(handle), "prefetch")
        seconds = time.monotonic() - began
        loaded = self.tree.pop_prefetch_loaded_tokens(handle) // self.page_size
        return {"pages": loaded, "seconds": seconds, **self.load_back(seed, pages)}

    def settle(self):
        """Waits until all memory of the host pool is free, so no read into it is in flight."""
        host = self.controller.mem_pool_host
        self.events(lambda: host.available_size() == host.size, "host memory")
        return {}

    def load_back(self, seed, pages):
        """Loads the request's pages from the host pools to the device pools and compares them."""
        found = self.match(seed, pages)
        request = SimpleNamespace(
            rid="load", kv=SimpleNamespace(mamba_pool_idx=None), last_node=found.last_device_node,
            swa_host_hit_length=found.swa_host_hit_length, mamba_host_hit_length=0)
        self.tree.init_load_back(base.InitLoadBackParams(
            best_match_node=found.best_match_node, host_hit_length=found.host_hit_length,
            req=request))
        self.tree.ready_to_load_host_cache()
        self.events(lambda: not self.tree.ongoing_load_back, "load back")
        indices = self.on_device(self.match(seed, pages))
        wrong = self.pool.wrong(indices,
                                lambda buffer: content(seed, buffer, self.device_rank()))
        return {"on_device": len(indices) // self.page_size, "wrong": wrong}

    # ---- the controller -----------------------------------------------------------------------

    def hashes(self, seed, pages):
        return list(utils.get_storage_hash_str(self.key(seed, pages), None,
                                               page_size=self.page_size))

    def entries(self):
        """The host pools by name."""
        pool = self.controller.mem_pool_host
        if not hasattr(pool, "entries"):
            return {"kv": pool}
        return {entry.name.value: entry.host_pool for entry in pool.entries}

    def side_transfers(self, pages):
        """The transfers of the side pools that the tree requests for a prefix of this length."""
        kinds = {"swa": self.pool.window and -(-self.pool.window // self.page_size), "mamba": 1}
        transfers = [PoolTransfer(name=PoolName(name), keys=["later"] * min(kinds[name], pages),
                                  hit_policy=PoolHitPolicy.TRAILING_PAGES)
                     for name in self.entries() if kinds.get(name)]
        return transfers + [
            PoolTransfer(name=spec.pool_name, hit_policy=spec.hit_policy,
                         keys=next((t.keys for t in transfers
                                    if t.name == spec.indices_from_pool), None),
                         indices_from_pool=spec.indices_from_pool)
            for spec in self.tree.sidecar_pool_specs]

    def allocate(self, transfers):
        """Allocates host memory for the transfers that do not share the indices of another pool."""
        for transfer in transfers:
            if transfer.indices_from_pool is None:
                size = self.entries()[transfer.name.value].page_size
                transfer.host_indices = self.controller.mem_pool_host.alloc(
                    len(transfer.keys) * size, pool=transfer.name)

    def free(self, indices, transfers):
        """Frees the host memory of KV pages and of transfers."""
        group = self.controller.mem_pool_host
        group.free(indices)
        for transfer in transfers:
            if transfer.indices_from_pool is None:
                group.free(transfer.host_indices, pool=transfer.name)

    def pages_of(self, indices, transfers, hashes):
        """Yields (name of the pool, hash of the page, HostPage) for all pages that have bytes."""
        named = {"kv": (indices, hashes)}
        for transfer in transfers:
            source = transfer.indices_from_pool or transfer.name
            at = indices if source == PoolName.KV else next(
                t.host_indices for t in transfers if t.name == source)
            named[transfer.name.value] = (at, hashes if at is indices else transfer.keys)
        for name, (at, keys) in named.items():
            pool = self.entries()[name]
            for number, page_hash in enumerate(keys):
                page = HostPage(pool, at[number * pool.page_size:(number + 1) * pool.page_size])
                if page.nbytes:
                    yield name, page_hash, page

    def page(self, name, page_hash, nbytes):
        """The contents of a page of this pool on this rank."""
        seed = int(page_hash[:12], 16)
        if self.plan["layout"] == "page_head":  # K, then V; in each, the bytes of a head together
            heads = self.pool.heads
            return b"".join(content(seed, name + part, self.rank * heads + head)(
                nbytes // 2 // heads) for part in "kv" for head in range(heads))
        return content(seed, name, 0 if self.replicated(name) else self.rank)(nbytes)

    def write(self, seed, pages, ends=()):
        """Fills host pages and stores them with the controller's backup thread.

        ends: for each rank, the lengths in pages of the prefixes that get a state at their end;
        without it, the whole request gets one. Returns numbers of pages.
        """
        ends = list(ends[self.rank] if ends else [pages])
        begin, done, stored = 0, 0, {}
        for end in ends + ([pages] if ends[-1] < pages else []):
            got = self.write_span(seed, pages, begin, end, end in ends)
            begin, done = end, done + got["pages"]
            for name, count in got["side"].items():
                stored[name] = stored.get(name, 0) + count
        return {"pages": done, **({"side": stored} if stored else {})}

    def write_span(self, seed, pages, begin, end, with_state):
        """Stores pages begin to end - 1; with_state: also the pages of the side pools."""
        hashes = self.hashes(seed, pages)[:end]
        span = hashes[begin:]
        indices = self.controller.mem_pool_host.alloc(len(span) * self.page_size)
        transfers = self.side_transfers(len(span)) if with_state else []
        for transfer in transfers:
            transfer.keys = span if transfer.keys is None else span[-len(transfer.keys):]
        self.allocate(transfers)
        for name, page_hash, page in self.pages_of(indices, transfers, span):
            page.write(self.page(name, page_hash, page.nbytes))
        self.controller.write_storage(indices, self.key(seed, pages).token_ids, span,
                                      extra_pools=transfers or None)
        operation = self.controller.ack_backup_queue.get(timeout=SECONDS)
        for _, _, page in self.pages_of(indices, transfers, span):
            page.write(bytes(page.nbytes))  # as if another request reused the page
        self.free(indices, transfers)
        return {"pages": operation.completed_tokens // self.page_size, "side": {
            str(getattr(name, "value", name)): count for name, count in
            operation.pool_storage_result.extra_pool_hit_pages.items()}}

    def read(self, seed, pages):
        """Prefetches pages of all pools with the controller's threads and compares every byte."""
        handle = self.handle()
        transfers = self.side_transfers(pages)
        operation = self.controller.prefetch(handle, self.key(seed, pages), None, None,
                                             extra_pools=transfers or None)
        assert self.controller.prefetch_hit_queue.get(timeout=SECONDS) is operation
        hits = operation.storage_hit_count // self.page_size
        if not hits:
            return {"hits": 0, "pages": 0, "wrong": 0}
        operation.hash_value = operation.hash_value[:hits]
        operation.host_indices = self.controller.mem_pool_host.alloc(hits * self.page_size)
        self.allocate(transfers)
        self.controller.prefetch_buffer.put(operation)
        side = {}
        while True:
            ack = self.controller.ack_prefetch_queue.get(timeout=SECONDS)
            if ack.completed_tokens is not None:
                operation.completed_tokens = ack.completed_tokens
            side.update(ack.pool_hits or {})
            if ack.completed_req:
                break
        done = operation.completed_tokens // self.page_size
        got = {t.name.value: side.get(t.name.value, 0) for t in transfers
               if t.indices_from_pool != PoolName.KV}
        wrong = 0
        for name, page_hash, page in self.pages_of(
                operation.host_indices, transfers, operation.hash_value[:done]):
            if got.get(name, 1):
                wrong += page.read() != self.page(name, page_hash, page.nbytes)
        self.free(operation.host_indices, transfers)
        return {"hits": hits, "pages": done, "wrong": wrong, **({"side": got} if got else {})}

    # ---- the rest -----------------------------------------------------------------------------

    def counts(self):
        stats = self.store.get_stats()
        return {"alive": self.alive(), "stats": type(stats).__module__, **self.store.counts()}

    def detach(self):
        done, why = self.tree.detach_storage_backend()
        assert done, why
        return {}

    def attach(self):
        done, why = self.tree.attach_storage_backend(
            "dynamic", json.dumps({"prefetch_threshold": 1, **self.plan["extra"]}), "model")
        assert done, why
        self.store = self.controller.storage_backend
        return self.started()
