# SPDX-License-Identifier: Apache-2.0
"""get with real bytes: pages of 4 KiB to 4 MiB in batches of 1, 32 and 128, from this host's pool
and from another engine's pool. Each is compared with memcpy of as many pages between its batches.

    perf/run --only get
    python3 perf/get.py --quick --json -

$PEERCACHE_WORKING_SET_MIB: all different pages of a case (256). A pool has eight times as much.
"""

import json
import os
import statistics
import subprocess

import bench

SIZES = [4 << 10, 16 << 10, 64 << 10, 128 << 10, 256 << 10, 1 << 20, 4 << 20]
BATCHES = [1, 32, 128]
BATCH_BYTES_MAX = 128 << 20  # larger batches are skipped: they measure this machine's memory
QUICK = {("remote", 4 << 10, 1), ("remote", 4 << 10, 128), ("remote", 128 << 10, 32),
         ("remote", 1 << 20, 32), ("local", 4 << 10, 128), ("local", 128 << 10, 32)}
ROUNDS = 3
WORKING_SET = int(os.environ.get("PEERCACHE_WORKING_SET_MIB", "256")) << 20


def size(value):
    return f"{value >> 20} MiB" if value >= 1 << 20 else f"{value >> 10} KiB"


def cases(quick):
    everything = [(where, page, batch) for page in SIZES for batch in BATCHES
                  for where in ("remote", "local") if page * batch <= BATCH_BYTES_MAX]
    return [case for case in everything if not quick or case in QUICK]


def measure(engines, where, page, batch):
    sockets = engines.sockets if where == "remote" else engines.sockets[:1]
    program = bench.cluster.find_program(bench.cluster.default_build(), "tools/peercache-bench")
    done = subprocess.run([program, "get", "--page-bytes", str(page), "--batch", str(batch),
                           "--working-set", str(WORKING_SET), "--seconds", "1", "--json", "-"],
                          capture_output=True, text=True,
                          env={**os.environ, "PEERCACHE_SOCKETS": ",".join(sockets)})
    if done.returncode:
        raise SystemExit(f"{where}, {size(page)}, batch {batch}: {done.stdout}{done.stderr}")
    got = json.loads(done.stdout[done.stdout.index("{"):])
    if got["wrong"] or not got[f"hits_{where}"]:
        raise SystemExit(f"{where}, {size(page)}, batch {batch}: {got['wrong']} wrong pages (must "
                         f"be 0), {got[f'hits_{where}']} hits of that kind (must not be 0)")
    return got


def median(rows, key):
    return statistics.median(row[key] for row in rows)


def figures(result, got, text):
    for where in ("remote", "local"):
        rows = got.get((where, 128 << 10, 32))
        if rows:
            result.figure(f"{where} get, 128 KiB, batch 32", median(rows, "gbps"), "GB/s", text)
            result.figure(f"{where} get / memcpy, 128 KiB, batch 32", median(rows, "memcpy_ratio"),
                          "ratio", text + ", memcpy between the same batches")
        rows = got.get((where, 4 << 10, 128))
        if rows:
            result.figure(f"{where} get, 4 KiB, batch 128", median(rows, "pages_per_second"),
                          "pages/s", text)
    rows = got[("remote", 4 << 10, 1)]
    for key in ("p50_us", "p99_us"):
        result.figure(f"remote get of one 4 KiB page, {key[:3]}", median(rows, key), "us", text)


def plots(result, got):
    sizes = [page >> 10 for page in SIZES]
    def line(where, batch, key):
        rows = [got.get((where, page, batch)) for page in SIZES]
        return [median(r, key) if r else None for r in rows]

    for where in ("remote", "local"):
        lines = {f"batch {batch}": line(where, batch, "gbps") for batch in BATCHES}
        lines["memcpy"] = line(where, 32, "memcpy_gbps")
        result.series(f"get-{where}", f"get, {where}, one client thread", "page, KiB", "GB/s",
                      sizes, lines)
    result.series("get-latency", "get of one page", "page, KiB", "us (p50)", sizes,
                  {where: line(where, 1, "p50_us") for where in ("remote", "local")})


def main():
    options = bench.parse(__doc__)
    rounds = 1 if options.quick else ROUNDS
    got = {}
    engines = bench.cluster.Cluster(bench.cluster.default_build(), 2, 8 * WORKING_SET)
    try:
        engines.start()
        for _ in range(rounds):
            for case in cases(options.quick):
                got.setdefault(case, []).append(measure(engines, *case))
                print(case, f"{got[case][-1]['gbps']:.2f} GB/s")
    finally:
        clean = engines.stop()
    result = bench.Result("get")
    text = "one thread, software NIC, shared-memory link, " + (
        "one run of 1 s" if rounds == 1 else f"median of {rounds} runs of 1 s")
    figures(result, got, text)
    if not options.quick:
        plots(result, got)
    misses = sum(row["misses"] for rows in got.values() for row in rows)
    result.note("One page of each batch is compared byte by byte after its call: no page was "
                f"wrong. Pages that were no hit: {misses}.")
    result.note("The rail's core copies the pages of a remote get, the client's core those of a "
                "local one.")
    result.write(options.json)
    return 0 if clean else 3


if __name__ == "__main__":
    raise SystemExit(main())
