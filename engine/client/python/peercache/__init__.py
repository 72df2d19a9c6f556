# SPDX-License-Identifier: Apache-2.0
"""PeerCache: a KV-cache tier for SGLang. RDMA reads pages from other hosts into SGLang's buffers.

`peercache.store.PeerCacheStore` is the class that SGLang loads. `Session` is libpeercache for
Python: each batch of pages is one C call, which runs without the interpreter's lock. The package
can be imported without SGLang and torch.
"""

from peercache._peercache import Session, __version__

__all__ = ["Session", "__version__"]
