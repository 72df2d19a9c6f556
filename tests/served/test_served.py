# SPDX-License-Identifier: Apache-2.0
"""SGLang serves a model on two hosts, and L3 changes nothing but the time of an answer.

    test_served.py VERSION core|long [TEST]...     VERSION: of SGLang, or "newest"

An answer is compared by all of its tokens and the log-probability of each, bit for bit. Exit status
77: PyPI does not answer or lacks a package, or this user may make no network namespaces.
"""

import json
import os
import random
import signal
import sys
import tempfile
import threading
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
import servers  # noqa: E402
from servers import environment, harness, lines  # noqa: E402

SEED = int(os.environ.get("SEED", "1"))
SGLANG = ""  # folders for PYTHONPATH
PAGE = 64    # of the README's launch line
FLAGS = ["--max-total-tokens", "2048", "--admin-api-key", servers.KEY]  # L2: twice as much
DISK = "1.5gb"
POOL = 64 << 20
FILLER_BATCH = 64 * 256 << 10  # bytes that tests/cluster/filler stores in a call
STREAMS = 3   # requests at once


class Served(unittest.TestCase):
    """Base class: two hosts that run the README's line for one node."""

    KIND, FLAGS = "mha", []  # of the model; more words of the launch line
    site, seed = None, SEED * 1000

    @classmethod
    def setUpClass(cls):
        if Served.site is None:
            Served.site = servers.Site(SGLANG)
            unittest.addModuleCleanup(cls.end)
        cls.disk = tempfile.TemporaryDirectory(prefix="peercache-disk-", dir=harness.BUILD)
        cls.addClassCleanup(cls.disk.cleanup)
        cls.addClassCleanup(cls.stop)
        cls.start()

    @classmethod
    def start(cls):
        """Starts a server on each host. Subclasses start others."""
        for host in cls.site.hosts:
            host.launch(cls.words(host))
        cls.wait_start()

    @classmethod
    def wait_start(cls):
        """Returns when all servers serve and their engines see each other."""
        for host in cls.site.hosts:
            host.ready()
        harness.wait_for(lambda: all(len((host.status() or {"members": ()})["members"]) == 2
                                     for host in cls.site.hosts), 60, "the engines see each other")

    @classmethod
    def words(cls, host, mode=None, flags=()):
        """The launch line of a host, with a small pool and a disk."""
        path = os.path.join(cls.disk.name, str(host.i))
        os.makedirs(path, exist_ok=True)
        return lines.line(
            cls.site.model(cls.KIND, SEED), f"{cls.site.hosts[0].address}:31998", mode,
            {"global_segment_size": str(POOL), "disk_enabled": True, "disk_path": path,
             "disk_size": DISK}, [*FLAGS, *cls.FLAGS, *flags])

    @classmethod
    def stop(cls):
        for host in cls.site.hosts:
            host.stop()

    @staticmethod
    def end():
        site, Served.site = Served.site, None
        if site is not None:
            site.stop()

    def setUp(self):
        self.here, self.there = self.site.hosts

    def prompt(self, tokens=8 * PAGE + 8):
        """A new prompt."""
        Served.seed += 1
        return random.Random(Served.seed).choices(range(3, 1024), k=tokens)

    def computed(self, prompt, cached=0):
        """Has the first host compute a prompt, of which its L1 has the first pages. Returns the
        answer once all of its pages are stored."""
        before = self.here.status()["calls"]["set"]["hit"]
        answer = self.here.generate(prompt)
        self.assertEqual((answer.device, answer.cached), (cached * self.page_size(),) * 2)
        pages = len(prompt) // self.page_size() - cached
        harness.wait_for(lambda: self.here.status()["calls"]["set"]["hit"] >= before + pages, 300,
                         "the pages are stored")
        return answer

    @classmethod
    def page_size(cls):
        words = lines.line("", "", flags=cls.FLAGS)
        return int(words[len(words) - words[::-1].index("--page-size")])

    def gets(self, host):
        """Batches of pages that the host's server has requested from its engine."""
        return host.status()["calls"]["get"]["batches"]

    def assert_same(self, got, want):
        """Asserts that two answers have the same tokens and log-probabilities."""
        self.assertEqual((got.tokens, got.logprobs), (want.tokens, want.logprobs))

    def assert_from_storage(self, host, prompt, want):
        """Asserts that the prompt's whole pages come from L3, and that the answer is the same."""
        got = host.generate(prompt)
        whole = len(prompt) - len(prompt) % self.page_size()
        self.assertEqual((got.storage, got.device, got.host), (whole, 0, 0), got)
        self.assertEqual(got.backend, "PeerCacheStore")
        self.assert_same(got, want)

    def attach(self, host, policy="timeout", **extra):
        """Attaches the storage of the launch line at run time, with these keys changed. policy: for
        prefetches; the default is SGLang's."""
        config = json.loads(lines.value_of(self.words(host), lines.EXTRA))
        status, got = host.call("PUT", "/hicache/storage-backend", {
            "hicache_storage_backend": "dynamic", "hicache_storage_prefetch_policy": policy,
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
        for host in (self.there, *self.site.hosts):
            host.flush()
            self.assert_from_storage(host, prompt, want)


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

    def test_requests_are_answered_while_an_engine_is_killed_and_restarted(self):
        prompts, wanted = self.prepared()
        for host in (self.there, self.here):
            with self.subTest(host=host.i):
                before = host.engine()
                self.stream(prompts, wanted, lambda pid=before: os.kill(pid, signal.SIGKILL))
                harness.wait_for(lambda host=host, pid=before: host.engine() not in (None, pid),
                                 120, "the keeper starts the engine again")
                self.wait_hits(prompts[0], wanted[0])

    def wait_hits(self, prompt, want):
        """Waits until the second host has the prompt's pages from storage again."""
        def hit():
            self.there.flush()
            got = self.there.generate(prompt)
            self.assert_same(got, want)
            return got.storage == 8 * PAGE

        harness.wait_for(hit, 120, "pages come from storage again")
        self.there.flush()

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
        for policy in ("wait_complete", "timeout", "best_effort"):
            with self.subTest(policy=policy):
                prompt = self.prompt()
                want = self.computed(prompt)
                self.detach(self.there)
                self.attach(self.there, policy)
                if policy == "best_effort":  # the request takes the pages that were read in time
                    self.assert_same(self.there.generate(prompt), want)
                else:
                    self.assert_from_storage(self.there, prompt, want)


class Latent(Served):
    """A model with multi-head latent attention: one tensor for K and V."""

    KIND = "mla"

    def test_a_prefix_computed_on_one_host_is_used_on_the_other(self):
        self.round_trip()


class Decode(Served):
    """A decode server beside a server that reads what it stores. Without a prefill server, the
    transfer backend "fake" pretends that the prompt's KV has arrived: no answers are compared."""

    FAKE = ["--disaggregation-transfer-backend", "fake"]

    @classmethod
    def start(cls):
        here, there = cls.site.hosts
        here.launch(cls.words(here))
        there.launch([*cls.words(there, "decode", flags=cls.FAKE), "--enable-hierarchical-cache"])
        harness.wait_for(lambda: not there.alive(), servers.LIMIT, "the server is refused")
        cls.refused = there.text()
        os.unlink(there.log)
        there.launch(cls.words(there, "decode", flags=cls.FAKE))
        cls.wait_start()

    def test_hierarchical_cache_is_refused_as_the_readme_says(self):
        self.assertIn("enable-hierarchical-cache and disable-radix-cache are mutually exclusive",
                      self.refused)

    def test_pages_of_a_decode_server_are_used_by_another_host(self):
        prompt = self.prompt()
        self.computed(prompt)  # as a prefill server does, which stores the pages of prompts
        got = self.there.generate(prompt, tokens=2 * PAGE, bootstrap_host="2.2.2.2",  # of "fake"
                                  bootstrap_room=SEED)
        harness.wait_for(lambda: self.there.status()["calls"]["set"]["hit"] == 2, 300,
                         "the pages of the output are stored")
        self.here.flush()
        answer = self.here.generate([*prompt, *got.tokens])
        self.assertEqual(answer.storage, (8 + 2) * PAGE)


def load_tests(loader, _tests, _pattern):
    return unittest.TestSuite(map(loader.loadTestsFromTestCase, SUITES[CHOSEN]))


SUITES = {"core": [Core], "long": [SmallPages, Latent, Decode]}
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
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that servers are stopped
    unittest.main()
    return 0


if __name__ == "__main__":
    sys.exit(main())
