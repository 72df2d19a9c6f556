# SPDX-License-Identifier: Apache-2.0
"""A package `mooncake` whose store is PeerCache. peercache-as-mooncake puts it first on PYTHONPATH.

A Mooncake that is installed keeps all other modules. Without one, importing its transfer engine
raises what it raises where there is no package `mooncake` at all: callers look for that name.
"""

import os
from pkgutil import extend_path

__path__ = extend_path(__path__, __name__)
__path__.append(os.path.join(os.path.dirname(__file__), "absent"))
