# SPDX-License-Identifier: Apache-2.0
"""An HTTP server that serves the dashboard as the engine does, with fabricated answers.

Answers have the shape of the engine's (test_engine.py compares them). Each status is of a second
after the one before, whenever it is requested, and its counters have grown by as much, from what a
long-lived engine had when the server started.
"""

import http.server
import itertools
import json
import os
import sys
import threading
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "engine", "control", "observe"))
import dashboard  # noqa: E402

FOLDER = os.path.join(ROOT, "engine", "control", "observe", "dashboard")
COUNTERS = """ops_taken ops_invalid pages_read pages_stale buckets_read bytes_read reads_failed
reads_timed_out wqes_posted doorbells cqes_reaped cqes_error qps_broken paths_out paths_back
connections_refused
rails_down rings_broken steps_idle sleeps poll_gaps_long poll_gap_worst_ns pages_published
pages_already pages_evicted credits_granted credits_refused entries_inserted entries_removed
entries_dropped entries_stale publishes_deferred sets_partial owners_suspected removes_dropped
pages_used_remotely messages_in messages_out messages_bad summaries_asked summaries_sent
clients_attached clients_refused clients_silent members_joined members_died
members_refused credits_late leases_expired disk_spills disk_drops
disk_drops_budget disk_drops_size disk_hits disk_promotes
disk_misses disk_hits_remote disk_asks disk_asks_failed disk_refused pages_adopted pages_scrubbed
pages_corrupt pages_reported reads_corrupt members_kept entries_kept pages_moving
members_claimed claims_refuted records_refused members_unserving
slots_differ entries_repaired entries_withdrawn relays_sent relays_passed relays_refused
joins_refused names_refused pages_unproven""".split()
DISK = """pages index_bytes bytes used_bytes bytes_written bytes_read errors paths_out spills
spill_bytes promotes promotes_waiting pins pinned_bytes""".split()
RESULTS = "hit miss stale unreachable timeout no_space other".split()
GAPS = [0] + [n << (e - 1) for e in range(6, 21) for n in (2, 3)] + [1 << 21]
COLUMNS = """unix_ms get_bytes_per_s set_bytes_per_s get_pages_per_s hit_local hit_remote
get_p50_us get_p99_us set_p99_us exists_p99_us evicted_per_s pool_used members_joined members_died
members_up""".split()
BUCKETS = 106
UPTIME_MS = 5 * 3600 * 1000  # of the fabricated engine when the server starts


def lower_ns(bucket):
    """As latency_lower_ns() of engine/abi/latency.h."""
    return 0 if bucket == 0 else (4 + (bucket - 1) % 4) << (8 + (bucket - 1) // 4)


def spread(peak, n):
    """Bucket counts around bucket `peak`: n in it, fewer to both sides, a long tail above."""
    counts = [0] * BUCKETS
    for distance in range(-4, 20):
        share = 0.5 ** abs(distance) if distance < 6 else 0.6 ** (distance + 6)
        counts[peak + distance] = int(n * share)
    return counts


def member(number, **different):
    return {"name": f"node-{number:02}", "incarnation": f"{number:016x}",
            "address": f"10.0.{number // 250}.{number % 250 + 1}", "port": 31998, "rails": 8,
            "self": number == 0, "state": "up", "state_ms": 0, "software": "0.1.0",
            "links": 2 * (number != 0), "heard_ms": 40, "suspect": "", "served_ms": 900,
            "probe_served_ms": 100, "probe_unserved_ms": 0, "unserved_ms": 0, "queued": 0,
            "unacknowledged": 0, "unawaited": 0, "behind": False, **different}


def rail(number, seconds, rate):
    counters = {**dict.fromkeys(COUNTERS, 0), "bytes_read": int(seconds * rate)}
    latency = {"p50_ns": 14336, "p99_ns": 57344, "p999_ns": 114688}
    return {"device": f"mlx5_{number}", "poll_core": number, "core": 8 + number,
            "node": number // 4, "busy": True, "isolated": True, "gbps": 400, "modelled": False,
            "pool_bytes": 256 << 30, "pool_used_bytes": 201 << 30, "registered_bytes": 257 << 30,
            "pages": 98304, "limbo": 12, "in_flight": 64, "state": "up", "peers_out": 0,
            "read_latency": latency, "counters": counters}


def poll_core(seconds):
    return {"rails": 1, "age_ns": int(seconds * 1e9), "busy_ns": int(seconds * 4.1e8),
            "spin_ns": int(seconds * 5.8e8), "nic_ns": 0, "gaps_over_10us": 3,
            "gap_worst_ns": 48211,
            "gaps_from_ns": {str(ns): int(seconds * 1e5) if ns == 512 else 0 for ns in GAPS}}


def calls(seconds, batches):
    pages = batches * 32
    one = {"batches": int(batches * seconds), "pages": int(pages * seconds),
           **dict.fromkeys(RESULTS, 0), "p50_ns": 114688, "p99_ns": 524288, "p999_ns": 1835008}
    one["hit"] = int(pages * seconds * 0.93)
    one["miss"] = one["pages"] - one["hit"]
    return one


def report(seconds, members, rails):
    """`seconds`: how long the engine runs."""
    get = calls(seconds, 1450)
    return {
        "name": "node-00", "version": "0.1.0", "abi": 7, "wire": 5, "cluster": "prod",
        "incarnation": "00000000000000aa", "pid": 4242, "life": 0,
        "time_ms": int(time.time() * 1000), "uptime_ms": int(seconds * 1000),
        "stopping": False, "control_core": 7,
        "members": [member(i) for i in range(members)], "members_down": [], "members_unlisted": 0,
        "members_down_unlisted": 0, "map_epoch": 71,
        "seeds": {"others": 1, "silent": 0, "unmet": False, "unmet_ms": 0, "named": []},
        "engines_refused": 0, "refused": [],
        "settings": {"engine.name": "node-00", "cluster.replicas": "2"},
        "rails": [rail(i, seconds, 1.72e9) for i in range(rails)],
        "poll_cores": [poll_core(seconds) for _ in range(rails)],
        "counters": {**dict.fromkeys(COUNTERS, 0), "pages_evicted": int(seconds * 412)},
        "shard": {"entries": 3200000, "capacity": 8388608, "dropped": 0},
        "directory": {"moving": False, "owners_behind": 0, "owners_suspect": 0,
                      "sets_partial": 0, "walk": "", "walk_position": 0, "walk_end": 0,
                      "sweep_left": 0}, "keys": 786432,
        "disk": dict.fromkeys(DISK, 0) | {"paths": []},
        "connections": {"asked": 504, "live": 504, "served": 504, "qps": 2016},
        "clients": {"sessions": 8, "channels": 32, "regions": 16, "extents": 16, "credits": 256,
                    "reserved": 0, "waiting": 0, "answers": 90210, "statistics_refused": 0},
        "calls": {"get": get, "set": calls(seconds, 310), "exists": calls(seconds, 900),
                  "remove": calls(seconds, 0), "get_local": int(get["hit"] * 0.38),
                  "get_remote": get["hit"] - int(get["hit"] * 0.38),
                  "get_bytes": int(seconds * 21.4e9), "get_staged_bytes": 0,
                  "set_bytes": int(seconds * 3.1e9), "set_present": 0, "reissued": 0,
                  "lookups": 7, "lookups_cached": 7},
        "loop_lag": {"p50_ns": 3072, "p99_ns": 65536, "p999_ns": 131072, "worst_ns": 400000},
    }


def status(seconds, members=3, rails=8):
    batches = int(seconds * 1000)
    return {"age_ms": 240, "health": {"worst": "ok", "findings": []},
            "latency": {"lower_ns": [lower_ns(i) for i in range(BUCKETS)],
                        "get": spread(26, batches), "set": spread(30, batches),
                        "exists": spread(18, batches), "loop": spread(8, batches),
                        "rails": [spread(16 + rail, batches) for rail in range(rails)]},
            "report": report(seconds, members, rails)}


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
        rows.append([now - (points - 1 - i) * 5000, 24e9 * busy, 3.4e9 * busy, 46000 * busy,
                     0.3 + 0.1 * wave(i, 90), 0.45 + 0.12 * wave(i, 170), 95 + 30 * busy,
                     400 + 500 * busy, 900 + 700 * busy, 60 + 20 * busy, 400 * busy, 0.78,
                     int(i in joined), int(i in died), members]
                    + [3e9 * busy] * rails)
    return {"seconds": 5, "columns": COLUMNS + [f"rail_{r}_bytes_per_s" for r in range(rails)],
            "points": rows}


def finding(answer, id, severity, text):
    """Adds a finding as the engine does."""
    answer["health"]["findings"].append({"id": id, "severity": severity, "text": text})
    order = ["ok", "info", "warning", "critical"]
    answer["health"]["worst"] = max(answer["health"]["worst"], severity, key=order.index)


SHOWN_MAX = 64
SUMMARY_BUCKETS = 54
COUNT_ONLY = {"count": 0, "p50_ns": 0, "p99_ns": 0, "p999_ns": 0}


def summary(**different):
    get = {"count": 14500, "p50_ns": 114688, "p99_ns": 524288, "p999_ns": 1835008}
    return {"findings": 0, "uptime_s": 18000, "rails": 8, "rails_up": 8, "members_up": 200,
            "members_down": 0, "pool_used_permille": 785, "directory_used_permille": 381,
            "hit_local_permille": 353, "hit_remote_permille": 577,
            "get_bytes_per_s": 21400000000, "set_bytes_per_s": 3100000000,
            "get_pages_per_s": 46400, "evictions_per_s": 412, "moving": False, "behind": False,
            "stopping": False, "get": get, "set": dict(get), "exists": dict(COUNT_ONLY),
            **different}


def cluster_row(number, **different):
    return {"name": f"node-{number:03}", "self": number == 0, "state": "up", "state_ms": 0,
            "software": "0.1.0", "severity": "ok", "finding": "", "why": "", "age_ms": 700,
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
    asked = members - sum(row["summary"] is None or row["state"] == "down" for row in rows)
    buckets = [0] * SUMMARY_BUCKETS
    buckets[20] = 14500 * asked
    one = cluster_row(0)["summary"]
    merged = {call: {**one[call], "count": one[call]["count"] * asked, "buckets": buckets}
              for call in ("get", "set", "exists")}
    sums = ("get_bytes_per_s", "set_bytes_per_s", "get_pages_per_s", "evictions_per_s")
    return {"age_ms": 120, "members": members, "up": members - down - silent,
            "silent": silent, "down": down, "others": others(rows), "shown": len(rows),
            "asked": asked, "rows": rows,
            "merged": {"lower_ns": [n * 1024 for n in range(SUMMARY_BUCKETS)], **merged},
            "totals": {**{name: one[name] * asked for name in sums},
                       "hit_local_permille": 353 if asked else -1,
                       "hit_remote_permille": 577 if asked else -1, "rails": 8 * asked,
                       "rails_up": 8 * asked - bad, "moving": int(bad), "behind": 0}}


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
