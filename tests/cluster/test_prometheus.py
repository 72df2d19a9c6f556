# SPDX-License-Identifier: Apache-2.0
"""Debian's Prometheus scrapes real engines. Exit 77: run tools/install --prometheus."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.parse
import urllib.request

import harness

FOLDER = os.path.join(harness.ROOT, "build", "prometheus", "usr", "bin")
PROMETHEUS, PROMTOOL = (shutil.which(name, path=FOLDER + os.pathsep + os.environ["PATH"])
                        for name in ("prometheus", "promtool"))
EXAMPLES = os.path.join(harness.ROOT, "config", "examples")
LABELS = {"rail", "core", "op", "result", "kind", "state", "version", "le", "group"}
TARGET = {"__name__", "instance", "job"}  # what Prometheus adds
SERIES_MAX = 2000
SETTINGS = ["cluster.heartbeat_ms=200", "cluster.dead_after_ms=2000"]


def documented():
    """{metric: type} of METRICS.md, without the names of 0.8.4."""
    with open(os.path.join(harness.ROOT, "engine", "METRICS.md"), encoding="utf-8") as file:
        table = file.read().split("\n## ")[0]
    return dict(re.findall(r"(?m)^\| `(peercache_\w+)` \| (\w+) \|", table))


def fetch(url):
    with urllib.request.urlopen(url, timeout=30 * harness.SLOW) as answer:
        return answer.read().decode()


class Engines(harness.cluster.Cluster):
    """Each engine has a metrics port of its own."""

    def start(self):
        self.metrics_port = [harness.cluster.free_port() for _ in range(self.nodes)]
        return super().start()

    def command(self, i):
        return super().command(i) + ["--set", f"metrics.port={self.metrics_port[i]}"]

    def target(self, i):
        return f"127.0.0.1:{self.metrics_port[i]}"


class Server:
    """A Prometheus that scrapes every second, with the alerts of config/examples."""

    def __init__(self, engines, folder):
        port = harness.cluster.free_port()
        self.url = f"http://127.0.0.1:{port}"
        config = {"global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
                  "rule_files": [os.path.join(EXAMPLES, "peercache-alerts.yml")],
                  "scrape_configs": [{"job_name": "peercache", "static_configs": [
                      {"targets": [engines.target(i) for i in range(engines.nodes)]}]}]}
        with open(f"{folder}/prometheus.yml", "w", encoding="utf-8") as file:
            json.dump(config, file)  # JSON is YAML
        self.log = open(f"{folder}/prometheus.log", "w", encoding="utf-8")
        self.process = subprocess.Popen(
            [PROMETHEUS, f"--config.file={folder}/prometheus.yml",
             f"--storage.tsdb.path={folder}/data", f"--web.listen-address=127.0.0.1:{port}"],
            stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log, cwd=folder)

    def ready(self):
        if self.process.poll() is not None:
            with open(self.log.name, encoding="utf-8") as file:
                raise AssertionError("prometheus ended: " + file.read()[-3000:])
        try:
            return "eady" in fetch(self.url + "/-/ready")
        except OSError:
            return False

    def get(self, path, **parameters):
        parameters = urllib.parse.urlencode(parameters)
        answer = json.loads(fetch(f"{self.url}/api/v1/{path}?{parameters}"))
        if answer["status"] != "success":
            raise AssertionError(answer)
        return answer["data"]

    def query(self, expression):
        return self.get("query", query=expression)["result"]

    def value(self, expression):
        """The one number of an expression; None: it has no sample."""
        result = self.query(expression)
        return float(result[0]["value"][1]) if result else None

    def firing(self):
        """{(alert, instance)} that fire now."""
        return {(a["labels"]["alertname"], a["labels"].get("instance"))
                for a in self.get("alerts")["alerts"] if a["state"] == "firing"}

    def close(self):
        self.process.terminate()
        harness.ended(self.process, 60)
        self.log.close()


class Scrape(harness.ClusterTest):
    def load(self, engines):
        """Clients of all engines at work until the test ends."""
        process = harness.tool("tools/peercache-bench", "replay", "--quiet", "--requests", 50000,
                               sockets=engines.sockets)
        self.addCleanup(process.communicate)
        self.addCleanup(process.kill)

    def test_three_engines_under_load_while_one_is_killed_and_back(self):
        engines = Engines(harness.BUILD, 3, pool_bytes="64MiB",
                          settings=SETTINGS + ["rail.devices=soft,soft"])
        self.addCleanup(engines.stop)
        engines.start()
        folder = tempfile.TemporaryDirectory(prefix="peercache-prometheus-")
        self.addCleanup(folder.cleanup)
        server = Server(engines, folder.name)
        self.addCleanup(server.close)
        harness.wait_for(server.ready, 60, "Prometheus serves")
        self.load(engines)
        harness.wait_for(lambda: server.value(
            'count(rate(peercache_call_pages_total{op="get",result="hit"}[10s]) > 0)') == 3, 60,
            "three engines at work are scraped")
        harness.wait_for(lambda: server.value("min(count_over_time(up[5m]))") >= 10, 60,
                         "ten scrapes")
        # A busy machine may disturb an engine for a moment.
        harness.wait_for(lambda: server.firing() == set(), 60, "no alert fires without a fault")

        self.stall(engines, server)

        gone, alive = engines.target(2), [engines.target(i) for i in (0, 1)]
        down = {("peercache_member_down", target) for target in alive}
        engines.kill(2)
        harness.wait_for(lambda: down | {("peercache_engine_gone", gone)} <= server.firing(), 60,
                         "the alerts of a killed engine fire")
        for target in alive:
            self.assertIn("member_down", self.findings(target))
        engines.restart(2)
        self.load(engines)
        harness.wait_for(lambda: not {a for a, _ in server.firing()} &
                         {"peercache_member_down", "peercache_engine_gone"}, 60,
                         "the alerts end when it is back")
        harness.wait_for(lambda: server.value(
            f'rate(peercache_call_pages_total{{op="get",result="hit",instance="{gone}"}}[10s])'),
            60, "the engine that is back works")

        self.check_series(server)
        self.check_totals(server, alive)
        self.check_panels(server)
        # Prometheus waits one second for an answer, which a busy machine may exceed.
        self.assertGreater(server.value(
            f'min(avg_over_time(up{{instance=~"{"|".join(alive)}"}}[10m]))'), 0.5,
            "scrapes of the others were answered")
        print(f"scrapes: worst {server.value('max(max_over_time(scrape_duration_seconds[10m]))')} "
              f"s, {server.value('max(scrape_samples_scraped)')} samples", file=sys.stderr)
        self.assertTrue(engines.stop())

    def findings(self, target):
        health = json.loads(fetch(f"http://{target}/api/status"))["health"]
        return [f["id"] for f in health["findings"]]

    def stall(self, engines, server):
        """Timers of an engine are more than a second late. No alert fires for a host that calls
        itself healthy: one that the stall made ends with its finding."""
        lag = 'peercache_loop_lag_seconds_%s{instance="' + engines.target(1) + '"%s}'
        late = (f"{lag % ('count', '')} - ignoring(le) "
                f"{lag % ('bucket', ',le=' + chr(34) + '1.07374182' + chr(34))}")
        harness.freeze(engines.process[1])
        time.sleep(1.2)
        engines.process[1].send_signal(signal.SIGCONT)
        harness.wait_for(lambda: (server.value(late) or 0) >= 1, 60, "the late timer is counted")
        harness.wait_for(lambda: server.firing() == set() and not self.findings(engines.target(1)),
                         60, "no alert fires without a finding")

    def check_series(self, server):
        """Names, types and labels are those of METRICS.md."""
        metadata = {name: rows[0]["type"] for name, rows in server.get("metadata").items()
                    if name.startswith("peercache_")}
        self.assertEqual(metadata, documented())
        series = server.query('{job="peercache",__name__=~"peercache_.+"}')
        self.assertEqual({k for s in series for k in s["metric"]} - LABELS, TARGET)
        self.assertLessEqual(server.value("max(scrape_samples_scraped)"), SERIES_MAX)

    def check_totals(self, server, targets):
        """What only grows has never become smaller in engines that ran on."""
        series = server.query('{__name__=~"peercache_.+_(total|count|bucket|sum)",instance=~"%s"}'
                              "[10m]" % "|".join(targets))
        self.assertGreater(len(series), 200)
        for one in series:
            values = [float(value) for _, value in one["values"]]
            self.assertEqual(values, sorted(values), one["metric"])
            self.assertGreaterEqual(len(values), 10)

    def check_panels(self, server):
        """Each query of the Grafana dashboard is answered, and by series unless all is well."""
        with open(os.path.join(EXAMPLES, "peercache-grafana.json"), encoding="utf-8") as file:
            panels = json.load(file)["panels"]
        for panel in panels:
            for target in panel["targets"]:
                expression = target["expr"].replace("$job", "peercache").replace(
                    "$instance", ".*").replace("$__rate_interval", "1m")
                if not server.query(expression):
                    self.assertIn("ALERTS", expression, panel["title"])


class Lint(harness.ClusterTest):
    def test_promtool_finds_nothing_with_and_without_the_names_of_0_8(self):
        for compat in ("none", "0.8"):
            with self.subTest(compat=compat):
                engines = Engines(harness.BUILD, 1, pool_bytes="16MiB",
                                  settings=[f"metrics.compat={compat}", "engine.name=a\\b\"c",
                                            "cluster.security=none"])
                self.addCleanup(engines.stop)
                engines.start()
                text = fetch(f"http://{engines.target(0)}/metrics")
                self.assertEqual("peercache_members{node=" in text, compat == "0.8")
                done = harness.run([PROMTOOL, "check", "metrics"], data=text, text=True,
                                   capture_output=True)
                self.assertEqual((done.returncode, done.stdout, done.stderr), (0, "", ""))
                self.assertTrue(engines.stop())


if __name__ == "__main__":
    if not PROMETHEUS or not PROMTOOL:
        print("no prometheus or promtool: run tools/install --prometheus", file=sys.stderr)
        sys.exit(77)
    harness.main()
