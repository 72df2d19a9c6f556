# SPDX-License-Identifier: Apache-2.0
"""Pages that a test stores through one engine and finds through another: the program `kept`."""

import json
import os
import subprocess
import tempfile

import harness

DEADLINE_MS = str(int(15000 * harness.SLOW))


class Kept(harness.ClusterTest):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="peercache-kept-")
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def started(self, command, engines, i, name, pages, *more):
        """Starts `kept` for the pages [from, to) through engine i."""
        process = subprocess.Popen(
            [harness.program("tests/cluster/kept"), command, "--results",
             os.path.join(self.folder, name), "--from", str(pages[0]), "--count",
             str(pages[1] - pages[0]), "--timeout-ms", DEADLINE_MS, *more],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env={**os.environ, "PEERCACHE_SOCKETS": engines.sockets[i]})
        self.addCleanup(process.communicate)
        self.addCleanup(process.kill)
        return process

    def ended(self, process):
        status, out, err = harness.finish(process)
        self.assertEqual(status, 0, out + err)
        return json.loads(out)

    def store(self, engines, i, name, pages, *more):
        return self.ended(self.started("set", engines, i, name, pages, *more))

    def store_whole(self, engines, i, name, pages, *more):
        """Stores the pages, and all sets say "hit"."""
        got = self.store(engines, i, name, pages, *more)
        self.assertEqual(got["hit"], pages[1] - pages[0], got)

    def store_calmly(self, engines, i, name, pages, *more):
        """Like store_whole(), for engines with a short cluster.dead_after_ms: stores the pages
        again while a busy machine makes an owner suspect for a moment, and only if the counters of
        the engines say so. Returns the figures of the last sets."""
        def suspected():
            reports = filter(None, map(engines.status, range(engines.nodes)))
            return sum(report["counters"]["owners_suspected"] for report in reports)

        def stored():
            before = suspected()
            got = self.store(engines, i, name, pages, *more)
            whole = got["hit"] == pages[1] - pages[0]
            if not whole:
                self.assertGreater(suspected(), before, got)
            return whole and got
        return harness.wait_for(stored, 60, f"engine {i} stores {name}")
