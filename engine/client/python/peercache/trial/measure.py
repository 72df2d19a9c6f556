# SPDX-License-Identifier: Apache-2.0
"""Reads pages through the engines of the trial, beside memcpy and the vendor's tools. Main thread.

Every page is one of `peercache-bench`, which knows its bytes: a wrong one is "no" and ends it.
"""

import glob
import itertools
import json
import os
import re
import resource
import subprocess
import sys
import time
from typing import Any, Optional

from peercache.trial import host
from peercache.trial.engines import Engines, free_port
from peercache.trial.frame import Answer, Failed, Trial, Unknown

KIB = 1024
PAGES = (4 * KIB, 128 * KIB, 1024 * KIB)
BATCHES = (1, 32, 128)
QUICK = ((4 * KIB, 128), (128 * KIB, 32), (1024 * KIB, 1))
PROCESSES = (2, 4)
MISSES = ("pages that were stored a moment before are misses: read the logs of the engines in the "
          "report")
MISSES_ONE_IN = 1000  # pages: more are "no"; a busy host loses a connection now and then
PEER_SECONDS = 600.0  # in which the peer comes to the same step
MARGIN = 180.0  # seconds for a measurement beyond its own


def start(trial: Trial, engines: Engines) -> Answer:
    took = [engines.start(i) for i in range(engines.count)]
    joined = engines.wait_members(2, 600 if trial.options.peer else 30)
    return Answer("yes", f"served after {' and '.join(f'{s:.1f}' for s in took)} s, saw each other "
                  f"{joined:.1f} s later, on {' and '.join(engines.devices)}",
                  data={"start_s": took, "join_s": joined,
                        "status": [engines.status(i) for i in range(engines.count)]})


def take(name: str) -> dict[str, Any]:
    """The results that a run has left."""
    with open(name, encoding="utf-8") as file:
        found: dict[str, Any] = json.load(file)
    os.remove(name)
    return found


def bench(trial: Trial, engines: Engines, *words: str, log: str = "bench.log") -> dict[str, Any]:
    """One run of peercache-bench. Raises Failed if a page is wrong or none was read."""
    name = trial.path("bench.json")
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    before, begun = engines.cpu_seconds(), time.monotonic()
    status, _ = trial.run([trial.program("peercache-bench"), *words, "--sockets",
                           ",".join(engines.sockets), "--json", name], log,
                          trial.options.seconds + MARGIN)
    wall = time.monotonic() - begun
    if status not in (0, 1) or not os.path.exists(name):
        raise Failed(f"peercache-bench ended with {status}: {trial.tail(log)}",
                     f"read {log} and the logs of the engines in the report")
    found = take(name)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    found["client_cpu_s"] = after.ru_utime + after.ru_stime - used.ru_utime - used.ru_stime
    found["engines_cpu_s"] = [b - a for a, b in zip(before, engines.cpu_seconds())]
    found["wall_s"] = wall
    if found.get("wrong"):
        raise Failed(f"{found['wrong']} pages had WRONG BYTES", "do not go on with this setup: "
                     "send us the report; rail.validate=crc compares each page with its CRC32C")
    return found


def pairs(trial: Trial) -> list[tuple[int, int]]:
    """Page bytes and batches; a batch that fills the pool would evict itself."""
    return [(page, batch) for page, batch in (
        QUICK if trial.options.quick else itertools.product(PAGES, BATCHES))
        if page * batch <= trial.options.working_set]


def read_bytes(trial: Trial, engines: Engines, *more: str, turn: int = 0) -> Answer:
    """Throughput and latency by page size and batch, with memcpy in the same run. turn: each has
    keys of its own, because those of the last one may still be there."""
    engines.need()
    rows: list[dict[str, Any]] = []
    for page, batch in pairs(trial):
        words = ["get", "--verify", "--page-bytes", str(page), "--batch", str(batch), "--seconds",
                 str(trial.options.seconds), "--working-set", str(trial.options.working_set), *more]
        rows.append(bench(trial, engines, *words, *(["--seed", str(page + turn)] if more else [])))
        trial.facts["bytes"] = rows
        row = rows[-1]
        trial.say(f"    {page // KIB} KiB x {batch}: {row['gbps']:.2f} GB/s, memcpy "
                  f"{row['memcpy_gbps']:.2f}, p50 {row['p50_us']:.1f} us")
    local = sum(row["hits_local"] for row in rows)
    if local:
        raise Failed(f"{local} pages were read on the host itself, not over the NIC",
                     "send us the report")
    misses = sum(row["misses"] for row in rows)
    pages = sum((row["calls"] + row["missed_calls"]) * row["batch"] for row in rows)
    # with the fallback, a page that came wrong is a miss
    many = misses * MISSES_ONE_IN > pages and not trial.facts.get("fallback")
    best = max(rows, key=lambda row: float(row["gbps"]))
    text = (f"at most {best['gbps']:.2f} GB/s ({best['page_bytes'] // KIB} KiB x {best['batch']}), "
            f"memcpy beside it {best['memcpy_gbps']:.2f}; a call of {rows[0]['batch']} x "
            f"{rows[0]['page_bytes'] // KIB} KiB: p50 {rows[0]['p50_us']:.1f} us, p99.9 "
            f"{rows[0]['p999_us']:.1f} us; {misses} misses of {pages} pages, 0 wrong")
    return Answer("no" if many else "yes", text, MISSES if misses else "", rows)


def with_peer(trial: Trial, engines: Engines, turn: int) -> Answer:
    """One host reads what the other stores; in the second turn the other way round."""
    engines.need()
    served, done = f"trial-served-{turn}", f"trial-done-{turn}"
    if trial.options.first == (turn == 0):
        engines.wait_key(served, PEER_SECONDS)
        try:
            return read_bytes(trial, engines, "--stored", turn=turn)
        finally:
            engines.put(0, done)
    servers = []
    try:
        for page in sorted({page for page, _ in pairs(trial)}):
            name = f"serve-{turn}-{page}.log"
            servers.append(trial.start(
                [trial.program("peercache-bench"), "serve", "--sockets", engines.sockets[0],
                 "--page-bytes", str(page), "--seed", str(page + turn), "--working-set",
                 str(trial.options.working_set)], name))
            begun = time.monotonic()
            while "serving" not in trial.whole(name):
                if servers[-1].poll() is not None or time.monotonic() > begun + MARGIN:
                    raise Failed(f"peercache-bench serve does not serve: {trial.tail(name)}",
                                 f"read {name} of the report")
                time.sleep(.05)
        engines.put(0, served)
        seconds = engines.wait_key(done, PEER_SECONDS)
    finally:
        for server in servers:
            trial.end(server, 15)
    return Answer("yes", f"the peer read for {seconds:.0f} s; the figures are in its report")


def part(trial: Trial, engines: Engines) -> Answer:
    """Both hosts wait for each other before their engines end."""
    engines.need()
    mine, theirs = ("a", "b") if trial.options.first else ("b", "a")
    engines.put(0, f"trial-end-{mine}")
    try:
        engines.wait_key(f"trial-end-{theirs}", PEER_SECONDS)
    except Failed:
        if len(engines.status(0)["members"]) > 1:
            raise
        return Answer("yes", "the peer has ended")  # it saw this one's key first
    return Answer("yes", "the peer is at its end, too")


def processes(trial: Trial, engines: Engines) -> Answer:
    """Several client processes at a time, 128 KiB in batches of 32."""
    engines.need()
    rows = []
    for count in PROCESSES[:1] if trial.options.quick else PROCESSES:
        files = [trial.path(f"process-{i}.json") for i in range(count)]
        each = trial.options.working_set // count
        words = [trial.program("peercache-bench"), "get", "--no-baseline", "--seconds",
                 str(trial.options.seconds), "--working-set", str(each), "--sockets",
                 ",".join(engines.sockets), "--json"]
        children = [trial.start([*words, file], "bench.log") for file in files]
        try:
            ended = [child.wait(trial.options.seconds + MARGIN) for child in children]
        except subprocess.TimeoutExpired:
            raise Failed(f"one of {count} processes of peercache-bench did not end",
                         "read bench.log of the report") from None
        finally:
            for child in children:
                trial.end(child, 1)
        if not all(map(os.path.exists, files)):
            raise Failed(f"{count} processes of peercache-bench ended with {ended}: "
                         f"{trial.tail('bench.log')}", "read bench.log of the report")
        found = [take(file) for file in files]
        rows.append({"processes": count, "gbps": sum(f["gbps"] for f in found),
                     "wrong": sum(f["wrong"] for f in found),
                     "misses": sum(f["misses"] for f in found),
                     "p999_us": max(f["p999_us"] for f in found)})
    trial.facts["processes"] = {row["processes"]: row for row in rows}
    if any(row["wrong"] for row in rows):
        raise Failed("pages had WRONG BYTES", "do not go on with this setup: send us the report")
    misses = sum(row["misses"] for row in rows)
    return Answer("no" if misses and not trial.facts.get("fallback") else "yes", "; ".join(
        f"{row['processes']} processes {row['gbps']:.2f} GB/s, worst "
                                   f"p99.9 {row['p999_us']:.0f} us" for row in rows) +
                  f"; {misses} misses", MISSES if misses else "", rows)


# ---- churn -------------------------------------------------------------------------------------


def at_half(log: str) -> bool:
    """Has a replay shown that it is at half of its requests?"""
    shown = re.findall(r"\] (\d+)/(\d+) requests", log)
    return bool(shown) and 2 * int(shown[-1][0]) >= int(shown[-1][1])


def replay(trial: Trial, engines: Engines, seed: int, kill: bool) -> dict[str, Any]:
    """Requests of conversations whose pages do not fit: each byte that is read is verified. kill:
    an engine, at half of them."""
    requests, name = 200 if trial.options.quick else 1000, trial.path("replay.json")
    log = f"replay-{seed}.log"
    words = [trial.program("peercache-bench"), "replay", "--requests", str(requests), "--seed",
             str(seed)]
    blocks = trial.document([*words, "--describe"], log, 60)["different_blocks"]
    page = 6 * trial.options.pool_bytes // blocks // 4096 * 4096  # three times what the pools hold
    child = trial.start([*words, "--page-bytes", str(min(max(page, 4096), 1 << 20)), "--sockets",
                         ",".join(engines.sockets), "--json", name], log)
    took = None
    try:
        begun = time.monotonic()
        while child.poll() is None:
            if kill and took is None and at_half(trial.whole(log)):
                took = engines.crash(1)
            if time.monotonic() > begun + 10 * MARGIN:
                raise Failed("peercache-bench replay does not end", f"read {log} of the report")
            time.sleep(.01)
    finally:
        status = trial.end(child, 2)
    if not os.path.exists(name):
        raise Failed(f"peercache-bench replay ended with {status}: {trial.tail(log)}",
                     f"read {log} of the report")
    return {**take(name), "killed": took is not None}


def churn(trial: Trial, engines: Engines) -> Answer:
    """Verified reads while pages are evicted and an engine is killed, for --minutes."""
    engines.need()
    begun, rows = time.monotonic(), []
    while not rows or time.monotonic() < begun + 60 * trial.options.minutes:
        rows.append(replay(trial, engines, len(rows) + 1, kill=not rows))
        if rows[-1]["wrong"]:
            break
    total = {key: sum(row[key] for row in rows) for key in (
        "hits", "hits_remote", "wrong", "late", "stale", "evictions", "timeouts", "unreachable",
        "killed")}
    trial.facts["churn"] = total
    text = (f"{total['hits']} pages read and verified, {total['hits_remote']} of the other engine, "
            f"beside {total['evictions']} evictions and {total['killed']} kills: {total['wrong']} "
            f"wrong, {total['stale']} stale (misses), {total['late']} calls late")
    if total["wrong"]:
        raise Failed(f"WRONG BYTES: {text}", "do not go on with this setup: send us the report")
    if total["late"]:
        raise Failed(text, "send us the report: calls came later than their deadline")
    if not total["evictions"] or not total["hits_remote"]:
        raise Unknown(f"nothing was evicted, or nothing read from the other engine: {text}",
                      "give a smaller --pool-bytes")
    return Answer("yes", text, data=rows)


def store(trial: Trial, engines: Engines) -> str:
    """Stores a page through the second engine that the first one reads. Returns its key. Raises
    Failed. With the fallback, a page that came wrong is a miss."""
    key = f"trial-{time.time_ns()}"
    engines.put(1, key)
    if not any(engines.has(0, key) for _ in range(10 if trial.facts.get("fallback") else 1)):
        raise Failed("a page that was stored a moment before is a miss", MISSES)
    return key


def restart(trial: Trial, engines: Engines) -> Answer:
    """An engine is killed: when does the other host read its pages again?"""
    engines.need()
    key, begun = store(trial, engines), time.monotonic()
    ready = engines.crash(1)
    engines.until(lambda: engines.has(0, key), 60, lambda: "60 s after an engine was killed its "
                  "page is still a miss")
    trial.facts["restart_s"] = first = time.monotonic() - begun
    return Answer("yes", f"killed, ready after {ready:.2f} s, its page read by the other engine "
                  f"after {first:.2f} s", data={"ready_s": ready, "first_hit_s": first})


def isolated(engines: Engines) -> bool:
    return all(rail["isolated"] for i in range(engines.count)
               for rail in engines.status(i)["rails"])


def cores(trial: Trial, engines: Engines) -> Answer:
    """What the poll cores have seen since the start."""
    engines.need()
    found = [core for i in range(engines.count) for core in engines.status(i)["poll_cores"]]
    gaps = sum(core["figures"]["poll_core_gaps_over_10us_total"] for core in found)
    worst = max(core["figures"]["poll_core_gap_worst_seconds"] for core in found)
    text = f"{gaps} gaps over 10 us on {len(found)} poll cores, the longest {worst * 1e6:.0f} us"
    if not isolated(engines):
        return Answer("unknown", f"{text}; they are not on isolated cores, so gaps are those of "
                      "the scheduler", "isolate cores (the doctor names how) and run --only "
                      "engines,bytes,cores", found)
    return Answer("no" if gaps else "yes", text, "read the findings of the doctor on interrupts "
                  "and moved tasks" if gaps else "", found)


def interrupts(trial: Trial, engines: Engines) -> Answer:
    """Which interrupts and threads take the poll cores from the engines while pages are read?"""
    engines.need()
    seconds = trial.options.seconds
    reads = trial.start([trial.program("peercache-bench"), "get", "--no-baseline", "--seconds",
                         str(seconds + 2), "--working-set", str(trial.options.working_set),
                         "--sockets", ",".join(engines.sockets)], "bench.log")
    try:
        status, out = trial.run([sys.executable, "-I", os.path.join(
            os.path.dirname(__file__), "trace-stalls"), "--json", "--seconds", str(seconds)],
            "stalls.log", seconds + MARGIN)
    finally:
        trial.end(reads, 2)
    if status:
        raise Unknown(trial.tail("stalls.log"), "run the trial as root on the host itself, not in "
                      "a container; the step before has the gaps without their causes")
    found = json.loads(out)
    rows = sorted((-row["worst_us"], row["count"], f"{row['who']} on {thread}")
                  for thread, causes in found["stalls"].items() for row in causes
                  if row["worst_us"] > 10)
    text = "; ".join(f"{who}: {count} times, at most {-worst:.0f} us"
                     for worst, count, who in rows[:5]) or "none took more than 10 us"
    if not rows:
        return Answer("yes", text, data=found)
    alone = isolated(engines)
    return Answer("no" if alone else "unknown", text + "; the poll cores are not isolated" *
                  (not alone), "isolate cores and move interrupts: the doctor names how", found)


def bytes_by_node(numa_maps: str) -> dict[str, int]:
    """Bytes of an engine's memfds, huge pages or not, on each NUMA node."""
    found: dict[str, int] = {}
    for line in numa_maps.splitlines():
        size = re.search(r"kernelpagesize_kB=(\d+)", line)
        if "/memfd:peercache" in line and size:
            for node, pages in re.findall(r" N(\d+)=(\d+)", line):
                found[node] = found.get(node, 0) + int(pages) * int(size[1]) * KIB
    return found


def pools(trial: Trial, engines: Engines) -> Answer:
    """Is the engines' memory on the NUMA nodes of their NICs?"""
    engines.need()
    rows, far = [], 0
    for i in range(engines.count):
        text = host.read(f"/proc/{engines.status(i)['pid']}/numa_maps")
        if text is None:
            raise Unknown("numa_maps of the engine cannot be read", "run the trial as root")
        near = {host.read(host.CLASS, name, "device", "numa_node") or "-1"
                for name in engines.devices[i].split(",")}
        if "-1" in near:
            raise Unknown(f"no hardware for it: {engines.devices[i]} names no NUMA node")
        lies = bytes_by_node(text)
        far += sum(n for node, n in lies.items() if node not in near)
        rows.append({"nics": sorted(near), "bytes": lies})
    said = "; ".join(f"NICs of node {', '.join(row['nics'])}: " + ", ".join(
        f"{n >> 20} MiB on node {node}" for node, n in sorted(row["bytes"].items()))
        for row in rows)
    if len(glob.glob("/sys/devices/system/node/node[0-9]*")) < 2:
        raise Unknown(f"no hardware for it: this host has one NUMA node; {said}")
    if far * 100 > sum(sum(row["bytes"].values()) for row in rows):
        return Answer("no", said, "free memory on the NICs' nodes before the engine starts, or "
                      "reserve huge pages there", rows)
    return Answer("yes", said, data=rows)


# ---- the vendor's tools ------------------------------------------------------------------------


def last_row(text: str) -> Optional[list[float]]:
    """The numbers of the last row of a table of perftest."""
    rows = [line.split() for line in text.splitlines()
            if re.fullmatch(r"[\d.\s]+", line) and len(line.split()) >= 4]
    return [float(word) for word in rows[-1]] if rows else None


def perftest(trial: Trial, tool: str, page: int, devices: tuple[str, str]) -> list[float]:
    """The row of one run of ib_read_bw or ib_read_lat. Raises Unknown if it is not installed."""
    port = str(free_port())
    words = [trial.program(tool), "-F", "-s", str(page), "-p", port,
             *(["-n", "1000"] if tool == "ib_read_lat" else
               ["-D", str(trial.options.seconds), "--report_gbits"])]
    server = trial.start([*words, "-d", devices[1]], f"{tool}.log")
    try:
        end = time.monotonic() + 10
        while True:  # the server listens a moment after its start
            status, out = trial.run([*words, "-d", devices[0], "127.0.0.1"], f"{tool}.log",
                                    trial.options.seconds + 30)
            row = last_row(out)
            if status == 0 and row:
                return row
            if time.monotonic() > end or server.poll() not in (None, 0):
                raise Unknown(f"{tool} gave no figures: {trial.tail(f'{tool}.log')}",
                              f"run {tool} by hand on these ports")
            time.sleep(.2)
    finally:
        trial.end(server, 3)


def vendor(trial: Trial, engines: Engines) -> Answer:
    """ib_read_bw and ib_read_lat on the same ports, in the same minutes."""
    if trial.options.devices == ["soft"]:
        raise Unknown("no hardware for it: perftest needs a ConnectX")
    pair = engines.devices[0].split(",")[0], engines.devices[1].split(",")[0]
    found: dict[str, Any] = {"read_gbps": {}, "read_us": {}}
    for page in PAGES[1:2] if trial.options.quick else PAGES:
        found["read_gbps"][page] = perftest(trial, "ib_read_bw", page, pair)[3] / 8
    for page in PAGES[:1] if trial.options.quick else PAGES[:2]:
        row = perftest(trial, "ib_read_lat", page, pair)
        found["read_us"][page] = {"typical": row[4], "p99": row[7], "p999": row[8]}
    trial.facts["vendor"] = found
    ours = {row["page_bytes"]: row["gbps"] for row in trial.facts.get("bytes", [])}
    text = ", ".join(
        f"ib_read_bw {page // KIB} KiB {rate:.2f} GB/s"
        + (f" (engine, {rate and ours[page] / rate:.2f} of it)" if page in ours else "")
        for page, rate in found["read_gbps"].items())
    text += "".join(f"; ib_read_lat {page // KIB} KiB {row['typical']:.1f} us, p99.9 "
                    f"{row['p999']:.1f}" for page, row in found["read_us"].items())
    return Answer("yes", text, data=found)
