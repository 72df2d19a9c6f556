# SPDX-License-Identifier: Apache-2.0
"""Engines and clients that die, hang or come back: only bandwidth and capacity are lost."""

import json
import re
import signal

import harness
from kept import Kept

SETTINGS = ["cluster.heartbeat_ms=100", "cluster.dead_after_ms=5000"]


def reached(process, share):
    """Reads the replay's progress lines until it has done that share of the requests."""
    while True:
        line = process.stderr.readline()
        if not line:
            raise AssertionError("the replay ended early: " + process.communicate()[0])
        found = re.search(r"(\d+)/(\d+) requests", line)
        if found and int(found[1]) >= share * int(found[2]):
            return


class EngineDies(Kept):
    def test_kill_9_of_one_of_three_during_a_replay(self):
        engines = self.start(3, pool_bytes="512MiB", settings=SETTINGS)
        process = harness.tool("tools/peercache-bench", "replay", "--requests", 3000,
                               "--timeout-ms", 2000, "--json", "-", sockets=engines.sockets)
        reached(process, 0.3)
        engines.kill(1)
        status, out, err = harness.finish(process)
        self.assertEqual(status, 0, out + err)
        got = json.loads(out[out.index("{"):])
        self.assertEqual(got["requests"], 3000)
        self.assertEqual((got["wrong"], got["late"]), (0, 0))
        self.assertEqual(got["engines_gone"], 1)
        self.assertGreater(got["hits"], 0)
        engines.wait_members(2, among=[0, 2])
        # Pages of the survivors are still found: with two owners per key, one death loses no entry.
        again = self.replay(engines_without(engines, 1), "--requests", 400, "--namespace", "b")
        self.assertEqual(again["hits"], self.describe("--requests", 400)["prefix_hits"])

    def stored(self, engines, i, n, name="pages"):
        """Stores n pages through engine i, all of them."""
        self.store_calmly(engines, i, name, (0, n))

    def found(self, engines, reader, n, name="pages"):
        """How many of these pages are found; each of them is read, with its bytes."""
        got = self.ended(self.started("find", engines, reader, name, (0, n)))
        self.assertEqual((got["kept"], got["read"], got["wrong"]), (n, got["found"], 0), got)
        return got["found"]

    def test_entries_of_live_members_survive_one_death(self):
        engines = self.start(4, pool_bytes="128MiB", settings=SETTINGS)
        self.stored(engines, 0, 400)
        engines.kill(3)
        engines.wait_members(3, among=[0, 1, 2])
        for reader in range(3):
            self.assertEqual(self.found(engines, reader, 400), 400)

    def test_a_killed_engine_comes_back_and_is_used_again(self):
        engines = self.start(2, pool_bytes="128MiB", settings=SETTINGS)
        self.stored(engines, 1, 100)
        self.assertEqual(self.found(engines, 0, 100), 100)
        engines.kill(1)
        engines.restart(1)
        engines.wait_members(2)
        self.assertEqual(self.found(engines, 0, 100), 0, "a dead incarnation has no pages")
        self.stored(engines, 1, 100)
        self.assertEqual(self.found(engines, 0, 100), 100)
        self.stop_cleanly(engines)

    def test_a_stopped_engine_costs_one_deadline_and_no_hang(self):
        engines = self.start(2, pool_bytes="128MiB", settings=SETTINGS, link="tcp")
        self.stored(engines, 1, 50)
        harness.freeze(engines.process[1])
        got = self.replay(engines_without(engines, 1), "--requests", 50, "--timeout-ms", 2000)
        self.assertEqual((got["wrong"], got["late"]), (0, 0))
        engines.wait_members(1, among=[0])
        engines.process[1].send_signal(signal.SIGCONT)
        engines.wait_members(2)
        self.stop_cleanly(engines)


class ClientDies(harness.ClusterTest):
    def test_kill_9_with_requests_in_flight_frees_everything(self):
        engines = self.start(2, pool_bytes="512MiB")

        def left():
            status = engines.status(0)
            return {k: status["figures"]["client_" + k]
                    for k in ("sessions", "channels", "regions", "credits")}

        before = left()
        other = harness.tool("tools/peercache-bench", "get", "--seconds", 600, "--batch", 16,
                             "--working-set", "64MiB", "--no-baseline", sockets=engines.sockets)
        self.addCleanup(other.kill)
        for mode in ("get", "set"):
            victim = harness.tool("tools/peercache-bench", mode, "--seconds", 600, "--batch", 128,
                                  "--threads", 2, "--working-set", "64MiB", "--no-baseline",
                                  sockets=engines.sockets)
            counter = "pages_read" if mode == "get" else "pages_published"

            def moved(since=None):
                status = engines.status(0)
                counters = (status["rails"][0] if mode == "get" else status)["counters"]
                return counters[counter]
            at = moved()
            harness.wait_for(lambda: engines.figure(0, "client_sessions") >=
                             before["sessions"] + 2 and moved() > at + 2000, 60, "the victim works")
            victim.send_signal(signal.SIGKILL)
            victim.communicate()
            harness.wait_for(lambda: left()["sessions"] <= before["sessions"] + 1, 20,
                             f"the {mode} client's session is freed")
            harness.wait_for(lambda: left()["channels"] <= before["channels"] + 1, 20,
                             f"the {mode} client's rings are freed")
        harness.end_early(other, signal.SIGINT)
        status, out, err = harness.finish(other)
        self.assertEqual(status, 0, out + err)
        self.assertIn("not hits 0, wrong 0", out, "the other client noticed nothing")
        harness.wait_for(lambda: left() == before, 20, "all regions and credits are freed")
        self.stop_cleanly(engines)


def engines_without(engines, gone):
    class View:
        sockets = [s for i, s in enumerate(engines.sockets) if i != gone]
    return View


if __name__ == "__main__":
    harness.main()
