# SPDX-License-Identifier: Apache-2.0
"""No host finds what was cleared in the cluster, also none that was away meanwhile."""

import json
import os
import signal

import harness

CTL = harness.program("tools/peercachectl")
SETTINGS = ["cluster.heartbeat_ms=100", f"cluster.dead_after_ms={int(1000 * harness.SLOW)}"]
SEGMENT = 1 << 20
DISK = [f"disk.segment_bytes={SEGMENT}", f"disk.bytes={24 * SEGMENT}"]
KEYS = [f"key{i}" for i in range(9)]
ONE = "pc2|model=one"  # the group that is cleared; another one stays


class Clear(harness.ClusterTest):
    def ctl(self, socket, *words, group=ONE, expect=0):
        done = harness.run([CTL, "--socket", socket, "--namespace", group, *words],
                           capture_output=True, text=True)
        if expect is not None:
            self.assertEqual(done.returncode, expect, f"{words}: {done.stdout}{done.stderr}")
        return done

    def values(self, socket, group=ONE):
        """Of all keys; None: a miss, or unreachable."""
        done = [self.ctl(socket, "get", key, group=group, expect=None) for key in KEYS]
        return [one.stdout if one.returncode == 0 else None for one in done]

    def fill(self, engines, value):
        for i, key in enumerate(KEYS):
            for group in (ONE, "other"):
                self.ctl(engines.sockets[i % engines.nodes], "put", key, "--string", value,
                         group=group)
        for socket in engines.sockets:
            self.wait_values(socket, value)

    def wait_values(self, socket, value, group=ONE):
        harness.wait_for(lambda: self.values(socket, group) == [value] * len(KEYS), 60,
                         f"{value} of all keys of {group}")

    def see(self, engines, count, of):
        def seen(i):
            return sum(m["state"] == "up" for m in engines.status(i)["members"]) == count
        harness.wait_for(lambda: all(seen(i) for i in of), 60, f"{count} members on {of}")

    def clear(self, engines, hosts):
        done = self.ctl(engines.sockets[1], "clear", "--cluster")
        self.assertEqual(done.stdout, f"{hosts} host(s) find no page of namespace {ONE} that was "
                         "stored before\n")

    def away(self, nodes, leave, come_back, **options):
        """Host 0 leaves the map, the others clear and store anew, it comes back."""
        engines = self.start(nodes, settings=SETTINGS + options.pop("more", []), **options)
        self.see(engines, nodes, range(nodes))
        self.fill(engines, "old")
        leave(engines)
        self.see(engines, nodes - 1, range(1, nodes))
        self.clear(engines, nodes - 1)
        for i in range(1, nodes):
            self.assertEqual(self.values(engines.sockets[i]), [None] * len(KEYS))
        self.ctl(engines.sockets[1], "put", KEYS[0], "--string", "new")
        come_back(engines)
        for _ in range(3):  # from its first answer on
            self.assertNotIn("old", self.values(engines.sockets[0]))
        self.see(engines, nodes, range(nodes))
        for i in range(nodes):
            self.assertNotIn("old", self.values(engines.sockets[i]))
        harness.wait_for(lambda: self.values(engines.sockets[0])[0] == "new", 60, "the new value")
        self.fill(engines, "newer")
        for i in range(1, nodes):
            self.wait_values(engines.sockets[i], "newer")
        return engines

    def test_all_hosts_and_one_group(self):
        engines = self.start(nodes=3)
        self.see(engines, 3, range(3))
        self.fill(engines, "old")
        pages = [engines.figure(i, "pages") for i in range(3)]
        self.clear(engines, 3)
        for socket in engines.sockets:
            self.assertEqual(self.values(socket), [None] * len(KEYS))
            self.wait_values(socket, "old", "other")
        self.fill(engines, "new")
        # the old pages leave the memory, too, and no new one does
        harness.wait_for(lambda: [engines.figure(i, "pages") for i in range(3)] == pages, 60,
                         "the sweep")
        done = harness.run([CTL, "--socket", engines.sockets[0], "--json", "clear", "--cluster"],
                           capture_output=True, text=True)
        self.assertEqual(json.loads(done.stdout)["hosts"], 3)
        for socket in engines.sockets:
            self.assertEqual(self.values(socket, "other"), [None] * len(KEYS))
        self.stop_cleanly(engines)

    def test_a_host_that_was_killed_and_is_restarted_with_its_pages(self):
        def leave(engines):
            self.pid = engines.engine_pid(0)
            harness.freeze(engines.process[0])
            os.kill(self.pid, signal.SIGKILL)

        def come_back(engines):
            engines.process[0].send_signal(signal.SIGCONT)
            harness.wait_for(lambda: engines.engine_pid(0) not in (None, self.pid), 60, "an engine")
        self.stop_cleanly(self.away(3, leave, come_back, keeper=True))

    def stopped(self, nodes, number, **options):
        def leave(engines):
            engines.process[0].send_signal(number)
            harness.ended(engines.process[0])

        def come_back(engines):
            engines.launch(0)
            engines.wait_ready(0)
        return self.away(nodes, leave, come_back, **options)

    def test_a_host_with_a_disk_and_without_a_keeper(self):
        with harness.tempfile.TemporaryDirectory() as folder:
            self.stop_cleanly(self.stopped(2, signal.SIGTERM, more=DISK, disk=folder))

    def test_one_host_with_a_disk_that_is_killed(self):
        with harness.tempfile.TemporaryDirectory() as folder:
            engines = self.start(1, settings=SETTINGS + DISK, disk=folder)
            self.fill(engines, "old")
            done = self.ctl(engines.sockets[0], "clear", "--cluster")
            self.assertIn("1 host(s)", done.stdout)
            engines.process[0].send_signal(signal.SIGKILL)
            harness.ended(engines.process[0])
            engines.launch(0)
            engines.wait_ready(0)
            self.assertEqual(self.values(engines.sockets[0]), [None] * len(KEYS))
            self.fill(engines, "new")
            self.stop_cleanly(engines)


if __name__ == "__main__":
    harness.main()
