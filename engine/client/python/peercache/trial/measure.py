# SPDX-License-Identifier: Apache-2.0
"""Reads pages through the engines of the trial, beside memcpy and the vendor's tools. Main thread.

Every page is one of `peercache-bench`, which knows its bytes: a wrong one is "no" and ends it.
"""

import json
import os
import re
import resource
import time
from typing import Any, Optional

from peercache.trial.engines import Engines, free_port
from peercache.trial.frame import Answer, Failed, Trial, Unknown

KIB = 1024
PAGES = (4 * KIB, 128 * KIB, 1024 * KIB)
BATCHES = (1, 32, 128)
QUICK = ((4 * KIB, 128), (128 * KIB, 32), (1024 * KIB, 1))
PROCESSES = (2, 4)
MARGIN = 180.0  # seconds for a measurement beyond its own


def start(trial: Trial, engines: Engines) -> Answer:
    took = [engines.start(i) for i in range(engines.count)]
    joined = engines.wait_members(2, 600 if trial.options.peer else 30)
    return Answer("yes", f"served after {' and '.join(f'{s:.1f}' for s in took)} s, saw each other "
                  f"{joined:.1f} s later, on {' and '.join(engines.devices)}",
                  data={"start_s": took, "join_s": joined,
                        "status": [engines.status(i) for i in range(engines.count)]})


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
    with open(name, encoding="utf-8") as file:
        found: dict[str, Any] = json.load(file)
    os.remove(name)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    found["client_cpu_s"] = after.ru_utime + after.ru_stime - used.ru_utime - used.ru_stime
    found["engines_cpu_s"] = [b - a for a, b in zip(before, engines.cpu_seconds())]
    found["wall_s"] = wall
    if found.get("wrong"):
        raise Failed(f"{found['wrong']} pages had WRONG BYTES", "do not go on with this setup: "
                     "send us the report; rail.validate=tail reads page heads after the payload")
    return found


def read_bytes(trial: Trial, engines: Engines) -> Answer:
    """Throughput and latency by page size and batch, with memcpy in the same run."""
    engines.need()
    rows = []
    pairs = QUICK if trial.options.quick else [(p, b) for p in PAGES for b in BATCHES]
    for page, batch in pairs:
        rows.append(bench(trial, engines, "get", "--page-bytes", str(page), "--batch", str(batch),
                          "--seconds", str(trial.options.seconds), "--working-set",
                          str(trial.options.working_set)))
        trial.facts["bytes"] = rows
        row = rows[-1]
        trial.say(f"    {page // KIB} KiB x {batch}: {row['gbps']:.2f} GB/s, memcpy "
                  f"{row['memcpy_gbps']:.2f}, p50 {row['p50_us']:.1f} us")
    local = sum(row["hits_local"] for row in rows)
    if local:
        raise Failed(f"{local} pages were read on the host itself, not over the NIC",
                     "send us the report")
    misses = sum(row["misses"] for row in rows)
    best = max(rows, key=lambda row: float(row["gbps"]))
    lone = rows[0]
    text = (f"at most {best['gbps']:.2f} GB/s ({best['page_bytes'] // KIB} KiB x {best['batch']}), "
            f"memcpy beside it {best['memcpy_gbps']:.2f}; a call of {lone['batch']} x "
            f"{lone['page_bytes'] // KIB} KiB: p50 {lone['p50_us']:.1f} us, p99.9 "
            f"{lone['p999_us']:.1f} us; {misses} misses, 0 wrong")
    if misses:
        return Answer("no", text, "pages that were stored a moment before are misses: read the "
                      "findings of the engines in the report (health)", rows)
    return Answer("yes", text, data=rows)


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
        found = []
        for child, file in zip(children, files):
            child.wait(trial.options.seconds + MARGIN)
            trial.end(child)
            with open(file, encoding="utf-8") as opened:
                found.append(json.load(opened))
            os.remove(file)
        rows.append({"processes": count, "gbps": sum(f["gbps"] for f in found),
                     "wrong": sum(f["wrong"] for f in found),
                     "misses": sum(f["misses"] for f in found),
                     "p999_us": max(f["p999_us"] for f in found)})
    if any(row["wrong"] for row in rows):
        raise Failed("pages had WRONG BYTES", "do not go on with this setup: send us the report")
    return Answer("yes", "; ".join(f"{row['processes']} processes {row['gbps']:.2f} GB/s, worst "
                                   f"p99.9 {row['p999_us']:.0f} us" for row in rows), data=rows)


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
    if trial.options.peer:
        raise Unknown("perftest over two hosts is not part of the trial: run ib_read_bw by hand")
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
