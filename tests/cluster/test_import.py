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

KIB = 1024
EXTENT = 64 * KIB
PAGES = [(4 * KIB, 1), (72 * KIB, 1), (128 * KIB, 1), (20 * KIB, 7), (1000 * KIB, 61)]
BYTES = 8 << 20
KILLS = int(os.environ.get("PEERCACHE_KILLS", "10"))


@unittest.skipIf(harness.SLOW > 1, "a sanitizer and the interposer cannot both come first")
class Import(harness.ClusterTest):
    def engines(self, verbs="same-user", **options):
        settings = [f"rail.mr_bytes={EXTENT}"] + ([f"engine.client_verbs={verbs}"] if verbs else [])
        return self.start(2, device="mlx5", pool_bytes="128MiB", settings=settings, **options)

    def staged(self, engines, size, pages, segments=1, batches=(1, 32)):
        return self.tool(
            engines, "--imported", "--page-bytes", size, "--pages", pages,
            "--segments", segments, *[x for n in batches for x in ("--batch", n)])

    def tool(self, engines, *arguments):
        """Starts tests/cluster/staged with the libibverbs of the engines."""
        return subprocess.Popen(
            [*engines.before, harness.program("tests/cluster/staged"), *map(str, arguments)],
            env={**os.environ, "PEERCACHE_SOCKETS": ",".join(engines.sockets)}, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE)

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

    def memories(self, engines):
        """Number of processes' memories that the NIC of the second engine may write to."""
        fds = f"/proc/{engines.engine_pid(1)}/fd"
        links = []
        for fd in os.listdir(fds):
            try:
                links.append(os.readlink(f"{fds}/{fd}"))
            except OSError:
                pass  # closed meanwhile
        return sum(re.fullmatch(r"/proc/\d+/mem", link) is not None for link in links)

    def lent(self, engines, *how):
        """Runs lent.py; returns what it prints."""
        process = subprocess.Popen(
            [*engines.before, sys.executable, os.path.join(os.path.dirname(__file__), "lent.py"),
             *map(str, how)], env={**os.environ, "PEERCACHE_SOCKET": engines.sockets[1]},
            text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        status, out, err = harness.finish(process)
        self.assertEqual(status, 0, out + err)
        return json.loads(out)

    def test_registrations_of_others_are_refused_and_orphans_deregistered(self):
        engines = self.engines()
        self.assertEqual(self.lent(engines, "good")["status"], 0)
        for how, said in (("lkey", "another key or length"), ("length", "another key or length"),
                          ("handle", "it was deregistered"), ("twice", "not one of the process"),
                          ("short", "cannot read"), ("null", "cannot read"),
                          ("none", "cannot read"), ("unlent", "nothing was lent")):
            with self.subTest(how):
                answer = self.lent(engines, how)
                self.assertLess(answer["status"], 0)
                self.assertIn(said, answer["text"])
        for handle in range(12):  # the engine's own: domains, pools, page heads, the shard
            self.assertLess(self.lent(engines, "engine", handle)["status"], 0)
        self.assertIsNone(self.lent(engines, "leave"))
        harness.wait_for(lambda: self.memories(engines) == 0, 20, "nothing stays registered")
        self.assertIn("that processes which ended had registered", engines.log(1))
        status, out, err = harness.finish(self.staged(engines, 4 * KIB, 64))
        self.assertEqual(status, 0, out + err)
        self.assertEqual(json.loads(out)["32"], {"hit": 64, "wrong": 0, "bytes_staged": 0})
        self.stop_cleanly(engines)

    def test_killed_processes_leave_nothing_behind(self):
        engines = self.engines()
        seen = 0
        for i in range(KILLS):
            process = self.staged(engines, 128 * KIB, 64, batches=[1] * 32)
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
        status, out, err = harness.finish(self.staged(engines, 128 * KIB, 64))
        self.assertEqual(status, 0, out + err)
        self.assertEqual(json.loads(out)["32"], {"hit": 64, "wrong": 0, "bytes_staged": 0})
        self.assertEqual(engines.status(1)["rails"][0]["counters"]["cqes_error"], 0)
        self.stop_cleanly(engines)

    def test_it_is_refused_by_the_setting(self):
        engines = self.engines(verbs="")  # the default
        status, _, err = harness.finish(self.staged(engines, 4 * KIB, 4))
        self.assertNotEqual(status, 0)
        self.assertIn("engine.client_verbs is no", err)
        self.stop_cleanly(engines)


if __name__ == "__main__":
    harness.main()
