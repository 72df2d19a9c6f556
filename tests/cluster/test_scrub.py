# SPDX-License-Identifier: Apache-2.0
"""Bits that flip in the pools of a real engine: the scrubber finds them before a reader does."""

import mmap
import os
import random
import unittest

import harness

PAGE = 16384
PAGES_FLIPPED = 40
REPLAY = ("--requests", 100)


class Scrub(harness.ClusterTest):
    def counter(self, engines, name):
        return engines.status(0)["counters"][name]

    def finding(self, engines):
        return "".join(f["text"] for f in engines.status(0)["health"]["findings"]
                       if f["id"] == "pages_corrupt")

    def pool(self, engines):
        """The memory of the only pool, mapped from the descriptor that the engine has."""
        folder = f"/proc/{engines.process[0].pid}/fd"
        for fd in os.listdir(folder):
            path = os.path.join(folder, fd)
            if "peercache-pool-0" in os.readlink(path):
                with open(path, "r+b") as f:
                    return mmap.mmap(f.fileno(), 0)
        raise AssertionError("the engine has no pool")

    def flip(self, engines):
        """Flips one bit in each of some pages."""
        seed = int(os.environ.get("SEED", random.randrange(1 << 32)))
        print(f"SEED={seed}")
        rng = random.Random(seed)
        with self.pool(engines) as memory:
            used = [at for at in range(0, len(memory), PAGE) if any(memory[at:at + PAGE])]
            for at in rng.sample(used, PAGES_FLIPPED):
                memory[at + rng.randrange(PAGE)] ^= 1 << rng.randrange(8)

    def scrubbed_twice(self, engines, pages):
        """Waits until every page that is there was compared at least once from now on."""
        until = self.counter(engines, "pages_scrubbed") + 2 * pages
        harness.wait_for(lambda: self.counter(engines, "pages_scrubbed") >= until, 120,
                         "two rounds of the scrubber")

    def test_each_page_with_a_flipped_bit_is_taken_out_and_no_other(self):
        expected = self.describe("--page-bytes", PAGE, *REPLAY)
        pages = expected["different_blocks"]
        engines = self.start(1, pool_bytes="64MiB", settings=["engine.scrub_seconds=1"])
        got = self.replay(engines, "--page-bytes", PAGE, *REPLAY)
        self.assertEqual((got["wrong"], got["sets"]), (0, pages))
        self.scrubbed_twice(engines, pages)
        self.assertEqual(self.counter(engines, "pages_corrupt"), 0)
        self.assertEqual(self.finding(engines), "")

        self.flip(engines)
        harness.wait_for(lambda: self.counter(engines, "pages_corrupt") >= PAGES_FLIPPED, 120,
                         "every flipped page is found")
        self.scrubbed_twice(engines, pages - PAGES_FLIPPED)
        self.assertEqual(self.counter(engines, "pages_corrupt"), PAGES_FLIPPED)
        harness.wait_for(lambda: f"{PAGES_FLIPPED} damaged page(s)" in self.finding(engines), 30,
                         "the finding")
        got = self.replay(engines, "--page-bytes", PAGE, *REPLAY)
        self.assertEqual((got["wrong"], got["sets"]), (0, PAGES_FLIPPED))
        self.stop_cleanly(engines)


if __name__ == "__main__":
    unittest.main(verbosity=2)
