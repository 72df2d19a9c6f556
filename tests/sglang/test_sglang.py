# SPDX-License-Identifier: Apache-2.0
"""Runs SGLang's own, unmodified code with two real engines.

    test_sglang.py VERSION     "newest": the newest release that PyPI has

Each engine has one simulated host with two ranks; newer versions have a third host with one rank.
Packages of other projects that need a GPU are replaced by stand-ins (foreign.py); nothing of SGLang
is. Exit status 77: PyPI does not answer or has no CPU build of torch. A release that the tests
cannot run is a failure.
"""

import json
import os
import re
import signal
import sys
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(os.path.dirname(HERE), "cluster")]
import environment  # noqa: E402
import harness  # noqa: E402
import hosts  # noqa: E402

VERSION = "0.5.18"
SGLANG = ""  # folders for PYTHONPATH
PAGES = 200  # pages that a test of the controller moves
TREES = (0, 5, 18)  # first version whose prefix tree is tested; later versions have only the tree


def version():
    return tuple(map(int, re.match(r"(\d+)\.(\d+)\.(\d+)", VERSION).groups()))


class Ranks(unittest.TestCase):
    """Base class: a test uses the two hosts in HOSTS. The first two hosts have two ranks each."""

    seed = 0
    running = None
    DRIVER = "tree"
    HOSTS = (0, 1)
    everything = {"hits": PAGES, "pages": PAGES, "wrong": 0}
    nothing = {"hits": 0, "pages": 0, "wrong": 0}

    @classmethod
    def setUpClass(cls):
        if Ranks.running is None or Ranks.running.driver != cls.DRIVER:
            Ranks.end()
            Ranks.running = hosts.Running(
                cls.DRIVER, (2, 2, 1) if version() > TREES else (2, 2), SGLANG)
        cls.engines = Ranks.running.engines
        cls.hosts = [Ranks.running.hosts[i] for i in cls.HOSTS]

    @staticmethod
    def end():
        running, Ranks.running = Ranks.running, None
        if running is not None:
            running.stop()

    def setUp(self):
        Ranks.seed += 1

    def make(self, pool, layout, page_size=4, v1=1, extra=None, **plan):
        """Makes the pools and the store on all ranks of both hosts."""
        # of this pool SGLang's own code copies the indexer's pages, which have no addresses
        self.in_place = v1 and (pool, layout) != ("dsa", "layer_first")
        for host in self.hosts:
            host.ask("make", pool=pool, layout=layout, page_size=page_size,
                     **{"pages": 256, **plan},
                     extra={"backend_name": "peercache", "module_path": "peercache.store",
                            "class_name": "PeerCacheStore", "interface_v1": v1,
                            "engine_socket": host.engine_socket, "engine_start": False,
                            **(extra or {})})
        for host in self.hosts:
            host.answers()

    def counted(self, host):
        """The stores' counts of all ranks. Asserts that no thread died and no error was counted."""
        module = "observability.metrics_collector" if version() >= (0, 5, 10) else \
            "metrics.collector"
        counts = host.do("counts")
        for row in counts:
            self.assertTrue(row["alive"])
            if hosts.NICS and self.in_place:  # of memory from any allocator
                self.assertEqual(row["bytes_staged"], 0)
                self.assertIn(row["paths"].get("kv", "verbs"), ("verbs", "shm"))
            self.assertEqual(row["errors"], {})
            self.assertEqual(row["stats"], "sglang.srt." + module)
        return counts


class Controllers(Ranks):
    """Tests of the controller's threads: backup, exists, prefetch."""

    def round_trip(self, pool, layout, v1=1, shm=False, **options):
        """Stores 200 pages from one host, then reads them back on that host and on the other.

        Compares every byte.
        """
        Ranks.seed += 1
        here, there = self.hosts
        nothing, everything = self.nothing, self.everything
        self.make(pool, layout, v1=v1, shm=shm, extra={"allocator": "shm"} if shm else None,
                  **options)
        self.assertEqual(there.do("read", seed=self.seed, pages=PAGES), [nothing] * 2)
        written = here.do("write", seed=self.seed, pages=PAGES)
        # With MLA only rank 0 writes.
        self.assertEqual(written, [{"pages": PAGES}, {"pages": 0 if pool == "mla" else PAGES}])
        here.do("flush")
        self.assertEqual(here.do("read", seed=self.seed, pages=PAGES), [everything] * 2)
        self.assertEqual(there.do("read", seed=self.seed, pages=PAGES), [everything] * 2)
        for host in self.hosts:
            for row in self.counted(host):
                self.assertEqual(row["bytes_staged"] if shm else 0, 0)
                self.assertEqual(row["memory"]["shm"], int(shm))
        self.assertTrue(all(row["hits_remote"] == PAGES for row in there.do("counts")))

    def test_mha_page_first(self):
        self.round_trip("mha", "page_first")

    def test_mha_page_first_with_pages_of_one_token(self):
        self.round_trip("mha", "page_first", page_size=1)

    def test_mha_page_first_direct(self):
        self.round_trip("mha", "page_first_direct")

    def test_mha_page_head(self):
        self.round_trip("mha", "page_head")

    def test_mha_layer_first(self):
        self.round_trip("mha", "layer_first")

    def test_mla_page_first(self):
        self.round_trip("mla", "page_first")

    def test_mla_layer_first(self):
        self.round_trip("mla", "layer_first")

    def test_data_types_that_are_stored_as_bytes_share_no_pages(self):
        here, there = self.hosts
        for v1 in (1, 0):
            with self.subTest(v1=v1):
                Ranks.seed += 1
                self.make("mha", "page_first", v1=v1, dtype="float8_e4m3fn")
                self.assertEqual(here.do("write", seed=self.seed, pages=4), [{"pages": 4}] * 2)
                self.make("mha", "page_first", v1=v1, dtype="float8_e5m2")
                self.assertEqual(there.do("read", seed=self.seed, pages=4), [self.nothing] * 2)
                self.make("mha", "page_first", v1=v1, dtype="float8_e4m3fn")
                self.assertEqual(there.do("read", seed=self.seed, pages=4),
                                 [{"hits": 4, "pages": 4, "wrong": 0}] * 2)

    def test_pages_are_moved_by_the_generic_calls(self):
        for pool, layout in (("mha", "page_first"), ("mha", "layer_first"),
                             ("mla", "page_first")):
            with self.subTest(pool=pool, layout=layout):
                self.round_trip(pool, layout, v1=0)

    def test_the_shm_allocator_needs_no_copies(self):
        if version() < (0, 5, 17):
            self.skipTest(f"SGLang {VERSION} has no shm allocator")
        for pool in ("mha", "mla"):
            with self.subTest(pool=pool):
                self.round_trip(pool, "page_first", shm=True)

    def test_pages_are_found_after_detach_and_attach(self):
        if version() < (0, 5, 9):
            self.skipTest(f"SGLang {VERSION} cannot detach")
        self.round_trip("mha", "page_first")
        for host in self.hosts:
            for request in ("detach", "attach", "detach", "attach"):
                host.do(request)
        got = self.hosts[1].do("read", seed=self.seed, pages=PAGES)
        self.assertEqual(got, [self.everything] * 2)


class Trees(Ranks):
    """Tests of the prefix tree: write policies and prefetch policies.

    They compare the bytes that the tree has loaded to the device pools.
    """

    FULL = {"pages": 40, "on_device": 40, "wrong": 0}
    NONE = {"pages": 0, "on_device": 0, "wrong": 0}

    def kinds(self):
        """Yields pool, layout and page size."""
        yield from (("mha", "page_first_direct", 4), ("mha", "layer_first", 1),
                    ("mla", "page_first_direct", 4))
        if version() > TREES:
            yield from (("dsa", "page_first_direct", 64), ("swa", "page_first_direct", 1))

    def fetch(self, host, pages=40, **options):
        """Runs a request for the pages on all ranks; self.seconds: the longest prefetch."""
        got = host.do("fetch", seed=self.seed, pages=pages, **options)
        self.seconds = max(rank.pop("seconds") for rank in got)
        return got

    def stored_when(self, write, *steps):
        """Asserts that the other host finds no page before the last step, and all pages after it.
        """
        here, there = self.hosts
        for pool, layout, page_size in self.kinds():
            with self.subTest(pool=pool, layout=layout):
                Ranks.seed += 1
                self.make(pool, layout, page_size, write=write)
                for step in steps:
                    self.assertEqual(self.fetch(there), [self.NONE] * 2)
                    here.do(step, **({"seed": self.seed} if step == "insert" else {}), pages=40)
                self.assertEqual(self.fetch(there), [self.FULL] * 2)
                here.do("flush")
                self.assertEqual(self.fetch(here), [self.FULL] * 2)
                for host in self.hosts:
                    self.counted(host)

    def test_write_through_stores_computed_pages(self):
        self.stored_when("write_through", "insert")

    def test_write_through_selective_stores_pages_requested_again(self):
        self.stored_when("write_through_selective", "insert", "insert")

    def test_write_back_stores_pages_that_the_device_evicts(self):
        self.stored_when("write_back", "insert", "evict")

    def test_the_generic_calls_serve_the_tree(self):
        here, there = self.hosts
        self.make("mha", "page_first_direct", v1=0)
        here.do("insert", seed=self.seed, pages=40)
        self.assertEqual(self.fetch(there), [self.FULL] * 2)

    def test_prefetch_policies_load_the_pages_they_wait_for(self):
        here, there = self.hosts
        for prefetch in ("wait_complete", "timeout", "best_effort"):
            for pool, layout, page_size in self.kinds():
                with self.subTest(prefetch=prefetch, pool=pool, layout=layout):
                    Ranks.seed += 1
                    self.make(pool, layout, page_size, prefetch=prefetch,
                              extra={"prefetch_timeout_base": 30})
                    here.do("insert", seed=self.seed, pages=40)
                    if prefetch == "best_effort":
                        # The request starts with the pages read until then, possibly none.
                        for row in self.fetch(there, at_once=True):
                            self.assertEqual(row["wrong"], 0)
                            self.assertEqual(row["on_device"], row["pages"])
                        there.do("flush")
                    self.assertEqual(self.fetch(there), [self.FULL] * 2)
                    self.counted(there)


class NewestTrees(Ranks):
    """Tests of functions that only versions after 0.5.18 have."""

    fetch = Trees.fetch
    FULL, NONE = Trees.FULL, Trees.NONE

    def test_pages_assumed_to_be_stored_are_read_without_exists(self):
        here, there = self.hosts
        self.make("mha", "page_first_direct")
        self.assertEqual(self.fetch(there, assume=40), [self.NONE] * 2)
        here.do("insert", seed=self.seed, pages=25)
        part = {"pages": 25, "on_device": 25, "wrong": 0}
        self.assertEqual(self.fetch(there, assume=40), [part] * 2)
        there.do("flush")
        here.do("insert", seed=self.seed, pages=40)
        self.assertEqual(self.fetch(there, assume=40), [self.FULL] * 2)
        self.counted(there)

    def test_a_hanging_engine_delays_a_request_as_long_as_its_policy_allows(self):
        """The engine stops while the read is in flight; the bytes arrive after the request ended.
        """
        here, there = self.hosts
        engine = self.engines.process[1]
        for prefetch in ("best_effort", "timeout"):
            with self.subTest(prefetch=prefetch):
                Ranks.seed += 1
                self.make("mha", "page_first_direct", prefetch=prefetch,
                          extra={"prefetch_timeout_base": 0.5, "timeout_ms": 60000})
                here.do("insert", seed=self.seed, pages=40)
                there.do("counts")
                try:
                    harness.freeze(engine)
                    got = self.fetch(there, assume=40, at_once=True)
                finally:
                    engine.send_signal(signal.SIGCONT)
                self.assertEqual(got, [self.NONE] * 2)
                self.assertLess(self.seconds, 30)  # the read itself may take 60 s
                self.engines.wait_members(2)
                # SGLang frees the memory of the abandoned read and uses it again.
                there.do("settle")
                self.assertEqual(self.fetch(there), [self.FULL] * 2)
                self.counted(there)


class Pools(Ranks):
    """Tests of the pools of hybrid models and drafts, with the newest version's controller."""

    def round_trip(self, pool, layout, page_size, side=(), written=(1, 1), **extra):
        """Stores pages from one host and reads them on both.

        written: for each rank, 1 if it stores pages. side: number of pages of the pools that cover
        only the end of a prefix, by name of the pool.
        """
        here, there = self.hosts
        pages = 12
        with self.subTest(pool=pool, layout=layout):
            Ranks.seed += 1
            self.make(pool, layout, page_size, pages=64, extra=extra)
            self.assertEqual(there.do("read", seed=self.seed, pages=pages), [self.nothing] * 2)
            got = here.do("write", seed=self.seed, pages=pages)
            self.assertEqual([row["pages"] for row in got], [pages * rank for rank in written])
            want = {"hits": pages, "pages": pages, "wrong": 0,
                    **({"side": dict(side)} if side else {})}
            here.do("flush")
            self.assertEqual(there.do("read", seed=self.seed, pages=pages), [want] * 2)
            self.assertEqual(here.do("read", seed=self.seed, pages=pages), [want] * 2)
            for host in self.hosts:
                self.counted(host)

    def test_sparse_attention_moves_the_indexer_with_the_pages(self):
        for layout in ("page_first", "page_first_direct", "layer_first"):
            self.round_trip("dsa", layout, 64, written=(1, 0))
        self.round_trip("dsa", "page_first", 64, written=(1, 0), allocator="shm")

    def test_sliding_windows_move_the_end_of_a_prefix(self):
        for layout in ("page_first", "layer_first"):
            self.round_trip("swa", layout, 4, side={"swa": 2})

    def test_states_are_moved_for_every_rank(self):
        for pool in ("mamba", "mla_mamba"):
            self.round_trip(pool, "page_first", 1, side={"mamba": 1})

    def test_all_pools_of_deepseek_v4_are_moved(self):
        side = {"swa": 1, "deepseek_v4_c4_state": 1, "deepseek_v4_c4_indexer_state": 1}
        for layout in ("page_first", "layer_first"):
            self.round_trip("deepseek_v4", layout, 256, written=(1, 0), side=side)
        self.round_trip("deepseek_v41", "page_first", 256, written=(1, 0), side=side)
        self.round_trip("deepseek_v4", "page_first", 256, written=(1, 0), side=side,
                        allocator="shm")

    def test_drafts_are_moved_with_their_model(self):
        self.round_trip("mha_draft", "page_first", 4)
        self.round_trip("mla_draft", "page_first", 4, written=(1, 0))
        self.round_trip("dsa_draft", "page_first", 64, written=(1, 0))

    def test_a_draft_that_only_rank_0_stores_is_a_miss_on_other_ranks(self):
        here, there = self.hosts
        self.make("mla_mha_draft", "page_first")
        here.do("write", seed=self.seed, pages=12)
        for row in there.do("read", seed=self.seed, pages=12):
            self.assertEqual(row, self.nothing)

    def test_ranks_agree_on_a_prefix_that_each_can_restore(self):
        """The longest prefix of rank 0 is 9 pages, of rank 1 it is 7; the longest of both is 5."""
        here, there = self.hosts
        self.make("mamba", "page_first", 1)
        here.do("write", seed=self.seed, pages=12, ends=[[2, 5, 9], [2, 5, 7]])
        want = {"hits": 5, "pages": 5, "wrong": 0, "side": {"mamba": 1}}
        self.assertEqual(there.do("read", seed=self.seed, pages=12), [want] * 2)


class Heads(Ranks):
    """Tests of hosts with different tensor-parallel sizes, which share pages split by heads."""

    HOSTS = (0, 2)

    def test_pages_split_by_heads_are_read_by_another_tensor_parallel_size(self):
        for lcm in (2, 4):
            for writer, reader in (self.hosts, self.hosts[::-1]):
                with self.subTest(lcm=lcm, ranks=len(writer.ranks)):
                    Ranks.seed += 1
                    self.make("mha", "page_head", extra={"tp_lcm_size": lcm})
                    self.assertEqual(reader.do("read", seed=self.seed, pages=PAGES),
                                     [self.nothing] * len(reader.ranks))
                    writer.do("write", seed=self.seed, pages=PAGES)
                    self.assertEqual(reader.do("read", seed=self.seed, pages=PAGES),
                                     [self.everything] * len(reader.ranks))
                    for host in self.hosts:
                        self.counted(host)


class Linker(Ranks):
    """SGLang's external cache linker: pages go between device pools and engines."""

    DRIVER = "linker"

    FULL = {"pages": 12, "aborted": 0, "wrong": 0}
    NONE = {"pages": 0, "aborted": 0, "wrong": 0}

    def fetch(self, host, **options):
        return host.do("fetch", seed=self.seed, pages=12, **options)

    def test_pages_go_from_the_device_of_one_host_to_that_of_another(self):
        here, there = self.hosts
        self.make("dsa", "", 64, pages=64)
        self.assertEqual(self.fetch(there), [self.NONE] * 2)
        here.do("insert", seed=self.seed, pages=12)
        self.assertEqual(self.fetch(there), [self.FULL] * 2)
        here.do("flush")
        self.assertEqual(self.fetch(here), [self.FULL] * 2)
        for host in self.hosts:
            for row in host.do("counts"):
                self.assertEqual(row["errors"], {})
        self.assertEqual([row["hits_remote"] for row in there.do("counts")], [24] * 2)

    def test_pages_of_another_data_type_of_the_same_size_are_not_found(self):
        here, there = self.hosts
        self.make("dsa", "", 64, pages=64)
        here.do("insert", seed=self.seed, pages=12)
        self.make("dsa", "", 64, pages=64, dtype="float16")
        self.assertEqual(self.fetch(there), [self.NONE] * 2)

    def test_a_request_whose_pages_are_lost_before_its_load_is_aborted(self):
        here, _ = self.hosts
        self.make("dsa", "", 64, pages=64)
        here.do("insert", seed=self.seed, pages=12)
        here.do("flush")
        for row in self.fetch(here, lose=True):
            self.assertEqual((row["pages"], row["aborted"]), (12, 1))
        self.assertEqual(self.fetch(here), [self.NONE] * 2)
        for row in here.do("counts"):
            self.assertEqual(row["errors"]["a load of the linker"], 1)

    def test_a_page_whose_read_fails_once_is_read_again(self):
        here, there = self.hosts
        self.make("dsa", "", 64, pages=64)
        here.do("insert", seed=self.seed, pages=12)
        self.assertEqual(self.fetch(there, lose="once"), [self.FULL] * 2)
        for row in there.do("counts"):
            self.assertEqual(row["errors"], {})


class Mooncake(Ranks):
    """SGLang's backend `mooncake`: the class of Mooncake is that of PeerCache."""

    def test_sglangs_own_test_of_its_backend_passes(self):
        done = harness.run(
            [environment.PYTHON, "-c", "import foreign, runpy\nforeign.install()\nrunpy.run_module("
             "'sglang.srt.mem_cache.storage.mooncake_store.test_mooncake_store', run_name="
             "'__main__')"], 300, capture_output=True, text=True, env={
                **os.environ, "MOONCAKE_MASTER": "127.0.0.1:50051", "PYTHONPATH": os.pathsep.join(
                    [hosts.PACKAGE + "/peercache/as_mooncake", hosts.PACKAGE, HERE, SGLANG]),
                "PEERCACHE_EXTRA_CONFIG": json.dumps({
                    "engine_socket": self.engines.sockets[0], "engine_start": False,
                    "timeout_ms": 20000, "exists_timeout_ms": 20000})})
        self.assertEqual(done.returncode, 0, done.stdout[-2000:] + done.stderr[-2000:])
        self.assertIn("All tests passed", done.stderr)
        self.assertIn("mooncake.store is PeerCache", done.stderr)


def tearDownModule():
    Ranks.end()


def load_tests(loader, _tests, _pattern):
    """Selects the test classes for this version of SGLang, and the driver of Controllers."""
    classes = [Controllers]
    if version() > TREES:
        Controllers.DRIVER = "tree"
        classes += [Trees, NewestTrees, Pools, Heads, Mooncake, Linker]
    else:
        Controllers.DRIVER = "controller"
        classes += [Trees] if version() == TREES else []
    return unittest.TestSuite(map(loader.loadTestsFromTestCase, classes))


def main():
    global VERSION, SGLANG
    try:
        VERSION, SGLANG = environment.prepare(sys.argv.pop(1))
    except environment.Missing as why:
        print(f"skipped: {why}")
        return 77
    print("SGLang", VERSION)
    unittest.main()
    return 0


if __name__ == "__main__":
    sys.exit(main())
