#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The segment log of the disk tier against fio: the same file system, block size and depth.

    perf/disk.py --json FILE [--quick] [--directory DIR]...  $PEERCACHE_BUILD: a release build

perf/disk_log (spill, then promote in random order) and fio (sequential writes to preallocated
files, then random reads of them) take turns; both use O_DIRECT and io_uring, with one path and with
four: one file of fio for each path, the same depth for each path. Each ratio is the median of the
ratios of the rounds. DIR is on a disk to be measured, by default the folder of the build; several
of them share the paths.
"""

import contextlib
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
PATHS = [1, 4]
DEPTH = 32  # of each path
ROUNDS, QUICK_ROUNDS = 5, 1
BYTES, QUICK_BYTES = 1024 * MIB, 256 * MIB
LINE = re.compile(r"^(write|read): (\d+) pages, ([0-9.]+) GB/s, .* ([0-9.]+) CPU s/GB$", re.M)
WAYS = {"write": "spill", "read": "promote"}


def run(*command):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"disk: {command[0]} exited with {done.returncode}: {done.stderr[-500:]}")
    return done.stdout


def segment_log(build, directories, page, pages):
    """{write, read: (GB/s, CPU s/GB)}, and bytes written / page bytes."""
    out = run(f"{build}/perf/disk_log", str(page), str(pages), str(DEPTH * len(directories)),
              *directories)
    got = {way: (float(rate), float(cpu)) for way, ok, rate, cpu in LINE.findall(out)
           if int(ok) == pages}
    if set(got) != set(WAYS):
        raise SystemExit(f"disk: not every page was written and read:\n{out}")
    return got, float(re.search(r"page bytes: ([0-9.]+)", out).group(1))


def fio(directories, page, pages):
    """{write, read: (GB/s, CPU s/GB)} of one job each."""
    files = ":".join(f"{directory}/fio".replace(":", "\\:") for directory in directories)
    got = {}
    for way, mode in (("write", "write"), ("read", "randread")):
        report = json.loads(run(
            "fio", "--name=peercache", f"--filename={files}", f"--rw={mode}", f"--bs={page}",
            f"--size={page * pages}", f"--iodepth={DEPTH * len(directories)}",
            "--ioengine=io_uring", "--direct=1", "--fallocate=native", "--output-format=json",
            "--randseed=1"))
        job = report["jobs"][0]
        seconds, total = job[way]["runtime"] / 1e3, job[way]["io_bytes"] / 1e9
        if not seconds or job[way]["io_bytes"] != page * pages:
            raise SystemExit(f"disk: fio did not {way} all bytes")
        cpu = (job["usr_cpu"] + job["sys_cpu"]) / 100 * job["job_runtime"] / 1e3
        got[way] = (total / seconds, cpu / total)
    return got


def measure(build, parents, paths, page, rounds, total):
    """Lists of (log, fio) by way, and of bytes written / page bytes."""
    values, overhead = {way: [] for way in WAYS}, []
    for turn in range(rounds):
        both = {}
        for side in ("log", "fio") if turn % 2 == 0 else ("fio", "log"):
            with contextlib.ExitStack() as stack:
                directories = [stack.enter_context(tempfile.TemporaryDirectory(
                    prefix="perf-disk-", dir=parents[i % len(parents)])) for i in range(paths)]
                if side == "fio":
                    both[side] = fio(directories, page, total // page)
                else:
                    both[side], written = segment_log(build, directories, page, total // page)
                    overhead.append(written)
        for way in WAYS:
            values[way].append((both["log"][way], both["fio"][way]))
    return values, overhead


def figures(result, page, paths, values, overhead):
    """Adds the figures of one page size and number of paths. Returns {way: ratio}."""
    case = f"{page >> 10} KiB, " + ("one path" if paths == 1 else f"{paths} paths")
    ratios = {}
    for way, what in WAYS.items():
        pairs = values[way]
        ratios[way] = statistics.median(log[0] / other[0] for log, other in pairs)
        rates = [statistics.median(pair[i][0] for pair in pairs) for i in range(2)]
        cpus = [statistics.median(pair[i][1] for pair in pairs) for i in range(2)]
        result.figure(
            f"{what} / fio {way}, {case}", ratios[way], "ratio",
            f"{rates[0]:.2f} and {rates[1]:.2f} GB/s; depth {DEPTH} a path; "
            f"median of {len(pairs)}", (">=", 0.9))
        result.figure(f"{what}, {case}: CPU", cpus[0], "s/GB",
                      f"fio {cpus[1]:.2f}; of all threads, with the CRC32C of each page")
    result.figure(f"bytes written / bytes of pages, {case}",
                  statistics.median(overhead), "ratio", "first fill", ("<=", 1.02))
    return ratios


def main():
    options = bench.parse(__doc__, lambda parser: parser.add_argument(
        "--directory", metavar="DIR", action="append",
        help="a directory of a disk to be measured; may be repeated"))
    build = bench.cluster.default_build()
    if not shutil.which("fio"):
        print("disk: fio is missing (tools/install --perf)")
        sys.exit(77)
    rounds, total = (QUICK_ROUNDS, QUICK_BYTES) if options.quick else (ROUNDS, BYTES)
    sizes = SIZES[:1] if options.quick else SIZES
    parents = [os.path.abspath(parent) for parent in options.directory or [build]]
    result = bench.Result("disk")
    for paths in PATHS:
        ratios = [figures(result, page, paths,
                          *measure(build, parents, paths, page, rounds, total)) for page in sizes]
        if len(sizes) > 1:
            result.series(f"disk-{paths}", f"the segment log / fio, paths: {paths}", "page, KiB",
                          "ratio", [page >> 10 for page in sizes],
                          {what: [one[way] for one in ratios] for way, what in WAYS.items()})
    result.note(f"Paths in {', '.join(parents)}; {total >> 20} MiB a round. "
                "fio writes no checksums, headers or index.")
    result.write(options.json)


if __name__ == "__main__":
    main()
