# SPDX-License-Identifier: Apache-2.0
"""The alerts, the runbook and the Grafana dashboard of config/examples.

promtool (tools/install --prometheus) checks the rules and evaluates each alert against made-up
series of three hosts: healthy, then one fault, then healthy again. Exit 77: there is no promtool,
and what needs none has passed.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
EXAMPLES = os.path.join(ROOT, "config", "examples")
ALERTS = os.path.join(EXAMPLES, "peercache-alerts.yml")
PROMTOOL = shutil.which("promtool", path=os.path.join(ROOT, "build", "prometheus", "usr", "bin")
                        + os.pathsep + os.environ["PATH"])


def read(*names):
    with open(os.path.join(ROOT, *names), encoding="utf-8") as file:
        return file.read()


def findings():
    """{id: (severity, meaning)} of health.def."""
    return {m[1]: (m[2].lower(), m[3]) for m in re.finditer(
        r'^FINDING\((\w+), (\w+), "(.*)"\)',
        read("engine", "control", "observe", "health.def"), re.M)}


def alerts():
    """{name: {"expr", "for", "severity", "summary", "runbook"}} of the rules."""
    found = {}
    for text in re.split(r"(?m)^      - alert: ", read(ALERTS))[1:]:
        name, body = text.split("\n", 1)
        found[name] = {
            "expr": re.search(r"(?s)expr:(?: >-)?(.*?)\n        (?:for|labels):", body)[1],
            "for": "".join(re.findall(r"(?m)^        for: (\w+)$", body))}
        found[name].update(re.findall(r'(?m)^          (severity|summary|runbook): "?(.*?)"?$',
                                      body))
    return found


def metrics():
    """The names of METRICS.md with the suffixes that histograms have."""
    names = set(re.findall(r"^\| `(peercache_\w+)` \| \w+ \|", read("engine", "METRICS.md"), re.M))
    return names | {n + s for n in names for s in ("_bucket", "_sum", "_count")}


def unknown_metrics(expression):
    expression = re.sub(r'"[^"]*"', '""', expression)
    return set(re.findall(r"\bpeercache_\w+", expression)) - metrics()


STEP = 5  # seconds between samples
BEGIN, END, LAST = 600, 3600, 5400  # of the fault, in seconds; multiples of STEP


def healthy():
    """[[metric, labels, value]] of one host."""
    return [["up", {}, 1], *(["findings", {"kind": kind}, 0] for kind in findings())]


# Fault: ([(metric, labels, value)] that differ on host b while it lasts; None: no sample, {alert
# that fires: [its labels but instance and job]}).
FAULTS = {
    "engine_gone": ([("up", {}, 0), ("", {}, None)], {"engine_gone": [{}]}),
    **{kind: ([("findings", {"kind": kind}, 3)], {kind: [{"kind": kind}]}) for kind in findings()},
}


def seconds(duration):
    return int(duration[:-1]) * {"s": 1, "m": 60}[duration[-1]] if duration else 0


def samples(value, fault):
    """One value for each STEP: `fault` from BEGIN to END, else `value`."""
    text = []
    for at in range(0, LAST, STEP):
        here = fault if BEGIN <= at < END else value
        if here is None:
            # "stale" ends a series at once, as a failed scrape does.
            text.append("stale" if text and text[-1] not in ("_", "stale") else "_")
        else:
            text.append(str(here))
    return " ".join(text)


def input_series(changes):
    lines = []
    for host in "abc":
        rows = [row + [row[2]] for row in healthy()]
        for name, labels, value in changes if host == "b" else ():
            for row in rows:
                if (row[0].startswith(name) and row[0] != "up" * (not name)
                        and labels.items() <= row[1].items()):
                    row[3] = value
        for name, labels, value, fault in rows:
            labels = {**labels, "instance": host, "job": "peercache"}
            name = name if name == "up" else "peercache_" + name
            text = ",".join(f'{k}="{v}"' for k, v in labels.items())
            lines.append({"series": name + "{" + text + "}", "values": samples(value, fault)})
    return lines


def expected(name, rule, labels):
    return {"exp_labels": {"instance": "b", "job": "peercache", **labels,
                           "severity": rule["severity"]},
            "exp_annotations": {"summary": rule["summary"], "runbook": rule["runbook"]}}


def evaluations(fire):
    """What each alert must do at each moment; `fire`: {name: [labels]} during the fault."""
    for name, rule in alerts().items():
        hold = seconds(rule["for"])
        labels = fire.get(name.removeprefix("peercache_"), [])
        moments = {BEGIN - STEP: [], BEGIN + hold + 90: labels, END - STEP: labels,
                   LAST - STEP: []}
        if hold:
            moments[BEGIN + hold - STEP] = []
        for at, those in moments.items():
            yield {"eval_time": f"{at}s", "alertname": name,
                   "exp_alerts": [expected(name, rule, one) for one in those]}


class Rules(unittest.TestCase):
    def promtool(self, *arguments):
        done = subprocess.run([PROMTOOL, *arguments], capture_output=True, text=True, timeout=300)
        self.assertEqual(done.returncode, 0, done.stdout[-4000:] + done.stderr[-4000:])
        return done.stdout

    def test_the_rules_and_the_scrape_configuration_are_valid(self):
        out = self.promtool("check", "rules", "--lint=all", "--lint-fatal", ALERTS)
        self.assertIn(f"{len(alerts())} rules found", out)
        self.promtool("check", "config", os.path.join(EXAMPLES, "peercache-prometheus.yml"))

    def test_each_alert_fires_for_its_fault_and_not_otherwise(self):
        self.assertEqual({a for _, fire in FAULTS.values() for a in fire},
                         {a.removeprefix("peercache_") for a in alerts()})
        tests = []
        for fault, (changes, fire) in FAULTS.items():
            tests.append({"name": fault, "interval": f"{STEP}s",
                          "input_series": input_series(changes),
                          "alert_rule_test": list(evaluations(fire))})
        with tempfile.NamedTemporaryFile("w", suffix=".yml") as file:
            # JSON is YAML.
            json.dump({"rule_files": [ALERTS], "evaluation_interval": f"{STEP}s",
                       "tests": tests}, file)
            file.flush()
            self.promtool("test", "rules", file.name)


class Words(unittest.TestCase):
    def test_alerts_are_the_findings_with_their_severity_and_meaning(self):
        found, rules = findings(), alerts()
        self.assertEqual({"peercache_" + i for i in found} | {"peercache_engine_gone"}, set(rules))
        for name, (severity, meaning) in found.items():
            rule = rules["peercache_" + name]
            self.assertEqual((rule["severity"], rule["summary"]), (severity, meaning))
        for name, rule in rules.items():
            self.assertEqual(rule["runbook"], f"RUNBOOK.md, {name}")

    def test_an_alert_asks_for_its_finding_and_for_nothing_else(self):
        for name in findings():
            self.assertEqual(alerts()["peercache_" + name]["expr"].strip(),
                             f'peercache_findings{{kind="{name}"}} > 0')
        self.assertEqual(alerts()["peercache_engine_gone"]["expr"].strip(),
                         'up{job="peercache"} == 0')

    def test_two_scrapes_fall_into_the_time_of_a_finding_of_what_happened_once(self):
        window_ns = re.search(r"#define MOMENTS_WINDOW_NS (\d+)ull",
                              read("engine", "control", "observe", "figures_inner.h"))[1]
        for name in ("scrape_interval", "evaluation_interval"):
            interval = re.search(rf"(?m)^  {name}: (\d+)s$",
                                 read("config", "examples", "peercache-prometheus.yml"))[1]
            self.assertLessEqual(2 * int(interval), int(window_ns) // 10 ** 9)

    def test_an_alert_waits_as_long_as_its_fault_may_last_without_harm(self):
        self.assertEqual({n.removeprefix("peercache_"): r["for"]
                          for n, r in alerts().items() if r["for"]},
                         {"engine_gone": "10s", "registering": "10m", "member_silent": "30s",
                          "client_refused": "1m", "pool_full": "1m", "storage_missed": "1m",
                          "disk_drops": "1m", "reads_failing": "1m",
                          "versions_differ": "30m", "stopping": "1m", "peers_out": "1m",
                          "directory_moving": "15m", "absence_unproven": "5m",
                          "directory_behind": "15m"})
        self.assertEqual(alerts()["peercache_engine_gone"]["severity"], "critical")

    def test_the_runbook_has_a_line_with_a_command_for_each_alert(self):
        rows = re.findall(r"(?m)^\| `(peercache_\w+)` \| (.+?) \| (.+?) \| (`.+) \|$",
                          read("config", "examples", "RUNBOOK.md"))
        self.assertEqual(sorted(row[0] for row in rows), sorted(alerts()))

    def test_rules_and_dashboard_use_documented_metrics_alone(self):
        self.assertGreater(len(metrics()), 80)
        for name, rule in alerts().items():
            self.assertEqual(unknown_metrics(rule["expr"]), set(), name)
        for panel in self.dashboard()["panels"]:
            for target in panel["targets"]:
                self.assertEqual(unknown_metrics(target["expr"]), set(), panel["title"])

    def dashboard(self):
        return json.loads(read("config", "examples", "peercache-grafana.json"))

    def test_the_grafana_dashboard_has_a_data_source_variable(self):
        dashboard = self.dashboard()
        variables = {v["name"]: v for v in dashboard["templating"]["list"]}
        self.assertEqual(variables["datasource"]["type"], "datasource")
        self.assertEqual(variables["datasource"]["query"], "prometheus")
        sources = re.findall(r'"uid": "([^"]*)"', read("config", "examples",
                                                       "peercache-grafana.json"))
        self.assertEqual(set(sources), {"${datasource}", dashboard["uid"]})

    def test_panels_have_titles_and_do_not_overlap(self):
        panels = self.dashboard()["panels"]
        self.assertEqual(len({p["id"] for p in panels}), len(panels))
        cells = [(x, y) for p in panels for g in [p["gridPos"]]
                 for x in range(g["x"], g["x"] + g["w"]) for y in range(g["y"], g["y"] + g["h"])]
        self.assertEqual(len(cells), len(set(cells)))
        self.assertLess(max(x for x, _ in cells), 24)
        for panel in panels:
            self.assertTrue(panel["title"] and panel["description"] and panel["targets"])


if __name__ == "__main__":
    if not PROMTOOL:
        words = unittest.main(argv=[sys.argv[0], "Words"], verbosity=2, exit=False)
        if not words.result.wasSuccessful():
            sys.exit(1)
        print("no promtool: run tools/install --prometheus", file=sys.stderr)
        sys.exit(77)
    unittest.main(verbosity=2)
