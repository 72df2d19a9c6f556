# SPDX-License-Identifier: Apache-2.0
"""Several rails on one poll core: exact counts, right bytes, every rail used, asleep when idle."""


import harness

RAILS = 4
SETTINGS = [f"rail.devices={','.join(['soft'] * RAILS)}", "rail.poll_cores=1"]


class PollCores(harness.ClusterTest):
    def used(self, engines):
        return [sum(engines.status(i)["rails"][r]["counters"]["ops_taken"] for i in range(2))
                for r in range(RAILS)]

    def test_four_rails_work_on_one_poll_core(self):
        engines = self.start(2, pool_bytes="64MiB", settings=SETTINGS)
        for i in range(2):
            rails = engines.status(i)["rails"]
            self.assertEqual([r["poll_core"] for r in rails], [0] * RAILS)
        expected = self.describe("--requests", 300)
        got = self.replay(engines, "--requests", 300)
        self.assertEqual(got["hits"], expected["prefix_hits"])
        for nothing in ("wrong", "late", "sets_failed", "stale", "timeouts"):
            self.assertEqual(got[nothing], 0, nothing)
        self.assertGreater(min(self.used(engines)), 0, "each rail was used")
        self.assert_idle(engines)
        # The poll core has slept, and each of its rails must still wake it.
        before = self.used(engines)
        got = self.replay(engines, "--requests", 100, "--namespace", "again")
        self.assertEqual((got["wrong"], got["timeouts"]), (0, 0))
        self.assertTrue(all(b > a for a, b in zip(before, self.used(engines))))
        self.stop_cleanly(engines)

    def test_a_poll_core_costs_one_thread(self):
        def threads(settings):
            engines = self.start(1, pool_bytes="16MiB", settings=[SETTINGS[0], *settings])
            self.assertEqual(len(engines.status(0)["rails"]), RAILS)
            count = sum(comm.strip() not in ("pc-populate", "pc-register")  # these end soon
                        for _, comm in harness.tasks(engines.process[0].pid, "comm"))
            self.stop_cleanly(engines)
            return count
        self.assertEqual(threads(["rail.poll_cores=4"]) - threads(["rail.poll_cores=1"]), 3)


if __name__ == "__main__":
    harness.main()
