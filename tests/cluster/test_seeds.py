# SPDX-License-Identifier: Apache-2.0
"""An engine that does not see what it was told to see says so: in its log, health, metrics, /readyz
and `peercachectl members`, and for as long as it lasts. Tests with other hosts use network
namespaces, which need root."""

import json
import os
import re
import signal
import socket
import sys
import threading
import unittest
import urllib.error
import urllib.request

import harness

BEATS = ["cluster.heartbeat_ms=100", "cluster.dead_after_ms=1000"]


class Engines(harness.cluster.Cluster):
    """Engines with settings of their own, each with a metrics port, not waited for as members."""

    def __init__(self, nodes, settings_of=lambda i: (), **options):
        options.setdefault("settings", BEATS)
        super().__init__(harness.BUILD, nodes, pool_bytes="16MiB", **options)
        self.settings_of = settings_of
        self.metrics_port = [harness.cluster.free_port() for _ in range(nodes)]

    def wait_members(self, count, among=None):
        pass

    def joined(self, count, among=None):
        super().wait_members(count, among)

    def command(self, i):
        command = super().command(i) + ["--set", f"metrics.port={self.metrics_port[i]}"]
        for setting in self.settings_of(i):
            command += ["--set", setting]
        return command

    def fetch(self, i, path):
        """(status, text) of an answer of engine i."""
        try:
            with urllib.request.urlopen(f"http://{self.address[i]}:{self.metrics_port[i]}{path}",
                                        timeout=30 * harness.SLOW) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def metric(self, i, name):
        return float(re.search(rf"(?m)^peercache_{name} (\S+)$", self.fetch(i, "/metrics")[1])[1])

    def ctl(self, i, *words):
        done = harness.run([harness.program("tools/peercachectl"), "--socket", self.sockets[i],
                            *words], capture_output=True, text=True)
        return done.returncode, done.stdout

    def findings(self, i):
        """{id: [texts]} of engine i."""
        found = {}
        for f in json.loads(self.ctl(i, "--json", "health")[1])["findings"]:
            found.setdefault(f["id"], []).append(f["text"])
        return found


class SeedTest(harness.ClusterTest):
    def begin(self, *arguments, **options):
        engines = Engines(*arguments, **options)
        self.addCleanup(engines.stop)
        return engines.start()

    def until(self, condition, what):
        return harness.wait_for(condition, 60, what)

os.environ.pop("PEERCACHE_SECURE", None)  # strangers here speak no TLS


class Stranger:
    """Listens on a port of loopback; answers each connection with `answer`, or with nothing."""

    def __init__(self, answer):
        self.answer, self.open = answer, []
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def run(self):
        while True:
            try:
                connection, _ = self.listener.accept()
                if self.answer:
                    connection.sendall(self.answer)
                self.open.append(connection)
            except OSError:
                return

    def close(self):
        self.listener.shutdown(socket.SHUT_RDWR)
        self.thread.join()
        self.listener.close()
        for connection in self.open:
            connection.close()


class Silent(SeedTest):
    def strangers(self):
        """{seed: why} of engines that are none."""
        mute, garbage = Stranger(b""), Stranger(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        for one in (mute, garbage):
            self.addCleanup(one.close)
        return {f"127.0.0.1:{harness.cluster.free_port()}": "Connection refused",
                f"127.0.0.1:{mute.port}": "it accepts the connection and does not answer",
                f"127.0.0.1:{garbage.port}": "what answers there is no PeerCache engine",
                "no.such.name.invalid:31998": "the name cannot be resolved"}

    def test_seeds_that_are_no_engines_are_named_with_the_reason(self):
        seeds = self.strangers()
        engines = self.begin(1, lambda _: ["cluster.seeds=" + ",".join(seeds)])
        self.assertEqual(engines.ctl(0, "health")[0], 2, "not green before any seed has answered")
        status, text = engines.fetch(0, "/readyz")
        self.assertEqual(status, 503, "not ready before any seed has answered")
        self.assertIn("this engine is alone", text)
        self.until(lambda: len(engines.findings(0).get("seed_silent", ())) == 4, "four findings")
        texts = engines.findings(0)["seed_silent"]
        members = engines.ctl(0, "members")[1]
        for seed, why in seeds.items():
            self.until(lambda: re.search(rf"warn .*seed {re.escape(seed)} has led to no member "
                                         rf"for \d+ s: {why}", engines.log(0)), "a line")
            self.assertTrue(any(seed in t and why in t for t in texts), (seed, why, texts))
            self.assertRegex(members, rf"seed {re.escape(seed)} leads to no member for .*: {why}")
        shown = json.loads(engines.ctl(0, "--json", "members")[1])
        self.assertEqual({s["address"] for s in shown["seeds_silent"]}, set(seeds))
        self.assertEqual(shown["figures"], {"seeds_silent": 4, "engines_refused": 0})
        self.assertIn("seeds_unmet", engines.findings(0))
        self.assertEqual(engines.ctl(0, "health")[0], 2)
        self.until(lambda: [engines.metric(0, n) for n in ("seeds", "seeds_silent",
                                                           "seeds_unmet")] == [4, 4, 1], "metrics")
        self.assertIn("no.such.name.invalid:31998 has led to no member for 0 s", engines.log(0),
                      "a name without an address is known at once")
        # Lines come at growing intervals, however often the name is looked up.
        up_s = engines.status(0)["uptime_ms"] / 1000
        self.assertLessEqual(engines.log(0).count("no.such.name.invalid"), 1 + up_s / 5)
        self.stop_cleanly(engines)

    def test_the_finding_ends_when_the_seed_is_an_engine(self):
        port = harness.cluster.free_port()
        engines = self.begin(1, lambda _: [f"cluster.seeds=127.0.0.1:{port}"])
        self.until(lambda: "seed_silent" in engines.findings(0), "the seed is silent")
        late = Engines(1, lambda _: [f"cluster.port={port}", "cluster.seeds="])
        self.addCleanup(late.stop)
        late.start()
        engines.joined(2)
        self.until(lambda: engines.findings(0) == {}, "no finding is left")
        self.until(lambda: "answers after" in engines.log(0), "a line says so")
        self.until(lambda: engines.fetch(0, "/readyz")[0] == 200, "ready")
        self.until(lambda: late.findings(0) == {}, "an engine without seeds is alone by right")
        self.stop_cleanly(late)
        self.stop_cleanly(engines)

    def test_an_engine_that_has_lost_all_others_is_not_ready(self):
        engines = self.begin(3)
        engines.joined(3)
        for i in (1, 2):  # in order: no member is down
            engines.kill(i, signal.SIGTERM)
        self.until(lambda: engines.findings(0) and "member_down" not in engines.findings(0),
                   "both have left")
        self.assertIn("seeds_unmet", engines.findings(0))
        self.until(lambda: engines.fetch(0, "/readyz")[0] == 503, "it is not ready")
        self.assertIn("this engine is alone: none of 1 seed(s)", engines.fetch(0, "/readyz")[1])
        engines.restart(1)
        engines.joined(2, (0, 1))
        self.until(lambda: engines.fetch(0, "/readyz")[0] == 200, "ready")
        self.until(lambda: engines.findings(0) == {}, "no finding is left")
        self.stop_cleanly(engines)


class Refused(SeedTest):
    def test_three_engines_that_refuse_each_other_say_so_until_one_fits(self):
        ids = ["red", "green", "blue"]
        engines = Engines(3)
        engines.settings_of = lambda i: [
            f"cluster.id={ids[i]}", f"engine.name=host-{i}",
            "cluster.seeds=" + ",".join(f"127.0.0.1:{p}" for p in engines.port)]
        self.addCleanup(engines.stop)
        engines.start()
        for i in range(3):
            others = [n for n in range(3) if n != i]
            self.until(lambda: len(engines.findings(i).get("engine_refused", ())) == 2, "two")
            for n in others:
                self.assertIn(f"cluster.id = {ids[n]} there, {ids[i]} here",
                              str(engines.findings(i)["engine_refused"]))
            self.until(lambda: engines.metric(i, "engines_refused") == 2, "the metric")
            self.assertEqual(engines.fetch(i, "/readyz")[0], 503)
            self.assertEqual(engines.ctl(i, "members")[1].count("is refused for"), 2)
            shown = json.loads(engines.ctl(i, "--json", "members")[1])
            self.assertEqual([f"cluster.id = {ids[n]} there" in str(shown["engines_refused"])
                              for n in others], [True, True], shown)
            self.assertNotIn("seed_silent", engines.findings(i), "to refuse is to answer")
        self.until(lambda: engines.metric(0, "seeds_unmet") == 1, "the others are the seeds")
        ids[1] = "red"
        engines.kill(1)
        engines.restart(1)
        engines.joined(2, among=[0, 1])
        for i in (0, 1):
            self.until(lambda: len(engines.findings(i).get("engine_refused", ())) == 1, "one")
            self.until(lambda: engines.fetch(i, "/readyz")[0] == 200, "ready")
        self.assertIn("blue", str(engines.findings(0)["engine_refused"]))
        self.stop_cleanly(engines)


class Remembered(SeedTest):
    def test_two_hosts_meet_again_after_a_restart_while_the_seeds_are_dead(self):
        engines = Engines(3, keeper=True)
        engines.settings_of = lambda i: [f"cluster.seeds=127.0.0.1:{engines.port[0]}"]
        self.addCleanup(engines.stop)
        engines.start()
        engines.joined(3)
        seed = engines.engine_pid(0)
        engines.kill(0)
        os.kill(seed, signal.SIGKILL)
        engines.joined(2, (1, 2))
        before = engines.engine_pid(1)
        self.assertEqual(engines.ctl(1, "restart")[0], 0)
        self.assertNotEqual(engines.engine_pid(1), before)
        engines.joined(2, (1, 2))
        self.assertIn("the engine before had", engines.log(1))
        self.until(lambda: engines.fetch(1, "/readyz")[0] == 200, "it is not alone")
        self.until(lambda: list(engines.findings(1)) == ["seed_silent"], "the dead seed is found")
        self.stop_cleanly(engines)


@unittest.skipIf(os.geteuid(), "needs root for network namespaces")
class Firewall(SeedTest):
    def test_hosts_behind_a_firewall_are_no_green_clusters_of_one(self):
        engines = Engines(2, netns=True, link="tcp")
        self.addCleanup(engines.stop)
        launch = engines.launch

        def cut_and_launch(i):
            if i == 0:
                engines.netns.cut(0, 1)
            launch(i)
        engines.launch = cut_and_launch
        engines.start()
        for i in range(2):
            self.assertEqual(engines.ctl(i, "health")[0], 2, "never green")
            other = re.escape(engines.netns.addresses[1 - i]) + ":31998"
            self.until(lambda: {"seeds_unmet", "seed_silent"} <= set(engines.findings(i)), "found")
            self.until(lambda: re.search(rf"seed {other} has led to no member for \d+ s: "
                                         "(Connection timed out|No route to host)",
                                         engines.log(i)), "a line")
        engines.netns.mend(0, 1)
        engines.joined(2)
        for i in range(2):
            self.until(lambda: engines.findings(i) == {}, "no finding is left")
        self.stop_cleanly(engines)

    def ready(self, engines, i):
        """The status of /readyz, asked on host i."""
        url = f"http://{engines.address[i]}:{engines.metrics_port[i]}/readyz"
        return harness.run(
            ["ip", "netns", "exec", engines.netns.names[i], sys.executable, "-c",
             "import sys, urllib.request as r, urllib.error as e\n"
             "try: print(r.urlopen(sys.argv[1], timeout=30).status)\n"
             "except e.HTTPError as error: print(error.code)", url],
            capture_output=True, text=True).stdout.strip()

    def test_a_host_that_is_cut_off_from_all_is_not_green_until_one_is_back(self):
        engines = self.begin(3, netns=True, link="tcp")
        engines.joined(3)
        self.until(lambda: (engines.ctl(0, "health")[0], self.ready(engines, 0)) == (0, "200"),
                   "green")
        for other in (1, 2):
            engines.netns.cut(0, other)
        self.until(lambda: self.ready(engines, 0) == "503", "they are dead")
        end = engines.status(0)["uptime_ms"] + 4000  # four times cluster.dead_after_ms
        while engines.status(0)["uptime_ms"] < end:
            self.assertEqual((engines.ctl(0, "health")[0], self.ready(engines, 0)), (2, "503"))
        self.assertIn("seeds_unmet", engines.findings(0))
        for i in (1, 2):
            self.assertEqual((engines.ctl(i, "health")[0], self.ready(engines, i)), (1, "200"),
                             "two of three go on")
        for other in (1, 2):
            engines.netns.mend(0, other)
        engines.joined(3)
        for i in range(3):
            self.until(lambda: engines.ctl(i, "health")[0] == 0, "green")
        self.until(lambda: self.ready(engines, 0) == "200", "it is ready")
        self.stop_cleanly(engines)


if __name__ == "__main__":
    harness.main()
