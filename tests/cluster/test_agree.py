# SPDX-License-Identifier: Apache-2.0
"""Engines that do not fit together refuse each other, and both log both values once; no engine
joins and dies again and again. Tests with other hosts use network namespaces, which need root."""

import os
import tempfile
import unittest

import harness
from played_member import WIRE

BEATS = ["cluster.heartbeat_ms=100", "cluster.dead_after_ms=1000"]


class Agree(harness.ClusterTest):
    def start_apart(self, nodes, settings_of, netns=False, program_of=lambda i: None):
        """Starts engines with different settings, without waiting until they are one cluster."""
        engines = harness.cluster.Cluster(harness.BUILD, nodes, pool_bytes="16MiB", settings=BEATS,
                                          netns=netns, link="tcp" if netns else "shm")
        whole = engines.command
        engines.command = lambda i: [
            program_of(i) or word if word == engines.engine else word for word in whole(i)] + [
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


class Settings(Agree):
    def test_another_number_of_replicas_is_refused_by_both(self):
        engines = self.start_apart(2, lambda i: [f"cluster.replicas={i + 1}"])
        self.wait_for_line(engines, 0, "cluster.replicas = 2 there, 1 here")
        self.wait_for_line(engines, 1, "cluster.replicas = 1 there, 2 here")
        self.assert_quiet(engines, (0, 1))
        self.stop_cleanly(engines)

    def test_another_cluster_is_refused_by_both(self):
        engines = self.start_apart(2, lambda i: [f"cluster.id={'blue' if i else 'green'}"])
        self.wait_for_line(engines, 0, "cluster.id = blue there, green here", "cluster.seeds")
        self.wait_for_line(engines, 1, "cluster.id = green there, blue here", "cluster.seeds")
        self.assert_quiet(engines, (0, 1))
        self.stop_cleanly(engines)


@unittest.skipIf(os.geteuid(), "needs root for network namespaces")
class Loopback(Agree):
    def test_hosts_that_advertise_127_0_0_1_are_refused_with_the_fix(self):
        engines = self.start_apart(
            3, lambda i: [f"cluster.address={'127.0.0.1' if i else '10.77.0.1'}"], netns=True)
        for i in (1, 2):
            address = engines.netns.addresses[i]
            self.wait_for_line(engines, 0, f"the engine at {address}", "is 127.0.0.1 there",
                               "Set cluster.address there")
            self.wait_for_line(engines, i, "is 10.77.0.1 there and 127.0.0.1 here",
                               "Set cluster.address here")
        self.assert_quiet(engines, (0, 1, 2))
        self.stop_cleanly(engines)


class Links(Agree):
    """Software NICs over shared memory reach one host; over TCP, those that use it, too."""

    @unittest.skipIf(os.geteuid(), "needs root for network namespaces")
    def test_shared_memory_between_two_hosts_is_refused_by_both_with_the_fix(self):
        engines = self.start_apart(2, lambda _: ["soft.link=shm"], netns=True)
        for i in (0, 1):
            self.wait_for_line(engines, i, "is on another host, in another network namespace",
                               "Set soft.link = tcp on every engine")
        self.assert_quiet(engines, (0, 1))
        self.stop_cleanly(engines)

    def test_shared_memory_beside_tcp_is_refused_by_both(self):
        engines = self.start_apart(2, lambda i: [f"soft.link={'tcp' if i else 'shm'}"])
        self.wait_for_line(engines, 0, "soft over tcp there, soft over shm here")
        self.wait_for_line(engines, 1, "soft over shm there, soft over tcp here")
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

    def test_an_engine_that_listens_on_all_addresses_and_advertises_loopback_does_not_start(self):
        engine = harness.cluster.find_program(harness.BUILD, "engine/peercache-engine")
        with tempfile.TemporaryDirectory() as folder:
            done = harness.run(
                [engine, "--set", f"engine.socket={folder}/s", "--set", "cluster.bind=0.0.0.0",
                 "--set", "engine.pool_bytes=16MiB", "--set", "engine.huge_pages=no"],
                capture_output=True, text=True)
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("cluster.bind = 0.0.0.0 listens for other hosts, but cluster.address = "
                      "127.0.0.1", done.stderr)
        self.assertIn("Set cluster.address to an address that other hosts reach", done.stderr)


class Versions(Agree):
    def test_an_engine_of_another_wire_version_is_refused_by_both(self):
        """Engine 1 is of the next wire version. Each logs both versions, and says so in health."""
        newer = harness.cluster.find_program(harness.BUILD, "tests/cluster/other_wire")
        engines = self.start_apart(2, lambda i: [], program_of=lambda i: newer if i else None)
        for i in range(2):
            said = (f"its wire version is {WIRE + 1 - i}, the wire version of this engine is "
                    f"{WIRE + i}. Upgrade the older engine")
            self.wait_for_line(engines, i, "is refused", said)
            harness.wait_for(lambda i=i, said=said: said in str(engines.status(i)["health"]), 30,
                             "the finding engine_refused")
        self.assert_quiet(engines, [0, 1])
        for i in range(2):
            self.assertEqual(len(self.lines(engines, i, "wire version")), 1, engines.log(i))
        self.stop_cleanly(engines)


if __name__ == "__main__":
    harness.main()
