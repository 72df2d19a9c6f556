# SPDX-License-Identifier: Apache-2.0
"""perf/served.py against played servers: its dialogues, its bound, its figures and its pictures."""

import contextlib
import http.server
import io
import itertools
import json
import os
import sys
import tempfile
import threading
import time
import types
import unittest
from unittest import mock

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
sys.path.insert(0, os.path.join(ROOT, "perf"))
sys.dont_write_bytecode = True
import bench  # noqa: E402
import report  # noqa: E402
import served  # noqa: E402
import served_here  # noqa: E402

PAGE = 16
OPTIONS = {"seed": 3, "users": 5, "turns": 3, "vocabulary": 100, "prompt_max": 2000}


class Played(http.server.ThreadingHTTPServer):
    """Answers /generate as SGLang does.

    A page hits if an earlier prompt had it. `store`: a set that servers share, or None for no
    cache. `lost`: pages at the end of a hit that are missing. `reports`: with
    --enable-cache-report.
    """

    def __init__(self, store, lost=0, reports=True):
        super().__init__(("127.0.0.1", 0), Handler)
        self.store, self.lost, self.reports, self.asked = store, lost, reports, []
        self.lock = threading.Lock()
        threading.Thread(target=self.serve_forever, daemon=True).start()

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

    def answer(self, text):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(text.encode())

    def do_GET(self):  # pylint: disable=invalid-name
        self.answer(json.dumps({"page_size": PAGE}))

    def do_POST(self):  # pylint: disable=invalid-name
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        prompt = body.get("input_ids") or list(body["text"])
        self.server.asked.append(body.get("input_ids") or body["text"])
        hit = self.server.cached(prompt)
        meta = {"prompt_tokens": len(prompt), "cached_tokens": hit, "cached_tokens_details": {
            "device": 0, "host": 0, "storage": hit} if self.server.reports else None}
        chunk = "data: " + json.dumps({"output_ids": [7], "meta_info": meta}) + "\n\n"
        self.answer(2 * chunk + "data: [DONE]\n\n")


class Served(unittest.TestCase):
    def served(self, *arguments):
        """Runs perf/served.py; returns its result."""
        path = os.path.join(self.folder, "result.json")
        with mock.patch.object(sys, "argv", ["served.py", "--json", path, *arguments]), \
                mock.patch.object(served, "SETTLE_SECONDS", 0), \
                mock.patch("signal.signal"), contextlib.redirect_stderr(io.StringIO()):
            served.main()
        with open(path, encoding="utf-8") as file:
            return json.load(file)

    def played(self, *arguments, **more):
        server = Played(*arguments, **more)
        self.addCleanup(server.server_close)
        self.addCleanup(server.shutdown)
        return server

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.folder = folder.name
        self.addCleanup(folder.cleanup)

    def figures(self, result):
        return {figure["name"]: figure for figure in result["figures"]}

    def test_a_store_without_bounds_reaches_the_bound(self):
        store = set()
        a, b, none = self.played(store), self.played(store), self.played(None)
        result = self.served("--url", a.url, "--url", b.url, "--no-cache", none.url,
                             "--users", "5", "--turns", "3")
        self.assertIsNone(bench.check(result))
        figures = self.figures(result)
        for column in ("served, same host", "served, other host", "served, first run"):
            self.assertEqual(figures[f"{column}: hits / those of an unbounded store"]["value"], 1)
        self.assertEqual(figures["no cache: hit rate"]["value"], 0)
        same = figures["no cache, run 3: answers that are those of its first run"]
        self.assertEqual(same["value"], 1)
        self.assertIn("goal", figures["served, other host: TTFT p50 / no cache"])
        # The same prompts in each run: three, of which the last is the second URL's.
        self.assertEqual(sorted(a.asked), sorted(2 * b.asked))
        self.assertEqual(sorted(none.asked), sorted(3 * b.asked))
        hits = next(s for s in result["series"] if s["name"] == "hits")["lines"]
        self.assertEqual(hits["served, other host"], hits["ceiling"])
        self.assertEqual(hits["no cache"], [0, 0, 0])

    def test_pages_that_a_store_lacks_are_missing_from_the_figure(self):
        store = set()
        a, b = self.played(store), self.played(store, lost=2)
        result = self.served("--url", a.url, "--url", b.url, "--users", "5", "--turns", "3")
        figure = self.figures(result)["served, other host: hits / those of an unbounded store"]
        prompts = b.asked
        bound = sum((len(prompt) - 1) // PAGE for prompt in prompts)
        got = sum(max(0, (len(prompt) - 1) // PAGE - 2) for prompt in prompts)
        self.assertAlmostEqual(figure["value"], got / bound)
        self.assertFalse(figure["met"])

    def test_the_last_token_of_a_prompt_is_no_hit(self):
        """These prompts are texts that end with a page."""
        path = os.path.join(self.folder, "dialogues.json")
        with open(path, "w", encoding="utf-8") as file:
            json.dump([{"conversations": [{"from": "human", "value": "x" * (2 * PAGE - 1)},
                                          {"from": "gpt", "value": "y" * (PAGE - 1)},
                                          {"from": "human", "value": "z" * (PAGE - 1)}]}], file)
        server = self.played(set())
        figures = self.figures(self.served("--url", server.url, "--dialogues", path))
        self.assertEqual([len(prompt) for prompt in server.asked], 2 * [2 * PAGE, 4 * PAGE])
        self.assertEqual(figures["served: hits / those of an unbounded store"]["value"], 1)
        self.assertAlmostEqual(figures["served: hit rate"]["value"], (1 + 3) / (2 + 4))

    def test_the_time_of_an_answer_is_that_of_its_first_token(self):
        target = served.Url(self.played(set()).url)
        with mock.patch.object(served.time, "perf_counter", side_effect=itertools.count()):
            self.assertEqual(served.ask(target, [1, 2], 1).ttft, 1)  # the second one comes at 2

    def test_a_server_without_a_cache_report_is_refused(self):
        with self.assertRaisesRegex(SystemExit, "--enable-cache-report"):
            self.served("--url", self.played(set(), reports=False).url)

    def test_pictures_are_drawn_of_the_result(self):
        store = set()
        result = self.served("--url", self.played(store).url, "--url", self.played(store).url,
                             "--users", "3")
        row = {"name": "served", "what": "a test", "result": result, "seconds": 1,
               "load_before": 0, "status": "ok"}
        page = "".join(report.bench_part(row))
        for title in ("Hit rate by turn", "Time to first token, p50 by turn",
                      "served, other host: where prompt tokens came from"):
            self.assertIn(title, page)
        self.assertEqual(page.count("<svg"), len(result["series"]))

    def disturbed(self, prompts, disturbance):
        """Disturbs a table of `prompts` prompts, which are answered at the same time, with a slow
        len() between each reply and its number."""
        target = served.Url(self.played(None).url)
        table = served.Table([[[5, 6]]] * prompts, types.SimpleNamespace(
            output_tokens=1, concurrency=prompts))
        together = threading.Barrier(prompts)

        def asked(*_):
            together.wait(60)
            return types.SimpleNamespace(ttft=1, output=[7])

        def len_slow(of):
            time.sleep(0.01)
            return len(of)

        with mock.patch.object(served, "ask", asked), \
                mock.patch.object(served, "len", len_slow, create=True):
            table.disturb("a kill", target, disturbance, target)
        return table

    def test_a_disturbance_happens_once_though_replies_come_at_the_same_time(self):
        calls = []
        table = self.disturbed(6, lambda: calls.append(1))
        self.assertEqual(calls, [1])
        self.assertEqual([len(replies) for replies in table.disturbed["a kill"]], [6, 6])


class Here(unittest.TestCase):
    """What served_here.py decides before and after it starts servers."""

    def test_without_peercache_there_must_be_something_to_compare(self):
        options = types.SimpleNamespace(only="none,peercache", quick=False, peercache=None)
        with contextlib.redirect_stdout(io.StringIO()), \
                self.assertRaisesRegex(SystemExit, "nothing to compare"):
            served_here.chosen(options)
        options.only = "none,peercache,l2"
        with contextlib.redirect_stdout(io.StringIO()):
            self.assertEqual(served_here.chosen(options), (["none", "l2"], None))

    def kills(self, dialogues):
        """The number of disturbances of a table with `dialogues` dialogues, and what is printed."""
        table = mock.Mock(dialogues=[[[5]]] * dialogues)
        hosts = [mock.Mock(**{"engine.side_effect": itertools.count(1)}) for _ in range(2)]
        engine = mock.Mock(targets=[mock.Mock(host=host) for host in hosts])
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            served_here.Stores.kill(table, engine, mock.Mock(targets=[None]))
        return table.disturb.call_count, out.getvalue()

    def test_engines_are_killed_only_while_requests_remain(self):
        few, more = served.DISTURBED_AT, served.DISTURBED_AT + 1
        for dialogues in (1, few):
            count, said = self.kills(dialogues)
            self.assertEqual(count, 0)
            self.assertIn("engines are not killed", said)
        self.assertEqual(self.kills(more), (2, ""))


class Dialogues(unittest.TestCase):
    def options(self, **more):
        return types.SimpleNamespace(**{**OPTIONS, **more})

    def test_each_prompt_continues_the_one_before(self):
        dialogues = served.made(self.options())
        self.assertEqual(len(dialogues), 5)
        for prompts in dialogues:
            for before, after in zip(prompts, prompts[1:]):
                self.assertEqual(after[:len(before)], before)
                self.assertGreater(len(after), len(before) + 1)
        self.assertEqual(dialogues, served.made(self.options()))
        self.assertNotEqual(dialogues, served.made(self.options(seed=4)))

    def test_no_prompt_is_longer_than_the_limit(self):
        dialogues = served.made(self.options(users=300, prompt_max=700))
        self.assertLessEqual(max(len(prompt) for d in dialogues for prompt in d), 700)

    def test_lengths_have_the_mean_of_their_source(self):
        chance = served.random.Random(1)
        got = [served.drawn(chance, served.ANSWER, 1 << 20) for _ in range(20000)]
        self.assertAlmostEqual(sum(got) / len(got) / served.ANSWER[0], 1, delta=0.03)

    def read(self, value, words=None, **more):
        with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
            json.dump(value, file)
            file.flush()
            return served.read(self.options(dialogues=file.name, **more), words)

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
            with self.assertRaisesRegex(SystemExit, "no dialogue of two turns"):
                self.read(value)


if __name__ == "__main__":
    unittest.main()
