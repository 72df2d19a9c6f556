# SPDX-License-Identifier: Apache-2.0
"""The map changes every 80 ms: a member joins and leaves, as a new incarnation each time, and for
half of the time an engine is killed and started again. No page of a living holder is reported
absent, and the restarted engine's shard fills meanwhile.

$PEERCACHE_FLAP_PAGES pages in all; $PEERCACHE_FLAP_S seconds. Prints figures."""

import os
import time

import harness
from played_member import FlappingMember
from test_outages import Outage

PAGES = int(os.environ.get("PEERCACHE_FLAP_PAGES", "30000")) // 3
SECONDS = float(os.environ.get("PEERCACHE_FLAP_S", "8"))
PERIOD = 0.08
SETTINGS = ["cluster.heartbeat_ms=100", "cluster.dead_after_ms=3000",
            "engine.directory_entries=2000000"]


def changes(counters):
    return counters["members_joined"] + counters["members_died"]


class Flap(Outage):
    def shard(self, engines, i):
        return engines.figure(i, "directory_entries")

    def read_meanwhile(self, engines, total):
        """Engines 0 and 1 read each other's pages, and set new ones, until SECONDS are over. In the
        first half of this time engine 2 is killed and started again, again and again."""
        end, setters = time.monotonic() + SECONDS, []
        for i in (0, 1):
            first = 10000000 * (i + 1)
            setters.append(self.started("set", engines, i, f"new{i}", (first, first + 10000000),
                                        "--rest-us", "5000"))
        while time.monotonic() < end:
            readers = [self.started("find", engines, i, f"of{1 - i}",
                                    ((1 - i) * PAGES, (2 - i) * PAGES)) for i in (0, 1)]
            if time.monotonic() < end - SECONDS / 2:
                engines.kill(2)
                engines.restart(2)
            harness.wait_for(lambda: all(r.poll() is not None for r in readers) or
                             time.monotonic() > end, SECONDS + 60, "the pages are read")
            for reader in readers:
                harness.end_early(reader)
                self.count(total, self.ended(reader))
        for setter in setters:
            harness.end_early(setter)
        return [self.ended(setter) for setter in setters]

    @staticmethod
    def count(total, got):
        for name, pages in got.items():
            total[name] = total.get(name, 0) + pages

    def test_no_page_is_absent_while_the_map_changes_every_80_ms(self):
        engines = self.start(3, pool_bytes=f"{PAGES * 6 // 1024 + 256}MiB", settings=SETTINGS)
        for i in range(3):
            self.store_calmly(engines, i, f"of{i}", (i * PAGES, (i + 1) * PAGES))
        filled, total = self.shard(engines, 2), {}
        flapper = FlappingMember(engines, PERIOD)
        try:
            harness.wait_for(lambda: flapper.turns > 10, 10, "the map changes")
            before, turns, begun = engines.status(0)["counters"], flapper.turns, time.monotonic()
            stored = self.read_meanwhile(engines, total)
            after = engines.status(0)["counters"]
            turns, seconds = flapper.turns - turns, time.monotonic() - begun
            refilled = harness.wait_for(
                lambda: (entries := self.shard(engines, 2)) > filled / 2 and entries, SECONDS,
                "the restarted engine's shard fills")
        finally:
            flapper.close()
        seen = changes(after) - changes(before)
        print(f"\n{3 * PAGES} pages, {SECONDS} s: {seen} changes of the map; looked up and read: "
              f"{total}; the restarted engine's shard has {refilled} of {filled} entries; "
              f"sets {stored}")
        # A turn that is late is made up for by the next ones.
        self.assertGreater(turns, 0.7 * seconds / PERIOD / harness.SLOW)
        self.assertGreater(seen, 0.7 * turns / harness.SLOW)
        self.assertEqual((total.get("miss", 0), total["wrong"]), (0, 0))
        self.assertGreater(total["found"], 0.9 * total["kept"])
        engines.wait_members(3)
        for i in (0, 1):
            self.assert_all_found(engines, 2, f"of{i}", (i * PAGES, (i + 1) * PAGES))
            first = 10000000 * (i + 1)
            self.assert_all_found(engines, 2, f"new{i}", (first, first + stored[i]["sets"]))
        self.stop_cleanly(engines)


if __name__ == "__main__":
    harness.main()
