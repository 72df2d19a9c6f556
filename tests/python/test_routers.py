# SPDX-License-Identifier: Apache-2.0
"""What routers ask, on engines: peercache-routers over HTTP, and the example router."""

import http.client
import json
import os
import subprocess
import sys
import threading
import urllib.parse

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PACKAGE = os.path.join(os.environ.get("PEERCACHE_BUILD", ""), "engine/client/python")
sys.path[:0] = [os.path.join(ROOT, "tests", "cluster"), PACKAGE]
import harness  # noqa: E402
from peercache import Session, routers  # noqa: E402
from peercache.examples import router  # noqa: E402

ENV = {**os.environ, "PYTHONPATH": PACKAGE}
JSON = {"Content-Type": "application/json"}


class Door(harness.ClusterTest):
    def setUp(self):
        self.engines = self.start(2, pool_bytes="64MiB")
        self.program = subprocess.Popen(
            [sys.executable, "-m", "peercache.routers", "--socket", self.engines.sockets[0],
             "--port", "0"], env=ENV, stdout=subprocess.PIPE, text=True)
        self.addCleanup(self.program.stdout.close)
        self.addCleanup(self.program.wait)
        self.addCleanup(self.program.kill)
        self.port = int(self.program.stdout.readline().rsplit(":", 1)[1])

    def ask(self, path, body=None, headers=None, method=None):
        link = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        link.request(method or ("POST" if body is not None else "GET"), path, body, headers or {})
        answer = link.getresponse()
        text = answer.read()
        link.close()
        return answer.status, json.loads(text)

    def test_the_hosts_of_a_prompt(self):
        keys = [f"key {n}&=%" for n in range(3000)]
        with_pages = 200
        session = Session(self.engines.sockets[1])
        memory = session.alloc(4096)
        self.assertEqual(session.set("a b", keys[:with_pages], [memory] * with_pages, 4096, 60000),
                         [True] * with_pages)
        session.close()
        name = f"{self.engines.address[1]}:{self.engines.port[1]}"
        few = urllib.parse.urlencode([("namespace", "a b")] + [("key", key) for key in keys[:4]])
        status, found = self.ask("/api/match?" + few)
        self.assertEqual(status, 200, found)
        self.assertEqual({**found, "holders": found["holders"][0]["name"]},
                         {"keys": 4, "prefix": 4, "unknown": 0, "holders_all": 1, "holders": name})
        for body, headers in ((json.dumps({"namespace": "a b", "keys": keys}), JSON),
                              (urllib.parse.urlencode([("namespace", "a b")] +
                                                      [("key", key) for key in keys]), {})):
            status, found = self.ask("/api/match", body, headers)
            self.assertEqual((status, found["keys"], found["prefix"]), (200, 3000, with_pages))
            self.assertEqual([(h["name"], h["prefix"], h["pages"], h["here"])
                              for h in found["holders"]], [(name, with_pages, with_pages, False)])
            self.assertTrue(found["holders"][0]["address"])
        self.assertEqual(self.ask("/api/match?key=a")[1]["holders"], [])

    def test_what_is_refused(self):
        for path, body, headers, status in (
                ("/metrics", None, {}, 404), ("/api/match", None, {}, 400),
                ("/api/match?namespace=n", None, {}, 400), ("/api/match?key=", None, {}, 400),
                ("/api/match?key=" + "k" * 1025, None, {}, 400),
                ("/api/match?namespace=%00&key=a", None, {}, 400),
                ("/api/match", "[1]", JSON, 400), ("/api/match", "{", JSON, 400),
                ("/api/match", "[" * 100000, JSON, 400),
                ("/api/match", '{"keys": [1]}', JSON, 400),
                ("/api/match", '{"keys": []}', JSON, 400),
                ("/api/match", '{"keys": ["\\ud800"]}', JSON, 400),
                ("/api/match", b"key=\xff&key=b", {}, 400),
                ("/api/match", "&".join(["key=a"] * 65537), {}, 400),
                ("/api/match", "", {"Content-Length": "x"}, 411),
                ("/api/match", "", {"Content-Length": str(1 << 30)}, 413)):
            with self.subTest(path=path[:40], body=str(body)[:40]):
                got, found = self.ask(path, body, headers)
                self.assertEqual((got, list(found)), (status, ["error"]), found)

    def test_what_is_no_question_needs_little_memory(self):
        half = routers.BODY_MAX // 2
        bodies = [b"[" + b"[]," * (half // 3) + b"0]", b"[" + b'"ab",' * (half // 5) + b"0]",
                  b'{"":' * (half // 4), b'{"keys": ["' + b"[{," * (half // 3) + b'"]}']

        def ask(body):
            self.assertEqual(self.ask("/api/match", body, JSON)[0], 400)
        threads = [threading.Thread(target=ask, args=[body]) for body in bodies]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        with open(f"/proc/{self.program.pid}/status", encoding="ascii") as file:
            [peak] = [int(line.split()[1]) >> 10 for line in file if line.startswith("VmHWM")]
        self.assertLess(peak, 100, "MiB; the first one has 115 when it is parsed")
        text = "[{,\\\"" * 30000  # within a text they count nothing
        self.assertEqual(self.ask("/api/match", json.dumps(
            {"namespace": text[:500], "keys": ["k", text[:300]], "other": text}), JSON)[0], 200)

    def test_without_an_engine_no_key_is_known(self):
        self.engines.kill(0)
        status, found = self.ask("/api/match?key=a&key=b")
        self.assertEqual((status, found["unknown"], found["holders"]), (200, 2, []))

    def test_a_program_without_an_engine_or_port_says_so(self):
        for words in (["--socket", "/nowhere"],
                      ["--socket", self.engines.sockets[0], "--port", "0", "--events", "ipc://x"],
                      ["--socket", self.engines.sockets[0], "--port", str(self.port)]):
            done = harness.run([sys.executable, "-m", "peercache.routers", *words], env=ENV,
                               capture_output=True, text=True)
            self.assertEqual((done.returncode, done.stdout), (2, ""))
            self.assertIn("peercache-routers: ", done.stderr)


class Routers(harness.ClusterTest):
    def test_the_router_finds_more_on_the_chosen_host_than_round_robin(self):
        engines = self.start(3, pool_bytes="64MiB")
        figures = {}
        for policy in (router.RoundRobin, router.Router):
            requests = []  # 31 dialogues of 6 turns, each with 4 blocks more
            for turn in range(1, 7):
                requests += [(1000.0 * len(requests) + n,
                              [f"{n} {block}" for block in range(4 * turn)]) for n in range(31)]
            figures[policy] = router.replay(requests, engines.sockets, policy)
            self.assertEqual(figures[policy]["blocks"], 31 * 4 * 21)
            self.assertEqual(figures[policy]["hits"], 15 / 21)  # the pools have room for all
        self.assertGreater(figures[router.Router]["own"], 0.7 * 15 / 21)
        self.assertLess(figures[router.RoundRobin]["own"], 0.5 * 15 / 21)

    def test_work_that_waits_outweighs_pages(self):
        chooser = router.Router(["a", "b"])
        self.assertEqual(chooser.choose(10, 10, {"b": 10}, 0), "b")
        self.assertEqual([chooser.choose(10, 0, {}, 0) for _ in range(2)], ["a", "b"])
        chooser.waits["b"] = 100.0
        self.assertEqual(chooser.choose(10, 10, {"b": 10}, 0), "a")

    def test_names_are_asked_for_once(self):
        engines = self.start(1)
        session = Session(engines.sockets[0])
        directory = routers.Directory(session)
        ref = json.loads(session.report())["incarnation"][-8:]
        self.assertTrue(directory.member(ref)[0])
        looked = directory.looked
        self.assertEqual(directory.member("00000000"), ("", ""))
        self.assertEqual((directory.member(ref)[0] != "", directory.looked), (True, looked))
        session.close()


if __name__ == "__main__":
    harness.main()
