# SPDX-License-Identifier: Apache-2.0
"""Tests of hits.py with made-up pools, and of where the tested package comes from. No engine."""

import glob
import itertools
import os
import sys
import unittest
from types import SimpleNamespace

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BUILT = os.path.join(os.environ.get("PEERCACHE_BUILD", ""), "engine/client/python")
sys.path.insert(0, BUILT)
from peercache import hits  # noqa: E402


class Windows(unittest.TestCase):
    def test_a_prefix_fits_when_its_last_pages_are_stored(self):
        for count in range(7):
            for there in itertools.product((False, True), repeat=count):
                for size in range(1, 5):
                    self.assertEqual(hits.windows(there, size),
                                     [all(there[max(0, n - size):n]) for n in range(1, count + 1)])

    def test_a_transfer_without_keys_needs_the_last_page(self):
        """It restores nothing where nothing is stored."""
        for size in (0, -1):
            self.assertEqual(hits.windows([False] * 3, size), [False] * 3)
            self.assertEqual(hits.windows([True, False, True], size), [True, False, True])
            self.assertEqual(hits.windows([], size), [])

    def test_the_longest_prefix_need_not_be_the_first(self):
        self.assertEqual(hits.longest([]), 0)
        self.assertEqual(hits.longest([False, False]), 0)
        self.assertEqual(hits.longest([True, False, True, False]), 3)


class Groups(unittest.TestCase):
    def pages(self, keys, stored, block, group, span=100):
        transfer = SimpleNamespace(keys=keys, block_pages=block, group_pages=group)
        return hits.group_pages(transfer, span, lambda some: min(stored, len(some)))

    def test_complete_groups_count_with_all_pages_of_their_blocks(self):
        keys = ["k"] * 6
        for stored in range(7):
            self.assertEqual(self.pages(keys, stored, 4, 2), stored // 2 * 4)
        self.assertEqual(self.pages(keys, 6, 4, 2, span=11), 11)

    def test_a_transfer_without_keys_or_sizes_covers_nothing(self):
        for keys, block, group in (([], 4, 2), (None, 4, 2), (["k"], 0, 1), (["k"], 4, 0),
                                   (["k"], -4, 1), (["k"], 4, -1), (["k"], None, None)):
            self.assertEqual(self.pages(keys, 6, block, group), 0)
        self.assertEqual(hits.group_pages(SimpleNamespace(keys=["k"]), 9, len), 0)


class Source(unittest.TestCase):
    def test_the_package_in_the_build_folder_is_the_source(self):
        """Not a copy of it, which would be old after a change without a build."""
        sources = glob.glob(os.path.join(ROOT, "engine/client/python/peercache/*.py"))
        self.assertTrue(sources)
        for source in sources:
            built = os.path.join(BUILT, "peercache", os.path.basename(source))
            self.assertTrue(os.path.samefile(source, built), built)


if __name__ == "__main__":
    unittest.main()
