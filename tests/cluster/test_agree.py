# SPDX-License-Identifier: Apache-2.0
"""Engines of other hosts that do not fit together refuse each other, and both log both values once;
no engine joins and dies again and again. Hosts are network namespaces, which need root."""

import os
import unittest

import harness

BEATS = ["cluster.heartbeat_ms=100", "cluster.dead_after_ms=1000"]


class Agree(harness.ClusterTest):
    def start_apart(self, nodes, settings_of):
        """Starts engines with different settings, without waiting until they are one cluster."""
        engines = harness.cluster.Cluster(harness.BUILD, nodes, pool_bytes="16MiB", settings=BEATS,
                                          netns=True, link="tcp")
        whole = engines.command
        engines.command = lambda i: whole(i) + [
            x for setting in settings_of(i) for x in ("--set", setting)]
        engines.wait_members = lambda *_: None
        self.addCleanup(engines.stop)
        engines.start()
        del engines.wait_members
        return engines

    def wait_for_line(self, engines, i, *parts):
        harness.wait_for(lambda: self.lines(engines, i, *parts), 30,
                         f"engine {i} logs {parts}; it logged:\n{engines.log(i)}")

    @staticmethod
    def lines(engines, i, *parts):
        return [line for line in engines.log(i).splitlines() if all(p in line for p in parts)]

    def assert_quiet(self, engines, nodes):
        """Asserts that many dials later nothing more was logged and no engine joined another."""
        def dials():
            refused = [engines.status(i)["counters"]["members_refused"] for i in nodes]
            harness.wait_for(lambda: all(
                engines.status(i)["counters"]["members_refused"] >= refused[n] + 5
                for n, i in enumerate(nodes)), 60, "the engines continue to dial")
        dials()  # each engine has met each other one, in both directions
        def said():  # seeds where nothing listens have lines of their own
            return [[line for line in engines.log(i).splitlines()
                     if "has led to no member" not in line] for i in nodes]
        before = said()
        dials()
        self.assertEqual(said(), before)
        for i in nodes:
            self.assertEqual(engines.status(i)["counters"]["members_joined"], 0)
            self.assertEqual(len(engines.status(i)["members"]), 1)


@unittest.skipIf(os.geteuid(), "needs root for network namespaces")
class Loopback(Agree):
    def test_hosts_that_advertise_127_0_0_1_are_refused_with_the_fix(self):
        engines = self.start_apart(
            3, lambda i: [f"cluster.address={'127.0.0.1' if i else '10.77.0.1'}"])
        for i in (1, 2):
            address = engines.netns.addresses[i]
            self.wait_for_line(engines, 0, f"the engine at {address}", "is 127.0.0.1 there",
                               "Set cluster.address there")
            self.wait_for_line(engines, i, "is 10.77.0.1 there and 127.0.0.1 here",
                               "Set cluster.address here")
        self.assert_quiet(engines, (0, 1, 2))
        self.stop_cleanly(engines)


class Links(Agree):
    """Software NICs over shared memory reach one host."""

    @unittest.skipIf(os.geteuid(), "needs root for network namespaces")
    def test_shared_memory_between_two_hosts_is_refused_by_both_with_the_fix(self):
        engines = self.start_apart(2, lambda _: ["soft.link=shm"])
        for i in (0, 1):
            self.wait_for_line(engines, i, "is on another host, in another network namespace",
                               "Set soft.link = tcp on every engine")
        self.assert_quiet(engines, (0, 1))
        self.stop_cleanly(engines)


@unittest.skipIf(os.geteuid(), "needs root for network namespaces")
class Bind(Agree):
    def test_engines_that_listen_on_all_addresses_advertise_their_own(self):
        engines = self.start(3, pool_bytes="16MiB", netns=True, link="tcp",
                             settings=[*BEATS, "cluster.bind=0.0.0.0"])
        for i in range(3):
            self.assertEqual({m["address"] for m in engines.status(i)["members"]},
                             set(engines.netns.addresses))
        self.stop_cleanly(engines)


if __name__ == "__main__":
    harness.main()
