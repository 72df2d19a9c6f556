#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""set compared with memcpy and non-temporal stores of the same pages, one client thread.

    perf/set.py --json FILE [--quick]        $PEERCACHE_BUILD: a release build

Runs client_calls.c, whose file-top comment defines a round, against engines: first with room in the
pool, then with a pool so small that every page evicts another one.
"""

import os
import subprocess

import bench

KIB = 1 << 10
SIZES = [4 * KIB, 16 * KIB, 64 * KIB, 128 * KIB, 256 * KIB, 1024 * KIB]
ROUND_BYTES, BATCH, WINDOW = 128 << 20, 32, 4
WAYS = {"memcpy": "memcpy", "nontemporal": "non-temporal stores", "blocking": "set, blocking",
        "windowed": f"set, {WINDOW} batches in flight"}


def measure(engines, page, rounds, evict=False):
    program = bench.cluster.find_program(bench.cluster.default_build(), "perf/client_calls")
    pages = max(ROUND_BYTES // page, BATCH) if page > 16 * KIB else 8192
    done = subprocess.run(
        [program, "set", str(page), str(BATCH), str(pages), str(rounds), str(WINDOW),
         str(int(evict))], text=True, stdout=subprocess.PIPE,
        env={**os.environ, "PEERCACHE_SOCKETS": engines.sockets[0]})
    if done.returncode:
        raise SystemExit(f"set, {page >> 10} KiB: client_calls exited with {done.returncode}")
    got = {name: float(value) for name, value in (x.split() for x in done.stdout.splitlines())}
    print(page >> 10, "KiB", got, flush=True)
    return got


def with_engines(nodes, pool, work, settings=()):
    engines = bench.cluster.Cluster(bench.cluster.default_build(), nodes, pool, settings=settings)
    try:
        engines.start()
        return work(engines)
    finally:
        engines.stop()


def own_copy(result, got, name, text, goal):
    """The goal's ratio: to libpeercache's own streaming copy into the slots that set chose, in its
    order, alternating with it."""
    if not got["slots"]:
        result.note(f"{name}: the slots of too many pages were not known; no copy into them.")
        return
    result.figure(f"set / the same copy into the pool's slots, 128 KiB, {name}",
                  got["slots_ratio"], "ratio", f"{text}; the copy alone {got['slots']:.2f} GB/s",
                  (">=", goal) if goal else None)


def main():
    options = bench.parse(__doc__)
    rounds = 3 if options.quick else 9
    sizes = [128 * KIB] if options.quick else SIZES
    alone = with_engines(1, "1GiB", lambda e: {p: measure(e, p, rounds) for p in sizes})
    two = with_engines(2, "1GiB", lambda e: measure(e, 128 * KIB, rounds))
    # A freed slot rests for engine.limbo_ms, 20 ms: at 15 GB/s 300 MB of slots rest at any time.
    evict, evict_two = (with_engines(n, "1GiB", lambda e: measure(e, 128 * KIB, rounds, True))
                        for n in (1, 2))
    result = bench.Result("set")
    text = f"median of {rounds} rounds of {ROUND_BYTES >> 20} MiB, batches of {BATCH}, one thread"
    for name, got, goal in (("1 engine", alone[128 * KIB], True),
                            ("2 engines, 2 replicas", two, False)):
        result.figure(f"set 128 KiB, {name}", got["windowed"], "GB/s",
                      f"{WAYS['windowed']}; blocking {got['blocking']:.2f}; {text}")
        own_copy(result, got, name, text, 0.95 if goal else None)
        for way in ("nontemporal", "memcpy"):
            result.figure(f"set / {WAYS[way]}, 128 KiB, {name}", got["windowed"] / got[way],
                          "ratio", text + "; a plain loop into other memory")
    result.figure("set 128 KiB, every page evicts one", evict["windowed"] * 1e9 / (128 * KIB),
                  "pages/s", f"pool of 1 GiB; blocking {evict['blocking'] * 1e9 / 131072:.0f}; "
                  + text)
    own_copy(result, evict, "every page evicts one", text, 0.9)
    own_copy(result, evict_two, "every page evicts one, 2 engines", text, None)
    if len(sizes) > 1:
        result.series("set", "set, one engine, one client thread", "page, KiB", "GB/s",
                      [p >> 10 for p in sizes],
                      {WAYS[w]: [alone[p][w] for p in sizes] for w in WAYS})
    failed = sum(got["failed"] for got in (*alone.values(), two, evict, evict_two))
    result.note(f"Pages that were not stored: {failed:.0f}.")
    result.write(options.json)


if __name__ == "__main__":
    main()
