#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What one client thread of running engines gets: each row is a run of peercache-bench.

    perf/calls.py --json FILE [--quick]      $PEERCACHE_BUILD: a release build

Pages are read through the first engine and stored through the last one: "remote" has two of them,
"local" one. Housekeeping is CPU time of the first engine's main thread for each page, less what it
takes when idle. Pages on disk are 16 times as many as the pool holds. $PEERCACHE_CALLS: only the
rows whose names begin with that.
"""

import os
import time
from typing import NamedTuple

import bench

KIB, MIB = 1 << 10, 1 << 20
# The engines of a row: their number, owners of a key, bytes of a pool, have they a disk?
PAIR, THREE, FOUR = (2, 1, "2GiB", False), (3, 2, "2GiB", False), (4, 3, "256MiB", False)
DISK = (2, 2, "64MiB", True)
SIZES = [4 * KIB, 16 * KIB, 64 * KIB, 128 * KIB, 256 * KIB, MIB, 4 * MIB]
BATCHES = [1, 32, 128]
BATCH_BYTES_MAX = 128 * MIB  # larger batches are skipped: they measure this machine's memory
THIRD_US = 1e6 / 3 / 50000  # a third of a core at 50,000 pages/s
# What a row shows: the member of the JSON, what it adds to the row's name, unit.
RATES = (("gbps", "", "GB/s"), ("memcpy_ratio", " / memcpy", "ratio"))
PAGES = (("pages_per_second", "", "pages/s"),)
KEYS = (("pages_per_second", "", "keys/s"),)
CALL = (("p50_us", ", p50", "us"), ("p99_us", ", p99", "us"))
HOUSE = (("housekeeping_us", ", housekeeping a page", "us"),)


class Row(NamedTuple):
    """goal: of the first figure. quick: a quick run has it, too. misses: pages may be missing."""

    command: str
    where: str
    page: int
    batch: int
    shown: tuple
    engines: tuple = PAIR
    working_set: int = 256 * MIB
    goal: tuple = None
    quick: bool = True
    misses: bool = False

    def name(self):
        page = f"{self.page >> 20} MiB" if self.page >= MIB else \
            f"{self.page >> 10} KiB" if self.page >= KIB else f"{self.page} B"
        nodes, owners, _, disk = self.engines
        return (f"{self.where} {self.command}, {page}, batch {self.batch}"
                + (f", {owners} owner{'s' * (owners > 1)}" if nodes > 2 else "")
                + (", on disk" if disk else ""))


QUICK_GETS = {("remote", 128 * KIB, 32), ("local", 128 * KIB, 32)}
ROWS = [
    Row("get", "remote", 4 * KIB, 1, CALL),
    *(Row("get", where, 4 * KIB, 128, PAGES, quick=where == "remote")
      for where in ("remote", "local")),
    *(Row("get", where, page, batch, RATES, quick=(where, page, batch) in QUICK_GETS)
      for page in SIZES for batch in BATCHES for where in ("remote", "local")
      if page * batch <= BATCH_BYTES_MAX and (page, batch) not in ((4 * KIB, 1), (4 * KIB, 128))),
    *(Row("exists-get", "remote", page, batch, PAGES, quick=False)
      for page, batch in ((128 * KIB, 32), (4 * KIB, 128))),
    *(Row("set", where, 128 * KIB, 32, RATES, quick=where == "local")
      for where in ("local", "remote")),
    *(Row("set --present", where, 128 * KIB, 32, CALL, quick=where == "remote")
      for where in ("local", "remote")),
    *(Row("remove", where, 4 * KIB, batch, CALL, quick=(where, batch) == ("remote", 1))
      for where in ("local", "remote") for batch in (1, 32)),
    *(Row(command, "remote", 64, 128, KEYS, engines, 16 * MIB, goal=(">=", 1e6),
          quick=(engines, command) == (PAIR, "exists"))
      for engines in (PAIR, THREE) for command in ("exists", "exists --absent")),
    *(Row("set", "local", 4 * KIB, batch, HOUSE, engines, quick=engines is FOUR and batch == 128,
          goal=("<=", THIRD_US) if engines is FOUR and batch == 128 else None)
      for engines in (PAIR, THREE, FOUR) for batch in (16, 128)),
    *(Row("get", where, 128 * KIB, 1, CALL, DISK, 1024 * MIB, quick=False, misses=True)
      for where in ("remote", "local")),
]


def thread_us(engines):
    """User and system time of the first engine's main thread, its control plane, in us."""
    pid = engines.engine_pid(0)
    with open(f"/proc/{pid}/task/{pid}/schedstat", encoding="ascii") as file:
        return int(file.read().split()[0]) / 1000


def measure(engines, row):
    """The JSON of one run, with housekeeping_us if the row shows it."""
    idle_us = 0
    if row.shown is HOUSE:
        time.sleep(1)
        idle_us = thread_us(engines)
        time.sleep(1)
        idle_us = thread_us(engines) - idle_us
    before = engines.status(0)["counters"]["pages_published"], thread_us(engines)
    began = time.monotonic()
    got = bench.peercache_bench(
        engines.sockets[:1] if row.where == "local" else engines.sockets, *row.command.split(),
        "--page-bytes", row.page, "--batch", row.batch, "--working-set", row.working_set,
        *([] if row.shown is RATES else ["--no-baseline"]), "--seconds", 1)
    took = time.monotonic() - began
    pages = engines.status(0)["counters"]["pages_published"] - before[0]
    got["housekeeping_us"] = (thread_us(engines) - before[1] - idle_us * took) / max(1, pages)
    if got["wrong"] or (got["misses"] and not row.misses):
        raise SystemExit(f"{row.name()}: {got['wrong']} wrong pages, {got['misses']} misses")
    return got


def measured(rows, rounds):
    """{row: its results}. Rows with the same engines share them."""
    found = {row: [] for row in rows}
    for kind in dict.fromkeys(row.engines for row in rows):
        nodes, owners, pool, disk = kind
        build = bench.cluster.default_build()
        settings = [f"cluster.replicas={owners}", *(["disk.bytes=4GiB"] if disk else [])]
        engines = bench.cluster.Cluster(build, nodes, pool, settings=settings,
                                        disk=build if disk else None)
        try:
            engines.start()
            for _ in range(rounds):
                for row in rows:
                    if row.engines == kind:
                        found[row].append(measure(engines, row))
                        print(row.name(), found[row][-1], flush=True)
        finally:
            engines.stop()
    return found


def main():
    options = bench.parse(__doc__)
    rounds = 1 if options.quick else 3
    result = bench.Result("calls")
    rows = [row for row in ROWS if (row.quick or not options.quick)
            and row.name().startswith(os.environ.get("PEERCACHE_CALLS", ""))]
    for row, found in measured(rows, rounds).items():
        text = f"one client thread, software NICs, shared memory; median of {rounds} x 1 s"
        for member, more, unit in row.shown:
            result.figure(row.name() + more, bench.median(found, member), unit, text,
                          row.goal if member == row.shown[0][0] else None)
    result.note("One page of each batch is compared byte by byte after its call: no page was "
                "wrong. The rail's core copies the pages of a remote get, the client's core those "
                f"of a local one. {THIRD_US:.1f} us is a third of a core at 50,000 pages/s.")
    result.write(options.json)


if __name__ == "__main__":
    main()
