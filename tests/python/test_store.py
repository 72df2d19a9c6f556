# SPDX-License-Identifier: Apache-2.0
"""Tests PeerCacheStore with real engines. simulator.py stands in for SGLang."""

import ctypes
import os
import signal
import sys
import threading
import time
import unittest
from types import ModuleType, SimpleNamespace
from unittest import mock

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path[:0] = [os.path.join(ROOT, "tests", "cluster"), os.path.dirname(os.path.abspath(__file__)),
                os.path.join(os.environ.get("PEERCACHE_BUILD", ""), "engine/client/python")]
import harness  # noqa: E402
from simulator import (Controller, CopiedPool, HostPoolGroup, Indices, LayersPool,  # noqa: E402
                       LogicalPool, MambaPoolHost, MHATokenToKVPoolHost, Pool, Tensor, config,
                       content)
from peercache import config as configuration  # noqa: E402
from peercache.pages import Pool as PagesOf, by_turns, differs_by_rank  # noqa: E402
from peercache.store import PeerCacheStore  # noqa: E402

KIB = 1024
DEVICE = os.environ.get("PEERCACHE_DEVICE", "soft")  # see Imported
VERSIONS = [(0, 5, 3), (0, 5, 6), (0, 5, 8), (0, 5, 10), (0, 5, 14), (0, 5, 18), (0, 5, 23)]


def key(number):
    return f"{number:064x}"


def keys_of(first, count):
    return [key(first + i) for i in range(count)]


class StoreTest(harness.ClusterTest):
    """Base class: two engines for all tests of a class, and stores attached to either of them."""

    engines = None
    keeper = False
    # number of the first key of a test; tests and runs share no keys
    first = int.from_bytes(os.urandom(4), "little") << 20

    @classmethod
    def setUpClass(cls):
        cls.engines = harness.cluster.Cluster(
            harness.BUILD, 2, pool_bytes="256MiB", device=DEVICE, keeper=cls.keeper,
            settings=harness.patient(["engine.unsealed_memory=yes"])).start()

    @classmethod
    def tearDownClass(cls):
        assert cls.engines.stop(), "an engine did not stop with status 0"

    def setUp(self):
        StoreTest.first += 100000

    def store(self, node, pool=None, version=(0, 5, 18), extra=None, **fields):
        """A store at the engine of `node` with `pool` as the KV pool, as SGLang `version` makes it.

        fields: of SGLang's HiCacheStorageConfig.
        """
        given = {"backend_name": "peercache", "engine_socket": self.engines.sockets[node],
                 "engine_start": False, "interface_v1": 1, "timeout_ms": 20000, **(extra or {})}
        store = PeerCacheStore(config(version, given, **fields), {})
        self.addCleanup(store.close)
        if pool is not None:
            store.register_mem_pool_host(pool)
            if version >= (0, 5, 10):
                store.register_mem_host_pool_v2(pool, "kv")
        return store

    def controller(self, store, pool, v1=True):
        controller = Controller(store, pool, v1)
        self.addCleanup(controller.close)
        return controller

    def filled(self, pool, count):
        """Writes the contents of this test's first `count` keys into the pool; returns the pool."""
        for page in range(count):
            pool.write(page, content(self.first + page, pool.page_bytes()))
        return pool

    def same(self, pool, count, offset=0):
        """True if the pool's first `count` pages have the contents of this test's keys."""
        return [page for page in range(count)
                if pool.read(page) != content(self.first + offset + page, pool.page_bytes())] == []

    def round_trip(self, make, count=200, v1=True, **options):
        """Stores pages at one engine, then finds and reads them through the other one.

        Compares every byte. make() returns a pool. Returns the reading store's counts.
        """
        here, there = self.filled(make(), count), make()
        writer = self.controller(self.store(0, here, **options), here, v1)
        store = self.store(1, there, **options)
        reader = self.controller(store, there, v1)
        keys, pages = keys_of(self.first, count), list(range(count))
        self.assertEqual(reader.do("exists", keys), 0)
        self.assertEqual(writer.do("set", keys, pages), count)
        self.assertEqual(reader.do("exists", keys + [key(self.first + count)]), count)
        self.assertEqual(reader.do("get", keys, pages), count)
        self.assertTrue(self.same(there, count))
        self.assertTrue(writer.alive() and reader.alive())
        self.assertEqual(store.counts()["errors"], {})
        return store.counts()


@unittest.skipUnless(DEVICE == "mlx5", "a child of Shapes runs it")
class Imported(StoreTest):
    keeper = True

    def test_memory_is_registered_again_with_the_next_engine(self):
        count, shape = 64, dict(segments=[20480, 20480])
        here, there = self.filled(Pool(256, **shape), count), Pool(256, **shape)
        writer = self.controller(self.store(0, here), here)
        store = self.store(1, there)
        reader = self.controller(store, there)
        keys, pages = keys_of(self.first, count), list(range(count))
        self.assertEqual(writer.do("set", keys, pages), count)
        self.assertEqual(reader.do("get", keys, pages), count)
        for page in pages:
            there.write(page, bytes(there.page_bytes()))
        self.engines.crash(1)
        harness.wait_for(lambda: reader.do("get", keys, pages) == count, 60, "all are read again")
        self.assertTrue(self.same(there, count))
        harness.wait_for(lambda: self.engines.figure(1, "client_extents") == 2, 60,
                         "both buffers are registered again")
        staged = store.counts()["bytes_staged"]
        self.assertEqual(reader.do("get", keys, pages), count)
        self.assertEqual(store.counts()["bytes_staged"], staged)


class Shapes(StoreTest):
    def test_pages_of_every_pool_and_layout_are_read_back_unchanged(self):
        shapes = {
            "MHA page_first": dict(segments=[20480, 20480], layout="page_first"),
            "MHA page_first_direct": dict(segments=[24064, 24064], layout="page_first_direct"),
            "MHA page_head": dict(segments=[4096, 4096], layout="page_head", page_size=4),
            "MHA layer_first": dict(segments=[512, 512] * 30, layout="layer_first"),
            "MHA layer_first, 160 layers": dict(segments=[64, 64] * 160, layout="layer_first"),
            "MLA page_first": dict(segments=[70272], layout="page_first"),
            "MLA layer_first": dict(segments=[1152] * 61, layout="layer_first"),
            "Mamba": dict(segments=[65536, 3 * 4100, 12], layout="layer_first"),
            "one byte": dict(segments=[1]),
            "page 64": dict(segments=[1310720], page_size=64, layout="page_first"),
        }
        for name, shape in shapes.items():
            count = 8 if shape["segments"][0] > 1 << 20 else 140
            for shm in (False, True):
                with self.subTest(name, shm=shm):
                    self.first += 1000
                    with self.assertLogs("peercache", "INFO") as logs:
                        counts = self.round_trip(lambda: Pool(256, shm=shm, **shape), count)
                    self.assertEqual(counts["hits_remote"], count)
                    way = "shm" if shm else "verbs" if DEVICE == "mlx5" else "copy"
                    self.assertEqual(counts["bytes_staged"] == 0, way != "copy")
                    self.assertEqual(counts["memory"][way], 1)
                    if way == "verbs":
                        self.assertIn("pool kv: verbs (no copies)", "\n".join(logs.output))
                self.doCleanups()  # closes the stores: open sessions share the engine's limits

    @unittest.skipIf(DEVICE == "mlx5" or harness.SLOW > 1, "it is the child of this test")
    def test_pools_of_ordinary_memory_are_registered_with_the_nics(self):
        name = "test_pages_of_every_pool_and_layout_are_read_back_unchanged"
        mlx5 = harness.cluster.Cluster(harness.BUILD, device="mlx5")
        done = harness.run([*mlx5.before, sys.executable, __file__, "Shapes." + name, "Imported"],
                           120, capture_output=True, text=True,
                           env={**os.environ, "PEERCACHE_DEVICE": "mlx5"})
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def rail_counters(self):
        return self.engines.status(1)["rails"][0]["counters"]

    def test_pages_that_list_k_and_v_by_turns_are_read_in_runs(self):
        for layers, nbytes in ((30, 512), (94, 256)):
            with self.subTest(layers=layers):
                self.first += 1000
                before = self.rail_counters()
                counts = self.round_trip(lambda: LayersPool(256, layers, nbytes, shm=True), 140)
                self.assertEqual(counts["bytes_staged"], 0)
                after = self.rail_counters()
                self.assertEqual(after["pages_read"] - before["pages_read"], 140)
                self.assertLess(after["ops_taken"] - before["ops_taken"], 100)
            self.doCleanups()

    def test_only_pools_that_list_k_and_v_by_turns_are_stored_in_another_order(self):
        tags = configuration.read({}).tags
        for pool in (LayersPool(8, 30, 512, shm=False), Pool(8, [512, 512] * 30),
                     Pool(8, [512] * 60, layout="layer_first"),
                     MHATokenToKVPoolHost(8, [512, 512], layout="page_first")):
            indices = pool.indices([5, 2])
            given, sizes = pool.get_page_buffer_meta(indices)
            pages = PagesOf(pool, "kv", config((0, 5, 18), {}), tags)
            [(space, ptrs, lengths)] = pages.batches(["a", "b"], indices)
            moved = isinstance(pool, LayersPool)
            self.assertEqual("order=" in space, moved)
            self.assertNotIn("order=", pages.flat)
            self.assertEqual(ptrs == given, not moved)
            self.assertEqual((sorted(ptrs), lengths), (sorted(given), sizes))
            if moved:
                for page in (ptrs[:60], ptrs[60:]):
                    self.assertEqual({b - a for a, b in zip(page, page[1:])}, {8 * 512})
                self.assertEqual((ptrs[0], ptrs[60]), (given[0], given[60]))

    def test_the_generic_calls_move_tensors_outside_of_the_pools(self):
        for version in VERSIONS:
            with self.subTest(version=version):
                self.first += 1000
                self.round_trip(lambda: Pool(200, [4096, 4096]), v1=False, version=version,
                                extra={"interface_v1": 0})

    def test_pages_are_moved_with_the_config_of_every_sglang_version(self):
        for version in VERSIONS:
            with self.subTest(version=version):
                self.first += 1000
                self.round_trip(lambda: Pool(200, [4096, 4096]), version=version)

    def test_a_pool_with_some_registered_buffers_is_reported_as_mixed(self):
        counts = self.round_trip(lambda: Pool(200, [8192, 8192], buffers=[True, False]))
        self.assertEqual(counts["memory"]["mixed"], 1)
        self.assertEqual(counts["paths"], {"kv": "mixed"})

    def test_mla_is_written_by_one_rank_and_read_by_all(self):
        pools = [self.filled(Pool(10, [4096]), 10), Pool(10, [4096])]
        stores = [self.store(rank, pools[rank], is_mla_model=True, tp_rank=rank, tp_size=2)
                  for rank in range(2)]
        keys = keys_of(self.first, 10)
        self.assertEqual(stores[0].batch_set_v1(keys, pools[0].indices(range(10))), [True] * 10)
        self.assertEqual(stores[1].batch_get_v1(keys, pools[1].indices(range(10))), [True] * 10)
        self.assertTrue(self.same(pools[1], 10))

    def test_a_page_of_which_a_share_of_the_heads_is_missing_is_a_miss(self):
        keys, pages = keys_of(self.first, 4), range(4)
        half = Pool(4, [4096, 4096], layout="page_head")
        whole = Pool(4, [8192, 8192], layout="page_head")
        store = self.store(1, whole, tp_lcm_size=2, should_split_heads=True)
        for rank in (1, 0):  # of the first page both ranks store their share
            self.assertEqual(store.batch_exists(keys), 0)
            self.assertEqual(store.batch_get_v1(keys, whole.indices(pages)), [False] * 4)
            some = keys[:1] if rank == 0 else keys
            self.assertEqual(self.store(0, half, tp_rank=rank, tp_size=2, tp_lcm_size=2)
                             .batch_set_v1(some, half.indices(range(len(some)))),
                             [True] * len(some))
        self.assertEqual(store.batch_exists(keys), 1)
        self.assertEqual(store._there(store._pools["kv"], keys), [True] + [False] * 3)
        self.assertEqual(store.batch_get_v1(keys, whole.indices(pages)), [True] + [False] * 3)

    def test_split_heads_are_read_by_another_tensor_parallel_size(self):
        keys, count = keys_of(self.first, 20), 20
        whole = self.filled(Pool(count, [8192, 8192], layout="page_head"), count)
        one = self.store(0, whole, tp_lcm_size=2, should_split_heads=True)
        self.assertEqual(one.batch_set_v1(keys, whole.indices(range(count))), [True] * count)
        for rank in range(2):
            half = Pool(count, [4096, 4096], layout="page_head")
            store = self.store(1, half, tp_rank=rank, tp_size=2, tp_lcm_size=2)
            self.assertEqual(store.batch_exists(keys), count)
            self.assertEqual(store.batch_get_v1(keys, half.indices(range(count))), [True] * count)
            for page in range(count):
                data = content(self.first + page, 16384)
                at = rank * 4096
                self.assertEqual(half.read(page), data[at:at + 4096] + data[8192 + at:12288 + at])
        back = Pool(count, [8192, 8192], layout="page_head")
        store = self.store(1, back, tp_lcm_size=2, should_split_heads=True)
        self.assertEqual(store.batch_get_v1(keys, back.indices(range(count))), [True] * count)
        self.assertTrue(self.same(back, count))


class Namespaces(StoreTest):
    def test_all_that_the_page_hash_does_not_cover_is_in_the_namespace(self):
        base = dict(segments=[4096, 4096], layout="page_first", dtype="bf16")
        pool = self.filled(Pool(4, **base), 4)
        keys = keys_of(self.first, 4)
        self.assertTrue(all(self.store(0, pool).batch_set_v1(keys, pool.indices(range(4)))))
        self.assertEqual(self.store(1, Pool(4, **base)).batch_exists(keys), 4)
        others = [
            (dict(base, dtype="fp8"), {}), (dict(base, layout="page_first_direct"), {}),
            (dict(base, segments=[2048] * 4), {}), (dict(base, segments=[4096, 4095]), {}),
            (dict(base, page_size=2), {}), (base, {"model_name": "other"}),
            (base, {"tp_rank": 1, "tp_size": 2}), (base, {"tp_size": 2}), (base, {"pp_size": 2}),
            (base, {"attn_cp_size": 2}),
            (base, {"version": (0, 5, 23), "dcp_rank": 1, "dcp_size": 2, "tp_size": 1,
                    "logical_page_size": 2}),
            (base, {"extra": {"extra_backend_tag": "tenant"}}),
            (base, {"extra": {"prefix": "tenant"}}), (base, {"extra": {"interface_v1": 0}}),
        ]
        for shape, fields in others:
            with self.subTest(shape=shape, fields=fields):
                self.assertEqual(self.store(1, Pool(4, **shape), **fields).batch_exists(keys), 0)

    def test_what_one_size_alone_does_not_tell_is_in_the_namespace(self):
        """Each pair has pages of one length, but not of one content."""
        def spaces(shape=None, tag=None, **fields):
            pool = Pool(1, [4096 // fields.get("tp_size", 1)], **(shape or {}))
            pool.storage_format_tag = tag
            return PagesOf(pool, "kv", config((0, 5, 23), {}, **fields), ("", "")).spaces
        part = {"dcp_size": 2, "logical_page_size": 2, "is_mla_model": True}
        for one, other in (({}, {"tag": "packed"}), (part, {**part, "logical_page_size": 4})):
            self.assertNotEqual(spaces(**one), spaces(**other))
        self.assertIn("|dcp_tp=2", spaces(**part, tp_size=2)[0])  # all else is equal: MLA
        heads = {"shape": {"layout": "page_head"}, "tp_lcm_size": 4, "should_split_heads": True}
        whole = spaces(**heads)  # one rank has the four shares that two ranks have, in order
        self.assertEqual(len(set(whole)), 4)
        self.assertEqual(whole, spaces(**heads, tp_size=2) + spaces(**heads, tp_size=2, tp_rank=1))

    def test_classes_of_pools_decide_about_ranks_and_turns(self):
        def pool(name, layout="layer_first"):
            return type(name, (), {"layout": layout})()
        for name, other, differs in (("MambaPoolHost", "states", True), ("Any", "mamba", True),
                                     ("MHATokenToKVPoolHost", "draft", True), ("Any", "kv", False)):
            self.assertEqual(differs_by_rank(pool(name), other), differs, name)
        for name, layout, segments, turns in (
                ("MHATokenToKVPoolHost", "layer_first", 4, True),
                ("MHATokenToKVPoolHost", "layer_first", 3, False),
                ("MHATokenToKVPoolHost", "page_first", 4, False),
                ("MHATokenToOtherHost", "layer_first", 4, False)):
            self.assertEqual(by_turns(pool(name, layout), segments), turns, name)

    def test_each_page_has_as_many_indices_as_tokens(self):
        pages = PagesOf(Pool(4, [4096], page_size=2), "kv", config((0, 5, 23), {}), ("", ""))
        self.assertEqual(len(pages.batches(["a", "b"], Indices(range(4)))), 1)
        for wrong in (3, 5):
            with self.assertRaises(ValueError):
                pages.batches(["a", "b"], Indices(range(wrong)))

    def test_pipeline_stages_share_no_pages(self):
        """Two stages have pages of one size, and an SGLang before 0.5.8 names no stage."""
        first, second = (dict(segments=[4096, 4096], start_layer=layer) for layer in (0, 16))
        for version in VERSIONS:
            with self.subTest(version=version):
                self.first += 1000
                pool, keys = self.filled(Pool(4, **first), 4), keys_of(self.first, 4)
                tensors = [Tensor(pool.read(page)) for page in range(4)]
                store = self.store(0, pool, version)
                self.assertTrue(all(store.batch_set_v1(keys, pool.indices(range(4)))))
                self.assertTrue(store.batch_set(keys, tensors))
                there = self.store(1, Pool(4, **second), version)
                self.assertEqual(there.batch_exists(keys), 0)
                self.assertEqual(there.batch_get(keys, tensors), [None] * 4)
                self.assertEqual(self.store(1, Pool(4, **first), version).batch_exists(keys), 4)
                self.doCleanups()

    def test_data_types_that_are_stored_as_bytes_share_no_pages(self):
        """A host pool has the type in which its elements are stored: uint8 for all of 8 bits."""
        types = ["float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float4_e2m1fn_x2"]
        pools = [self.filled(Pool(4, [4096], dtype="torch.uint8", device_dtype="torch." + name), 4)
                 for name in types]
        for number, (name, pool) in enumerate(zip(types, pools)):
            keys = keys_of(self.first, 4)
            store = self.store(number % 2, pool)
            self.assertEqual(store.batch_exists(keys), 0, name)
            tensors = [Tensor(bytes(4096)) for _ in keys]
            self.assertEqual(store.batch_get(keys, tensors), [None] * 4, name)
            self.assertTrue(all(store.batch_set_v1(keys, pool.indices(range(4)))))
            self.assertTrue(store.batch_set(keys, tensors))

    def test_the_data_type_of_a_pool_without_its_device_pool_is_sglangs_setting(self):
        """From 0.5.19 on a host pool does not know its device pool."""
        def key_of(setting=None, hip=None, draft=None, name="kv", **pool):
            """The namespace of a pool. hip: SGLang's type of 8 bits on an AMD GPU."""
            made = {name: ModuleType(name) for name in (
                "sglang", "sglang.srt", "sglang.srt.runtime_context", "sglang.srt.utils",
                "sglang.srt.mem_cache", "sglang.srt.mem_cache.kv_cache_dtype")}
            if setting:
                made["sglang.srt.runtime_context"].get_model = lambda: SimpleNamespace(
                    kv_cache_dtype=setting)
                made["sglang.srt.runtime_context"].get_spec = lambda: SimpleNamespace(
                    speculative_draft_kv_cache_dtype=draft)
            made["sglang.srt.utils"].is_hip = lambda: hip is not None
            made["sglang.srt.mem_cache.kv_cache_dtype"].fp8_dtype = hip
            with mock.patch.dict(sys.modules, made):
                return PagesOf(Pool(1, [4096], **{"dtype": "torch.uint8", **pool}), name,
                               config((0, 5, 23), {}), ("", "")).spaces[0]
        e4m3, e5m2, fnuz = (key_of(device_dtype="torch.float8_" + name)
                            for name in ("e4m3fn", "e5m2", "e4m3fnuz"))
        self.assertEqual(len({e4m3, e5m2, fnuz, key_of()}), 4)
        self.assertEqual(key_of("fp8_e4m3"), e4m3)
        self.assertEqual(key_of("auto"), e4m3)  # of a model whose weights ask for 8 bits
        self.assertEqual(key_of("fp8_e5m2"), e5m2)
        self.assertEqual({key_of(name, "torch.float8_e4m3fnuz")
                          for name in ("auto", "fp8_e4m3", "fp8_e5m2")}, {fnuz})
        self.assertNotIn(key_of("nvfp4"), (e4m3, e5m2, fnuz))
        self.assertEqual(key_of("fp8_e5m2", draft="fp8_e4m3"), e5m2)
        for name in ("nvfp4", "fp4_e2m1"):  # not of 8 bits: no other name on an AMD GPU
            self.assertEqual(key_of(name, "torch.float8_e4m3fnuz"), key_of(name))
        for name in ("draft", "draft_swa", "draft_indexer"):
            drafts = [key_of("fp8_e4m3", draft=draft, name=name)
                      for draft in (None, "fp8_e4m3", "fp8_e5m2")]
            self.assertEqual(drafts[0], drafts[1])
            self.assertNotEqual(drafts[1], drafts[2])
        self.assertEqual(key_of("fp8_e5m2", draft="fp8_e4m3", name="swa"),
                         key_of("fp8_e5m2", name="swa"))
        self.assertEqual(key_of("fp8_e4m3", dtype="torch.bfloat16"),
                         key_of("auto", dtype="torch.bfloat16"))

    def test_a_pool_without_a_first_layer_has_the_partition_in_its_keys(self):
        """States have no start_layer: with other partitions a stage has other layers."""
        def space(partition, size=2):
            with mock.patch.dict(os.environ):
                os.environ.pop("SGLANG_PP_LAYER_PARTITION", None)
                if partition:
                    os.environ["SGLANG_PP_LAYER_PARTITION"] = partition
                given = config((0, 5, 18), {}, pp_rank=0, pp_size=size)
                return PagesOf(Pool(1, [4096]), "mamba", given, ("", "")).spaces[0]
        self.assertEqual(len({space(""), space("10,11,11", 3), space("11,11,10", 3)}), 3)
        self.assertEqual(space("32", 1), space("", 1))

    def test_no_two_pairs_of_prefix_and_tag_share_pages(self):
        """Texts that would be equal if they were joined, trimmed, or not escaped."""
        texts = ["", "a", " a", "team", "team/a", "/", "//", "a|tag=b", "|tag=", "%7c", "|",
                 "a%7ctag=b", "b|pool=kv", "None", "\u00e9", "e\u0301"]
        pairs = [(prefix, tag) for prefix in texts for tag in texts]
        pool, keys = self.filled(Pool(1, [4096]), 1), keys_of(self.first, 1)
        spaces = {}
        for prefix, tag in pairs:
            read = configuration.read({"prefix": prefix, "extra_backend_tag": tag})
            made = PagesOf(pool, "kv", config((0, 5, 18), {}), read.tags)
            for space in (*made.spaces, made.flat):
                self.assertNotIn(space, spaces, f"{prefix, tag} and {spaces.get(space)}")
                spaces[space] = (prefix, tag)
        some = [("team", "a"), ("team/a", ""), ("", "team/a"), ("a", "team"), (" team", "a")]
        stores = [self.store(0, pool, extra={"prefix": prefix, "extra_backend_tag": tag})
                  for prefix, tag in some]
        for number, store in enumerate(stores):
            self.assertEqual(store.batch_exists(keys), 0, some[number])
            self.assertEqual(store.batch_set_v1(keys, pool.indices([0])), [True])

    def test_data_parallel_ranks_share_pages(self):
        pool = self.filled(Pool(4, [4096]), 4)
        keys = keys_of(self.first, 4)
        given = config((0, 5, 18), {"engine_socket": self.engines.sockets[0], "interface_v1": 1,
                                    "engine_start": False})
        given.dp_rank, given.dp_size = 3, 4
        store = PeerCacheStore(given, {})
        self.addCleanup(store.close)
        store.register_mem_pool_host(pool)
        self.assertTrue(all(store.batch_set_v1(keys, pool.indices(range(4)))))
        self.assertEqual(self.store(1, Pool(4, [4096])).batch_exists(keys), 4)

    def test_generic_calls_beside_v1_use_a_namespace_of_their_own(self):
        pool = self.filled(Pool(4, [4096]), 4)
        store = self.store(0, pool)
        keys = keys_of(self.first, 4)
        drafts = [k + ".draft" for k in keys]
        self.assertTrue(all(store.batch_set_v1(keys, pool.indices(range(4)))))
        self.assertTrue(store.batch_set(drafts, [Tensor(content(i, 300)) for i in range(4)]))
        self.assertEqual(store.batch_exists(keys), 4)
        got = self.store(1, pool).batch_get(drafts, [Tensor(bytes(300)) for _ in drafts])
        self.assertEqual([t.bytes() for t in got], [content(i, 300) for i in range(4)])
        self.assertEqual(self.store(1, Pool(4, [4096])).batch_exists(keys), 4)


class Hybrid(StoreTest):
    def transfer(self, name, keys, indices=None, policy="all_pages"):
        return SimpleNamespace(name=SimpleNamespace(value=name), keys=keys, host_indices=indices,
                               hit_policy=SimpleNamespace(value=policy))

    def test_the_hit_of_several_pools_is_the_prefix_that_all_of_them_have(self):
        kv, mamba, swa = Pool(10, [4096, 4096]), Pool(10, [30000, 12]), Pool(10, [512])
        pools = {"kv": kv, "mamba": mamba, "swa": swa}
        for pool in pools.values():
            self.filled(pool, 10)
        store, keys = self.store(0, kv), keys_of(self.first, 10)
        for name in ("mamba", "swa"):
            store.register_mem_host_pool_v2(pools[name], SimpleNamespace(value=name))
        stored = {"kv": range(8), "mamba": (4, 5), "swa": range(7)}
        for name, pages in stored.items():
            some = [keys[p] for p in pages]
            self.assertEqual(store.batch_set_v2(
                [self.transfer(name, some, pools[name].indices(pages))]),
                {name: [True] * len(some)})

        def hit(*transfers):
            result = store.batch_exists_v2(keys, list(transfers), None)
            return result.kv_hit_pages, result.extra_pool_hit_pages

        self.assertEqual(hit(), (8, {"kv": 8}))
        self.assertEqual(hit(self.transfer("swa", None)), (7, {"kv": 8, "swa": 7}))
        one = self.transfer("mamba", [keys[0]], policy="trailing_pages")
        two = self.transfer("mamba", keys[:2], policy="trailing_pages")
        self.assertEqual(hit(one)[0], 6)
        self.assertEqual(hit(two)[0], 6)
        self.assertEqual(hit(one, self.transfer("swa", None))[0], 6)
        self.assertEqual(hit(self.transfer("swa", None), one)[0], 6)
        three = self.transfer("mamba", keys[:3], policy="trailing_pages")
        self.assertEqual(hit(three), (0, {"kv": 8}))
        got = Pool(10, [30000, 12])
        reader = self.store(1, Pool(10, [4096, 4096]))
        reader.register_mem_host_pool_v2(got, "mamba")
        self.assertEqual(reader.batch_get_v2(
            [self.transfer("mamba", [keys[4], keys[9], keys[5]], got.indices([1, 2, 3])),
             self.transfer("unknown", keys[:2], None)]),
            {"mamba": [True, False, True], "unknown": [False, False]}, reader.counts())
        self.assertEqual(got.read(1), mamba.read(4))
        self.assertEqual(got.read(3), mamba.read(5))

    def test_each_call_uses_all_of_the_head_that_it_names(self):
        """What is wrong with the head changes no result."""
        pool = self.filled(Pool(12, [4096]), 12)
        store, keys = self.store(0, pool), keys_of(self.first, 12)
        self.assertTrue(all(store.batch_set_v1(keys, pool.indices(range(12)))))
        head, tail, places = keys[:8], keys[8:], pool.indices(range(8, 12))
        calls = ((lambda info: store.batch_set_v1(tail, places, info), [True] * 4),
                 (lambda info: store.batch_exists(tail, info), 4),
                 (lambda info: store.batch_set_v2([self.transfer("kv", tail, places)], info),
                  {"kv": [True] * 4}),
                 (lambda info: store.batch_exists_v2(tail, None, info).kv_hit_pages, 4))
        for call, want in calls:
            with mock.patch.object(store, "_there", wraps=store._there) as there:
                self.assertEqual(call(SimpleNamespace(prefix_keys=None)), want)
                self.assertEqual(call(SimpleNamespace(prefix_keys=head)), want)
            self.assertEqual([args[1] for args, _ in there.call_args_list], [head])
            for wrong in (7, [None]):
                self.assertEqual(call(SimpleNamespace(prefix_keys=wrong)), want)
        self.assertEqual(store.counts()["errors"], {"look-up of a prefix": 8})
        for result, gap in ((0, False), (1, True), (2, True), (3, False), (4, False)):
            with mock.patch.object(store, "_session") as session:
                session.exists.side_effect = lambda _, asked, *more: [0] * 7 + [result]
                session.set.side_effect = lambda _, asked, *more: [True] * len(asked)
                store.batch_set_v1(tail, places, SimpleNamespace(prefix_keys=head))
            self.assertEqual({call[0][7] for call in session.set.call_args_list}, {gap}, result)

    def test_without_a_head_a_set_follows_what_its_thread_has_looked_up(self):
        """Once, and if some of that is stored."""
        store, keys = self.store(0, self.filled(Pool(12, [4096]), 12)), keys_of(self.first, 12)
        places = store._pools["kv"].pool.indices(range(8, 12))

        def heads(there, *calls):
            with mock.patch.object(store, "_session") as session, \
                    mock.patch.object(store, "_there", return_value=there) as asked:
                session.prefix.return_value = 0
                session.set.side_effect = lambda _, keys, *more: [True] * len(keys)
                for call, *args in calls:
                    call(*args)
                return ([args[1] for args, _ in asked.call_args_list],
                        [call[0][7] for call in session.set.call_args_list])

        follow = (store.batch_set_v1, keys[8:], places)
        named = SimpleNamespace(prefix_keys=keys[:4])
        look, look_v2 = (store.batch_exists, keys[:8]), (store.batch_exists_v2, keys[:8], [])
        whole = (store.batch_exists, keys)
        for there, gap in (([True] * 8, False), ([True, False], True), ([False, True], False)):
            for first in look, look_v2, whole:
                self.assertEqual(heads(there, first, follow, follow), ([keys[:8]], [gap, False]))
        self.assertEqual(heads([True, False], look, follow + (named,), follow),
                         ([keys[:4]], [True, False]))
        self.assertEqual(heads([True], (store.batch_exists, keys[4:], named), follow),
                         ([keys[:4], keys[:8]], [False]))
        thread = threading.Thread(target=lambda: store.batch_exists(keys[:8]))
        thread.start()
        thread.join()
        self.assertEqual(heads([True], follow), ([], [False]))

    def test_all_restorable_prefix_lengths_are_returned(self):
        """SGLang's ranks agree on a length that each can restore. It may be no rank's longest."""
        kv, mamba = Pool(10, [4096]), Pool(10, [3000])
        store, keys = self.store(0, self.filled(kv, 10)), keys_of(self.first, 10)
        store.register_mem_host_pool_v2(self.filled(mamba, 10), "mamba")
        self.assertTrue(all(store.batch_set_v1(keys[:9], kv.indices(range(9)))))
        there = [1, 4, 5, 8]
        self.assertEqual(store.batch_set_v2([self.transfer(
            "mamba", [keys[p] for p in there], mamba.indices(there))]), {"mamba": [True] * 4})

        def restorable(window):
            result = store.batch_exists_v2(
                keys, [self.transfer("mamba", keys[:window], policy="trailing_pages")], None)
            self.assertEqual(result.kv_hit_pages, max(result.restorable_prefix_pages, default=0))
            return result.restorable_prefix_pages

        self.assertEqual(restorable(1), [2, 5, 6, 9])
        self.assertEqual(restorable(2), [6])
        self.assertEqual(restorable(3), [])
        self.assertEqual(store.batch_exists_v2(keys, [], None).restorable_prefix_pages,
                         list(range(1, 10)))

    def test_block_groups_are_reported_and_limit_no_prefix(self):
        kv, side = Pool(12, [4096]), Pool(12, [512])
        store, keys = self.store(0, self.filled(kv, 12)), keys_of(self.first, 12)
        store.register_mem_host_pool_v2(self.filled(side, 12), "auxiliary_swa")
        self.assertTrue(all(store.batch_set_v1(keys[:8], kv.indices(range(8)))))
        groups = keys_of(self.first + 100, 6)  # a group of two keys per block of four pages
        self.assertEqual(store.batch_set_v2([self.transfer(
            "auxiliary_swa", groups[:3], side.indices(range(3)))]),
            {"auxiliary_swa": [True] * 3})

        def verdict(some, block, group):
            transfer = self.transfer("auxiliary_swa", some, policy="block_groups")
            transfer.block_pages, transfer.group_pages = block, group
            result = store.batch_exists_v2(keys, [transfer], None)
            self.assertEqual(result.kv_hit_pages, 8)
            self.assertEqual(result.restorable_prefix_pages, list(range(1, 9)))
            return result.extra_pool_hit_pages.get("auxiliary_swa")

        self.assertEqual(verdict(groups, 4, 2), 4)  # the second group is incomplete
        self.assertEqual(verdict(groups, 4, 1), 12)
        self.assertEqual(verdict(groups, 400, 1), 12)  # at most the number of keys of the call
        self.assertIsNone(verdict(groups[3:], 4, 2))
        for unusable in (groups, 0, 0), (groups, 4, 0), (None, 4, 2):
            self.assertIsNone(verdict(*unusable))
        self.assertEqual(store.counts()["errors"], {})

    def test_an_unknown_hit_policy_causes_misses_and_one_warning(self):
        kv, side = Pool(4, [4096]), Pool(4, [512])
        store, keys = self.store(0, self.filled(kv, 4)), keys_of(self.first, 4)
        store.register_mem_host_pool_v2(self.filled(side, 4), "later")
        self.assertTrue(all(store.batch_set_v1(keys, kv.indices(range(4)))))
        transfer = self.transfer("later", keys, side.indices(range(4)), policy="every_other_page")
        self.assertEqual(store.batch_set_v2([transfer]), {"later": [True] * 4})
        with self.assertLogs("peercache", "WARNING") as logged:
            for _ in range(3):
                result = store.batch_exists_v2(keys, [transfer], None)
                self.assertEqual((result.kv_hit_pages, result.extra_pool_hit_pages,
                                  result.restorable_prefix_pages), (0, {"kv": 4}, []))
        self.assertEqual([line for line in logged.output if "every_other_page" in line],
                         logged.output)
        self.assertEqual(len(logged.output), 1)
        self.assertEqual(store.counts()["errors"], {})

    def test_states_and_heads_of_an_mla_model_are_stored_per_rank(self):
        """MLA pages are equal on all ranks; Mamba states and drafts split by heads are not."""
        for name, kind in (("mamba", MambaPoolHost), ("draft", MHATokenToKVPoolHost)):
            with self.subTest(name):
                self.first += 1000
                keys, stores, pools = keys_of(self.first, 4), [], []
                for rank in range(2):
                    stores.append(self.store(0, Pool(4, [64]), is_mla_model=True, tp_rank=rank,
                                             tp_size=2))
                    pools.append(kind(8, [3000]))
                    for page in range(4):
                        pools[rank].write(page, content(1000 * rank + page, 3000))
                    stores[rank].register_mem_host_pool_v2(pools[rank], name)
                self.assertEqual(stores[0].batch_set_v2([self.transfer(
                    name, keys, pools[0].indices(range(4)))]), {name: [True] * 4})
                back = pools[1].indices(range(4, 8))
                # Rank 1 misses the pages of rank 0, and finds its own after storing them.
                self.assertEqual(stores[1].batch_get_v2([self.transfer(name, keys, back)]),
                                 {name: [False] * 4})
                self.assertEqual(stores[1].batch_set_v2([self.transfer(
                    name, keys, pools[1].indices(range(4)))]), {name: [True] * 4})
                for rank in range(2):
                    self.assertEqual(stores[rank].batch_get_v2([self.transfer(name, keys, back)]),
                                     {name: [True] * 4})
                    for page in range(4):
                        self.assertEqual(pools[rank].read(4 + page), pools[rank].read(page))

    def test_a_group_of_pools_registers_its_anchor_and_its_side_pools(self):
        kv, side, keys = Pool(4, [4096]), Pool(4, [512]), keys_of(self.first, 4)
        store = self.store(0, HostPoolGroup(self.filled(kv, 4), indexer=self.filled(side, 4)))
        store.on_host_pools_registered()
        self.assertTrue(all(store.batch_set_v1(keys, kv.indices(range(4)))))
        self.assertEqual(store.batch_set_v2([self.transfer("indexer", keys,
                                                           side.indices(range(4)))]),
                         {"indexer": [True] * 4})
        # The other store registers the pools one by one, as later versions of SGLang do, and
        # finds the same pages.
        reader = self.store(1, Pool(4, [4096]))
        there = Pool(4, [512])
        reader.register_mem_host_pool_v2(there, "indexer")
        result = reader.batch_exists_v2(keys, [self.transfer("indexer", None)], None)
        self.assertEqual(result.extra_pool_hit_pages, {"kv": 4, "indexer": 4})
        self.assertEqual(reader.batch_get_v2([self.transfer("indexer", keys,
                                                            there.indices(range(4)))]),
                         {"indexer": [True] * 4})
        self.assertTrue(self.same(there, 4))

    def test_batch_exists_v2_finds_kv_pages_of_the_generic_calls(self):
        pool, side = self.filled(Pool(4, [4096]), 4), self.filled(Pool(4, [512]), 4)
        store, keys = self.store(0, pool, extra={"interface_v1": 0}), keys_of(self.first, 4)
        store.register_mem_host_pool_v2(side, "indexer")
        self.assertTrue(store.batch_set(keys, [Tensor(pool.read(page)) for page in range(4)]))
        transfer = self.transfer("indexer", keys, side.indices(range(4)))
        self.assertEqual(store.batch_set_v2([transfer]), {"indexer": [True] * 4})
        self.assertEqual(store.batch_exists_v2(keys, [transfer], None).kv_hit_pages, 4)

    def test_pages_of_a_pool_without_addresses_are_copied_one_by_one(self):
        """SGLang's own code copies these pages, for example Mamba states of layer_first pools."""
        kv, keys = self.filled(Pool(4, [4096]), 4), keys_of(self.first, 4)
        stores = [self.store(node, kv) for node in range(2)]
        pools = [CopiedPool(6, [3000, 12], page_size=2) for _ in range(2)]
        self.filled(pools[0], 4)
        for store, pool in zip(stores, pools):
            store.register_mem_host_pool_v2(pool, "mamba")
        self.assertTrue(all(stores[0].batch_set_v1(keys, kv.indices(range(4)))))
        trailing = self.transfer("mamba", keys[:1], policy="trailing_pages")
        self.assertEqual(stores[1].batch_exists_v2(keys, [trailing], None).kv_hit_pages, 0)
        self.assertEqual(stores[0].batch_set_v2([self.transfer(
            "mamba", keys[:3], pools[0].indices(range(3)))]), {"mamba": [True] * 3})
        self.assertEqual(stores[1].batch_exists_v2(keys, [trailing], None)
                         .restorable_prefix_pages, [1, 2, 3])
        pools[1].write(4, b"x" * 3012)
        self.assertEqual(stores[1].batch_get_v2([self.transfer(
            "mamba", keys, pools[1].indices([2, 1, 0, 4]))]),
            {"mamba": [True, True, True, False]})
        for page, at in enumerate([2, 1, 0]):
            self.assertEqual(pools[1].read(at), pools[0].read(page))
        self.assertEqual(pools[1].read(4), b"x" * 3012)  # nothing is written after a miss
        self.assertEqual([store.counts()["errors"] for store in stores], [{}, {}])

    def test_pages_of_a_pool_without_page_methods_are_misses(self):
        pool, keys = self.filled(Pool(4, [4096]), 4), keys_of(self.first, 4)
        store = self.store(0, pool)
        store.register_mem_host_pool_v2(SimpleNamespace(kv_buffer=object(), page_size=1), "swa")
        self.assertTrue(all(store.batch_set_v1(keys, pool.indices(range(4)))))
        self.assertEqual(store.batch_set_v2([self.transfer("swa", keys, Indices(range(4)))]),
                         {"swa": [False] * 4})
        for policy in "all_pages", "trailing_pages":
            self.assertEqual(store.batch_exists_v2(
                keys, [self.transfer("swa", keys[:1], policy=policy)], None).kv_hit_pages, 0)

    def test_a_get_writes_only_the_hits_of_a_side_pool_from_staged_memory(self):
        """SGLang may reuse pages of a side pool during the call, so the engine must not write them.

        The store copies the hits at the end of the call, and leaves the pages of misses unchanged.
        """
        pool = Pool(200, [30000], shm=True)
        store = self.store(0, Pool(4, [64]))
        store.register_mem_host_pool_v2(self.filled(pool, 100), "mamba")
        keys = keys_of(self.first, 100)
        self.assertEqual(store.batch_set_v2([self.transfer(
            "mamba", keys, pool.indices(range(100)))]), {"mamba": [True] * 100})
        reader = self.store(1, Pool(4, [64]))
        there = Pool(200, [30000], shm=True)
        reader.register_mem_host_pool_v2(there, "mamba")
        for page in range(200):
            there.write(page, content(7, 30000))
        got = reader.batch_get_v2([self.transfer("mamba", keys + keys_of(self.first + 100, 100),
                                                 there.indices(range(200)))])
        self.assertEqual(got, {"mamba": [True] * 100 + [False] * 100})
        self.assertTrue(self.same(there, 100))
        self.assertTrue(all(there.read(p) == content(7, 30000) for p in range(100, 200)))
        self.assertEqual(reader.counts()["hits_remote"], 100)
        # All pages of both calls went through staged memory.
        self.assertEqual(reader.counts()["bytes_sidecar"], 200 * 30000)
        self.assertEqual(store.counts()["bytes_sidecar"], 100 * 30000)

    def test_an_anchor_without_bytes_hits_every_key_and_moves_nothing(self):
        anchor, keys = LogicalPool(), keys_of(self.first, 6)
        store = self.store(0, anchor)
        self.assertEqual(store.batch_get_v1(keys, anchor.indices(range(6))), [True] * 6)
        self.assertEqual(store.batch_set_v1(keys, anchor.indices(range(6))), [True] * 6)
        self.assertEqual(store.batch_exists_v2(keys, [], None).kv_hit_pages, 6)
        empty = [Tensor(b"") for _ in keys]
        self.assertTrue(store.batch_set(keys, empty))
        self.assertEqual(store.batch_get(keys, empty), empty)
        pool = self.filled(Pool(6, [4096]), 6)
        store.register_mem_host_pool_v2(pool, "deepseek_v4_c4")
        self.assertEqual(store.batch_exists_v2(
            keys, [self.transfer("deepseek_v4_c4", None)], None).kv_hit_pages, 0)
        self.assertEqual(store.batch_set_v2(
            [self.transfer("deepseek_v4_c4", keys[:4], pool.indices(range(4)))]),
            {"deepseek_v4_c4": [True] * 4})
        self.assertEqual(store.batch_exists_v2(
            keys, [self.transfer("deepseek_v4_c4", None)], None).kv_hit_pages, 4)
        self.assertEqual(store.counts()["errors"], {})


class Threads(StoreTest):
    def test_no_call_writes_into_pages_after_it_has_returned(self):
        for shm in (True, False):
            pool = self.filled(Pool(128, [20000, 20000]), 128)
            keys = keys_of(self.first, 128)
            self.assertTrue(all(self.store(0, pool).batch_set_v1(keys, pool.indices(range(128)))))
            there = Pool(128, [20000, 20000], shm=shm)
            store = self.store(1, there)
            for turn in range(40):
                self.assertEqual(sum(store.batch_get_v1(keys, there.indices(range(128)))), 128)
                if turn % 10 == 0:
                    self.assertTrue(self.same(there, 128))
                # The pages belong to another request now: the earlier get must not write them.
                for buffer in there.buffers:
                    ctypes.memset(buffer.base, turn & 0xff, len(buffer.map))
                other = keys_of(self.first + 5000, 128)
                self.assertEqual(sum(store.batch_get_v1(other, there.indices(range(128)))), 0)
                for buffer in there.buffers:
                    self.assertEqual(buffer.map[:], bytes([turn & 0xff]) * len(buffer.map))

    def test_pages_may_change_as_soon_as_a_set_has_returned(self):
        pool, there = Pool(64, [8192]), Pool(64, [8192])
        store, reader = self.store(0, pool), self.store(1, there)
        for turn in range(20):
            keys = keys_of(self.first + 1000 * turn, 64)
            self.filled(pool, 64)
            self.assertTrue(all(store.batch_set_v1(keys, pool.indices(range(64)))))
            ctypes.memset(pool.buffers[0].base, 0xee, 64 * 8192)
            self.assertTrue(all(reader.batch_get_v1(keys, there.indices(range(64)))))
            self.assertTrue(self.same(there, 64))

    def test_clear_during_a_get_disturbs_no_caller(self):
        pool = self.filled(Pool(512, [16384]), 256)
        keys = keys_of(self.first, 256)
        store = self.store(0, pool)
        self.assertTrue(all(store.batch_set_v1(keys, pool.indices(range(256)))))
        there = Pool(512, [16384])
        reader = self.store(1, there)
        wrong = []

        def get(offset):
            for _ in range(30):
                hits = reader.batch_get_v1(keys, there.indices(range(offset, offset + 256)))
                if not all(hits) or any(there.read(offset + p) != pool.read(p)
                                        for p in range(0, 256, 50)):
                    wrong.append(hits)

        callers = [threading.Thread(target=get, args=(offset,)) for offset in (0, 256)]
        for caller in callers:
            caller.start()
        for _ in range(50):
            reader.clear()
            reader.get_stats()
            reader.batch_exists(keys)
        for caller in callers:
            caller.join()
        self.assertEqual(wrong, [])
        self.assertLessEqual(reader.counts()["channels"], 5)

    def test_other_python_threads_run_while_a_call_waits(self):
        """A get of a stopped engine waits until its deadline, without the interpreter's lock."""
        pool = self.filled(Pool(64, [4096]), 64)
        keys = keys_of(self.first, 64)
        self.assertTrue(all(self.store(0, pool).batch_set_v1(keys, pool.indices(range(64)))))
        there = Pool(64, [4096])
        reader = self.store(1, there, extra={"timeout_ms": 6000})
        reader.batch_exists(keys)
        engine = self.engines.process[1]
        try:
            harness.freeze(engine)
            result, turns = [], 0

            def get():
                began, turned = time.monotonic(), turns
                result.append(reader.batch_get_v1(keys, there.indices(range(64))))
                result.extend([time.monotonic() - began, turns - turned])
            caller = threading.Thread(target=get)
            caller.start()
            while caller.is_alive():
                turns += 1
                time.sleep(0.01)
        finally:
            engine.send_signal(signal.SIGCONT)
        self.engines.wait_members(2)
        self.assertEqual(result[0], [False] * 64)
        self.assertGreater(result[1], 5.9)
        # This thread could not have run if the call had held the interpreter's lock.
        self.assertGreater(result[2], 5)


class Failure(StoreTest):
    def test_no_method_raises_for_any_argument(self):
        pool = Pool(4, [4096])
        for store in (self.store(0, pool), self.store(0), self.store(0, object())):
            for bad in (None, [None], [7], ["k"], [b"k", "k"], 5, "k", object(), ["k" * 2000]):
                n = len(bad) if isinstance(bad, (list, str)) else 0
                for indices in (None, [], Indices([0]), pool.indices([0, 1]), 9):
                    for call in (store.batch_get_v1, store.batch_set_v1):
                        got = call(bad, indices, None)
                        self.assertIsInstance(got, list)
                        self.assertEqual(len(got), n)
                self.assertIsInstance(store.batch_exists(bad, None), int)
                self.assertIsInstance(store.batch_get(bad, bad), list)
                self.assertIn(store.batch_set(bad, bad), (True, False))
                self.assertIsNone(store.get(bad, bad))
                self.assertIn(store.set(bad, bad), (True, False))
                self.assertIn(store.exists(bad), (True, False))
                self.assertIsInstance(store.batch_get_v2(bad), dict)
                self.assertIsInstance(store.batch_set_v2(bad), dict)
                self.assertEqual(store.batch_exists_v2(bad, bad).kv_hit_pages, 0)
            store.clear()
            store.get_stats()
            self.assertGreater(sum(store.counts()["errors"].values()), 0)

    def test_a_closed_store_reports_misses_and_may_be_closed_twice(self):
        pool = self.filled(Pool(4, [4096]), 4)
        keys = keys_of(self.first, 4)
        store = self.store(0, pool)
        self.assertTrue(all(store.batch_set_v1(keys, pool.indices(range(4)))))
        store.close()
        store.close()
        self.assertEqual(store.batch_exists(keys), 0)
        self.assertEqual(store.batch_get_v1(keys, pool.indices(range(4))), [False] * 4)
        self.assertEqual(store.batch_set_v1(keys, pool.indices(range(4))), [False] * 4)
        again = self.store(0, pool)
        self.assertEqual(again.batch_exists(keys), 4)

    def test_close_waits_for_running_calls(self):
        pool = self.filled(Pool(256, [65536]), 256)
        keys = keys_of(self.first, 256)
        self.assertTrue(all(self.store(0, pool).batch_set_v1(keys, pool.indices(range(256)))))
        for _ in range(10):
            there = Pool(256, [65536])
            store = self.store(1, there)
            got = []
            caller = threading.Thread(
                target=lambda: got.append(store.batch_get_v1(keys, there.indices(range(256)))))
            caller.start()
            while caller.is_alive() and not store.counts()["calls"]:
                pass  # close() waits only for calls that have begun
            store.close()
            self.assertEqual(store.counts()["hit"], 256)
            caller.join()
            self.assertEqual(got, [[True] * 256])
            self.assertEqual([there.read(page) for page in range(256)],
                             [pool.read(page) for page in range(256)])

    def test_clear_removes_what_all_ranks_and_a_former_process_have_stored_on_this_host(self):
        pool = self.filled(Pool(200, [4096]), 200)
        at, keys = pool.indices(range(200)), keys_of(self.first, 200)

        def stored(node, **fields):
            """A store of which another one, which has closed, has stored the pages."""
            first = self.store(node, pool, **fields)
            self.assertTrue(all(first.batch_set_v1(keys, at)))
            self.assertTrue(first.batch_set(keys, [Tensor(bytes(4096)) for _ in keys]))
            first.close()
            return self.store(node, pool, **fields)
        ranks = [stored(0, tp_rank=rank, tp_size=2, model_name="m") for rank in range(2)]
        others = [stored(0, model_name="n"), stored(0, model_name="m", extra={"prefix": "p"})]
        away = stored(1, model_name="m", tp_size=4)
        for rank in ranks:
            self.assertEqual(rank.batch_exists(keys), 200)
        ranks[1].clear()
        for rank in ranks:
            self.assertEqual(rank.batch_get_v1(keys, at), [False] * 200)
            self.assertEqual(rank.batch_exists(keys), 0)
            targets = [Tensor(bytes(4096)) for _ in keys]
            self.assertEqual(rank.batch_get(keys, targets), [None] * 200)
        for store in (*others, away):
            self.assertEqual(store.batch_get_v1(keys, at), [True] * 200)
        self.assertEqual([set(s.counts()["errors"]) - {"stale"} for s in ranks], [set(), set()])


class Stopped(harness.ClusterTest):
    """A staged call moves 64 MiB at a time; all its batches share one deadline."""

    batches = 8

    def opened(self):
        """An engine, a session with its channels, and a call of many batches: verb, seconds."""
        self.engines = self.start(1, pool_bytes="64MiB")
        self.memory = ctypes.create_string_buffer(1 << 20)
        store = PeerCacheStore(config((0, 5, 18), {
            "engine_socket": self.engines.sockets[0], "engine_start": False}), {})
        self.addCleanup(store.close)
        session = store._session
        keys = keys_of(0, 64 * self.batches)
        pages = [ctypes.addressof(self.memory)] * len(keys)
        for verb in (session.set, session.get):  # opens the channels
            self.assertEqual(verb("ns", ["k"], pages[:1], 1 << 20, 20000, True), [True])
        self.addCleanup(self.signal, signal.SIGCONT)
        return session, lambda verb, seconds: verb("ns", keys, pages, 1 << 20,
                                                   int(seconds * 1000), True)

    def signal(self, number):
        os.kill(self.engines.engine_pid(0), number)

    def test_a_call_of_many_batches_ends_within_its_time_out(self):
        timeout = 0.5
        session, call = self.opened()
        harness.freeze(self.engines.engine_pid(0))
        for verb in (session.set, session.get):
            began = harness.cluster.clock()
            done = call(verb, timeout)
            # a deadline for each batch would be the whole of this
            self.assertLess(harness.cluster.clock() - began, self.batches * timeout * 0.75)
            self.assertEqual(done, [False] * 64 * self.batches)

    def test_a_batch_has_the_time_that_those_before_it_have_left(self):
        """The engine stops before the first batch, goes on until the second, and stops again."""
        self.batches = 32  # they last longer than this thread may have to wait for a processor
        timeout = 9 * harness.SLOW
        session, call = self.opened()
        harness.freeze(self.engines.engine_pid(0))
        before = session.counts()["hit"]
        # in the time of the call's deadline: that of clock() goes slower beside other work
        began, ended = time.monotonic(), []
        thread = threading.Thread(
            target=lambda: ended.append((call(session.set, timeout), time.monotonic())))
        thread.start()
        while time.monotonic() < began + timeout * 0.7:
            time.sleep(0.01)
        self.signal(signal.SIGCONT)
        while thread.is_alive() and session.counts()["hit"] < before + 64:
            time.sleep(0.001)
        harness.freeze(self.engines.engine_pid(0))
        thread.join()
        (done, at), = ended
        self.assertIn(True, done[:64], "the first batch ended in time")
        self.assertFalse(done[-1], "the last did not")
        self.assertLess(at - began, timeout * 1.5)  # with a time-out of its own: 1.7 and more


class Death(harness.ClusterTest):
    def test_a_killed_engine_causes_only_misses_until_it_is_back(self):
        engines = self.start(2, pool_bytes="64MiB",
                             settings=["cluster.heartbeat_ms=50", "cluster.dead_after_ms=2000",
                                       "engine.unsealed_memory=yes"])
        pools = [Pool(200, [4096], shm=True) for _ in range(2)]
        stores, controllers = [], []
        for node, pool in enumerate(pools):
            store = PeerCacheStore(config((0, 5, 18), {
                "engine_socket": engines.sockets[node], "engine_start": False,
                "interface_v1": 1, "timeout_ms": 2000}), {})
            self.addCleanup(store.close)
            store.register_mem_pool_host(pool)
            stores.append(store)
            controllers.append(Controller(store, pool))
            self.addCleanup(controllers[-1].close)
        keys, pages = keys_of(1, 200), list(range(200))
        for page in pages:
            pools[0].write(page, content(page, 4096))
        self.assertEqual(controllers[0].do("set", keys, pages), 200)
        self.assertEqual(controllers[1].do("get", keys, pages), 200)
        # Kill the reader's own engine: every page is a miss at once, and no thread dies.
        engines.kill(1)
        began = harness.clock()
        # The client checks its socket every 10 ms; until it does, it uses cached locations.
        harness.wait_for(lambda: controllers[1].do("exists", keys) == 0, 20, "misses")
        self.assertEqual(controllers[1].do("get", keys, pages), 0)
        self.assertEqual(controllers[1].do("set", keys, pages), 0)
        self.assertLess(harness.clock() - began, 20 * harness.SLOW)
        engines.restart(1)
        harness.wait_for(lambda: controllers[1].do("exists", keys) == 200, 30, "hits come back")
        for page in pages:
            pools[1].write(page, bytes(4096))
        self.assertEqual(controllers[1].do("get", keys, pages), 200)
        self.assertTrue(all(pools[1].read(p) == pools[0].read(p) for p in pages))
        # Kill the engine that holds the pages: they are misses until they are stored again.
        engines.kill(0)
        # The software NIC has the memory of the dead engine mapped until it sees the link break.
        harness.wait_for(lambda: controllers[1].do("get", keys, pages) == 0, 20, "misses")
        engines.restart(0)
        harness.wait_for(lambda: controllers[0].do("set", keys, pages) == 200, 30, "sets work")
        harness.wait_for(lambda: controllers[1].do("get", keys, pages) == 200, 30, "hits again")
        self.assertTrue(all(c.alive() for c in controllers))
        for store in stores:
            counts = store.counts()
            self.assertLessEqual(set(counts["errors"]), {"gone", "unreachable", "stale", "timeout"})
            self.assertTrue(all(counts[name] == n for name, n in counts["errors"].items()))
        self.assertEqual(stores[1].counts()["bytes_staged"], 0)

    def test_pages_found_by_exists_outlive_pages_that_no_call_found(self):
        """Stores more than the pool holds. Pages that batch_exists() found are not evicted."""
        engines = self.start(2, pool_bytes="32MiB")
        pool, there = Pool(64, [65536]), Pool(64, [65536])
        stores = []
        for node, memory in enumerate((pool, there)):
            store = PeerCacheStore(config((0, 5, 18), {
                "engine_socket": engines.sockets[node], "engine_start": False,
                "interface_v1": 1}), {})
            self.addCleanup(store.close)
            store.register_mem_pool_host(memory)
            stores.append(store)
        wanted, indices = keys_of(1, 64), pool.indices(range(64))
        forgotten = keys_of(1000, 64)
        self.assertTrue(all(stores[0].batch_set_v1(wanted, indices)))
        self.assertTrue(all(stores[0].batch_set_v1(forgotten, indices)))
        for i in range(8):  # 32 MiB more, which no call reads
            if i % 4 == 0:
                # a client reports the use of a page once a second, and its engine collects that
                due = 64 * (1 + i // 4)
                harness.wait_for(
                    lambda due=due: stores[1].batch_exists(wanted) == 64 and engines.status(0)[
                        "counters"]["pages_used_remotely"] >= due, 30,
                    "engine 0 knows that its pages were found")
            self.assertTrue(all(stores[0].batch_set_v1(keys_of(2000 + 100 * i, 64), indices)))
        self.assertEqual(sum(stores[1].batch_get_v1(wanted, there.indices(range(64)))), 64)
        self.assertLess(sum(stores[1].batch_get_v1(forgotten, there.indices(range(64)))), 32)


if __name__ == "__main__":
    unittest.main()
