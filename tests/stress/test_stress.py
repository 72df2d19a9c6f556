# SPDX-License-Identifier: Apache-2.0
"""One engine evicts and refills its pool continuously, and 4 threads read from another engine.

$PEERCACHE_READS: number of pages to read (default 1,000,000).
"""

import json
import os
import signal
import sys
import tempfile
import time
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "cluster"))
import harness  # noqa: E402

READS = int(os.environ.get("PEERCACHE_READS", "1000000"))
POOL = ["engine.huge_pages=no"]
LEASE = ["rail.validate=lease", "engine.limbo_ms=10"]
STOPS = 20
TRIES = 20  # runs until what chance decides has happened


class Engines(harness.cluster.Cluster):
    """Two engines. With `late_ms`, READs of the second one sample memory again, that much later: a
    head then no longer proves its payload by their order, only by the time."""

    def __init__(self, settings, late_ms):
        super().__init__(harness.BUILD, 2, pool_bytes="4MiB",
                         settings=harness.patient(POOL + settings))
        with tempfile.NamedTemporaryFile("w", suffix=".faults", delete=False) as faults:
            faults.write(f"0:late{late_ms}\n" if late_ms else "\n")
        self.faults = faults.name

    def command(self, i):
        return super().command(i) + (["--set", f"test.fault_file={self.faults}"] if i else [])


class Stress(harness.ClusterTest):
    def read(self, settings, reads, late_ms=0, meanwhile=lambda engine, readers: None):
        """Runs `readers` with two engines that have small pools; returns its counts, and how many
        leases of the reading engine expired. `meanwhile` is called with that engine's process."""
        engines = Engines(settings, late_ms)
        self.addCleanup(os.unlink, engines.faults)
        self.addCleanup(engines.stop)
        engines.start()
        process = harness.tool("tests/stress/readers", "--reads", reads, sockets=engines.sockets)
        meanwhile(engines.process[1], process)
        status, out, err = harness.finish(process, 400)
        self.assertEqual(status, 0, out + err)
        got = json.loads(out)
        status = engines.status(1)
        rail = status["rails"][0]["counters"]
        got["leases_expired"], got["pages_read"] = rail["leases_expired"], rail["pages_read"]
        print(json.dumps(got))
        if got["other"]:
            self.print_logs(engines, status)
        self.stop_cleanly(engines)
        return got

    def print_logs(self, engines, status):
        print("reading engine:", json.dumps({name: count for name, count in [
            *status["counters"].items(), *status["rails"][0]["counters"].items()] if count}))
        for i, path in enumerate(engines.logs):
            print(path, engines.log(i), sep="\n")

    def read_until(self, count, *arguments, **options):
        """Repeats read() until `count` is not 0: chance decides. Returns the counts of that run."""
        for _ in range(TRIES):
            got = self.read(*arguments, **options)
            if got[count] > 0 or got["wrong"] > 0:
                break
        return got

    def test_a_read_that_overlaps_the_reuse_of_a_slot_is_never_a_hit(self):
        got = self.read(["rail.validate=tail", "engine.limbo_ms=0"], READS)
        self.assertGreaterEqual(got["reads"], READS)
        self.assertEqual(got["wrong"], 0)
        self.assertEqual(got["other"], 0)
        self.assertGreater(got["stale"], 0, "no READ overlapped the reuse of a slot")
        self.assertGreater(got["hits"], READS // 10)

    def test_without_the_head_check_the_same_readers_find_wrong_pages(self):
        got = self.read_until("wrong", ["test.skip_head_check=yes", "engine.limbo_ms=0"],
                              READS // 10)
        self.assertGreater(got["wrong"], 0, "the readers cannot detect wrong pages")

    def test_the_same_with_leases(self):
        got = self.read(LEASE, READS)
        self.assertEqual(got["wrong"], 0)
        self.assertEqual(got["other"], 0)
        self.assertGreater(got["stale"], 0, "no READ overlapped the end of a page")
        self.assertGreater(got["hits"], READS // 10)

    def test_leases_hold_when_payload_is_sampled_after_its_head(self):
        got = self.read_until("stale", LEASE, READS // 40, late_ms=3)
        self.assertEqual(got["wrong"], 0)
        self.assertGreater(got["stale"], 0, "no READ overlapped the end of a page")

    def test_a_lease_longer_than_limbo_gives_wrong_pages(self):
        got = self.read_until(
            "wrong", ["rail.validate=lease", "engine.limbo_ms=1", "test.limbo_announced=10"],
            READS // 100, late_ms=8)
        self.assertGreater(got["wrong"], 0, "the readers cannot detect a lease that is too long")

    def test_a_reader_that_is_stopped_falls_back_to_tail(self):
        def stop_often(engine, readers):
            for _ in range(STOPS):
                if readers.poll() is not None:
                    return
                engine.send_signal(signal.SIGSTOP)
                time.sleep(0.1)  # not a wait: the engine is stopped for 10 times the limbo time
                engine.send_signal(signal.SIGCONT)
                time.sleep(0.05)

        got = self.read_until("leases_expired", LEASE, READS // 40, late_ms=3,
                              meanwhile=stop_often)
        self.assertEqual(got["wrong"], 0)
        self.assertGreater(got["leases_expired"], 0, "no lease expired")


if __name__ == "__main__":
    unittest.main(verbosity=2)
