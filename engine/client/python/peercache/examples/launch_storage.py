# SPDX-License-Identifier: Apache-2.0
"""`python -m peercache.examples.launch_storage` of PeerCache 0.8: as peercache-storage-server."""

import sys

from peercache.former import storage_server

if __name__ == "__main__":
    sys.exit(storage_server())
