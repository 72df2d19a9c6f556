# SPDX-License-Identifier: Apache-2.0
"""Engines find each other by a watched file and by Debian's etcd, which is also stopped and killed.

The tests of etcd need tools/install --etcd; without it this exits with 77. etcd is absent, and
later stopped, for PEERCACHE_OUTAGE_S seconds.
"""

import base64
import json
import os
import random
import re
import shutil
import signal
import socket
import socketserver
import ssl
import struct
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import urllib.request

import harness

ETCD = shutil.which("etcd", path=os.path.join(harness.ROOT, "build", "etcd", "usr", "bin") +
                    os.pathsep + os.environ["PATH"])
BEATS = ["cluster.heartbeat_ms=100", "cluster.dead_after_ms=3000"]
PREFIX = "/peercache/default/"
OUTAGE_S = float(os.environ.get("PEERCACHE_OUTAGE_S", "3"))


class Sourced(harness.cluster.Cluster):
    """Engines without cluster.seeds; `given` are the settings of all that tell addresses."""

    def __init__(self, nodes, given, started=None):
        super().__init__(harness.BUILD, nodes, pool_bytes="16MiB", settings=BEATS)
        self.given = list(given)
        self.started = nodes if started is None else started

    def command(self, i):
        words = super().command(i)
        at = next(n for n, word in enumerate(words) if word.startswith("cluster.seeds="))
        words[at - 1:at + 1] = []
        for setting in self.given:
            words += ["--set", setting]
        return words

    def launch(self, i):
        if i < self.started:
            super().launch(i)

    def wait_ready(self, i):
        if i < self.started:
            super().wait_ready(i)

    def wait_members(self, *_arguments, **_options):
        pass  # each test says when its engines are one cluster

    def late(self, i):
        """Starts an engine that start() left out."""
        self.started = max(self.started, i + 1)
        self.launch(i)
        self.wait_ready(i)

    def members(self, i):
        return len(self.status(i)["members"])

    def joined(self, nodes):
        """Waits until each of these engines has all of them as members."""
        harness.wait_for(lambda: all(self.members(i) == len(nodes) for i in nodes), 60,
                         f"engines {nodes} are one cluster; logs:\n" +
                         "\n".join(self.log(i)[-1500:] for i in nodes))


class SourceTest(harness.ClusterTest):
    def logged(self, engines, i, text):
        """Waits for a line of engine i. The other engine alone may have made them one cluster."""
        harness.wait_for(lambda: text in engines.log(i), 60, f"engine {i} logs {text}")


class File(SourceTest):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="peercache-seeds-")
        self.addCleanup(folder.cleanup)
        self.path = os.path.join(folder.name, "seeds")

    def write(self, text):
        with open(self.path + ".new", "w", encoding="utf-8") as file:
            file.write(text)
        os.rename(self.path + ".new", self.path)

    def begin(self, nodes, **options):
        engines = Sourced(nodes, [f"cluster.seeds_file={self.path}"], **options)
        self.addCleanup(engines.stop)
        return engines.start()

    def test_engines_join_when_the_file_appears_and_stay_when_it_goes(self):
        engines = self.begin(3)
        harness.wait_for(lambda: all("No such file" in engines.log(i) for i in range(3)), 30,
                         "each engine says that the file is absent")
        self.assertEqual([engines.members(i) for i in range(3)], [1, 1, 1])
        self.write("# the first engine\n" + f"127.0.0.1:{engines.port[0]}  # a comment\n\n")
        engines.joined([0, 1, 2])
        os.remove(self.path)
        os.mkdir(self.path)
        harness.wait_for(lambda: "Is a directory" in engines.log(1), 30,
                         "engine 1 says that the file is gone")
        self.assertEqual([engines.members(i) for i in range(3)], [3, 3, 3])
        self.stop_cleanly(engines)

    def test_a_bad_line_is_named_and_the_others_are_used(self):
        engines = self.begin(2)
        self.write(f"127.0.0.1:{engines.port[0]}\n[fd00::1\n127.0.0.1:{engines.port[1]},a:0\n")
        engines.joined([0, 1])
        for text in ('line 2: "[fd00::1" is not address:port', 'line 3: "a:0"', "2 addresses"):
            self.logged(engines, 0, text)
        self.stop_cleanly(engines)

    def test_another_file_is_not_read_to_its_end(self):
        engines = self.begin(2)
        self.write(f"127.0.0.1:{engines.port[0]}\n" + "no:address:\n" * 60000)
        engines.joined([0, 1])
        self.logged(engines, 0, "the rest from line 101 on is not read: 100 words")
        self.logged(engines, 0, "1 addresses")
        self.stop_cleanly(engines)

    def test_a_file_that_is_replaced_by_something_else_harms_no_engine(self):
        self.write("")
        engines = self.begin(2)
        harness.wait_for(lambda: "0 addresses" in engines.log(0), 30, "the empty file is read")
        os.remove(self.path)
        os.mkfifo(self.path)
        harness.wait_for(lambda: "Invalid argument" in engines.log(0), 30, "a pipe is refused")
        os.remove(self.path)
        os.mkdir(self.path)
        harness.wait_for(lambda: "Is a directory" in engines.log(0), 30, "a folder is refused")
        os.rmdir(self.path)
        with open(self.path, "wb") as file:
            file.truncate(2 << 20)
        harness.wait_for(lambda: "File too large" in engines.log(0), 30, "2 MiB are refused")
        self.write("\0\xff" * 1000 + f"\n127.0.0.1:{engines.port[0]}\n" * 20000)
        engines.joined([0, 1])
        self.stop_cleanly(engines)

    def test_of_many_addresses_those_that_answer_are_found(self):
        """40 addresses where nothing listens, and one engine: more than are dialled at a time."""
        engines = self.begin(2)
        self.write("".join(f"127.0.0.{i}:9\n" for i in range(2, 42)) +
                   f"127.0.0.1:{engines.port[0]}\n")
        engines.joined([0, 1])
        self.logged(engines, 1, "41 addresses")
        self.stop_cleanly(engines)


class Name(harness.ClusterTest):
    """A DNS name that has the addresses of all engines, as a headless service of Kubernetes has."""

    def test_a_name_whose_first_address_is_the_engine_itself(self):
        with tempfile.TemporaryDirectory(prefix="peercache-hosts-") as folder:
            port = harness.cluster.free_port()
            engines = Sourced(2, [f"cluster.seeds=many:{port}"])
            whole = engines.command

            def command(i):
                hosts = os.path.join(folder, str(i))
                with open(hosts, "w", encoding="utf-8") as file:
                    file.writelines(f"127.0.0.{1 + n} many\n" for n in (i, 1 - i))
                return ["unshare", "--mount", "sh", "-c",
                        'mount --bind "$0" /etc/hosts && exec "$@"', hosts, *whole(i)]

            engines.own = [[f"cluster.address=127.0.0.{1 + i}", f"cluster.port={port}"]
                           for i in range(2)]
            engines.command = command
            self.addCleanup(engines.stop)
            engines.start()
            engines.joined([0, 1])
            self.stop_cleanly(engines)


class NameServer:
    """Answers queries for kv-0.kv.test with `address`; None: that name has none."""

    def __init__(self, address):
        self.address = address
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.at = self.free()
        self.socket.bind((self.at, 53))
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    @staticmethod
    def free():
        """Of all loopback addresses, one that no other test has."""
        return ".".join(["127", *(str(random.randrange(1, 255)) for _ in range(3))])

    def run(self):
        while True:
            query, client = self.socket.recvfrom(2048)
            if not query:
                return
            end = 12
            while query[end]:
                end += query[end] + 1
            name, kind = query[12:end], query[end + 1:end + 3]
            known = name == b"\4kv-0\2kv\4test" and self.address
            found = known and kind == b"\0\1"
            answer = query[:2] + (b"\x85\x80" if known else b"\x85\x83") + struct.pack(
                ">HHHH", 1, bool(found), 0, 0) + query[12:end + 5]
            if found:
                answer += struct.pack(">HHHIH", 0xc00c, 1, 1, 5, 4) + socket.inet_aton(known)
            self.socket.sendto(answer, client)

    def close(self):
        self.socket.sendto(b"", self.socket.getsockname())
        self.thread.join()
        self.socket.close()


class Names:
    """An /etc/hosts and an /etc/resolv.conf for engines, which change while they run."""

    def __init__(self, folder):
        self.folder = folder
        self.hosts("127.0.0.1 localhost")
        self.write("resolv.conf", "")

    def write(self, name, text):
        with open(os.path.join(self.folder, name), "w", encoding="utf-8") as file:
            file.write(text + "\n")

    def hosts(self, text):
        self.write("hosts", text)

    def server(self, at):
        self.write("resolv.conf", f"nameserver {at}\nsearch test\noptions ndots:5")

    def give(self, engines):
        whole = engines.command
        engines.command = lambda i: [
            "unshare", "--mount", "sh", "-c", 'for f in hosts resolv.conf; do mount --bind '
            '"$0/$f" /etc/$f || exit 1; done; exec "$@"', self.folder, *whole(i)]


def unresolved(engines, i, what):
    """Waits until engine i says that a name has no address, which it does at once."""
    def found():
        return [f["text"] for f in engines.status(i)["health"]["findings"]
                if what in f["text"] and "the name cannot be resolved" in f["text"]]
    harness.wait_for(found, 60, f"{what} cannot be resolved")


@unittest.skipIf(os.geteuid(), "needs root for mount namespaces and port 53")
class Changes(SourceTest):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="peercache-names-")
        self.addCleanup(folder.cleanup)
        self.names = Names(folder.name)
        self.ignorant, self.knowing = NameServer(None), NameServer("127.0.0.1")
        for server in (self.ignorant, self.knowing):
            self.addCleanup(server.close)

    def noticed(self, change):
        """Engine 1 knows engine 0 by a name, which has an address after change()."""
        self.names.server(self.ignorant.at)
        port = harness.cluster.free_port()
        engines = Sourced(2, [f"cluster.seeds=kv-0.kv:{port}"])
        engines.own[0] = [f"cluster.port={port}"]
        self.names.give(engines)
        self.addCleanup(engines.stop)
        engines.start()
        unresolved(engines, 1, f"seed kv-0.kv:{port}")
        self.logged(engines, 1, "Check the name, /etc/resolv.conf and /etc/hosts")
        self.assertRegex(engines.log(1), "no member for [0-4] s: the name cannot be resolved: ")
        self.assertEqual(engines.members(1), 1)
        change()
        engines.joined([0, 1])
        self.stop_cleanly(engines)

    def test_another_name_server_is_noticed(self):
        self.noticed(lambda: self.names.server(self.knowing.at))

    def test_a_line_in_etc_hosts_is_noticed(self):
        self.noticed(lambda: self.names.hosts("127.0.0.1 localhost kv-0.kv"))

    def test_an_engine_stops_while_a_name_server_is_silent(self):
        silent = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.addCleanup(silent.close)
        silent.bind((NameServer.free(), 53))
        self.names.server(silent.getsockname()[0])
        engines = Sourced(1, ["cluster.seeds=kv-0.kv:1"])
        self.names.give(engines)
        self.addCleanup(engines.stop)
        engines.start()
        silent.settimeout(30 * harness.SLOW)
        silent.recv(2048)
        engines.process[0].terminate()
        self.assertEqual(harness.cluster.wait_end(engines.process[0], 3 * harness.SLOW), 0,
                         "the resolver waits for 5 s")


def openssl(folder, *words):
    harness.run(["openssl", *words], cwd=folder, capture_output=True, check=True)


def certificate(folder, name, alternative="", ca="ca"):
    """NAME.pem and NAME.key, signed by that CA; a CA has its own name."""
    options = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-subj",
               "/CN=" + name, "-keyout", name + ".key"]
    if name == ca:
        openssl(folder, "req", "-x509", "-days", "2", *options, "-out", name + ".pem")
        return
    with open(os.path.join(folder, name + ".ext"), "w", encoding="ascii") as file:
        file.write(f"subjectAltName={alternative}\n" if alternative else "")
    openssl(folder, "req", *options, "-out", name + ".csr")
    openssl(folder, "x509", "-req", "-days", "2", "-in", name + ".csr", "-CA", ca + ".pem",
            "-CAkey", ca + ".key", "-CAcreateserial", "-extfile", name + ".ext", "-out",
            name + ".pem")


class Etcd:
    """A real etcd of one member, with its data in `folder`; `tls`: https, certificates there."""

    def __init__(self, folder, tls=False):
        self.folder = folder
        self.port, self.peer_port = harness.cluster.free_port(), harness.cluster.free_port()
        self.url = f"http{'s' * tls}://127.0.0.1:{self.port}"
        self.process = None
        self.token = None
        self.tls = tls and ["--client-cert-auth", *(
            word for option, name in (("--trusted-ca-file", "ca.pem"), ("--cert-file", "etcd.pem"),
                                      ("--key-file", "etcd.key"))
            for word in (option, os.path.join(folder, name)))]
        self.context = None
        if tls:
            self.context = ssl.create_default_context(cafile=os.path.join(folder, "ca.pem"))
            self.context.load_cert_chain(os.path.join(folder, "engine.pem"),
                                         os.path.join(folder, "engine.key"))
        self.start()

    def start(self):
        with open(os.path.join(self.folder, "log"), "ab") as log:
            self.process = subprocess.Popen(
                [ETCD, "--data-dir", os.path.join(self.folder, "data"), "--log-level", "warn",
                 "--listen-client-urls", self.url, "--advertise-client-urls", self.url,
                 "--listen-peer-urls", f"http://127.0.0.1:{self.peer_port}",
                 "--initial-advertise-peer-urls", f"http://127.0.0.1:{self.peer_port}",
                 "--initial-cluster", f"default=http://127.0.0.1:{self.peer_port}",
                 *(self.tls or [])],
                stdout=log, stderr=log, env={**os.environ, "ETCD_UNSUPPORTED_ARCH": "arm64"})
        harness.wait_for(self.healthy, 60, "etcd serves")

    def healthy(self):
        try:
            with urllib.request.urlopen(self.url + "/health", timeout=5,
                                        context=self.context) as answer:
                return json.load(answer)["health"] == "true"
        except (OSError, ValueError):
            return False

    def stop(self):
        self.process.kill()
        self.process.wait()

    def call(self, path, **body):
        request = urllib.request.Request(self.url + path, json.dumps(body).encode())
        if self.token:
            request.add_header("Authorization", self.token)
        with urllib.request.urlopen(request, timeout=30 * harness.SLOW,
                                    context=self.context) as answer:
            return json.load(answer)

    def keys(self):
        """{key: (value, lease)} of the cluster."""
        answer = self.call("/v3/kv/range", key=code(PREFIX), range_end=code(PREFIX[:-1] + "0"))
        return {base64.b64decode(kv["key"]).decode(): (
            base64.b64decode(kv.get("value", "")).decode(), kv.get("lease", "0"))
            for kv in answer.get("kvs", [])}

    def put(self, key, value):
        self.call("/v3/kv/put", key=code(key), value=code(value))

    def delete_all(self):
        self.call("/v3/kv/deleterange", key=code(PREFIX), range_end=code(PREFIX[:-1] + "0"))

    def protect(self):
        """From here on only root with the password "secret" may do anything."""
        self.call("/v3/auth/user/add", name="root", password="secret")
        self.call("/v3/auth/user/grant", user="root", role="root")
        self.call("/v3/auth/enable")
        self.token = self.call("/v3/auth/authenticate", name="root", password="secret")["token"]


def code(text):
    return base64.b64encode(text.encode()).decode()


@unittest.skipUnless(ETCD, "no etcd: run tools/install --etcd")
class Trickle(socketserver.BaseRequestHandler):
    """An endpoint whose answer never ends."""
    def handle(self):
        try:
            self.request.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 9999\r\n\r\n")
            while True:
                self.request.sendall(b" ")
                time.sleep(0.5)
        except OSError:
            pass


class WithEtcd(SourceTest):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="peercache-etcd-")
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.etcd = Etcd(self.folder)
        self.addCleanup(self.etcd.stop)

    def begin(self, nodes, *settings, urls=None, **options):
        engines = Sourced(nodes, [f"cluster.etcd={urls or self.etcd.url}", *settings], **options)
        self.addCleanup(engines.stop)
        return engines.start()

    def test_engines_find_each_other_and_their_keys_have_leases(self):
        engines = self.begin(3)
        engines.joined([0, 1, 2])
        found = self.etcd.keys()
        self.assertEqual({value for value, _ in found.values()},
                         {f"127.0.0.1:{port}" for port in engines.port})
        self.assertNotIn("0", [lease for _, lease in found.values()])
        self.assertEqual(len({lease for _, lease in found.values()}), 3)
        self.logged(engines, 0, PREFIX)
        self.stop_cleanly(engines)

    def test_keys_that_were_removed_come_back(self):
        engines = self.begin(2)
        engines.joined([0, 1])
        self.etcd.delete_all()
        harness.wait_for(lambda: len(self.etcd.keys()) == 2, 60, "the keys are there again")
        self.assertEqual([engines.members(i) for i in (0, 1)], [2, 2])
        self.stop_cleanly(engines)

    def outage(self, begin, end):
        """Two engines are members; etcd fails, and an engine that starts meanwhile joins when it is
        back."""
        engines = self.begin(3, started=2)

        def died(among):
            return [engines.status(i)["counters"]["members_died"] for i in range(among)]

        engines.joined([0, 1])
        begin()
        harness.wait_for(lambda: "asked again" in engines.log(0), 60, "engine 0 misses etcd")
        engines.late(2)
        harness.wait_for(lambda: "asked again" in engines.log(2), 60, "engine 2 misses etcd")
        time.sleep(OUTAGE_S)
        self.assertEqual([engines.members(i) for i in range(3)], [2, 2, 1])
        self.assertEqual(died(2), [0, 0])
        end()
        engines.joined([0, 1, 2])
        self.assertEqual(died(3), [0, 0, 0])
        self.stop_cleanly(engines)

    def test_while_etcd_is_killed_the_members_stay_and_with_it_new_ones_join(self):
        self.outage(self.etcd.stop, self.etcd.start)

    def test_while_etcd_hangs_the_members_stay_and_with_it_new_ones_join(self):
        def signals(number):
            return lambda: self.etcd.process.send_signal(number)

        self.addCleanup(signals(signal.SIGCONT))
        self.outage(lambda: harness.freeze(self.etcd.process), signals(signal.SIGCONT))

    def test_endpoints_that_hang_refuse_or_trickle_are_passed_over(self):
        silent = socket.create_server(("127.0.0.1", 0))
        self.addCleanup(silent.close)
        slow = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Trickle)
        slow.daemon_threads = True
        threading.Thread(target=slow.serve_forever, daemon=True).start()
        self.addCleanup(slow.server_close)
        self.addCleanup(slow.shutdown)
        urls = ",".join([f"http://127.0.0.1:{silent.getsockname()[1]}",
                         f"http://127.0.0.1:{harness.cluster.free_port()}",
                         f"http://127.0.0.1:{slow.server_address[1]}", self.etcd.url])
        engines = self.begin(2, urls=urls)
        engines.joined([0, 1])
        harness.wait_for(lambda: engines.log(0).count("asked again") == 3, 60,
                         "all three endpoints are named")
        self.logged(engines, 0, "it answers too slowly")
        self.stop_cleanly(engines)

    @unittest.skipIf(os.geteuid(), "needs root for mount namespaces")
    def test_its_name_gets_an_address(self):
        names = Names(self.folder)
        engines = Sourced(2, [f"cluster.etcd=http://etcd-host:{self.etcd.port}"])
        names.give(engines)
        self.addCleanup(engines.stop)
        engines.start()
        for i in range(2):
            unresolved(engines, i, "seed cluster.etcd has led to no member for 0 s: "
                                   f"etcd-host:{self.etcd.port}")
        names.hosts("127.0.0.1 localhost etcd-host")
        engines.joined([0, 1])
        self.stop_cleanly(engines)

    def test_user_and_password(self):
        password = os.path.join(self.folder, "password")
        with open(password, "w", encoding="utf-8") as file:
            file.write("secret\n")
        self.etcd.protect()
        engines = self.begin(2, "cluster.etcd_user=root", f"cluster.etcd_password_file={password}")
        engines.joined([0, 1])
        self.stop_cleanly(engines)
        with open(password, "w", encoding="utf-8") as file:
            file.write("wrong\n")
        engines = self.begin(1, "cluster.etcd_user=root",
                             f"cluster.etcd_password_file={password}")
        harness.wait_for(lambda: "authentication failed" in engines.log(0), 60,
                         "etcd's reason is in the log")
        self.assertNotIn("wrong", engines.log(0))
        self.stop_cleanly(engines)

    def test_foreign_values_are_counted_and_not_used(self):
        for i, value in enumerate(["", "a:0", "\0\xff", "x" * 5000, "[fd00::1", "127.0.0.1:9"]):
            self.etcd.put(f"{PREFIX}foreign-{i}", value)
        engines = self.begin(2)
        engines.joined([0, 1])
        self.logged(engines, 0, "5 values at " + PREFIX)
        self.stop_cleanly(engines)

    def test_a_long_list(self):
        """150 keys of engines that are gone sort before the names of two engines, 150 behind; the
        list has 600 KB."""
        for i in range(150):
            self.etcd.put(f"{PREFIX}!{i:03}", f"127.0.0.2:{10 + i}")
            self.etcd.put(f"{PREFIX}~{i:03}", "x" * 3000)
        engines = self.begin(2)
        engines.joined([0, 1])
        self.stop_cleanly(engines)


class WithTls(WithEtcd):
    """etcd over https, which wants a certificate of each client."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="peercache-etcd-")
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        for name, alternative in (("ca", ""), ("etcd", "IP:127.0.0.1"), ("engine", "")):
            certificate(self.folder, name, alternative)
        self.etcd = Etcd(self.folder, True)
        self.addCleanup(self.etcd.stop)

    def files(self, ca="ca", engine="engine"):
        path = os.path.join(self.folder, "")
        return [f"cluster.etcd_ca={path}{ca}.pem",
                *([f"cluster.etcd_cert={path}{engine}.pem", f"cluster.etcd_key={path}{engine}.key"]
                  if engine else [])]

    def begin(self, nodes, *settings, urls=None, **options):
        return super().begin(nodes, *(settings or self.files()), urls=urls, **options)

    def test_who_cannot_prove_its_name_is_refused_with_a_reason(self):
        certificate(self.folder, "other", ca="other")
        for settings, url, why in (
                (self.files("other"), None, "certificate is refused: .*see cluster.etcd_ca"),
                (self.files(), self.etcd.url.replace("127.0.0.1", "localhost"),
                 "certificate is refused: hostname mismatch"),
                (self.files(engine=""), None, "TLS: .*see cluster.etcd_cert")):
            engines = self.begin(1, *settings, urls=url)
            harness.wait_for(lambda engines=engines, why=why: re.search(why, engines.log(0)), 60,
                             why + " in " + engines.log(0))
            self.assertEqual(self.etcd.keys(), {})
            self.stop_cleanly(engines)

    def test_certificates_that_are_replaced_are_read_after_a_failure(self):
        certificate(self.folder, "other", ca="other")
        certificate(self.folder, "late", ca="other")
        engines = self.begin(2, *self.files(engine="late"))
        for i in range(2):
            self.logged(engines, i, "see cluster.etcd_cert")
        certificate(self.folder, "late")
        engines.joined([0, 1])
        self.stop_cleanly(engines)


for name in [name for name in vars(WithEtcd) if name.startswith("test_") and
             not name.startswith("test_engines_find")]:
    setattr(WithTls, name, None)  # once is enough


class Refused(harness.ClusterTest):
    def test_files_of_tls_that_are_wrong_are_refused_at_start(self):
        with tempfile.TemporaryDirectory() as folder:
            certificate(folder, "ca")
            certificate(folder, "engine")
            path = os.path.join(folder, "")
            os.chmod(path + "engine.key", 0o644)
            for settings, why in (
                    (["etcd_ca=/none"], "cluster.etcd_ca /none"),
                    ([f"etcd_ca={path}ca.pem", f"etcd_cert={path}engine.pem",
                      f"etcd_key={path}engine.key"], "engine.key: .*chmod 600"),
                    ([f"etcd_ca={path}ca.pem", f"etcd_cert={path}engine.pem",
                      f"etcd_key={path}ca.key"], "key values mismatch")):
                self.assertRegex(self.refused("https://127.0.0.1:1", *settings), why)

    def refused(self, url, *settings):
        """What an engine prints that does not start."""
        more = [word for setting in settings for word in ("--set", "cluster." + setting)]
        engine = harness.run(
            [harness.program("engine/peercache-engine"), "--set", f"cluster.etcd={url}",
             "--set", "engine.pool_bytes=16MiB", "--set", "metrics.port=0",
             "--set", f"cluster.port={harness.cluster.free_port()}",
             "--set", f"engine.socket={tempfile.mktemp(prefix='peercache-')}", *more],
            stdin=subprocess.DEVNULL, capture_output=True, text=True)
        self.assertNotEqual(engine.returncode, 0)
        return engine.stderr

    def test_endpoints_that_cannot_work_are_refused_at_start(self):
        for url in ("ftp://127.0.0.1:2379", "https://a:b@127.0.0.1:1", "127.0.0.1:2379",
                    "http://a:b@127.0.0.1:1",
                    "http://127.0.0.1:1/v3", "http://127.0.0.1:99999", "http://:1",
                    "http://127.0.0.1:1," * 9):
            self.assertIn("cluster.etcd", self.refused(url))


if __name__ == "__main__":
    if not ETCD:
        print("no etcd: run tools/install --etcd", file=sys.stderr)
        sys.exit(77)
    harness.main(at_once=8)
