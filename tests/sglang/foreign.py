# SPDX-License-Identifier: Apache-2.0
"""Stand-ins for packages of others that SGLang imports and a machine without a GPU cannot have.

Nothing of SGLang itself is replaced. The packages of FOREIGN hold CUDA kernels, or binaries that
must match CUDA's torch; importing SGLang's cache modules names them, running those on the CPU
calls none of them. A name imported from a stand-in is a class that can be subclassed, called as a
decorator and compared; calling it for work would be seen as a wrong result by the test.
"""

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
    """Packages that are really here come first."""
    sys.meta_path.append(_Finder())
