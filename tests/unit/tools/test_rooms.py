# SPDX-License-Identifier: Apache-2.0
"""Tests of tools/rooms.py: every figure is shown a small house."""

import os
import sys
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
sys.path.insert(0, os.path.join(ROOT, "tools"))
import rooms  # noqa: E402

HOUSE = {  # function: (file, files that use it, whether a test does)
    "pool_take": ("engine/control/pages/pool.c", ["engine/control/clients/ctl.c"], True),
    "ctl_refill": ("engine/control/clients/ctl.c", ["engine/control/pages/tier.c"], False),
    "net_now": ("engine/control/net/net.c", ["engine/control/members/member.c",
                                            "engine/control/loop.c"], False),
    "loop_stop": ("engine/control/loop.c", ["engine/main.c"], False),
    "odd_call": ("engine/control/attic/odd.c", ["engine/control/net/net.c"], False),
    "key_hash": ("engine/client/page/key.c", ["engine/client/call/call.c"], False),
    "wait_for": ("engine/client/call/wait.c", ["engine/client/write/clear.c"], False),
    "rail_open": ("engine/rail/open.c", [], True),
    "rail_rest": ("engine/rail/open.c", ["engine/rail/step.c"], False),
}
FIGURES = {
    "files in the fullest folder": 2,
    "pairs of rooms both ways": 1,  # clients and pages
    "functions called upward": 2,  # ctl_refill, and odd_call of a room that is not known
    "arrows between rooms": 5,
    "functions called upward in engine/client": 1,  # wait_for
    "one user in engine/client": 100,
    "one user in engine/control": 80,
    "one user in engine/rail": 50,
}
PATHS = ["engine/rail/open.c", "engine/rail/rail.h", "engine/rail/README.md",
         "engine/control/loop.c"]
HOME = {name: row[0] for name, row in HOUSE.items()}
USERS = {name: set(row[1]) for name, row in HOUSE.items()}
TESTED = {name for name, row in HOUSE.items() if row[2]}


class Figures(unittest.TestCase):
    def test_figures_are_those_of_the_house(self):
        self.assertEqual(rooms.figures(PATHS, HOME, USERS, TESTED), FIGURES)

    def test_a_figure_above_its_limit_is_told(self):
        for name, figure in FIGURES.items():
            if figure > 0:
                self.assertTrue(rooms.above(FIGURES, {name: figure - 1}), name)
            self.assertFalse(rooms.above(FIGURES, {name: figure}), name)

    def test_users_of_functions_are_counted(self):
        for inside, row in ((lambda path: rooms.room_of(path) == "pages", (1, 0, 1, 0, 0)),
                            (lambda path: path.startswith("engine/rail/"), (2, 1, 1, 1, 1))):
            self.assertEqual(rooms.count_users(HOME, USERS, TESTED, inside), row)

    def test_every_limit_has_a_figure(self):
        for name in rooms.LIMITS:
            self.assertTrue(name.startswith("one user in ") or name in FIGURES, name)


if __name__ == "__main__":
    unittest.main()
