# SPDX-License-Identifier: Apache-2.0
"""One of eight modelled rails fails while a client streams pages: throughput over time.

    perf/run --only failover
    python3 perf/failover.py --quick --json -
"""

import os
import tempfile
import time

import bench

RAILS = 8
GBPS = [100, 50, 25, 10, 5]  # data rate of a rail; the first one that this machine can fill is used
FULL = 0.95
MTU, HEADER = 4096, 82
PAGE = 1 << 20
BATCH = 128
WORKING_SET = 256 << 20
BUCKET_MS = 5
MEAN_MS = 50  # recovered: the mean throughput over this time reaches GOOD_ENOUGH
BEFORE_MS, DEAD_MS, AFTER_MS = 400, 700, 1500
GOOD_ENOUGH = 0.85
FAULTS = {"mute": "it answers nothing any more, and no event reports why",
          "down": "the port reports that it lost its link"}


def ceiling(rails, gbps):
    """The most payload that these rails carry, in GB/s."""
    return rails * gbps / 8 * MTU / (MTU + HEADER)


class Faults:
    """Owns the file of the setting test.fault_file."""

    def __init__(self):
        handle, self.path = tempfile.mkstemp(prefix="peercache-faults-")
        os.close(handle)

    def set(self, text):
        """Replaces the file; returns the monotonic time in ns just before the change is visible."""
        with open(self.path + ".new", "w") as f:
            f.write(text)
        at = time.monotonic_ns()
        os.rename(self.path + ".new", self.path)
        return at

    def close(self):
        os.unlink(self.path)


def pages_read(engines):
    return sum(rail["counters"]["pages_read"] for rail in engines.status(0)["rails"])


def stream(engines, faults, fault, reading):
    """Rail 3 fails and recovers while the client reads. Returns (time of the fault, time of its
    end, the client's report); times in ns of the monotonic clock."""
    before = pages_read(engines)
    reading.wait(lambda: pages_read(engines) >= before + 20 * BATCH)
    time.sleep(BEFORE_MS / 1000 + 0.2)
    dead_ns = faults.set(f"3:{fault}")
    time.sleep(DEAD_MS / 1000)
    healed_ns = faults.set("")
    time.sleep(AFTER_MS / 1000)
    counters = engines.status(0)["counters"]
    report = reading.end()
    if counters["paths_out"] != counters["paths_back"] or not counters["paths_out"]:
        raise SystemExit(f"the engine did not take the rail out of use and back: {counters}")
    return dead_ns, healed_ns, report


def buckets(calls, origin_ns, from_ms, to_ms):
    """GB/s in each bucket of BUCKET_MS; a call's pages are spread evenly over its duration."""
    width = BUCKET_MS * 1_000_000
    count = (to_ms - from_ms) // BUCKET_MS
    got = [0.0] * count
    for began, ended, hits, _ in calls:
        first = (began - origin_ns) - from_ms * 1_000_000
        last = (ended - origin_ns) - from_ms * 1_000_000
        for b in range(max(0, first // width), min(count - 1, last // width) + 1):
            inside = min(last, (b + 1) * width) - max(first, b * width)
            got[b] += hits * PAGE * inside / max(1, last - first)
    return [bytes_ / width for bytes_ in got]


def recovered_ms(rates, at, wanted):
    """Milliseconds from bucket `at` until the mean over MEAN_MS first reaches `wanted` GB/s."""
    n = MEAN_MS // BUCKET_MS
    for b in range(at, len(rates) - n):
        if sum(rates[b:b + n]) / n >= wanted:
            return (b - at) * BUCKET_MS
    return (len(rates) - at) * BUCKET_MS


def measure(fault, gbps):
    faults = Faults()
    engines = bench.cluster.Cluster(bench.cluster.default_build(), 2, "64MiB", settings=[
        "rail.devices=" + ",".join(["soft"] * RAILS), "rail.poll_cores=1",
        f"soft.model={gbps}G,mtu={MTU},header={HEADER},still", "test.fault_file=" + faults.path])
    try:
        engines.start()
        with bench.Reading(engines.sockets, "--page-bytes", PAGE, "--batch", BATCH,
                           "--working-set", WORKING_SET, "--crc", "never") as reading:
            # the modelled ports move no payload ("still"), which no CRC32C matches
            dead_ns, healed_ns, report = stream(engines, faults, fault, reading)
            rates = buckets(reading.calls(), dead_ns, -BEFORE_MS, DEAD_MS + AFTER_MS)
            lost = sum(others for *_, others in reading.calls())
    finally:
        engines.stop()
        faults.close()
    at, healed = BEFORE_MS // BUCKET_MS, (healed_ns - dead_ns) // 1_000_000
    return {"rates": rates, "gbps": gbps, "lost": lost + report["misses"],
            "before": sum(rates[:at]) / at / ceiling(RAILS, gbps),
            "recovery_ms": recovered_ms(rates[:at + healed // BUCKET_MS], at,
                                        GOOD_ENOUGH * ceiling(RAILS - 1, gbps)),
            "back_ms": recovered_ms(rates, at + healed // BUCKET_MS,
                                    GOOD_ENOUGH * ceiling(RAILS, gbps))}


def measure_full(fault, rates):
    """Measures at the highest of `rates` at which the rails are full before the fault."""
    for gbps in rates:
        got = measure(fault, gbps)
        print(f"{fault}, {RAILS} rails of {gbps} Gbit/s: {got['before']:.2f} of their ceiling")
        if got["before"] >= FULL:
            break
    return got


def main():
    options = bench.parse(__doc__)
    result = bench.Result("failover", modelled=True)
    for fault in ["mute"] if options.quick else FAULTS:
        got = measure_full(fault, GBPS[2::2] if options.quick else GBPS)
        gbps = got["gbps"]
        text = (f"modelled: {RAILS} rails of {gbps} Gbit/s, {PAGE >> 10} KiB pages, one client "
                f"thread; {FAULTS[fault]}")
        result.figure(f"{fault}: until {GOOD_ENOUGH} of seven rails' ceiling", got["recovery_ms"],
                      "ms", f"{text}; first mean of {MEAN_MS} ms that reaches it", ("<=", 100))
        result.figure(f"{fault}: pages lost", got["lost"], "pages", text, ("<=", 0))
        result.figure(f"{fault}: healed, until {GOOD_ENOUGH} of eight rails' ceiling",
                      got["back_ms"], "ms", text)
        result.figure(f"{fault}: before the fault, of eight rails' ceiling",
                      got["before"], "ratio", text)
        x = range(-BEFORE_MS, DEAD_MS + AFTER_MS, BUCKET_MS)
        result.series(f"failover-{fault}", f"one of {RAILS} modelled rails dies at 0 ms: "
                      f"{FAULTS[fault]}", "ms", "GB/s (modelled)", x,
                      {"engine": got["rates"], "ceiling": [ceiling(RAILS, gbps)] * len(x),
                       "ceiling of seven": [ceiling(RAILS - 1, gbps)] * len(x)})
    result.note("No event reports a mute rail: the engine breaks its connection after "
                "rail.stall_ms without a completion, and reads the pages over the other rails.")
    result.write(options.json)


if __name__ == "__main__":
    main()
