# SPDX-License-Identifier: Apache-2.0
"""Shared by the tests of this folder: clusters with keys, strangers, and what is between."""

import contextlib
import os
import select
import socket
import struct
import sys
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))),
                                "cluster"))
import harness  # noqa: E402
import played_member  # noqa: E402

REFUSED_SECONDS = 1  # within which a stranger is refused
PLAIN_REFUSED = bytes([0x15, 3, 1, 0, 2, 2, 70])  # the alert protocol_version, in clear


def keygen(path):
    """Makes a file with a key; returns its line."""
    harness.run([harness.program("tools/peercachectl"), "keygen", path], check=True,
                capture_output=True)
    with open(path, encoding="ascii") as file:
        return [line for line in file if not line.startswith("#")][0]


class Authority:
    """A CA with the program of OpenSSL, which makes certificates that peercachectl does not."""

    CONFIG = """[ca]
default_ca = own
[own]
database = index.txt
serial = serial
crlnumber = number
new_certs_dir = .
certificate = ca.pem
private_key = ca-key.pem
default_md = sha256
policy = any
unique_subject = no
[any]
commonName = optional
"""

    KEYS = ("EC", "-pkeyopt", "ec_paramgen_curve:P-256")

    def __init__(self, folder, name="ca"):
        self.folder, self.made = os.path.join(folder, name), 0
        os.makedirs(self.folder)
        for file, text in (("config", self.CONFIG), ("index.txt", ""), ("serial", "1000\n"),
                           ("number", "01\n")):
            self.write(file, text)
        self.key("ca-key.pem")
        self.openssl("req", "-x509", "-new", "-key", "ca-key.pem", "-subj", "/CN=" + name,
                     "-days", "3650", "-out", "ca.pem")

    def write(self, name, text):
        with open(os.path.join(self.folder, name), "w", encoding="ascii") as file:
            file.write(text)

    def openssl(self, *words):
        harness.run(["openssl", *words], cwd=self.folder, check=True, capture_output=True)

    def key(self, path):
        self.openssl("genpkey", "-algorithm", *self.KEYS, "-out", path)

    def engine(self, folder, name, days=(-1, 30), cluster="default", files=("key", "cert", "ca"),
               more=""):
        """Writes what cluster.tls_dir of that engine has; days from now on; `more` alternative
        names. Returns where the CA keeps the certificate."""
        self.made += 1
        new = os.path.join(self.folder, f"engine{self.made}")
        os.makedirs(new)
        self.key(f"{new}/key.pem")
        self.write("extensions", f"subjectAltName=URI:peercache:{cluster}/{name}{more}\n")
        self.openssl("req", "-new", "-key", f"{new}/key.pem", "-subj", f"/CN={self.made}", "-out",
                     "request")
        begin, end = (time.strftime("%Y%m%d%H%M%SZ", time.gmtime(time.time() + day * 86400))
                      for day in days)
        self.openssl("ca", "-batch", "-config", "config", "-in", "request", "-notext",
                     "-startdate", begin, "-enddate", end, "-extfile", "extensions", "-out",
                     f"{new}/cert.pem")
        self.trusted(new)
        os.makedirs(folder, exist_ok=True)
        for file in files:
            os.rename(f"{new}/{file}.pem", f"{folder}/{file}.pem")
        return f"{self.folder}/{0x1000 + self.made - 1:X}.pem"

    def trusted(self, folder, *others):
        """The folder believes this CA, and those others."""
        text = ""
        for ca in (self, *others):
            with open(os.path.join(ca.folder, "ca.pem"), encoding="ascii") as file:
                text += file.read()
        replace(f"{folder}/ca.pem", text)

    def revoke(self, kept, *folders, seconds=86400):
        """Puts the certificate on the CRL, which ends then and which the folders get."""
        if kept:
            self.openssl("ca", "-config", "config", "-revoke", kept)
        self.openssl("ca", "-config", "config", "-gencrl", "-crlsec", str(int(seconds)), "-out",
                     "crl")
        with open(os.path.join(self.folder, "crl"), encoding="ascii") as file:
            text = file.read()
        for folder in folders:
            replace(f"{folder}/crl.pem", text)


class Capture:
    """All packets of this process's network, from now on."""

    def __init__(self, case):
        try:
            self.socket = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(3))
        except PermissionError:
            case.skipTest("skipped: needs the right to see packets (CAP_NET_RAW)")
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 << 20)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.socket.close()

    def sent(self, *ports):
        """The bytes of each TCP packet from or to one of the ports."""
        wanted = {struct.pack(">H", port) for port in ports}
        self.socket.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while packet := self.socket.recv(1 << 17):
                tcp = packet[4 * (packet[0] & 15):]
                if packet[9:10] == b"\6" and wanted & {tcp[0:2], tcp[2:4]}:
                    yield tcp[4 * (tcp[12] >> 4):]


class Load:
    """Gets the key k of all engines, again and again, while its body runs; keeps what missed."""

    def __init__(self, engines):
        self.engines, self.missed, self.gets = engines, [], 0
        self.ended = threading.Event()
        self.threads = [threading.Thread(target=self.read, args=[path])
                        for path in engines.sockets]

    def read(self, path):
        while not self.ended.is_set():
            done = harness.run([harness.program("tools/peercachectl"), "--socket", path, "get",
                                "k"], capture_output=True, text=True)
            self.gets += 1
            if done.stdout != "v":
                self.missed.append(done.stderr)

    def __enter__(self):
        harness.run([harness.program("tools/peercachectl"), "--socket", self.engines.sockets[0],
                     "put", "k", "--string", "v"], check=True)
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self.ended.set()
        for thread in self.threads:
            thread.join()

    def closed(self):
        return sum(self.engines.log(i).count("is closed: ") for i in range(self.engines.nodes))

    def check(self, case):
        """None missed, no member died."""
        case.assertEqual(self.missed, [])
        case.assertGreater(self.gets, self.engines.nodes)
        for i in range(self.engines.nodes):
            status = self.engines.status(i)
            case.assertEqual(status["counters"]["members_died"], 0)
            case.assertEqual(len(status["members"]), self.engines.nodes)


def replace(path, text):
    with open(path + ".new", "w", encoding="ascii") as file:
        file.write(text)
    os.rename(path + ".new", path)


def write_keys(path, *lines):
    """Replaces a file of keys at once, as an operator does."""
    with open(os.open(path + ".new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w",
              encoding="ascii") as file:
        file.write("".join(lines))
    os.rename(path + ".new", path)


def answer(port, data, seconds=10):
    """What an engine answers to these bytes until it closes, and after which time it closed."""
    begun = time.monotonic()
    got = b""
    with socket.create_connection(("127.0.0.1", port), timeout=seconds * harness.SLOW) as link:
        try:
            link.sendall(data)
            while more := link.recv(1 << 16):
                got += more
        except ConnectionError:
            pass
    return got, time.monotonic() - begun


def hello(name=b"stranger"):
    """A frame with the Hello of a member that fits."""
    text = played_member.version() + played_member.member(name, 0x075bcd15, 10) + \
        played_member.agreement()
    return played_member.frame(b"\x0a" + bytes([len(text)]) + text)


class Between:
    """Connects each that comes to a port with another port; keeps what the first end sends."""

    def __init__(self, to):
        self.to, self.sent = to, []
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.ended = threading.Event()
        self.threads = [threading.Thread(target=self.accept, daemon=True)]
        self.threads[0].start()

    def accept(self):
        while not self.ended.is_set():
            if select.select([self.listener], [], [], 0.1)[0]:
                near = self.listener.accept()[0]
                self.threads.append(threading.Thread(target=self.carry, args=[near], daemon=True))
                self.threads[-1].start()

    def carry(self, near):
        sent = bytearray()
        self.sent.append(sent)
        with near:
            try:
                with socket.create_connection(("127.0.0.1", self.to)) as far:
                    while not self.ended.is_set():
                        for end in select.select([near, far], [], [], 0.1)[0]:
                            data = end.recv(1 << 16)
                            if not data:
                                return
                            (far if end is near else near).sendall(data)
                            if end is near:
                                sent += data
            except OSError:
                pass

    def close(self):
        self.ended.set()
        for thread in self.threads:
            thread.join()
        self.listener.close()
