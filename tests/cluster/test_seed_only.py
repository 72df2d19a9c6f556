# SPDX-License-Identifier: Apache-2.0
"""An engine without rails (rail.devices = none): three others find each other only through it, keep
their pages without it, and find each other again when it is back."""

import os
import re
from unittest import mock

import harness
from test_seeds import Engines, SeedTest

SEED = 0
BEATS = ["cluster.heartbeat_ms=100", "cluster.dead_after_ms=2000"]


def settings_of(engines):
    """Engine 0 is the seed; the others know only its address."""
    def of(i):
        if i == SEED:
            return ["rail.devices=none", "cluster.seeds="]
        return [f"cluster.seeds=127.0.0.1:{engines.port[SEED]}"]
    return of


class SeedOnly(SeedTest):
    def until(self, condition, what):
        """One that is never ready fails the test long before the suite's time is over."""
        return harness.wait_for(condition, 30, what)

    def opened(self):
        engines = Engines(4, link="tcp", settings=BEATS)
        engines.settings_of = settings_of(engines)
        self.addCleanup(engines.stop)
        with mock.patch.object(harness.cluster, "START_SECONDS", 30 * harness.SLOW):
            engines.start()
        engines.joined(4)
        return engines

    def stored(self, engines, i, key):
        """Engine i stores a page that names itself."""
        self.until(lambda: engines.ctl(i, "put", key, "--string", "of " + key)[0] == 0,
                   f"{key} is stored")

    def read(self, engines, i, key):
        self.until(lambda: "of " + key in engines.ctl(i, "get", key)[1], f"{i} reads {key}")

    def test_engines_find_each_other_only_through_it(self):
        engines = self.opened()
        seed = f"127.0.0.1:{engines.port[SEED]}"
        for i in range(4):
            rails = {m["name"]: m["rails"] for m in engines.status(i)["members"]}
            self.assertEqual(sorted(rails.values()), [0, 1, 1, 1])
            self.assertEqual(rails[seed], 0)
            self.assertEqual(re.findall(r"(?m)^  (\S+) .*, a seed only",
                                        engines.ctl(i, "members")[1]), [seed])
            self.until(lambda i=i: engines.ctl(i, "health")[0] == 0, "no warning")
            self.until(lambda i=i: engines.fetch(i, "/readyz")[0] == 200, "ready")
        self.assertEqual(engines.ctl(SEED, "health")[1].count("finding"), 1, "0 findings")
        self.assertEqual(engines.fetch(SEED, "/readyz")[1],
                         "ready: a seed only, which keeps no pages\n")
        self.stored(engines, 1, "page")
        for i in (2, 3):
            self.read(engines, i, "page")
        self.stop_cleanly(engines)

    def test_what_is_asked_of_it_is_answered_in_words(self):
        with mock.patch.dict(os.environ):
            os.environ.pop("MALLOC_PERTURB_", None)  # it writes to memory that the engine leaves
            engines = self.opened()
        done = harness.run([harness.program("tools/peercachectl"), "--socket",
                            engines.sockets[SEED], "put", "a", "--string", "x"],
                           capture_output=True, text=True)
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("this engine is a seed only (rail.devices = none) and keeps no pages",
                      done.stderr + done.stdout)
        doctor = engines.ctl(SEED, "doctor")[1]
        self.assertIn("none: a seed only, without pages", doctor)
        self.assertNotIn("/sys/class/infiniband/none", doctor)
        with open(f"/proc/{engines.process[SEED].pid}/status", encoding="ascii") as file:
            resident = int(re.search(r"VmRSS:\s+(\d+) kB", file.read())[1])
        print(f"the seed has {resident} KiB resident")
        if harness.SLOW == 1:  # sanitizers need memory of their own
            self.assertLess(resident, 16 << 10)
        self.stop_cleanly(engines)

    def test_it_is_killed_and_comes_back(self):
        engines = self.opened()
        for key in ("one", "two", "three"):
            self.stored(engines, 1, key)
        engines.kill(SEED)
        engines.joined(3, (1, 2, 3))
        self.until(lambda: engines.findings(1).get("member_down"), "it is missed")
        self.assertIn("the seed without pages", engines.findings(1)["member_down"][0])
        self.read(engines, 2, "one")
        # No page is at a seed: a removal is a promise without it.
        self.until(lambda: engines.ctl(2, "rm", "two")[0] == 0, "removed everywhere")
        # An engine that is started without it is found when it is back. Those that knew it before
        # may find it earlier: they dial a dead member at times.
        engines.kill(3)
        engines.joined(2, (1, 2))
        engines.restart(3)
        engines.restart(SEED)
        engines.joined(4)
        self.read(engines, 3, "three")
        self.stored(engines, 3, "four")
        self.read(engines, 1, "four")
        self.until(lambda: engines.fetch(3, "/readyz")[0] == 200, "3 is ready")
        self.stop_cleanly(engines)


if __name__ == "__main__":
    harness.main()
