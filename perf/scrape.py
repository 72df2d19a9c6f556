#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What scraping costs: get and set of two engines with and without readers of their metrics.

    perf/scrape.py --json FILE [--quick]        $PEERCACHE_BUILD: a release build

Interleaved pairs of runs of peercache-bench: in one run of each pair every engine is scraped once
per second (/metrics) and a dashboard is open (/api/status once per second). The interval is a
bootstrap of the median of the ratios; it concludes when it lies within 1% of 1, or outside. The CPU
time of the readers, which share the machine with the engines, is given apart. Then the lag of the
control plane's timers in the runs with and in those without readers, and the time of a scrape while
the engines are busy.
"""

import json
import os
import random
import statistics
import subprocess
import tempfile
import threading
import time
import urllib.request

import bench

PAIRS, QUICK_PAIRS = 100, 2  # many and short: the load of a machine drifts
SECONDS = 1
WITHIN = 0.01
SCRAPES = 400  # for the percentiles of one scrape
PATHS = ("/metrics", "/api/status")


class Readers:
    """Threads that read both engines once per second while the `with` block runs."""

    def __init__(self, ports, period=1.0):
        self.ports, self.period, self.end = ports, period, threading.Event()
        self.taken = []  # seconds of each /metrics
        self.cpu = []    # CPU seconds of each thread
        self.threads = [threading.Thread(target=self.read, args=(port, path))
                        for port in ports for path in PATHS]

    def read(self, port, path):
        wait = self.period / 4  # a run is short: the first read comes early in it
        while not self.end.wait(wait):
            wait = self.period
            start = time.perf_counter()
            with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
                answer.read()
            if path == "/metrics":
                self.taken.append(time.perf_counter() - start)
        self.cpu.append(time.thread_time())

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self.end.set()
        for thread in self.threads:
            thread.join()


def run(engines, mode, seconds):
    """The JSON result of one run of peercache-bench."""
    program = bench.cluster.find_program(bench.cluster.default_build(), "tools/peercache-bench")
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        subprocess.run([program, mode, "--seconds", str(seconds), "--no-baseline",
                        "--page-bytes", "128KiB", "--batch", "32", "--working-set", "64MiB",
                        "--sockets", ",".join(engines.sockets), "--json", file.name],
                       check=True, stdout=subprocess.DEVNULL)
        with open(file.name, encoding="utf-8") as result:
            return json.load(result)


def interval(ratios):
    """Median and the 95% interval of the median, by bootstrap."""
    chance = random.Random(1)
    medians = sorted(statistics.median(chance.choices(ratios, k=len(ratios)))
                     for _ in range(4000))
    return statistics.median(ratios), medians[100], medians[-101]


class Lag:
    """How late the timers of both engines were, in the runs with and in those without readers."""

    def __init__(self, engines):
        self.engines, self.counts = engines, {True: {}, False: {}}

    def buckets(self):
        counts = {}
        for i in range(2):
            for lower, count in self.engines.status(i)["loop_lag"]["from_ns"].items():
                counts[int(lower)] = counts.get(int(lower), 0) + count
        return counts

    def add(self, scraped, before):
        for lower, count in self.buckets().items():
            self.counts[scraped][lower] = (self.counts[scraped].get(lower, 0) + count
                                           - before.get(lower, 0))

    def p999_us(self, scraped):
        """The lower bound of the bucket of the 99.9th percentile, and how many timers fired."""
        counts = sorted(self.counts[scraped].items())
        total, seen = sum(count for _, count in counts), 0
        for lower, count in counts:
            seen += count
            if seen >= 0.999 * total:
                return lower / 1e3, total
        return 0, 0


def pairs(engines, ports, mode, figure, count, lag):
    """Ratios scraped / not scraped of `figure`, in pairs whose order alternates; and the share of a
    core that the readers use."""
    ratios, cpu = [], 0
    for i in range(count):
        got = {}
        for scraped in (i % 2 == 0, i % 2 != 0):
            before = lag.buckets()
            with Readers(ports if scraped else []) as readers:
                got[scraped] = run(engines, mode, SECONDS)[figure]
            cpu += sum(readers.cpu)
            lag.add(scraped, before)
        ratios.append(got[True] / got[False])
        print(mode, figure, f"{got[True]:.4g} / {got[False]:.4g} = {ratios[-1]:.4f}", flush=True)
    return ratios, cpu / count / SECONDS


def concluded(low, high):
    if 1 - WITHIN <= low and high <= 1 + WITHIN:
        return "within 1%"
    return "not within 1%" if high < 1 - WITHIN or low > 1 + WITHIN else "cannot tell 1%"


def busy_scrapes(engines, ports, count):
    """Milliseconds of `count` scrapes while get runs."""
    with Readers(ports, period=0.02) as readers:
        while len(readers.taken) < count:
            run(engines, "get", 2)
    return sorted(1e3 * t for t in readers.taken)


def main():
    options = bench.parse(__doc__)
    count = QUICK_PAIRS if options.quick else PAIRS
    result = bench.Result("scrape")
    ports = [bench.cluster.free_port() for _ in range(2)]
    engines = bench.cluster.Cluster(bench.cluster.default_build(), 2, "256MiB")
    command = engines.command
    engines.command = lambda i: command(i) + ["--set", f"metrics.port={ports[i]}"]
    try:
        engines.start()
        run(engines, "get", 1)
        lag = Lag(engines)
        for mode, figure, name in (("get", "pages_per_second", "get, pages/s"),
                                   ("set", "p50_us", "set, p50")):
            ratios, cpu = pairs(engines, ports, mode, figure, count, lag)
            median, low, high = interval(ratios)
            result.figure(f"{name}, scraped / not scraped", median, "ratio",
                          f"{count} interleaved pairs of {SECONDS} s; 95% interval of the median "
                          f"{low:.4f} to {high:.4f}: {concluded(low, high)}; the readers use "
                          f"{100 * cpu:.1f}% of a core")
        taken = busy_scrapes(engines, ports, 40 if options.quick else SCRAPES)
        for percent in (50, 99):
            result.figure(f"a scrape of a busy engine, p{percent}",
                          taken[len(taken) * percent // 100 - 1], "ms",
                          f"of {len(taken)}, four readers 50 times per second",
                          ("<=", 20) if percent == 99 else None)
        for scraped, words in ((True, "scraped"), (False, "not scraped")):
            late, timers = lag.p999_us(scraped)
            result.figure(f"loop lag p99.9, {words}", late, "us",
                          f"{timers} timers; buckets are 25% apart")
    finally:
        engines.stop()
    result.note(f"{os.cpu_count()} hardware threads; readers, clients and engines share them.")
    result.write(options.json)


if __name__ == "__main__":
    main()
