# SPDX-License-Identifier: Apache-2.0
"""PeerCache: a KV-cache tier for SGLang whose pages are read over RDMA straight into SGLang's
buffers.

`peercache.store.PeerCacheStore` is the class that SGLang loads. `Session` is libpeercache for
Python: one C call per batch, without the interpreter's lock. Importing this package needs neither
SGLang nor torch.
"""

from peercache._peercache import Session, __version__

__all__ = ["Session", "__version__"]
