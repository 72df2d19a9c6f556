# SPDX-License-Identifier: Apache-2.0
"""A store whose gets hang while a file exists: beside the engine's socket, with HANGS at its end.

Readers of a stopped engine give up by themselves, so they cannot show what SGLang does.
"""

import os
import time

from peercache.store import PeerCacheStore

HANGS = ".hangs"


class HangingStore(PeerCacheStore):
    def _move(self, what, pool, keys, indices, staged=False):
        while what == "prefetch" and os.path.exists(os.environ["PEERCACHE_SOCKET"] + HANGS):
            time.sleep(0.01)
        return super()._move(what, pool, keys, indices, staged)
