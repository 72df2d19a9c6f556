# SPDX-License-Identifier: Apache-2.0
"""A cluster with a key (cluster.psk_file) takes nothing from a stranger, and both sides say why."""

import contextlib
import ctypes
import os
import re
import signal
import socket
import ssl
import struct
import subprocess
import tempfile
import time

import secured
from secured import harness

CLONE_NEWNET = 0x40000000


def varint(number):
    """As in a message of protobuf."""
    return number.to_bytes(1, "little") if number < 128 else \
        bytes([number & 127 | 128]) + varint(number >> 7)


class Secured(harness.ClusterTest):
    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="peercache-security-")
        self.addCleanup(harness.remove_folder, self.folder)
        self.key = os.path.join(self.folder, "key")
        self.line = secured.keygen(self.key)

    def secured(self, nodes, settings=(), own=None, **options):
        """`own`: settings of each engine; else all have the key."""
        engines = harness.cluster.Cluster(harness.BUILD, nodes, "16MiB", settings=[
            *settings, "engine.huge_pages=no", "cluster.security=required"], **options)
        engines.own = own or [[f"cluster.psk_file={self.key}"]] * nodes
        self.addCleanup(engines.stop)
        return engines.start()

    def engine(self, port, *settings, expect=None):
        """An engine of its own that dials the port; its log, and the process."""
        log = os.path.join(self.folder, f"log{len(os.listdir(self.folder))}")
        command = [harness.program("engine/peercache-engine")]
        for value in (f"engine.socket={log}.sock", "engine.pool_bytes=16MiB", "metrics.port=0",
                      "engine.huge_pages=no", f"cluster.port={harness.cluster.free_port()}",
                      f"cluster.seeds=127.0.0.1:{port}", *settings):
            command += ["--set", value]
        with open(log, "w", encoding="utf-8") as file:
            process = subprocess.Popen(command, stdout=file, stderr=file)
        self.addCleanup(process.wait)
        self.addCleanup(process.terminate)
        return log, process

    def said(self, log, words, seconds=60):
        def found():
            with open(log, encoding="utf-8") as file:
                return words in file.read()
        harness.wait_for(found, seconds, f"{log} has: {words}")

    def refused(self, engines, i=0):
        return engines.status(i)["counters"]["strangers_refused"]

    def outside(self, engines, words):
        """The stranger is no member, nothing came of it, and the log of the engine says why."""
        harness.wait_for(lambda: words in engines.log(0), 30, f"the log has: {words}")
        self.assertEqual([len(engines.status(i)["members"]) for i in range(engines.nodes)],
                         [engines.nodes] * engines.nodes)


    def alone(self):
        """Gives this process a network of its own: a capture loses packets of a busy one."""
        libc = ctypes.CDLL(None, use_errno=True)
        before = os.open("/proc/self/ns/net", os.O_RDONLY)
        self.addCleanup(os.close, before)
        if libc.unshare(CLONE_NEWNET):
            self.skipTest("skipped: no network namespaces: " + os.strerror(ctypes.get_errno()))
        self.addCleanup(libc.setns, before, 0)
        subprocess.run(["ip", "link", "set", "lo", "up"], check=True)

    def captured(self, start):
        """What a process that sees all packets finds in those of the links of two engines, of
        start(), while one stores a page and the other reads it; and names, settings, and numbers
        (of the page's key, of the pool's region, beside which its rkey is), as they may be there.
        """
        with secured.Capture(self) as capture:
            engines = start()
            ctl = [harness.program("tools/peercachectl"), "--socket"]
            harness.run([*ctl, engines.sockets[0], "put", "key-in-clear", "--string",
                         "value-in-clear"], check=True)
            harness.wait_for(lambda: not harness.run([*ctl, engines.sockets[0], "directory"],
                                                     capture_output=True).returncode,
                             30, "the other owner has the page's entry")
            told = harness.run([*ctl, engines.sockets[1], "explain", "key-in-clear"],
                               capture_output=True, text=True)
            harness.run([*ctl, engines.sockets[1], "get", "key-in-clear"], check=True,
                        capture_output=True)
            seen = b"".join(capture.sent(*engines.port))
            with open(f"/proc/{engines.process[0].pid}/maps", encoding="utf-8") as file:
                regions = [varint(int(line.split("-")[0], 16)) for line in file
                           if "memfd:peercache-pool" in line]
            number = re.search(r"[0-9a-f]{32}", told.stdout)[0]
            names = [f"127.0.0.1:{port}".encode() for port in engines.port]
            self.stop_cleanly(engines)
        halves = [bytes.fromhex(number)[i:i + 8] for i in (0, 8)]
        keys = [*halves, *(half[::-1] for half in halves)]
        return seen, [*names, b"cluster.replicas = 2", b"cluster.id"], keys, regions

    def shows(self, *settings, start=None):
        """Links with these settings, or of the engines of start(), show nothing that is there in
        clear text."""
        self.alone()

        def begun(*of):
            return self.start(2, pool_bytes="16MiB", settings=["engine.huge_pages=no", *of])
        seen, words, *numbers = self.captured(lambda: begun("cluster.security=none"))
        for word in words:
            self.assertIn(word, seen, "the capture finds what is in clear text")
        for of in numbers:
            self.assertTrue(any(number in seen for number in of), of)
        seen, words, *numbers = self.captured(start or (lambda: begun(*settings)))
        self.assertGreater(len(seen), 2000)
        for word in words + sum(numbers, []):
            self.assertNotIn(word, seen)


class Strangers(Secured):
    def test_clear_text_is_refused_and_answered(self):
        engines = self.secured(2)
        got, seconds = secured.answer(engines.port[0], secured.hello())
        self.assertEqual(got, secured.PLAIN_REFUSED)
        self.assertLess(seconds, secured.REFUSED_SECONDS * harness.SLOW)
        self.outside(engines, "it speaks no TLS")
        self.assertEqual(self.refused(engines), 1)

    def test_stock_programs_are_refused(self):
        engines = self.secured(1)
        for data in (b"GET / HTTP/1.1\r\n\r\n", b"\0\0\0\x02\x12\0", b"\x90" * 600, b"\xff" * 64):
            _, seconds = secured.answer(engines.port[0], data)
            self.assertLess(seconds, secured.REFUSED_SECONDS * harness.SLOW, data[:8])
        for version, error in ((ssl.TLSVersion.TLSv1_3, "HANDSHAKE_FAILURE"),
                               (ssl.TLSVersion.TLSv1_2, "PROTOCOL_VERSION")):
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            context.maximum_version = version
            with self.assertRaisesRegex(ssl.SSLError, error), \
                    socket.create_connection(("127.0.0.1", engines.port[0])) as link:
                context.wrap_socket(link)
        self.assertEqual(self.refused(engines), 6)
        self.outside(engines, "no link with 127.0.0.1")

    def test_another_key_is_refused_and_the_logs_name_the_remedy(self):
        engines, other = self.secured(2), os.path.join(self.folder, "other")
        secured.keygen(other)
        log, _ = self.engine(engines.port[0], f"cluster.psk_file={other}")
        self.said(log, "it refuses the key of this engine")
        self.outside(engines, "its key is not in cluster.psk_file here")

    def test_an_engine_without_a_key_says_what_it_lacks(self):
        engines = self.secured(2)
        log, _ = self.engine(engines.port[0])
        self.said(log, "it speaks TLS, and this engine has no key")
        self.outside(engines, "it speaks no TLS")

    def test_an_engine_with_a_key_does_not_speak_clear_text(self):
        engines = self.start(2, pool_bytes="16MiB", settings=["engine.huge_pages=no",
                                                              "cluster.security=none"])
        log, _ = self.engine(engines.port[0], f"cluster.psk_file={self.key}")
        self.said(log, "it takes clear text only")
        self.outside(engines, "it speaks TLS, and this engine has no key")

    def test_what_was_sent_before_opens_nothing(self):
        engines = self.secured(1)
        between = secured.Between(engines.port[0])
        log, process = self.engine(between.port, f"cluster.psk_file={self.key}")
        self.said(log, "joined")
        process.terminate()
        harness.ended(process)
        between.close()
        before = self.refused(engines)
        taken = [bytes(sent) for sent in between.sent if len(sent) > 400]
        self.assertTrue(taken, "the engine has dialled through the port")
        for data in taken:
            secured.answer(engines.port[0], data)
        harness.wait_for(lambda: self.refused(engines) == before + len(taken), 30, "refusals")

    def test_an_engine_takes_no_link_with_itself(self):
        """RFC 9257, 4.1: what is between the engines leads a dial back to who dialled."""
        engines = self.secured(1)
        between = secured.Between(0)
        self.addCleanup(between.close)
        port = harness.cluster.free_port()
        between.to = port
        log, _ = self.engine(between.port, f"cluster.psk_file={self.key}", "log.level=debug",
                             f"cluster.port={port}")
        harness.wait_for(lambda: between.sent and len(between.sent[0]) > 400, 30, "Hellos")
        done = harness.run([harness.program("tools/peercachectl"), "--socket", log + ".sock",
                            "members"], capture_output=True, text=True)
        self.assertIn("1 up", done.stdout)
        self.assertEqual(len(engines.status(0)["members"]), 1)

    def test_bytes_that_come_slowly_end_in_time(self):
        engines = self.secured(1)
        begun = time.monotonic()
        with socket.create_connection(("127.0.0.1", engines.port[0])) as link, \
                contextlib.suppress(ConnectionError):
            link.settimeout(0.1)
            for byte in b"\x16\x03\x01\x40" + bytes(1000):
                link.sendall(bytes([byte]))
                with contextlib.suppress(TimeoutError):
                    if not link.recv(100):
                        break
        self.assertLess(time.monotonic() - begun, 8 * harness.SLOW)

    def test_a_handshake_takes_no_more_bytes_than_a_small_one_needs(self):
        engines = self.secured(1)
        record = b"\x16\x03\x03" + struct.pack(">H", 16000)
        first = b"\x01" + struct.pack(">I", 1 << 17)[1:] + bytes(16000 - 4)
        sent = record + first + (record + bytes(16000)) * 16
        _, seconds = secured.answer(engines.port[0], sent)
        self.assertLess(seconds, secured.REFUSED_SECONDS * harness.SLOW)
        self.assertEqual(self.refused(engines), 1)
        self.outside(engines, "begins with more than 4096 bytes")


class DataPath(Secured):
    """The software NIC's port, which other hosts reach as they reach a NIC."""

    def test_requests_without_a_token_get_nothing(self):
        port = harness.cluster.free_port()
        engines = self.secured(1, ["soft.link=tcp", f"soft.port={port}"])
        log, _ = self.engine(engines.port[0], f"cluster.psk_file={self.key}", "soft.link=tcp")
        engines.wait_members(2)
        ctl = [harness.program("tools/peercachectl"), "--socket"]
        harness.run([*ctl, engines.sockets[0], "put", "k", "--string", "v"], check=True)
        done = harness.run([*ctl, log + ".sock", "get", "k"], capture_output=True, text=True)
        self.assertEqual(done.stdout, "v", "queue pairs are connected")
        magic = int.from_bytes(b"pTc2", "little")
        for opcode in (0x10, 0x08):  # READ, WRITE
            request = b"".join(struct.pack("=II6I3Q16x", magic, opcode, qpn, 0, qpn, 0, 0x1001, 0,
                                           1 << 21, 64, qpn) for qpn in range(1, 40000))
            got, seconds = secured.answer(port, request)
            self.assertLess(seconds, secured.REFUSED_SECONDS * harness.SLOW)
            for at in range(0, len(got), 24):
                _, result, _, length = struct.unpack_from("=IIQQ", got, at)
                self.assertNotEqual(result, 0)
                self.assertEqual(length, 0)

    def test_a_silent_connection_ends(self):
        port = harness.cluster.free_port()
        self.secured(1, ["soft.link=tcp", f"soft.port={port}"])
        _, seconds = secured.answer(port, b"")
        self.assertLess(seconds, 4 * harness.SLOW)


class Keys(Secured):
    def test_keys_are_changed_under_load(self):
        """The new key comes second, then first, then alone, in both orders of the engines."""
        files = [os.path.join(self.folder, f"key{i}") for i in range(3)]
        for path in files:
            secured.write_keys(path, self.line)
        engines = self.secured(3, own=[[f"cluster.psk_file={path}"] for path in files])
        new = secured.keygen(os.path.join(self.folder, "other"))
        with secured.Load(engines) as load:
            for lines, order in (((self.line, new), (0, 1, 2)), ((new, self.line), (2, 1, 0)),
                                 ((new,), (1, 0, 2))):
                self.assertEqual(load.closed(), 0)
                for i in order:
                    read = engines.log(i).count("cluster.psk_file: ")
                    secured.write_keys(files[i], *lines)
                    harness.wait_for(lambda i=i, read=read: engines.log(i).count(
                        "cluster.psk_file: ") > read, 60, "the keys are read")
            harness.wait_for(load.closed, 30, "links with the old key end")
            engines.wait_members(3)
        load.check(self)
        old = os.path.join(self.folder, "old")
        secured.write_keys(old, self.line)
        log, _ = self.engine(engines.port[0], f"cluster.psk_file={old}")
        self.said(log, "it refuses the key of this engine")

    def test_sighup_to_the_keeper_reaches_the_engine(self):
        """Only a signal makes it read a file that has not changed."""
        engines = self.secured(1, keeper=True)
        engines.process[0].send_signal(signal.SIGHUP)
        harness.wait_for(lambda: engines.log(0).count("cluster.psk_file: 1 key") == 2, 30, "read")

    def test_a_link_with_a_key_that_was_taken_out_ends(self):
        engines = self.secured(1)
        log, _ = self.engine(engines.port[0], f"cluster.psk_file={self.copy()}",
                             "cluster.dead_after_ms=1000")
        engines.wait_members(2)
        other = os.path.join(self.folder, "other")
        secured.write_keys(self.key, secured.keygen(other))
        harness.wait_for(lambda: "its key is no longer in cluster.psk_file" in engines.log(0), 30,
                         "the link is closed")
        self.said(log, "it refuses the key of this engine")

    def copy(self):
        path = os.path.join(self.folder, "copy")
        secured.write_keys(path, self.line)
        return path

    def test_a_file_that_becomes_wrong_changes_nothing(self):
        engines = self.secured(2)
        os.chmod(self.key, 0o644)
        secured.write_keys(self.key + "2", "no key\n")
        os.rename(self.key + "2", self.key)
        harness.wait_for(lambda: "is no key" in engines.log(0), 30, "an error in the log")
        self.assertEqual([len(engines.status(i)["members"]) for i in range(2)], [2, 2])

    def test_settings_that_do_not_fit_are_refused(self):
        readable = os.path.join(self.folder, "readable")
        secured.keygen(readable)
        os.chmod(readable, 0o644)
        for settings, words in (
                (["cluster.security=required"], "peercachectl keygen"),
                (["cluster.security=none", f"cluster.psk_file={self.key}"], "take one of them out"),
                (["cluster.tls_dir=/x", f"cluster.psk_file={self.key}"], "take one of them out"),
                (["cluster.tls_dir=/x", "cluster.id=a/b"], "has a /"),
                ([f"cluster.psk_file={readable}"], "chmod 600"),
                (["cluster.psk_file=/nowhere/key"], "No such file")):
            command = [harness.program("engine/peercache-engine"), "--check"]
            for value in settings:
                command += ["--set", value]
            done = harness.run(command, capture_output=True, text=True)
            self.assertEqual(done.returncode, 2, done.stderr)
            self.assertIn(words, done.stderr)

    def test_keygen_makes_a_file_for_its_owner_and_overwrites_none(self):
        self.assertEqual(os.stat(self.key).st_mode & 0o777, 0o600)
        self.assertRegex(self.line, r"^[0-9a-f]{64}\n$")
        done = harness.run([harness.program("tools/peercachectl"), "keygen", self.key],
                           capture_output=True, text=True)
        self.assertEqual(done.returncode, 2)
        self.assertIn("not overwritten", done.stderr)
        with open(self.key, encoding="ascii") as file:
            self.assertIn(self.line, file.read())

    def test_the_key_is_nowhere_else(self):
        engines = self.secured(1)
        harness.run([harness.program("tools/peercachectl"), "--socket", engines.sockets[0],
                     "put", "k", "--string", "v"], check=True)
        report = harness.run([harness.program("tools/peercachectl"), "--socket",
                              engines.sockets[0], "--json", "status"], capture_output=True)
        key = self.line.strip()
        for text in (report.stdout, engines.log(0).encode()):
            self.assertNotIn(key.encode(), text)
            self.assertNotIn(bytes.fromhex(key), text)
        with open(f"/proc/{engines.process[0].pid}/environ", "rb") as file:
            self.assertNotIn(key.encode(), file.read())


class Wire(Secured):
    def test_links_with_a_key_show_no_name_and_no_page_key(self):
        self.shows(f"cluster.psk_file={self.key}")


if __name__ == "__main__":
    harness.main()
