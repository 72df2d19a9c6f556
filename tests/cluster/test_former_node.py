# SPDX-License-Identifier: Apache-2.0
"""A node of PeerCache 0.8 beside an engine: whichever asks the other, the engine says so in one
line of its log, counts it and has a finding, and the node gets an answer that it can read."""

import re
import subprocess
import sys
import tempfile
import unittest

import former_node
import harness
from test_seeds import Engines, SeedTest


class FormerNode(SeedTest):
    def alone(self, *seeds):
        return self.begin(1, lambda _: ["cluster.seeds=" + ",".join(seeds)])

    def lines(self, engines, text):
        return re.findall(rf"(?m)^.* warn  .*{text}.*$", engines.log(0))

    def test_one_that_asks_is_told_and_named(self):
        engines = self.alone()
        for port in (engines.port[0], engines.metrics_port[0]):
            for msgpack in (False, True):
                ok, text = former_node.register(port, msgpack)
                self.assertFalse(ok)
                self.assertIn("shares no pages with PeerCache 0.8: see the page Migration", text)
        self.until(lambda: engines.status(0)["counters"].get("former_nodes", 0) >= 3, "counted")
        found = engines.findings(0)["former_node"]
        self.assertEqual(len(found), 2)  # one for each port that it asks
        for text in found:
            self.assertRegex(text, r"PeerCache 0\.8 runs at 127\.0\.0\.1, for \d+ s: it takes")
        for what in ("this engine", "metrics.port of this engine"):
            self.until(lambda what=what: len(self.lines(
                engines, f"PeerCache 0.8 runs at 127.0.0.1: it takes {what} for")) == 1, what)
        self.assertIn("PeerCache 0.8 at 127.0.0.1 is no member", engines.ctl(0, "members")[1])
        self.assertNotIn("engine_refused", engines.findings(0))
        self.assertEqual(engines.status(0)["counters"].get("messages_bad", 0), 0)
        # The engine is as ready as without it, and its HTTP server answers others.
        self.assertEqual(engines.fetch(0, "/readyz")[0], 200)
        self.until(lambda: engines.metric(0, 'findings{kind="former_node"}') == 2, "the metric")
        self.stop_cleanly(engines)

    def named_as_seed(self, meta):
        """An engine whose seed is the node; returns it once the node is named."""
        seed = f"127.0.0.1:{meta.port}"
        engines = self.alone(seed)
        self.until(lambda: engines.findings(0).get("former_node"), "a finding")
        self.assertIn(f"PeerCache 0.8 runs at {seed}", engines.findings(0)["former_node"][0])
        self.assertIn(f"PeerCache 0.8 at {seed} is no member", engines.ctl(0, "members")[1])
        self.assertEqual(len(self.lines(engines, f"PeerCache 0.8 runs at {seed}: it answers")), 1)
        self.assertEqual(self.lines(engines, "has led to no member"), [])
        return engines

    def test_a_seed_that_is_one_is_named(self):
        for msgpack in (False, True):
            with self.subTest(msgpack=msgpack):
                meta = former_node.Meta(msgpack)
                self.addCleanup(meta.close)
                engines = self.named_as_seed(meta)
                asked = meta.asked
                self.until(lambda meta=meta, asked=asked: meta.asked >= asked + 2, "asked again")
                # its log has a traceback for the Hello, and for the codec that it has not
                self.assertEqual(meta.broken, 1 + msgpack)
                self.stop_cleanly(engines)

    @unittest.skipUnless(former_node.FOLDER, "$PEERCACHE_FORMER names no PeerCache 0.8.4")
    def test_the_real_one(self):
        log = tempfile.NamedTemporaryFile(suffix=".log")
        self.addCleanup(log.close)
        meta = former_node.RealMeta(harness.cluster.free_port(), log.name)
        self.addCleanup(meta.close)
        engines = self.named_as_seed(meta)
        print(f"the log of the real one has {meta.broken} traceback(s)")
        node = subprocess.Popen(
            [sys.executable, "-m", "peercache.examples.launch_storage", "--discovery-addr",
             f"127.0.0.1:{engines.port[0]}", "--global-segment-size", "8mb", "--no-disk",
             "--protocol", "tcp", "--local-hostname", "127.0.0.1", "--metrics-port",
             str(harness.cluster.free_port())], stderr=subprocess.PIPE, text=True,
            env={"PYTHONPATH": former_node.FOLDER, "PATH": "/usr/bin:/bin"})
        self.addCleanup(node.stderr.close)
        self.addCleanup(node.wait)
        self.addCleanup(node.kill)
        self.until(lambda: self.lines(engines, "takes this engine for one of its"), "it asks")
        node.kill()
        said = node.stderr.read()
        print(said[-2000:])
        self.assertNotIn("Traceback", said)
        self.assertIn("waiting for a discovery master", said)
        self.stop_cleanly(engines)


if __name__ == "__main__":
    harness.main()
