# SPDX-License-Identifier: Apache-2.0
"""Faults of real engines change what /api/status or /api/cluster says within two seconds.

A killed member, a stopped and a killed engine are in tests/dashboard/test_engine.py.
"""

import contextlib
import json
import os
import re
import signal
import subprocess
import tempfile
import time

import harness
import metered

WITHIN_S = 2 * harness.SLOW
TRIES = 10  # a machine that is busy with something else delays some
SETTINGS = ["cluster.heartbeat_ms=500", "cluster.dead_after_ms=10000", "rail.devices=soft,soft"]


class Engines(metered.Engines):
    """Engine 0 has test.fault_file; `other` is the program of engine 1, None: the same one."""

    def __init__(self, faults, *arguments, **options):
        super().__init__(*arguments, **options)
        self.faults, self.other = faults, None

    def command(self, i):
        command = super().command(i)
        if i == 1 and self.other:
            command[command.index(self.engine)] = self.other
        return command + ([] if i else ["--set", "test.fault_file=" + self.faults])

    def api(self, path):
        return json.loads(self.get_patiently(0, "/api/" + path))

    def findings(self):
        """{id: text of the first one} of engine 0."""
        found = {}
        for finding in self.api("status")["health"]["findings"]:
            found.setdefault(finding["id"], finding["text"])
        return found


class Named(harness.ClusterTest):
    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="peercache-named-")
        self.addCleanup(harness.remove_folder, self.folder)
        self.faults = os.path.join(self.folder, "faults")
        self.fault("")

    def begin(self, nodes=2, pool_bytes="64MiB", settings=SETTINGS):
        self.engines = Engines(self.faults, harness.BUILD, nodes, pool_bytes=pool_bytes,
                               settings=settings)
        self.addCleanup(self.engines.stop)
        self.engines.start()
        return self.engines

    def fault(self, text):
        with open(self.faults + ".new", "w") as file:
            file.write(text)
        os.rename(self.faults + ".new", self.faults)

    def assert_named(self, inject, mend, named, well=None):
        """`named()` becomes true within two seconds of inject(); then mend() makes well() true."""
        well = well or (lambda: not named())
        took = []
        while not took or took[-1] > WITHIN_S:
            self.assertLess(len(took), TRIES, took)
            harness.wait_for(well, 30, "nothing is named yet")
            start = time.monotonic()
            inject()
            harness.wait_for(named, 20, "the fault is named")
            took.append(time.monotonic() - start)
            mend()
        print(f"after {took[-1]:.2f} s", end=" ", flush=True)
        harness.wait_for(well, 30, "the fault is over")

    def test_a_member_that_stands_still_is_silent(self):
        engines = self.begin()
        name = f"member 127.0.0.1:{engines.port[1]}"
        process = engines.process[1]
        self.assert_named(
            lambda: harness.freeze(process),
            lambda: process.send_signal(signal.SIGCONT),
            lambda: name in engines.findings().get("member_silent", ""),
            lambda: not {"member_silent", "member_down"} & set(engines.findings()))

    def test_a_rail_that_is_down_is_named(self):
        engines = self.begin()
        self.assert_named(lambda: self.fault("1:down"), lambda: self.fault(""),
                          lambda: "rail 1 (soft" in engines.findings().get("rail_down", ""))

    def test_a_full_pool_is_named_whatever_the_deadline_of_the_calls(self):
        for timeout_ms, pages in ((1, 64), (10, 1), (25, 16), (30, 8), (60, 64)):
            with self.subTest(timeout_ms=timeout_ms):
                took = []
                while not took or took[-1] > WITHIN_S:
                    self.assertLess(len(took), TRIES, took)
                    took.append(self.until_full_is_named(timeout_ms, pages))
                print(f"{timeout_ms} ms: after {took[-1]:.2f} s", end=" ", flush=True)

    def until_full_is_named(self, timeout_ms, pages):
        """Seconds from the first page that found no room to the finding."""
        with contextlib.ExitStack() as stack:
            # A slot rests longer than any of these calls waits, so a reserve that the calls have
            # used up makes pages late.
            engines = self.begin(1, "16MiB", ["engine.limbo_ms=200"])
            stack.callback(engines.stop)
            # As many pages as the pool has, with time enough: then each set needs an eviction.
            self.fill(engines, 1000, 16, 4).wait()
            self.assertNotIn("pool_full", engines.findings())
            client = self.fill(engines, timeout_ms, pages)
            stack.callback(client.wait)
            stack.callback(client.kill)
            harness.wait_for(lambda: self.missed(engines), 60, "a set found no room in time")
            start = time.monotonic()
            harness.wait_for(lambda: "pool_full" in engines.findings(), 20, "it is named")
            return time.monotonic() - start

    def fill(self, engines, timeout_ms, pages, batches=2 ** 32 - 1):
        return subprocess.Popen(
            [harness.program("tests/cluster/filler"), "--timeout-ms", str(timeout_ms), "--pages",
             str(pages), "--batches", str(batches)], stdout=subprocess.DEVNULL,
            env={**os.environ, "PEERCACHE_SOCKETS": engines.sockets[0]})

    def missed(self, engines):
        """Pages were lost, and a request for room came late: not a stall of the machine alone."""
        report = engines.api("status")
        pages, counters = report["calls"]["set"], report["counters"]
        return (pages["timeout"] + pages["no_space"]
                and counters["credits_late"] + counters["credits_refused"])

    def test_members_are_sorted_those_that_are_not_up_first_with_their_sum(self):
        engines = self.start(4, pool_bytes="16MiB", settings=[
            "cluster.heartbeat_ms=100", "cluster.dead_after_ms=1000"])
        for i in (1, 3):
            engines.kill(i)
        harness.wait_for(lambda: len(engines.status(2)["members_down"]) == 2, 60, "two are down")
        ctl = [harness.program("tools/peercachectl"), "--socket", engines.sockets[2]]
        said = harness.run([*ctl, "members"], capture_output=True, text=True).stdout
        rows = re.findall(r"^  (\S+) +\S+ (up|down)\b", said, re.M)
        self.assertEqual([state for _, state in rows], ["down"] * 2 + ["up"] * 2, said)
        self.assertEqual(rows, sorted(rows, key=lambda row: (row[1], row[0])))
        self.assertTrue(said.startswith("members: 2 down, 0 silent, 2 up\n"), said)
        got = json.loads(harness.run([*ctl, "--json", "members"], capture_output=True,
                                     text=True).stdout)
        self.assertEqual([member["name"] for member in got["members_down"] + got["members"]],
                         [name for name, _ in rows])
        self.assertIn("members: 2 down, 0 silent, 2 up\n", harness.run(
            [*ctl, "status"], capture_output=True, text=True).stdout)
        self.stop_cleanly(engines)

    def test_a_member_of_another_version_is_named(self):
        engines = self.begin()
        words = f"127.0.0.1:{engines.port[1]} runs 9.8.7"  # as in other_version.c
        took = []
        while not took or took[-1] > WITHIN_S:
            self.assertLess(len(took), TRIES, took)
            engines.kill(1)
            engines.other = harness.program("tests/cluster/other_version")
            engines.launch(1)
            engines.wait_ready(1)
            start = time.monotonic()
            harness.wait_for(lambda: words in engines.findings().get("versions_differ", ""), 20,
                             "the other version is named")
            took.append(time.monotonic() - start)
            engines.kill(1)
            engines.other = None
            engines.launch(1)
            engines.wait_ready(1)
            harness.wait_for(lambda: "versions_differ" not in engines.findings(), 30, "the same")
        print(f"after {took[-1]:.2f} s", end=" ", flush=True)

    def test_a_blocked_control_plane_is_named(self):
        engines = self.begin(2)

        def named():
            answer = engines.api("status")
            return "loop_blocked" in [f["id"] for f in answer["health"]["findings"]] and answer
        took = []
        while not took or took[-1] > WITHIN_S:
            self.assertLess(len(took), TRIES, took)
            start = time.monotonic()
            self.fault("0:hang")  # for ever; the watchdog ends the engine much later
            answer = harness.wait_for(named, 20, "the blocked control plane is named")
            took.append(time.monotonic() - start)
            self.assertEqual(answer["health"]["worst"], "critical")
            self.assertGreaterEqual(answer["age_ms"], 1500)
            engines.kill(0)
            self.fault("")
            engines.restart(0)
            harness.wait_for(lambda: not named(), 30, "the next engine is not blocked")
        print(f"after {took[-1]:.2f} s", end=" ", flush=True)


if __name__ == "__main__":
    harness.main()
