# SPDX-License-Identifier: Apache-2.0
"""Ordinary memory that its process registers with the engine's NICs: verbs import."""

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
import unittest

import harness
import test_ports

KIB = 1024
EXTENT = 64 * KIB
PAGES = [(4 * KIB, 1), (72 * KIB, 1), (128 * KIB, 1), (20 * KIB, 7), (1000 * KIB, 61)]
BYTES = 8 << 20
KILLS = int(os.environ.get("PEERCACHE_KILLS", "12"))
TRIES = 3


IN_NAMESPACE = ["unshare", "--pid", "--fork", "--kill-child"]


class Base(harness.ClusterTest):
    def setUp(self):
        if harness.SLOW > 1:
            self.skipTest("a sanitizer and the interposer cannot both come first")

    def engines(self, verbs="", settings=(), **options):
        settings = [f"rail.mr_bytes={EXTENT}", *settings]
        settings += [f"engine.client_verbs={verbs}"] if verbs else []
        return self.start(2, device="mlx5", pool_bytes="128MiB", settings=settings, **options)

    def staged(self, engines, size, pages, segments=1, batches=(1, 32), how=("--imported",),
               before=()):
        """Starts tests/cluster/staged with the libibverbs of the engines."""
        return subprocess.Popen(
            [*before, *engines.before, harness.program("tests/cluster/staged"), *how,
             "--page-bytes", str(size), "--pages", str(pages), "--segments", str(segments),
             *[str(x) for n in batches for x in ("--batch", n)]],
            env={**os.environ, "PEERCACHE_SOCKETS": ",".join(engines.sockets)}, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def memories(self, engines, i=1):
        """Number of processes' memories that the NICs of an engine may write to."""
        fds = f"/proc/{engines.engine_pid(i)}/fd"
        links = []
        for fd in os.listdir(fds):
            try:
                links.append(os.readlink(f"{fds}/{fd}"))
            except OSError:
                pass  # closed meanwhile
        return sum(re.fullmatch(r"/proc/\d+/mem", link) is not None for link in links)

    def start_lent(self, engines, i, *how):
        return subprocess.Popen(
            [*engines.before, sys.executable, os.path.join(os.path.dirname(__file__), "lent.py"),
             *map(str, how)], env={**os.environ, "PEERCACHE_SOCKET": engines.sockets[i]},
            text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def lent(self, engines, *how, i=1):
        """Runs lent.py; returns what it prints."""
        status, out, err = harness.finish(self.start_lent(engines, i, *how))
        self.assertEqual(status, 0, out + err)
        return json.loads(out)

    def assert_read(self, process, pages, batch="32", staged=0):
        status, out, err = harness.finish(process)
        self.assertEqual(status, 0, out + err)
        got = json.loads(out)[batch]
        self.assertEqual((got["hit"], got["wrong"]), (pages, 0), out)
        self.assertEqual(got["bytes_staged"] > 0, staged > 0, out)


class Import(Base):
    def test_pages_arrive_whole_and_without_a_copy(self):
        engines = self.engines()
        for size, segments in PAGES:
            pages = BYTES // size
            status, out, err = harness.finish(self.staged(engines, size, pages, segments))
            self.assertEqual(status, 0, out + err)
            report = json.loads(out)
            self.assertEqual(report.pop("extents"), -(-pages * size // EXTENT))
            for batch, got in report.items():
                with self.subTest(size=size, segments=segments, batch=batch):
                    self.assertEqual(got, {"hit": pages, "wrong": 0, "bytes_staged": 0})
            harness.wait_for(lambda: engines.figure(1, "client_extents") == 0, 20,
                             "all extents are deregistered")
        counters = engines.status(1)["rails"][0]["counters"]
        self.assertEqual(counters["ops_invalid"], 0)
        self.assertEqual(counters["cqes_error"], 0)
        self.stop_cleanly(engines)

    def test_registrations_of_others_are_refused_and_orphans_deregistered(self):
        engines = self.engines()
        self.assertEqual(self.lent(engines, "good")["status"], 0)
        for how, said in (*((how, "another key, length or address")
                            for how in ("lkey", "length", "base")),
                          ("domain", "a process has made a domain"),
                          ("kept", "has not given it back"), ("handle", "it was deregistered"),
                          ("twice", "not one of the process"), ("short", "cannot read"),
                          ("null", "cannot read"), ("none", "cannot read"),
                          ("unlent", "nothing was lent")):
            with self.subTest(how):
                answer = self.lent(engines, how)
                self.assertLess(answer["status"], 0)
                self.assertIn(said, answer["text"])
        for handle in range(12):  # the engine's own: domains, pools, page heads, the shard
            self.assertLess(self.lent(engines, "engine", handle)["status"], 0)
        self.assertIsNone(self.lent(engines, "leave"))
        harness.wait_for(lambda: self.memories(engines) == 0, 20, "nothing stays registered")
        self.assertIn("that processes which ended had registered", engines.log(1))
        self.assert_read(self.staged(engines, 4 * KIB, 64), 64)
        self.stop_cleanly(engines)

    def test_killed_processes_leave_nothing_behind(self):
        engines = self.engines()
        seen = 0
        for i in range(KILLS):  # every other pair in a PID namespace of its own
            process = self.staged(engines, 128 * KIB, 64, batches=[4] * 32,
                                  before=IN_NAMESPACE if i % 4 > 1 else ())
            if i % 2:  # while it reads; else while it registers
                harness.wait_for(lambda: self.memories(engines) == 128 or
                                 process.poll() is not None, 60, "it has registered")
                time.sleep(random.random() / 50)
            else:
                harness.wait_for(lambda: self.memories(engines) or
                                 process.poll() is not None, 60, "it registers")
            seen += self.memories(engines) > 0
            process.send_signal(signal.SIGKILL)
            harness.ended(process)
            process.communicate()
            harness.wait_for(lambda: engines.figure(1, "client_extents") == 0 and
                             self.memories(engines) == 0, 60, "nothing stays registered")
        self.assertGreater(seen, 0)
        self.assert_read(self.staged(engines, 128 * KIB, 64), 64)
        self.assertEqual(engines.status(1)["rails"][0]["counters"]["cqes_error"], 0)
        self.stop_cleanly(engines)

    def test_an_engine_that_is_killed_and_kept_comes_back_to_imported_memory(self):
        engines = self.engines(keeper=True)
        process = self.staged(engines, 32 * KIB, 512, batches=[32],
                              how=("--imported", "--until-eof"))
        for kill in (True, True, False):
            harness.wait_for(lambda: self.memories(engines) == 256, 60, "it is registered")
            if kill:
                engines.crash(1)
        self.assert_read(process, 512)  # from then on all, without a copy
        self.stop_cleanly(engines)

    def test_it_is_refused_by_the_setting(self):
        engines = self.engines(verbs="no")
        status, _, err = harness.finish(self.staged(engines, 4 * KIB, 4))
        self.assertNotEqual(status, 0)
        self.assertIn("engine.client_verbs is no", err)
        self.stop_cleanly(engines)

    def test_another_user_needs_yes_and_locked_memory(self):
        user = ["setpriv", "--reuid", "65534", "--clear-groups"]
        program = harness.program("tests/cluster/staged")
        if os.geteuid() or harness.run([*user, "test", "-x", program]).returncode:
            self.skipTest("skipped: needs root, and a build that every user may read")
        for verbs, before, said in (
                ("", user, "as user 65534, the engine as user 0: engine.client_verbs=yes"),
                ("yes", ["prlimit", f"--memlock={EXTENT // 2}", *user], "ulimit -l unlimited")):
            with self.subTest(verbs):
                engines = self.engines(verbs, ["engine.allowed_users=65534"])
                os.chmod(engines.directory, 0o755)
                status, _, err = harness.finish(self.staged(engines, 4 * KIB, 64, before=before))
                self.assertNotEqual(status, 0)
                self.assertIn(said, err)
                self.assert_read(self.staged(engines, 4 * KIB, 64, before=before, how=()),
                                 64, staged=1)
                if verbs == "yes":
                    self.assert_read(self.staged(engines, 4 * KIB, 64, before=user), 64)
                harness.wait_for(lambda: self.memories(engines) == 0, 20, "nothing is left")
                self.stop_cleanly(engines)


class Lost(Base):
    """A NIC is lost, and comes back, while a process registers its memory."""

    def begin(self):
        hosts = test_ports.Hosts(settings=[f"rail.mr_bytes={EXTENT}"])
        self.addCleanup(hosts.stop)
        return hosts.start()

    def test_what_was_lent_is_given_back_before_a_lost_nic_is_closed(self):
        hosts = self.begin()
        holds = self.start_lent(hosts, 0, "hold")
        self.addCleanup(holds.kill)
        self.assertEqual(holds.stdout.readline(), '"holds"\n')
        hosts.tell(0, test_ports.LAST, test_ports.GONE, 1)
        harness.wait_for(lambda: hosts.state(0, test_ports.LAST) == "lost", 10, "it is lost")
        self.assertIn("a NIC of the engine is lost", self.lent(hosts, "ask", i=0)["text"])
        closed = f"rail {test_ports.LAST}: its device is closed"
        self.assertNotIn(closed, hosts.log(0))
        holds.communicate("\n")
        harness.wait_for(lambda: closed in hosts.log(0), 10, "it is closed")
        test_ports.put_back(hosts, 0, test_ports.LAST)
        harness.wait_for(lambda: hosts.state(0, test_ports.LAST) == "up", 10, "it is back")
        self.assert_read(self.staged(hosts, 64 * KIB, 64), 64)
        self.stop_cleanly(hosts)

    def test_memory_is_registered_anew_when_a_nic_is_lost_meanwhile(self):
        hosts = self.begin()
        met = 0
        for _ in range(TRIES):
            process = self.staged(hosts, 64 * KIB, 256, batches=[32])
            harness.wait_for(lambda: self.memories(hosts) or process.poll() is not None, 60,
                             "it registers")
            hosts.tell(1, test_ports.LAST, test_ports.GONE, 1)
            met += self.memories(hosts) < 512
            self.assert_read(process, 256)
            hosts.tell(1, test_ports.LAST, test_ports.GONE, 0)
            harness.wait_for(lambda: hosts.state(1, test_ports.LAST) == "up", 20, "it is back")
            harness.wait_for(lambda: self.memories(hosts) == 0, 20, "nothing stays registered")
        self.assertGreater(met, 0)
        self.assertNotIn("abort", hosts.log(1))
        self.stop_cleanly(hosts)


if __name__ == "__main__":
    harness.main()
