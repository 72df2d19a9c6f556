# SPDX-License-Identifier: Apache-2.0
"""Bits that flip in the pools of real engines: the scrubber finds them, and so do readers."""

import json
import mmap
import os
import random

import harness

PAGE = 16384
PAGES_FLIPPED = 40
REPLAY = ("--requests", 100)


class Scrub(harness.ClusterTest):
    def counter(self, engines, name, i=0):
        return engines.status(i)["counters"][name]

    def finding(self, engines):
        return "".join(f["text"] for f in engines.status(0)["health"]["findings"]
                       if f["id"] == "pages_corrupt")

    def pool(self, engines, i=0):
        """The memory of the only pool of engine i, mapped from its own descriptor."""
        folder = f"/proc/{engines.process[i].pid}/fd"
        for fd in os.listdir(folder):
            path = os.path.join(folder, fd)
            try:
                if "peercache-pool-0" in os.readlink(path):
                    with open(path, "r+b") as f:
                        return mmap.mmap(f.fileno(), 0)
            except FileNotFoundError:
                continue  # one that a helper thread had open for a moment
        raise AssertionError("the engine has no pool")

    def flip(self, engines, i=0):
        """Flips one bit in each of some pages of engine i."""
        seed = int(os.environ.get("SEED", random.randrange(1 << 32)))
        print(f"SEED={seed}")
        rng = random.Random(seed)
        with self.pool(engines, i) as memory:
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

    def read_until_found(self, engines, mode, pages):
        """Replays until readers have found `pages` damaged pages. Returns (wrong hits, found)."""
        wrong = found = rounds = 0
        while sum(self.counter(engines, "pages_corrupt", i) for i in range(2)) < pages:
            rounds += 1
            self.assertLess(rounds, 300, "the readers find no more pages")
            process = harness.tool("tools/peercache-bench", "replay", "--quiet", "--json", "-",
                                   "--crc", mode, "--page-bytes", PAGE, *REPLAY,
                                   sockets=engines.sockets)
            status, out, err = harness.finish(process, 300)
            got = json.loads(out[out.index("{"):])
            self.assertEqual(status, int(got["wrong"] > 0), out + err)
            wrong += got["wrong"]
            found += got["corrupt"]
        return wrong, found

    def damaged(self):
        """Two engines with damaged pages, without the scrubber's walk: it compares reports only."""
        engines = self.start(2, pool_bytes="64MiB", settings=["engine.scrub_seconds=0"])
        got = self.replay(engines, "--page-bytes", PAGE, *REPLAY)
        self.assertEqual((got["wrong"], got["corrupt"]), (0, 0))
        got = self.replay(engines, "--page-bytes", PAGE, "--crc", "always", *REPLAY)
        self.assertEqual(got["verified"], got["hits"])
        self.assertEqual((got["wrong"], got["corrupt"]), (0, 0))
        for i in range(2):
            self.flip(engines, i)
        return engines

    def test_readers_that_compare_all_get_no_damaged_page_and_have_each_taken_out(self):
        engines = self.damaged()
        wrong, found = self.read_until_found(engines, "always", 2 * PAGES_FLIPPED)
        self.assertEqual(wrong, 0)
        self.assertGreaterEqual(found, 2 * PAGES_FLIPPED)
        got = self.replay(engines, "--page-bytes", PAGE, "--crc", "always", *REPLAY)
        self.assertEqual((got["wrong"], got["corrupt"]), (0, 0))
        for i in range(2):
            self.assertEqual(self.counter(engines, "pages_corrupt", i), PAGES_FLIPPED)
            self.assertGreaterEqual(self.counter(engines, "pages_reported", i), PAGES_FLIPPED)
            self.assertGreater(self.counter(engines, "reads_corrupt", i), 0)
        self.stop_cleanly(engines)

    def test_readers_that_compare_a_sample_have_each_damaged_page_taken_out_in_the_end(self):
        engines = self.damaged()
        wrong, found = self.read_until_found(engines, "sample:4", 2 * PAGES_FLIPPED)
        print(f"one page in 4 compared: {wrong} wrong hits, {found} damaged pages found")
        got = self.replay(engines, "--page-bytes", PAGE, "--crc", "always", *REPLAY)
        self.assertEqual((got["wrong"], got["corrupt"]), (0, 0))
        self.stop_cleanly(engines)


if __name__ == "__main__":
    harness.main()
