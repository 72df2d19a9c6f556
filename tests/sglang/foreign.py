# SPDX-License-Identifier: Apache-2.0
"""Stand-ins for other projects' packages that SGLang imports and a machine without a GPU cannot
have.

Nothing of SGLang itself is replaced. The packages in FOREIGN hold CUDA kernels, or binaries that
must match CUDA's torch. SGLang's cache modules import them but call none of them on the CPU. A name
imported from a stand-in is a class that can be subclassed, called as a decorator and compared; if
it were called for work, the test would detect a wrong result.
"""

import importlib
import importlib.abc
import importlib.machinery
import sys
import types

FOREIGN = ("torchvision", "sgl_kernel", "flashinfer", "deep_gemm", "vllm",
           "torch_memory_saver", "tvm_ffi", "cuda", "sglang_kernel")


class _Meta(type):
    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return _Anything

    def __or__(cls, other):
        return cls

    __ror__ = __or__


class _Anything(metaclass=_Meta):
    def __init__(self, *_args, **_kwargs):
        pass

    def __call__(self, *args, **_kwargs):
        return args[0] if len(args) == 1 and callable(args[0]) else self

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return self


class _Module(types.ModuleType):
    __path__: list = []

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return _Anything


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in FOREIGN:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        module = _Module(spec.name)
        module.__version__ = "0.0"
        return module

    def exec_module(self, module):
        pass


def install():
    """Installs the stand-ins; packages that are really installed take precedence."""
    sys.meta_path.append(_Finder())


# sgl_kernel's "direct" copies between a device pool and a host pool, for device memory that is
# CPU memory. SGLang imports no kernels without a GPU, so they are set in its pool modules.
POOLS = ("memory_pool_host", "pool_host.mha", "pool_host.mla", "pool_host.mamba", "pool_host.dsa")


def transfer_kv_direct(src_layers, dst_layers, src_indices, dst_indices, page_size):
    """Copies layer by layer, by token indices."""
    for source, target in zip(src_layers, dst_layers):
        target[dst_indices] = source[src_indices]


def transfer_kv_all_layer_direct_lf_pf(src_ptrs, dst_ptrs, src_indices, dst_indices, page_size):
    """Copies all layers of a device pool to pages that store all layers consecutively."""
    layers = len(src_ptrs) // len(dst_ptrs)
    pages = dst_indices[::page_size] // page_size
    for i, source in enumerate(src_ptrs):
        rows = source[src_indices]
        dst_ptrs[i // layers][pages, i % layers] = rows.reshape(
            len(pages), page_size, *rows.shape[1:])


def transfer_kv_per_layer_direct_pf_lf(src_ptrs, dst_ptrs, src_indices, dst_indices, layer_id,
                                       page_size):
    """Copies one layer of these pages to a device pool."""
    pages = src_indices[::page_size] // page_size
    for source, target in zip(src_ptrs, dst_ptrs):
        target[dst_indices] = source[pages, layer_id].reshape(-1, *target.shape[1:])


def install_kernels():
    """Installs the copy functions into SGLang's pool modules. Pinning memory for a GPU does nothing
    here.
    """
    import torch
    for name in POOLS:
        try:
            module = importlib.import_module("sglang.srt.mem_cache." + name)
        except ModuleNotFoundError:  # SGLang moved its pools between versions
            continue
        for kernel in (transfer_kv_direct, transfer_kv_all_layer_direct_lf_pf,
                       transfer_kv_per_layer_direct_pf_lf):
            setattr(module, kernel.__name__, kernel)
    torch.cuda.cudart = lambda: types.SimpleNamespace(
        cudaHostRegister=lambda *_: 0, cudaHostUnregister=lambda *_: 0)
