# SPDX-License-Identifier: Apache-2.0
"""fork() after a store was opened, as torch and multiprocessing do: parent and child go on."""

import ctypes
import errno
import gc
import logging
import os
import resource
import signal
import subprocess
import sys
import threading
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path[:0] = [os.path.join(ROOT, "tests", "cluster"), os.path.dirname(os.path.abspath(__file__)),
                os.path.join(os.environ.get("PEERCACHE_BUILD", ""), "engine/client/python")]
import harness  # noqa: E402
from simulator import Pool, config, content  # noqa: E402
from test_launch import Engines, engines_at, extra  # noqa: E402
from peercache.store import PeerCacheStore  # noqa: E402

# Opens a store, forks, and lets the child end as a program ends. Then the parent uses its store.
ENDS = """
import os, sys
sys.path[:0] = {path!r}
from simulator import Pool, config, content
from peercache.store import PeerCacheStore
pool = Pool(4, [4096], shm={shm})
store = PeerCacheStore(config((0, 5, 18), {{"engine_socket": {socket!r}, "engine_start": False,
                                            "interface_v1": 1, "timeout_ms": 20000}}), {{}})
store.register_mem_pool_host(pool)
keys = ["{key}-%d" % i for i in range(4)]
assert all(store.batch_set_v1(keys, pool.indices(range(4))))
child = os.fork()
if child == 0:
    sys.exit(0)
assert os.waitpid(child, 0)[1] == 0, "the child"
assert all(store.batch_get_v1(keys, pool.indices(range(4)))) and store.counts()["errors"] == {{}}
"""


def in_child(action, *arguments):
    """Runs the action in a child. Returns its wait status, 0 if it returned None or True."""
    child = os.fork()
    if child == 0:
        code = 9
        try:
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            signal.alarm(int(60 * harness.SLOW))
            code = {None: 0, True: 0}.get(action(*arguments), 3)
        finally:
            os._exit(code)
    return os.waitpid(child, 0)[1]


class Lines(logging.Handler):
    """The lines of the log since it was made."""

    def __init__(self):
        super().__init__()
        self.lines = []
        logging.getLogger("peercache").addHandler(self)

    def emit(self, record):
        self.lines.append(record.getMessage())


def use(store, pool, lines):
    """Every call is a miss, one line says why, and the counts have the pages."""
    lines.lines.clear()
    indices = pool.indices(range(2))
    for _ in range(20):
        found = [store.batch_exists(["a", "b"]), *store.batch_get_v1(["a", "b"], indices),
                 *store.batch_set_v1(["a", "b"], indices), store.batch_get(["a"], [object()])[0]]
        if any(found):
            return False
    counts = store.counts()["errors"]
    store.clear()
    store.register_mem_host_pool_v2(Pool(2, [4096], shm=True), "other")
    own = [line for line in lines.lines if "inherited:" in line]
    return len(own) == 1 and "open a store in the child" in own[0] and \
        not any("is gone" in line for line in lines.lines) and counts["inherited"] == 120


def clear(session):
    """A clear of the parent's session is refused with the reason."""
    try:
        session.clear("group", 1000)
    except OSError as error:
        return error.errno == errno.ENOTCONN and "open a session in the child" in str(error)
    return False


def drop(holder):
    """Lets the garbage collector free the store."""
    holder.clear()
    gc.collect()


class Fork(harness.ClusterTest):
    @classmethod
    def setUpClass(cls):
        cls.engines = harness.cluster.Cluster(
            harness.BUILD, 1, pool_bytes="64MiB",
            settings=["engine.unsealed_memory=yes", "engine.huge_pages=no"]).start()

    @classmethod
    def tearDownClass(cls):
        assert cls.engines.stop(), "an engine did not stop with status 0"

    def store(self, pool):
        store = PeerCacheStore(config((0, 5, 18), {
            "engine_socket": self.engines.sockets[0], "engine_start": False, "interface_v1": 1,
            "timeout_ms": 20000, "exists_timeout_ms": 20000}), {})
        store.register_mem_pool_host(pool)
        return store

    def works(self, store, pool):
        """Stores and reads pages that no call has stored; True if every byte is right."""
        seed = int.from_bytes(os.urandom(6), "little")
        keys, indices = [f"{seed:x}-{i}" for i in range(8)], pool.indices(range(8))
        for page in range(8):
            pool.write(page, content(seed + page, 4096))
        stored = store.batch_set_v1(keys, indices)
        for page in range(8):
            pool.write(page, bytes(4096))
        return all(stored) and all(store.batch_get_v1(keys, indices)) and \
            store.batch_exists(keys) == 8 and \
            all(pool.read(page) == content(seed + page, 4096) for page in range(8))

    def own(self):
        pool = Pool(8, [4096])
        store = self.store(pool)
        try:
            return self.works(store, pool)
        finally:
            store.close()

    def actions(self, store, pool, lines):
        holder = [store]
        return {"nothing": (lambda: None,), "close": (store.close,), "drop": (drop, holder),
                "use": (use, store, pool, lines), "own": (self.own,),
                "clear": (clear, store._attachment.session),
                "all": (lambda: use(store, pool, lines) and self.own() and store.close(),)}

    def test_a_child_harms_neither_itself_nor_its_parent(self):
        for shm in (False, True):
            pool = Pool(8, [4096], shm=shm)
            for name in ("nothing", "close", "drop", "use", "clear", "own", "all"):
                with self.subTest(action=name, shm=shm):
                    store, lines = self.store(pool), Lines()
                    self.assertTrue(self.works(store, pool))
                    self.assertEqual(in_child(*self.actions(store, pool, lines)[name]), 0)
                    self.assertTrue(self.works(store, pool))
                    self.assertTrue(store._attachment.session.attached())
                    self.assertEqual(store.counts()["errors"], {})
                    self.assertEqual([line for line in lines.lines if "is gone" in line], [])
                    store.close()

    def test_children_of_busy_threads_close_and_end(self):
        """The threads hold locks and channels when the process forks."""
        pool = Pool(8, [4096], shm=True)
        store, over, wrong = self.store(pool), threading.Event(), []
        turns = [0] * 3

        def work(index):
            seed, indices = os.urandom(8).hex(), pool.indices(range(8))
            while not over.is_set():
                keys = [f"{seed}-{turns[index] % 64}-{i}" for i in range(8)]
                if not all(store.batch_set_v1(keys, indices)) or store.batch_exists(keys) != 8:
                    wrong.append(store.counts())
                store.batch_exists([""])  # counts and logs
                turns[index] += 1

        threads = [threading.Thread(target=work, args=(i,)) for i in range(3)]
        logging.getLogger("peercache").setLevel(logging.CRITICAL)
        self.addCleanup(logging.getLogger("peercache").setLevel, logging.NOTSET)
        for thread in threads:
            thread.start()
        try:
            harness.wait_for(lambda: all(turns), 60, "all threads call")
            for turn in range(60):
                action = (store.close,) if turn % 2 else \
                    (lambda: (store.batch_exists(["a"]), store.counts(), drop([store]))[0] == 0,)
                self.assertEqual(in_child(*action), 0, turn)
            reached = list(turns)
            harness.wait_for(lambda: all(a > b for a, b in zip(turns, reached)), 60, "all go on")
        finally:
            over.set()
            for thread in threads:
                thread.join()
        self.assertEqual(wrong, [])
        self.assertEqual(set(store.counts()["errors"]), {"invalid"})
        store.close()

    def test_a_child_that_ends_as_a_program_ends_leaves_the_session(self):
        for shm in (False, True):
            code = ENDS.format(path=sys.path[:3], shm=shm, socket=self.engines.sockets[0],
                               key=os.urandom(8).hex())
            # Python 3.12 and newer warn of fork() beside any thread
            done = subprocess.run(
                [sys.executable, "-W", "ignore::DeprecationWarning", "-c", code],
                capture_output=True, text=True, timeout=120 * harness.SLOW)
            self.assertEqual((done.returncode, done.stderr), (0, ""))


def hold(socket, told, go):
    """A process that starts an engine, has a child, and ends without close() when told."""
    store = PeerCacheStore(config((0, 5, 18), extra(socket)), {})
    child = os.fork()
    if child == 0:
        os.read(go, 1)
        os._exit(0)
    os.write(told, b"%d\n" % child)
    os.read(go, 1)
    os.kill(os.getpid(), signal.SIGKILL)
    store.close()


class Keeper(Engines):
    def child_that_lives(self, fork=os.fork):
        """A child of this process that lives until the test ends."""
        ends, gone = os.pipe()
        child = fork()
        if child == 0:
            os.close(gone)
            os.read(ends, 1)
            os._exit(0)
        os.close(ends)

        def finish():
            os.close(gone)
            os.waitpid(child, 0)
        self.addCleanup(finish)
        return child

    def defunct(self):
        """Process ids of the children of this process that have ended and are not waited for."""
        found = []
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
                    state, parent = file.read().rpartition(")")[2].split()[:2]
            except OSError:
                continue
            if state == "Z" and int(parent) == os.getpid():
                found.append(int(pid))
        return found

    def test_a_child_keeps_no_engine_after_the_last_close(self):
        """Neither a child of os.fork() nor one of C's fork(), which runs no code of Python."""
        store = PeerCacheStore(config((0, 5, 18), extra(self.socket)), {})
        self.addCleanup(store.close)
        self.child_that_lives()
        self.child_that_lives(ctypes.PyDLL(None).fork)
        self.assertEqual(len(engines_at(self.socket)), 1)
        store.close()
        self.gone()
        harness.wait_for(lambda: not self.defunct(), 30, "the keeper is waited for")
        again = PeerCacheStore(config((0, 5, 18), extra(self.socket)), {})
        self.addCleanup(again.close)
        self.assertEqual(len(engines_at(self.socket)), 1)
        again.close()
        self.gone()

    def test_a_child_that_closes_does_not_end_the_engine_of_its_parent(self):
        store = PeerCacheStore(config((0, 5, 18), extra(self.socket)), {})
        self.addCleanup(store.close)
        first = engines_at(self.socket)
        self.assertEqual(in_child(store.close), 0)
        other = PeerCacheStore(config((0, 5, 18), extra(self.socket)), {})
        other.close()
        pool = Pool(2, [4096])
        store.register_mem_pool_host(pool)
        self.assertEqual(store.batch_set_v1(["a", "b"], pool.indices([0, 1])), [True, True])
        self.assertEqual(engines_at(self.socket), first)
        store.close()
        self.gone()

    def test_a_child_keeps_no_engine_when_its_parent_is_killed(self):
        (told, tell), (go, stop) = os.pipe(), os.pipe()
        parent = os.fork()
        if parent == 0:
            try:
                hold(self.socket, tell, go)
            finally:
                os._exit(9)
        with os.fdopen(told) as lines:
            child = int(lines.readline())
        self.addCleanup(os.close, stop)
        os.kill(parent, signal.SIGKILL)
        os.waitpid(parent, 0)
        self.gone()
        os.kill(child, signal.SIGKILL)  # it lived until here, or this raises
        for fd in (tell, go):
            os.close(fd)


if __name__ == "__main__":
    unittest.main()
