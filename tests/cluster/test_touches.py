# SPDX-License-Identifier: Apache-2.0
"""Pages that clients of other hosts look up are evicted after the others."""

import json

import harness

POOL_MIB, PAGES_PER_MIB = 32, 4


class Touches(harness.ClusterTest):
    def test_a_page_that_is_looked_up_again_and_again_is_not_evicted(self):
        engines = self.start(2, pool_bytes=f"{POOL_MIB}MiB")
        slots = POOL_MIB * PAGES_PER_MIB
        status, out, err = harness.finish(harness.tool(
            "tests/cluster/looked", slots, sockets=engines.sockets))
        self.assertEqual(status, 0, out + err)
        got = json.loads(out)
        self.assertEqual(got["stored"], 3 * 16 + 4 * slots)
        self.assertEqual(got["lost"], 0)
        self.assertEqual(got["idle"], 0, "pages that nothing looks up leave first")
        self.assertEqual(got["once"], 16, "the first touch of each page arrives")
        self.assertEqual(got["late"], 0, "one touch keeps a page for a while")


if __name__ == "__main__":
    harness.main()
