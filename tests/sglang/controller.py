# SPDX-License-Identifier: Apache-2.0
"""Drives SGLang's own, unmodified HiCacheController with its MHA and MLA pools, up to 0.5.18.

Later versions run all models through their prefix tree, which tree.py drives. A test sends
requests, which are the methods of Rank: first make (pool: "mha" or "mla", layout, page_size, shm,
pages, dtype, extra: the extra config as on SGLang's command line), then write, read, flush, counts,
detach and attach in any order. Another make replaces the pools and the controller.
"""

import inspect
import threading
import time

import torch
from sglang.srt.distributed import parallel_state
from sglang.srt.managers.cache_controller import HiCacheController
from sglang.srt.mem_cache import memory_pool

SECONDS = 600.0  # a wait of this length is a hang, however busy the machine is


def class_named(name, *modules):
    """The class of this name in the first of the modules that has it.

    The module of a class differs between versions of SGLang.
    """
    for module in modules:
        try:
            return getattr(__import__(module, fromlist=[name]), name)
        except (ImportError, AttributeError):
            continue
    raise ImportError(f"no {name} in {modules}")


def content(seed, nbytes):
    """Random bytes, determined by the seed."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (nbytes,), dtype=torch.uint8, generator=generator)


def until(condition, what):
    """Waits until condition() is true. Raises TimeoutError(what) after SECONDS."""
    end = time.monotonic() + SECONDS
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(what)
        time.sleep(0.001)


class Rank:
    """One tensor-parallel rank: a controller with its store and its pools. plan: see rank.py."""

    def __init__(self, plan):
        self.plan = plan
        self.controller = self.store = None
        parallel_state.init_distributed_environment(
            world_size=plan["tp_size"], rank=plan["tp_rank"], local_rank=plan["tp_rank"],
            backend="gloo", distributed_init_method="file://" + plan["rendezvous"])
        parallel_state.initialize_model_parallel(
            tensor_model_parallel_size=plan["tp_size"], backend="gloo")

    def make(self, **plan):
        """Makes pools and a controller, after closing those of the previous make."""
        self.close()
        dtype = getattr(torch, plan.pop("dtype", "bfloat16"))
        self.plan.update(plan)
        plan = self.plan
        self.page_size = plan["page_size"]
        tokens = plan["pages"] * self.page_size
        common = dict(size=tokens, page_size=self.page_size, dtype=dtype, layer_num=4,
                      device="cpu", enable_memory_saver=False)
        if plan["pool"] == "mla":
            device = memory_pool.MLATokenToKVPool(kv_lora_rank=512, qk_rope_head_dim=64, **common)
            host_class = "MLATokenToKVPoolHost"
        else:
            device = memory_pool.MHATokenToKVPool(head_num=4, head_dim=64, **common)
            host_class = "MHATokenToKVPoolHost"
        host_class = class_named(host_class, "sglang.srt.mem_cache.memory_pool_host",
                                 "sglang.srt.mem_cache.pool_host.mha",
                                 "sglang.srt.mem_cache.pool_host.mla")
        shm = {"allocator_type": "shm"} if plan.get("shm") else {}
        self.host = host_class(device, 2.0, 0, self.page_size, plan["layout"], pin_memory=False,
                               device="cpu", **shm)
        if self.page_size == 1:
            allocator = class_named("TokenToKVPoolAllocator", "sglang.srt.mem_cache.allocator")
            allocator = allocator(tokens, torch.bfloat16, "cpu", device, False)
        else:
            allocator = class_named("PagedTokenToKVPoolAllocator",
                                    "sglang.srt.mem_cache.allocator")
            allocator = allocator(tokens, self.page_size, torch.bfloat16, "cpu", device, False)
        self.controller = HiCacheController(
            token_to_kv_pool_allocator=allocator, mem_pool_host=self.host,
            page_size=self.page_size, tp_group=parallel_state.get_tp_group().cpu_group,
            load_cache_event=threading.Event(), write_policy="write_through",
            io_backend="direct", storage_backend="dynamic", prefetch_threshold=1,
            model_name="model", storage_backend_extra_config=dict(plan["extra"]))
        self.hash_takes_list = "page_size" in inspect.signature(
            self.controller.get_hash_str).parameters
        self.store = self.controller.storage_backend
        return self.started()

    def started(self):
        """Waits until all threads of the controller are alive; the prefetch thread starts one."""
        until(self.alive, "threads")
        return {}

    def close(self):
        if self.controller is not None:
            for name in ("stop_event", "storage_stop_event"):
                if hasattr(self.controller, name):
                    getattr(self.controller, name).set()
            self.store.close()
        self.controller = None

    def hashes(self, tokens):
        """SGLang's hash of each page, computed as this version of the controller does."""
        get = self.controller.get_hash_str
        if self.hash_takes_list:
            return list(get(tokens, None, page_size=self.page_size))
        out, last = [], None
        for i in range(0, len(tokens), self.page_size):
            last = get(tokens[i:i + self.page_size], last)
            out.append(last)
        return out

    def tokens(self, seed, pages):
        return [seed * 100000 + i for i in range(pages * self.page_size)]

    def page(self, seed, number):
        """The contents of a page on this rank. With MLA they are equal on all ranks."""
        dummy = self.host.get_dummy_flat_data_page()
        rank = 0 if self.plan["pool"] == "mla" else self.plan["tp_rank"]
        nbytes = dummy.numel() * dummy.element_size()
        data = content(seed * 1000003 + number * 17 + rank, nbytes)
        return data.view(dummy.dtype).reshape(dummy.shape)

    def alive(self):
        c = self.controller
        names = ("prefetch_thread", "backup_thread", "prefetch_io_aux_thread")
        return all(getattr(c, n).is_alive() for n in names if hasattr(c, n))

    def write(self, seed, pages):
        """Fills pages of the host pool and stores them with the controller's backup thread."""
        tokens = self.tokens(seed, pages)
        indices = self.host.alloc(len(tokens))
        for i in range(pages):
            self.host.set_from_flat_data_page(int(indices[i * self.page_size]),
                                              self.page(seed, i))
        self.controller.write_storage(indices, tokens, self.hashes(tokens))
        until(lambda: not self.controller.ack_backup_queue.empty() or not self.alive(), "backup")
        operation = self.controller.ack_backup_queue.get(timeout=1)
        # SGLang may reuse the pages after the backup, so overwrite them.
        for i in range(pages):
            self.host.set_from_flat_data_page(int(indices[i * self.page_size]),
                                              torch.zeros_like(self.page(seed, i)))
        self.host.free(indices)
        return {"pages": operation.completed_tokens // self.page_size}

    def begin_prefetch(self, tokens):
        """Starts a prefetch. Returns (operation, host indices), or (None, None) without a hit."""
        c = self.controller
        if "host_indices" in inspect.signature(c.prefetch).parameters:
            indices = self.host.alloc(len(tokens))
            operation = c.prefetch("request", indices, tokens)
            until(lambda: operation.hash_value or not c.prefetch_revoke_queue.empty()
                  or not self.alive(), "exists")
            if not operation.hash_value:
                c.prefetch_revoke_queue.get(timeout=1)
                self.drain()
                return None, None
            return operation, indices
        operation = c.prefetch("request", tokens)
        found = c.prefetch_hit_queue.get(timeout=SECONDS)
        assert found is operation
        if not operation.storage_hit_count:
            return None, None
        indices = self.host.alloc(operation.storage_hit_count)
        operation.host_indices = indices
        c.prefetch_buffer.put(operation)
        return operation, indices

    def drain(self):
        """Frees the host memory that the controller's threads have released."""
        while not self.controller.host_mem_release_queue.empty():
            self.host.free(self.controller.host_mem_release_queue.get())

    def read(self, seed, pages):
        """Prefetches pages with the controller's threads and compares every byte."""
        operation, indices = self.begin_prefetch(self.tokens(seed, pages))
        if operation is None:
            return {"hits": 0, "pages": 0, "wrong": 0}
        hits = len(operation.hash_value)
        until(lambda: operation.completed_tokens == hits * self.page_size
              or operation.is_terminated() or not self.alive(), "prefetch")
        done = operation.completed_tokens // self.page_size
        wrong = 0
        for i in range(done):
            got = self.host.get_data_page(int(indices[i * self.page_size]), flat=True)
            want = self.page(seed, i)
            wrong += not torch.equal(got.contiguous().view(torch.uint8).flatten(),
                                     want.contiguous().view(torch.uint8).flatten())
        self.drain()
        self.host.free(indices[:done * self.page_size])
        return {"hits": hits, "pages": done, "wrong": wrong}

    def flush(self):
        """Acts as SGLang's /flush_cache: restarts the controller's threads, frees host memory."""
        self.controller.reset()
        self.host.clear()
        return self.started()

    def counts(self):
        stats = self.store.get_stats()
        return {"alive": self.alive(), "stats": type(stats).__module__, **self.store.counts()}

    def detach(self):
        self.controller.detach_storage_backend()
        return {}

    def attach(self):
        self.controller.attach_storage_backend("dynamic", 1, "model", dict(self.plan["extra"]))
        self.store = self.controller.storage_backend
        return self.started()
