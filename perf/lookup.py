#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Rate of look-ups in other engines' shards through one software rail, without cached places.

    perf/lookup.py --json FILE [--quick]     $PEERCACHE_BUILD: a release build

Measured with one directory owner per key (two engines) and with two (three engines). client_calls.c
uses keys that only other engines own, several times as many as a channel can remember, and counts
only those whose bucket was READ. For an absent key the client reads the bucket of every owner.
"""

import os
import subprocess

import bench

BATCHES = [1, 8, 32, 128, 512]
OWNERS = [1, 2]


def measure(owners, batches, keys, rounds):
    program = bench.cluster.find_program(bench.cluster.default_build(), "perf/client_calls")
    got = {}
    engines = bench.cluster.Cluster(bench.cluster.default_build(), owners + 1, "2GiB",
                                    settings=[f"cluster.replicas={owners}"])
    try:
        engines.start()
        for batch in batches:
            repeats = rounds if batch > 8 else rounds // 3
            out = subprocess.run([program, "lookup", str(keys), str(batch), str(repeats)],
                                 check=True, text=True, stdout=subprocess.PIPE,
                                 env={**os.environ,
                                      "PEERCACHE_SOCKETS": ",".join(engines.sockets)}).stdout
            got[batch] = {name: float(v) for name, v in (x.split() for x in out.splitlines())}
            print(owners, batch, got[batch], flush=True)
    finally:
        engines.stop()
    return got


def main():
    options = bench.parse(__doc__)
    keys, rounds = 1 << 18, 3 if options.quick else 9
    batches = [128] if options.quick else BATCHES
    got = {owners: measure(owners, batches, keys, rounds) for owners in OWNERS}
    result = bench.Result("lookup")
    for owners in OWNERS:
        text = (f"{owners} owner{'s' * (owners > 1)} a key; median of {rounds} rounds of {keys} "
                "keys, one thread, one rail, 64 bytes READ per key and owner")
        for what in ("present", "absent"):
            goal = (">=", 1e6) if owners == 1 else None
            result.figure(f"keys that are {what}, {owners} owner{'s' * (owners > 1)}, batch 128",
                          got[owners][128][what], "keys/s", text, goal)
    if len(batches) > 1:
        lines = {f"{what}, {owners}": [got[owners][b][what] for b in batches]
                 for owners in OWNERS for what in ("present", "absent")}
        result.series("lookup", "Keys looked up through one rail, by directory owners", "batch",
                      "keys/s", batches, lines)
    result.note("The other engines' rails move the buckets: on one host the NICs, the client and "
                "the poll cores share two hardware threads.")
    result.write(options.json)


if __name__ == "__main__":
    main()
