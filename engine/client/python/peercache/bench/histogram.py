# SPDX-License-Identifier: Apache-2.0
"""A histogram of latencies whose memory does not grow with their number. One thread at a time."""

from collections import Counter

KEPT_BITS = 8  # leading bits of a latency that are kept: 0.4 %


class Histogram:
    """Latencies in ns.

    Attributes:
        counts: lower end of a bucket, in ns -> number of latencies in it.
        total: number of latencies. max_ns: the longest one, exact.
    """

    def __init__(self) -> None:
        self.counts: Counter[int] = Counter()
        self.total = self.max_ns = 0

    def add(self, ns: int) -> None:
        """Adds one latency."""
        shift = max(0, ns.bit_length() - KEPT_BITS)
        bucket = ns >> shift << shift
        self.counts[bucket] += 1
        self.total += 1
        self.max_ns = max(self.max_ns, ns)

    def __add__(self, other: "Histogram") -> "Histogram":
        """The latencies of both."""
        got = Histogram()
        got.counts = self.counts + other.counts
        got.total, got.max_ns = self.total + other.total, max(self.max_ns, other.max_ns)
        return got

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
