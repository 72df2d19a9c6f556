# SPDX-License-Identifier: Apache-2.0
"""peercache-bench served against played servers: dialogues, bound, figures, reports, what fails."""

import argparse
import contextlib
import glob
import http.server
import io
import itertools
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import types
import unittest
from unittest import mock

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path[:0] = [os.path.join(ROOT, "tests", "cluster"),
                os.path.join(os.environ.get("PEERCACHE_BUILD", ""), "engine/client/python")]
import harness  # noqa: E402
from peercache.bench import __main__ as program  # noqa: E402
from peercache.bench import dialogues, server, turns  # noqa: E402

PAGE = 16
OPTIONS = {"seed": 3, "users": 5, "turns": 3, "vocabulary": 100, "prompt_max": 2000}
BOUND = "hits / those of an unbounded store"


class Played(http.server.ThreadingHTTPServer):
    """Answers /generate as SGLang does.

    A page hits if an earlier prompt had it. `store`: a set that servers share, or None for no
    cache. `lost`: pages at the end of a hit that are missing. `reports`: with the sources of hits.
    `fails(count)`: for each request its status and text, or None to answer it.
    """

    def __init__(self, store, lost=0, reports=True, fails=lambda count: None, port=0):
        super().__init__(("127.0.0.1", port), Handler)
        self.store, self.lost, self.reports, self.asked = store, lost, reports, []
        self.lock, self.fails = threading.Lock(), fails
        self.thread = threading.Thread(target=self.serve_forever, daemon=True)
        self.thread.start()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_port}"

    def cached(self, prompt):
        """Tokens of the prompt that hit; the prompt's pages are stored."""
        if self.store is None:
            return 0
        with self.lock:
            pages = [tuple(prompt[:end]) for end in range(PAGE, len(prompt) + 1, PAGE)]
            hits = sum(page in self.store for page in pages if len(page) < len(prompt))
            self.store.update(pages)
        return max(0, hits - self.lost) * PAGE


class Handler(http.server.BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def answer(self, text, status=200):
        self.send_response(status)
        self.end_headers()
        with contextlib.suppress(OSError):  # the program has ended
            self.wfile.write(text.encode())

    def do_GET(self):  # pylint: disable=invalid-name
        if self.path == "/get_server_info":
            self.answer(json.dumps({"page_size": PAGE, "model_path": "played", "version": "0.5.3"}))
        else:
            self.answer("", 200 if self.path == "/health" else 404)

    def do_POST(self):  # pylint: disable=invalid-name
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        prompt = body.get("input_ids") or list(body["text"])
        with self.server.lock:
            self.server.asked.append(body.get("input_ids") or body["text"])
            count = len(self.server.asked)
        failure = self.server.fails(count)
        if failure:
            self.answer(failure[1], failure[0])
            return
        hit = self.server.cached(prompt)
        meta = {"prompt_tokens": len(prompt), "cached_tokens": hit, "cached_tokens_details": {
            "device": 0, "host": 0, "storage": hit} if self.server.reports else None}
        chunk = "data: " + json.dumps({"output_ids": [7], "meta_info": meta}) + "\n\n"
        self.answer(2 * chunk + "data: [DONE]\n\n")



class Run(unittest.TestCase):
    """Base class: played servers, and the program."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.folder = folder.name
        self.addCleanup(folder.cleanup)

    def played(self, *arguments, **more):
        played = Played(*arguments, **more)
        self.addCleanup(played.server_close)
        self.addCleanup(played.shutdown)
        return played

    def run_it(self, *arguments, expect=0):
        """Runs the program; returns what it prints."""
        out = io.StringIO()
        words = ["peercache-bench", "served", "--out-dir", self.folder, "--settle", "0", "--seed",
                 "3", *arguments]
        with mock.patch.object(sys, "argv", words), mock.patch("signal.signal"), \
                contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
            self.assertEqual(program.main(), expect, out.getvalue())
        return out.getvalue()

    def report(self):
        """The JSON of the only report."""
        paths = glob.glob(os.path.join(self.folder, "served-*.json"))
        self.assertEqual(len(paths), 1, paths)
        with open(paths[0], encoding="utf-8") as file:
            return json.load(file)

    def served(self, *arguments, expect=0):
        """Runs the program; returns its report."""
        self.out = self.run_it(*arguments, expect=expect)
        return self.report()

    @staticmethod
    def figures(report):
        return {name: value for name, value, _ in report["figures"]}


class Served(Run):
    def test_a_store_without_bounds_reaches_the_bound(self):
        store = set()
        a, b, none = self.played(store), self.played(store), self.played(None)
        report = self.served("--url", a.url, "--url", b.url, "--no-cache", none.url,
                             "--users", "5", "--turns", "3")
        figures = self.figures(report)
        for column in ("served, same host", "served, other host", "served, first run"):
            self.assertEqual(figures[f"{column}: {BOUND}"], 1)
        self.assertEqual(figures["no cache: hit rate"], 0)
        self.assertEqual(figures["no cache, run 3: answers that are those of its first run"], 1)
        self.assertIn("served, other host: TTFT p50 / no cache", figures)
        # The same prompts in each run: three, of which the last is the second URL's.
        self.assertEqual(sorted(a.asked), sorted(2 * b.asked))
        self.assertEqual(sorted(none.asked), sorted(3 * b.asked))
        hits = next(s for s in report["series"] if s["name"] == "hits")["lines"]
        self.assertEqual(hits["served, other host"], hits["ceiling"])
        self.assertEqual(hits["no cache"], [0, 0, 0])
        self.assertEqual(report["notes"], [])
        self.assertEqual(report["servers"][a.url]["version"], "0.5.3")

    def test_pages_that_a_store_lacks_are_missing_from_the_figure(self):
        store = set()
        a, b = self.played(store), self.played(store, lost=2)
        report = self.served("--url", a.url, "--url", b.url, "--users", "5", "--turns", "3")
        bound = sum((len(prompt) - 1) // PAGE for prompt in b.asked)
        got = sum(max(0, (len(prompt) - 1) // PAGE - 2) for prompt in b.asked)
        self.assertAlmostEqual(self.figures(report)[f"served, other host: {BOUND}"], got / bound)

    def test_the_last_token_of_a_prompt_is_no_hit(self):
        """These prompts are texts that end with a page."""
        path = os.path.join(self.folder, "dialogues")
        with open(path, "w", encoding="utf-8") as file:
            json.dump([{"conversations": [{"from": "human", "value": "x" * (2 * PAGE - 1)},
                                          {"from": "gpt", "value": "y" * (PAGE - 1)},
                                          {"from": "human", "value": "z" * (PAGE - 1)}]}], file)
        played = self.played(set())
        figures = self.figures(self.served("--url", played.url, "--dialogues", path))
        self.assertEqual([len(prompt) for prompt in played.asked], 2 * [2 * PAGE, 4 * PAGE])
        self.assertEqual(figures[f"served: {BOUND}"], 1)
        self.assertAlmostEqual(figures["served: hit rate"], (1 + 3) / (2 + 4))

    def test_the_time_of_an_answer_is_that_of_its_first_token(self):
        url = server.Url(self.played(set()).url)
        with mock.patch.object(server.time, "perf_counter", side_effect=itertools.count()):
            self.assertEqual(server.ask(url, [1, 2], 1, 60).ttft, 1)  # the second comes at 2

    def test_sources_that_servers_do_not_tell_are_unknown(self):
        store = set()
        urls = [self.played(store, reports=False).url for _ in range(2)]
        report = self.served("--url", urls[0], "--url", urls[1])
        self.assertEqual(self.figures(report)[f"served, other host: {BOUND}"], 1)
        self.assertIsNone(next(row for row in report["rows"] if row["hit_tokens"])
                          ["storage_tokens"])
        self.assertIn("is unknown: these servers tell no cached_tokens_details", self.out)
        self.assertRegex(self.out, r"served, other host +all .* unknown")

    def test_caches_that_had_the_prompts_are_named(self):
        a = self.played(set())
        self.run_it("--url", a.url)
        self.assertIn("the servers had these prompts already", self.run_it("--url", a.url))
        self.assertIn("this server has a cache", self.run_it(
            "--url", self.played(set()).url, "--no-cache", a.url))

    def test_the_report_is_json_and_a_page_with_plots(self):
        store = set()
        path = os.path.join(self.folder, "more")
        report = self.served("--url", self.played(store).url, "--url", self.played(store).url,
                             "--json", path)
        with open(path, encoding="utf-8") as file:
            self.assertEqual(json.load(file), report)
        self.assertEqual(report["command"], "served")
        self.assertEqual([row["turn"] for row in report["rows"]], 3 * [1, 2, 3, 4, "all"])
        self.assertRegex(self.out, r"served, first run +1 +8 .* 0\.00 +- +0 +0 +0 ")
        with open(glob.glob(os.path.join(self.folder, "*.html"))[0], encoding="utf-8") as file:
            page = file.read()
        for title in ("Hit rate by turn", "Time to first token, p50 by turn",
                      "served, other host: where prompt tokens came from"):
            self.assertIn(title, page)
        self.assertEqual(page.count("<svg"), len(report["series"]))

    def test_standard_output_is_the_report_alone(self):
        done = subprocess.run(
            [harness.program("tools/peercache-bench"), "served", "--url", self.played(set()).url,
             "--settle", "0", "--json", "-", "--out-dir", self.folder], capture_output=True,
            text=True, check=True)
        self.assertEqual(json.loads(done.stdout), self.report())
        self.assertIn("served, turn 1", done.stderr)


class Fails(Run):
    def test_failed_requests_are_counted_and_named(self):
        def fails(count):
            return {2: (503, "the queue is full"), 4: (503, "the queue is full"),
                    5: (200, 'data: {"error": {"message": "out of memory"}}\n\n'),
                    6: (200, "")}.get(count)

        report = self.served("--url", self.played(set(), fails=fails).url, "--users", "8",
                             expect=1)
        self.assertEqual(sum(row["failed"] for row in report["rows"] if row["turn"] != "all"), 4)
        self.assertIn("failed requests: 2, HTTP 503: the queue is full", report["notes"])
        self.assertIn("failed requests: 1, an error in the stream: out of memory", report["notes"])
        self.assertIn("failed requests: 1, an empty answer", self.out)
        self.assertRegex(self.out, "run +turn +requests +failed")

    def test_rates_count_answers_and_times_those_that_were_answered(self):
        replies = {user: server.Reply(user, {"meta_info": {"prompt_tokens": 8, "cached_tokens": 6}})
                   for user in (1, 2, 6)}
        row = turns.Turn(replies, {"a": 2, "b": 1}, 1.5, 9, (6., .75)).row()
        self.assertEqual({name: row[name] for name in (
            "requests", "failed", "requests_per_s", "cpu_ms", "store_cpu_ms", "prompt_tokens",
            "hit_tokens", "hit_ratio", "ttft_p50_ms", "ttft_p99_ms")}, {
                "requests": 6, "failed": 3, "requests_per_s": 2, "cpu_ms": 2000,
                "store_cpu_ms": 250, "prompt_tokens": 24, "hit_tokens": 18, "hit_ratio": .75,
                "ttft_p50_ms": 2000, "ttft_p99_ms": 6000})

    def test_what_is_no_answer_of_sglang_has_a_name(self):
        meta = {"prompt_tokens": 4, "cached_tokens": 2}
        for got, name in (
                ({}, "without meta_info"), ({"meta_info": 7}, "without meta_info"),
                ({"meta_info": {**meta, "cached_tokens": 5}}, "wrong count"),
                ({"meta_info": {**meta, "cached_tokens": -1}}, "wrong count"),
                ({"meta_info": {**meta, "prompt_tokens": "4"}}, "wrong count"),
                ({"meta_info": {**meta, "cached_tokens_details": {"host": 1}}}, "wrong count"),
                ({"meta_info": {**meta, "finish_reason": {"type": "abort", "message": "late"}}},
                 "aborted the request: late")):
            with self.subTest(got=got), self.assertRaisesRegex(server.Failed, name):
                server.Reply(1, got)
        self.assertEqual(server.Reply(1, {"meta_info": meta}).hits, 2)

    def test_a_server_that_answers_nothing_ends_the_run_with_its_rows(self):
        a = self.played(set(), fails=lambda count: (500, "gone") if count > 8 else None)
        report = self.served("--url", a.url, expect=2)
        self.assertIn("no request of turn 2 was answered", self.out)
        self.assertIn("HTTP 500: gone", report["failed"])
        self.assertEqual([row["turn"] for row in report["rows"]], [1, "all"])

    def test_a_request_that_fails_in_an_unknown_way_is_counted(self):
        with mock.patch.object(turns, "ask", side_effect=RuntimeError("odd")):
            self.assertIn("no request of turn 1 was answered", self.run_it(
                "--url", self.played(set()).url, expect=2))
        asked = itertools.count()

        def ask(*words):
            if next(asked) == 1:
                raise RuntimeError("odd")
            return server.ask(*words)

        with mock.patch.object(turns, "ask", ask):
            report = self.served("--url", self.played(set()).url, expect=1)
        self.assertEqual(report["notes"], ["failed requests: 1, RuntimeError: odd"])

    def test_a_silent_server_fails_after_the_time_out(self):
        hold = threading.Event()
        self.addCleanup(hold.set)
        a = self.played(set(), fails=lambda count: hold.wait() and None)
        self.assertIn("nothing came for 0.1 s", self.run_it("--url", a.url, "--timeout", "0.1",
                                                            "--users", "2", expect=2))

    def test_urls_of_other_servers_are_refused_with_a_remedy(self):
        class Web(http.server.BaseHTTPRequestHandler):
            status, text = 200, b"<html>"

            def do_GET(self):  # pylint: disable=invalid-name
                self.send_response(self.status)
                self.end_headers()
                self.wfile.write(self.text)

            def log_message(self, *_):
                pass

        web = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Web)
        self.addCleanup(web.server_close)
        self.addCleanup(web.shutdown)
        threading.Thread(target=web.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{web.server_port}"
        for status, text, error in (
                (200, b"<html>", "is no server of SGLang.*the address of sglang.launch_server"),
                (200, b"[1]", "is no server of SGLang"), (404, b"", "is no server of SGLang"),
                (200, b'{"page_size": 64}', "is no server of SGLang"),
                (200, b'{"model_path": "m"}', "does not tell its page size: give --page-size"),
                (200, b'{"model_path": "m", "page_size": -1}', "give --page-size"),
                (401, b"", "refuses .* with 401: give the server's --api-key in")):
            with self.subTest(status=status, text=text):
                Web.status, Web.text = status, text
                self.assertRegex(self.run_it("--url", url, expect=2), error)
        web.shutdown()
        web.server_close()
        self.assertRegex(self.run_it("--url", url, expect=2), "no server answers at .*start one")
        for wrong in ("10.0.0.1:30000", "ftp://a", "http://", "http://a:99999", "http://a?b"):
            self.assertRegex(self.run_it("--url", wrong, expect=2), "is no URL of a server")
        self.assertIn("without a password", self.run_it("--url", "http://u:p@a", expect=2))
        self.assertIn("given twice", self.run_it("--url", url, "--url", url, expect=2))
        self.assertEqual(glob.glob(os.path.join(self.folder, "*.json")), [])

    def test_the_api_key_is_sent_and_not_kept(self):
        with mock.patch.dict(os.environ, {server.KEY: "secret"}), mock.patch.object(
                Handler, "parse_request", autospec=True,
                side_effect=http.server.BaseHTTPRequestHandler.parse_request) as parsed:
            report = self.served("--url", self.played(set()).url)
        keys = {call.args[0].headers["Authorization"] for call in parsed.call_args_list}
        self.assertEqual(keys, {"Bearer secret"})
        self.assertNotIn("secret", json.dumps(report))

    def test_ctrl_c_keeps_the_rows(self):
        hold = threading.Event()
        self.addCleanup(hold.set)
        a = self.played(set())
        slow = self.played(set(), fails=lambda count: None if count <= 8 else hold.wait() and None)
        process = subprocess.Popen(
            [harness.program("tools/peercache-bench"), "served", "--url", slow.url, "--url", a.url,
             "--settle", "0", "--out-dir", self.folder], stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True)
        self.addCleanup(process.__exit__, None, None, None)
        self.addCleanup(process.kill)
        harness.wait_for(lambda: len(slow.asked) > 8, 60, "the second turn has begun")
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 0, out)
        report = self.report()
        self.assertTrue(report["interrupted"])
        self.assertEqual([row["turn"] for row in report["rows"]], [1, "all"])
        self.assertIn("interrupted: these are the results until then", out)


class Disturbed(Run):
    def disturbed(self, prompts, disturbance):
        """Disturbs a table of `prompts` prompts, which are answered at the same time, with a slow
        len() between each reply and its number."""
        url = server.Url(self.played(None).url)
        table = turns.Table([[[5, 6]]] * prompts, types.SimpleNamespace(
            output_tokens=1, concurrency=prompts, timeout=60))
        together = threading.Barrier(prompts)

        def asked(*_):
            together.wait(60)
            return types.SimpleNamespace(ttft=1, output=[7])

        def len_slow(of):
            time.sleep(0.01)
            return len(of)

        with mock.patch.object(turns, "ask", asked), \
                mock.patch.object(turns, "len", len_slow, create=True):
            table.disturb("a kill", url, disturbance, url, 2)
        return table

    def test_a_disturbance_happens_once_though_replies_come_at_the_same_time(self):
        calls = []
        table = self.disturbed(6, lambda: calls.append(1))
        self.assertEqual(calls, [1])
        self.assertEqual([len(turn.replies) for turn in table.disturbed["a kill"]], [6, 6])


class Dialogues(unittest.TestCase):
    def options(self, **more):
        return argparse.Namespace(**{**OPTIONS, **more})

    def test_each_prompt_continues_the_one_before(self):
        made = dialogues.made(self.options())
        self.assertEqual(len(made), 5)
        for prompts in made:
            for before, after in zip(prompts, prompts[1:]):
                self.assertEqual(after[:len(before)], before)
                self.assertGreater(len(after), len(before) + 1)
        self.assertEqual(made, dialogues.made(self.options()))
        self.assertNotEqual(made, dialogues.made(self.options(seed=4)))

    def test_no_prompt_is_longer_than_the_limit(self):
        made = dialogues.made(self.options(users=300, prompt_max=700))
        self.assertLessEqual(max(len(prompt) for prompts in made for prompt in prompts), 700)

    def test_lengths_have_the_mean_of_their_source(self):
        chance = dialogues.random.Random(1)
        got = [dialogues.drawn(chance, dialogues.ANSWER, 1 << 20) for _ in range(20000)]
        self.assertAlmostEqual(sum(got) / len(got) / dialogues.ANSWER[0], 1, delta=0.03)

    def read(self, value, words=None, **more):
        with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
            json.dump(value, file)
            file.flush()
            return dialogues.read(self.options(dialogues=file.name, **more), words)

    @staticmethod
    def row(*texts):
        return {"conversations": [{"from": ("human", "gpt")[i % 2], "value": text}
                                  for i, text in enumerate(texts)]}

    def test_a_file_like_sharegpt_is_read(self):
        rows = [self.row("a b", "c", "d"), self.row("only one"), {"id": 3}, "nonsense",
                self.row("x", "y", "z", "w", "v")]
        self.assertEqual(self.read(rows, turns=2), [["a b\n", "a b\nc\nd\n"], ["x\n", "x\ny\nz\n"]])
        self.assertEqual(self.read(rows, str.split, users=1), [[["a", "b"], ["a", "b", "c", "d"]]])
        self.assertEqual(self.read([self.row("x", "y", "z", "w", 5)]), [["x\n", "x\ny\nz\n"]])
        self.assertEqual(self.read([self.row("x", "y", "z", "w" * 99, "v")], prompt_max=20),
                         [["x\n", "x\ny\nz\n"]])

    def test_a_file_without_dialogues_is_refused(self):
        for value in ({}, [], 7, [self.row("one")]):
            with self.assertRaisesRegex(ValueError, "no dialogue of two turns"):
                self.read(value)
        with tempfile.NamedTemporaryFile("w") as file:
            with self.assertRaisesRegex(ValueError, "is no JSON"):
                dialogues.read(self.options(dialogues=file.name))


if __name__ == "__main__":
    unittest.main()
