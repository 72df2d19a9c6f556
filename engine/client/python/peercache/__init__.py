# SPDX-License-Identifier: Apache-2.0
"""PeerCache: a KV-cache tier for SGLang. RDMA reads pages from other hosts into SGLang's buffers.

`peercache.store.PeerCacheStore` is the class that SGLang loads. `Session` is libpeercache for
Python: each batch of pages is one C call, which runs without the interpreter's lock. `Channel` has
calls that do not wait; `peercache.aio` is it for asyncio. The package can be imported without
SGLang and torch.
"""

from peercache._peercache import Channel, Session, __version__

__all__ = ["Channel", "Session", "__version__"]
