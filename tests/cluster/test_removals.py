# SPDX-License-Identifier: Apache-2.0
"""Pages that are removed while their holder is away stay away when it comes back."""

import os
import signal

import harness

CTL = harness.program("tools/peercachectl")
SETTINGS = ["cluster.heartbeat_ms=100", f"cluster.dead_after_ms={int(1000 * harness.SLOW)}"]
SEGMENT = 1 << 20
DISK = [f"disk.segment_bytes={SEGMENT}", f"disk.bytes={24 * SEGMENT}"]
REMOVED, AGAIN, KEPT = [[f"{kind}{n}" for n in range(4)] for kind in ("gone", "again", "kept")]


class Removals(harness.ClusterTest):
    def ctl(self, socket, *words, expect=0):
        done = harness.run([CTL, "--socket", socket, *words], capture_output=True, text=True)
        if expect is not None:
            self.assertEqual(done.returncode, expect, f"{words}: {done.stdout}{done.stderr}")
        return done

    def value(self, socket, key):
        """Or None if there is none. A host that runs again has no links in the first moments."""
        def answer():
            done = self.ctl(socket, "get", key, expect=None)
            return None if done.stderr == f"{key}: unreachable\n" else done
        done = harness.wait_for(answer, 60, f"an answer about {key}")
        return done.stdout if done.returncode == 0 else None

    def members(self, engines, i):
        return [m["name"] for m in engines.status(i)["members"] if m["state"] == "up"]

    def see(self, engines, count, of):
        harness.wait_for(
            lambda: all(len(self.members(engines, i)) == count for i in of), 60,
            f"{count} members on the maps of {of}")

    def fill(self, engines):
        self.see(engines, engines.nodes, range(engines.nodes))
        for key in REMOVED + AGAIN + KEPT:
            self.ctl(engines.sockets[0], "put", key, "--string", "old")

    def remove(self, engines):
        """By host 1, while host 0 is away; some keys get a new value."""
        for key in REMOVED + AGAIN:
            done = self.ctl(engines.sockets[1], "rm", key, expect=None)
            self.assertEqual((done.returncode, done.stdout), (1, f"{key}: unreachable\n"))
        for key in AGAIN:
            self.ctl(engines.sockets[1], "put", key, "--string", "new")

    def check(self, engines, nodes):
        self.see(engines, nodes, range(nodes))
        for key in KEPT:
            for i in range(nodes):
                harness.wait_for(lambda i=i, key=key: self.value(engines.sockets[i], key) == "old",
                                 60, f"{key} on host {i}")
        for i in range(nodes):
            self.assertEqual({key: self.value(engines.sockets[i], key) for key in REMOVED + AGAIN},
                             {key: "new" if key in AGAIN else None for key in REMOVED + AGAIN})
        for key in KEPT:
            self.ctl(engines.sockets[1], "rm", key)
        self.stop_cleanly(engines)

    def restarted(self, number, nodes):
        """The engine of host 0 ends; its keeper starts another one after the removals."""
        engines = self.start(nodes, settings=SETTINGS, keeper=True)
        self.fill(engines)
        pid = engines.engine_pid(0)
        harness.freeze(engines.process[0])
        os.kill(pid, number)
        self.see(engines, nodes - 1, range(1, nodes))
        self.remove(engines)
        engines.process[0].send_signal(signal.SIGCONT)
        harness.wait_for(lambda: engines.engine_pid(0) not in (None, pid), 60, "a new engine")
        # The first answer of the new engine counts, too: no client is served before.
        self.assertEqual([self.value(engines.sockets[0], key) for key in REMOVED],
                         [None] * len(REMOVED))
        self.check(engines, nodes)

    def test_a_holder_that_was_killed_and_restarted(self):
        self.restarted(signal.SIGKILL, 3)

    def test_a_holder_that_was_stopped_and_restarted(self):
        self.restarted(signal.SIGTERM, 2)

    def test_a_holder_that_was_frozen(self):
        engines = self.start(3, settings=SETTINGS)
        self.fill(engines)
        harness.freeze(engines.process[0])
        self.see(engines, 2, (1, 2))
        self.remove(engines)
        engines.process[0].send_signal(signal.SIGCONT)
        self.check(engines, 3)

    def test_a_holder_with_a_disk_and_without_a_keeper(self):
        with harness.tempfile.TemporaryDirectory() as folder:
            engines = self.start(2, settings=SETTINGS + DISK, disk=folder)
            self.fill(engines)
            engines.process[0].send_signal(signal.SIGTERM)
            self.assertEqual(harness.ended(engines.process[0]), 0)
            self.see(engines, 1, (1,))
            self.remove(engines)
            engines.launch(0)
            engines.wait_ready(0)
            self.check(engines, 2)

    def test_an_engine_that_has_not_joined_yet_promises_nothing(self):
        engines = self.start(3, settings=SETTINGS, keeper=True)
        self.fill(engines)
        pid = engines.engine_pid(1)
        os.kill(pid, signal.SIGKILL)
        told = {}
        for key in REMOVED + AGAIN:
            harness.wait_for(lambda: engines.engine_pid(1) not in (None, pid), 60, "a new engine")
            told[key] = self.ctl(engines.sockets[1], "rm", key, expect=None).returncode
        for key, status in told.items():
            if status == 0:
                self.assertIsNone(self.value(engines.sockets[2], key), key)
        self.stop_cleanly(engines)


if __name__ == "__main__":
    harness.main()
