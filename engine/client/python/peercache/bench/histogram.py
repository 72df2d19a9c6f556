# SPDX-License-Identifier: Apache-2.0
"""A histogram of latencies whose memory does not grow with their number. One thread at a time."""

from typing import Any, Mapping

KEPT_BITS = 8  # leading bits of a latency that are kept: 0.4 %


class Histogram:
    """Latencies in ns.

    Attributes:
        counts: lower end of a bucket, in ns -> number of latencies in it.
        total: number of latencies. max_ns: the longest one, exact.
    """

    def __init__(self) -> None:
        self.counts: dict[int, int] = {}
        self.total = self.max_ns = 0

    def add(self, ns: int) -> None:
        """Adds one latency."""
        shift = max(0, ns.bit_length() - KEPT_BITS)
        bucket = ns >> shift << shift
        self.counts[bucket] = self.counts.get(bucket, 0) + 1
        self.total += 1
        self.max_ns = max(self.max_ns, ns)

    def merge(self, other: "Histogram") -> None:
        """Adds the latencies of another histogram."""
        for bucket, count in other.counts.items():
            self.counts[bucket] = self.counts.get(bucket, 0) + count
        self.total += other.total
        self.max_ns = max(self.max_ns, other.max_ns)

    def us(self, share: float) -> float:
        """The latency in us that this share (0 to 1) of the calls did not exceed; 0 without calls.
        """
        below = 0
        for bucket in sorted(self.counts):
            below += self.counts[bucket]
            if below >= share * self.total:
                width = 1 << max(0, bucket.bit_length() - KEPT_BITS)
                return min(bucket + (width - 1) / 2, self.max_ns) / 1e3
        return 0.0

    def plain(self) -> dict[str, Any]:
        """The histogram as JSON has it, for read()."""
        return {"counts": {str(b): n for b, n in self.counts.items()}, "max_ns": self.max_ns}

    @staticmethod
    def read(value: Mapping[str, Any]) -> "Histogram":
        """The histogram of plain()."""
        got = Histogram()
        got.counts = {int(b): int(n) for b, n in value["counts"].items()}
        got.total, got.max_ns = sum(got.counts.values()), int(value["max_ns"])
        return got
