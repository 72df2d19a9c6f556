# SPDX-License-Identifier: Apache-2.0
"""The modules that users of PeerCache 0.8 start with `python -m`; see peercache.former."""
