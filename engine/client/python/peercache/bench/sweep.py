# SPDX-License-Identifier: Apache-2.0
"""What latency, throughput, saturation and suite measure, one point after the other. Main thread.

A point is a number of threads that make one kind of call for a time.
"""

import argparse
import sys
import time
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Callable, Optional, Sequence

from peercache.bench import report, rows
from peercache.bench.client import Client, Spec, pools_of
from peercache.bench.clients import Clients, Stop
from peercache.bench.engines import Engines, Started, free_port
from peercache.bench.options import ALL_MAX, THREADS_MAX

GROWTH = 1.05  # a step of saturation that brings less than this is no growth
FLAT_STEPS = 2  # steps without growth that end it
POOL_MIN = 64 << 20  # of an engine that is started
PAGES_IN_POOL = 64  # of the pool's smallest slots that fit a page
PRELOADER = 1 << 8  # index of the process that stores the working set; above those of clients
PRELOAD_BYTES, PRELOAD_PAGES = 64 << 20, 256  # of one call that stores the working set


@dataclass
class Group:
    """Points with the same call. threads: numbers of threads; None: doubled until it is flat."""

    op: str
    batch: int
    threads: Optional[list[int]]
    note: str = ""

    def most(self, options: argparse.Namespace) -> int:
        """Threads of a process, at most, without its writers."""
        return max(self.threads) if self.threads else \
            min(THREADS_MAX, ALL_MAX // options.processes) - writers_of(options)


def writers_of(options: argparse.Namespace) -> int:
    """Threads of a process that store pages beside the others."""
    return getattr(options, "writers", 0)


def groups_of(options: argparse.Namespace) -> list[Group]:
    """The groups of a command."""
    latency = [Group(op, 1, [1], "latency") for op in ("get", "set", "exists")]
    batch = options.batch_size
    if options.command == "latency":
        return latency
    if options.command == "throughput":
        return [Group(options.op, batch, [options.concurrency])]
    if options.command in ("saturation", "drive"):
        return [Group(options.op, batch, options.concurrencies)]
    return latency + [Group(op, batch, options.concurrencies)
                      for op in ("get", "exists-get", "set", "exists")]


class Sizes:
    """What a run needs. All are bytes, except slots, working_set and segments.

    Attributes:
        page: of a page. slots: pages of all host pools of a process. near, far: of the pools.
    """

    def __init__(self, options: argparse.Namespace, groups: Sequence[Group], rails: int) -> None:
        """Raises ValueError for pages that no engine stores."""
        self.segments = 2 if options.layout == "mha" else 1
        self.page = options.page_size * self.segments
        if self.page > 64 << 20:
            raise ValueError(f"a page has {self.page} bytes, and an engine stores "
                             f"at most {64 << 20}: lower --page-size")
        writers = writers_of(options)
        self.slots = max(stores * slots for stores, slots in (
            pools_of(g.batch, g.most(options) + writers) for g in groups))
        self.working_set = max([options.working_set] + [g.batch for g in groups])
        self.preload = max(1, min(PRELOAD_PAGES, PRELOAD_BYTES // self.page, self.working_set))
        least = max(POOL_MIN, PAGES_IN_POOL << (self.page - 1).bit_length()) * rails
        self.far = least + self.working_set * self.page * 13 // 10
        stored = max(2 * self.slots, 2048) * self.page
        self.near = least + (stored if writers or any(g.op == "set" for g in groups) else 0)
        self.clients = (self.slots * getattr(options, "processes", 1) + self.preload) * self.page

    def check(self, options: argparse.Namespace) -> None:
        """Makes the room for what is stored anew smaller if need be. Raises ValueError if that is
        not enough for --max-bytes."""
        most = options.max_bytes
        self.near = max(self.near - max(0, self.near + self.far + self.clients - most),
                        min(self.near, POOL_MIN + 2 * self.slots * self.page))
        needed = self.near + self.far + self.clients
        if needed > most:
            raise ValueError(
                f"this run takes {needed >> 20} MiB of memory, more than "
                f"--max-bytes, {most >> 20} MiB: lower --working-set, --page-size, --batch-size, "
                "the threads or --processes, or raise --max-bytes")


def rails_of(options: argparse.Namespace) -> int:
    """The number of rails that an engine of this run has."""
    return max(1, len(options.devices.split(",")))


def extra_of(options: argparse.Namespace, pool_bytes: int, **settings: Any) -> dict[str, Any]:
    """The extra config of an engine of the run. settings: as in --set, with _ for the dot's
    place."""
    more = {name.replace("_", ".", 1): str(value) for name, value in settings.items()}
    return {"protocol": options.protocol, "device_name": options.device_name,
            "device_names": options.devices, "ib_port": options.ib_port,
            "gid_index": options.gid_index, "max_channels_per_peer": options.max_channels,
            "global_segment_size": pool_bytes, "metrics_enabled": False, "interface_v1": 1,
            "engine_settings": {**more, **dict(options.set)}}


def pair_of(options: argparse.Namespace, *pools: int) -> Started:
    """Two engines on this host. pools: bytes of the near one and of the far one."""
    ports = [free_port() for _ in pools]
    extras = [extra_of(options, nbytes, cluster_port=port, cluster_address="127.0.0.1",
                       cluster_seeds=f"127.0.0.1:{ports[0]}", soft_link="shm")
              for nbytes, port in zip(pools, ports)]
    print(f"starting two engines on this host, {sum(pools) >> 20} MiB", flush=True)
    return Started(extras, options.out_dir if options.disk else "")


def engines_of(options: argparse.Namespace, sizes: Sizes) -> Engines:
    """The engines that --sockets names, else two that are started on this host."""
    if options.sockets:
        return Engines(options.sockets.split(","))
    sizes.check(options)
    return pair_of(options, sizes.near, sizes.far)


def specs_of(options: argparse.Namespace, socket: str, sizes: Sizes, group: Group) -> list[Spec]:
    """The client processes of a group."""
    stores, slots = pools_of(group.batch, group.most(options) + writers_of(options))
    return [Spec(socket, sizes.page, sizes.segments, slots, sizes.working_set, options.seed, stores,
                 index, log_level=options.log_level, log_file=options.log_file)
            for index in range(options.processes)]


def preload(spec: Spec) -> None:
    """Stores the working set through the engine of the spec, from this process."""
    print(f"storing {spec.working_set} pages of {spec.page_bytes} bytes", flush=True)
    client = Client(spec)
    with closing(client.store):
        client.preload()


class Growth:
    """Doubles the threads until FLAT_STEPS in a row bring no growth, or `most` is measured.

    Attributes:
        threads: of the next point.
    """

    def __init__(self, most: int) -> None:
        self.most, self.threads = most, 1
        self.best, self.flat = 0.0, 0

    def goes_on(self, rate: float) -> bool:
        """Takes the rate of the point, and sets the threads of the next one. False: the end."""
        self.flat = 0 if rate > self.best * GROWTH else self.flat + 1
        self.best = max(self.best, rate)
        ended = self.flat == FLAT_STEPS or self.threads == self.most
        self.threads = min(2 * self.threads, self.most)
        return not ended


class Progress:
    """Lines on standard error while a point runs."""

    def __init__(self, seconds: Optional[float], what: str = "") -> None:
        self.terminal = sys.stderr.isatty()
        self.every = (1.0 if self.terminal else 5.0) if seconds is None else seconds
        self.what, self.begun, self.shown = what, time.monotonic(), time.monotonic()
        self.line = ""

    def __call__(self, sums: dict[str, int]) -> None:
        share = f", {sums['hits'] / sums['pages']:.1%} hits" if sums["pages"] else ", warming up"
        self.show(f"{sums['calls']:,} calls, {sums['pages']:,} pages{share}")

    def show(self, text: str, what: str = "") -> None:
        """Prints a line, if the last one is old enough. what: a new one begins."""
        now = time.monotonic()
        if what and what != self.what:
            self.end()
            self.what, self.begun, self.shown, self.line = what, now, now, ""
        if not self.every or now < self.shown + self.every:
            return
        self.shown = now
        self.line = f"  {self.what}: {now - self.begun:.0f} s, {text}"
        print(self.line, end="\r" if self.terminal else "\n", file=sys.stderr, flush=True)

    def end(self) -> None:
        """Clears the line of a terminal."""
        if self.terminal and self.line:
            print(" " * len(self.line), end="\r", file=sys.stderr, flush=True)


class Run:
    """The points of a run, and the rows that they gave."""

    def __init__(self, options: argparse.Namespace, stop: Stop, engines: Engines,
                 sizes: Sizes) -> None:
        self.options, self.stop = options, stop
        self.engines, self.sizes = engines, sizes
        self.rows: list[dict[str, Any]] = []
        self.points = 0

    def point(self, clients: Clients, group: Group, threads: int) -> list[dict[str, Any]]:
        """Measures one point. Returns its rows: one for each op; none if a stop left nothing."""
        options, writers = self.options, writers_of(self.options)
        self.points += 1
        total = threads * options.processes
        progress = Progress(options.progress, f"{group.op}, {total} threads")
        results = clients.run(
            {"op": group.op, "threads": threads, "writers": writers, "batch": group.batch,
             "warmup": options.warmup, "seconds": options.duration, "number": self.points},
            progress)
        progress.end()
        note = f"{group.note} interrupted".strip() if self.stop.requested else group.note
        found = [rows.row(op, result, layout=options.layout, page_bytes=self.sizes.page,
                          batch=group.batch, processes=options.processes, readers=threads,
                          writers=writers, tokens_per_page=options.tokens_per_page, note=note,
                          ports=self.engines.ports["warning"] or self.engines.ports["kind"])
                 for op, result in results.items() if result["calls"]]
        for row in found:
            print(f"{row['op']}, {row['threads']} threads, batch {row['batch']}: "
                  f"{row['pages_per_s']:,.0f} pages/s, {row['tokens_per_s']:,.0f} tokens/s, "
                  f"{row['gb_per_s']:.2f} GB/s, p50 {row['p50_us']:,.0f} us, "
                  f"p99 {row['p99_us']:,.0f} us, hits {row['hit_ratio']:.2%}", flush=True)
        self.rows += found
        return found

    def group(self, group: Group) -> None:
        """Measures a group with client processes of its own."""
        specs = specs_of(self.options, self.engines.near, self.sizes, group)
        with closing(Clients(specs, self.stop)) as clients:
            self.points_of(clients, group)

    def points_of(self, clients: Clients, group: Group) -> None:
        """Measures the points of a group, and notes its peak."""
        found: list[dict[str, Any]] = []
        growth = Growth(group.most(self.options))
        threads = list(group.threads or (growth.threads,))
        while threads and not self.stop.requested:
            got = self.point(clients, group, threads.pop(0))
            found += [row for row in got if row["op"] == group.op]
            if group.threads is None and growth.goes_on(got[0]["pages_per_s"] if got else 0.0):
                threads = [growth.threads]
        if found:
            rows.mark_peak(found)

    def measure(self, groups: Sequence[Group]) -> int:
        """Measures all groups until a stop, and delivers the report. Returns the exit status."""
        def each() -> None:
            self.stop.measuring = True
            for group in groups:
                if not self.stop.requested:
                    self.group(group)
        return delivered(each, self.options, self.stop, self.engines, self.rows)


def ended(measure: Callable[[], None], stop: Stop, found: Callable[[], Any],
          deliver: Callable[[bool, str], int]) -> int:
    """Calls measure(), and deliver(interrupted, the error or "") when it returns or fails, if
    found() says that there is something. Returns the exit status.

    Raises what measure() raised, and KeyboardInterrupt if a stop left nothing.
    """
    failure: Optional[Exception] = None
    try:
        measure()
    except (OSError, RuntimeError, ValueError) as error:
        failure = error
    status = deliver(stop.requested, str(failure or "")) if found() else 0
    if failure:
        raise failure
    if not found():
        raise KeyboardInterrupt
    return status


def delivered(measure: Callable[[], None], options: argparse.Namespace, stop: Stop,
              engines: Engines, found: Sequence[dict[str, Any]]) -> int:
    """ended() for rows of points, which measure() adds to `found`."""
    return ended(measure, stop, lambda: found, lambda interrupted, failed: report.deliver(
        report.made(vars(options), engines.ports, engines.version, found, interrupted, failed),
        options.out_dir))


def warn_of_ports(engines: Engines) -> None:
    """Says at once that the figures of this run are not those of a NIC."""
    if engines.ports["warning"]:
        print(engines.ports["warning"], flush=True)


def run(options: argparse.Namespace) -> int:
    """Runs latency, throughput, saturation or suite. Returns the exit status."""
    stop, groups = Stop(), groups_of(options)
    sizes = Sizes(options, groups, rails_of(options))
    with closing(engines_of(options, sizes)) as engines:
        warn_of_ports(engines)
        if any(group.op != "set" for group in groups):
            preload(Spec(engines.far, sizes.page, sizes.segments, sizes.preload,
                         sizes.working_set, options.seed, index=PRELOADER))
        return Run(options, stop, engines, sizes).measure(groups)
