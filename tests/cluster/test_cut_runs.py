# SPDX-License-Identifier: Apache-2.0
"""kill -9 of the holder, the reading engine or the client in the middle of runs: what was reported
as a hit has its bytes, nothing hangs, and others are not disturbed.

The ports carry 1 Gbit/s, so a batch takes 70 ms and a run of 32 pages 17 ms: every kill comes in
the middle of runs, and the timeline of the calls shows it."""

import os
import signal
import tempfile

import harness

SETTINGS = ["cluster.heartbeat_ms=100", "cluster.dead_after_ms=1000", "soft.model=1G"]
PAGE_BYTES, BATCH, WORKING_SET = 64 << 10, 128, "32MiB"
WARM_UP = 8 * BATCH  # pages that the client reads before its timeline begins
ROUNDS, ROUNDS_MAX = 3, 40


class RunsAreCut(harness.ClusterTest):
    def begin(self):
        self.engines = self.start(2, pool_bytes="256MiB", settings=SETTINGS)
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.timeline = os.path.join(folder.name, "timeline")

    def reader(self, *more):
        process = harness.tool("tools/peercache-bench", "get", "--verify", "--no-baseline",
                               "--seconds", 600, "--batch", BATCH, "--page-bytes", PAGE_BYTES,
                               "--working-set", WORKING_SET, *more, sockets=self.engines.sockets)
        self.addCleanup(process.kill)
        return process

    def pages_read(self):
        return self.engines.status(0)["rails"][0]["counters"]["pages_read"]

    def wait_reads(self, more=3 * BATCH):
        """Waits until the reading engine has read more pages from now on."""
        until = self.pages_read() + more
        harness.wait_for(lambda: self.pages_read() >= until, 60, "pages are read")

    def end(self, process):
        """Ends the reader; returns what it printed and its calls as (hits, others). None: a call
        waited for longer than the reader does once it is interrupted."""
        harness.end_early(process, signal.SIGINT)
        status, out, err = harness.finish(process, 60)
        if status == 1 and "interrupted while a call waits" in err:
            return None
        self.assertEqual(status, 0, out + err)
        self.assertIn(", wrong 0;", out)
        with open(self.timeline, encoding="ascii") as file:
            rows = [line.split() for line in file if line[:1].isdigit()]
        return out, [(int(hits), int(others)) for _, hits, others in rows]

    def cut(self, victim, then):
        """Kills an engine while the client reads. True: one call has hits, and pages that the kill
        cut off; false: the kill came while the client compared bytes between two calls, or end()
        knows no calls."""
        self.begin()
        process = self.reader("--timeline", self.timeline)
        self.wait_reads(WARM_UP + 3 * BATCH)
        self.engines.kill(victim)
        then()
        since = harness.clock()
        ended = self.end(process)
        self.assertLess(harness.clock() - since, 20 * harness.SLOW)
        if not ended:
            self.engines.stop()
            return False
        calls = ended[1]
        self.assertTrue(any(others for _, others in calls), "the kill was noticed")
        self.engines.stop()
        return any(hits and others for hits, others in calls)

    def cut_rounds(self, victim, then=lambda: None):
        cuts = 0
        for _ in range(ROUNDS_MAX):
            cuts += self.cut(victim, then)
            if cuts == ROUNDS:
                return
        self.fail(f"{cuts} of {ROUNDS_MAX} kills came in the middle of a call")

    def test_kill_9_of_the_holder(self):
        self.cut_rounds(1, lambda: self.engines.wait_members(1, among=[0]))

    def test_kill_9_of_the_reading_engine(self):
        self.cut_rounds(0)

    def test_kill_9_of_the_client(self):
        self.begin()
        other = self.reader("--timeline", self.timeline)
        self.wait_reads()
        sessions = self.engines.figure(0, "client_sessions")
        for _ in range(ROUNDS):
            victim = self.reader()
            harness.wait_for(lambda: self.engines.figure(0, "client_sessions") > sessions, 60,
                             "the victim has a session")
            self.wait_reads()
            victim.kill()
            victim.communicate()
            harness.wait_for(lambda: self.engines.figure(0, "client_sessions") == sessions, 30,
                             "the victim's session is freed")
            self.wait_reads()
        out, _ = self.end(other)
        self.assertIn("not hits 0, wrong 0", out, "the other client noticed nothing")
        self.stop_cleanly(self.engines)


if __name__ == "__main__":
    harness.main()
