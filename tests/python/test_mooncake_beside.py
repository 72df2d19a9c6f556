# SPDX-License-Identifier: Apache-2.0
"""The same random calls to PeerCache's MooncakeDistributedStore and to that of Mooncake itself.

    test_mooncake_beside.py                     all answers are equal; exit 77: PyPI has no Mooncake
    test_mooncake_beside.py SEED CALLS FILE     makes the calls to the mooncake.store that it finds

Calls that Mooncake answers in another way are not made; MOONCAKE.md names them.
"""

import ctypes
import hashlib
import json
import os
import random
import socket
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path[:0] = [os.path.join(ROOT, "tests", "cluster"), os.path.join(ROOT, "tests", "sglang")]
PACKAGE = os.path.join(os.environ.get("PEERCACHE_BUILD", ""), "engine/client/python")
WHEEL = "mooncake-transfer-engine-non-cuda==0.3.13.post1"
KEYS, BYTES, CALLS = 40, 20000, int(os.environ.get("CALLS", "100000"))


class Calls:
    """Random calls; the answers depend on the seed and the store only."""

    def __init__(self, store, seed):
        self.store, self.random = store, random.Random(seed)
        self.source = (ctypes.c_char * (1 << 20)).from_buffer(
            bytearray(self.random.randbytes(1 << 20)))
        self.target = (ctypes.c_char * (1 << 20))()
        self.names = [f"{seed} {n} " + "x" * self.random.choice((0, 60, 900, 3000))
                      for n in range(KEYS)]
        for memory in (self.source, self.target):
            assert store.register_buffer(ctypes.addressof(memory), 1 << 20) == 0

    def key(self):
        return self.random.choice(self.names)

    def some(self, *more):
        """Some keys, and as many values of each of these functions."""
        keys = self.random.sample(self.names, self.random.randint(1, 8))
        return [keys, *([make(n) for n in range(len(keys))] for make in more)]

    def size(self, *_):
        return self.random.randint(1, self.random.choice((8, 500, BYTES)))

    def place(self, *_):
        return self.random.randint(0, (1 << 20) - 2 * BYTES)

    def at(self, *_):
        return ctypes.addressof(self.source) + self.place()

    def room(self, n=0):
        """One of 8 places of BYTES that do not overlap."""
        return ctypes.addressof(self.target) + n * 2 * BYTES

    def value(self, *_):
        at = self.place()
        return self.source.raw[at:at + self.size()]

    def split(self, size):
        """Lengths that add up to the size."""
        cuts = sorted(self.random.sample(range(1, size), min(size - 1, self.random.randint(0, 4))))
        return [b - a for a, b in zip([0, *cuts], [*cuts, size])]

    def read(self, sizes):
        """Digest of what a get into room() has written."""
        got = [bytes(self.target[n * 2 * BYTES:n * 2 * BYTES + max(0, size)])
               for n, size in enumerate(sizes)]
        return [sizes, hashlib.sha256(b"|".join(got)).hexdigest()[:16]]

    # Each returns an answer that json can write.

    def put(self):
        return self.store.put(self.key(), self.value())

    def upsert(self):
        return self.store.upsert(self.key(), self.value())

    def put_parts(self):
        return self.store.put_parts(self.key(), *(self.value() for _ in range(3)))

    def put_batch(self):
        return self.store.put_batch(*self.some(self.value))

    def put_empty(self):
        return self.store.put(self.random.choice((self.key(), "")), b"")

    def batch_put_from(self):
        return self.store.batch_put_from(*self.some(self.at, self.size))

    def batch_put_lengths(self):
        return self.store.batch_put_from(self.names[:3], [self.at()], [1, 1, 1])

    def multi_put(self):
        keys, sizes = self.some(lambda n: self.split(self.size()))
        return self.store.batch_put_from_multi_buffers(
            keys, [list(map(self.at, size)) for size in sizes], sizes)

    def get(self):
        return hashlib.sha256(self.store.get(self.key())).hexdigest()[:16]

    def get_buffers(self):
        return [value and hashlib.sha256(bytes(value)).hexdigest()[:16]
                for value in self.store.batch_get_buffer(*self.some())]

    def get_size(self):
        return self.store.get_size(self.key())

    def batch_get_into(self):
        return self.read(self.store.batch_get_into(*self.some(self.room, self.size)))

    def multi_get(self):
        keys = self.random.sample(self.names, 3)
        sizes, ptrs = [], []
        for n, key in enumerate(keys):  # mostly of the right length
            length = self.store.get_size(key)
            size = length if length > 0 and self.random.random() < 0.8 else self.size()
            parts = self.split(size)
            sizes.append(parts)
            ptrs.append([self.room(n) + sum(parts[:i]) for i in range(len(parts))])
        found = self.store.batch_get_into_multi_buffers(keys, ptrs, sizes)
        return self.read(found)

    def ranges(self):
        [keys] = self.some()
        answer = [self.store.batch_get_session_start(keys)]
        lengths = [max(1, self.store.get_size(key)) for key in keys]
        sizes = [[min(length, self.random.choice((length, 1, 3)))] for length in lengths]
        offsets = [[self.random.randint(0, length - size + self.random.choice((0, 0, 0, 1)))]
                   for length, [size] in zip(lengths, sizes)]
        answer.append(self.read(self.store.batch_get_into_multi_buffer_ranges(
            keys, [[self.room(n)] for n in range(len(keys))], sizes, offsets)))
        answer.append(self.store.batch_get_session_end(keys))
        return answer

    def exists(self):
        return [self.store.batch_is_exist(*self.some()), self.store.is_exist(self.key())]

    def remove(self):
        return self.store.remove(self.key(), True)

    def batch_remove(self):
        return self.store.batch_remove(*self.some(), True)

    def remove_all(self):
        return self.store.remove_all(True) if self.random.random() < 0.01 else 0

    def run(self, count, file):
        verbs = [getattr(self, name) for name in (
            "put", "upsert", "put_parts", "put_batch", "put_empty", "batch_put_from",
            "batch_put_lengths", "multi_put", "get", "get_buffers", "get_size", "batch_get_into",
            "multi_get", "ranges", "exists", "remove", "batch_remove", "remove_all")]
        for _ in range(count):
            verb = self.random.choice(verbs)
            print(verb.__name__, json.dumps(verb()), file=file)


def drive(seed, count, path):
    from mooncake.store import MooncakeDistributedStore
    store = MooncakeDistributedStore()
    status = store.setup("localhost", os.environ["METADATA"], 256 << 20, 64 << 20, "tcp", "",
                         os.environ["MASTER"])
    assert status == 0, status
    with open(path, "w", encoding="ascii") as file:
        Calls(store, int(seed)).run(int(count), file)
    os._exit(0)  # Mooncake's client may hang when it ends


def listens(port):
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def main():
    import environment
    import harness
    try:
        python = environment.make_other("mooncake", WHEEL)
    except environment.Missing as why:
        print(f"skipped: {why}")
        return 77
    seed = os.environ.get("SEED") or str(random.randrange(1 << 32))
    print(f"SEED={seed} CALLS={CALLS}")
    rpc, http, metrics = harness.cluster.free_ports(3)
    with tempfile.TemporaryDirectory(prefix="peercache-") as folder:
        def driven(name, program, **more):
            path = os.path.join(folder, name)
            done = harness.run([program, __file__, seed, str(CALLS), path], 3000, env={
                **os.environ, "METADATA": f"http://127.0.0.1:{http}/metadata",
                "MASTER": f"127.0.0.1:{rpc}", "MC_TCP_BIND_ADDRESS": "127.0.0.1", **more},
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            assert done.returncode == 0, done.stdout[-3000:]
            with open(path, encoding="ascii") as file:
                return file.read().splitlines()

        engines = harness.cluster.Cluster(harness.BUILD, 2, pool_bytes="256MiB",
                                          settings=harness.patient()).start()
        ours = driven("ours", sys.executable, PYTHONPATH=os.pathsep.join(
            [PACKAGE + "/peercache/as_mooncake", PACKAGE]), PEERCACHE_EXTRA_CONFIG=json.dumps(
                {"engine_start": False, "engine_socket": engines.sockets[0], "timeout_ms": 20000,
                 "exists_timeout_ms": 20000}))
        assert engines.stop()
        with open(os.path.join(folder, "master"), "w", encoding="ascii") as log, \
                subprocess.Popen([os.path.join(os.path.dirname(python), "mooncake_master"),
                                  f"--rpc_port={rpc}", "--enable_http_metadata_server=true",
                                  f"--http_metadata_server_port={http}",
                                  "--http_metadata_server_host=127.0.0.1",
                                  f"--metrics_port={metrics}"], stdout=log, stderr=log) as master:
            try:
                harness.wait_for(lambda: listens(rpc) and listens(http), 60, "the master serves")
                theirs = driven("theirs", python)
            finally:
                master.kill()
    differ = [n for n, (one, other) in enumerate(zip(ours, theirs)) if one != other]
    for n in differ[:20]:
        print(f"call {n}:\n  ours   {ours[n]}\n  theirs {theirs[n]}")
    print(f"{len(ours)} answers, {len(differ)} differ")
    return 1 if differ or not len(ours) == len(theirs) == CALLS else 0


if __name__ == "__main__":
    sys.exit(drive(*sys.argv[1:]) if len(sys.argv) > 1 else main())
