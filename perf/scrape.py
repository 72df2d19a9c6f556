#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What scraping costs: get and set of two engines with and without readers of their metrics.

    perf/scrape.py --json FILE [--quick]        $PEERCACHE_BUILD: a release build

Interleaved pairs of runs of peercache-bench: in one run of each pair every engine is scraped once
per second (/metrics) and a dashboard is open (/api/status once per second). The interval is a
bootstrap of the median of the ratios. Then the time of a scrape while the engines are busy, and the
lag of the control plane's timers with and without readers.
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

PAIRS, QUICK_PAIRS = 20, 2
SECONDS, QUICK_SECONDS = 2, 1
SCRAPES = 400  # for the percentiles of one scrape
PATHS = ("/metrics", "/api/status")


class Readers:
    """Threads that read both engines once per second while the `with` block runs."""

    def __init__(self, ports, period=1.0):
        self.ports, self.period, self.end = ports, period, threading.Event()
        self.taken = []  # seconds of each /metrics
        self.threads = [threading.Thread(target=self.read, args=(port, path))
                        for port in ports for path in PATHS]

    def read(self, port, path):
        while not self.end.wait(self.period):
            start = time.perf_counter()
            with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
                answer.read()
            if path == "/metrics":
                self.taken.append(time.perf_counter() - start)

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


def lag_p999_us(engines, i):
    return engines.status(i)["loop_lag"]["p999_ns"] / 1e3


def pairs(engines, ports, mode, figure, count, seconds):
    """Ratios scraped / not scraped of `figure`, in pairs whose order alternates."""
    ratios = []
    for i in range(count):
        got = {}
        for scraped in (i % 2 == 0, i % 2 != 0):
            if scraped:
                with Readers(ports):
                    got[True] = run(engines, mode, seconds)[figure]
            else:
                got[False] = run(engines, mode, seconds)[figure]
        ratios.append(got[True] / got[False])
        print(mode, figure, f"{got[True]:.4g} / {got[False]:.4g} = {ratios[-1]:.4f}", flush=True)
    return ratios


def busy_scrapes(engines, ports, count):
    """Milliseconds of `count` scrapes while get runs."""
    with Readers(ports, period=0.02) as readers:
        while len(readers.taken) < count:
            run(engines, "get", 2)
    return sorted(1e3 * t for t in readers.taken)


def main():
    options = bench.parse(__doc__)
    count, seconds = (QUICK_PAIRS, QUICK_SECONDS) if options.quick else (PAIRS, SECONDS)
    result = bench.Result("scrape")
    ports = [bench.cluster.free_port() for _ in range(2)]
    engines = bench.cluster.Cluster(bench.cluster.default_build(), 2, "256MiB")
    command = engines.command
    engines.command = lambda i: command(i) + ["--set", f"metrics.port={ports[i]}"]
    try:
        engines.start()
        run(engines, "get", 1)
        before = [lag_p999_us(engines, i) for i in range(2)]
        for mode, figure, name in (("get", "pages_per_second", "get, pages/s"),
                                   ("set", "p50_us", "set, p50")):
            ratios = pairs(engines, ports, mode, figure, count, seconds)
            median, low, high = interval(ratios)
            result.figure(f"{name}, scraped / not scraped", median, "ratio",
                          f"{count} interleaved pairs of {seconds} s; 95% interval of the median "
                          f"{low:.4f} to {high:.4f}")
        taken = busy_scrapes(engines, ports, 40 if options.quick else SCRAPES)
        for percent in (50, 99):
            result.figure(f"a scrape of a busy engine, p{percent}",
                          taken[len(taken) * percent // 100 - 1], "ms",
                          f"of {len(taken)}, four readers 50 times per second",
                          ("<=", 20) if percent == 99 else None)
        after = [lag_p999_us(engines, i) for i in range(2)]
        result.note(f"Loop lag p99.9 since the start, us: {before} before, {after} after.")
    finally:
        engines.stop()
    result.note(f"{os.cpu_count()} hardware threads; readers, clients and engines share them.")
    result.write(options.json)


if __name__ == "__main__":
    main()
