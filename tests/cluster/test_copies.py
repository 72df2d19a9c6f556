# SPDX-License-Identifier: Apache-2.0
"""Copies on real engines: pages of one host are brought to another one, where they outlive the
first; removals, and reads that are verified meanwhile."""

import ctypes
import json
import os
import signal
import subprocess
import sys
import threading

import harness

sys.path.insert(0, os.path.join(harness.BUILD, "engine", "client", "python", "peercache"))
import _peercache  # noqa: E402

CTL = harness.program("tools/peercachectl")
SPACE = "copies"
PAGE = 32768
SETTINGS = ["cluster.heartbeat_ms=100", f"cluster.dead_after_ms={int(2000 * harness.SLOW)}"]


def ctl(socket, *arguments):
    return harness.run([CTL, "--socket", socket, "--namespace", SPACE, *arguments],
                       capture_output=True, text=True, seconds=120)


def content(key):
    return (key.encode() + b".") * (PAGE // (len(key) + 1) + 1)


class Copies(harness.ClusterTest):
    def put(self, session, keys):
        base = session.alloc(PAGE)
        for key in keys:
            ctypes.memmove(base, content(key), PAGE)
            self.assertEqual(session.set(SPACE, [key], [base], PAGE, 20000), [True])
        session.release(base)

    def get(self, session, keys):
        """Gets each key and returns the hits; their bytes are right."""
        base = session.alloc(PAGE)
        hits = []
        for key in keys:
            if session.get(SPACE, [key], [base], PAGE, 20000)[0]:
                self.assertEqual(ctypes.string_at(base, PAGE), content(key)[:PAGE], key)
                hits.append(key)
        session.release(base)
        return hits

    def bring(self, session, keys):
        """Prefetches until all keys are taken."""
        left = list(keys)

        def taken():
            done = session.prefetch(SPACE, left, 20000)
            left[:] = [key for key, good in zip(left, done) if not good]
            return not left
        harness.wait_for(taken, 60, "every page is taken")

    def made(self, engines, i):
        return engines.status(i)["counters"]["copies_made"]

    def local_hits(self, engines, i):
        return engines.figure(i, "get_local_pages_total")

    def test_copies_outlive_their_origin(self):
        engines = self.start(3, pool_bytes="32MiB", settings=SETTINGS)
        sessions = [_peercache.Session(socket) for socket in engines.sockets]
        keys = [f"page {n}" for n in range(300)]
        self.put(sessions[0], keys)
        self.assertEqual(sessions[1].prefetch(SPACE, ["none"], 20000), [False])
        self.bring(sessions[1], keys)
        harness.wait_for(lambda: self.made(engines, 1) == len(keys), 60, "all pages are copied")
        before = self.local_hits(engines, 1)
        self.assertEqual(self.get(sessions[1], keys), keys)
        self.assertEqual(self.local_hits(engines, 1) - before, len(keys))
        self.bring(sessions[1], keys)  # they are here
        self.assertEqual(self.made(engines, 1), len(keys))
        shown = json.loads(ctl(engines.sockets[1], "--json", "explain", keys[0]).stdout)
        self.assertEqual((shown["here"], shown["here_why"], len(shown["holders"])),
                         ("memory", "prefetched", 2))
        self.assertIn("in memory, prefetched", ctl(engines.sockets[1], "explain", keys[0]).stdout)
        # a removal reaches the copy, too
        self.assertEqual(sessions[2].remove(SPACE, [keys[0]], 20000), [True])
        self.assertEqual(self.get(sessions[1], keys[:1]), [])
        engines.kill(0)
        sessions[0].close()
        engines.wait_members(2, among=[1, 2])
        self.assertEqual(self.get(sessions[2], keys[1:]), keys[1:])
        done = ctl(engines.sockets[2], "prefetch", keys[1], keys[2])
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        harness.wait_for(lambda: self.made(engines, 2) == 2, 60, "the command's pages are copied")
        for session in sessions[1:]:
            session.close()

    def test_reads_and_removals_beside_copies(self):
        engines = self.start(2, pool_bytes="8MiB", settings=SETTINGS)
        keys = [f"page {n}" for n in range(160)]
        stop, failed, away = threading.Event(), [], []

        def reader(i):
            session = _peercache.Session(engines.sockets[i])
            try:
                while not stop.is_set():
                    self.get(session, keys)
                    session.prefetch(SPACE, keys, 20000)
            except Exception as error:  # pylint: disable=broad-except
                failed.append(error)
            session.close()
        session = _peercache.Session(engines.sockets[0])
        self.put(session, keys)
        threads = [threading.Thread(target=reader, args=(i,)) for i in (1, 1, 0)]
        for thread in threads:
            thread.start()
        try:
            for turn in range(6):
                gone = keys[turn * 10:turn * 10 + 10]
                # both pools have less room than all pages: copies evict, and are evicted
                self.assertEqual(len(session.remove(SPACE, gone, 20000)), 10)
                self.assertEqual(self.get(session, gone), [])
                self.put(session, gone[5:])
                away += gone[:5]
                self.assertEqual(self.get(session, away), [], "no removed page returns")
            harness.wait_for(lambda: self.made(engines, 1) > 100 or failed, 60, "copies were made")
        finally:
            stop.set()
            for thread in threads:
                thread.join()
        self.assertEqual(failed, [])
        self.assertEqual(self.get(session, away), [])
        session.close()
        self.stop_cleanly(engines)

    def start_with(self, each, **options):
        """As start(), with further settings of each engine."""
        engines = harness.cluster.Cluster(harness.BUILD, len(each), **options)
        command = engines.command
        engines.command = lambda i: command(i) + [
            word for value in each[i] for word in ("--set", value)]
        self.addCleanup(engines.stop)
        return engines.start()

    def storage(self, policy, pool="8MiB"):
        """Two producers and a storage host whose pool has room for all pages."""
        engines = self.start_with(
            [[f"engine.write_policy={policy}"]] * 2 + [
                ["engine.role=storage", "engine.pool_bytes=64MiB"]],
            pool_bytes=pool, settings=harness.patient(SETTINGS))
        harness.wait_for(lambda: all(engines.figure(i, "storage_hosts") == (policy != "local")
                                     for i in (0, 1)), 60, "the producers know the storage host")
        return engines, [_peercache.Session(socket) for socket in engines.sockets]

    def kept(self, engines, i):
        return engines.status(i)["counters"]["storage_pages"]

    def holders(self, engines, key):
        """The members that have the page, by their numbers."""
        shown = json.loads(ctl(engines.sockets[2], "--json", "explain", key).stdout)
        ports = [str(port) for port in engines.port]
        return sorted(ports.index(one["name"].rsplit(":", 1)[-1]) for one in shown["holders"])

    def test_a_storage_host_keeps_what_producers_evict(self):
        engines, sessions = self.storage("storage")
        keys = [[f"page {i} {n}" for n in range(600)] for i in (0, 1)]
        both = [f"of both {n}" for n in range(20)]
        for i in (0, 1):
            self.put(sessions[i], both)
            self.put(sessions[i], keys[i])
        every = keys[0] + keys[1] + both
        harness.wait_for(lambda: self.made(engines, 2) == len(every), 60, "it has all pages")
        self.assertEqual(self.get(sessions[0], every), every)
        self.assertEqual(self.holders(engines, keys[0][0]), [2])
        self.assertEqual(self.holders(engines, keys[0][-1])[-1:], [2])
        shown = json.loads(ctl(engines.sockets[2], "--json", "explain", keys[0][0]).stdout)
        self.assertEqual(shown["here_why"], "kept for others")
        # the storage host is killed and comes back: no set fails, no get is wrong
        engines.kill(2)
        sessions[0].clear(SPACE, 20000)  # else pages that were used would stay, and not new ones
        later = [f"later {n}" for n in range(20)]
        self.put(sessions[0], later)
        self.assertEqual(self.get(sessions[0], later), later)
        engines.wait_members(2, among=[0, 1])
        missed = engines.status(0)["counters"]["storage_missed"]
        self.put(sessions[0], ["alone"])
        harness.wait_for(lambda: engines.status(0)["counters"]["storage_missed"] > missed, 60,
                         "what no storage host can take is counted")
        harness.wait_for(lambda: "storage_missed" in str(engines.status(0)["health"]), 60,
                         "it is a finding")
        self.assertEqual(self.get(sessions[0], ["alone"]), ["alone"])
        sessions[2].close()
        engines.restart(2)
        harness.wait_for(lambda: engines.figure(0, "storage_hosts") == 1, 60, "it is back")
        before = self.kept(engines, 0)
        self.put(sessions[0], [f"again {n}" for n in range(40)])
        harness.wait_for(lambda: self.kept(engines, 0) == before + 40, 60, "it takes pages again")
        for session in sessions[:2]:
            session.close()

    def test_a_policy_says_where_the_bytes_are(self):
        for policy, holders in (("local", [0]), ("both", [0, 2])):
            with self.subTest(policy=policy):
                engines, sessions = self.storage(policy, pool="16MiB")
                keys = [f"page {n}" for n in range(60)]
                self.put(sessions[0], keys)
                harness.wait_for(
                    lambda: all(self.holders(engines, key) == holders for key in keys), 60,
                    f"the pages are at {holders}")
                before = self.local_hits(engines, 0)
                self.assertEqual(self.get(sessions[0], keys), keys)
                self.assertEqual(self.local_hits(engines, 0) - before, 60)
                for session in sessions:
                    session.close()
                engines.stop()

    def ctl_drain(self, socket, *arguments):
        done = ctl(socket, "--json", "drain", *arguments)
        return done.returncode, json.loads(done.stdout)

    def test_a_drained_host_is_missed_by_nobody(self):
        engines = self.start(3, pool_bytes="32MiB", settings=SETTINGS)
        sessions = [_peercache.Session(socket) for socket in engines.sockets]
        keys = [f"page {n}" for n in range(300)]
        self.put(sessions[0], keys)
        self.put(sessions[1], [f"own {n}" for n in range(200)])
        status, drain = self.ctl_drain(engines.sockets[0], "--deadline", "60s")
        self.assertEqual((status, drain["state"], drain["copied"], drain["unfit"]),
                         (0, "done", len(keys), 0))
        self.assertEqual(drain["copied_bytes"], len(keys) * PAGE)
        self.assertEqual(self.made(engines, 1) + self.made(engines, 2), len(keys))
        def used(i):
            return engines.status(i)["counters"]["pages_used_remotely"]

        def spared():
            before = used(0), used(1)
            reader = _peercache.Session(engines.sockets[2])
            self.assertEqual(self.get(reader, keys), keys)
            reader.close()
            harness.wait_for(lambda: used(1) > before[1], 60, "the other holder knows of the use")
            return used(0) == before[0]
        harness.wait_for(spared, 60, "readers prefer the other holder, while it is still there")
        shown = [json.loads(ctl(engines.sockets[i], "--json", "explain", keys[0]).stdout)
                 for i in (1, 2)]
        self.assertIn("drained", [one.get("here_why") for one in shown])
        # another host that is drained meanwhile gives nothing to this one
        self.assertEqual(self.ctl_drain(engines.sockets[1])[0], 0)
        self.assertEqual(self.made(engines, 0), 0)
        sessions[0].close()
        engines.kill(0, signal.SIGTERM)
        engines.wait_members(2, among=[1, 2])
        harness.wait_for(lambda: self.get(sessions[2], keys) == keys, 60, "every page is found")
        self.assertEqual(ctl(engines.sockets[1], "undrain").returncode, 0)
        for session in sessions[1:]:
            session.close()

    def test_a_second_interrupt_leaves_a_drain_and_says_that_it_goes_on(self):
        engines = self.start(2, pool_bytes="8MiB", settings=[
            "cluster.heartbeat_ms=100", "cluster.dead_after_ms=60000"])
        session = _peercache.Session(engines.sockets[0])
        self.put(session, ["page"])
        harness.freeze(engines.process[1])  # it never tells what room it has
        commands = []

        def says(words):
            said = ""
            while words not in said:
                more = commands[-1].stderr.read(1)
                self.assertTrue(more, said)
                said += more

        def begin():
            commands.append(subprocess.Popen(
                [CTL, "--socket", engines.sockets[0], "drain"], text=True,
                stdout=subprocess.DEVNULL, stderr=subprocess.PIPE))
            says("0 of 1 pages copied")
            return commands[-1]
        drain = begin()
        drain.send_signal(signal.SIGINT)
        says("Ctrl-C again leaves at once")
        says("0 of 1 pages copied")
        drain.send_signal(signal.SIGINT)
        says("peercachectl undrain ends it")
        self.assertEqual(drain.wait(60), 128 + signal.SIGINT)
        self.assertEqual(engines.status(0)["drain"]["state"], "running")
        drain = begin()
        self.assertEqual(ctl(engines.sockets[0], "undrain").returncode, 0)
        harness.wait_for(lambda: engines.status(0)["drain"]["state"] == "", 60, "undrain")
        says("has not come to its end")
        self.assertEqual(drain.wait(60), 2)
        for command in commands:
            command.stderr.close()
        engines.process[1].send_signal(signal.SIGCONT)
        session.close()

    def test_a_page_that_several_hosts_use_gets_further_holders(self):
        engines = self.start(4, pool_bytes="16MiB", settings=SETTINGS)
        sessions = [_peercache.Session(socket) for socket in engines.sockets]
        keys = [f"page {n}" for n in range(8)]
        alone = [f"alone {n}" for n in range(8)]
        self.put(sessions[0], keys + alone)

        def spread():
            for session in sessions[1:]:
                self.assertEqual(session.exists(SPACE, keys, 20000), [True] * len(keys))
                self.assertEqual(self.get(session, keys), keys)
            self.assertEqual(self.get(sessions[3], alone), alone)
            return sum(engines.status(i)["counters"]["copies_hot"] for i in (1, 2, 3)) == 16
        harness.wait_for(spread, 60, "each page has two more holders")
        self.assertEqual(engines.status(0)["counters"]["hot_offered"], 16)
        for key in keys:
            shown = [json.loads(ctl(socket, "--json", "explain", key).stdout)
                     for socket in engines.sockets]
            self.assertEqual(len(shown[0]["holders"]), 3)
            self.assertEqual([one.get("here_why") for one in shown].count("hot"), 2)
        self.assertGreater(engines.figure(1, "copies_hot_bytes"), 0)
        self.assertEqual(self.made(engines, 0), 0)
        # a removal reaches all of them
        self.assertEqual(sessions[1].remove(SPACE, keys, 20000), [True] * len(keys))
        for session in sessions:
            self.assertEqual(self.get(session, keys), [])
            session.close()

    def test_a_drain_evicts_nothing_and_says_what_has_no_room(self):
        engines = self.start(2, pool_bytes="8MiB", settings=SETTINGS)
        sessions = [_peercache.Session(socket) for socket in engines.sockets]
        own = [f"own {n}" for n in range(120)]
        keys = [f"page {n}" for n in range(180)]
        self.put(sessions[1], own)
        self.put(sessions[0], keys)
        self.assertEqual(self.get(sessions[1], keys[:20]), keys[:20])  # used, so they go first
        harness.wait_for(lambda: engines.status(0)["counters"]["pages_used_remotely"] >= 20, 60,
                         "the holder knows of the use")
        status, drain = self.ctl_drain(engines.sockets[0])
        self.assertEqual((status, drain["state"]), (1, "done"))
        self.assertEqual(drain["copied"] + drain["unfit"], len(keys))
        self.assertGreater(drain["copied"], 60)
        self.assertEqual(engines.status(1)["counters"]["pages_evicted"], 0)
        for session in sessions:
            session.close()
        engines.kill(0, signal.SIGTERM)
        session = _peercache.Session(engines.sockets[1])
        self.assertEqual(self.get(session, own), own)
        self.assertEqual(self.get(session, keys[:20]), keys[:20])
        session.close()


if __name__ == "__main__":
    harness.main()
