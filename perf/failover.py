# SPDX-License-Identifier: Apache-2.0
"""One of eight modelled rails fails while a client streams pages: throughput over time.

    perf/run --only failover
    python3 perf/failover.py --quick --json -
"""

import json
import os
import signal
import subprocess
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


def stream(engines, faults, fault, timeline):
    """Runs the client while rail 3 fails and recovers. Returns (time of the fault, time of its end,
    the client's report); times in ns of the monotonic clock."""
    program = bench.cluster.find_program(bench.cluster.default_build(), "tools/peercache-bench")
    client = subprocess.Popen(
        [program, "get", "--page-bytes", str(PAGE), "--batch", str(BATCH), "--working-set",
         str(WORKING_SET), "--threads", "1", "--no-baseline", "--seconds", "60", "--timeline",
         timeline, "--crc", "never",  # the modelled ports move no payload ("still")
         "--json", "-"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "PEERCACHE_SOCKETS": ",".join(engines.sockets)})
    try:
        before = pages_read(engines)
        while pages_read(engines) < before + 20 * BATCH:
            if client.poll() is not None:
                raise SystemExit(f"peercache-bench ended early: {client.communicate()}")
            time.sleep(0.05)
        time.sleep(BEFORE_MS / 1000 + 0.2)
        dead_ns = faults.set(f"3:{fault}")
        time.sleep(DEAD_MS / 1000)
        healed_ns = faults.set("")
        time.sleep(AFTER_MS / 1000)
        counters = engines.status(0)["counters"]
        client.send_signal(signal.SIGINT)
        out, err = client.communicate(timeout=60)
    finally:
        client.kill()
    if "{" not in out:
        raise SystemExit(f"peercache-bench wrote no report: {out}{err}")
    if counters["paths_out"] != counters["paths_back"] or not counters["paths_out"]:
        raise SystemExit(f"the engine did not take the rail out of use and back: {counters}")
    return dead_ns, healed_ns, json.loads(out[out.index("{"):])


def calls(timeline):
    """Yields (began, ended, hits, others) of each call; a call begins when the one before ends."""
    ended = None
    with open(timeline) as f:
        for row in f:
            ns, hits, others = map(int, row.split())
            if ended is not None:
                yield ended, ns, hits, others
            ended = ns


def buckets(timeline, origin_ns, from_ms, to_ms):
    """GB/s in each bucket of BUCKET_MS; a call's pages are spread evenly over its duration."""
    width = BUCKET_MS * 1_000_000
    count = (to_ms - from_ms) // BUCKET_MS
    got = [0.0] * count
    for began, ended, hits, _ in calls(timeline):
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
    timeline = faults.path + ".timeline"
    try:
        engines.start()
        dead_ns, healed_ns, report = stream(engines, faults, fault, timeline)
        rates = buckets(timeline, dead_ns, -BEFORE_MS, DEAD_MS + AFTER_MS)
        lost = sum(others for *_, others in calls(timeline))
    finally:
        engines.stop()
        faults.close()
        if os.path.exists(timeline):
            os.unlink(timeline)
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
