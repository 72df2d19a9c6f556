# SPDX-License-Identifier: Apache-2.0
"""Queue pairs, memory and connect time of an engine, depending on the number of its peers: 2 to 64
engines with small pools on this machine, and every engine reads from every other at the same time.

    perf/run --only scale
    python3 perf/scale.py --quick --json -

A client of each engine requests keys of all shards in one call, so each rail has to connect to
every peer. The measurement ends when every engine is connected to all its peers.
"""

import json
import os
import statistics
import sys
import threading
import time

import bench
from bench import cluster

ENGINES, QUICK = [2, 4, 8, 16, 32, 64], [2, 8, 32]
KEYS_A_PEER = 64  # enough keys that every engine's shard is read
POOL_BYTES = 16 << 20
LIMIT_SECONDS = 120
# Many engines on few cores answer late: with these limits no member is declared dead.
SETTINGS = ["engine.huge_pages=no", "engine.directory_entries=4096", "rail.spin_us=0",
            "cluster.heartbeat_ms=1000", "cluster.dead_after_ms=60000"]


def sessions(engines):
    sys.path.insert(0, os.path.join(cluster.default_build(), "engine", "client", "python"))
    from peercache import _peercache
    return [_peercache.Session(socket) for socket in engines.sockets]


def resident(pid):
    """Resident bytes of a process: (all, private); the rest of `all` is shared memory."""
    found = {}
    with open(f"/proc/{pid}/status") as f:
        for line in f:
            name, _, text = line.partition(":")
            found[name] = text.split()
    return tuple(int(found[name][0]) << 10 for name in ("VmRSS", "RssAnon"))


def storm(opened, count):
    """Connects all engines to all others. Returns the seconds from the first call until every
    engine has all its peers connected, and the engines' reports."""
    keys = [f"{i:064x}" for i in range(KEYS_A_PEER * count)]
    done = threading.Event()
    failed = []

    def ask(session):
        try:
            while not done.is_set():
                session.exists("scale", keys, 2000)
                if json.loads(session.report())["figures"]["connections"] >= count - 1:
                    return
        except Exception as error:  # pylint: disable=broad-except
            failed.append(error)

    threads = [threading.Thread(target=ask, args=(s,)) for s in opened]
    start = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0, start + LIMIT_SECONDS - time.perf_counter()))
    took = time.perf_counter() - start
    done.set()
    for thread in threads:
        thread.join()
    reports = [json.loads(session.report()) for session in opened]
    live = [report["figures"]["connections"] for report in reports]
    if failed or min(live) < count - 1:
        raise SystemExit(f"{count} engines: not connected after {took:.0f} s: {live} {failed[:1]}")
    return took, reports


def measure(count):
    engines = cluster.Cluster(cluster.default_build(), count, POOL_BYTES, settings=SETTINGS)
    try:
        start = time.perf_counter()
        engines.start()
        joined = time.perf_counter() - start
        opened = sessions(engines)
        before = [resident(p.pid) for p in engines.process]
        took, reports = storm(opened, count)
        after = [resident(p.pid) for p in engines.process]
        for session in opened:
            session.close()
    finally:
        clean = engines.stop()
    if not clean:
        raise SystemExit(f"{count} engines: not all of them ended cleanly")
    middle = statistics.median
    return {"engines": count, "joined_s": joined, "connect_s": took,
            "qps": middle(r["figures"]["queue_pairs"] for r in reports),
            "registered": middle(sum(rail["registered_bytes"] for rail in r["rails"])
                                 for r in reports),
            "rss": middle(all_bytes for all_bytes, _ in after),
            "private": middle(private for _, private in after),
            "grown": middle(a[1] - b[1] for a, b in zip(after, before))}


def main():
    options = bench.parse(__doc__)
    rows = []
    for count in QUICK if options.quick else ENGINES:
        rows.append(measure(count))
        print(rows[-1], flush=True)
    result, last = bench.Result("scale"), rows[-1]
    peers, text = last["engines"] - 1, f"{last['engines']} engines on this machine, median engine"
    pairs = last["engines"] * peers
    result.figure(f"queue pairs of an engine with {peers} peers", last["qps"], "", text)
    result.figure("private memory used by connecting, per peer", last["grown"] / peers / 1024,
                  "KiB", text + "; anonymous memory of the engine, both directions")
    result.figure(f"every pair connected, {last['engines']} engines at once",
                  last["connect_s"] * 1000, "ms", f"{pairs} connections, queue pairs both ways")
    result.figure("connect time per connection", last["connect_s"] / pairs * 1e6, "us",
                  "all engines share this machine's cores")
    result.figure("registered memory of an engine", last["registered"] / 2**20, "MiB",
                  "pool, page heads and directory shard; does not depend on the peers")
    x = [row["engines"] - 1 for row in rows]
    result.series("scale-qps", "queue pairs of an engine", "peers", "queue pairs", x,
                  {"active and passive": [row["qps"] for row in rows]})
    result.series("scale-memory", "memory of an engine", "peers", "MiB", x, {
        key: [row[field] / 2**20 for row in rows] for key, field in (
            ("resident", "rss"), ("of it private", "private"), ("registered", "registered"))})
    result.series("scale-connect", "all engines connect to all at once", "peers of each", "ms", x, {
        "all connected": [row["connect_s"] * 1000 for row in rows]})
    result.note("All engines share this machine: connect time is the sum of their work on its "
                f"{len(os.sched_getaffinity(0))} hardware threads. On separate hosts each does "
                "only its own share.")
    result.note(f"Starting them and agreeing on the members took {last['joined_s']:.1f} s for "
                f"{last['engines']} engines.")
    result.write(options.json)


if __name__ == "__main__":
    main()
