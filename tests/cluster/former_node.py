# SPDX-License-Identifier: Apache-2.0
"""A node of PeerCache 0.8 as others see it: what its RpcClient and RpcServer send, without and with
msgpack. With the folder of an installed peercache 0.8.4 in $PEERCACHE_FORMER it is the real one."""

import contextlib
import json
import os
import re
import socket
import struct
import subprocess
import sys
import threading

FOLDER = os.environ.get("PEERCACHE_FORMER", "")
NODE = {"node_id": "10.0.0.5-1a2b", "control_host": "10.0.0.5", "control_port": 40123,
        "rdma_host": "10.0.0.5", "rdma_port": 40124, "role": "inference"}
REGISTER_MSGPACK = (b"\x92\xa8register\x81\xa4node\x86\xa7node_id\xad10.0.0.5-1a2b"
                    b"\xaccontrol_host\xa810.0.0.5\xaccontrol_port\xcd\x9c\xbb"
                    b"\xa9rdma_host\xa810.0.0.5\xa9rdma_port\xcd\x9c\xbc\xa4role\xa9inference")


def received(connection, count):
    """Exactly `count` bytes; None: the connection has ended."""
    got = b""
    while len(got) < count:
        more = connection.recv(count - len(got))
        if not more:
            return None
        got += more
    return got


def body_of(connection):
    header = received(connection, 4)
    return header and received(connection, struct.unpack(">I", header)[0])


def ask(port, body):
    """The body that answers a request, as RpcClient.call() reads it."""
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(struct.pack(">I", len(body)) + body)
        return body_of(connection)


def register(port, msgpack=False):
    """What DiscoveryClient does first. Returns [ok, result]."""
    body = REGISTER_MSGPACK if msgpack else json.dumps(["register", {"node": NODE}]).encode()
    answer = ask(port, body)
    if not msgpack:
        return json.loads(answer)
    text = re.fullmatch(rb"\x92\xc2\xd9(.)(.*)", answer, re.DOTALL)
    assert text and text[1][0] == len(text[2]), answer
    return [False, text[2].decode()]


class Meta:
    """Its DiscoveryServer on a port of loopback. broken: frames that it could not read, each of
    which is a traceback in its log."""

    def __init__(self, msgpack=False):
        self.msgpack, self.broken, self.asked = msgpack, 0, 0
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def run(self):
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self.listener.accept()
                with connection:
                    self.serve(connection)

    def serve(self, connection):
        body = body_of(connection)
        while body is not None:
            try:
                method = self.method(body)
            except ValueError:
                self.broken += 1
                return
            self.asked += 1
            known = method == "members"
            connection.sendall(self.answer(known))
            body = body_of(connection)

    def method(self, body):
        if not self.msgpack:
            return json.loads(body.decode())[0]
        name = re.match(rb"\x92[\xa1-\xbf](\w+)[\x80-\x8f]", body)
        if not name:
            raise ValueError("no array of two")
        return name[1].decode()

    def answer(self, known):
        body = json.dumps([known, {"members": [NODE]}]).encode()
        if self.msgpack:
            body = b"\x92\xc3\x81\xa7members\x90"
        return struct.pack(">I", len(body)) + body

    def close(self):
        self.listener.shutdown(socket.SHUT_RDWR)
        self.thread.join()
        self.listener.close()


class RealMeta:
    """The program peercache-meta of an installed 0.8.4."""

    def __init__(self, port, log):
        self.port, self.log = port, log
        with open(log, "wb") as file:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "peercache.examples.launch_meta", "--bind",
                 f"127.0.0.1:{port}"], stdout=file, stderr=file,
                env={**os.environ, "PYTHONPATH": FOLDER})

    @property
    def broken(self):
        with open(self.log, encoding="utf-8", errors="replace") as file:
            return file.read().count("Traceback")

    def close(self):
        self.process.terminate()
        self.process.wait()
