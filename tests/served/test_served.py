# SPDX-License-Identifier: Apache-2.0
"""SGLang serves a model on two hosts, and L3 changes nothing but the time of an answer.

    test_served.py VERSION core|long [TEST]...     VERSION: of SGLang, or "newest"

An answer is compared by all of its tokens and the log-probability of each, bit for bit. Exit status
77: PyPI does not answer or lacks a package, or this user may make no network namespaces.
"""

import argparse
import json
import os
import random
import re
import signal
import sys
import tempfile
import threading
import time
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
import servers  # noqa: E402
from servers import environment, harness, lines  # noqa: E402
from peercache.bench import dialogues  # noqa: E402

SEED = int(os.environ.get("SEED", "1"))
SGLANG = ""  # folders for PYTHONPATH
PAGE = 64    # of the README's launch line
FLAGS = ["--max-total-tokens", "2048", "--admin-api-key", servers.KEY]  # L2: twice as much
DISK = "1.5gb"
POOL = 64 << 20
FILLER_BATCH = 64 * 256 << 10  # bytes that tests/cluster/filler stores in a call
STREAMS = 3   # requests at once
HANGS = ".hangs"  # of hanging.py, which only a server can import
HOSTS = 3     # most of a class
MOONCAKE = "mooncake-transfer-engine-non-cuda==0.3.13.post1"


class Served(unittest.TestCase):
    """Base class: hosts that run the README's line for one node."""

    KIND, FLAGS = "mha", []  # of the model; more words of the launch line
    HOSTS, RANKS = 2, 1  # RANKS: tensor-parallel; each stores its part of a page
    BACKEND = "PeerCacheStore"
    site, seed = None, SEED * 1000

    @classmethod
    def setUpClass(cls):
        if Served.site is None:
            Served.site = servers.Site(SGLANG, HOSTS)
            unittest.addModuleCleanup(cls.end)
        cls.hosts = cls.site.hosts[:cls.HOSTS]
        cls.disk = tempfile.TemporaryDirectory(prefix="peercache-disk-", dir=harness.BUILD)
        cls.addClassCleanup(cls.disk.cleanup)
        cls.addClassCleanup(cls.stop)
        cls.start()

    @classmethod
    def start(cls):
        """Starts a server on each host. Subclasses start others."""
        for host in cls.hosts:
            host.launch(cls.words(host))
        cls.wait_start()

    @classmethod
    def wait_start(cls):
        """Returns when all servers serve and their engines see each other."""
        for host in cls.hosts:
            host.ready()
        harness.wait_for(lambda: all(len((host.status() or {"members": ()})["members"]) == cls.HOSTS
                                     for host in cls.hosts), 60, "the engines see each other")

    @classmethod
    def words(cls, host, mode=None, flags=()):
        """The launch line of a host, with a small pool and a disk."""
        path = os.path.join(cls.disk.name, str(host.i))
        os.makedirs(path, exist_ok=True)
        return lines.line(
            cls.site.model(cls.KIND, SEED), f"{cls.hosts[0].address}:31998", mode,
            {"global_segment_size": str(POOL), "disk_enabled": True, "disk_path": path,
             "disk_size": DISK}, [*FLAGS, *cls.FLAGS, *flags])

    @classmethod
    def stop(cls):
        for host in cls.hosts:
            host.stop()

    @staticmethod
    def end():
        site, Served.site = Served.site, None
        if site is not None:
            site.stop()

    def setUp(self):
        self.here, self.there = (2 * self.hosts)[:2]

    def prompt(self, tokens=8 * PAGE + 8):
        """A new prompt."""
        Served.seed += 1
        return random.Random(Served.seed).choices(range(3, 1024), k=tokens)

    def computed(self, prompt, cached=0, **more):
        """Has the first host compute a prompt, of which its L1 has the first pages. Returns the
        answer once all of its pages are stored."""
        before = self.sets(self.here.status())  # those before it were waited for
        answer = self.here.generate(prompt, **more)
        self.assertEqual((answer.device, answer.cached), (cached * self.page_size(),) * 2)
        self.wait_stored(before + self.RANKS * (len(prompt) // self.page_size() - cached))
        return answer

    def sets(self, report):
        """Pages that the clients of the reporting engine have stored."""
        return report["calls"]["set"]["hit"]

    def stored(self):
        """Pages that the first host has stored."""
        return self.sets(self.here.status_now())

    def wait_stored(self, pages):
        def enough():
            report = self.here.status()
            return report and self.sets(report) >= pages
        harness.wait_for(enough, 300, "the pages are stored")

    @classmethod
    def page_size(cls):
        words = lines.line("", "", flags=cls.FLAGS)
        return int(words[len(words) - words[::-1].index("--page-size")])

    def gets(self, host):
        """Batches of pages that the host's server has requested from its engine."""
        return host.status_now()["calls"]["get"]["batches"]

    def assert_same(self, got, want):
        """Asserts that two answers have the same tokens and log-probabilities."""
        self.assertEqual((got.tokens, got.logprobs), (want.tokens, want.logprobs))

    def unanswered(self, report):
        """Pages whose owner or holder did not answer the clients of the reporting engine."""
        calls = report["calls"]
        return sum(calls[op][result] for op in ("exists", "get")
                   for result in ("unreachable", "timeout"))

    def assert_from_storage(self, host, prompt, want, **more):
        """Asserts that the prompt's whole pages come from L3, and that the answer is the same."""
        whole = len(prompt) - len(prompt) % self.page_size()
        for _ in range(5):
            before = self.unanswered(host.status())
            got = host.generate(prompt, **more)
            if got.storage == whole or self.unanswered(host.status_now()) == before:
                break
            host.flush()  # on a busy machine an engine did not answer in time, and its calls say so
        self.assertEqual((got.storage, got.device, got.host), (whole, 0, 0),
                         f"{got}; {host.status()['calls']}; the log ends:\n{host.text()}")
        self.assertEqual(got.backend, self.BACKEND)
        self.assert_same(got, want)

    def attach(self, host, policy="timeout", write="write_through", **extra):
        """Attaches the storage of the launch line at run time, with these keys changed. policy: for
        prefetches; write: for writes; the defaults are SGLang's."""
        config = json.loads(lines.value_of(self.words(host), lines.EXTRA))
        status, got = host.call("PUT", "/hicache/storage-backend", {
            "hicache_storage_backend": "dynamic", "hicache_storage_prefetch_policy": policy,
            "hicache_write_policy": write,
            "hicache_storage_backend_extra_config_json": json.dumps({**config, **extra})})
        self.assertEqual(status, 200, got)

    def detach(self, host):
        def detached():
            return host.call("DELETE", "/hicache/storage-backend")[0] == 200  # 400: it is busy

        harness.wait_for(detached, 120, "the storage is detached")

    def round_trip(self):
        """A prompt computed on the first host comes from storage on the other, and after
        /flush_cache on both."""
        prompt = self.prompt()
        want = self.computed(prompt)
        for host in (self.there, *self.hosts):
            host.flush()
            self.assert_from_storage(host, prompt, want)

    def stream(self, prompts, wanted, disturb):
        """Sends the prompts to the second host, STREAMS at a time, and calls `disturb` once two are
        answered. Asserts that each answer is the wanted one. Returns the answers."""
        waiting, answers, wrong = list(enumerate(prompts)), {}, []
        lock = threading.Lock()

        def send():
            while True:
                with lock:
                    if not waiting:
                        return
                    i, prompt = waiting.pop(0)
                try:
                    answers[i] = self.there.generate(prompt)
                except Exception as error:  # pylint: disable=broad-except
                    wrong.append(f"request {i}: {error!r}")
                    return

        threads = [threading.Thread(target=send, daemon=True) for _ in range(STREAMS)]
        for thread in threads:
            thread.start()
        harness.wait_for(lambda: len(answers) >= 2 or wrong, 300, "two answers")
        disturb()
        harness.wait_for(lambda: not any(thread.is_alive() for thread in threads), 300,
                         "every request of the stream is answered")
        self.assertEqual(wrong, [])
        for i, want in enumerate(wanted):
            self.assert_same(answers[i], want)
        return [answers[i] for i in range(len(prompts))]

    def prepared(self, count=8):
        """New prompts that the first host has computed, and their answers."""
        prompts = [self.prompt() for _ in range(count)]
        wanted = [self.computed(prompt) for prompt in prompts]
        self.there.flush()
        return prompts, wanted

    def wait_hits(self, prompt, want):
        """Waits until the second host has the prompt's pages from storage again."""
        whole = len(prompt) - len(prompt) % self.page_size()

        def hit():
            self.there.flush()
            got = self.there.generate(prompt)
            self.assert_same(got, want)
            return got.storage == whole

        harness.wait_for(hit, 120, "pages come from storage again")
        self.there.flush()


class Core(Served):
    """What a user relies on first."""

    def test_a_prefix_computed_on_one_host_is_used_on_the_other(self):
        prompt = self.prompt()
        want = self.computed(prompt)
        again = self.here.generate(prompt)
        self.assertEqual((again.device, again.storage), (8 * PAGE, 0))
        self.assert_same(again, want)
        self.assert_from_storage(self.there, prompt, want)
        # A longer prompt with the same beginning: the second turn of a dialogue.
        longer = prompt + want.tokens + self.prompt(100)
        turn = self.computed(longer, cached=8)
        for host in (self.there, self.here):
            host.flush()
            self.assert_from_storage(host, longer, turn)

    def test_pages_evicted_from_both_levels_come_back_from_storage(self):
        prompt = self.prompt()
        want = self.computed(prompt)
        for _ in range(9):  # 4,608 tokens: L2 has room for 4,096
            self.computed(self.prompt())
        self.assert_from_storage(self.here, prompt, want)

    def test_pages_come_back_from_the_disk_of_a_host(self):
        """They are read by the other host first, then by the host that stored them."""
        for host in (self.there, self.here):
            with self.subTest(host=host.i):
                self.assertTrue(any(self.came_from_disk(host) for _ in range(5)))

    def came_from_disk(self, host):
        """Moves a new prompt's pages to the first host's disk and has the host use them. Returns
        False if the engine has kept them in memory, which it may."""
        prompt = self.prompt()
        want = self.computed(prompt)
        self.push_out()
        before = self.from_disk()
        host.flush()
        self.assert_from_storage(host, prompt, want)
        return self.from_disk() > before

    def from_disk(self):
        """Pages that the first host's engine has read from its disk: for gets, and ahead of them
        because exists has found them."""
        counters = self.here.status()["counters"]
        return counters["disk_hits"] + counters["disk_promotes"]

    def push_out(self):
        """Stores other pages in the first host's pool, so that all that it has move to its disk."""
        filler = harness.tool("tests/cluster/filler", "--timeout-ms", 60000, "--batches",
                              4 * POOL // FILLER_BATCH, sockets=[self.here.socket])
        status, _, err = harness.finish(filler)
        self.assertEqual(status, 0, err)
        if self.here.status()["counters"]["disk_drops"]:
            self.skipTest("the disk of this machine is too slow: pages were dropped")

    def test_short_prompts_are_not_fetched(self):
        for tokens, fetched in ((240, False), (272, True)):
            with self.subTest(tokens=tokens):
                prompt = self.prompt(tokens)
                want = self.computed(prompt)
                before = self.gets(self.there)
                got = self.there.generate(prompt)
                self.assert_same(got, want)
                self.assertEqual(got.storage, 4 * PAGE if fetched else 0)
                self.assertEqual(self.gets(self.there) > before, fetched)

    def test_answers_are_the_same_while_the_storage_is_detached(self):
        prompt = self.prompt()
        want = self.computed(prompt)
        self.detach(self.there)
        got = self.there.generate(prompt)
        self.assertEqual((got.cached, got.backend), (0, None))
        self.assert_same(got, want)
        self.there.flush()
        self.attach(self.there)
        self.assert_from_storage(self.there, prompt, want)

    def test_one_wrong_byte_of_one_page_changes_the_answer(self):
        """This is what the other tests would report if a page were wrong."""
        prompt = self.prompt()
        want = self.computed(prompt)
        self.detach(self.there)
        self.attach(self.there, module_path="flipped", class_name="FlippedStore")
        try:
            got = self.there.generate(prompt)
            self.assertEqual(got.storage, 8 * PAGE)
            with self.assertRaises(AssertionError):
                self.assert_same(got, want)
        finally:
            self.there.flush()
            self.detach(self.there)
            self.attach(self.there)
        self.assert_from_storage(self.there, prompt, want)

    def measured(self, name, host, *more):
        """Runs peercache-bench served with the URL of a host; returns its report."""
        path = os.path.join(self.disk.name, name)
        done = harness.run(
            ["ip", "netns", "exec", self.site.network.names[self.here.i],
             harness.program("tools/peercache-bench"), "served", "--url", host.url, *more,
             "--settle", "0", "--json", path, "--out-dir", self.disk.name],
            300, capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        with open(path, encoding="utf-8") as file:
            return json.load(file)

    def test_the_benchmark_measures_hits_by_source_and_time_to_first_token(self):
        """Prompts, and what a turn adds to them, are long enough for SGLang to fetch them."""
        words = ["--users", "1", "--turns", "2", "--prompt-max", "1600", "--output-tokens", "2"]
        given = argparse.Namespace(users=1, turns=2, prompt_max=1600, vocabulary=1024)
        for given.seed in range(SEED * 10000, (SEED + 1) * 10000):
            made = dialogues.made(given)
            if all(len(d) == 2 and len(d[0]) > 320 and len(d[1]) - len(d[0]) > 320 for d in made):
                break
        words += ["--seed", str(given.seed)]
        pages = sum(len(d[-1]) // PAGE for d in made)
        before = self.stored()
        filled = self.measured("filled", self.here, *words)
        self.assertEqual((filled["notes"], filled["failed"]), ([], ""))
        self.assertEqual([row["turn"] for row in filled["rows"]], 2 * [1, 2, "all"])
        self.assertTrue(all(0 < row["ttft_p50_ms"] <= row["ttft_p99_ms"] for row in filled["rows"]))
        self.wait_stored(before + pages)
        for _ in range(5):
            self.there.flush()
            before = self.unanswered(self.there.status())
            read = self.measured("read", self.there, *words)
            first = read["rows"][2]
            whole = sum((len(prompt) - 1) // PAGE * PAGE for d in made for prompt in d)
            if first["hit_tokens"] == whole or self.unanswered(
                    self.there.status_now()) == before:
                break
        self.assertEqual(first["hit_tokens"], whole, read["rows"])
        self.assertGreater(first["storage_tokens"], 0)
        self.assertEqual(first["storage_tokens"] + first["device_tokens"] + first["host_tokens"],
                         whole)
        self.assertIn("the servers had these prompts already", read["notes"][0])

    def test_requests_are_answered_while_an_engine_is_killed_and_restarted(self):
        prompts, wanted = self.prepared()
        for host in (self.there, self.here):
            with self.subTest(host=host.i):
                before = host.engine()
                self.stream(prompts, wanted, lambda pid=before: os.kill(pid, signal.SIGKILL))
                harness.wait_for(lambda host=host, pid=before: host.engine() not in (None, pid),
                                 120, "the keeper starts the engine again")
                self.wait_hits(prompts[0], wanted[0])

    def test_requests_are_answered_while_an_engine_is_stopped(self):
        prompts, wanted = self.prepared()
        self.detach(self.there)
        self.attach(self.there, timeout_ms=5000, exists_timeout_ms=1000)  # the defaults
        for host in (self.there, self.here):
            with self.subTest(host=host.i):
                pid = host.engine()
                try:
                    self.stream(prompts, wanted, lambda pid=pid: os.kill(pid, signal.SIGSTOP))
                finally:
                    os.kill(pid, signal.SIGCONT)
                self.wait_hits(prompts[0], wanted[0])


class SmallPages(Served):
    """Pages of 16 tokens, and the prefetch policies."""

    FLAGS = ["--page-size", "16"]

    def test_a_prefix_computed_on_one_host_is_used_on_the_other(self):
        self.round_trip()

    def test_each_prefetch_policy_gives_the_same_answers(self):
        for policy in ("wait_complete", "best_effort", "timeout"):  # the default is the last one
            with self.subTest(policy=policy):
                prompt = self.prompt()
                want = self.computed(prompt)
                self.detach(self.there)
                self.attach(self.there, policy)
                if policy == "best_effort":  # the request takes the pages that were read in time
                    self.assert_same(self.there.generate(prompt), want)
                else:
                    self.assert_from_storage(self.there, prompt, want)


    def written(self, policy):
        """Sets the first host's write policy, with empty caches. Returns the pages it has stored.
        """
        self.here.flush()
        self.detach(self.here)
        self.attach(self.here, write=policy)
        return self.stored()

    def test_write_through_selective_stores_what_is_used_twice(self):
        """Pages are stored in the order in which they are found worth it: when those of the second
        prompt are there, those of the first would be."""
        before = self.written("write_through_selective")
        once, twice = self.prompt(), self.prompt()
        self.here.generate(once)
        want = self.here.generate(twice)
        self.assert_same(self.here.generate(twice), want)
        pages = len(twice) // self.page_size()
        self.wait_stored(before + pages)
        self.assertEqual(self.there.generate(once).storage, 0)
        self.assert_from_storage(self.there, twice, want)
        self.assertEqual(self.stored(), before + pages)
        self.written("write_through")

    def test_write_back_stores_what_leaves_the_device(self):
        """Pages are stored in the order in which they are found worth it: when those of a prompt
        are there that was written through, those of the prompt before it would be."""
        before = self.written("write_back")
        prompt, through = self.prompt(), self.prompt(320)
        want = self.here.generate(prompt)
        self.attach(self.here, write="write_through")  # attached already: the policy changes
        self.here.generate(through)
        before += len(through) // self.page_size()
        self.wait_stored(before)
        self.assertEqual(self.stored(), before)
        self.attach(self.here, write="write_back")
        for _ in range(4):  # 2,080 tokens: L1 has room for 2,048
            self.here.generate(self.prompt())
        self.wait_stored(before + len(prompt) // self.page_size())
        self.assert_from_storage(self.there, prompt, want)
        self.written("write_through")


class Operations(Served):
    """What happens in operation beyond requests. L1 has room for a prompt of 4,096 tokens."""

    LONG = 4096
    FLAGS = ["--max-total-tokens", "6144"]

    def test_a_prefetch_that_hangs_ends_after_its_time(self):
        """0.5 s and 0.25 s for each Ki-token are 1.5 s; the launch line's own time would be 61 s.
        The prompt is then computed."""
        prompt = self.prompt(self.LONG + 8)
        want = self.computed(prompt)
        self.detach(self.there)
        self.attach(self.there, module_path="hanging", class_name="HangingStore",
                    prefetch_timeout_base=0.5, prefetch_timeout_per_ki_token=0.25)
        try:
            with open(self.there.socket + HANGS, "wb"):
                start, begun = time.monotonic(), harness.clock()
            try:
                got = self.there.generate(prompt)
                took, most = time.monotonic() - start, harness.clock() - begun
            finally:
                os.unlink(self.there.socket + HANGS)
            self.assert_same(got, want)
            self.assertEqual(got.storage, 0)
            self.assertGreaterEqual(took, 1.5)
            self.assertLess(most, lines.PATIENCE["prefetch_timeout_base"])
            self.wait_hits(prompt, want)
        finally:
            self.detach(self.there)
            self.attach(self.there)

    def test_clear_after_a_weight_update_leaves_no_page_of_the_old_weights(self):
        prompt = self.prompt()
        old = self.computed(prompt)
        for seed in (SEED + 1, SEED):
            for host in self.hosts:
                status, got = host.call("POST", "/update_weights_from_disk",
                                        {"model_path": self.site.model(self.KIND, seed)})
                self.assertEqual((status, got["success"]), (200, True), got)
                status, got = host.call("POST", "/hicache/storage-backend/clear")
                self.assertEqual(status, 200, got)
            new = self.computed(prompt)
            (self.assertEqual if seed == SEED else self.assertNotEqual)(new.logprobs, old.logprobs)
            self.assert_from_storage(self.there, prompt, new)

    def test_requests_are_answered_while_the_other_server_is_killed(self):
        prompts, wanted = self.prepared()
        self.stream(prompts, wanted, lambda: os.kill(self.here.pid, signal.SIGKILL))
        self.restart(self.here)
        self.round_trip()

    def test_a_killed_server_fails_its_requests_and_finds_its_pages_again(self):
        prompts, wanted = self.prepared()
        with self.assertRaises(AssertionError) as failed:
            self.stream(prompts, wanted, lambda: os.kill(self.there.pid, signal.SIGKILL))
        self.assertRegex(str(failed.exception), r"request \d: ")  # it was not answered; none hangs
        self.restart(self.there)
        for prompt, want in zip(prompts, wanted):
            self.assert_from_storage(self.there, prompt, want)

    def restart(self, host):
        """Starts the server of a host again after it was killed, once its engine has ended, too."""
        harness.wait_for(lambda: not host.alive() and host.status() is None, 120,
                         "server and engine have ended")
        host.launch(self.words(host))
        self.wait_start()


class Latent(Served):
    """A model with multi-head latent attention: one tensor for K and V."""

    KIND = "mla"

    def test_a_prefix_computed_on_one_host_is_used_on_the_other(self):
        self.round_trip()


class Ranks(Served):
    """A server with two data-parallel ranks of two tensor-parallel ranks each, over gloo."""

    HOSTS, RANKS = 1, 2
    FLAGS = ["--tp", "2", "--dp", "2"]

    @classmethod
    def start(cls):
        cpus = sorted(os.sched_getaffinity(0))  # each rank is bound to one of them
        cls.hosts[0].launch(cls.words(cls.hosts[0]), SGLANG_CPU_OMP_THREADS_BIND="|".join(
            str(cpus[rank % len(cpus)]) for rank in range(4)))
        cls.wait_start()

    def test_a_prefix_computed_by_one_rank_is_used_by_the_other(self):
        prompt = self.prompt()
        want = self.computed(prompt, routed_dp_rank=0)
        for _ in range(2):
            self.assert_from_storage(self.hosts[0], prompt, want, routed_dp_rank=1)
            self.hosts[0].flush()
        self.assert_from_storage(self.hosts[0], prompt, want, routed_dp_rank=0)


class Mooncake(Served):
    """SGLang's own backend `mooncake`; the class of Mooncake is that of PeerCache."""

    RANKS, BACKEND = 2, "MooncakeStore"  # K and V of a page are two values

    @classmethod
    def start(cls):
        with open(os.path.join(lines.ROOT, "engine/client/python/MOONCAKE.md"),
                  encoding="utf-8") as file:
            [(variable, config)] = re.findall(
                r"^    (\S+) peercache-as-mooncake.*?extra-config '(\{.*?\})'", file.read(),
                re.M | re.S)
        config = json.loads(config)
        for host in cls.hosts:
            words = cls.words(host)
            words[words.index("--hicache-storage-backend") + 1] = "mooncake"
            words[words.index(lines.EXTRA) + 1] = json.dumps({
                **config, "master_server_address": f"{cls.hosts[0].address}:31998",
                "protocol": "tcp", "device_name": "", "local_hostname": host.address,
                "global_segment_size": POOL, **lines.PATIENCE})
            host.launch(words, [servers.PACKAGE + "/peercache/as_mooncake", servers.PACKAGE],
                        PEERCACHE_EXTRA_CONFIG=json.dumps(
                            {**lines.PATIENCE, "engine_socket": host.socket}),
                        **dict([variable.split("=")]))
        cls.wait_start()

    def test_pages_of_another_host_and_those_evicted_come_from_storage(self):
        prompt = self.prompt()
        want = self.computed(prompt)
        again = self.here.generate(prompt)
        self.assertEqual((again.device, again.storage), (8 * PAGE, 0))
        self.assert_from_storage(self.there, prompt, want)
        longer = prompt + want.tokens + self.prompt(100)
        turn = self.computed(longer, cached=8)
        for host in (self.there, self.here):
            host.flush()
            self.assert_from_storage(host, longer, turn)
        for _ in range(9):  # 4,608 tokens: L2 has room for 4,096
            self.computed(self.prompt())
        self.assert_from_storage(self.here, prompt, want)
        with open(self.here.log, encoding="utf-8", errors="replace") as file:
            self.assertIn("mooncake.store is PeerCache", file.read())


class Pair(Served):
    """A prefill and a decode server, between which Mooncake's transfer engine carries the KV of
    prompts over TCP, and a host that reads what both store."""

    HOSTS = 3

    @classmethod
    def start(cls):
        try:
            cls.packages = [servers.PACKAGE, environment.prepare_packages(MOONCAKE)]
        except environment.Missing as why:
            raise unittest.SkipTest(str(why)) from why
        prefill, decode, third = cls.hosts
        third.launch(cls.words(third))
        cls.launch(decode, "decode", "--enable-hierarchical-cache")
        harness.wait_for(lambda: not decode.alive(), servers.LIMIT, "the server is refused")
        cls.refused = decode.text()
        os.unlink(decode.log)
        cls.launch(prefill, "prefill")
        cls.launch(decode, "decode")
        cls.wait_start()

    @classmethod
    def launch(cls, host, mode, *flags):
        host.launch(cls.words(host, mode, flags), cls.packages, SGLANG_HOST_IP=host.address,
                    MOONCAKE_PROTOCOL="tcp", MC_FORCE_TCP="1")

    def generate(self, prompt, tokens):
        """Sends a prompt to both servers, as SGLang's router does; returns the decode server's
        answer."""
        more = {"bootstrap_host": self.hosts[0].address, "bootstrap_room": Served.seed}
        thread = threading.Thread(target=lambda: self.hosts[0].generate(prompt, tokens, **more))
        thread.start()
        try:
            return self.hosts[1].generate(prompt, tokens, **more)
        finally:
            thread.join()

    def test_hierarchical_cache_is_refused_as_the_readme_says(self):
        self.assertIn("enable-hierarchical-cache and disable-radix-cache are mutually exclusive",
                      self.refused)

    def test_pages_of_a_prefill_and_a_decode_server_are_used_by_a_third_host(self):
        prefill, decode, third = self.hosts
        prompt = self.prompt()
        self.detach(third)
        want = third.generate(prompt, tokens=2 * PAGE)
        third.flush()
        self.attach(third)
        got = self.generate(prompt, 2 * PAGE)
        self.assert_same(got, want)
        for host, pages in ((prefill, 8), (decode, 2)):
            harness.wait_for(lambda host=host, pages=pages: host.status()["calls"]["set"]["hit"]
                             >= pages, 300, "the pages are stored")
        answer = third.generate(prompt, tokens=2 * PAGE)
        self.assertEqual((answer.storage, answer.cached), (8 * PAGE, 8 * PAGE))
        self.assert_same(answer, want)
        third.flush()
        answer = third.generate([*prompt, *got.tokens])
        self.assertEqual((answer.storage, answer.cached), (10 * PAGE, 10 * PAGE))


def load_tests(loader, _tests, _pattern):
    return unittest.TestSuite(map(loader.loadTestsFromTestCase, SUITES[CHOSEN]))


def ended(*_):
    """SIGTERM: stops the servers. unittest would take SystemExit for an error and go on."""
    try:
        for case in SUITES[CHOSEN]:
            case.doClassCleanups()
        Served.end()
    finally:
        os._exit(143)


SUITES = {"core": [Core], "long": [SmallPages, Operations, Latent, Ranks, Mooncake, Pair]}
CHOSEN = "core"


def main():
    global SGLANG, CHOSEN
    version, CHOSEN = sys.argv[1:3]
    del sys.argv[1:3]
    if os.geteuid() != 0:
        print("skipped: network namespaces need root")
        return 77
    try:
        version, SGLANG = environment.prepare(version)
    except environment.Missing as why:
        print(f"skipped: {why}")
        return 77
    print(f"SGLang {version}, SEED={SEED}")
    signal.signal(signal.SIGTERM, ended)
    unittest.main()
    return 0


if __name__ == "__main__":
    sys.exit(main())
