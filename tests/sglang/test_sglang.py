# SPDX-License-Identifier: Apache-2.0
"""SGLang's own, unmodified HiCacheController over two real engines: a host each, two ranks a host.

    test_sglang.py VERSION

Packages of others that need a GPU are stood in for (foreign.py); nothing of SGLang is. Exit 77:
PyPI or a CPU build of torch is not to be had.
"""

import json
import os
import socket
import subprocess
import sys
import tempfile
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(os.path.dirname(HERE), "cluster")]
import environment  # noqa: E402
import harness  # noqa: E402

VERSION = "0.5.18"
SGLANG = ""  # its folders
PAGES = 200
PACKAGE = os.path.join(harness.BUILD, "engine/client/python")


def version():
    return tuple(map(int, VERSION.split(".")))


class Host:
    """The scheduler processes of one host; `ranks` has a stream to each."""

    def __init__(self, folder, name, engine_socket, ranks=2):
        self.engine_socket, self.ranks, self.plans = engine_socket, [], []
        self.errors = os.path.join(folder, name + ".err")
        self.theirs = []
        for rank in range(ranks):
            ours, theirs = socket.socketpair()
            self.ranks.append(ours.makefile("rw"))
            ours.close()
            self.theirs.append(theirs)
            self.plans.append({"tp_rank": rank, "tp_size": ranks, "socket": theirs.fileno(),
                               "rendezvous": os.path.join(folder, name + ".rendezvous"),
                               "errors": self.errors})

    def answer(self, rank):
        line = rank.readline()
        log = ""
        if os.path.exists(self.errors):
            with open(self.errors, encoding="utf-8", errors="replace") as file:
                log = file.read()[-3000:]
        if not line:
            raise AssertionError(f"a rank ended; its log ends:\n{log}")
        got = json.loads(line)
        if "failed" in got:
            raise AssertionError(got["failed"] + log)
        return got

    def ready(self):
        for rank in self.ranks:
            self.answer(rank)

    def do(self, what, **request):
        """All ranks at once, as schedulers do: some of it is collective."""
        for rank in self.ranks:
            rank.write(json.dumps({"do": what, **request}) + "\n")
            rank.flush()
        return [self.answer(rank) for rank in self.ranks]

    def close(self):
        for rank in self.ranks:
            rank.close()


def start(hosts):
    """The parent of all their ranks."""
    env = {**os.environ, "CUDA_VISIBLE_DEVICES": "",
           "PYTHONPATH": os.pathsep.join([SGLANG, PACKAGE])}
    env.pop("PYTHONDONTWRITEBYTECODE", None)  # versions have most of what they import in common
    sockets = [theirs for host in hosts for theirs in host.theirs]
    process = subprocess.Popen(
        [environment.PYTHON, os.path.join(HERE, "rank.py"),
         json.dumps([plan for host in hosts for plan in host.plans])],
        env=env, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno() for theirs in sockets])
    for theirs in sockets:
        theirs.close()
    for host in hosts:
        host.ready()
    return process


class Controllers(unittest.TestCase):
    seed = 0

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory(prefix="peercache-")
        cls.engines = harness.cluster.Cluster(
            harness.BUILD, 2, pool_bytes="512MiB",
            settings=["engine.unsealed_memory=yes"]).start()
        cls.hosts = [Host(cls.folder.name, f"host{i}", engine_socket)
                     for i, engine_socket in enumerate(cls.engines.sockets)]
        cls.process = start(cls.hosts)

    @classmethod
    def tearDownClass(cls):
        for host in cls.hosts:
            host.close()
        status = cls.process.wait(300)
        stopped = cls.engines.stop()
        cls.folder.cleanup()
        assert stopped and status == 0, (stopped, status)

    def make(self, pool, layout, page_size=4, v1=1, shm=False, **extra):
        for host in self.hosts:
            host.do("make", pool=pool, layout=layout, page_size=page_size, shm=shm, pages=256,
                    extra={"backend_name": "peercache", "module_path": "peercache.store",
                           "class_name": "PeerCacheStore", "interface_v1": v1,
                           "engine_socket": host.engine_socket, "engine_start": False, **extra})

    def counted(self, host, v1):
        module = "observability.metrics_collector" if version() >= (0, 5, 10) else \
            "metrics.collector"
        counts = host.do("counts")
        for row in counts:
            self.assertTrue(row["alive"])
            self.assertEqual(row["errors"], {})
            self.assertEqual(row["stats"], "sglang.srt." + module)
        return counts

    def round_trip(self, pool, layout, v1=1, shm=False, **options):
        """200 pages: backup, flush, exists, prefetch, every byte; then by the other host."""
        Controllers.seed += 1
        here, there = self.hosts
        self.make(pool, layout, v1=v1, shm=shm, **options)
        nothing = {"hits": 0, "pages": 0, "wrong": 0}
        everything = {"hits": PAGES, "pages": PAGES, "wrong": 0}
        self.assertEqual(there.do("read", seed=self.seed, pages=PAGES), [nothing] * 2)
        written = here.do("write", seed=self.seed, pages=PAGES)
        # Of MLA's ranks only the first writes.
        self.assertEqual(written, [{"pages": PAGES}, {"pages": 0 if pool == "mla" else PAGES}])
        here.do("flush")
        self.assertEqual(here.do("read", seed=self.seed, pages=PAGES), [everything] * 2)
        self.assertEqual(there.do("read", seed=self.seed, pages=PAGES), [everything] * 2)
        for host in self.hosts:
            for row in self.counted(host, v1):
                self.assertEqual(row["bytes_staged"] if shm else 0, 0)
                self.assertEqual(row["memory"]["shm"], int(shm))
        self.assertTrue(all(row["hits_remote"] == PAGES for row in there.do("counts")))

    def test_mha_page_first(self):
        self.round_trip("mha", "page_first")

    def test_mha_page_first_of_one_token(self):
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

    def test_generic_calls(self):
        for pool, layout in (("mha", "page_first"), ("mha", "layer_first"),
                             ("mla", "page_first")):
            with self.subTest(pool=pool, layout=layout):
                self.round_trip(pool, layout, v1=0)

    def test_the_shm_allocator_needs_no_copies(self):
        if version() < (0, 5, 17):
            self.skipTest(f"SGLang {VERSION} has no shm allocator")
        for pool in ("mha", "mla"):
            with self.subTest(pool=pool):
                self.round_trip(pool, "page_first", shm=True, allocator="shm")

    def test_detached_and_attached_again(self):
        if version() < (0, 5, 9):
            self.skipTest(f"SGLang {VERSION} cannot detach")
        self.round_trip("mha", "page_first")
        for host in self.hosts:
            for request in ("detach", "attach", "detach", "attach"):
                host.do(request)
        got = self.hosts[1].do("read", seed=self.seed, pages=PAGES)
        self.assertEqual(got, [{"hits": PAGES, "pages": PAGES, "wrong": 0}] * 2)


def main():
    global VERSION, SGLANG
    VERSION = sys.argv.pop(1)
    try:
        SGLANG = environment.prepare(VERSION)
    except environment.Missing as why:
        print(f"skipped: {why}")
        return 77
    unittest.main()
    return 0


if __name__ == "__main__":
    sys.exit(main())
