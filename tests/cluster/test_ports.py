# SPDX-License-Identifier: Apache-2.0
"""Ports of NICs as they live in a rack, on pretended ConnectX: the GIDs of a port move to other
indexes, a port has no link when its engine starts, a NIC is removed and comes back, also after the
engine has started without it, the engine is started again meanwhile. Pages are read both ways over
every rail within SECONDS of the link, and no engine is restarted for that.

$PEERCACHE_PORTS rails (2); $PEERCACHE_PORT_PAIRS=all: every pair of events, at one host and at two.
"""

import contextlib
import itertools
import json
import os
import socket
import struct
import time

import harness

RAILS = int(os.environ.get("PEERCACHE_PORTS", "2"))
ALL = os.environ.get("PEERCACHE_PORT_PAIRS") == "all"
SECONDS = 5
MAGIC = 0x31736d2d78636f73  # struct uv_message
PORT, GID, GONE = 3, 4, 5  # enum uv_message_kind
LAST = RAILS - 1


class Hosts(harness.cluster.Cluster):
    """Engines on RoCE ports; `down` and `gone` are the lists of tools/soft-connectx."""

    def __init__(self, nodes=2, down="", rails=RAILS, devices=RAILS, settings=(), gone="",
                 **options):
        super().__init__(harness.BUILD, nodes, device="mlx5", pool_bytes="32MiB", settings=[
            "rail.devices=" + ",".join(f"mlx5_{r}" for r in range(rails)),
            "engine.huge_pages=no", *harness.patient(settings)], **options)
        self.before += ["--link", "roce", "--devices", str(devices)]
        self.rails, self.down, self.gone = rails, [down] * nodes, [gone] * nodes

    def command(self, i):
        words = super().command(i)
        at = len(self.before)
        return (words[:at] + (["--down", self.down[i]] if self.down[i] else []) +
                (["--gone", self.gone[i]] if self.gone[i] else []) + words[at:])

    def nic(self, i, rail):
        """The name of the socket of a NIC: its process makes them in the order of the NICs."""
        with open("/proc/net/unix", encoding="ascii") as file:
            names = {words[6]: words[7] for words in map(str.split, file) if len(words) == 8
                     and words[7].startswith("@soft-connectx-")}
        fds = f"/proc/{self.engine_pid(i)}/fd/"
        nics = []
        for fd in sorted(os.listdir(fds), key=int):  # not by inode: each CPU numbers its own
            with contextlib.suppress(FileNotFoundError):
                inode = os.readlink(fds + fd).removeprefix("socket:[").removesuffix("]")
                nics += [names[inode]] if inode in names else []
        return nics[rail].replace("@", "\0")

    def tell(self, i, rail, kind, value):
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as s:
            s.sendto(struct.pack("<QII", MAGIC, kind, value), self.nic(i, rail))

    def state(self, i, rail):
        return (self.status(i) or {"rails": [{"state": "?"}] * RAILS})["rails"][rail]["state"]

    def pages_read(self, i):
        return [rail["counters"]["pages_read"] for rail in self.status(i)["rails"]]

    def findings(self, i):
        done = harness.run([harness.program("tools/peercachectl"), "--socket", self.sockets[i],
                            "health"], capture_output=True, text=True)
        return done.stdout


class Base(harness.ClusterTest):
    def hosts(self, *arguments, **options):
        hosts = Hosts(*arguments, **options)
        self.addCleanup(hosts.stop)
        return hosts.start()

    def reads(self, hosts, i, rails=None):
        """Host i reads pages of the other one: every page is right, and each of these rails reads
        some. False: not now."""
        before = hosts.pages_read(i)
        client = harness.tool("tools/peercache-bench", "get", "--seconds", 1, "--verify",
                              "--no-baseline", "--working-set", "8MiB", "--page-bytes", "64KiB",
                              "--batch", 16, "--json", "-",
                              sockets=[hosts.sockets[i], hosts.sockets[1 - i]])
        status, out, err = harness.finish(client)
        if status:
            return False
        got = json.loads(out[out.index("{"):])
        self.assertEqual(got["wrong"], 0, out + err)
        after = hosts.pages_read(i)
        return got["misses"] == 0 and all(
            after[r] > before[r] for r in (range(hosts.rails) if rails is None else rails))

    def reads_both_ways(self, hosts, what, rails=None):
        """Within SECONDS of clock(), of which a run of the benchmark takes one."""
        for i in (0, 1):
            harness.wait_for(lambda: self.reads(hosts, i, rails), SECONDS,
                             f"{what}: host {i} reads over every rail\n" + hosts.log(i)[-1500:])

    def is_down(self, hosts, i, rail):
        harness.wait_for(lambda: hosts.state(i, rail) == "down", 10, f"rail {rail} is down")


class Ports(Base):
    def test_moved_gids_are_found_without_an_event_of_the_link(self):
        hosts = self.hosts()
        self.reads_both_ways(hosts, "before")
        for i in (0, 1):
            hosts.tell(i, LAST, GID, 1)
            harness.wait_for(lambda: f"mlx5_{LAST} port 1: RoCE v2, GID 1 ::ffff" in hosts.log(i),
                             SECONDS, "the GID is found")
            self.reads_both_ways(hosts, f"moved at {i}")
        self.stop_cleanly(hosts)

    def test_a_fixed_index_that_no_longer_fits_is_a_finding_with_its_remedy(self):
        hosts = self.hosts(settings=["rail.gid_index=3"])
        self.reads_both_ways(hosts, "before")
        hosts.tell(0, LAST, GID, 1)
        self.is_down(hosts, 0, LAST)
        for words in (f"rail_down: rail {LAST} (mlx5_{LAST}) is down", "GID 3 has become fe80:",
                      "set rail.gid_index = -1"):
            self.assertIn(words, hosts.findings(0))
        hosts.tell(0, LAST, GID, 0)
        self.reads_both_ways(hosts, "after")
        self.stop_cleanly(hosts)

    def test_without_any_link_or_with_one_missing_that_is_required_no_engine_starts(self):
        everything = ",".join(f"mlx5_{r}" for r in range(RAILS))
        for down, settings, said in ((everything, [], f"none of {RAILS} rail(s) can be used"),
                                     ("mlx5_0", ["rail.require_all=yes"], "rail.require_all")):
            with self.subTest(down), self.assertRaises(RuntimeError) as error:
                self.hosts(1, down, settings=settings)
            for words in (said, "mlx5_0 port 1 is not active", "check the cable"):
                self.assertIn(words, str(error.exception))

    def test_a_nic_that_is_not_there_is_a_lost_rail_and_the_others_serve(self):
        hosts = self.hosts(devices=RAILS - 1)
        self.reads_both_ways(hosts, "without a NIC", range(LAST))
        self.assertEqual(hosts.state(0, LAST), "lost")
        self.assertIn(f"rail {LAST} (mlx5_{LAST}) is lost: there is no NIC mlx5_{LAST} here",
                      hosts.findings(0))
        checked = harness.run([*hosts.command(0), "--check"], capture_output=True, text=True)
        self.assertEqual(checked.returncode, 2)
        self.assertIn(f"rail.devices: no NIC mlx5_{LAST} on this machine", checked.stderr)
        self.stop_cleanly(hosts)

    def test_a_nic_that_is_removed_comes_back_without_a_restart(self):
        hosts = self.hosts(gone=f"mlx5_{LAST}")
        self.reads_both_ways(hosts, "without a NIC", range(LAST))
        for i in (0, 1):
            put_back(hosts, i, LAST)
        self.reads_both_ways(hosts, "with the NIC")
        # a process to which those of the engines are dead leaves them their devices
        harness.run(["unshare", "--pid", "--fork", "--kill-child", *hosts.command(0), "--check"],
                    capture_output=True)
        for rail in range(RAILS):  # all of them: as when a driver is loaded anew
            hosts.tell(0, rail, GONE, 1)
        for rail in range(RAILS):
            removed(hosts, 0, rail)
        self.assertIn("rails_all_out: no rail is in use", hosts.findings(0))
        for rail in range(RAILS):
            put_back(hosts, 0, rail)
        self.reads_both_ways(hosts, "all NICs are back")
        self.assertEqual(hosts.status(0)["counters"]["rails_found"], RAILS + 1,
                         hosts.log(0)[-3000:])
        self.stop_cleanly(hosts)

    def test_a_client_reads_on_while_nics_are_removed_and_come_back(self):
        hosts = self.hosts(settings=["rail.mr_bytes=2MiB"])
        self.reads_both_ways(hosts, "before")
        client = harness.tool("tools/peercache-bench", "get", "--seconds", 12, "--verify",
                              "--no-baseline", "--working-set", "8MiB", "--page-bytes", "64KiB",
                              "--batch", 16, "--json", "-", sockets=hosts.sockets)
        for i in (0, 1):  # the host that reads, then the one that is read
            before = hosts.pages_read(0)[LAST]
            harness.wait_for(lambda: hosts.pages_read(0)[LAST] > before, SECONDS, "it reads")
            removed(hosts, i, LAST)
            put_back(hosts, i, LAST)
            harness.wait_for(lambda: hosts.state(i, LAST) == "up", SECONDS, "it is back")
            before = hosts.pages_read(0)[LAST]
            harness.wait_for(lambda: hosts.pages_read(0)[LAST] > before, SECONDS,
                             "the memory of the client is used on the NIC\n" + hosts.log(0)[-2000:])
        status, out, err = harness.finish(client)
        self.assertEqual(status, 0, out + err)
        got = json.loads(out[out.index("{"):])
        self.assertEqual((got["wrong"], got["misses"]), (0, 0), out + err)
        self.stop_cleanly(hosts)

    def test_a_restart_without_a_link_keeps_the_pages_of_all_rails(self):
        hosts = self.hosts(down=f"mlx5_{LAST}", keeper=True)
        self.reads_both_ways(hosts, "without the link", range(LAST))
        for i in (0, 1):
            hosts.tell(i, LAST, PORT, 1)
        self.reads_both_ways(hosts, "with the link")
        # the benchmark leaves none of its pages
        for key in range(4 * RAILS):
            harness.run([harness.program("tools/peercachectl"), "--socket", hosts.sockets[0],
                         "put", f"kept{key}", "--string", "page"], check=True,
                        capture_output=True)
        harness.wait_for(lambda: hosts.figure(0, "pages") == 4 * RAILS, 10, "pages are kept")
        hosts.crash(0)
        self.is_down(hosts, 0, LAST)
        harness.wait_for(lambda: hosts.figure(0, "pages") == 4 * RAILS, 10, "they are adopted")
        self.reads_both_ways(hosts, "after the restart, without the link", range(LAST))
        hosts.tell(0, LAST, PORT, 1)
        self.reads_both_ways(hosts, "after the restart, with the link")
        self.stop_cleanly(hosts)


# What happens to a port, and what brings it back. Each: (host, rail) of the port.
class Event:
    def __init__(self, name, begin, end):
        self.name, self.begin, self.end = name, begin, end


def restarted(hosts, i, _rail):
    hosts.kill(i)
    hosts.restart(i)
    hosts.wait_members(2)


def with_nic(names, rail):
    """A list of tools/soft-connectx, with one more NIC."""
    return ",".join(sorted({f"mlx5_{rail}", *names.split(",")} - {""}))


def without_link(hosts, i, rail):
    hosts.down[i] = with_nic(hosts.down[i], rail)
    restarted(hosts, i, rail)


def linked(hosts, i, rail):
    hosts.down[i] = ""
    hosts.tell(i, rail, PORT, 1)


def removed(hosts, i, rail):
    hosts.gone[i] = with_nic(hosts.gone[i], rail)
    hosts.tell(i, rail, GONE, 1)
    harness.wait_for(lambda: f"is lost: there is no NIC mlx5_{rail} here" in hosts.findings(i), 10,
                     f"mlx5_{rail} is gone")


def without_nic(hosts, i, rail):
    hosts.gone[i] = with_nic(hosts.gone[i], rail)
    restarted(hosts, i, rail)


def put_back(hosts, i, rail):
    hosts.gone[i] = ""
    hosts.tell(i, rail, GONE, 0)


def moves(hosts, i, rail):
    hosts.tell(i, rail, PORT, 0)
    hosts.tell(i, rail, GID, 1)


EVENTS = [Event("GIDs move", moves, linked),
          Event("no link at the start", without_link, linked),
          Event("NIC removed", removed, put_back),
          Event("no NIC at the start", without_nic, put_back),
          Event("engine restarted", restarted, lambda *_: None)]


class Pairs(Base):
    def pair(self, hosts, first, second):
        """`first` and `second` are (event, host, rail): both have begun before one ends."""
        what = " × ".join(f"{e.name} at host {i} rail {r}" for e, i, r in (first, second))
        for event, i, rail in (first, second):
            event.begin(hosts, i, rail)
        begun = time.monotonic()
        for event, i, rail in (first, second):
            event.end(hosts, i, rail)
        self.reads_both_ways(hosts, what)
        print(f"{what}: {time.monotonic() - begun:.1f} s")

    def test_pairs_of_events(self):
        hosts = self.hosts()
        self.reads_both_ways(hosts, "before")
        if ALL:
            for first, second in itertools.product(EVENTS, EVENTS):
                self.pair(hosts, (first, 0, LAST), (second, 1, 0))
                # an engine none of whose ports can be used does not start
                if RAILS > 2 or not (
                        first.begin in (without_link, removed, without_nic)
                        and second.begin in (without_link, without_nic)):
                    self.pair(hosts, (first, 0, LAST), (second, 0, 0))
                self.pair(hosts, (first, 1, LAST), (second, 0, LAST))
        else:
            for first, second in itertools.pairwise(EVENTS):
                self.pair(hosts, (first, 0, LAST), (second, 1, 0))
        self.stop_cleanly(hosts)


if __name__ == "__main__":
    harness.main()
