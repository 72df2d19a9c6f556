# SPDX-License-Identifier: Apache-2.0
"""Small device pools of SGLang on the CPU, of every kind whose host pools the store can save.

SGLang itself makes the host pools from these device pools. A test fills the tensors in
Kind.buffers, and compares them after the prefix tree has loaded pages back to the device pools.
"""

import torch

from sglang.srt.configs import mamba_utils
from sglang.srt.mem_cache import memory_pool
from sglang.srt.mem_cache.allocator import PagedTokenToKVPoolAllocator, TokenToKVPoolAllocator
from sglang.srt.mem_cache.allocator.swa import SWATokenToKVPoolAllocator
from sglang.srt.mem_cache.deepseek_v4_memory_pool import DeepSeekV4TokenToKVPool
from sglang.srt.mem_cache.hybrid_cache import hybrid_pool_assembler
from sglang.srt.mem_cache.swa_memory_pool import SWAKVPool

BF16 = torch.bfloat16
LAYERS = 4


class Kind:
    """Base class: the device pools of one kind of model, and their allocator.

    Attributes:
        window: tokens of the sliding window, or None.
        requests: pool of the states per request, or None.
        draft: device pool of a speculative draft, or None.
        usual_page: page size in tokens with which SGLang runs this kind.
        heads: number of heads on one rank.
        buffers: rows of (label, tensor, function from token indices to rows of the tensor).
    """

    window = requests = draft = None
    usual_page = 64

    def __init__(self, tokens, page_size, ranks, dtype=BF16):
        self.tokens, self.page_size = tokens, page_size
        self.heads = 4 // ranks
        self.common = dict(size=tokens, page_size=page_size, dtype=dtype, device="cpu",
                           enable_memory_saver=False)
        self.buffers = []
        self.build()

    def build(self):
        """Makes the pools, sets self.allocator and fills self.buffers."""
        raise NotImplementedError

    def paged(self, device_pool):
        """SGLang's allocator for this page size."""
        if self.page_size == 1:
            return TokenToKVPoolAllocator(self.tokens, BF16, "cpu", device_pool, False)
        return PagedTokenToKVPoolAllocator(self.tokens, self.page_size, BF16, "cpu", device_pool,
                                           False)

    def mha(self, **more):
        """A device pool with K and V by heads."""
        return memory_pool.MHATokenToKVPool(**{**self.common, "head_num": self.heads,
                                               "head_dim": 64, "layer_num": LAYERS, **more})

    def mla(self, **more):
        """A device pool of MLA pages."""
        return memory_pool.MLATokenToKVPool(**{**self.common, "kv_lora_rank": 512,
                                               "qk_rope_head_dim": 64, "layer_num": LAYERS, **more})

    def add(self, label, tensors, rows):
        self.buffers += [(f"{label}{i}", tensor, rows) for i, tensor in enumerate(tensors)]

    def pages(self, indices):
        """Numbers of the pages of these token indices."""
        return indices[::self.page_size] // self.page_size

    def add_drafts(self, tree):
        """Registers the pool of a speculative draft as SGLang does."""
        if self.draft is not None:
            specs, entries = hybrid_pool_assembler.build_hicache_draft_sidecars(
                draft_device_pools=(self.draft,), tree_cache=tree)
            for spec, entry in zip(specs, entries):
                tree.register_sidecar_pool(spec, entry)

    @staticmethod
    def bytes_of(tensor):
        """A view of the tensor as rows of bytes."""
        return tensor.view(torch.uint8).view(tensor.shape[0], -1)

    def fill(self, indices, make):
        """Writes the rows of these tokens in all buffers. make(label) returns n -> n bytes."""
        for label, tensor, rows in self.buffers:
            at, view = rows(indices), self.bytes_of(tensor)
            data = bytearray(make(label)(len(at) * view.shape[1]))
            view[at] = torch.frombuffer(data, dtype=torch.uint8).view(len(at), -1)

    def wrong(self, indices, make):
        """Number of rows, in all buffers, that differ from those that fill() writes."""
        wrong = 0
        for label, tensor, rows in self.buffers if len(indices) else ():
            at, view = rows(indices), self.bytes_of(tensor)
            data = bytearray(make(label)(len(at) * view.shape[1]))
            want = torch.frombuffer(data, dtype=torch.uint8).view(len(at), -1)
            wrong += int((view[at] != want).any(dim=1).sum())
        return wrong


class Mha(Kind):
    def build(self):
        pool = self.mha()
        self.allocator = self.paged(pool)
        self.add("k", pool.k_buffer, lambda indices: indices)
        self.add("v", pool.v_buffer, lambda indices: indices)


class Mla(Kind):
    def build(self):
        pool = self.mla()
        self.allocator = self.paged(pool)
        self.add("kv", pool.kv_buffer, lambda indices: indices)


class Dsa(Kind):
    """DeepSeek sparse attention (NSA): MLA pages, and an indexer's keys in a side pool."""

    def sparse(self):
        return memory_pool.DSATokenToKVPool(
            **self.common, kv_lora_rank=512, qk_rope_head_dim=64, layer_num=3,
            index_head_dim=128, kv_cache_dim=576)

    def build(self):
        pool = self.sparse()
        self.allocator = self.paged(pool)
        self.add("kv", pool.kv_buffer, lambda indices: indices)
        self.add("index", pool.index_k_with_scale_buffer, self.pages)


class DsaDraft(Dsa):
    def build(self):
        super().build()
        self.draft = self.sparse()


class Swa(Kind):
    """Every second layer of the model has attention with a sliding window."""

    def build(self):
        self.window = 2 * self.page_size
        pool = SWAKVPool(**self.common, size_swa=self.tokens // 2, head_num=self.heads, head_dim=64,
                         swa_attention_layer_ids=[0, 2], full_attention_layer_ids=[1, 3])
        self.allocator = SWATokenToKVPoolAllocator(
            self.tokens, self.tokens // 2, self.page_size, BF16, "cpu", pool, False)

        def in_window(indices):
            return self.allocator.full_to_swa_index_mapping[indices[-self.window:]]
        for buffers, rows in ((pool.full_kv_pool, lambda indices: indices),
                              (pool.swa_kv_pool, in_window)):
            name = "full" if buffers is pool.full_kv_pool else "swa"
            self.add(name + "_k", buffers.k_buffer, rows)
            self.add(name + "_v", buffers.v_buffer, rows)


class Mamba(Kind):
    """Two layers of the model have attention; the others have a state per checkpoint."""

    attention = {}

    def build(self):
        shape = mamba_utils.Mamba2StateShape.create(
            tp_world_size=1, intermediate_size=64, n_groups=1, num_heads=4, head_dim=16,
            state_size=8, conv_kernel=4)
        self.requests = memory_pool.HybridReqToTokenPool(
            size=4, mamba_size=16, mamba_spec_state_size=4, max_context_len=self.tokens,
            device="cpu", enable_memory_saver=False, mamba_layer_ids=[0, 2],
            cache_params=mamba_utils.Mamba2CacheParams(shape=shape, layers=[0, 2]),
            enable_mamba_extra_buffer=False)
        self.allocator = self.paged(memory_pool.HybridLinearKVPool(
            **self.common, head_num=self.heads, head_dim=64, full_attention_layer_ids=[1, 3],
            mamba_pool=self.requests.mamba_pool, **self.attention))


class MlaMamba(Mamba):
    attention = dict(use_mla=True, kv_lora_rank=512, qk_rope_head_dim=64)


class DeepSeekV4(Kind):
    """Pages compressed by several ratios, an indexer, states, and an anchor pool without bytes."""

    usual_page = 256
    ratios, more = [0, 4, 128, 4], {}

    def build(self):
        self.window = self.page_size
        layers = len(self.ratios)
        pool = DeepSeekV4TokenToKVPool(
            max_num_reqs=4, swa_size=self.tokens // 2, c4_size=self.tokens // 4,
            c128_size=self.tokens // 128, c4_state_pool_size=64, c128_state_pool_size=64,
            page_size=self.page_size, swa_page_size=self.page_size, dtype=torch.float8_e4m3fn,
            c4_state_dtype=torch.float32, c128_state_dtype=torch.float32, qk_nope_head_dim=448,
            qk_rope_head_dim=64, indexer_head_dim=128, layer_num=layers, start_layer=0,
            end_layer=layers, device="cpu", enable_memory_saver=False,
            compression_ratios=self.ratios, full_size=self.tokens, **self.more)
        self.allocator = SWATokenToKVPoolAllocator(
            self.tokens, self.tokens // 2, self.page_size, torch.uint8, "cpu", pool, False)


class DeepSeekV41(DeepSeekV4):
    """DeepSeekV4 with layers that share pages of ratios 1 and 2."""

    ratios, more = [0, 4, 128, 1, 2], {"kv_source_layers": [3, 4]}


class MhaDraft(Mha):
    def build(self):
        super().build()
        self.draft = self.mha(head_num=2, layer_num=1)


class MlaDraft(Mla):
    def build(self):
        super().build()
        self.draft = self.mla(layer_num=1)


class MlaMhaDraft(Mla):
    """The draft's heads are split over ranks; the pages of the model itself are not."""

    def build(self):
        super().build()
        self.draft = self.mha(head_num=2, layer_num=1)


KINDS = {"mha": Mha, "mla": Mla, "dsa": Dsa, "swa": Swa, "mamba": Mamba, "mla_mamba": MlaMamba,
         "deepseek_v4": DeepSeekV4, "deepseek_v41": DeepSeekV41, "mha_draft": MhaDraft,
         "mla_draft": MlaDraft, "dsa_draft": DsaDraft, "mla_mha_draft": MlaMhaDraft}
