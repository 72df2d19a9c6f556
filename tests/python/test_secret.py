# SPDX-License-Identifier: Apache-2.0
"""Namespaces with a secret: only a tenant that has it finds, reads and clears its pages, on every
host. The secret is nowhere but in one page of memory, which is in no core dump and no child."""

import ctypes
import json
import os
import re
import subprocess
import sys
import tempfile
import unittest
from unittest import mock

import test_store
from test_store import harness
from simulator import Indices, Pool
from peercache import Session
from peercache.lmcache import Client
from peercache.mooncake import MooncakeDistributedStore

SECRETS = {"a": "5e" * 32, "b": "5f" * 32}
BYTES = 8192
HOLD = """
import ctypes, os, sys
from peercache import Session
session = Session(sys.argv[1], "always", 0, sys.argv[2])
page = ctypes.create_string_buffer(b"x" * 8192, 8192)
assert all(session.set("held", ["k" * 64], [ctypes.addressof(page)], 8192, 20000))
ends, child = os.pipe(), os.fork()
if not child:
    os.read(ends[0], 1)
    os._exit(0)
print(child, flush=True)
sys.stdin.read()
os.write(ends[1], b"x")
os.wait()
"""


class Secrets(test_store.StoreTest):
    def setUp(self):
        super().setUp()
        self.folder = tempfile.mkdtemp(prefix="peercache-secret-")
        self.addCleanup(harness.remove_folder, self.folder)
        self.file = {name: self.write(name, text) for name, text in SECRETS.items()}

    def write(self, name, text, mode=0o600):
        path = os.path.join(self.folder, name)
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "w") as file:
            file.write(text + "\n")
        os.chmod(path, mode)
        return path

    def session(self, node, tenant=None):
        session = Session(self.engines.sockets[node], "always", 0, self.file.get(tenant))
        self.addCleanup(session.close)
        return session

    def put(self, session, space, keys, letter=b"x"):
        page = ctypes.create_string_buffer(letter * BYTES, BYTES)
        self.assertTrue(all(session.set(space, keys, [ctypes.addressof(page)] * len(keys), BYTES,
                                        20000)))

    def got(self, session, space, key):
        """The letter of the page; b"": a miss."""
        page = ctypes.create_string_buffer(BYTES)
        hit, = session.get(space, [key], [ctypes.addressof(page)], BYTES, 20000)
        if not hit:
            return b""
        self.assertEqual(page.raw, page.raw[:1] * BYTES)
        return page.raw[:1]

    def test_only_the_same_secret_finds_pages_on_every_host(self):
        keys = [test_store.key(self.first + n) for n in range(20)] + ["short", "odd " * 30]
        for letter, tenant in ((b"a", "a"), (b"b", "b"), (b"-", None)):
            self.put(self.session(0, tenant), "same||rank 0", keys, letter)
        for node in range(2):
            for letter, tenant in ((b"a", "a"), (b"b", "b"), (b"-", None)):
                session = self.session(node, tenant)
                self.assertEqual([self.got(session, "same||rank 0", key) for key in keys],
                                 [letter] * len(keys))
        self.put(self.session(1, "a"), "alone||rank 0", keys)
        for node in range(2):
            for tenant in ("b", None):
                session = self.session(node, tenant)
                self.assertEqual(sum(session.exists("alone||rank 0", keys, 20000)), 0)
                self.assertEqual(session.match("alone||rank 0", keys, 20000)[0], 0)
                self.assertFalse(any(session.remove("alone||rank 0", keys, 20000)))
            self.assertTrue(all(self.session(node, "a").exists("alone||rank 0", keys, 20000)))

    def test_a_tenant_clears_what_it_has_stored(self):
        keys = [test_store.key(self.first + n) for n in range(10)]
        for tenant in ("a", "b", None):
            self.put(self.session(0, tenant), "cleared||rank 0", keys)
        self.assertEqual(self.session(0, "b").clear("cleared", 20000), 10)
        self.session(1, "b").clear("cleared", 20000, True)
        for tenant, left in (("a", 10), ("b", 0), (None, 10)):
            self.assertEqual(sum(self.session(1, tenant).exists("cleared||rank 0", keys, 20000)),
                             left)

    def test_sglang_s_class_takes_it(self):
        count, keys = 16, test_store.keys_of(self.first, 16)
        indices = Indices(range(count))
        pool = self.filled(Pool(64, [BYTES]), count)
        store = self.store(0, pool, extra={"namespace_secret_file": self.file["a"]})
        self.assertTrue(all(store.batch_set_v1(keys, indices)))
        for tenant, found in (("a", count), ("b", 0), (None, 0)):
            other = Pool(64, [BYTES])
            reader = self.store(1, other, extra={"namespace_secret_file": self.file.get(tenant)})
            self.assertEqual(reader.batch_exists(keys), found)
            self.assertEqual(sum(reader.batch_get_v1(keys, indices)), found)
            if found:
                self.assertTrue(self.same(other, count))

    def test_the_other_classes_take_it(self):
        name = f"value {self.first}"
        for tenant in ("a", "b", "a"):
            extra = {"engine_socket": self.engines.sockets[tenant == "b"], "engine_start": False,
                     "namespace_secret_file": self.file[tenant]}
            with mock.patch.dict(os.environ, {"PEERCACHE_EXTRA_CONFIG": json.dumps(extra)}):
                store = MooncakeDistributedStore()
                self.assertEqual(store.setup("localhost", "", 1 << 26, 1 << 24, "tcp", "", ""), 0)
            self.addCleanup(store.close)
            if tenant == "b":
                self.assertEqual(store.get(name), b"")
            elif not store.is_exist(name):
                self.assertEqual(store.put(name, b"of a"), 0)
            self.assertEqual(store.get(name), b"" if tenant == "b" else b"of a")
            client = Client(**extra)
            self.addCleanup(client.close)
            client.submit_batch_exists([name])  # of another class: its namespaces are its own
            harness.wait_for(client.drain_completions, 20, "an answer")

    def test_the_tools_take_it(self):
        def ctl(node, *words):
            return harness.run([harness.program("tools/peercachectl"), "--socket",
                                self.engines.sockets[node], *words], capture_output=True,
                               text=True)
        key, mine = f"key {self.first}", ["--namespace-secret-file", self.file["a"]]
        self.assertEqual(ctl(0, *mine, "put", key, "--string", "value").returncode, 0)
        self.assertEqual(ctl(1, *mine, "get", key).stdout, "value")
        self.assertNotEqual(ctl(1, "exists", key).returncode, 0)
        self.assertIn('"result":"hit"', re.sub(r"\s", "", ctl(1, *mine, "--json", "explain",
                                                              key).stdout))

    def test_a_wrong_file_is_refused_with_the_remedy(self):
        for name, text, mode, why in (("open", SECRETS["a"], 0o644, "chmod 600"),
                                      ("group", SECRETS["a"], 0o660, "chmod 600"),
                                      ("short", "password", 0o600, "openssl rand -hex 32"),
                                      ("long", SECRETS["a"] + "0", 0o600, "too long|32 to 64")):
            path = self.write(name, text, mode)
            with self.assertRaisesRegex(OSError, f"{path}: .*({why})") as raised:
                Session(self.engines.sockets[0], "always", 0, path)
            self.assertNotIn(text, str(raised.exception))
            with self.assertRaisesRegex(OSError, why):
                self.store(0, extra={"namespace_secret_file": path})
        with self.assertRaisesRegex(OSError, "No such file"):
            self.store(0, extra={"namespace_secret_file": "/none", "engine_start": True})

    @staticmethod
    def where(pid, secret):
        """The flags of the mappings of a process that have the secret, and the number of all."""
        found, searched = [], 0
        with open(f"/proc/{pid}/smaps", encoding="ascii") as file:
            text = file.read()
        with open(f"/proc/{pid}/mem", "rb", 0) as memory:
            for start, end, flags in re.findall(
                    r"(?ms)^(\w+)-(\w+) rw\S+ .*?^VmFlags: (.*?)$", text):
                if int(end, 16) - int(start, 16) > 1 << 28:
                    continue
                try:
                    memory.seek(int(start, 16))
                    searched += 1
                    if secret in memory.read(int(end, 16) - int(start, 16)):
                        found.append(flags.split())
                except (OSError, OverflowError):
                    pass
        return found, searched

    def test_the_secret_is_in_no_core_child_log_or_environment(self):
        secret = SECRETS["a"].encode()
        with subprocess.Popen([sys.executable, "-c", HOLD, self.engines.sockets[0],
                               self.file["a"]], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                              env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}) as held:
            child = int(held.stdout.readline())
            found, searched = self.where(held.pid, secret)
            self.assertGreater(searched, 10)
            self.assertEqual(len(found), 1, "one page has it")
            self.assertLessEqual({"dd", "wf"}, set(found[0]), "which is not dumped or inherited")
            found, searched = self.where(child, secret)
            self.assertEqual((found, searched > 10), ([], True))
            for pid in (held.pid, child, self.engines.process[0].pid):
                with open(f"/proc/{pid}/environ", "rb") as file:
                    self.assertNotIn(secret, file.read())
            held.stdin.close()
            held.wait()
        self.assertNotIn(SECRETS["a"], json.dumps(self.engines.status(0)))


if __name__ == "__main__":
    unittest.main()
