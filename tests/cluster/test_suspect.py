# SPDX-License-Identifier: Apache-2.0
"""A member that does not serve delays sets for a moment only, whether it is stopped or still sends
heartbeats, and costs no memory per set."""

import json
import os
import signal
import subprocess
import time

import harness
from played_member import GrayMember, ProbedMember

# A request may wait two seconds; the member stays on the map for as long as a test lasts.
DEAD_MS = int(20000 * max(1, harness.SLOW / 2))
SETTINGS = ["cluster.heartbeat_ms=100", f"cluster.dead_after_ms={DEAD_MS}"]
DEADLINE_MS = int(0.4 * DEAD_MS)


class Suspect(harness.ClusterTest):
    def sets(self, engines, batches):
        """Stores new pages through engine 0. All are stored, and long before their deadlines."""
        start = time.monotonic()
        out = harness.run(
            [harness.program("tests/cluster/filler"), "--timeout-ms", str(DEADLINE_MS), "--pages",
             "16", "--batches", str(batches)], capture_output=True, text=True, check=True,
            seconds=600,
            env={**os.environ, "PEERCACHE_SOCKETS": engines.sockets[0]}).stdout
        results = {name: pages for name, pages in json.loads(out).items() if pages}
        self.assertEqual(results, {"hit": 16 * batches})
        # half of the batches would otherwise wait their whole deadline
        self.assertLess(time.monotonic() - start, (1 + batches / 8) * DEADLINE_MS / 1000)

    def suspected(self, engines, reasons):
        """Stores pages until the member is suspect for one of the reasons, then many more."""
        self.sets(engines, 2)
        harness.wait_for(lambda: engines.figure(0, "directory_owners_suspect") == 1, 10, "suspect")
        before = engines.status(0)["counters"]
        self.sets(engines, 40)
        after = engines.status(0)["counters"]
        self.assertGreater(after["sets_partial"] - before["sets_partial"], 100)
        self.assertEqual(after["owners_suspected"], 1)
        self.assertEqual(after["members_died"], 0)
        self.check_ctl(engines, reasons)

    def check_ctl(self, engines, reasons):
        """peercachectl members names the member that is suspect, and why."""
        ctl = [harness.program("tools/peercachectl"), "--socket", engines.sockets[0]]
        members = json.loads(subprocess.check_output([*ctl, "--json", "members"],
                                                     text=True))["members"]
        suspects = [m for m in members if m["suspect"]]
        self.assertEqual(len(suspects), 1, members)
        self.assertIn(suspects[0]["suspect"], reasons, members)
        self.assertGreater(suspects[0]["unserved_ms"], 0)
        self.assertGreater(suspects[0]["unacknowledged"], 0)
        self.assertGreater(suspects[0]["unawaited"], 0)
        text = subprocess.check_output([*ctl, "members"], text=True)
        self.assertEqual(text.count("suspect: "), 1, text)
        self.assertRegex(text, "suspect: (requests wait for an answer|no heartbeats|"
                               "reads of its memory hang)")
        self.check_directory(ctl, reasons)

    def check_directory(self, ctl, reasons):
        """peercachectl directory shows that an owner lacks entries, and which one."""
        done = subprocess.run([*ctl, "--json", "directory"], capture_output=True, text=True)
        self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
        shown = json.loads(done.stdout)
        self.assertFalse(shown["settled"])
        self.assertGreater(shown["figures"]["directory_sets_partial"], 0)
        self.assertEqual(shown["figures"]["directory_owners_suspect"], 1)
        self.assertEqual([o["suspect"] in reasons for o in shown["owners_late"]], [True], shown)
        self.assertGreater(shown["figures"]["pages"], 0)
        self.assertLess(shown["figures"]["directory_entries"],
                        shown["figures"]["directory_capacity_entries"])
        done = subprocess.run([*ctl, "directory"], capture_output=True, text=True)
        self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
        for line in (r"shard: \d+ of \d+ entries \([0-9.]+ %\), 0 dropped",
                     "partial sets: [1-9]", r"owners: \d behind, 1 suspect",
                     r"  \S+: (behind, )?suspect: (unserved|silent|unread), ", "not settled: "):
            self.assertRegex(done.stdout, "(?m)^" + line)

    def settled(self, engines, i):
        """peercachectl directory ends with 0 once nothing is left to send."""
        command = [harness.program("tools/peercachectl"), "--socket", engines.sockets[i]]
        harness.wait_for(lambda: subprocess.run([*command, "directory"], stdout=subprocess.DEVNULL)
                         .returncode == 0, 60, "nothing is left to send")
        return command

    def settles(self, engines):
        command = self.settled(engines, 0)
        text = subprocess.check_output([*command, "directory"], text=True)
        for line in ("walk: none", "partial sets: 0", "owners: 0 behind, 0 suspect", "settled: "):
            self.assertRegex(text, "(?m)^" + line)

    def test_sets_do_not_wait_for_a_member_that_sends_heartbeats_and_serves_nothing(self):
        engines = self.start(2, pool_bytes="64MiB", settings=SETTINGS)
        gray = GrayMember(engines)
        try:
            engines.wait_members(3, among=[0, 1])
            # whichever is noticed first: no acknowledgement, or its memory cannot be read
            self.suspected(engines, ["unserved", "unread"])
        finally:
            gray.close()
        engines.wait_members(2)
        harness.wait_for(lambda: engines.figure(0, "directory_sets_partial") == 0, 30,
                         "all are whole")
        self.assertEqual(engines.figure(0, "directory_owners_suspect"), 0)
        self.settles(engines)
        self.stop_cleanly(engines)

    def down(self, engines, i):
        """What engine i says of the members that it removed because they did not serve."""
        return [m for m in engines.status(i)["members_down"] if m["unserving"]]

    def test_a_member_that_does_not_serve_is_removed_until_it_serves(self):
        dead_ms = int(3000 * max(1, harness.SLOW / 2))
        engines = self.start(2, pool_bytes="64MiB", settings=["cluster.heartbeat_ms=100",
                                                             f"cluster.dead_after_ms={dead_ms}"])
        gray = ProbedMember(engines)
        try:
            engines.wait_members(3, among=[0, 1])
            harness.wait_for(lambda: 0 <= self.member(engines, "gray")["probe_served_ms"] < 1000,
                             10, "it answers probes")
            starved = self.starved(engines)
            since, gray.serves = time.monotonic(), False
            # no request of a client waits for it
            harness.wait_for(lambda: self.member(engines, "gray")["suspect"] == "unserved", 10,
                             "it is suspect")
            suspected = time.monotonic() - since
            engines.wait_members(2, among=[0, 1])
            removed = time.monotonic() - since
            starved = self.starved(engines) - starved
            beats = gray.beats
            # it is connected again with both, says Hello, and sends heartbeats
            harness.wait_for(lambda: gray.beats > beats + 100, 60, "heartbeats")
            for i in (0, 1):
                counters = engines.status(i)["counters"]
                self.assertEqual((counters["members_unserving"], counters["members_died"],
                                  counters["members_joined"]), (1, 1, 2))
                (down,) = self.down(engines, i)
                self.assertEqual((down["name"], down["trial_ms"]), ("gray", -1))
                self.assertEqual(down["trial_needs_ms"], dead_ms * 5 // 3)
            self.sets(engines, 4)
            text = subprocess.check_output([harness.program("tools/peercachectl"), "--socket",
                                            engines.sockets[0], "members"], text=True)
            self.assertRegex(text, "removed: it sent heartbeats and did not serve, served a probe ")
            self.assertRegex(text, r"must answer all probes for \d+\.\d s, and does not")
            since, gray.serves = time.monotonic(), True
            engines.wait_members(3, among=[0, 1])
            back = time.monotonic() - since
            print(f"\ndead_after {dead_ms} ms: suspect after {suspected:.1f} s, removed after "
                  f"{removed:.1f} s, back {back:.1f} s after it served again; {starved:.1f} s of "
                  "waiting for a processor")
            self.assertLess(removed, dead_ms * 5 / 3000 + starved)
            self.assertGreater(back, 0.95 * dead_ms * 5 / 3000)
        finally:
            gray.close()
        engines.wait_members(2)
        self.stop_cleanly(engines)

    @staticmethod
    def member(engines, name):
        return next(m for m in engines.status(0)["members"] if m["name"] == name)

    def test_sets_do_not_wait_for_a_stopped_engine(self):
        engines = self.start(3, pool_bytes="64MiB", settings=SETTINGS)
        harness.freeze(engines.process[2])
        try:
            # whichever is noticed first
            self.suspected(engines, ["silent", "unserved", "unread"])
        finally:
            engines.process[2].send_signal(signal.SIGCONT)
        harness.wait_for(lambda: engines.figure(0, "directory_sets_partial") == 0, 30,
                         "all are whole")
        harness.wait_for(lambda: engines.figure(0, "directory_owners_suspect") == 0, 30,
                         "it serves")
        self.settles(engines)
        self.stop_cleanly(engines)

    def test_the_first_read_after_a_freeze_hits(self):
        """The other engine has removed the frozen one and ended their connections; the frozen one
        learns it when it runs again, and not by a READ that hangs."""
        engines = self.start(2, pool_bytes="64MiB", settings=[
            "cluster.heartbeat_ms=100", f"cluster.dead_after_ms={int(1000 * harness.SLOW)}"])

        def ctl(i, *words):
            return harness.run([harness.program("tools/peercachectl"), "--socket",
                                engines.sockets[i], *words], capture_output=True, text=True).stdout

        for i in range(2):
            ctl(i, "put", f"page-{i}", "--string", f"of {i}")
        for i in range(2):
            self.assertIn(f"of {1 - i}", ctl(i, "get", f"page-{1 - i}"))
        harness.freeze(engines.process[1])
        engines.wait_members(1, among=[0])
        engines.process[1].send_signal(signal.SIGCONT)
        engines.wait_members(2)
        harness.wait_for(lambda: all(engines.figure(i, "connections") == 0 and engines.figure(
            i, "connections_served") == 0 for i in range(2)), 30, "no connection of before is left")
        for i in range(2):
            self.settled(engines, i)
            self.assertIn(f"of {1 - i}", ctl(i, "get", f"page-{1 - i}"))
        self.stop_cleanly(engines)


if __name__ == "__main__":
    harness.main()
