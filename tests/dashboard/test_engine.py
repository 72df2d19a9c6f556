# SPDX-License-Identifier: Apache-2.0
"""The dashboard of real engines: what they serve, a member killed, an engine stopped or killed."""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request

import answers
import harness
from harness import FIRST_S, GONE, SLOW

sys.path.insert(0, os.path.join(answers.ROOT, "tools"))
import cluster  # noqa: E402

WITHIN_S = 2 * SLOW
TRIES = 10  # a machine that is busy with something else delays some
BUILD = cluster.default_build()


class Served:
    def __init__(self, port):
        self.url = f"http://127.0.0.1:{port}/"

    def get(self, path):
        with urllib.request.urlopen(self.url + path, timeout=30) as answer:
            return answer.read(), answer.headers


class Engines(cluster.Cluster):
    """Each engine has a port for metrics of its own."""

    def __init__(self, nodes, *settings):
        super().__init__(BUILD, nodes, pool_bytes="64MiB", settings=settings)

    def start(self):
        self.served = []
        while len(self.served) < self.nodes:
            self.served.append(Served(cluster.free_port()))
        return super().start()

    def command(self, i):
        return super().command(i) + ["--set", "metrics.port=" +
                                     self.served[i].url.rsplit(":", 1)[1].rstrip("/")]


def shape(value):
    """Names of the members of objects, of all levels; one element stands for an array."""
    if isinstance(value, dict):
        return {name: shape(of) for name, of in value.items()}
    if isinstance(value, list):
        return [shape(value[0])] if value else []
    return None


class Engine(harness.PageTest):
    def open(self, served, state="live", **options):
        """The time of a page of a real engine is real."""
        return super().open(served, state, real=True, **options)

    def start(self, nodes, *settings):
        engines = Engines(nodes, *settings)
        self.addCleanup(engines.stop)
        return engines.start()

    def test_a_member_that_is_killed_is_named_within_two_seconds(self):
        engines = self.start(3)
        page = self.open(engines.served[0])
        page.wait_text("#members .big", "3 of 3 up", FIRST_S)
        name = f"127.0.0.1:{engines.port[2]}"
        took = []
        while not took or took[-1] > WITHIN_S:
            self.assertLess(len(took), TRIES, took)
            start = time.monotonic()
            engines.kill(2)
            page.wait_text("#worst", f"member {name}", 20 * SLOW)
            page.wait_text("#members", f"{name}: down since", 20 * SLOW)
            took.append(time.monotonic() - start)
            engines.restart(2)
            page.wait_text("#members .big", "3 of 3 up", 20 * SLOW)
        print(f"after {took[-1]:.2f} s", end=" ", flush=True)
        self.assert_sound(page, engines.served[0])

    def test_a_page_of_a_stopped_engine_is_stale_until_it_goes_on(self):
        engines = self.start(1)
        page = self.open(engines.served[0])
        engines.process[0].send_signal(signal.SIGSTOP)
        page.wait_text("#verdict", "STALE: the engine does not answer", 20 * SLOW)
        engines.process[0].send_signal(signal.SIGCONT)
        page.wait("document.body.dataset.state === 'live'", 10 * SLOW, "live again")

    def test_a_page_of_a_killed_engine_is_stale_within_two_seconds(self):
        engines = self.start(1)
        page = self.open(engines.served[0])
        took = []
        while not took or took[-1] > WITHIN_S:
            self.assertLess(len(took), TRIES, took)
            start = time.monotonic()
            engines.kill(0)
            page.wait_text("#verdict", "STALE: the engine does not answer", 10 * SLOW)
            took.append(time.monotonic() - start)
            engines.restart(0)
            page.wait("document.body.dataset.state === 'live'", 10 * SLOW, "live again")
            page.wait_text("#window", "in the last", 10 * SLOW)
        print(f"after {took[-1]:.2f} s", end=" ", flush=True)
        self.assert_sound(page, engines.served[0], GONE)

    def test_calls_of_a_client_appear_in_the_figures(self):
        engines = self.start(1)
        page = self.open(engines.served[0])
        client = subprocess.Popen(
            [cluster.find_program(BUILD, "tools/peercache-bench"), "get", "--seconds", "600",
             "--working-set", "16MiB", "--batch", "8", "--no-baseline"],
            env={**os.environ, "PEERCACHE_SOCKETS": engines.sockets[0]},
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.addCleanup(client.wait)
        self.addCleanup(client.kill)
        page.wait_text("#hits .big", "100.0%", 30 * SLOW)
        page.wait_text("#hits", "local 100.0%", 10 * SLOW)
        page.wait("document.querySelector('#latency-get td').innerText !== '–'", 10 * SLOW, "p50")
        page.wait("document.querySelector('#bandwidth .big').innerText !== '0 B/s'", 10 * SLOW,
                  "bandwidth")
        page.wait("document.querySelector('#plot-bandwidth b').innerText !== '–'", 15 * SLOW,
                  "the first point of the history")

    def test_the_engine_serves_the_page_and_answers_as_fabricated_here(self):
        engines = self.start(2)
        served = engines.served[0]
        fake = self.fake(2, 1)
        body, headers = served.get("")
        self.assertEqual(body, fake.page)
        self.assertEqual(headers["Content-Security-Policy"], fake.policy)
        for path in ("dashboard", "index.html"):
            self.assertEqual(served.get(path)[0], body)
        made = answers.status(100, 2, 1)
        real = json.loads(served.get("api/status")[0])
        real["health"]["findings"] = made["health"]["findings"]
        real["members_down"] = []
        real["loop_lag"]["from_ns"] = made["loop_lag"]["from_ns"]  # buckets that are not empty
        real["settings"] = made["settings"]  # as the build has them
        self.assertEqual(shape(real), shape(made))
        self.assertEqual(json.loads(served.get("api/history")[0])["columns"],
                         answers.history(1, 2, 1)["columns"])

    def test_the_cluster_answer_is_as_fabricated_here(self):
        engines = self.start(2)
        # until they had an answer from each other their seeds are a finding
        real = self.cluster(engines, lambda view: view["asked"] == 2 and
                            view["rows"][0].get("severity") in ("ok", "info"))
        made = answers.cluster(2)
        self.assertEqual(shape(real), shape(made))
        for row in real["rows"]:
            self.assertEqual(shape(row), shape(made["rows"][0]), "each row has a summary")
        # The two have one address here, so the ports tell them apart.
        self.assertEqual({row["name"]: row["dashboard"] for row in real["rows"]},
                         {f"127.0.0.1:{engines.port[n]}": engines.served[n].url for n in (0, 1)})
        self.assertEqual(real["totals"]["get_hit_ratio"], -1, "no get yet")

    def cluster(self, engines, wanted):
        """/api/cluster of engine 0 once `wanted` of it is true."""
        end = cluster.clock() + 20 * SLOW
        while True:
            view = json.loads(engines.served[0].get("api/cluster")[0])
            if wanted(view):
                return view
            self.assertLess(cluster.clock(), end, view)

    def test_the_members_of_a_watched_page_fill_its_cluster_section(self):
        engines = self.start(3)
        page = self.open(engines.served[0])
        page.wait_text("#cluster-title", "3 of 3 members", FIRST_S)
        page.wait_text("#cluster-states", "totals are of 3 that answered", FIRST_S)
        page.wait_text("#cluster-rails .big", "3 of 3 in use", FIRST_S)
        name = f"127.0.0.1:{engines.port[2]}"
        engines.kill(2)
        page.wait_text("#table-cluster tbody tr", name, 20 * SLOW)
        page.wait_text("#table-cluster tbody tr", "down for", 20 * SLOW)
        page.wait_text("#cluster-states", "totals are of 2 that answered", 20 * SLOW)
        # The row of a member shows what is wrong with that member: those that miss it are well.
        view = self.cluster(engines, lambda view: view["down"] == 1 and all(
            row["age_ms"] < row["state_ms"] + 1000 for row in view["rows"] if row["state"] == "up"))
        found = {row["name"]: row["finding"] for row in view["rows"]}
        self.assertEqual(found.pop(name), "member_down")
        self.assertNotIn("member_down", found.values())
        self.assertEqual(page.text("#verdict").split(":")[0], "Not healthy")
        self.assert_sound(page, engines.served[0])


if __name__ == "__main__":
    harness.main()
