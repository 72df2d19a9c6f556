# SPDX-License-Identifier: Apache-2.0
"""What copies of hot pages give: eight hosts read prompts of one host, drawn by Zipf's law, over
modelled ports whose links answers to all hosts share. Without copies and with them, in turn. The
ports are as much slower than 400G as two cores are for nine engines. Then a client that streams at
line rate, beside the copier.

    perf/run --only hot
    python3 perf/hot.py --quick --json -
"""

import ctypes
import os
import statistics
import struct
import subprocess
import sys
import threading

import bench
import saturate
from bench import median, program

sys.path.insert(0, os.path.join(bench.cluster.default_build(), "engine", "client", "python",
                                "peercache"))
import _peercache  # noqa: E402

READERS, GBPS, PAGE, PAGES, PROMPTS = 8, 1, 64 << 10, 16, 128
POOL = 160 << 20
OWN = POOL // PAGE  # pages that fill a reader's pool
PORT = struct.Struct("QQ")


class Ports:
    """Bytes that crossed the link of each port: struct soft_far_port."""

    def __init__(self):
        self.number = os.getpid()
        self.path = f"/dev/shm/peercache-ports-{self.number}"

    def bytes(self):
        with open(self.path, "rb") as file:
            return [sent for _, sent in PORT.iter_unpack(file.read())]

    def remove(self):
        if os.path.exists(self.path):
            os.unlink(self.path)


def measure(percent, warm, seconds, alpha):
    ports = Ports()
    cluster = bench.cluster.Cluster(
        bench.cluster.default_build(), READERS + 1, str(POOL),
        settings=[f"soft.model={GBPS}G,rtt=100us,far={ports.number}", "log.level=error",
                  f"copies.hot_percent={percent}", "copies.mib_per_second=4",
                  "cluster.dead_after_ms=20000"])
    try:
        cluster.start()
        with subprocess.Popen(
                [program("perf/hot"), "--page-bytes", str(PAGE), "--pages", str(PAGES),
                 "--prompts", str(PROMPTS), "--alpha", str(alpha), "--own", str(OWN),
                 "--warm", str(warm), "--seconds", str(seconds)], stdout=subprocess.PIPE,
                text=True,
                env={**os.environ, "PEERCACHE_SOCKETS": ",".join(cluster.sockets)}) as it:
            if it.stdout.readline() != "measures\n":
                raise SystemExit(f"hot: {it.communicate()[0]}")
            before = ports.bytes()
            got = it.stdout.read()
            sent = [b - a for a, b in zip(before, ports.bytes())]
        if it.returncode:
            raise SystemExit(f"hot: a page was wrong, or the program failed: {got}")
        row = bench.json.loads(got)
        row["hottest"] = max(sent) / row["batches"]
        row["all"] = sum(sent) / row["batches"]
        counters = [cluster.status(i)["counters"] for i in range(READERS + 1)]
        for name in ("copies_hot", "hot_offered", "copies_refused", "copies_failed"):
            row[name] = sum(c[name] for c in counters)
        return row
    finally:
        cluster.stop()
        ports.remove()


class Copier:
    """Brings pages of the second engine into the pools of the first one, again and again."""

    PAGE, PAGES, AT_ONCE = 128 << 10, 4096, 64

    def __init__(self, sockets):
        self.near, self.far = (_peercache.Session(socket) for socket in sockets)
        self.keys = [f"copied {n}" for n in range(self.PAGES)]
        self.stop, self.thread = threading.Event(), threading.Thread(target=self.bring)
        base = self.far.alloc(self.PAGE)
        ctypes.memset(base, 1, self.PAGE)
        for key in self.keys:
            if self.far.set("copier", [key], [base], self.PAGE, 20000) != [True]:
                raise SystemExit("hot: a page of the copier was not stored")

    def bring(self):
        left = []
        while not self.stop.is_set():
            if not left:
                self.near.clear("copier", 20000)
                left = list(self.keys)
            now, left = left[:self.AT_ONCE], left[self.AT_ONCE:]
            done = self.near.prefetch("copier", now, 20000)
            left += [key for key, good in zip(now, done) if not good]

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.stop.set()
        self.thread.join()


def beside(result, rounds, seconds):
    """Clients that stream at line rate, alone and beside the copier, in turn."""
    def stream(sockets):
        return saturate.run_json("stream", [
            program("perf/stream"), "--page-bytes", str(Copier.PAGE), "--batch", "16",
            "--in-flight", "4", "--threads", "8", "--seconds", str(seconds), "--pages", "512"],
            env={**os.environ, "PEERCACHE_SOCKETS": ",".join(sockets)})["gbps"]

    alone, both = [], []
    cluster = bench.cluster.Cluster(
        bench.cluster.default_build(), 2, "1GiB",
        settings=[f"soft.model={GBPS}G,rtt=100us", "log.level=error"])
    try:
        cluster.start()
        for _ in range(rounds):
            alone.append(stream(cluster.sockets))
            before = cluster.status(0)["counters"]["copies_bytes"]
            with Copier(cluster.sockets):
                both.append(stream(cluster.sockets))
            copied = cluster.status(0)["counters"]["copies_bytes"] - before
            if not copied:
                raise SystemExit("hot: nothing was copied beside the clients")
    finally:
        cluster.stop()
    result.figure("clients that stream at line rate: beside the copier / alone",
                  statistics.median(both) / statistics.median(alone), "ratio",
                  f"modelled; a port of {GBPS} Gbit/s, pages of 128 KiB; median of {rounds}; "
                  f"{copied >> 20} MiB were copied in the last one", (">=", 0.97))


def main():
    options = bench.parse(__doc__)
    rounds, warm, seconds = (1, 20, 10) if options.quick else (3, 30, 30)
    result = bench.Result("hot", modelled=True)
    off, on = [], []
    for _ in range(rounds):
        off.append(measure(0, warm, seconds, 1.0))
        on.append(measure(6, warm, seconds, 1.0))
        print(off[-1], on[-1], sep="\n", flush=True)
    text = (f"modelled; {READERS} readers, {PROMPTS} prompts of {PAGES} pages of {PAGE >> 10} KiB, "
            f"Zipf 1.0; median of {rounds}")
    result.figure("p99 of a batch with copies of hot pages / without",
                  median(on, "p99_us") / median(off, "p99_us"), "ratio",
                  f"{text}; {median(on, 'p99_us') / 1e3:.1f} and "
                  f"{median(off, 'p99_us') / 1e3:.1f} ms", ("<=", 0.5))
    result.figure("bytes for a batch from the hottest host with copies / without",
                  median(on, "hottest") / median(off, "hottest"), "ratio",
                  f"{text}; {median(on, 'copies_hot'):.0f} copies", ("<=", 0.4))
    result.figure("p50 of a batch with copies / without",
                  median(on, "p50_us") / median(off, "p50_us"), "ratio", text)
    beside(result, 3, 3 if options.quick else 10)
    result.note(f"Ports of {GBPS} Gbit/s, and copies as much slower: nine engines share two cores.")
    result.write(options.json)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
