# SPDX-License-Identifier: Apache-2.0
"""Found where no Mooncake is installed, which would have its transfer engine here."""

raise ModuleNotFoundError("No module named 'mooncake': PeerCache has mooncake.store only",
                          name="mooncake")
