# SPDX-License-Identifier: Apache-2.0
"""An HTTP server that serves the dashboard as the engine does, with fabricated answers.

Answers have the shape of the engine's (test_engine.py compares them), with the names of
figures.def. Each status is of a second after the one before, whenever it is requested.
"""

import http.server
import itertools
import json
import os
import re
import sys
import threading
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "engine", "control", "observe"))
import dashboard  # noqa: E402

FOLDER = os.path.join(ROOT, "engine", "control", "observe", "dashboard")


def listed(path, *macros):
    """Names in the lines of a list of the engine that begin with one of `macros`."""
    with open(os.path.join(ROOT, "engine", path), encoding="utf-8") as file:
        return re.findall(rf"(?m)^(?:{'|'.join(macros)})\((?:gauge, |counter, )?(\w+),",
                          file.read())


FIGURES = "control/observe/figures.def"
COUNTERS = listed("abi/counter.def", "COUNTER")
COLUMNS = ["unix_ms", *listed(FIGURES, "PLOTTED")]
RESULTS = "hit miss stale unreachable timeout no_space other".split()
GAPS = [0] + [n << (e - 1) for e in range(6, 21) for n in (2, 3)] + [1 << 21]
UPTIME_MS = 5 * 3600 * 1000  # of the fabricated engine when the server starts


def figures(macro, **given):
    """Every figure of the list: as given, else 0."""
    names = listed(FIGURES, *macro.split())
    assert given.keys() <= set(names), given.keys() - set(names)
    return dict.fromkeys(names, 0) | given


def member(number, **different):
    return {"name": f"node-{number:02}", "incarnation": f"{number:016x}",
            "address": f"10.0.{number // 250}.{number % 250 + 1}", "port": 31998, "rails": 8,
            "self": number == 0, "state": "up", "state_ms": 0, "software": "0.1.0",
            "links": 2 * (number != 0), "heard_ms": 40, "suspect": "", "served_ms": 900,
            "probe_served_ms": 100, "probe_unserved_ms": 0, "unserved_ms": 0, "queued": 0,
            "unacknowledged": 0, "unawaited": 0, "behind": False, **different}


def rail(number, rate):
    latency = {"p50_ns": 14336, "p99_ns": 57344, "p999_ns": 114688}
    return {"device": f"mlx5_{number}", "poll_core": number, "core": 8 + number,
            "node": number // 4, "busy": True, "isolated": True, "modelled": False,
            "registered_bytes": 257 << 30, "pages": 98304, "pool_bytes": 256 << 30,
            "pool_used_bytes": 201 << 30, "state": "up",
            "figures": figures("RAIL", rail_link_bytes_per_second=50 * 10 ** 9,
                               rail_pool_bytes=256 << 30, rail_pool_used_bytes=201 << 30,
                               rail_pages=98304, rail_in_flight_operations=64),
            "recent": figures("RECENT_RAIL", rail_read_bytes_per_second=rate,
                              rail_read_p99_seconds=5.7e-5, rail_pool_used_ratio=0.785),
            "read_latency": latency, "counters": dict.fromkeys(COUNTERS, 0)}


def poll_core(seconds):
    return {"rails": 1, "age_ns": int(seconds * 1e9),
            "figures": figures("CORE", poll_core_gaps_over_10us_total=3),
            "recent": figures("RECENT_CORE", poll_core_busy_ratio=0.41),
            "gaps_from_ns": {str(ns): int(seconds * 1e5) if ns == 512 else 0 for ns in GAPS}}


def calls(seconds, batches):
    pages = batches * 32
    one = {"batches": int(batches * seconds), "pages": int(pages * seconds),
           **dict.fromkeys(RESULTS, 0), "p50_ns": 114688, "p99_ns": 524288, "p999_ns": 1835008}
    one["hit"] = int(pages * seconds * 0.93)
    one["miss"] = one["pages"] - one["hit"]
    return one


def recent(**different):
    return figures("RECENT PLOTTED", **{
        "seconds": 10, "get_bytes_per_second": 21.4e9, "set_bytes_per_second": 3.1e9,
        "get_pages_per_second": 46400, "get_batches_per_second": 1450,
        "set_batches_per_second": 310, "exists_batches_per_second": 900, "get_hit_ratio": 0.93,
        "get_local_ratio": 0.353, "get_remote_ratio": 0.577, "exists_hit_ratio": 0.93,
        "exists_usable_ratio": 0.881, "eviction_age_seconds": 10800, "again_soon_ratio": 0.012,
        "get_p50_seconds": 1.1e-4, "get_p99_seconds": 5.2e-4, "get_p999_seconds": 1.8e-3,
        "set_p50_seconds": 1.4e-4, "set_p99_seconds": 7.2e-4, "set_p999_seconds": 1.9e-3,
        "exists_p50_seconds": 2.4e-5, "exists_p99_seconds": 1.2e-4, "exists_p999_seconds": 3e-4,
        "evicted_pages_per_second": 412, "pool_bytes": 2048 << 30,
        "pool_used_bytes": 1608 << 30, "pool_used_ratio": 0.785, "directory_used_ratio": 0.381,
        "loop_lag_p99_seconds": 6.5e-5, **different})


def status(seconds, members=3, rails=8):
    """`seconds`: how long the engine runs."""
    return {
        "name": "node-00", "version": "0.1.0", "abi": 7, "wire": 5, "cluster": "prod",
        "security": "key", "unsecured": False,
        "incarnation": "00000000000000aa", "pid": 4242,
        "time_ms": int(time.time() * 1000), "age_ms": 240, "uptime_ms": int(seconds * 1000),
        "control_core": 7, "settings": {"engine.name": "node-00", "cluster.replicas": "2"},
        "health": {"worst": "ok", "findings": []},
        "figures": figures("SCALAR", pages=786432, directory_entries=3200000,
                           directory_capacity_entries=8388608),
        "recent": recent(members_up=members), "keys": 786432, "map_epoch": 0,
        "shard": {"entries": 3200000, "capacity": 8388608},
        "members": [member(i) for i in range(members)], "members_down": [], "members_unlisted": 0,
        "members_down_unlisted": 0, "seeds_silent": [], "engines_refused": [],
        "rails": [rail(i, 1.72e9) for i in range(rails)],
        "poll_cores": [poll_core(seconds) for _ in range(rails)],
        "counters": dict.fromkeys(COUNTERS, 0),
        "directory": {"dropped": 0, "walk_position": 0, "walk_end": 0,
                      "sweep_left": 0},
        "disk": {"pages": 0, "used_bytes": 0, "spills": 0, "promotes": 0, "pins": 0, "paths": []},
        "groups": [], "groups_more": False,
        "drain": {"state": "", "pages": 0, "left": 0, "copied": 0, "copied_bytes": 0, "unfit": 0,
                  "gone": 0},
        "calls": {"get": calls(seconds, 1450), "set": calls(seconds, 310),
                  "exists": calls(seconds, 900), "remove": calls(seconds, 0)},
        "loop_lag": {"p50_ns": 3072, "p99_ns": 65536, "p999_ns": 131072,
                     "from_ns": {"2560": 9}},
    }


def wave(i, period):
    """0 to 1 and back, with a little roughness: always the same."""
    x = (i % period) / period
    return (1 - abs(2 * x - 1)) * 0.9 + (i * 7919 % 101) / 1010


def history(points=720, members=3, rails=8, joined=(), died=()):
    """`joined`, `died`: numbers of the points in which a member did."""
    now = int(time.time() * 1000)
    rows = []
    for i in range(points):
        busy = 0.4 + 0.6 * wave(i, 310)
        local, remote = 0.3 + 0.1 * wave(i, 90), 0.45 + 0.12 * wave(i, 170)
        point = figures("PLOTTED", get_bytes_per_second=24e9 * busy,
                        set_bytes_per_second=3.4e9 * busy, get_pages_per_second=46000 * busy,
                        get_hit_ratio=local + remote, get_local_ratio=local,
                        get_remote_ratio=remote, get_p50_seconds=(95 + 30 * busy) / 1e6,
                        get_p99_seconds=(400 + 500 * busy) / 1e6,
                        set_p99_seconds=(900 + 700 * busy) / 1e6,
                        exists_p99_seconds=(60 + 20 * busy) / 1e6,
                        evicted_pages_per_second=400 * busy, pool_used_ratio=0.78,
                        members_joined=int(i in joined), members_died=int(i in died),
                        members_up=members)
        rows.append([now - (points - 1 - i) * 5000, *point.values()] + [3e9 * busy] * rails)
    return {"seconds": 5,
            "columns": COLUMNS + [f"rail_{r}_bytes_per_second" for r in range(rails)],
            "points": rows}


def finding(answer, id, severity, text):
    """Adds a finding as the engine does."""
    answer["health"]["findings"].append({"id": id, "severity": severity, "text": text})
    order = ["ok", "info", "warning", "critical"]
    answer["health"]["worst"] = max(answer["health"]["worst"], severity, key=order.index)


SHOWN_MAX = 64


def batches(get, exists):
    """What /api/cluster has of calls; `get`, `exists`: numbers of batches."""
    times = {"p50": 114688e-9, "p99": 524288e-9, "p999": 1835008e-9}
    return {name: value for call, count in (("get", get), ("set", get), ("exists", exists))
            for name, value in ((f"{call}_batches", count),
                                *((f"{call}_{p}_seconds", seconds if count else -1)
                                  for p, seconds in times.items()))}


def summary(**different):
    return {"findings": 0, "uptime_s": 18000, "rails": 8, "rails_up": 8, "members_up": 200,
            "members_down": 0, "pool_used_ratio": 0.785, "directory_used_ratio": 0.381,
            "get_hit_ratio": 0.93,
            "get_bytes_per_second": 21400000000, "set_bytes_per_second": 3100000000,
            "get_pages_per_second": 46400, "evicted_pages_per_second": 412, "moving": False,
            "behind": False, "stopping": False, **batches(14500, 0), **different}


def cluster_row(number, **different):
    return {"name": f"node-{number:03}", "self": number == 0, "state": "up", "state_ms": 0,
            "software": "0.1.0", "severity": "ok", "finding": "", "why": "", "age_ms": 700,
            "dashboard": f"http://10.0.{number // 256}.{number % 256}:31997/",
            "summary": summary(), **different}


def bad_rows():
    """Rows of a large cluster that are not well, in the engine's order."""
    found = summary(findings=3, rails_up=7)
    return [cluster_row(1, severity="critical", finding="rail_lost", summary=found),
            cluster_row(2, state="down", state_ms=97000, severity="warning",
                        finding="member_down", age_ms=99000),
            cluster_row(3, state="silent", state_ms=4000, severity="warning",
                        finding="member_silent", why="unanswered", age_ms=4800),
            cluster_row(4, severity="warning", finding="made_up_later",
                        summary=summary(findings=1)),
            cluster_row(5, severity="info", finding="directory_moving",
                        summary=summary(findings=1, moving=True)),
            cluster_row(6, severity="warning", why="unanswered", age_ms=5000),
            cluster_row(7, why="waiting", age_ms=-1, summary=None)]


def others(rows):
    return {severity: sum(not row["self"] and row["state"] == "up" and row["severity"] == severity
                          for row in rows) for severity in ("info", "warning", "critical")}


def cluster(members=3, bad=False):
    """/api/cluster with its rows: all well, or with one of each thing that may be wrong."""
    rows = bad_rows() if bad else []
    rows += [cluster_row(n) for n in range(members) if n == 0 or n > len(rows)]
    rows = rows[:min(SHOWN_MAX, members)]
    down, silent = (sum(row["state"] == state for row in rows) for state in ("down", "silent"))
    answered = members - sum(row["summary"] is None or row["state"] == "down" for row in rows)
    one = cluster_row(0)["summary"]
    sums = ("get_bytes_per_second", "set_bytes_per_second", "get_pages_per_second",
            "evicted_pages_per_second")
    return {"age_ms": 120, "up": members - down - silent, "silent": silent, "down": down,
            "members": members, "others": others(rows), "shown": len(rows), "asked": answered,
            "rows": rows,
            "totals": {**{name: one[name] * answered for name in sums},
                       "get_hit_ratio": one["get_hit_ratio"] if answered else -1,
                       "rails": 8 * answered, "rails_up": 8 * answered - bad, "moving": int(bad),
                       "behind": 0, **batches(14500 * answered, 0)}}


class Fake:
    """
    Serves the page. `change(answer)` alters each answer of /api/status, `refuse` is the text of a
    503, `cluster()` makes the answer of /api/cluster; None: a 404.
    """

    def __init__(self, members=3, rails=8):
        self.members, self.rails, self.change, self.refuse = members, rails, None, None
        self.points, self.asked, self.seconds = 720, [], itertools.count()
        self.joined, self.died = (), ()
        self.cluster = lambda: cluster(members)
        fake = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                fake.asked.append(self.path)
                code, kind, body, policy = fake.answer(self.path)
                self.send_response(code)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.send_header("Cache-Control", "no-store")
                if policy:
                    self.send_header("Content-Security-Policy", policy)
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_):
                pass

        class Server(http.server.ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, *_):
                pass  # a page that was closed breaks its connection

        self.page, self.policy = dashboard.make(FOLDER)
        self.server = Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/"
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()

    def close(self):
        """From here on connections are refused."""
        if self.server:
            self.server.shutdown()
            self.server.server_close()
            self.server = None

    def answer(self, path):
        if path == "/":
            return 200, "text/html; charset=utf-8", self.page, self.policy
        if path.startswith("/api/") and self.refuse:
            return 503, "text/plain; charset=utf-8", self.refuse.encode(), ""
        if path == "/api/status":
            answer = status(UPTIME_MS / 1000 + next(self.seconds), self.members, self.rails)
            if self.change:
                self.change(answer)
            return 200, "application/json", json.dumps(answer).encode(), ""
        if path == "/api/cluster" and self.cluster:
            return 200, "application/json", json.dumps(self.cluster()).encode(), ""
        if path == "/api/history":
            answer = history(self.points, self.members, self.rails, self.joined, self.died)
            return 200, "application/json", json.dumps(answer).encode(), ""
        return 404, "text/plain", b"not here", ""
