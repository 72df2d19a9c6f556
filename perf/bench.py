# SPDX-License-Identifier: Apache-2.0
"""Shared by the benchmarks in Python: the options --json and --quick, the result for perf/run, and
runs of peercache-bench."""

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(ROOT, "tools"))
import cluster  # noqa: E402, F401
cluster.Cluster.populated = True
# Plots and numbers are those of peercache-bench. The folder is last: it has other modules, too.
sys.path.append(os.path.join(ROOT, "engine", "client", "python", "peercache", "bench"))
from plot import amount, number  # noqa: E402


def program(name):
    """The path of a program of the build."""
    return cluster.find_program(cluster.default_build(), name)


def median(rows, key):
    return statistics.median(row[key] for row in rows)


def bench_command(*words):
    return [program("tools/peercache-bench"), *map(str, words), "--json", "-"]


def bench_report(out, err):
    """The report of peercache-bench, from its output."""
    if "{" not in out:
        raise SystemExit(f"peercache-bench wrote no report: {out}{err}")
    return json.loads(out[out.index("{"):])


def peercache_bench(sockets, *words):
    """The report of a run of peercache-bench with these engines."""
    done = subprocess.run(bench_command(*words), capture_output=True, text=True,
                          env={**os.environ, "PEERCACHE_SOCKETS": ",".join(sockets)})
    return bench_report(done.stdout, done.stderr)


class Reading:
    """A client that reads pages until end(), and notes each call: peercache-bench get --timeline.
    """

    def __init__(self, sockets, *words):
        handle, self.timeline = tempfile.mkstemp(prefix="peercache-timeline-")
        os.close(handle)
        self.process = subprocess.Popen(
            bench_command("get", "--no-baseline", "--seconds", 600, "--timeline", self.timeline,
                          *words), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env={**os.environ, "PEERCACHE_SOCKETS": ",".join(dict.fromkeys(sockets))})

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.communicate()
        os.unlink(self.timeline)

    def wait(self, condition):
        """Waits for the condition while it reads."""
        while not condition():
            if self.process.poll() is not None:
                raise SystemExit(f"peercache-bench ended early: {self.process.communicate()}")
            time.sleep(0.05)

    def end(self):
        """Ends it. Returns its report."""
        self.process.send_signal(signal.SIGINT)
        return bench_report(*self.process.communicate(timeout=120))

    def calls(self):
        """Yields (began, ended, hits, others) of each call; one begins when the one before ends."""
        ended = None
        with open(self.timeline, encoding="ascii") as file:
            for row in file:
                ns, hits, others = map(int, row.split())
                if ended is not None:
                    yield ended, ns, hits, others
                ended = ns


class Result:
    """One benchmark's figures, series for plots, and notes. check() validates its value."""

    def __init__(self, name, modelled=False):
        self.value = {"name": name, "modelled": modelled, "figures": [], "series": [], "notes": []}

    def figure(self, name, value, unit, text="", goal=None):
        """Adds a figure. `goal` is (">=" or "<=", number); the report says whether it was met."""
        figure = {"name": name, "value": value, "unit": unit, "text": text}
        if goal:
            sign, limit = goal
            figure["goal"] = f"{sign} {limit:g}"
            figure["met"] = value >= limit if sign == ">=" else value <= limit
        self.value["figures"].append(figure)

    def series(self, name, title, x_label, y_label, x, lines):
        self.value["series"].append({"name": name, "title": title, "x_label": x_label,
                                     "y_label": y_label, "x": list(x), "lines": lines})

    def note(self, text):
        self.value["notes"].append(text)

    def write(self, path):
        wrong = check(self.value)
        if wrong:
            raise SystemExit(f"{self.value['name']}: {wrong}")
        text = json.dumps(self.value, indent=1) + "\n"
        if path == "-":
            sys.stdout.write(text)
        elif path:
            with open(path, "w") as f:
                f.write(text)
        for figure in self.value["figures"]:
            print(line(figure), file=sys.stderr)


def line(figure):
    goal = ""
    if "goal" in figure:
        goal = f"  (goal {figure['goal']}: {'met' if figure['met'] else 'NOT met'})"
    return f"{figure['name']}: {amount(figure['value'])} {figure['unit']}{goal}"


def check(value):
    """Returns why `value` is not a valid result of a benchmark, or None if it is valid."""
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        return "the result is not an object with a \"name\""
    if not isinstance(value.get("modelled"), bool):
        return "\"modelled\" is neither true nor false"
    for figure in value.get("figures", []):
        if not all(isinstance(figure.get(k), str) for k in ("name", "unit")):
            return f"a figure without name or unit: {figure}"
        if not number(figure.get("value")):
            return f"figure {figure['name']!r}: its value is not a number: {figure.get('value')!r}"
        if ("goal" in figure) != isinstance(figure.get("met"), bool):
            return f"figure {figure['name']!r}: \"goal\" and \"met\" must both be there, or neither"
    for series in value.get("series", []):
        if not all(isinstance(series.get(k), str) for k in ("name", "title", "x_label", "y_label")):
            return f"a series without name, title or labels: {series}"
        for name, points in series.get("lines", {}).items():
            if len(points) != len(series.get("x", [])):
                return f"series {series['name']!r}: line {name!r} and x differ in length"
            if not all(point is None or number(point) for point in points):
                return f"series {series['name']!r}: line {name!r} has a value that is no number"
    if not value.get("figures") and not value.get("series"):
        return "neither a figure nor a series: nothing was measured"
    return None


def parse(description, add=lambda parser: None):
    """Parses --json, --quick and the options that `add` adds. Makes SIGTERM raise SystemExit, so
    that a benchmark that is ended stops the engines it has started."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", metavar="FILE",
                        help="write the result to FILE (\"-\": standard output)")
    parser.add_argument("--quick", action="store_true", help="run for at most 15 s, less exact")
    add(parser)
    return parser.parse_args()
