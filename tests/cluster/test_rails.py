# SPDX-License-Identifier: Apache-2.0
"""Rails that fail while a client reads: bandwidth is lost but no page, and the rail comes back.

Two engines of four software rails each. A client reads all the time and compares every byte; the
test makes a rail of its engine fail through test.fault_file, waits until the engine has noticed,
removes the fault and waits until the rail is in use again.
"""

import json
import os
import signal
import tempfile

import harness

RAILS = 4
MORE = 100  # pages read over a rail until it counts as used


class RailsFail(harness.ClusterTest):
    def setUp(self):
        handle, self.faults = tempfile.mkstemp(prefix="peercache-faults-")
        os.close(handle)
        self.addCleanup(os.unlink, self.faults)
        # On a loaded machine a poll core may not run for a while: that must not count as a stall.
        self.engines = self.start(2, pool_bytes="96MiB", settings=[
            "rail.devices=" + ",".join(["soft"] * RAILS), "rail.stall_ms=60",
            "cluster.heartbeat_ms=100", "cluster.dead_after_ms=5000",
            "test.fault_file=" + self.faults])

    def fault(self, text):
        with open(self.faults + ".new", "w") as f:
            f.write(text)
        os.rename(self.faults + ".new", self.faults)

    def read(self, page="64KiB", batch=32):
        """Starts the client; returns when it has read pages over every rail."""
        client = harness.tool("tools/peercache-bench", "get", "--seconds", 600, "--verify",
                              "--no-baseline", "--working-set", "64MiB", "--page-bytes", page,
                              "--batch", batch, "--json", "-", sockets=self.engines.sockets)
        self.addCleanup(client.kill)
        self.moves(range(RAILS), client)
        return client

    def rails(self):
        return self.engines.status(0)["rails"]

    def moves(self, rails, client=None):
        """Waits until each of these rails has read MORE more pages."""
        def pages():
            return [r["counters"]["pages_read"] for r in self.rails()]
        before = pages()

        def more():
            if client and client.poll() is not None:
                raise AssertionError("the client ended: " + "".join(client.communicate()))
            now = pages()
            return all(now[r] > before[r] + MORE for r in rails)
        harness.wait_for(more, 60, f"pages read over rails {list(rails)}")

    def counters(self, name):
        return self.engines.status(0)["counters"][name]

    def all_in_use(self):
        return all(r["state"] == "up" and r["figures"]["rail_peers_out"] == 0 for r in self.rails())

    def finish(self, client):
        """Ends the client and checks that every page was a hit with the right bytes."""
        harness.end_early(client, signal.SIGINT)
        status, out, err = harness.finish(client)
        self.assertEqual(status, 0, out + err)
        got = json.loads(out[out.index("{"):])
        evicted = self.engines.status(1)["counters"]["pages_evicted"]
        self.assertEqual(evicted, 0, "the pools are large enough")
        self.assertEqual((got["misses"], got["wrong"]), (0, 0))
        self.assertEqual(got["hits_local"], 0)
        self.stop_cleanly(self.engines)

    def fails_and_returns(self, rail, fault, state, **reading):
        client = self.read(**reading)
        self.fault(f"{rail}:{fault}")
        harness.wait_for(lambda: self.rails()[rail]["state"] == state, 30, f"rail is {state}")
        others = [r for r in range(RAILS) if r != rail]
        self.moves(others, client)
        self.fault("")
        harness.wait_for(self.all_in_use, 30, "the rail is in use again")
        self.moves(range(RAILS), client)
        self.assertGreaterEqual(self.counters("paths_out"), 1)
        # A pause of the whole machine also counts as a stall: paths go out of use and come back.
        harness.wait_for(lambda: self.counters("paths_out") == self.counters("paths_back"), 30,
                         "every path that went out of use is back")
        self.finish(client)

    def test_a_rail_that_reports_a_lost_link_costs_no_page(self):
        self.fails_and_returns(2, "down", "down")

    def test_a_rail_that_answers_nothing_costs_no_page(self):
        self.fails_and_returns(1, "mute", "down")

    def test_a_rail_that_answers_nothing_during_reads_in_slices_costs_no_page(self):
        self.fails_and_returns(3, "mute", "down", page="1MiB", batch=2)

    def test_a_work_request_that_ends_with_an_error_costs_no_page(self):
        client = self.read()
        for rail in range(RAILS):
            before = self.counters("paths_back")
            self.fault(f"{rail}:error")
            harness.wait_for(lambda: self.counters("paths_back") > before, 30, "back in use")
            self.fault("")
        harness.wait_for(self.all_in_use, 30, "all rails are in use again")
        self.moves(range(RAILS), client)
        self.finish(client)

    def test_a_rail_ten_times_slower_than_the_others_costs_no_page(self):
        client = self.read()
        self.fault("0:slow10")
        self.moves(range(1, RAILS), client)
        self.fault("")
        harness.wait_for(self.all_in_use, 30, "all rails are in use")
        self.moves(range(RAILS), client)
        self.finish(client)

    def test_two_rails_that_fail_at_once_cost_no_page(self):
        client = self.read()
        self.fault("0:mute 3:down")
        harness.wait_for(lambda: [r["state"] for r in self.rails()] ==
                         ["down", "up", "up", "down"], 30, "two rails are down")
        self.moves([1, 2], client)
        self.fault("")
        harness.wait_for(self.all_in_use, 30, "all rails are in use again")
        self.finish(client)

    def test_a_dead_peer_takes_no_rail_down_and_costs_no_more_than_the_deadline(self):
        client = harness.tool("tools/peercache-bench", "replay", "--requests", 4000,
                              "--timeout-ms", 2000, "--json", "-", sockets=self.engines.sockets)
        harness.wait_for(lambda: sum(r["counters"]["pages_read"] for r in self.rails()) > 500, 60,
                         "the replay reads from the other engine")
        self.engines.kill(1)
        status, out, err = harness.finish(client)
        self.assertEqual(status, 0, out + err)
        got = json.loads(out[out.index("{"):])
        self.assertEqual((got["wrong"], got["late"]), (0, 0))
        self.engines.wait_members(1, among=[0])
        harness.wait_for(self.all_in_use, 30, "no rail lists an unreachable peer")
        self.engines.restart(1)
        self.engines.wait_members(2)
        self.finish(self.read())


if __name__ == "__main__":
    harness.main()
