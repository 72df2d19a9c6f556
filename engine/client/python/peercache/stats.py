# SPDX-License-Identifier: Apache-2.0
"""Metrics for the scheduler: SGLang's own StorageMetrics, or None where that class is missing."""

import importlib
import threading
from typing import Any, Optional

MODULES = ("sglang.srt.observability.metrics_collector", "sglang.srt.metrics.collector")
KEPT_MAX = 4096  # batches kept between two calls of take()


def metrics_class() -> Optional[type]:
    for name in MODULES:
        try:
            return getattr(importlib.import_module(name), "StorageMetrics")
        except (ImportError, AttributeError):
            continue
    return None


class Stats:
    """Pages and rates of batches since the scheduler's last call of take(). Any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._moved: dict[str, list[tuple[int, float]]] = {"prefetch": [], "backup": []}
        self._class: Any = False  # False: not searched yet

    def add(self, what: str, pages: int, moved_bytes: int, seconds: float) -> None:
        with self._lock:
            rows = self._moved[what]
            if len(rows) < KEPT_MAX:
                rows.append((pages, moved_bytes / 1e9 / max(seconds, 1e-9)))

    def take(self) -> Any:
        """A StorageMetrics of what was added since the last call."""
        if self._class is False:
            self._class = metrics_class()
        if self._class is None:
            return None
        with self._lock:
            moved = self._moved
            self._moved = {"prefetch": [], "backup": []}
        metrics = self._class()
        for what, rows in moved.items():
            getattr(metrics, f"{what}_pgs").extend(pages for pages, _ in rows)
            getattr(metrics, f"{what}_bandwidth").extend(rate for _, rate in rows)
        return metrics
