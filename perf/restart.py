# SPDX-License-Identifier: Apache-2.0
"""An engine with a full pool is killed while a client reads its pages: how long they are missing.

    perf/run --only restart
    python3 perf/restart.py --quick --json -
"""

import signal
import time

import bench

POOL, QUICK_POOL = 4 << 30, 1 << 30
SHARE = 0.9  # of the pool that the pages fill; the rest are slots for credits and limbo
SIZES = [16 << 10, 128 << 10]
BATCH = 32
BEFORE_S, AFTER_S = 1.0, 6.0
ENDS = {"SIGKILL": signal.SIGKILL, "SIGSEGV": signal.SIGSEGV}
# readers: sockets of the engines that read and store; engine 0 is killed
READERS = {"a local client": (0, 0), "a client of another host": (1, 0)}


def stream(engines, reader, how, reading):
    """Returns the time of the kill in ns of the monotonic clock, ms until the next engine serves,
    pages adopted, and the client's report."""
    reading.wait(lambda: engines.status(reader)["calls"]["get"]["batches"] >= 20)
    time.sleep(BEFORE_S)
    killed_ns = time.monotonic_ns()
    engines.crash(0, how)
    served_ms = (time.monotonic_ns() - killed_ns) / 1e6
    time.sleep(AFTER_S)
    return killed_ns, served_ms, engines.status(0)["counters"]["pages_adopted"], reading.end()


def measure(reader, size, pool, how):
    pages = int(pool * SHARE) // size
    engines = bench.cluster.Cluster(bench.cluster.default_build(), 2, pool, settings=[
        "engine.huge_pages=no"], keeper=True)
    try:
        engines.start()
        sockets = [engines.sockets[i] for i in READERS[reader]]
        with bench.Reading(sockets, "--page-bytes", size, "--batch", BATCH, "--working-set",
                           pages * size, "--verify") as reading:
            killed_ns, served_ms, adopted, report = stream(
                engines, READERS[reader][0], how, reading)
            after = [call for call in reading.calls() if call[1] > killed_ns]
    finally:
        engines.stop()
    hits = [ended for _, ended, hit, _ in after if hit]
    # the call in which the kill fell may have ended with hits
    missed = [ended for _, ended, _, other in after if other]
    first = next((ended for ended in hits if missed and ended > missed[0]), hits[0])
    return {"first_ms": (first - killed_ns) / 1e6, "served_ms": served_ms,
            "all_ms": (max(missed, default=killed_ns) - killed_ns) / 1e6,
            "lost": pages - adopted, "pages": pages, "wrong": report.get("wrong", 0)}


def main():
    options = bench.parse(__doc__)
    result = bench.Result("restart")
    pool = QUICK_POOL if options.quick else POOL
    for size in SIZES[1:] if options.quick else SIZES:
        for reader in READERS:
            for name, how in list(ENDS.items())[:1] if options.quick else ENDS.items():
                got = measure(reader, size, pool, how)
                text = (f"{got['pages']} pages of {size >> 10} KiB in a pool of {pool >> 30} GiB; "
                        f"{name}; read by {reader}")
                label = f"{reader}, {size >> 10} KiB, {name}"
                goal = 1000 if reader == "a local client" else 3000
                result.figure(f"{label}: first hit", got["first_ms"], "ms", text, ("<=", goal))
                result.figure(f"{label}: last miss", got["all_ms"], "ms", text)
                result.figure(f"{label}: pages lost", got["lost"], "pages", text,
                              ("<=", got["pages"] // 1000))
    result.note("The software NIC registers memory at once. A real one takes seconds for each "
                "100 GB (engine/control/START.md), and an engine serves after that.")
    result.write(options.json)


if __name__ == "__main__":
    main()
