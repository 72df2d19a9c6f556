# SPDX-License-Identifier: Apache-2.0
"""Metrics for SGLang's scheduler, as an object of SGLang's class StorageMetrics."""

import importlib
import threading
from types import SimpleNamespace
from typing import Any, Optional

MODULES = ("sglang.srt.observability.metrics_collector", "sglang.srt.metrics.collector")
KEPT_MAX = 4096  # batches of each kind kept between two calls of take(); later ones are dropped


def metrics_class() -> Optional[type]:
    """SGLang's StorageMetrics; None if no SGLang with that class is installed."""
    for name in MODULES:
        try:
            return getattr(importlib.import_module(name), "StorageMetrics")
        except (ImportError, AttributeError):
            continue
    return None


class Stats:
    """Page counts and rates of the batches since the last take(). Any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._moved: dict[str, list[tuple[int, float]]] = {"prefetch": [], "backup": []}
        self._class: Any = False  # False: not searched yet

    def add(self, what: str, pages: int, moved_bytes: int, seconds: float) -> None:
        """Adds one batch. what: "prefetch" (a get) or "backup" (a set). The rate is kept in GB/s.
        """
        with self._lock:
            rows = self._moved[what]
            if len(rows) < KEPT_MAX:
                rows.append((pages, moved_bytes / 1e9 / max(seconds, 1e-9)))

    def take(self) -> Any:
        """Returns a StorageMetrics of the batches added since the last call.

        Without SGLang, an object with the same attributes.
        """
        if self._class is False:
            self._class = metrics_class()
        with self._lock:
            moved = self._moved
            self._moved = {"prefetch": [], "backup": []}
        metrics = self._class() if self._class else SimpleNamespace(
            prefetch_pgs=[], backup_pgs=[], prefetch_bandwidth=[], backup_bandwidth=[])
        for what, rows in moved.items():
            getattr(metrics, f"{what}_pgs").extend(pages for pages, _ in rows)
            getattr(metrics, f"{what}_bandwidth").extend(rate for _, rate in rows)
        return metrics
