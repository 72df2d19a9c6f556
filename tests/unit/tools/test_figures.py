# SPDX-License-Identifier: Apache-2.0
"""Those who show figures use the names of figures.def: the page, peercachectl, tests, perf.

Names in C that use the list itself are the compiler's business (history.c); those of METRICS.md
are test_control_metrics_table's, those of alerts and Grafana test_alerts.py's.
"""

import os
import re
import subprocess
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
OBSERVE = "engine/control/observe"
PAGE = f"{OBSERVE}/dashboard"
CALLS, TIMES = ("get", "set", "exists"), ("p50", "p99", "p999")


def read(path):
    with open(os.path.join(ROOT, path), encoding="utf-8") as file:
        return file.read()


def listed(path, *macros):
    """Names in the lines of a list that begin with one of `macros`."""
    return re.findall(rf"(?m)^(?:{'|'.join(macros)})\((?:gauge, |counter, )?(\w+)", read(path))


FIGURES = f"{OBSERVE}/figures.def"
PLOTTED = set(listed(FIGURES, "PLOTTED"))
STORED = set(listed(FIGURES, "SCALAR", "RAIL", "CORE"))
RECENT = PLOTTED | set(listed(FIGURES, "RECENT", "RECENT_RAIL", "RECENT_CORE"))
COUNTERS = set(listed("engine/abi/counter.def", "COUNTER"))
FINDINGS = set(listed(f"{OBSERVE}/health.def", "FINDING"))


def written():
    """Other names in /api/status, /api/cluster and /api/history."""
    text = "".join(read(f"{OBSERVE}/{name}.c") for name in ("report", "view", "history"))
    return (set(re.findall(r'(?:json|report)_\w+\(&?j, "(\w+)"', text))
            | set(re.findall(r'\\"(\w+)\\"', text)))


class Names(unittest.TestCase):
    def page(self, name):
        """The code of a script of the page, without comments."""
        return re.sub(r"(?s)/\*.*?\*/", "", read(f"{PAGE}/{name}"))

    def test_the_list_has_each_name_once(self):
        names = listed(FIGURES, "SCALAR", "RAIL", "CORE", "RECENT", "PLOTTED", "RECENT_RAIL",
                       "RECENT_CORE")
        self.assertGreater(len(names), 80)
        self.assertEqual(sorted(names), sorted(set(names)))
        self.assertEqual(STORED & COUNTERS, set())

    def test_the_page_reads_only_what_the_engine_writes(self):
        """Names of the page itself have no underscore."""
        served = STORED | RECENT | written() | FINDINGS
        for name in sorted(os.listdir(os.path.join(ROOT, PAGE))):
            if name.endswith(".js"):
                used = set(re.findall(r"(?<![\w$}])[a-z]+(?:_[a-z0-9]+)+\b", self.page(name)))
                self.assertEqual(used - served, set(), name)

    def test_the_page_reads_recent_figures_where_they_are(self):
        for name in ("tiles.js", "figures.js", "page.js"):
            text = self.page(name)
            for group, names in (("recent", RECENT), ("figures", STORED)):
                used = set(re.findall(rf"\b{group}\.(\w+)", text))
                for inside in re.findall(rf"\{{([^{{}}]*)\}} = [\w.]*{group};", text):
                    used |= set(re.findall(r"(\w+)(?=: |,|$)", re.sub(r": \w+", ": ", inside)))
                self.assertEqual(used - names, set(), name)
        self.assertIn("${call}_${which}_seconds", self.page("tiles.js"))
        self.assertLessEqual({f"{c}_{t}_seconds" for c in CALLS for t in TIMES}, RECENT)

    def test_plots_are_of_columns_of_the_history(self):
        used = set(re.findall(r"\bp(?:oint)?\.(\w+_\w+)", self.page("plots.js")))
        self.assertGreater(len(used), 6)
        self.assertEqual(used - PLOTTED - {"unix_ms"}, set())

    def test_the_view_of_the_cluster_has_the_names_of_the_list(self):
        text = read(f"{OBSERVE}/view.c")
        used = set(re.findall(r'json_\w+\(j, "(\w+_(?:ratio|per_second))"', text))
        self.assertGreater(len(used), 6)
        self.assertEqual(used - RECENT, set())
        self.assertIn('"%s_%s_seconds"', text)

    def test_peercachectl_reads_only_what_the_engine_writes(self):
        served = RECENT | written() | {"figures", "recent"}
        for name in ("clear", "directory", "doctor", "restart", "status", "top"):
            text = read(f"tools/ctl_{name}.c")
            used = set(re.findall(
                r'json_(?:number|real|text|get|plain|flag)\((?!figures)[^";]*?"(\w+)"', text))
            self.assertEqual(used - served - COUNTERS - {"told", "seen"}, set(), name)
            used = set(re.findall(r'json_number\(figures, "(\w+)"', text)
                       + re.findall(r'json_get\(\w+, "figures"\), "(\w+)"', text))
            self.assertEqual(used - STORED, set(), name)

    def test_top_shows_only_listed_figures(self):
        text = read("tools/ctl_top.c")
        used = set(re.findall(r'frame_figure\(\w+, "(\w+)"', text))
        self.assertGreater(len(used), 20)
        self.assertEqual(used - STORED - RECENT, set())
        words = re.findall(r'call_figure\(report, call, "(\w+)"', text)
        for name in ("ratios", "times"):
            words += re.findall(r'"(\w+)"', re.search(rf"{name}\[\] = {{(.*?)}}", text, re.S)[1])
        self.assertEqual(len(set(words)), 9)
        for word in words:
            self.assertIn(f"get_{word}", RECENT)

    def test_tests_and_benchmarks_ask_for_listed_names(self):
        files = subprocess.run(["git", "ls-files", "tests/*.py", "perf/*.py", "tools/*"], cwd=ROOT,
                               capture_output=True, text=True, check=True).stdout.split()
        used = {}
        for path in files:
            for group, name in re.findall(
                    r'(?:\["(figures|recent)"\]\[|\bfigure\([\w.]+, )"(\w+)"[\])]', read(path)):
                used.setdefault((group or "figures", name), path)
        self.assertGreater(len(used), 20)
        for (group, name), path in used.items():
            self.assertIn(name, RECENT if group == "recent" else STORED, path)


if __name__ == "__main__":
    unittest.main(verbosity=2)
