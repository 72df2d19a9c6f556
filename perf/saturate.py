# SPDX-License-Identifier: Apache-2.0
"""How well one client and few poll cores fill modelled 400G rails: 1 to 8 rails, pages of 4 KiB to
4 MiB, batches of 32, several in flight or one alone. Of two engines, one owns the pages and the
other reads them over software NICs whose link is modelled and whose payload does not move;
everything else is real.

    perf/run --only saturate
    python3 perf/saturate.py --quick --json -

$PEERCACHE_SATURATE_S: seconds of a measurement (1; --quick: 0.4).
"""

import contextlib
import glob
import json
import os
import statistics
import subprocess

import bench
from bench import median, program

GBPS, RTT_NS, MTU, HEADER = 400, 5000, 4096, 82  # RoCE v2 over IPv4
CEILING = GBPS / 8 * MTU / (MTU + HEADER)        # GB/s of payload, one rail
BATCH, SET_BYTES, SLICE = 32, 64 << 20, 256 << 10
POOL_BYTES = 2 << 30                             # pools of all rails together
SIZES = [4 << 10, 16 << 10, 64 << 10, 128 << 10, 256 << 10, 1 << 20, 4 << 20]
RAILS = [1, 2, 4, 8]
CLIENTS = [1, 2, 4]
PROCESSES = [1, 2, 4, 8, 16]
RATES = [25, 50, 100, 200, 400]
BARE = [64 << 10, 128 << 10, 256 << 10, 1 << 20]
TRIES = 5  # of a measurement
WAITED = 0.01  # part of it for which the poll core may wait for a processor that others have
# Poll cores. On two hardware threads, a second poll core would take the client's thread.
CORES = 2 if (os.cpu_count() or 1) >= 4 else 1
DOORBELL_NS, LINE_NS = 80, 30  # what a real port costs the poll core and a software NIC does not
NO_LIMIT = "100000G,rtt=0ns,qp_rate=0,port_rate=0,still"
BARE_MODEL = f"{GBPS}G,port_rate=0,still"
CHARGES = f",doorbell={DOORBELL_NS}ns,line={LINE_NS}ns"


def size(value):
    return f"{value >> 20} MiB" if value >= 1 << 20 else f"{value >> 10} KiB"


def run_json(what, command, **more):
    done = subprocess.run(command, capture_output=True, text=True, **more)
    if done.returncode:
        raise SystemExit(f"{what}: {done.stdout}{done.stderr}")
    return json.loads(done.stdout)


class Clocked(bench.cluster.Cluster):
    """Engines whose modelled ports' clock stops while they are simulated (test.clock_file)."""

    stopped = True

    def clock(self, i):
        return self.sockets[i] + ".clock"

    def command(self, i):
        clock = ["--set", "test.clock_file=" + self.clock(i)] if self.stopped else []
        return super().command(i) + clock


class Engines:
    """Two engines of `rails` rails. Every measurement includes the time of the poll cores."""

    misses = 0  # sum over all measurements
    patient = True
    waited = 0  # part of a measurement for which its poll core waited for a processor: the most
    cores = None  # cores that the client may use; None: all

    def __init__(self, rails, modelled=True, qps=0, gbps=GBPS, charged=True, validate="auto"):
        settings = [f"rail.devices={','.join(['soft'] * rails)}", "log.level=error",
                    f"rail.poll_cores={min(CORES, rails)}", f"rail.qps_per_peer={qps}",
                    f"rail.validate={validate}"]
        if modelled:
            settings += [f"soft.model={gbps}G,rtt={RTT_NS}ns,mtu={MTU},header={HEADER},still"
                         + (CHARGES if charged else "")]
        self.ceiling = rails * CEILING * gbps / GBPS if modelled else float("inf")
        self.cluster = Clocked(bench.cluster.default_build(), 2,
                               f"{(POOL_BYTES >> 20) // rails}MiB", settings=settings)
        self.cluster.stopped = self.modelled = modelled

    def __enter__(self):
        self.cluster.start()
        self.place()
        return self

    def place(self):
        """Gives the reading engine's poll cores cores of their own, as on a larger machine."""
        cores = sorted(os.sched_getaffinity(0))
        if len(cores) < 2 or len(cores) > CORES + 2:
            return
        for process in self.cluster.process:
            for task in os.listdir(f"/proc/{process.pid}/task"):
                with open(f"/proc/{process.pid}/task/{task}/comm", encoding="ascii") as file:
                    polls = process is self.cluster.process[0] and \
                        file.read().startswith("pc-poll")
                os.sched_setaffinity(int(task), cores[-CORES:] if polls else cores[:-CORES])
        self.cores = cores[:-CORES]

    def __exit__(self, *_):
        self.cluster.stop()

    def spent(self):
        cores = self.cluster.status(0)["poll_cores"]
        return [sum(c["figures"][f"poll_core_{name}_seconds_total"] for c in cores)
                for name in ("busy", "spin", "software_nic")]

    def delayed(self):
        """Seconds for which the reading engine's poll cores were ready and waited for a processor.
        """
        found = 0
        for task in glob.glob(f"/proc/{self.cluster.process[0].pid}/task/*"):
            with contextlib.suppress(OSError), open(task + "/comm", encoding="ascii") as comm, \
                    open(task + "/schedstat", encoding="ascii") as stat:
                found += int(stat.read().split()[1]) / 1e9 * comm.read().startswith("pc-poll")
        return found

    def stream(self, *arguments, **more):
        """stream_once(), again if a processor was wanted by others: a poll core that is preempted
        inside a NIC when the time is read makes its ports seem faster than they are, and one that
        waits for its processor slower. Of several, that in which it waited least."""
        rows = []
        for _ in range(TRIES):
            got = self.stream_once(*arguments, **more)
            rows += [got] if got["gbps"] <= self.ceiling * 1.1 else []
            if rows and (rows[-1]["waited"] <= WAITED or not Engines.patient):
                break
        if not rows:
            raise SystemExit(f"saturate: {got['gbps']:.1f} GB/s through ports that carry at most "
                             f"{self.ceiling:.1f}: the clock is not that of the modelled ports")
        got = min(rows, key=lambda row: row["waited"])
        Engines.misses += got["misses"]
        Engines.waited = max(Engines.waited, got["waited"])
        return got

    def stream_once(self, page, in_flight, seconds, clients=1, more=()):
        """Streams batches of 32 through libpeercache; `more`: further options of stream. Rates and
        times are by the clock of the modelled ports; `wall` has those by this machine's clock. Adds
        `busy`: the share of the poll cores' time, without the software NICs' time, that was spent
        in turns that found work."""
        count = max(BATCH * in_flight, SET_BYTES // page // BATCH * BATCH)
        before, delayed = self.spent(), self.delayed()
        got = run_json(f"{size(page)} pages, {in_flight} batches", [
            program("perf/stream"), "--page-bytes", str(page), "--batch", str(BATCH),
            "--in-flight", str(in_flight), "--threads", str(clients), "--seconds", str(seconds),
            "--pages", str(min(count, 8192)), *more,
            *(["--clock", self.cluster.clock(0)] if self.modelled else ["--verify"])],
            preexec_fn=lambda: self.cores and os.sched_setaffinity(0, self.cores),
            env={**os.environ, "PEERCACHE_SOCKETS": ",".join(self.cluster.sockets)})
        busy, spin, nic = (b - a for a, b in zip(before, self.spent()))
        got["waited"] = (self.delayed() - delayed) / seconds
        got["busy"] = (busy - nic) / (busy + spin - nic) if busy + spin > nic else 0
        got["wall"] = dict(got)
        for name in ("pages_per_s", "p50_us", "p99_us"):
            got[name] = got.pop(f"model_{name}")
        got["gbps"] = got["pages_per_s"] * page / 1e9
        # what the client's threads could request, by the time that their calls took for a page
        got["client_ns"] = got["wall"]["client_busy"] * clients * 1e9 / got["wall"]["pages_per_s"]
        got["client_gbps"] = clients * page / got["client_ns"]
        got["both_gbps"] = min(got["gbps"], got["client_gbps"])
        return got


def in_flight(page):
    """Batches in flight that fill any number of rails and still fit the pools."""
    return 16 if page <= 16 << 10 else 8 if page <= 128 << 10 else 4 if page < 1 << 20 else 2


def bare_modelled(page, seconds, rails=1, charged=True):
    """The bare loop over the same modelled ports: a READ of the page, then one of its head."""
    return bare(page, seconds, "--rails", str(rails), "--heads", "--leave-out",
                "--model", BARE_MODEL + (CHARGES if charged else ""))


def bare(page, seconds, *more):
    return run_json("bare", [program("perf/bare"), "--bytes", str(min(page, SLICE)),
                             "--seconds", str(seconds), *more])


def wall(rows, key):
    return statistics.median(row["wall"][key] for row in rows)


def client_alone():
    """ns of the client's calls for a page with the answering engine in the same thread: no cache
    line comes from another core."""
    line = subprocess.run([program("perf/client_cost"), "128K", "1", str(BATCH),
                           "400", "7"], text=True, stdout=subprocess.PIPE, check=True).stdout
    return float(dict(zip(*[iter(line.split())] * 2))["page_ns"])


def goal_in_situ(result, rows, by_itself, text):
    """`by_itself`: of client_alone(), right after `rows`."""
    here, alone = median(rows, "client_ns"), statistics.median(by_itself)
    result.figure("8 rails, 128 KiB, the client's thread for a page: beside the poll cores / alone "
                  "in one thread", here / alone, "ratio", f"{here:.0f} ns, modelled ports, and "
                  f"{alone:.0f} ns; {text}", ("<=", 2))


def goal_stream(result, rows, free, alone, rails, text):
    """`rows`: with the poll core charged for doorbells and lines; `free`: without; `alone`: the
    bare loop, charged."""
    ceiling = rails * CEILING
    poll, both = median(rows, "gbps"), median(rows, "both_gbps")
    client = median(rows, "client_gbps")
    cores = f"{min(CORES, rails)} poll core(s)"
    result.figure(f"{rails} x 400G, 128 KiB, one client streaming batches of 32: min(poll cores, "
                  "client thread) / ceiling", both / ceiling, "ratio",
                  f"modelled, doorbells and lines charged; {text}; of {ceiling:.1f} GB/s, {cores} "
                  f"can do {poll:.1f} and the client's thread {client:.1f}",
                  (">=", 0.95) if rails == 8 else None)
    result.figure(f"{rails} x 400G, 128 KiB, poll cores alone / ceiling", poll / ceiling, "ratio",
                  f"modelled, charged; {text}; {cores}, busy {median(rows, 'busy'):.0%}; more than "
                  "the client could request where the first figure is smaller; by the wall clock "
                  f"{wall(rows, 'gbps'):.1f} GB/s")
    result.figure(f"{rails} x 400G, 128 KiB, the same, nothing charged", median(free, "gbps")
                  / ceiling, "ratio", f"modelled; {text}; client {median(free, 'client_gbps'):.1f} "
                  "GB/s")
    result.figure(f"{rails} x 400G, 128 KiB, bare loop / ceiling", median(alone, "gbps") / ceiling,
                  "ratio", f"modelled, charged; {text}; one thread of dv/hot.h, page and head")
    result.figure(f"{rails} x 400G, 128 KiB, poll cores' busy share", median(rows, "busy"),
                  "of their turns' time", f"modelled; {text}")
    result.figure(f"{rails} x 400G, 128 KiB, the client's thread for a page",
                  median(rows, "client_ns"), "ns",
                  f"modelled ports, by this machine's clock; {text}; by itself it could "
                  f"request {client:.0f} GB/s")


def goal_alone(result, rows, rails, validate, text):
    """`validate`: by tail, a page takes two round trips, by lease one."""
    ideal = RTT_NS / 1e3 + BATCH * (128 << 10) / (rails * CEILING * 1e3)
    poll = median(rows, "p50_us")
    client = RTT_NS / 1e3 + BATCH * median(rows, "client_ns") / 1e3
    took = max(poll, client)
    result.figure(f"{rails} x 400G, a lone batch of 32 x 128 KiB by {validate} / (RTT + bytes / "
                  "ceiling)",
                  took / ideal, "ratio", f"modelled, charged; {text}; the greater of {poll:.1f} "
                  f"us, the batch, and {client:.1f} us, RTT and the client's own time; ideal "
                  f"{ideal:.1f} us; validation included; by the wall clock "
                  f"{wall(rows, 'p50_us'):.1f} us",
                  ("<=", 1.3) if rails == 8 else None)


def lone_batches(result, rails, rounds, seconds, text):
    for validate in ("tail", "lease"):
        with Engines(rails, validate=validate) as engines:
            rows = [engines.stream(128 << 10, 1, seconds) for _ in range(rounds)]
        goal_alone(result, rows, rails, validate, text)


def rates(result, rounds, seconds):
    """Measures with ports of several rates, to find the rates that one poll core can fill."""
    ratios = []
    for gbps in RATES:
        with Engines(8, gbps=gbps) as engines:
            rows = [engines.stream(128 << 10, in_flight(128 << 10), seconds)
                    for _ in range(rounds)]
        ratios.append(median(rows, "both_gbps") / (8 * CEILING * gbps / GBPS))
        print(f"8 x {gbps}G: {ratios[-1]:.3f} of the ceiling", flush=True)
    full = [f"{gbps}G" for gbps, ratio in zip(RATES, ratios) if ratio >= 0.97]
    result.figure("8 rails, 128 KiB, streaming: ports of the best of several rates / ceiling",
                  max(ratios), "ratio", "modelled, charged; min(poll cores, client); of "
                  f"{RATES} Gbit/s, at "
                  f"{RATES[ratios.index(max(ratios))]}; 0.97 and more: "
                  f"{', '.join(full) or 'none'}; median of {rounds}")
    result.series("saturate-rates", "8 rails, 128 KiB, one client streaming batches of 32",
                  "Gbit/s of a port", "part of the ceiling (modelled)", RATES,
                  {"engine": ratios, "ceiling": [1] * len(RATES)})


def processes(result, counts, seconds):
    """Several client processes, each with a session of its own, stream over the same 8 rails."""
    ratios = []
    with Engines(8) as engines:
        for count in counts:
            row = engines.stream(128 << 10, in_flight(128 << 10), seconds, count, ["--processes"])
            ratios.append(row["gbps"] / engines.ceiling)
            result.figure(f"8 x 400G, 128 KiB, {count} process(es) streaming batches of 32: poll "
                          "cores / ceiling", ratios[-1], "ratio", "modelled, charged; the "
                          f"processes share {len(engines.cores or []) or os.cpu_count()} hardware "
                          f"thread(s), {CORES} poll core(s), busy {row['busy']:.0%}, p99 "
                          f"of a batch {row['p99_us']:.0f} us; the poll core waited "
                          f"{row['waited']:.1%}", (">=", 0.95) if count == 4 else None)
    result.series("saturate-processes", "8 rails, 128 KiB, processes streaming batches of 32",
                  "processes", "part of the ceiling (modelled)", counts,
                  {"engine": ratios, "ceiling": [1] * len(counts)})


def small_pages(result, rounds, seconds):
    """One rail, 4 KiB pages: the rate, and the component that limits it."""
    with Engines(1, qps=8) as engines:
        both = {"in sequence": [engines.stream(4 << 10, 16, seconds) for _ in range(rounds)],
                "anywhere": [engines.stream(4 << 10, 16, seconds, more=["--anywhere"])
                             for _ in range(rounds)]}
    alone = [bare(4 << 10, seconds, "--heads", "--qps", "8", "--model", NO_LIMIT)
             for _ in range(rounds)]
    charged = [bare_modelled(4 << 10, seconds) for _ in range(rounds)]
    nic = median(alone, "nic_ns_per_wqe")
    for where, goal in (("in sequence", 10e6), ("anywhere", 8e6)):
        rows = both[where]
        poll, client = median(rows, "pages_per_s"), 1e9 / median(rows, "client_ns")
        limit = "the poll core" if poll < client else "the client's thread"
        result.figure(f"one rail, 4 KiB pages {where}: min(one poll core, client thread)",
                      min(poll, client), "pages/s",
                      f"modelled, charged; median of {rounds}; {limit} limits; the poll core "
                      f"{poll:.0f}, busy {median(rows, 'busy'):.0%}; the client {client:.0f}; by "
                      f"the wall clock {wall(rows, 'pages_per_s'):.0f}", (">=", goal))
        result.figure(f"one rail, 4 KiB pages {where}, one poll core alone", poll, "pages/s",
                      f"modelled, charged; median of {rounds}")
        result.figure(f"one rail, 4 KiB pages {where}, the poll core's busy time for a page",
                      1e9 * median(rows, "busy") / poll, "ns",
                      "modelled; without the software NIC's own time")
    result.figure("one rail, 4 KiB pages, bare loop", median(charged, "reads_per_s"), "pages/s",
                  f"modelled, charged; median of {rounds}; one thread of dv/hot.h, page and head")
    result.figure("software NIC and model alone, a WQE", nic, "ns",
                  f"modelled, no link limit, no payload; median of {rounds}; a page needs two WQEs")
    result.figure("dv/hot.h alone, a WQE", median(alone, "ns_per_wqe") - nic, "ns",
                  "modelled; the bare loop without the NIC's step")


def against_bare(result, sizes, rounds, seconds):
    for modelled in (True, False):
        model = ["--leave-out", "--model", BARE_MODEL + CHARGES] if modelled else []
        ratios = {}
        with Engines(1, modelled) as engines:
            for page in sizes:
                key = "both_gbps" if modelled else "gbps"
                pairs = [(engines.stream(page, 2, seconds)[key],
                          bare(page, seconds, *model)["gbps"]) for _ in range(rounds)]
                ratios[page] = statistics.median(e / b for e, b in pairs)
                print(f"engine / bare loop, {size(page)}: {ratios[page]:.3f} {pairs}", flush=True)
        name = "modelled link, charged" if modelled else "real bytes"
        worst = min(ratios, key=ratios.get)
        result.figure(f"engine / bare loop, {name}", ratios[worst], "ratio",
                      f"{'modelled; ' if modelled else ''}one rail, {size(sizes[0])} to "
                      f"{size(sizes[-1])}: the worst, at {size(worst)}; median of {rounds} pairs",
                      (">=", 0.97))
        if len(sizes) > 1:
            result.series(f"bare-{'model' if modelled else 'bytes'}", f"engine / bare loop, {name}",
                          "page, KiB", "ratio (modelled)" if modelled else "ratio",
                          [page >> 10 for page in sizes],
                          {"engine / bare loop": [ratios[page] for page in sizes]})


def grid(result, seconds):
    """Measures every number of rails with every page size, for the plots."""
    streamed, bares, alone, clients = {}, {}, {}, {}
    for rails in RAILS:
        with Engines(rails) as engines:
            for page in SIZES:
                streamed[rails, page] = engines.stream(page, in_flight(page), seconds)["both_gbps"]
                bares[rails, page] = bare_modelled(page, seconds, rails)["gbps"]
                alone[rails, page] = engines.stream(page, 1, seconds)["p50_us"]
                print(f"{rails} rails, {size(page)}: {streamed[rails, page]:.1f} GB/s, alone "
                      f"{alone[rails, page]:.1f} us", flush=True)
            for count in CLIENTS:
                clients[rails, count] = engines.stream(128 << 10, 4, seconds, count)["both_gbps"]
    sizes = [page >> 10 for page in SIZES]
    result.series("saturate", "one client streaming batches of 32: min(poll cores, client)",
                  "page, KiB", "GB/s (modelled)", sizes, {
                      **{f"{r} rails": [streamed[r, p] for p in SIZES] for r in RAILS},
                      **{f"bare loop, {r}": [bares[r, p] for p in SIZES] for r in (1, 8)}})
    result.series("saturate-128k", "128 KiB pages", "rails", "GB/s (modelled)", RAILS, {
        **{f"{c} clients": [clients[r, c] for r in RAILS] for c in CLIENTS},
        "ceiling": [r * CEILING for r in RAILS]})
    result.series("saturate-alone", "a lone batch of 32", "page, KiB", "us, median (modelled)",
                  sizes, {f"{r} rails": [alone[r, p] for p in SIZES] for r in RAILS})


def main():
    options = bench.parse(__doc__)
    rounds, seconds = (1, 0.4) if options.quick else (5, 1)
    seconds = float(os.environ.get("PEERCACHE_SATURATE_S", seconds))
    Engines.patient = not options.quick
    result = bench.Result("saturate", modelled=True)
    text = f"median of {rounds} runs of {seconds} s"
    # 4 rails on one poll core load it like 8 rails on two.
    for rails in (4, 8) if options.quick else (1, 4, 8):
        page = 128 << 10
        with Engines(rails) as engines:
            rows = [engines.stream(page, in_flight(page), seconds) for _ in range(rounds)]
            alone = [bare_modelled(page, seconds, rails) for _ in range(rounds)]
        if rails == 8:
            goal_in_situ(result, rows, [client_alone() for _ in range(rounds)], text)
        lone_batches(result, rails, rounds, seconds, text)
        with Engines(rails, charged=False) as engines:
            free = [engines.stream(page, in_flight(page), seconds) for _ in range(rounds)]
        goal_stream(result, rows, free, alone, rails, text)
    rates(result, 1 if options.quick else 3, seconds)
    small_pages(result, rounds, seconds)
    against_bare(result, [128 << 10] if options.quick else BARE, rounds, seconds)
    if not options.quick:
        processes(result, PROCESSES, seconds)
        grid(result, 0.5)
    result.note(f"Modelled: {GBPS}G RoCE v2 ports, MTU {MTU}, {HEADER} bytes of headers and gap "
                f"per packet, RTT {RTT_NS} ns, 16 READs and 2.5 M messages/s per queue pair. "
                "Payload is not moved; page heads are, so every page is validated. Charged: the "
                f"poll core pays {DOORBELL_NS} ns for a doorbell and {LINE_NS} ns for each CQE and "
                "page head, which a software NIC does not cost.")
    result.note(f"{os.cpu_count()} hardware threads run the client, {CORES} poll core(s) and the "
                "NICs that the poll cores step. The clock of the modelled ports stands still while "
                "they are stepped, the client's does not: perf/README.md.")
    result.note(f"Pages that were no hit: {Engines.misses}. If the machine preempts a poll core "
                "for milliseconds, the engine treats its rails as stalled. It waited for a "
                f"processor for at most {Engines.waited:.1%} of a measurement.")
    result.write(options.json)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
