# SPDX-License-Identifier: Apache-2.0
"""peercachectl and peercache-bench on real engines: health, status, top, JSON, output, signals."""

import json
import os
import pty
import re
import select
import signal
import subprocess
import tempfile
import urllib.request

import harness

CTL = harness.program("tools/peercachectl")


def ctl(socket, *arguments, seconds=60):
    return harness.run([CTL, "--socket", socket, *arguments], capture_output=True, text=True,
                       seconds=seconds)


def findings(socket):
    """The exit status of health and what it found: [(severity, id)], in order."""
    done = ctl(socket, "--json", "health")
    if done.returncode == 3:
        return 3, []
    return done.returncode, [(f["severity"], f["id"])
                             for f in json.loads(done.stdout)["findings"]]


def series(text):
    """{series: value} of a text in the Prometheus format."""
    return {name.removeprefix("peercache_"): float(value) for name, value in
            (line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))}


class Health(harness.ClusterTest):
    def test_the_exit_status_is_the_worst_severity(self):
        with tempfile.NamedTemporaryFile("w", suffix=".faults") as faults:
            # a third one, so that the first is not alone when the second one dies
            engines = self.start(3, pool_bytes="16MiB", settings=[
                "cluster.heartbeat_ms=100", "cluster.dead_after_ms=1000",
                f"test.fault_file={faults.name}"])
            socket = engines.sockets[0]
            harness.wait_for(lambda: findings(socket) == (0, []) and re.match(
                r"ok: \S+: 0 findings\n$", ctl(socket, "health").stdout), 30,
                             "no finding at first")

            engines.kill(1)
            harness.wait_for(lambda: findings(socket)[1][:1] == [("warning", "member_down")], 30,
                             "the killed member is down")
            done = ctl(socket, "health")
            self.assertEqual(done.returncode, 1)
            self.assertRegex(done.stdout, r"(?m)^warning +member_down: member \S+ .* is down for")
            self.assertIn("a member is dead or not reachable", done.stdout)

            faults.write("0:down\n")
            faults.flush()

            def all_out():
                status, found = findings(socket)
                return status == 2 and found[0] == ("critical", "rails_all_out") and found
            found = harness.wait_for(all_out, 30, "no rail is in use")
            order = ["critical", "warning", "info"]
            self.assertEqual(found, sorted(found, key=lambda f: order.index(f[0])))

            faults.seek(0)
            faults.truncate()
            faults.write("\n")
            faults.flush()
            engines.restart(1)
            harness.wait_for(lambda: findings(socket)[0] == 0, 30, "all is well again")
            self.stop_cleanly(engines)

    def test_an_engine_that_does_not_answer_is_status_3(self):
        self.assertEqual(ctl("/nowhere/e.sock", "health").returncode, 3)
        self.assertEqual(json.loads(ctl("/nowhere/e.sock", "--json", "health").stdout)["worst"],
                         "no answer")
        engines = self.start(1, pool_bytes="16MiB")
        harness.freeze(engines.process[0])
        try:
            for command in (("health",), ("top", "--once"), ("--json", "health"),
                            ("directory",), ("--json", "directory")):
                begun = harness.clock()
                done = ctl(engines.sockets[0], "--timeout-ms", "300", *command)
                self.assertEqual(done.returncode, 3, done.stdout + done.stderr)
                self.assertIn("no answer", done.stdout)
                if "directory" in command:
                    self.assertIn("in time", done.stdout, "--timeout-ms has no effect")
                self.assertLess(harness.clock() - begun, 2.5, "the library waits 10 s")
        finally:
            os.kill(engines.process[0].pid, signal.SIGCONT)
        harness.wait_for(lambda: findings(engines.sockets[0])[0] == 0, 30, "it answers again")
        self.stop_cleanly(engines)

    def test_wrong_usage_of_health_is_no_finding(self):
        self.assertEqual(ctl("/nowhere/e.sock", "health", "all").returncode, 3)
        self.assertEqual(ctl("/nowhere/e.sock", "directory", "all").returncode, 2)


class Keys(harness.ClusterTest):
    def test_a_recorded_trace_is_the_one_that_was_replayed(self):
        """Same calls, and keys are equal where those of the trace are; readable after a kill."""
        engines = self.start(1, pool_bytes="64MiB")
        socket = engines.sockets[0]
        with tempfile.TemporaryDirectory() as folder:
            given, trace = f"{folder}/given.jsonl", f"{folder}/trace.jsonl"
            requests = [[n % 7, *range(n * 100, n * 100 + n % 30)] for n in range(100)]
            with open(given, "w", encoding="utf-8") as file:
                for ids in requests:
                    file.write(json.dumps({"hash_ids": ids}) + "\n")

            def recorded():
                with open(trace, encoding="utf-8") as file:
                    return [json.loads(line)["hash_ids"] for line in file]

            recorder = subprocess.Popen([CTL, "--socket", socket, "keys", "--record", trace],
                                        stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            try:
                harness.wait_for(lambda: os.path.exists(trace) and (
                    ctl(socket, "exists", "probe"), recorded())[1], 30, "it records")
                self.assertEqual(os.stat(trace).st_mode & 0o777, 0o600)
                second = ctl(socket, "keys", "--record", f"{folder}/second.jsonl")
                self.assertEqual(second.returncode, 3, second.stderr)
                self.assertIn("another process records", second.stdout)
                self.assertNotIn("second.jsonl", os.listdir(folder))
                probes = len(recorded())
                done = harness.run([harness.program("tools/peercache-bench"), "replay", "--sockets",
                                    socket, "--trace", given, "--quiet"], capture_output=True,
                                   text=True, seconds=60)
                self.assertEqual(done.returncode, 0, done.stderr)
                harness.wait_for(lambda: len(recorded()) >= probes + len(requests), 30,
                                 "all calls are in the file")
            finally:
                recorder.kill()
                recorder.communicate()
            got = [ids for ids in recorded() if ids != recorded()[0]]
            self.assertEqual([len(ids) for ids in got], [len(ids) for ids in requests])
            pairs = {(a, b) for old, new in zip(requests, got) for a, b in zip(old, new)}
            for side in (0, 1):
                self.assertEqual(len({pair[side] for pair in pairs}), len(pairs))
            lab = harness.run([harness.program("tools/peercache-bench"), "policy", trace, "--pool",
                               "50%", "--hosts", "1", "--l2", "0%", "--policy", "engine,lru"],
                              capture_output=True, text=True, seconds=60)
            self.assertEqual(lab.returncode, 0, lab.stderr)
            self.assertIn("lru", lab.stdout)
            self.assertEqual(ctl(socket, "keys", "--record", trace).returncode, 2, "it is there")
        self.stop_cleanly(engines)

    def test_it_ends_by_itself(self):
        engines = self.start(1, pool_bytes="16MiB")
        with tempfile.TemporaryDirectory() as folder:
            done = ctl(engines.sockets[0], "--json", "keys", "--record", f"{folder}/a", "--seconds",
                       "1")
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual(json.loads(done.stdout)["ended"], "the time is over")
        self.stop_cleanly(engines)


class Json(harness.ClusterTest):
    def document(self, done, status=0, output="stdout"):
        """The one document that a command has printed."""
        self.assertEqual(done.returncode, status, done.stdout + done.stderr)
        got = json.loads(getattr(done, output))
        self.assertIsInstance(got, dict)
        self.assertEqual((got["json_version"], got["version"]), (3, "1.0.0.dev0"))
        return got

    def test_each_command_prints_one_document_with_a_version(self):
        engines = self.start(1, pool_bytes="16MiB")

        def ask(*words, **options):
            return self.document(ctl(engines.sockets[0], "--json", *words), **options)
        self.assertEqual(ask("put", "a", "--string", "x")["results"],
                         [{"key": "a", "result": "hit", "bytes": 0}])
        self.assertEqual([r["result"] for r in ask("exists", "a", "b", status=1)["results"]],
                         ["hit", "miss"])
        self.assertEqual(ask("get", "a", "-o", "/dev/null")["results"][0]["bytes"], 1)
        done = ctl(engines.sockets[0], "--json", "get", "a")
        self.assertEqual(done.stdout, "x")
        self.document(done, output="stderr")
        self.assertEqual(ask("get", "b", "-o", "/dev/null", status=1)["results"][0]["result"],
                         "miss")
        self.assertEqual([r["key"] for r in ask("rm", "a", "b", status=1)["results"]], ["a", "b"])
        self.assertTrue(ask("members")["members"][0]["self"])
        self.assertEqual(ask("status")["settings"]["engine.pool_bytes"], 16 << 20)
        self.assertEqual(ask("health")["worst"], "ok")
        self.assertIn("settled", harness.wait_for(
            lambda: ctl(engines.sockets[0], "directory").returncode == 0 and ask("directory"),
            30, "settled"))
        self.assertEqual(ask("explain", "a", status=1)["verdict"], "absent")
        top = ask("top", "--once")
        self.assertGreater(top["recent"]["seconds"], 0)
        self.assertIn("get_p99_seconds", top["recent"])
        self.assertIn("neither peercache-keeper", ask("restart", status=1)["error"])
        self.assertIn("--once", ask("top", status=2)["error"])
        harness.freeze(engines.process[0])
        try:
            for words in (("directory",), ("health",)):
                self.assertEqual(ask("--timeout-ms", "100", *words, status=3)["worst"],
                                 "no answer")
        finally:
            os.kill(engines.process[0].pid, signal.SIGCONT)
        for words, status in ((("status",), 2), (("members",), 2), (("exists", "a", "b"), 2),
                              (("health",), 3), (("top", "--once"), 3), (("restart",), 3),
                              (("directory",), 3), (("explain", "a"), 3)):
            self.assertIn("/nowhere", self.document(
                ctl("/nowhere/e.sock", "--json", *words), status)["error"])
        self.stop_cleanly(engines)


class Output(harness.ClusterTest):
    def test_output_that_cannot_be_written_is_status_2(self):
        engines = self.start(1, pool_bytes="16MiB")
        ctl(engines.sockets[0], "put", "a", "--string", "x")
        words = [[CTL, "--socket", engines.sockets[0], *words] for words in (
            ["status"], ["--json", "status"], ["members"], ["health"], ["top", "--once"],
            ["exists", "a"], ["explain", "a"], ["get", "a"], ["--help"], ["--version"])]
        words += [[harness.program(name), "--help"] for name in (
            "tools/peercache-bench", "engine/peercache-engine", "engine/peercache-keeper")]
        words += [[harness.program("engine/peercache-engine"), "--check"],
                  [harness.program("tools/peercache-bench"), "exists", "--seconds", "1",
                   "--working-set", "1MiB", "--sockets", engines.sockets[0]]]
        for command in words:
            with self.subTest(command=command), open("/dev/full", "w", encoding="ascii") as full:
                done = harness.run(command, stdout=full, stderr=subprocess.PIPE, text=True)
                self.assertEqual(done.returncode, 2, done.stderr)
                self.assertIn("cannot write to standard output", done.stderr)
        self.stop_cleanly(engines)


class Files(harness.ClusterTest):
    def test_a_value_has_a_limit(self):
        engines = self.start(1, pool_bytes="16MiB")
        with tempfile.NamedTemporaryFile() as file:
            file.truncate(65520)
            done = ctl(engines.sockets[0], "put", "a", file.name)
            self.assertEqual(done.stdout, "a: stored 65520 bytes\n")
            file.truncate(65521)
            for words in ([file.name], ["--string", "x" * 65521]):
                done = ctl(engines.sockets[0], "put", "a", *words)
                self.assertEqual(done.returncode, 2)
                self.assertIn("put stores at most 65520 bytes under a key", done.stderr)
        self.assertEqual(ctl(engines.sockets[0], "get", "a").stdout, "\0" * 65520)
        self.stop_cleanly(engines)

    def test_two_puts_of_one_key_at_one_time_are_both_stored(self):
        """Each removes the other's older file first: that is no lack of room."""
        engines = self.start(2, pool_bytes="16MiB")
        command = [CTL, "put", "same", "--string", "x"]
        for _ in range(30):
            puts = [subprocess.Popen([*command, "--socket", socket], stdout=subprocess.PIPE,
                                     stderr=subprocess.STDOUT, text=True)
                    for socket in engines.sockets]
            for put in puts:
                said, _ = put.communicate()
                self.assertEqual(said, "same: stored 1 bytes\n")
        self.stop_cleanly(engines)


class Words(harness.ClusterTest):
    def test_a_wrong_command_is_named_before_an_engine_is_asked(self):
        for words, said in ((("frobnicate",), "frobnicate: not a command"),
                            (("frobnicate", "--help"), "frobnicate: not a command"),
                            (("get",), "get: wrong number of arguments"),
                            (("put", "a", "b", "--string", "c"), "put: wrong number"),
                            (("status", "a"), "status: wrong number of arguments")):
            done = ctl("/nowhere/e.sock", *words)
            self.assertEqual(done.returncode, 2)
            self.assertIn(said, done.stderr)
            self.assertNotIn("/nowhere", done.stderr)

    def test_help_of_a_command_is_about_that_command(self):
        whole = ctl("/nowhere/e.sock", "--help").stdout
        for verb, has, lacks in (
                ("put", ("put KEY --string S", "--string S", "1  a key was not found"),
                 ("--peer", "get KEY", "3  ", "top --once")),
                ("health", ("print what is wrong", "2  a critical finding"),
                 ("a key was not found", "--string", "nothing is left to send")),
                ("clear", ("one namespace and its ranks", "0  all hosts of the cluster have",
                           "0  success"),
                 ("--once", "doctor"))):
            said = ctl("/nowhere/e.sock", verb, "--help")
            self.assertEqual(said.returncode, 0, said.stderr)
            for line in said.stdout.splitlines():
                self.assertIn(line, whole)
            for text in (*has, "--socket PATH"):
                self.assertIn(text, said.stdout)
            for text in lacks:
                self.assertNotIn(text, said.stdout)


class Bench(harness.ClusterTest):
    def bench(self, engines, *words):
        bench = harness.tool("tools/peercache-bench", *words, "--no-baseline", "--seconds", 600,
                             sockets=engines.sockets)
        self.addCleanup(bench.communicate)
        self.addCleanup(bench.kill)
        return bench

    def test_a_signal_ends_it_while_it_stores_and_while_a_call_waits(self):
        engines = self.start(1, pool_bytes="16MiB")
        for number in (signal.SIGINT, signal.SIGTERM):
            bench = self.bench(engines, "get", "--working-set", "1TiB", "--page-bytes", "4KiB")
            harness.wait_for(lambda: engines.status(0)["calls"]["set"]["batches"] > 10, 30,
                             "pages are stored")
            bench.send_signal(number)
            self.assertEqual(harness.ended(bench, 3), -number)
            self.assertEqual(engines.figure(0, "pages"), 0)
        bench = self.bench(engines, "exists", "--working-set", "1MiB")
        harness.wait_for(lambda: harness.catches(bench, signal.SIGTERM), 60, "it measures")
        harness.freeze(engines.process[0])
        try:
            bench.send_signal(signal.SIGTERM)
            self.assertIn(harness.ended(bench, 3), (0, 1))  # 0: no call had to wait
        finally:
            os.kill(engines.process[0].pid, signal.SIGCONT)
        self.stop_cleanly(engines)

    def test_its_pages_are_removed_at_its_end_and_no_others(self):
        engines = self.start(2, pool_bytes="16MiB")
        ctl(engines.sockets[1], "put", "a", "--string", "x")

        def run(*words, status=0):
            got_status, out, err = harness.finish(harness.tool(
                "tools/peercache-bench", "--page-bytes", "4KiB", *words, "--no-baseline",
                "--seconds", 1, "--json", "-", sockets=engines.sockets))
            self.assertEqual(got_status, status, out + err)
            if not status:
                got = json.loads(out[out.index("{"):])
                self.assertEqual((got["misses"], got["wrong"]), (0, 0), words)
            return [engines.figure(i, "pages") for i in range(2)]
        for words in (("get",), ("set",), ("exists", "--threads", 2), ("exists-get", "--verify"),
                      ("exists", "--absent"), ("get", "--absent"), ("set", "--present"),
                      ("remove",)):
            before = engines.status(0)["counters"]["pages_published"]
            self.assertEqual(run(*words, "--working-set", "1MiB"), [0, 1], words)
            stored = engines.status(0)["counters"]["pages_published"] - before
            self.assertEqual(stored > 0, words == ("set",), words)
        # the pool is too small: it ends with an error
        self.assertEqual(run("get", "--working-set", "64MiB", "--page-bytes", "16MiB", "--batch", 1,
                             status=2), [0, 1])
        self.assertEqual(run("get", "--working-set", "1MiB", "--keep-pages"), [0, 257])
        self.assertEqual(ctl(engines.sockets[1], "get", "a").stdout, "x")
        self.stop_cleanly(engines)

    def test_pages_that_another_host_serves_are_read_and_go_with_it(self):
        engines = self.start(2, pool_bytes="16MiB")
        pages = ["--page-bytes", "4KiB", "--working-set", "1MiB"]

        def one(socket, *words):
            process = harness.tool("tools/peercache-bench", *words, *pages, sockets=[socket])
            self.addCleanup(process.communicate)
            self.addCleanup(process.kill)
            return process

        def read(seed):
            process = one(engines.sockets[0], "exists-get", "--stored", "--seconds", 1,
                          "--no-baseline", "--seed", seed, "--json", "-")
            return harness.finish(process)

        serving = one(engines.sockets[1], "serve", "--seed", 7)
        self.assertIn("peercache-bench get --stored --page-bytes 4096 --working-set 1048576 "
                      "--seed 7\n", serving.stdout.readline())
        status, out, err = read(7)
        got = json.loads(out[out.index("{"):])
        self.assertEqual((status, got["misses"], got["wrong"]), (0, 0, 0), err)
        self.assertGreater(got["hits_remote"], 0)
        status, out, err = read(8)
        self.assertEqual(status, 1, out)
        self.assertIn("no page of serve was found", err)
        self.assertEqual(engines.figure(1, "pages"), 256)
        serving.send_signal(signal.SIGINT)
        self.assertEqual(harness.finish(serving)[0], 0)
        self.assertEqual(engines.figure(1, "pages"), 0)
        self.stop_cleanly(engines)

    def test_the_latency_of_misses_is_apart(self):
        engines = self.start(1, pool_bytes="16MiB")
        for api in ("c", "python"):
            done = harness.tool(
                "tools/peercache-bench", "get", "--api", api, "--working-set", "128MiB",
                "--batch", 512, "--seconds", 1, "--no-baseline", "--json", "/dev/stderr",
                sockets=engines.sockets)
            _, out, err = harness.finish(done)
            got = json.loads(err)
            self.assertGreater(got["missed_calls"], 0, out)
            self.assertGreater(got["missed_p50_us"], 0)
            self.assertEqual(got["p50_us"], 0, "no call had only hits")
            self.assertEqual(engines.figure(0, "pages"), 0)
        self.stop_cleanly(engines)


class Status(harness.ClusterTest):
    def test_status_has_the_names_and_values_of_the_metrics(self):
        port = harness.cluster.free_port()
        engines = self.start(1, pool_bytes="16MiB", settings=[
            f"metrics.port={port}", "rail.devices=soft,soft"])
        self.replay(engines, "--requests", 100)

        def compared():
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
                metrics = series(answer.read().decode())
            shown = dict(re.findall(r"(?m)^  ([a-z_0-9]+(?:\{.*\})?) +([-+.0-9e]+)(?: \(.*\))?$",
                                    ctl(engines.sockets[0], "status").stdout))
            self.assertGreater(len(shown), 40)
            # What a second look changes: this tool's own session, and time that goes by.
            moving = re.compile(r"client|seconds|steps_idle|sleeps|gaps|messages|lag")
            # The metrics are of an earlier snapshot: a series may appear in the next one.
            return all(n in metrics and (moving.search(n) or metrics[n] == float(v))
                       for n, v in shown.items())
        harness.wait_for(compared, 20, "the values are those of the metrics")
        text = ctl(engines.sockets[0], "status").stdout
        for words in ("health: ", 'call_pages_total{op="get",result="hit"}',
                      'call_seconds{op="get"} ', "this engine"):
            self.assertIn(words, text)
        self.stop_cleanly(engines)


class Top(harness.ClusterTest):
    def test_once_prints_one_picture_that_fits_a_small_terminal(self):
        engines = self.start(2, pool_bytes="16MiB", settings=[
            "rail.devices=" + ",".join(["soft"] * 12), "rail.poll_cores=1"])
        load = harness.tool("tools/peercache-bench", "replay", "--quiet", "--requests", 20000,
                            sockets=engines.sockets)
        self.addCleanup(load.communicate)
        self.addCleanup(load.kill)

        def busy():
            done = ctl(engines.sockets[0], "top", "--once")
            self.assertEqual(done.returncode, 0, done.stderr)
            lines = done.stdout.splitlines()
            self.assertLessEqual(len(lines), 24)
            self.assertLessEqual(max(map(len, lines)), 80)
            self.assertNotIn("\x1b", done.stdout)
            for words in ("health   ", "members  2 up", "more rails", "\npool ", "\ndirectory ",
                          "\nclients "):
                self.assertIn(words, done.stdout)
            get = next(line.split() for line in lines if line.startswith("get "))
            return get[1] not in ("-", "0") and "%" in get[4]
        harness.wait_for(busy, 60, "rates of the load")

    def test_it_draws_every_second_and_finds_an_engine_that_comes_back(self):
        engines = self.start(1, pool_bytes="16MiB")
        master, slave = pty.openpty()
        top = subprocess.Popen([CTL, "--socket", engines.sockets[0], "top"], stdin=slave,
                               stdout=slave, stderr=slave)
        os.close(slave)
        self.addCleanup(os.close, master)
        self.addCleanup(top.wait)
        self.addCleanup(top.kill)
        seen = []

        def drawn(words, pictures=1):
            while select.select([master], [], [], 0.05)[0]:
                seen.append(os.read(master, 65536).decode())
            return sum(words in text for text in "".join(seen).split("\x1b[H")) >= pictures
        harness.wait_for(lambda: drawn("health   ok", 2), 30, "it redraws")
        engines.kill(0)
        harness.wait_for(lambda: drawn("no answer: "), 30, "it says the engine is gone")
        seen.clear()
        engines.restart(0)
        harness.wait_for(lambda: drawn("health   ok"), 30, "the engine is back")
        self.stop_cleanly(engines)

    def test_without_a_terminal_it_says_what_to_do(self):
        engines = self.start(1, pool_bytes="16MiB")
        done = ctl(engines.sockets[0], "top")
        self.assertEqual(done.returncode, 2)
        self.assertIn("--once", done.stderr)
        self.stop_cleanly(engines)


if __name__ == "__main__":
    harness.main()
