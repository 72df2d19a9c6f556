# SPDX-License-Identifier: Apache-2.0
"""Simulates SGLang's side of the backend interface, without SGLang.

It has pools of every shape, and a controller with threads that die of any exception, as SGLang's
threads do. It follows the interface that SGLang documents, not SGLang's code. The memory of a pool
is anonymous, or a memfd that cannot be sealed, as SGLang's shm allocator makes it.
"""

import ctypes
import mmap
import os
import queue
import threading
from array import array
from types import SimpleNamespace


class Indices(list):
    """Stands in for a CPU int64 tensor: has the methods that a pool uses."""

    def tolist(self):
        return list(self)

    def __getitem__(self, at):
        got = super().__getitem__(at)
        return Indices(got) if isinstance(at, slice) else got


class Tensor:
    """Stands in for a tensor: bytes at an address."""

    def __init__(self, data):
        self.memory = ctypes.create_string_buffer(data, len(data))

    def data_ptr(self):
        return ctypes.addressof(self.memory)

    def numel(self):
        return len(self.memory)

    def element_size(self):
        return 1

    def is_contiguous(self):
        return True

    def contiguous(self):
        return self

    def bytes(self):
        return self.memory.raw


class Buffer:
    """Memory of a pool: anonymous, or with `shm` a memfd without sealing, both in whole pages."""

    def __init__(self, nbytes, shm):
        self.fd = -1
        nbytes = -(-nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
        if shm:
            self.fd = os.memfd_create("sglang_host_pool", os.MFD_CLOEXEC)
            os.ftruncate(self.fd, nbytes)
        self.map = mmap.mmap(self.fd, nbytes, flags=mmap.MAP_SHARED)
        self.base = ctypes.addressof(ctypes.c_char.from_buffer(self.map))


class Pool:
    """A host pool. `segments` has the lengths in bytes of a page's segments.

    Each segment has a buffer of its own. shm: all buffers are memfds; `buffers`, a list with one
    bool per segment, says it for each buffer.
    """

    def __init__(self, pages, segments, *, page_size=1, layout="page_first", dtype="bf16",
                 buffers=None, shm=False, heads=None, start_layer=0, device_dtype=None):
        self.page_size, self.layout, self.dtype = page_size, layout, dtype
        self.start_layer = start_layer
        if device_dtype:  # up to SGLang 0.5.18 a host pool has its device pool
            self.device_pool = SimpleNamespace(dtype=device_dtype)
        self.pages, self.segments, self.heads = pages, segments, heads
        self.buffers = [Buffer(pages * nbytes, shm if buffers is None else buffers[i])
                        for i, nbytes in enumerate(segments)]
        self.kv_buffer = [SimpleNamespace(data_ptr=lambda b=b: b.base, numel=lambda b=b: len(b.map),
                                         element_size=lambda: 1) for b in self.buffers]
        self.allocator = SimpleNamespace(
            fds=[b.fd for b in self.buffers if b.fd >= 0],
            mms=[b.map for b in self.buffers if b.fd >= 0])

    def pages_of(self, indices):
        return [indices[i] // self.page_size for i in range(0, len(indices), self.page_size)]

    def get_page_buffer_meta(self, indices):
        ptrs, sizes = [], []
        for page in self.pages_of(indices.tolist()):
            for buffer, nbytes in zip(self.buffers, self.segments):
                ptrs.append(buffer.base + page * nbytes)
                sizes.append(nbytes)
        return ptrs, sizes

    def get_split_heads_page_buffer_meta(self, indices, factor):
        """Addresses and lengths with the heads split into `factor` shares (layout page_head).

        Within K and within V of a page, each share of the heads is contiguous.
        """
        ptrs, sizes = [], []
        for page in self.pages_of(indices.tolist()):
            for part in range(factor):
                for buffer, nbytes in zip(self.buffers, self.segments):
                    ptrs.append(buffer.base + page * nbytes + part * (nbytes // factor))
                    sizes.append(nbytes // factor)
        return ptrs, sizes

    def indices(self, pages):
        return Indices(page * self.page_size + t for page in pages for t in range(self.page_size))

    def write(self, page, data):
        for buffer, nbytes in zip(self.buffers, self.segments):
            buffer.map[page * nbytes:(page + 1) * nbytes] = data[:nbytes]
            data = data[nbytes:]

    def read(self, page):
        return b"".join(buffer.map[page * nbytes:(page + 1) * nbytes]
                        for buffer, nbytes in zip(self.buffers, self.segments))

    def page_bytes(self):
        return sum(self.segments)


class MambaPoolHost(Pool):
    """A pool with the name of SGLang's class whose states differ by tensor-parallel rank."""


class MHATokenToKVPoolHost(Pool):
    """A pool with the name of SGLang's class whose heads are split over tensor-parallel ranks."""


class LayersPool(MHATokenToKVPoolHost):
    """Layout layer_first of SGLang's class: one buffer has K of all layers, and behind them V.

    A page lists K and V of each layer by turns.
    """

    def __init__(self, pages, layers, nbytes, shm):
        super().__init__(pages, [2 * layers * nbytes], layout="layer_first", shm=shm)
        self.layers, self.segments = layers, [nbytes] * 2 * layers

    def offsets(self, page):
        """Where the segments of a page are in the buffer."""
        return [((j % 2 * self.layers + j // 2) * self.pages + page) * nbytes
                for j, nbytes in enumerate(self.segments)]

    def get_page_buffer_meta(self, indices):
        pages = self.pages_of(indices.tolist())
        ptrs = [self.buffers[0].base + at for page in pages for at in self.offsets(page)]
        return ptrs, self.segments * len(pages)

    def write(self, page, data):
        for at, nbytes in zip(self.offsets(page), self.segments):
            self.buffers[0].map[at:at + nbytes], data = data[:nbytes], data[nbytes:]

    def read(self, page):
        return b"".join(self.buffers[0].map[at:at + nbytes]
                        for at, nbytes in zip(self.offsets(page), self.segments))


class CopiedPool(Pool):
    """A pool that gives no addresses: its own methods copy a page to and from a tensor."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.kv_buffer = None  # as in SGLang's indexer pools, whose attribute has another name

    def get_page_buffer_meta(self, indices):
        raise ValueError("zero-copy requires page_first layout, got layer_first")

    def get_data_page(self, index, flat=True):
        return Tensor(self.read(index // self.page_size))

    def get_dummy_flat_data_page(self):
        return Tensor(bytes(self.page_bytes()))

    def set_from_flat_data_page(self, index, data_page):
        self.write(index // self.page_size, data_page.bytes())


class HostPoolGroup:
    """Stands in for SGLang's group of an anchor pool and its side pools, as in 0.5.18."""

    def __init__(self, anchor, **others):
        self.entries = [SimpleNamespace(name=SimpleNamespace(value=name), host_pool=pool)
                        for name, pool in {"kv": anchor, **others}.items()]
        self.anchor_entry = self.entries[0]
        self.page_size = anchor.page_size


class LogicalPool:
    """The anchor pool of hybrid models: it has indices and no bytes."""

    kv_buffer = None
    layout, dtype, page_size = "layer_first", "uint8", 1

    def get_page_buffer_meta(self, indices):
        return None

    def indices(self, pages):
        return Indices(pages)


def content(seed, nbytes):
    """Bytes determined by `seed`. All words of 8 bytes differ, so that a shifted page is detected.
    """
    start = (seed * 0x9e3779b97f4a7c15) & (2**64 - 1)
    end = start + (nbytes + 7) // 8
    words = array("Q", range(start, min(end, 2**64)))
    words.extend(range(max(0, end - 2**64)))  # of 64 bits: after the largest comes 0
    return words.tobytes()[:nbytes]


def config(version, extra, **fields):
    """Stands in for HiCacheStorageConfig, with only the fields that this SGLang version has."""
    names = ["tp_rank", "tp_size", "is_mla_model", "is_page_first_layout", "model_name",
             "extra_config"]
    if version >= (0, 5, 8):
        names += ["pp_rank", "pp_size", "enable_storage_metrics"]
    if version >= (0, 5, 10):
        names += ["tp_lcm_size", "should_split_heads"]
    if version >= (0, 5, 14):
        names += ["attn_cp_rank", "attn_cp_size"]
    if version >= (0, 5, 23):
        names += ["dp_rank", "dcp_rank", "dcp_size", "logical_page_size", "is_storage_writer"]
    values = {"tp_rank": 0, "tp_size": 1, "is_mla_model": False, "is_page_first_layout": True,
              "model_name": "model", "pp_rank": 0, "pp_size": 1, "enable_storage_metrics": True,
              "tp_lcm_size": None, "should_split_heads": False, "attn_cp_rank": 0,
              "attn_cp_size": 1, "dp_rank": 0, "dcp_rank": 0, "dcp_size": 1,
              "logical_page_size": None, "is_storage_writer": True, **fields, "extra_config": extra}
    return SimpleNamespace(**{name: values[name] for name in names})


class Controller:
    """The three controller threads of one rank, for exists, get and set.

    Each thread takes work from its queue in `queues` and puts the result into `answers`.
    """

    BATCH = 128  # pages per call of the store

    def __init__(self, store, pool, v1=True):
        self.store, self.pool, self.v1 = store, pool, v1
        self.queues = {name: queue.Queue() for name in ("exists", "get", "set")}
        self.answers = queue.Queue()
        self.stop = threading.Event()
        self.threads = [threading.Thread(target=self.loop, args=(name,), daemon=True)
                        for name in self.queues]
        for thread in self.threads:
            thread.start()

    def loop(self, name):
        while not self.stop.is_set():
            try:
                work = self.queues[name].get(block=True, timeout=0.2)
                if work is not None:
                    self.answers.put((name, getattr(self, name)(*work)))
            except queue.Empty:
                continue

    def exists(self, keys):
        found = 0
        for i in range(0, len(keys), self.BATCH):
            batch = keys[i:i + self.BATCH]
            hits = self.store.batch_exists(batch, SimpleNamespace(prefix_keys=[]))
            found += hits
            if hits < len(batch):
                break
        return found

    def get(self, keys, pages):
        completed = 0
        for i in range(0, len(keys), self.BATCH):
            batch, some = keys[i:i + self.BATCH], pages[i:i + self.BATCH]
            if self.v1:
                results = self.store.batch_get_v1(batch, self.pool.indices(some), None)
            else:
                tensors = [Tensor(bytes(self.pool.page_bytes())) for _ in batch]
                results = self.store.batch_get(batch, tensors)
                for page, tensor in zip(some, results):
                    if tensor is not None:
                        self.pool.write(page, tensor.bytes())
                results = [tensor is not None for tensor in results]
            run = results.index(False) if False in results else len(results)
            completed += run
            if run < len(batch):
                break
        return completed

    def set(self, keys, pages):
        completed = 0
        for i in range(0, len(keys), self.BATCH):
            batch, some = keys[i:i + self.BATCH], pages[i:i + self.BATCH]
            if self.v1:
                stored = all(self.store.batch_set_v1(batch, self.pool.indices(some), None))
            else:
                stored = self.store.batch_set(batch, [Tensor(self.pool.read(p)) for p in some])
            if not stored:
                break
            completed += len(batch)
        return completed

    def do(self, name, *work):
        """Sends work to a thread and returns its result. AssertionError if a thread has died.
        """
        self.queues[name].put(work)
        while True:
            try:
                return self.answers.get(timeout=0.5)[1]
            except queue.Empty:
                assert self.alive(), f"a storage thread died during {name}"

    def alive(self):
        return all(thread.is_alive() for thread in self.threads)

    def close(self):
        self.stop.set()
        for work in self.queues.values():
            work.put(None)
        for thread in self.threads:
            thread.join(10)
