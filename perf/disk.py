#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The segment log of the disk tier against fio: the same file system, block size and depth.

    perf/disk.py --json FILE [--quick] [--directory DIR]     $PEERCACHE_BUILD: a release build

perf/disk_log (spill, then promote in random order) and fio (sequential writes to a preallocated
file, then random reads of it) take turns in one directory; both use O_DIRECT and io_uring. Each
ratio is the median of the ratios of the rounds. DIR is on the disk to be measured; without it, the
folder of the build.
"""

import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile

import bench

KIB, MIB = 1 << 10, 1 << 20
SIZES = [128 * KIB, 512 * KIB, 4 * MIB]
DEPTH = 32
ROUNDS, QUICK_ROUNDS = 5, 1
BYTES, QUICK_BYTES = 1024 * MIB, 256 * MIB
LINE = re.compile(r"^(write|read): (\d+) pages, ([0-9.]+) GB/s, .* ([0-9.]+) CPU s/GB$", re.M)
WAYS = {"write": "spill", "read": "promote"}


def run(*command):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"disk: {command[0]} exited with {done.returncode}: {done.stderr[-500:]}")
    return done.stdout


def segment_log(build, directory, page, pages):
    """{write, read: (GB/s, CPU s/GB)}, and bytes written / page bytes."""
    out = run(f"{build}/perf/disk_log", directory, str(page), str(pages), str(DEPTH))
    got = {way: (float(rate), float(cpu)) for way, ok, rate, cpu in LINE.findall(out)
           if int(ok) == pages}
    if set(got) != set(WAYS):
        raise SystemExit(f"disk: not every page was written and read:\n{out}")
    return got, float(re.search(r"page bytes: ([0-9.]+)", out).group(1))


def fio(directory, page, pages):
    """{write, read: (GB/s, CPU s/GB)} of one job each."""
    got = {}
    for way, mode in (("write", "write"), ("read", "randread")):
        report = json.loads(run(
            "fio", "--name=peercache", f"--filename={directory}/fio", f"--rw={mode}",
            f"--bs={page}", f"--size={page * pages}", f"--iodepth={DEPTH}", "--ioengine=io_uring",
            "--direct=1", "--fallocate=native", "--output-format=json", "--randseed=1"))
        job = report["jobs"][0]
        seconds, total = job[way]["runtime"] / 1e3, job[way]["io_bytes"] / 1e9
        if not seconds or job[way]["io_bytes"] != page * pages:
            raise SystemExit(f"disk: fio did not {way} all bytes")
        cpu = (job["usr_cpu"] + job["sys_cpu"]) / 100 * job["job_runtime"] / 1e3
        got[way] = (total / seconds, cpu / total)
    return got


def measure(build, parent, page, rounds, total):
    """Lists of (log, fio) by way, and of bytes written / page bytes."""
    values, overhead = {way: [] for way in WAYS}, []
    for turn in range(rounds):
        both = {}
        for side in ("log", "fio") if turn % 2 == 0 else ("fio", "log"):
            with tempfile.TemporaryDirectory(prefix="perf-disk-", dir=parent) as directory:
                if side == "fio":
                    both[side] = fio(directory, page, total // page)
                else:
                    both[side], written = segment_log(build, directory, page, total // page)
                    overhead.append(written)
        for way in WAYS:
            values[way].append((both["log"][way], both["fio"][way]))
    return values, overhead


def main():
    options = bench.parse(__doc__, lambda parser: parser.add_argument(
        "--directory", metavar="DIR", help="a directory of the disk to be measured"))
    build = bench.cluster.default_build()
    if not shutil.which("fio"):
        print("disk: fio is missing (tools/install --perf)")
        sys.exit(77)
    rounds, total = (QUICK_ROUNDS, QUICK_BYTES) if options.quick else (ROUNDS, BYTES)
    sizes = SIZES[:1] if options.quick else SIZES
    parent = os.path.abspath(options.directory or build)
    result = bench.Result("disk")
    ratios = {way: [] for way in WAYS}
    for page in sizes:
        values, overhead = measure(build, parent, page, rounds, total)
        for way, what in WAYS.items():
            pairs = values[way]
            ratio = statistics.median(log[0] / other[0] for log, other in pairs)
            rates = [statistics.median(pair[i][0] for pair in pairs) for i in range(2)]
            cpus = [statistics.median(pair[i][1] for pair in pairs) for i in range(2)]
            ratios[way].append(ratio)
            result.figure(
                f"{what} / fio {way}, {page >> 10} KiB", ratio, "ratio",
                f"{rates[0]:.2f} and {rates[1]:.2f} GB/s; depth {DEPTH}; median of {rounds}",
                (">=", 0.9))
            result.figure(f"{what}, {page >> 10} KiB: CPU", cpus[0], "s/GB",
                          f"fio {cpus[1]:.2f}; of all threads, with the CRC32C of each page")
        result.figure(f"bytes written / bytes of pages, {page >> 10} KiB",
                      statistics.median(overhead), "ratio", "first fill", ("<=", 1.02))
    if len(sizes) > 1:
        result.series("disk", "the segment log / fio", "page, KiB", "ratio",
                      [page >> 10 for page in sizes],
                      {what: ratios[way] for way, what in WAYS.items()})
    result.note(f"One path, in {parent}; {total >> 20} MiB a round. "
                "fio writes no checksums, headers or index.")
    result.write(options.json)


if __name__ == "__main__":
    main()
