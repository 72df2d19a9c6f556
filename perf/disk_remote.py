#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Latency of a get whose page is on the disk of another host, beside what it consists of.

    perf/disk_remote.py --json FILE [--quick] [--directory DIR]   $PEERCACHE_BUILD: a release build

Two engines; one has a disk and a pool that holds a sixteenth of the pages. The goal for the median:
a read of the disk, two round trips of the control plane and 100 us. The disk read is fio's median,
random reads of the page size at depth 1 on the same file system; a round trip is the median of a
set of one small page whose second owner is the other engine. Both in the same run.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile

import bench

KIB = 1 << 10
SIZES = [16 * KIB, 128 * KIB, 1024 * KIB]
POOL_BYTES = 64 << 20
SHARE = 16  # pages stored / pages that fit the pool
RATE = 100 << 20  # bytes a second while they are stored


def disk_read_us(directory, page):
    """fio's median latency of random reads of one page at a time."""
    with tempfile.TemporaryDirectory(prefix="perf-disk-", dir=directory) as folder:
        done = subprocess.run(
            ["fio", "--name=peercache", f"--filename={folder}/fio", "--rw=randread",
             f"--bs={page}", f"--size={POOL_BYTES * SHARE}", "--io_size=256M", "--iodepth=1",
             "--ioengine=io_uring", "--direct=1", "--output-format=json", "--randseed=1"],
            capture_output=True, text=True, check=True)
    job = json.loads(done.stdout[done.stdout.index("{"):])["jobs"][0]
    return job["read"]["clat_ns"]["percentile"]["50.000000"] / 1e3


def measure(build, directory, page, pages):
    engines = bench.cluster.Cluster(
        build, 2, str(POOL_BYTES), disk=directory,
        settings=["cluster.replicas=2", "engine.huge_pages=no", "disk.bytes=4GiB"])
    try:
        engines.start()
        done = subprocess.run(
            [f"{build}/perf/disk_latency", str(page), str(pages),
             str(min(16 * page * 1000000 // RATE, 999999))],
            capture_output=True, text=True,
            env={**os.environ, "PEERCACHE_SOCKETS": ",".join(engines.sockets)})
        if done.returncode:
            raise SystemExit(f"disk_remote: disk_latency: {done.stderr[-500:]}")
        counters = engines.status(0)["counters"]
    finally:
        engines.stop()
    return json.loads(done.stdout), counters


def main():
    options = bench.parse(__doc__, lambda parser: parser.add_argument(
        "--directory", metavar="DIR", help="a directory of the disk to be measured"))
    build = bench.cluster.default_build()
    if not shutil.which("fio"):
        print("disk_remote: fio is missing (tools/install --perf)")
        sys.exit(77)
    directory = os.path.abspath(options.directory or build)
    result = bench.Result("disk_remote")
    for page in SIZES[1:2] if options.quick else SIZES:
        case = f"{page >> 10} KiB"
        pages = POOL_BYTES * SHARE // page // (4 if options.quick else 1)
        read_us = disk_read_us(directory, page)
        got, counters = measure(build, directory, page, pages)
        if got["local"]["wrong"] + got["remote"]["wrong"]:
            raise SystemExit("disk_remote: wrong bytes")
        goal = read_us + 2 * got["round_trip_us"] + 100
        remote, local = got["remote"], got["local"]
        result.figure(f"remote get of a page on disk, {case}", remote["p50_us"], "us",
                      f"p90 {remote['p90_us']:.0f}, p99 {remote['p99_us']:.0f}; "
                      f"{remote['hits']} gets, {counters['disk_hits_remote']} of them from disk, "
                      f"{remote['misses']} misses, {counters['disk_drops']} pages dropped",
                      ("<=", goal))
        result.figure(f"local get of a page on disk, {case}", local["p50_us"], "us",
                      f"p90 {local['p90_us']:.0f}, p99 {local['p99_us']:.0f}")
        result.figure(f"disk read (fio, depth 1), {case}", read_us, "us")
        result.figure(f"round trip of the control plane, {case}", got["round_trip_us"], "us",
                      "a set of 64 bytes with two owners")
    result.note("Goal: disk read + 2 round trips + 100 us. Engines and client share this machine; "
                "medians of single gets in random order.")
    result.write(options.json)


if __name__ == "__main__":
    main()
