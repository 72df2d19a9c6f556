# SPDX-License-Identifier: Apache-2.0
"""A hostile member that knows the messages: invented members, lists that are too long, accusations
of living members, claims of capacity, a stolen name, a flood of gossip. Engines go on serving, keep
their members and their memory, log it at a bounded rate, and recover when it ends.

$PEERCACHE_LIAR_JOINS invented members. Prints figures."""

import os
import subprocess
import sys
import time

import harness
import played_liar
import played_member
from kept import Kept

DEAD_MS = int(3000 * harness.SLOW)
PAGES, MIB = 400, 1 << 20
JOINS = int(os.environ.get("PEERCACHE_LIAR_JOINS", "3000"))
LIAR = os.path.join(os.path.dirname(os.path.abspath(__file__)), "played_liar.py")


def resident(pid):
    with open(f"/proc/{pid}/status", encoding="ascii") as status:
        return next(int(line.split()[1]) << 10 for line in status if line.startswith("RssAnon"))


class Hostile(Kept):
    dead_ms = DEAD_MS

    def setUp(self):
        super().setUp()
        self.engines = self.start(3, pool_bytes="256MiB", settings=[
            "cluster.heartbeat_ms=100", f"cluster.dead_after_ms={self.dead_ms}"])
        for i in range(3):
            self.store_calmly(self.engines, i, f"of{i}", (1000 * i, 1000 * i + PAGES))
        self.next, self.names = 1000000, [m["name"] for m in self.members(0)]

    def members(self, i):
        return self.engines.status(i)["members"]

    def liar(self, what, *more):
        return subprocess.Popen(
            [sys.executable, LIAR, what, ",".join(map(str, self.engines.port)),
             str(played_member.bucket_bits(self.engines)), *map(str, more)],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def sets(self, name, until):
        """Stores pages through engine 1 until the condition holds."""
        self.next += 1000000
        setter = self.started("set", self.engines, 1, name, (self.next, self.next + 900000),
                              "--rest-us", "10000")
        harness.wait_for(until, 120, f"the end of {name}")
        harness.end_early(setter)
        got = self.ended(setter)
        return (self.next, self.next + got["sets"]), got

    def check(self, what, *more):
        """Runs the hostile member while pages are set; returns what it printed."""
        end = time.monotonic() + 1.5
        _, before = self.sets("before", lambda: time.monotonic() > end)
        size, lines = [resident(self.engines.engine_pid(i)) for i in range(3)], self.lines()
        begun, calm, liar = time.monotonic(), harness.clock(), self.liar(what, *more)
        pages, during = self.sets("during", lambda: liar.poll() is not None and
                                  time.monotonic() > begun + 1.5)
        took_all = time.monotonic() - begun
        busy = took_all / (harness.clock() - calm)  # how much longer other work makes a set wait
        status, out, err = harness.finish(liar)
        self.assertEqual(status, 0, err)
        grown = [(resident(self.engines.engine_pid(i)) - size[i]) / MIB for i in range(3)]
        new = [b - a for a, b in zip(lines, self.lines())]
        since = time.monotonic()
        harness.wait_for(self.recovered, 60, "the engines' own members and entries")
        took = time.monotonic() - since
        print(f"\n{what} {more[:1]}: sets p99 {before['p99_us'] / 1000:.1f} -> "
              f"{during['p99_us'] / 1000:.1f} ms, longest {during['worst_us'] / 1000:.0f} ms, "
              f"{during}; memory +{max(grown):.1f} MiB; log lines {new}; "
              f"links closed {out.strip()}; recovered after {took:.1f} s")
        # a set waits for a suspect owner for a tenth of dead_after_ms; maps change meanwhile
        self.assertLess(during["p99_us"], self.dead_ms / 3 * 1000 * busy)
        # unreachable: each owner of the key is an invented member; no set waits for its deadline
        self.assertEqual(during.get("hit", 0) + during.get("unreachable", 0), during["sets"],
                         during)
        self.assertGreater(during["hit"], 0)
        self.assertLess(max(grown), 64)
        # config/log.h limits the lines of one kind
        self.assertLess(max(new), 50 + 25 * took_all)
        for reader in range(3):
            self.found(reader, "during", pages)
            for i in range(3):
                self.found(reader, f"of{i}", (1000 * i, 1000 * i + PAGES))
        return int(out)

    def found(self, reader, name, pages):
        """Every page is found and read in the end; none is absent meanwhile."""
        def look():
            got = self.ended(self.started("find", self.engines, reader, name, pages))
            self.assertEqual((got.get("miss", 0), got["wrong"]), (0, 0), got)
            return got["found"] == got["read"] == got["kept"]
        harness.wait_for(look, 90, f"reader {reader} finds {name}")

    def lines(self):
        return [self.engines.log(i).count("\n") for i in range(3)]

    def recovered(self):
        """The engines know each other only, and owners have all entries."""
        states = [self.engines.status(i) for i in range(3)]
        return all(s and sorted(m["name"] for m in s["members"]) == sorted(self.names) and
                   not any(s["figures"]["directory_" + what]
                           for what in ("moving", "owners_behind", "sets_partial"))
                   for s in states)

    def victims(self):
        return [f"{m['name']}:{int(m['incarnation'], 16)}:{m['address']}:{m['port']}"
                for m in self.members(0)]

    def own_members_stay(self):
        """No engine has removed another one."""
        for i in range(3):
            log = self.engines.log(i)
            for name in self.names:
                self.assertNotRegex(log, f"member {name} .*is off the map")


class Lies(Hostile):
    def test_many_invented_members(self):
        self.check("joins", JOINS)
        self.own_members_stay()
        self.assertGreater(self.engines.status(0)["counters"]["joins_refused"], JOINS // 2)
        self.assertEqual(self.engines.log(0).count("(joins_refused)"), 1)

    def test_lists_of_the_longest_length(self):
        self.assertEqual(self.check("lists", played_liar.LISTED_MAX), 0)
        self.own_members_stay()

    def test_lists_that_are_too_long(self):
        self.assertEqual(self.check("lists", played_liar.LISTED_MAX + 1), 3)
        self.own_members_stay()

    def test_absurd_values_and_stolen_names(self):
        self.assertGreater(self.check("claims", *self.victims()), 0)
        self.own_members_stay()

    def test_a_flood_of_gossip(self):
        self.check("flood", 5)
        self.own_members_stay()
        for i in range(3):
            log = self.engines.log(i)
            self.assertGreater(self.engines.status(i)["counters"]["names_refused"], 0)
            self.assertEqual(log.count("(names_refused)"), 1)
            self.assertNotIn("member flood-", log)


    def test_accusations_of_living_members(self):
        """Each engine hears the others itself: what one says removes none of them."""
        self.check("accusations", *self.victims())
        self.own_members_stay()
        refuted = sum(self.engines.status(i)["counters"]["claims_refuted"] for i in range(3))
        self.assertGreater(refuted, 10)


class Accusations(Hostile):
    # A tenth of it is the time to refute a claim; a busy machine may not run an engine for 1 s.
    dead_ms = 10 * DEAD_MS

    def test_accusations_of_living_members_with_rings(self):
        self.check("removals", *self.victims())
        self.own_members_stay()


if __name__ == "__main__":
    harness.main(at_once=6)
