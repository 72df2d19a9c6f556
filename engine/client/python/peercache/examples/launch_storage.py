# SPDX-License-Identifier: Apache-2.0
"""`python -m peercache.examples.launch_storage` of PeerCache 0.8: says what replaces it."""

import sys

from peercache.former import storage_server

if __name__ == "__main__":
    sys.exit(storage_server())
