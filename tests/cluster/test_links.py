# SPDX-License-Identifier: Apache-2.0
"""Hosts that cannot reach each other, and owners without an entry for a key: readers still find
every key that another owner has. The first uses network namespaces, which need root."""

import os
import unittest

import harness
from kept import Kept

SETTINGS = ["cluster.heartbeat_ms=100", f"cluster.dead_after_ms={int(3000 * harness.SLOW)}"]
KEYS = 120


class Pages(Kept):
    """Groups of pages. Each group has a name, and the pages from a number on that no other has."""

    def setUp(self):
        super().setUp()
        self.groups = {}

    def pages(self, name, count=KEYS):
        first = self.groups.setdefault(name, 100000 * len(self.groups))
        return first, first + count

    def store_all(self, engines, i, name, count=KEYS):
        self.store_calmly(engines, i, name, self.pages(name, count))

    def found(self, engines, reader, name, count=KEYS):
        """What a client without cached places finds, and reads. No page has wrong bytes."""
        got = self.ended(self.started("find", engines, reader, name, self.pages(name, count)))
        self.assertEqual((got["kept"], got["wrong"]), (count, 0), got)
        return got

    def assert_found(self, engines, reader, name, count=KEYS):
        got = self.found(engines, reader, name, count)
        self.assertEqual((got["found"], got["read"]), (count, count), (reader, name, got))


@unittest.skipIf(os.geteuid(), "needs root for network namespaces")
class OneLinkIsCut(Pages):
    @staticmethod
    def kept(engines, i):
        return engines.status(i)["counters"]["members_kept"] > 0

    def stores(self, engines, i):
        """True once sets through engine i reach an owner of each key."""
        self.tries += 1
        name = f"try{self.tries}"
        return self.store(engines, i, name, self.pages(name, 12)).get("hit") == 12

    def check(self, one_way):
        self.tries = 0
        engines = self.start(4, pool_bytes="128MiB",
                             settings=SETTINGS, netns=True, link="tcp")
        self.store_all(engines, 0, "before")
        engines.netns.cut(0, 2, one_way)
        for i in (0, 2):
            harness.wait_for(lambda: self.kept(engines, i), 60, f"engine {i} misses heartbeats")
        for i in (0, 2):
            harness.wait_for(lambda: self.stores(engines, i), 60, f"sets through engine {i}")
        stems = [f"end{i}" for i in range(4)]
        for i, stem in enumerate(stems):
            self.store_all(engines, i, stem)
        for reader in (1, 3):
            for stem in ("before", *stems):
                self.assert_found(engines, reader, stem)
        for reader in (0, 2):
            for i in (1, 3, reader):
                self.assert_found(engines, reader, stems[i])
        engines.netns.mend(0, 2, one_way)
        for reader in (0, 2):
            for stem in ("end0", "end2"):
                harness.wait_for(lambda: self.found(engines, reader, stem)["found"] ==
                                 KEYS, 60, f"host {reader} finds the pages {stem}")
        engines.wait_members(4)
        self.assertEqual([engines.status(i)["counters"]["members_died"] for i in range(4)], [0] * 4)
        self.stop_cleanly(engines)

    def test_no_member_is_removed_and_readers_find_every_page_whose_holder_they_reach(self):
        self.check(one_way=False)

    def test_so_it_is_when_the_packets_of_one_direction_are_lost(self):
        self.check(one_way=True)


class OneShardIsSmall(Pages):
    def start_one_small(self, replicas):
        """Host 0 has a shard of 256 entries, the minimum: as if the pools of the others were many
        times larger."""
        engines = harness.cluster.Cluster(
            harness.BUILD, 3, pool_bytes="64MiB",
            settings=harness.patient([f"cluster.replicas={replicas}"]))
        whole = engines.command
        engines.command = lambda i: whole(i) + (
            ["--set", "engine.directory_entries=32"] if i == 0 else [])
        self.addCleanup(engines.stop)
        engines.start()
        self.store_whole(engines, 1, "many", self.pages("many", 3 * KEYS))
        for reader in range(3):
            self.assert_found(engines, reader, "many", 3 * KEYS)
        return engines

    def test_keys_that_a_full_shard_drops_are_found_at_the_other_owners(self):
        engines = self.start_one_small(3)  # each host owns every key
        self.assertGreater(engines.status(0)["counters"]["entries_dropped"], KEYS // 2)
        self.stop_cleanly(engines)

    def test_a_small_shard_owns_a_small_share_of_the_keys(self):
        engines = self.start_one_small(2)
        counters = [engines.status(i)["counters"] for i in range(3)]
        self.assertEqual([c["entries_dropped"] for c in counters], [0] * 3)
        self.assertEqual([c["sets_partial"] for c in counters], [0] * 3)
        # its weight is a 64th of the others' or less
        self.assertLess(counters[0]["entries_inserted"], KEYS // 4)
        self.stop_cleanly(engines)


if __name__ == "__main__":
    harness.main()
