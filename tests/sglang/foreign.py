# SPDX-License-Identifier: Apache-2.0
"""Stand-ins for packages of other projects that SGLang imports and that need a GPU.

Nothing of SGLang itself is replaced. The packages in FOREIGN contain CUDA kernels, or binaries that
must match a torch for CUDA. SGLang's cache modules import them but call none of them on the CPU. A
name imported from a stand-in is a class that can be subclassed, called as a decorator and compared.
It computes nothing, so a test would detect a call of it by a wrong result.
"""

import importlib
import importlib.abc
import importlib.machinery
import sys
import types

FOREIGN = ("torchvision", "sgl_kernel", "flashinfer", "deep_gemm", "vllm",
           "torch_memory_saver", "tvm_ffi", "cuda", "sglang_kernel")


class _Meta(type):
    """Class of _Anything: every attribute of the class exists, and it can be part of a union."""

    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return _Anything

    def __or__(cls, other):
        return cls

    __ror__ = __or__


class _Anything(metaclass=_Meta):
    """What every name in a stand-in is. As a decorator it returns the decorated function."""

    def __init__(self, *_args, **_kwargs):
        pass

    def __call__(self, *args, **_kwargs):
        return args[0] if len(args) == 1 and callable(args[0]) else self

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return self


class _Module(types.ModuleType):
    """A stand-in module, in which every name exists."""

    __path__: list = []

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return _Anything


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Makes a stand-in for each module of the packages in FOREIGN."""

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
    """Installs the stand-ins. Packages that are installed on this machine take precedence."""
    sys.meta_path.append(_Finder())
    _memory_is_there()


def _memory_is_there():
    """SGLang makes no host pool, however small, unless 10 GB of memory stay free. Beside other
    tests that is not always so: 10 GB more are said to be available."""
    try:
        import psutil
    except ImportError:  # the process loads no SGLang
        return
    told = psutil.virtual_memory

    def roomy():
        memory = told()
        return memory._replace(available=memory.available + (10 << 30))
    psutil.virtual_memory = roomy


# The functions below replace sgl_kernel's "direct" copies between a device pool and a host pool;
# device memory is CPU memory here. Without a GPU SGLang does not import sgl_kernel, so
# install_kernels() sets the functions in these modules of SGLang, which call them.
POOLS = ("memory_pool_host", "pool_host.mha", "pool_host.mla", "pool_host.mamba", "pool_host.dsa")


def transfer_kv_direct(src_layers, dst_layers, src_indices, dst_indices, page_size):
    """Copies tokens, given by their indices, from each source layer to its destination layer."""
    for source, target in zip(src_layers, dst_layers):
        target[dst_indices] = source[src_indices]


def transfer_kv_all_layer_direct_lf_pf(src_ptrs, dst_ptrs, src_indices, dst_indices, page_size):
    """Copies all layers of a device pool to host pages that contain all layers."""
    layers = len(src_ptrs) // len(dst_ptrs)
    pages = dst_indices[::page_size] // page_size
    for i, source in enumerate(src_ptrs):
        rows = source[src_indices]
        dst_ptrs[i // layers][pages, i % layers] = rows.reshape(
            len(pages), page_size, *rows.shape[1:])


def transfer_kv_per_layer_direct_pf_lf(src_ptrs, dst_ptrs, src_indices, dst_indices, layer_id,
                                       page_size):
    """Copies one layer from host pages that contain all layers to a device pool."""
    pages = src_indices[::page_size] // page_size
    for source, target in zip(src_ptrs, dst_ptrs):
        target[dst_indices] = source[pages, layer_id].reshape(-1, *target.shape[1:])


def install_kernels():
    """Sets the copy functions in SGLang's pool modules, and disables pinning of memory for a GPU.
    """
    import torch
    for name in POOLS:
        try:
            module = importlib.import_module("sglang.srt.mem_cache." + name)
        except ModuleNotFoundError:  # this version of SGLang lacks the module
            continue
        for kernel in (transfer_kv_direct, transfer_kv_all_layer_direct_lf_pf,
                       transfer_kv_per_layer_direct_pf_lf):
            setattr(module, kernel.__name__, kernel)
    torch.cuda.cudart = lambda: types.SimpleNamespace(
        cudaHostRegister=lambda *_: 0, cudaHostUnregister=lambda *_: 0)
    for name in ("empty", "zeros"):
        make = getattr(torch, name)
        setattr(torch, name, lambda *args, make=make, pin_memory=False, **more: make(*args, **more))


def install_transfer():
    """Has a prefill server name pages to its transfer engine at once: a GPU's indices are copied to
    pinned memory first, those of a CPU need not."""
    conn = importlib.import_module("sglang.srt.disaggregation.mooncake.conn")
    conn.MooncakeKVSender.supports_host_tensor_indices = False
