# SPDX-License-Identifier: Apache-2.0
"""A process that registers memory with a lent NIC as it should not; started by test_import.py.

Prints what the engine answers to REGION_IMPORT: its status and text. `leave` ends without it.
"""

import ctypes
import errno
import json
import mmap
import os
import re
import socket
import struct
import sys
import time

BYTES = 1 << 16
HELLO, LEND, REGION_IMPORT = 1, 8, 9
LOCAL_WRITE = 1


class Region(ctypes.Structure):  # struct ibv_mr
    _fields_ = [("context", ctypes.c_void_p), ("pd", ctypes.c_void_p), ("addr", ctypes.c_void_p),
                ("length", ctypes.c_size_t), ("handle", ctypes.c_uint32),
                ("lkey", ctypes.c_uint32), ("rkey", ctypes.c_uint32)]


class Client:
    def __init__(self, path):
        header = os.path.join(os.path.dirname(__file__), "../../engine/abi/segment.h")
        with open(header, encoding="utf-8") as file:
            self.version = int(re.search(r"ABI_VERSION (\d+)u", file.read()).group(1))
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket.connect(path)
        self.serial = 0
        self.ask(HELLO, 0, 0, [os.pidfd_open(os.getpid())])

    def ask(self, kind, a, b, fds=()):
        """Sends a request. Returns status, a, b, text and descriptors of the reply."""
        self.serial += 1
        request = struct.pack("<IHHIIQQ", 0x50434131, self.version, kind, self.serial, 0, a, b)
        socket.send_fds(self.socket, [request], list(fds))
        reply, fds, _, _ = socket.recv_fds(self.socket, 256, 64)
        _, _, _, _, status, a, b, text = struct.unpack("<IHHIiQQ224s", reply)
        return status, a, b, text.split(b"\0")[0].decode(), fds


    def lend(self):
        """Asks for the NIC. The engine may still deregister what another process has left."""
        for _ in range(500):
            reply = self.ask(LEND, 0, BYTES)
            if reply[0] != -errno.EAGAIN:
                break
            time.sleep(0.02)
        return reply


def registered(fd, domain, how):
    """Registers BYTES of memory as libpeercache does. Returns address, handle and lkey."""
    verbs = ctypes.CDLL("libibverbs.so.1", use_errno=True)
    for name in ("ibv_import_device", "ibv_import_pd", "ibv_alloc_pd", "ibv_reg_mr_iova2"):
        getattr(verbs, name).restype = ctypes.c_void_p
    memory = mmap.mmap(-1, BYTES)
    at = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    context = verbs.ibv_import_device(fd)
    pd = verbs.ibv_alloc_pd(ctypes.c_void_p(context)) if how == "domain" else \
        verbs.ibv_import_pd(ctypes.c_void_p(context), domain)
    mr = Region.from_address(verbs.ibv_reg_mr_iova2(
        ctypes.c_void_p(pd), ctypes.c_void_p(at), ctypes.c_size_t(BYTES), ctypes.c_uint64(at),
        LOCAL_WRITE))
    verbs.ibv_close_device(ctypes.c_void_p(context))
    return at, mr.handle, mr.lkey


def main(how):
    client = Client(os.environ["PEERCACHE_SOCKET"])
    if how == "ask":
        status, _, _, text, _ = client.ask(LEND, 0, BYTES)
        return {"status": status, "text": text}
    if how == "unlent":
        at, handle, lkey = 4096, 1, 1
    else:
        status, domain, _, text, fds = client.lend()
        assert status == 0 and len(fds) == 2, text
        loan = socket.socket(fileno=fds[0])
        at, handle, lkey = registered(fds[1], domain, how)
        if how == "hold":  # until the test ends it, or says what to do
            print(json.dumps("holds"), flush=True)
            sys.stdin.readline()
        if how == "leave":
            return None
        if how != "kept":
            loan.send(b"x")
        loan = loan if how == "kept" else loan.close()
    length = BYTES - 4096 * (how == "length")
    # The engine's own registrations are the first ones of its device.
    handle = {"handle": handle + 1000, "engine": int(sys.argv[-1]) if how == "engine" else 0}.get(
        how, handle)
    at += 4096 * (how == "base")
    keys = os.memfd_create("keys")
    os.write(keys, struct.pack("<II", handle, lkey + (how == "lkey"))[:4 if how == "short" else 8])
    fds = [] if how == "none" else [os.open("/dev/null", 0) if how == "null" else keys]
    status, _, _, text, _ = client.ask(REGION_IMPORT, at, length, fds)
    if how == "twice":
        _, _, _, _, fds_again = client.lend()
        for fd in reversed(fds_again):
            os.close(fd)
        status, _, _, text, _ = client.ask(REGION_IMPORT, at, length, fds)
    return {"status": status, "text": text}


print(json.dumps(main(sys.argv[1])), flush=True)
os._exit(0)
