# SPDX-License-Identifier: Apache-2.0
"""The cluster view of /api/cluster: three engines that a page of one of them shows."""

import json
import time
import urllib.error
import urllib.request

import harness

SETTINGS = ["cluster.heartbeat_ms=500", "cluster.dead_after_ms=3000"]


class ViewedCluster(harness.cluster.Cluster):
    """Each engine serves HTTP at a port of its own."""

    def start(self):
        self.http = [harness.cluster.free_port() for _ in range(self.nodes)]
        return super().start()

    def command(self, i):
        return super().command(i) + ["--set", f"metrics.port={self.http[i]}"]

    def view(self, i):
        """/api/cluster of engine i, as a watched page requests it; None: no snapshot yet."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.http[i]}/api/cluster",
                                        timeout=10) as answer:
                assert answer.headers["Content-Type"] == "application/json"
                return json.load(answer)
        except urllib.error.HTTPError as error:
            if error.code != 503:
                raise
            return None

    def counter(self, i, name):
        return self.status(i)["counters"][name]


class View(harness.ClusterTest):
    def start(self, nodes):
        engines = ViewedCluster(harness.BUILD, nodes, pool_bytes="64MiB", settings=SETTINGS)
        self.addCleanup(engines.stop)
        return engines.start()

    def test_a_watched_page_shows_all_members_and_then_the_killed_one(self):
        engines = self.start(3)

        def all_seen():
            view = engines.view(0)
            # The first summaries may be older than the map that has all three.
            return view if view and view["asked"] == 3 and all(
                r["summary"]["members_up"] == 3 and r["severity"] in ("ok", "info")
                for r in view["rows"]) else None
        view = harness.wait_for(all_seen, 20, "all summaries are there")
        self.assertEqual([view[k] for k in ("members", "up", "shown")], [3, 3, 3])
        self.assertEqual(len(view["rows"]), 3)
        self.assertEqual(sum(row["self"] for row in view["rows"]), 1)
        for row in view["rows"]:
            self.assertEqual((row["state"], row["why"]), ("up", ""), row)
            self.assertEqual((row["summary"]["rails"], row["summary"]["rails_up"]), (1, 1))
        self.assertEqual((view["totals"]["rails"], view["totals"]["rails_up"]), (3, 3))

        engines.kill(2)
        gone = f"127.0.0.1:{engines.port[2]}"

        def row_says_so():
            view = engines.view(0)
            row = next(r for r in view["rows"] if r["name"] == gone)
            return view if row["state"] != "up" else None
        view = harness.wait_for(row_says_so, 20, "the row of the killed engine says so")
        row = next(r for r in view["rows"] if r["name"] == gone)
        self.assertIn(row["finding"], ("member_down", "member_silent"))
        self.assertEqual(row["severity"], "warning")

        def is_first_and_counts_in_nothing():
            view = engines.view(0)
            return (view["rows"][0]["name"] == gone and view["asked"] == 2 and view["down"] == 1
                    and view["totals"]["rails"] == 2)
        harness.wait_for(is_first_and_counts_in_nothing, 20, "the killed engine is down")

    def test_reads_and_writes_show_in_the_percentiles_of_all(self):
        engines = self.start(2)
        bench = harness.tool("tools/peercache-bench", "get", "--seconds", 600, "--batch", 8,
                             "--working-set", "16MiB", "--no-baseline", sockets=engines.sockets)
        self.addCleanup(bench.communicate)
        self.addCleanup(bench.kill)

        def busy():
            view = engines.view(1)
            return (view and view["totals"]["get_pages_per_second"] and view["asked"] == 2
                    and view)
        view = harness.wait_for(busy, 30, "gets are seen")
        all_of = view["totals"]
        self.assertGreater(all_of["get_batches"], 0)
        self.assertEqual(all_of["get_batches"],
                         sum(r["summary"]["get_batches"] for r in view["rows"]))
        self.assertTrue(0 < all_of["get_p50_seconds"] <= all_of["get_p99_seconds"]
                        <= all_of["get_p999_seconds"])
        self.assertGreater(view["totals"]["get_bytes_per_second"], 0)
        self.assertLessEqual(all_of["get_hit_ratio"], 1)

    def test_nothing_is_sent_once_the_page_is_not_watched(self):
        engines = self.start(3)

        def counters():
            return [engines.counter(i, f"summaries_{what}") for i in range(3)
                    for what in ("asked", "sent")]
        self.assertEqual(counters(), [0] * 6)
        harness.wait_for(lambda: (engines.view(0) or {"asked": 0})["asked"] == 3, 20,
                         "all summaries are there")
        watched = time.monotonic()
        self.assertEqual(engines.counter(1, "summaries_asked"), 0, "engine 1 is not watched")

        seen, since = None, watched

        def settled():
            """The counters, once they have not changed for two seconds."""
            nonlocal seen, since
            now = counters()
            if now != seen:
                seen, since = now, time.monotonic()
            return time.monotonic() > max(watched + 5.2, since + 2) and now
        before = harness.wait_for(settled, 30, "the watch is over")
        self.assertGreater(before[0], 0)
        start = time.monotonic()
        messages = [engines.counter(i, "messages_out") for i in range(3)]
        end = time.monotonic() + 3

        def later():
            return time.monotonic() > end and counters()
        self.assertEqual(harness.wait_for(later, 10, "three seconds have passed"), before)
        sent = [engines.counter(i, "messages_out") - messages[i] for i in range(3)]
        seconds = time.monotonic() - start
        # to each of two members: heartbeat_ms=500; ten probes a second, and the answers to its own
        most = 2 * (seconds / 0.5 + 2) + 4 * (seconds / 0.1 + 2)
        for i in range(3):
            self.assertLessEqual(sent[i], most)
        engines.view(0)
        harness.wait_for(lambda: counters()[0] > before[0], 20, "it asks again once watched")
        self.stop_cleanly(engines)


if __name__ == "__main__":
    harness.main()
