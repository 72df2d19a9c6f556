# SPDX-License-Identifier: Apache-2.0
"""`python -m peercache.examples.launch_meta` of PeerCache 0.8: an engine without pages."""

import sys

from peercache.former import meta

if __name__ == "__main__":
    sys.exit(meta())
