# SPDX-License-Identifier: Apache-2.0
"""cluster.address as a name or auto, and seeds as names: hosts whose names stand for several
addresses, or for a loopback one as Debian writes it, find each other. Network namespaces are the
hosts, each with an /etc/hosts of its own in a mount namespace; both need root."""

import os
import subprocess
import tempfile
import unittest

import harness
from test_seeds import Engines, SeedTest


class Hosts(Engines):
    """Engines in network namespaces; hosts[i] is the /etc/hosts of engine i."""

    def __init__(self, hosts, settings_of):
        super().__init__(len(hosts), settings_of, netns=True, link="tcp")
        self.hosts = hosts
        self.folder = tempfile.TemporaryDirectory(prefix="peercache-hosts-")

    def command(self, i):
        path = os.path.join(self.folder.name, f"hosts{i}")
        with open(path, "w", encoding="ascii") as file:
            file.write("127.0.0.1 localhost\n" + self.hosts[i])
        command = super().command(i)
        enter = ["unshare", "--mount", "sh", "-c",
                 f"mount --bind {path} /etc/hosts && exec \"$@\"", "sh"]
        return command[:4] + enter + command[4:]  # ip netns exec NAME

    def launch(self, i):
        if i == 0:
            for n, name in enumerate(self.netns.names):
                subprocess.run(["ip", "-n", name, "address", "add", f"fd00:77::{n + 1}/64", "dev",
                                "eth0", "nodad"], check=True)
        super().launch(i)

    def stop(self):
        try:
            return super().stop()
        finally:
            self.folder.cleanup()


@unittest.skipIf(os.geteuid(), "needs root for network and mount namespaces")
class Names(SeedTest):
    def joined(self, hosts, settings_of, address):
        """Starts the engines; each must have these addresses, and no finding."""
        engines = Hosts(hosts, settings_of)
        self.addCleanup(engines.stop)
        engines.start()
        engines.joined(len(hosts))
        for i in range(len(hosts)):
            self.assertEqual({m["address"] for m in engines.status(i)["members"]}, set(address))
            self.until(lambda: engines.findings(i) == {}, "no finding")
        return engines

    def test_a_head_whose_own_name_is_127_0_1_1_is_reached_by_others(self):
        hosts = ["127.0.1.1 head\n", "10.77.0.1 head\n", "10.77.0.1 head\n"]
        engines = self.joined(hosts, lambda _: ["cluster.address=auto", "cluster.seeds=head:31998"],
                              ["10.77.0.1", "10.77.0.2", "10.77.0.3"])
        self.assertIn("this host has no other", engines.log(0))
        self.until(lambda: engines.status(0)["uptime_ms"] > 7000, "seven seconds")
        self.assertEqual(engines.findings(0), {}, "a seed that is this engine is not silent")
        self.assertIn("from it this host reaches the seed head", engines.log(1))
        self.stop_cleanly(engines)

    def test_a_name_of_this_host_that_is_127_0_1_1_is_replaced(self):
        hosts = ["127.0.1.1 one\n10.77.0.2 two\n", "10.77.0.1 one\n127.0.1.1 two\n"]
        engines = self.joined(hosts, lambda i: [f"cluster.address={['one', 'two'][i]}",
                                                "cluster.seeds=one:31998,two:31998",
                                                f"metrics.address={['one', 'two'][i]}"],
                              ["10.77.0.1", "10.77.0.2"])
        for i in (0, 1):
            self.assertIn("on this host that name has loopback addresses only", engines.log(i))
            listens = subprocess.run(["ip", "netns", "exec", engines.netns.names[i], "ss", "-Hltn"],
                                     capture_output=True, text=True).stdout
            self.assertIn(f" 10.77.0.{i + 1}:{engines.metrics_port[i]} ", listens)
        self.stop_cleanly(engines)

    def test_a_name_with_both_families_gives_one_family_to_all(self):
        both = "fd00:77::1 head\n10.77.0.1 head\n"
        for address in ("auto", "head"):
            engines = self.joined(
                [both, both], lambda i: ["cluster.seeds=head:31998", "cluster.address=" +
                                         ("auto" if i else address)],
                ["10.77.0.1", "10.77.0.2"])
            self.stop_cleanly(engines)

    def test_seeds_of_ipv6_give_addresses_of_ipv6(self):
        both = "10.77.0.1 head\nfd00:77::1 head\n"
        engines = self.joined([both, both], lambda i: [
            "cluster.seeds=[fd00:77::1]:31998", f"cluster.address={'auto' if i else 'head'}"],
            ["fd00:77::1", "fd00:77::2"])
        self.stop_cleanly(engines)

    def test_all_addresses_of_a_seeds_name_are_tried(self):
        """The seed listens on one family, and the other engine has the other one."""
        both = "fd00:77::1 head\n10.77.0.1 head\n"
        engines = self.joined([both, both], lambda i: [
            "cluster.seeds=head:31998", f"cluster.address={['10.77.0.1', 'fd00:77::2'][i]}"],
            ["10.77.0.1", "fd00:77::2"])
        self.stop_cleanly(engines)


@unittest.skipIf(os.geteuid(), "needs root for network namespaces")
class Lost(SeedTest):
    """An address at which others reach an engine goes away while it runs, and comes back."""

    def change(self, engines, i, word, address):
        subprocess.run(["ip", "-n", engines.netns.names[i], "address", word, address, "dev",
                        "eth0", *(["nodad"] if word == "add" and ":" in address else [])],
                       check=True)

    def test_an_address_that_is_gone_is_a_finding_until_it_is_back(self):
        own = ["10.77.0.1", "fd00:77::2"]
        engines = Hosts(["", ""], lambda i: [
            f"cluster.address={own[i]}", "cluster.seeds=10.77.0.1:31998,[fd00:77::2]:31998",
            "metrics.address=127.0.0.1"])
        self.addCleanup(engines.stop)
        launch = engines.launch

        def ready(i):
            if i == 0:  # it may bind any address, and a route leads to all
                name = engines.netns.names[0]
                for words in (["ip", "netns", "exec", name, "sysctl", "-qw",
                               "net.ipv4.ip_nonlocal_bind=1"],
                              ["ip", "-n", name, "address", "add", "10.79.0.1/24", "dev", "eth0"],
                              ["ip", "-n", name, "route", "add", "default", "dev", "eth0"]):
                    subprocess.run(words, check=True)
            launch(i)
        engines.launch = ready
        engines.start()
        engines.joined(2)
        for i in (0, 1):
            self.until(lambda: engines.findings(i) == {}, "no finding")
        for i in (0, 1):
            self.change(engines, i, "del", f"{own[i]}/{24 if i == 0 else 64}")
            self.until(lambda: f"cluster.address = {own[i]}: no interface" in
                       str(engines.findings(i).get("address_gone")), "a finding")
            self.assertEqual(engines.ctl(i, "health")[0], 2)
            self.assertIn(f"cluster.address = {own[i]}: no interface of this host has this "
                          "address any more", engines.log(i))
        for i in (0, 1):
            self.change(engines, i, "add", f"{own[i]}/{24 if i == 0 else 64}")
            self.until(lambda: "address_gone" not in engines.findings(i), "it is back")
        engines.joined(2)
        for i in (0, 1):
            self.until(lambda: engines.findings(i) == {}, "no finding is left")
            self.assertEqual(engines.log(i).count("no interface of this host"), 1)
        self.stop_cleanly(engines)

    def test_the_address_of_the_data_network_counts_too(self):
        engines = Hosts(["", ""], lambda i: [f"soft.address=fd00:77::{i + 1}",
                                             "cluster.bind=0.0.0.0"])
        self.addCleanup(engines.stop)
        engines.start()
        engines.joined(2)
        self.change(engines, 1, "del", "fd00:77::2/64")
        self.until(lambda: list(engines.findings(1).get("address_gone", ())) == [
            "soft.address = fd00:77::2: no interface of this host has this address any "
            "more: give it back, or restart the engine with one that this host has"], "a finding")
        self.change(engines, 1, "del", "10.77.0.2/24")
        self.until(lambda: len(engines.findings(1).get("address_gone", ())) == 2, "both are gone")
        self.stop_cleanly(engines)


class Start(SeedTest):
    def alone(self, *values):
        """An engine on a host that has no address."""
        command = ["unshare", "--net", *([] if os.geteuid() == 0 else ["--map-root-user"]),
                   harness.program("engine/peercache-engine")]
        with tempfile.TemporaryDirectory() as folder:
            done = harness.run(
                [*command, "--set", f"engine.socket={folder}/s", "--set", "cluster.address=auto",
                 "--set", "engine.pool_bytes=16MiB", "--set", "engine.huge_pages=no", *values],
                capture_output=True, text=True)
        if "unshare" in done.stderr:
            self.skipTest("no network namespace can be made: " + done.stderr)
        return done

    def test_a_host_without_an_address_is_refused_with_the_remedy(self):
        for words in ([], ["--check"]):
            done = self.alone(*words)
            self.assertNotEqual(done.returncode, 0)
            self.assertIn("cluster.address = auto", done.stderr)
            self.assertIn("Set cluster.address to the address that other hosts reach", done.stderr)

    def test_a_check_takes_an_address_that_the_start_finds(self):
        done = self.alone("--check", "--set", "cluster.seeds=127.0.0.1:31998",
                          "--set", "metrics.port=0")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("all seeds are on this host", done.stderr)

    def test_seeds_of_this_host_give_a_loopback_address(self):
        engines = Engines(2)
        engines.settings_of = lambda i: ["cluster.address=auto", "cluster.seeds=" + (
            f"localhost:{engines.port[0]}" if i else f"127.0.0.1:{engines.port[0]}")]
        self.addCleanup(engines.stop)
        engines.start()
        engines.joined(2)
        self.assertIn("all seeds are on this host", engines.log(0))
        self.stop_cleanly(engines)


if __name__ == "__main__":
    harness.main()
