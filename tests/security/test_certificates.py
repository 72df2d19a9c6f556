# SPDX-License-Identifier: Apache-2.0
"""A cluster with certificates (cluster.tls_dir): which engines it takes, with which name, and for
how long."""

import contextlib
import os
import re
import socket
import ssl
import struct
import sys
import time

import secured
from secured import harness
from test_security import Secured


class Certificates(Secured):
    """Engines of self.ca; self.folders has cluster.tls_dir of each."""

    def setUp(self):
        super().setUp()
        self.ca = secured.Authority(self.folder)
        self.folders, self.kept = [], []

    def certified(self, nodes, settings=(), first=(), **options):
        """`first`: settings of engine 0 alone."""
        engines = harness.cluster.Cluster(
            harness.BUILD, nodes, "16MiB", settings=[*settings, "engine.huge_pages=no",
                                                     "cluster.security=required"], **options)
        self.addCleanup(engines.stop)

        def secured_as():
            for name in engines.names():
                self.folders.append(os.path.join(self.folder, name))
                self.kept.append(self.ca.engine(self.folders[-1], name))
            engines.own = [[f"cluster.tls_dir={folder}"] for folder in self.folders]
            engines.own[0] += first
            return []
        engines.secured = secured_as
        engines.start()
        return engines

    def stranger(self, engines, said, why, by=None, **of):
        """An engine with a certificate of `by` is refused; both ends say why."""
        folder, port = os.path.join(self.folder, "stranger"), harness.cluster.free_port()
        of.setdefault("name", f"127.0.0.1:{port}")
        kept = (by or self.ca).engine(folder, **of)
        self.ca.trusted(folder, *([by] if by else []))
        log, _ = self.engine(engines.port[0], f"cluster.tls_dir={folder}",
                             f"cluster.port={port}")
        self.said(log, said)
        if why:
            self.outside(engines, why)
        return kept


class Strangers(Certificates):
    def test_a_certificate_of_another_ca_is_refused(self):
        engines = self.certified(2)
        self.stranger(engines, "it refuses the certificate of this engine (unknown CA)",
                      "its certificate is refused: unable to get local issuer certificate",
                      by=secured.Authority(self.folder, "other"))

    def test_a_name_that_the_certificate_has_not_is_refused(self):
        """Also that of a living member: the certificate decides, not who comes first."""
        engines = self.certified(2)
        self.stranger(engines, "cert.pem is not of this engine", None, name="another")
        port = harness.cluster.free_port()
        folder = os.path.join(self.folder, "thief")
        self.ca.engine(folder, f"127.0.0.1:{port}")
        answer = b""
        with socket.create_connection(("127.0.0.1", engines.port[0])) as link, \
                self.client(folder).wrap_socket(link) as tls, \
                contextlib.suppress(ssl.SSLEOFError, ConnectionError):
            tls.sendall(secured.hello(engines.names()[1].encode()))
            while more := tls.recv(1 << 16):
                answer += more
        self.assertIn(b"its certificate has no URI", answer)
        self.outside(engines, f"it says that it is {engines.names()[1]}, and its certificate")

    def client(self, folder):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        if folder:
            context.load_cert_chain(f"{folder}/cert.pem", f"{folder}/key.pem")
        return context

    def test_one_that_has_ended_or_not_begun_is_refused(self):
        engines = self.certified(1)
        for days, why in (((-9, -1), "certificate has expired"),
                          ((1, 9), "certificate is not yet valid")):
            folder = os.path.join(self.folder, why)
            self.ca.engine(folder, f"127.0.0.1:{harness.cluster.free_port()}", days=days)
            log, process = self.engine(engines.port[0], f"cluster.tls_dir={folder}")
            self.said(log, f"other engines refuse it: {why}")
            self.assertNotEqual(harness.ended(process), 0)
            self.handshake(engines, folder)
            self.outside(engines, f"its certificate is refused: {why}")

    def handshake(self, engines, folder, version=ssl.TLSVersion.TLSv1_3):
        """A client that does not ask what the engine asks itself is refused in time."""
        context, begun = self.client(folder), time.monotonic()
        context.maximum_version = version
        with self.assertRaises((ssl.SSLError, ConnectionError)), \
                socket.create_connection(("127.0.0.1", engines.port[0])) as link, \
                context.wrap_socket(link) as tls:
            while tls.recv(100):
                pass
            raise ConnectionError
        self.assertLess(time.monotonic() - begun, secured.REFUSED_SECONDS * harness.SLOW)

    def test_who_speaks_otherwise_is_refused(self):
        engines = self.certified(1)
        got, _ = secured.answer(engines.port[0], secured.hello())
        self.assertEqual(got, secured.PLAIN_REFUSED)
        self.handshake(engines, None)
        self.handshake(engines, self.folders[0], ssl.TLSVersion.TLSv1_2)
        self.outside(engines, "it shows no certificate")
        log, _ = self.engine(engines.port[0])
        self.said(log, "it speaks TLS, and this engine has no key")
        log, _ = self.engine(engines.port[0], f"cluster.psk_file={self.key}")
        self.said(log, "no link with 127.0.0.1")
        self.assertEqual(len(engines.status(0)["members"]), 1)

    def test_a_chain_that_is_too_long_takes_no_memory(self):
        engines = self.certified(1)
        folder = os.path.join(self.folder, "long")
        self.ca.engine(folder, "long")
        with open(f"{folder}/cert.pem", "a", encoding="ascii") as file:
            with open(f"{self.ca.folder}/ca.pem", encoding="ascii") as ca:
                file.write(ca.read() * 200)
        self.handshake(engines, folder)
        self.outside(engines, "no link with 127.0.0.1")


class Members(Certificates):
    def left(self, engines, why):
        """Engine 1 has lost its right: its links end, and then it is off the map."""
        harness.wait_for(lambda: why in engines.log(0), 30, why)
        harness.wait_for(lambda: len([m for m in engines.status(0)["members"]
                                      if m["state"] == "up"]) == 1, 30, "off the map")

    def test_a_revoked_member_is_put_out(self):
        engines = self.certified(2, ["cluster.dead_after_ms=1000"])
        self.ca.revoke(None, self.folders[0])
        harness.wait_for(lambda: engines.log(0).count("cluster.tls_dir: read") == 2, 30, "read")
        self.assertEqual(len(engines.status(0)["members"]), 2)
        self.ca.revoke(self.kept[1], self.folders[0])
        self.left(engines, "certificate revoked")
        self.assertIn("it refuses the certificate of this engine (certificate revoked)",
                      engines.log(1))

    def test_a_denied_member_is_put_out(self):
        engines = self.certified(2, ["cluster.dead_after_ms=1000"])
        secured.replace(f"{self.folders[0]}/deny", "# gone\nFFFF\n")
        harness.wait_for(lambda: "with a list deny" in engines.log(0), 30, "read")
        self.assertEqual(len(engines.status(0)["members"]), 2)
        secured.replace(f"{self.folders[0]}/deny", f"peercache:default/{engines.names()[1]}\n")
        self.left(engines, "it is on the list deny of cluster.tls_dir")

    def test_a_member_whose_certificate_ends_is_put_out(self):
        engines = self.certified(2, ["cluster.dead_after_ms=1000"])
        seconds = 6 * harness.SLOW
        self.ca.engine(self.folders[1], engines.names()[1], days=(-1, seconds / 86400))
        harness.wait_for(lambda: engines.log(1).count("cluster.tls_dir: read") == 2, 30, "read")
        health = engines.status(1)
        self.assertEqual([f["id"] for f in health["health"]["findings"]],
                         ["certificate_ends"])
        self.assertGreater(health["figures"]["certificate_ends_seconds"], time.time() - 60)
        engines.kill(0)
        engines.restart(0)
        self.left(engines, "its certificate has expired")

    def test_links_end_with_the_list_that_vouches_for_them(self):
        engines = self.certified(2, ["cluster.dead_after_ms=1000"])
        self.ca.revoke(None, self.folders[0], seconds=6 * harness.SLOW)
        self.left(engines, "CRL has expired")

    def test_files_that_are_wrong_change_nothing(self):
        engines = self.certified(2)
        for name, text, why in (("key.pem", "no key\n", "no key without a password"),
                                ("deny", "host-b\n", "host-b is neither"),
                                ("ca.pem", "", "it is empty")):
            path = f"{self.folders[0]}/{name}"
            before = None
            if os.path.exists(path):
                with open(path, encoding="ascii") as file:
                    before = file.read()
            secured.replace(path, text)
            os.chmod(path, 0o600)
            harness.wait_for(lambda w=why: w in engines.log(0), 30, why)
            if before is None:
                os.unlink(path)
            else:
                secured.replace(path, before)
                os.chmod(path, 0o600)
        self.assertEqual([len(engines.status(i)["members"]) for i in range(2)], [2, 2])

    def test_the_key_of_another_certificate_and_one_that_others_read_are_refused(self):
        self.ca.engine(os.path.join(self.folder, "a"), "a")
        self.ca.engine(os.path.join(self.folder, "b"), "b")
        folder = os.path.join(self.folder, "a")
        for change, why in ((lambda: os.chmod(folder, 0o777), "chmod 755"),
                            (lambda: os.chmod(folder, 0o755) or
                             self.ca.engine(folder, "c"), "peercache:default/a"),
                            (lambda: self.ca.engine(folder, "a") and
                             os.chmod(f"{folder}/key.pem", 0o644), "chmod 600"),
                            (lambda: os.rename(os.path.join(self.folder, "b/key.pem"),
                                               f"{folder}/key.pem"), "not the key of cert.pem")):
            change()
            for command in ([harness.program("engine/peercache-engine"), "--check"],
                            [harness.program("tools/peercachectl"), "doctor"]):
                done = harness.run([*command, "--set", f"cluster.tls_dir={folder}", "--set",
                                    "engine.name=a"], capture_output=True, text=True)
                self.assertRegex(re.sub(r"\s+", " ", done.stdout + done.stderr), why)


class DataPath(Certificates):
    """What a host that was put out can still read: it has queue pairs, keys and tokens."""

    def read(self, port, request):
        """The bytes that the request gets from the software NIC: a head and a page, or none."""
        with socket.create_connection(("127.0.0.1", port), timeout=10 * harness.SLOW) as link, \
                contextlib.suppress(ConnectionError), link.makefile("rb") as got:
            link.sendall(request)
            head = got.read(24)
            if len(head) == 24 and (of := struct.unpack("=IIQQ", head))[1] == 0:
                return got.read(of[3])
        return b""

    def requested(self, capture, port):
        """A READ that an engine sent to that port of another one."""
        return next(data[i:i + 72] for data in capture.sent(port)
                    if (i := data.find(b"pTc2\x10\0\0\0")) >= 0 and len(data) >= i + 72)

    def test_it_reads_nothing_from_a_second_later_on(self):
        self.alone()
        port = harness.cluster.free_port()
        with secured.Capture(self) as capture:
            # by its silence it would be removed after ten minutes
            engines = self.certified(2, ["cluster.dead_after_ms=600000"],
                                     [f"soft.port={port}"], link="tcp")
            ctl = [harness.program("tools/peercachectl"), "--socket"]
            harness.run([*ctl, engines.sockets[0], "put", "k", "--string", "of a prompt"],
                        check=True)
            harness.run([*ctl, engines.sockets[1], "get", "k"], check=True, capture_output=True)
            request = self.requested(capture, port)
        self.assertIn(b"of a prompt", self.read(port, request))
        starved = self.starved(engines)
        begun = time.monotonic()
        secured.replace(f"{self.folders[0]}/deny", f"peercache:default/{engines.names()[1]}\n")
        harness.wait_for(lambda: not self.read(port, request), 30, "the READ is refused")
        took, starved = time.monotonic() - begun, self.starved(engines) - starved
        print(f"put out after {took:.2f} s, starved {starved:.2f} s", file=sys.stderr)
        # a second until the file is read, two if the host lets no dial come through
        self.assertLess(took, 5 * harness.SLOW + starved)
        counters = engines.status(0)["counters"]
        self.assertEqual((counters["members_barred"], counters["members_died"]), (1, 0))
        figures = engines.status(0)["figures"]
        self.assertEqual((figures["connections_served"], figures["connections"]), (0, 0))
        done = harness.run([*ctl, engines.sockets[1], "get", "k"], capture_output=True)
        self.assertNotEqual(done.returncode, 0)
        self.assertEqual(self.read(port, request), b"")
        os.unlink(f"{self.folders[0]}/deny")  # it is in again
        harness.wait_for(lambda: b"of a prompt" in harness.run(
            [*ctl, engines.sockets[1], "get", "k"], capture_output=True).stdout, 30, "a hit")
        self.assertEqual(self.read(port, request), b"")


class Wire(Certificates):
    def test_links_with_certificates_show_no_name_and_no_page_key(self):
        self.shows(start=lambda: self.certified(2))


class Rotation(Certificates):
    def test_certificates_and_their_ca_are_changed_under_load(self):
        """Both CAs are believed, new certificates, then the new CA alone, in both orders."""
        engines = self.certified(3)
        new, read = secured.Authority(self.folder, "new"), [1] * 3

        def step(change, order):
            for i in order:
                change(self.folders[i], engines.names()[i])
                read[i] += 1
                harness.wait_for(
                    lambda i=i: engines.log(i).count("cluster.tls_dir: read") == read[i], 60,
                    "read")
        with secured.Load(engines) as load:
            step(lambda folder, name: self.ca.trusted(folder, new), (0, 1, 2))
            step(lambda folder, name: new.engine(folder, name, files=("key", "cert")), (2, 1, 0))
            self.assertEqual(load.closed(), 0)
            step(lambda folder, name: new.trusted(folder), (1, 0, 2))
            harness.wait_for(load.closed, 30, "links with certificates of the old CA end")
            engines.wait_members(3)
        load.check(self)


if __name__ == "__main__":
    harness.main()
