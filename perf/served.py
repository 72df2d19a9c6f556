#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a served model gains: `peercache-bench served` with servers of this machine, and stores
beside the engine.

    perf/served.py --json FILE [--quick] [--peercache DIR]

tests/served starts the servers, with a wider model: SGLang's torch_native attention computes a
whole prompt even if most of it is cached, so only the other layers show what a hit saves. They do
as large a share of the work as in Llama 3 70B. Columns: no cache; L2 only; this engine; PeerCache
0.8.4 (--peercache, as in perf/compare); SGLang's `file`.

Each column of the table is the README's launch line for one node with another store, or without
one. Hosts are network namespaces on one switch; software NICs over TCP. L1 has room for
L1_TOKENS, L2 for twice as many, which is less than all dialogues have. Storage prefetches have
SGLang's own time-outs, and --prefetch-threshold, which is the same for all stores.
"""

import glob
import json
import os
import signal
import sys
import tempfile
import zlib

import bench

os.environ.setdefault("PEERCACHE_BUILD", bench.cluster.default_build())
sys.path[:0] = [os.path.join(os.environ["PEERCACHE_BUILD"], "engine/client/python"),
                os.path.join(bench.ROOT, "tests", "served")]
import servers  # noqa: E402
from servers import environment, harness, lines  # noqa: E402
from peercache.bench import dialogues, turns  # noqa: E402
from peercache.bench.server import Server  # noqa: E402

L1_TOKENS = 2560
PAGE = 64  # of the README's line
# An idle scheduler would spin, and take the processor from those that are measured.
FLAGS = ["--max-total-tokens", str(L1_TOKENS), "--sleep-on-idle"]
POOL = "512mb"
ABSENT = 77
DISTURBED_AT = 2  # replies, after which an engine is killed
L2_FLAGS = ("--enable-hierarchical-cache", "--hicache-mem-layout")
L3_FLAGS = ("--hicache-storage-backend", "--hicache-storage-backend-extra-config")
NAMES = {"none": turns.BASE, "l2": "L2 only", "engine": "engine", "peercache": "PeerCache 0.8.4",
         "file": "SGLang's file"}
OURS = "engine, other host"  # the column that has goals: filled by another host
GOALS = {f"{OURS}: TTFT p50 / {turns.BASE}": ("<=", 0.25),
         f"{OURS}: hits / those of an unbounded store": (">=", 0.95)}
KILLED_GOALS = {"TTFT p99 - that without cache": ("<=", 1),
                "answers that are those without cache": (">=", 1)}


class Here(Server):
    """A Host of tests/served."""

    def __init__(self, host):
        self.host, self.name = host, f"host {host.i}"

    def connection(self, seconds):
        return self.host.connection(seconds)

    def cpu(self):
        """Of the server's processes, and of its engine if it has one."""
        engine = self.host.engine()
        return cpu_of(lambda pid, session: session == self.host.pid and pid != engine), \
            cpu_of(lambda pid, session: pid == engine) if engine else None


def cpu_of(wanted):
    """CPU seconds of the processes for which wanted(pid, session) is true."""
    ticks = 0
    for path in glob.glob("/proc/[0-9]*/stat"):
        try:
            with open(path, encoding="utf-8", errors="replace") as file:
                pid, _, rest = file.read().partition(" ")
        except OSError:
            continue
        fields = rest.rpartition(")")[2].split()
        if wanted(int(pid), int(fields[3])):
            ticks += sum(map(int, fields[11:15]))  # with children that have ended
    return ticks / os.sysconf("SC_CLK_TCK")


def package_of(place):
    """The folder in which PeerCache 0.8.4 is installed; None: nowhere."""
    for folder in [place, *glob.glob(os.path.join(place, "lib", "python*", "site-packages"))]:
        if os.path.isfile(os.path.join(folder, "peercache", "store.py")):
            return os.path.abspath(folder)
    return None


def words(text):
    """Tokens of a text for a model without a tokenizer: one for each word."""
    return [3 + zlib.crc32(word.encode()) % 1021 for word in text.split()]


class Stores:
    """Launches the servers of all columns."""

    def __init__(self, site, folder, options):
        self.site, self.folder, self.options = site, folder, options

    def line(self, seed, extra=()):
        """The README's line with this model. seed: the host that others find first."""
        config = {"global_segment_size": POOL,
                  "prefetch_threshold": self.options.prefetch_threshold, **dict(extra)}
        return lines.line(self.site.model("wide", self.options.seed), f"{seed.address}:31998", None,
                          config, FLAGS, patience=())

    def of(self, store, host, seed):
        """The launch line of a host for a store."""
        line = self.line(seed)
        if store == "none":
            return [*lines.without(line, *L2_FLAGS, *L3_FLAGS), "--disable-radix-cache"]
        if store == "l2":
            return lines.without(line, *L3_FLAGS)
        if store == "file":
            return [*lines.without(line, *L3_FLAGS), L3_FLAGS[0], "file", L3_FLAGS[1],
                    json.dumps({
                        "file_storage_path": os.path.join(self.folder, "file"),
                        "prefetch_threshold": self.options.prefetch_threshold})]
        if store == "peercache":
            # Its RDMA needs a NIC: it moves pages with its own TCP.
            return self.line(seed, {"protocol": "tcp", "device_names": "", "disk_enabled": False,
                                    "metrics_enabled": False, "local_hostname": host.address})
        return line

    def start(self, stores, package):
        """Starts the servers of all stores. package: where PeerCache 0.8.4 is installed. Returns
        turns.Stores by their names here."""
        left, hosts = list(self.site.hosts), {}
        for store in stores:
            hosts[store] = [left.pop(0) for _ in range(hosts_of(store))]
        for store, own in hosts.items():
            for host in own:
                host.launch(self.of(store, host, own[0]),
                            *([[package]] if store == "peercache" else []))
        for own in hosts.values():
            for host in own:
                host.ready()
        return {store: turns.Store(NAMES[store], list(map(Here, own)), PAGE, store != "none")
                for store, own in hosts.items()}

    @staticmethod
    def kill(table, engine, base):
        """Kills the engine that holds the pages, then the reader's own, while the other host's
        server answers. Not if there are too few dialogues for answers to remain."""
        if len(table.dialogues) <= DISTURBED_AT:
            print(f"engines are not killed: needs more than {DISTURBED_AT} dialogues")
            return
        holder, reader = engine.servers
        for what, host in (("the holder", holder.host), ("the reader", reader.host)):
            reader.host.flush()
            pid = host.engine()
            table.disturb(f"engine of {what} killed", reader,
                          lambda pid=pid: os.kill(pid, signal.SIGKILL), base.servers[0],
                          DISTURBED_AT)
            harness.wait_for(lambda host=host, pid=pid: host.engine() not in (None, pid),
                             servers.LIMIT, "the keeper starts the engine again")


def hosts_of(store):
    """The number of hosts that a store is measured with."""
    return 1 if store in ("none", "l2") else 2


def chosen(options):
    """The stores to measure, and the folder of PeerCache 0.8.4."""
    stores = options.only.split(",") if options.only else list(NAMES)
    if set(stores) - set(NAMES):
        raise SystemExit(f"served: --only has {','.join(NAMES)}")
    if options.quick and not options.only:
        stores = ["none", "engine"]
    package = package_of(options.peercache) if options.peercache else None
    if "peercache" in stores and not package:
        stores.remove("peercache")
        print(f"without PeerCache 0.8.4: it is not in {options.peercache}" if options.peercache
              else "without PeerCache 0.8.4: no --peercache DIR")
    if set(stores) <= {"none"}:
        raise SystemExit("served: nothing to compare with no cache")
    return stores, package


def measured(options):
    """Measures all stores; returns the Table. Exits with ABSENT if SGLang cannot run here."""
    if os.geteuid() != 0:
        print("network namespaces need root")
        raise SystemExit(ABSENT)
    try:
        _, sglang = environment.prepare(environment.NEWEST)
    except environment.Missing as why:
        print(why)
        raise SystemExit(ABSENT) from why
    stores, package = chosen(options)
    prompts = dialogues.read(options, words) if options.dialogues else dialogues.made(options)
    if max(len(prompt) for dialogue in prompts for prompt in dialogue) > L1_TOKENS - PAGE:
        raise SystemExit(f"served: L1 has room for {L1_TOKENS} tokens: give a smaller --prompt-max")
    table = turns.Table(prompts, options, told=lambda row: print(
        f"{row['run']}, turn {row['turn']}: TTFT p50 {row['ttft_p50_ms']:.0f} ms, hits "
        f"{row['hit_ratio']:.2f}", file=sys.stderr))
    site = servers.Site(sglang, sum(map(hosts_of, stores)))
    try:
        with tempfile.TemporaryDirectory(prefix="peercache-served-") as folder:
            started = Stores(site, folder, options).start(stores, package)
            table.measure(list(started.values()))
            if {"none", "engine"} <= set(started):
                Stores.kill(table, started["engine"], started["none"])
    finally:
        site.stop()
    if table.failed():
        raise SystemExit(f"served: requests failed: {table.first}")
    return table


def result_of(table):
    """The table as perf/run takes it, with the goals."""
    result = bench.Result("served")
    for name, value, unit in turns.figures(table):
        column, _, what = name.rpartition(": ")
        goal = KILLED_GOALS.get(what) if column in table.disturbed else GOALS.get(name)
        result.figure(name, value, unit, goal=goal)
    for series in turns.series(table):
        result.series(**series)
    return result


def add(parser):
    parser.add_argument("--peercache", metavar="DIR", help="where PeerCache 0.8.4 is installed")
    parser.add_argument("--only", metavar="NAME,...",
                        help="of none,l2,engine,peercache,file: only these columns")
    parser.add_argument("--dialogues", metavar="FILE", help="JSON like ShareGPT's")
    parser.add_argument("--seed", type=int, default=1, help="of made dialogues (1)")
    parser.add_argument("--users", type=int, default=8, help="dialogues (8); engines are "
                        f"killed if there are more than {DISTURBED_AT}")
    parser.add_argument("--turns", type=int, default=4, help="of a dialogue (4)")
    parser.add_argument("--concurrency", type=int, default=2, help="requests at a time (2)")
    parser.add_argument("--output-tokens", type=int, default=8, help="of an answer (8)")
    parser.add_argument("--prompt-max", type=int, default=2000,
                        help="a dialogue ends before its prompt has more tokens (2000)")
    parser.add_argument("--prefetch-threshold", type=int, default=64,
                        help="SGLang fetches no fewer tokens (64: a page; SGLang's own is 256)")
    parser.set_defaults(vocabulary=1024, timeout=600, settle=3)


def main():
    options = bench.parse(__doc__, add)
    for name in ("users", "turns", "concurrency", "output_tokens", "prompt_max"):
        if getattr(options, name) < 1:
            raise SystemExit(f"served: --{name.replace('_', '-')} must be at least 1")
    if options.quick:
        options.users, options.turns = min(options.users, 6), min(options.turns, 3)
    try:
        table = measured(options)
    except (ValueError, RuntimeError) as error:
        raise SystemExit(f"served: {error}") from error
    result_of(table).write(options.json)


if __name__ == "__main__":
    main()
