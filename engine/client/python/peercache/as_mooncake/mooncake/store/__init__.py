# SPDX-License-Identifier: Apache-2.0
"""Mooncake's names, with the meaning that peercache.mooncake gives them."""

from peercache.mooncake import (BufferHandle, ExistOptions, MooncakeDistributedStore,
                                ReplicateConfig, SoftPinAction)

__all__ = ["BufferHandle", "ExistOptions", "MooncakeDistributedStore", "ReplicateConfig",
           "SoftPinAction"]
