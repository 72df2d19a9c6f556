#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Keys looked up in another engine's shard, through one software rail, nothing remembered.

    perf/lookup.py --json FILE [--quick]     $PEERCACHE_BUILD: a release build

Two engines, one directory owner a key; client_calls.c takes keys that the other engine owns,
several for each location that a channel can remember, and counts what was READ.
"""

import os
import subprocess

import bench

BATCHES = [1, 8, 32, 128, 512]


def main():
    options = bench.parse(__doc__)
    keys, rounds = (1 << 16, 3) if options.quick else (1 << 18, 9)
    batches = [128] if options.quick else BATCHES
    program = bench.cluster.find_program(bench.cluster.default_build(), "perf/client_calls")
    got = {}
    engines = bench.cluster.Cluster(bench.cluster.default_build(), 2, "4GiB",
                                    settings=["cluster.replicas=1"])
    try:
        engines.start()
        for batch in batches:
            count = keys if batch > 8 else keys // 8
            out = subprocess.run([program, "lookup", str(count), str(batch), str(rounds)],
                                 check=True, text=True, stdout=subprocess.PIPE,
                                 env={**os.environ,
                                      "PEERCACHE_SOCKETS": ",".join(engines.sockets)}).stdout
            got[batch] = {name: float(v) for name, v in (x.split() for x in out.splitlines())}
            print(batch, got[batch], flush=True)
    finally:
        engines.stop()
    result = bench.Result("lookup")
    text = f"median of {rounds} rounds of {keys} keys, one thread and rail, 64 bytes READ a key"
    for what in ("present", "absent"):
        result.figure(f"keys that are {what}, batch 128", got[128][what], "keys/s", text,
                      (">=", 1e6))
    if len(batches) > 1:
        result.series("lookup", "Keys looked up through one rail", "batch", "keys/s", batches,
                      {what: [got[b][what] for b in batches] for what in ("present", "absent")})
    result.note("The other engine's rail moves the buckets: on one host both NICs, the client and "
                "both poll cores share two hardware threads.")
    result.write(options.json)


if __name__ == "__main__":
    main()
