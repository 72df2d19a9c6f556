# SPDX-License-Identifier: Apache-2.0
"""perf/served.py: what it decides before and after it starts servers, and its goals."""

import contextlib
import io
import itertools
import os
import sys
import types
import unittest
from unittest import mock

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
sys.path.insert(0, os.path.join(ROOT, "perf"))
sys.dont_write_bytecode = True
import bench  # noqa: E402
import served  # noqa: E402


class Here(unittest.TestCase):
    """Which columns there are, and when engines are killed."""

    def test_without_peercache_there_must_be_something_to_compare(self):
        options = types.SimpleNamespace(only="none,peercache", quick=False, peercache=None)
        with contextlib.redirect_stdout(io.StringIO()), \
                self.assertRaisesRegex(SystemExit, "nothing to compare"):
            served.chosen(options)
        options.only = "none,peercache,l2"
        with contextlib.redirect_stdout(io.StringIO()):
            self.assertEqual(served.chosen(options), (["none", "l2"], None))

    def kills(self, dialogues):
        """The number of disturbances of a table with `dialogues` dialogues, and what is printed."""
        table = mock.Mock(dialogues=[[[5]]] * dialogues)
        hosts = [mock.Mock(**{"engine.side_effect": itertools.count(1)}) for _ in range(2)]
        engine = mock.Mock(servers=[mock.Mock(host=host) for host in hosts])
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            served.Stores.kill(table, engine, mock.Mock(servers=[None]))
        return table.disturb.call_count, out.getvalue()

    def test_engines_are_killed_only_while_requests_remain(self):
        few, more = served.DISTURBED_AT, served.DISTURBED_AT + 1
        for dialogues in (1, few):
            count, said = self.kills(dialogues)
            self.assertEqual(count, 0)
            self.assertIn("engines are not killed", said)
        self.assertEqual(self.kills(more), (2, ""))


class Goals(unittest.TestCase):
    def turn(self, ttft, hits):
        reply = types.SimpleNamespace(ttft=ttft, prompt=100, hits=hits, device=0, host=0,
                                      storage=hits, output=[7])
        return served.turns.Turn({0: reply}, {}, 1, 90, (None, None))

    def test_the_column_filled_by_another_host_has_goals(self):
        table = served.turns.Table([[[5]]], None)
        table.phases = [{"no cache": [self.turn(1, 0)], served.OURS: [self.turn(0.3, 81)],
                         "SGLang's file, other host": [self.turn(0.2, 81)]}]
        table.disturbed["engine of the holder killed"] = self.turn(1, 0), self.turn(3, 0)
        value = served.result_of(table).value
        self.assertIsNone(bench.check(value))
        self.assertEqual({figure["name"]: figure["met"] for figure in value["figures"]
                          if "goal" in figure}, {
            f"{served.OURS}: TTFT p50 / no cache": False,
            f"{served.OURS}: hits / those of an unbounded store": False,
            "engine of the holder killed: TTFT p99 - that without cache": False,
            "engine of the holder killed: answers that are those without cache": True})


if __name__ == "__main__":
    unittest.main()
