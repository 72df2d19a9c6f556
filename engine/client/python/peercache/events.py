# SPDX-License-Identifier: Apache-2.0
"""Events of pages, for routers: what was stored and what is gone, over ZeroMQ, in the shape in
which Mooncake's master publishes them. A part of peercache-routers; one thread.

Clients tell the texts of the keys that they store (texts.c); engines know only hashes. This side
asks the directory whether the pages can be found, in turns: first, and then again until they are
gone. Asking counts no page as used.
"""

import collections
import ctypes
import errno
import os
import socket
import struct
import sys
import time
from typing import Any, Iterator

from peercache import Session

HIT, MISS = 0, 1  # enum pc_result
TURN_S = 0.1  # between two turns
TURN_KEYS = 4096  # that one turn looks up
NEW_S = 10.0  # after which a page that was to be stored, and is not found, is given up
SEND_MAX = 64  # events of one message
KEY_BYTES_MAX = 1024  # of config/limits.h
DATAGRAM = 32768  # DATAGRAM_BYTES of texts.c
PUB, LINGER, SNDHWM, DONTWAIT, SNDMORE = 1, 17, 23, 1, 2  # of zmq.h
HWM = 10000  # messages that wait for one subscriber


def pack(value: Any) -> bytes:
    """The value in msgpack."""
    if value is None:
        return b"\xc0"
    if isinstance(value, str):
        text = value.encode("utf-8", "surrogateescape")
        return b"\xdb" + struct.pack(">I", len(text)) + text
    if isinstance(value, int):
        return b"\xcf" + struct.pack(">Q", value)
    if isinstance(value, dict):
        return b"\xdf" + struct.pack(">I", len(value)) + b"".join(
            pack(name) + pack(item) for name, item in value.items())
    return b"\xdd" + struct.pack(">I", len(value)) + b"".join(map(pack, value))


class Publisher:
    """A PUB socket of libzmq. Raises OSError."""

    def __init__(self, endpoint: str) -> None:
        self.zmq = ctypes.CDLL("libzmq.so.5", use_errno=True)
        for name in ("zmq_ctx_new", "zmq_socket"):
            getattr(self.zmq, name).restype = ctypes.c_void_p
        self.zmq.zmq_strerror.restype = ctypes.c_char_p
        context = ctypes.c_void_p(self.zmq.zmq_ctx_new())
        self.socket = ctypes.c_void_p(self.zmq.zmq_socket(context, PUB))
        for option, number in ((LINGER, 0), (SNDHWM, HWM)):
            value = ctypes.c_int(number)
            self.zmq.zmq_setsockopt(self.socket, option, ctypes.byref(value),
                                    ctypes.c_size_t(ctypes.sizeof(value)))
        if self.zmq.zmq_bind(self.socket, endpoint.encode()):
            number = self.zmq.zmq_errno()
            raise OSError(number, f"{endpoint}: {self.zmq.zmq_strerror(number).decode()}")

    def send(self, parts: list[bytes]) -> None:
        """Never waits: what a subscriber does not take is lost to it, as the numbers tell."""
        for n, part in enumerate(parts):
            more = SNDMORE if n + 1 < len(parts) else 0
            self.zmq.zmq_send(self.socket, part, ctypes.c_size_t(len(part)), DONTWAIT | more)


def texts_of(datagram: bytes) -> Iterator[bytes]:
    """The namespace and the keys of a datagram of texts.c."""
    at = 0
    while at + 2 <= len(datagram):
        length = datagram[at] | datagram[at + 1] << 8
        yield datagram[at + 2:at + 2 + length]
        at += 2 + length


def told(error: Exception) -> None:
    print(f"peercache-routers: events: {error}", file=sys.stderr, flush=True)


class Events:
    """The pages that are known, and what is published of them."""

    def __init__(self, session: Session, publisher: Any, options: Any) -> None:
        self.session, self.publisher = session, publisher
        self.backend, self.most = options.backend, options.known
        # (namespace, key) -> when a client told it, or 0.0: it was found; the first is the next to
        # look up
        self.pages: collections.OrderedDict[tuple[str, bytes], float] = collections.OrderedDict()
        self.events: list[dict[str, Any]] = []
        self.number = self.sequence = 0
        self.inbox = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        if os.path.exists(options.texts):
            os.unlink(options.texts)
        self.inbox.bind(options.texts)
        self.inbox.setblocking(False)

    def event(self, kind: str, page: tuple[str, bytes]) -> None:
        """Adds one to the next message."""
        stored = {"parent_hash": None, "token_ids": None} if kind == "stored" else {}
        self.events.append({
            "event_id": self.number, "timestamp": int(time.time() * 1000), "event_type": kind,
            "model_name": None, "block_size": None, "additional_salt": page[0] or None,
            "lora_name": None, "tenant_id": "default", "backend_id": self.backend, "medium": "cpu",
            "dp_rank": 0, "group_id": None,
            "object_key": page[1].decode("utf-8", "surrogateescape"), "seq_hashes": [],
            "base_block_idx": None, **stored})
        self.number += 1
        if len(self.events) == SEND_MAX:
            self.flush()

    def flush(self) -> None:
        """Sends what there is."""
        if self.events:
            self.publisher.send([b"", struct.pack(">Q", self.sequence), pack(
                [int(time.time() * 1000), self.events, 0])])
            self.sequence += 1
            self.events = []

    def hear(self) -> None:
        """Takes what clients have told. Pages that there is no room for are forgotten, those that
        were looked up last first."""
        for _ in range(TURN_KEYS):
            try:
                name, *keys = texts_of(self.inbox.recv(DATAGRAM))
                space = name.decode()
            except BlockingIOError:
                return
            except ValueError:  # it is no text
                continue
            for key in keys if "\0" not in space else ():
                page = (space, key)
                if 0 < len(key) <= KEY_BYTES_MAX and page not in self.pages:
                    self.pages[page] = time.monotonic()
                    self.pages.move_to_end(page, last=False)  # it is looked up first
            while len(self.pages) > self.most:
                page, new = self.pages.popitem()
                if not new:
                    self.event("removed", page)

    def look(self) -> None:
        """Looks up the pages whose turn it is."""
        turn = [self.pages.popitem(last=False) for _ in range(min(TURN_KEYS, len(self.pages)))]
        by_space = collections.defaultdict(list)
        for page, new in turn:
            by_space[page[0]].append((page, new))
        for space, pages in by_space.items():
            try:
                results = self.session.match(space, [page[1] for page, _ in pages], 1000, True)[4]
            except (OSError, ValueError) as error:
                told(error)
                # no page can have a wrong name; the others are looked up again
                if getattr(error, "errno", errno.EINVAL) != errno.EINVAL:
                    self.pages.update(pages)
                continue
            for (page, new), result in zip(pages, results):
                if result == HIT and new:
                    self.event("stored", page)
                elif result == MISS and not new:
                    self.event("removed", page)
                    continue
                elif result != HIT and new and time.monotonic() - new > NEW_S:
                    continue
                self.pages[page] = 0.0 if result == HIT else new
                if result != HIT and new:  # its set goes on
                    self.pages.move_to_end(page, last=False)

    def run(self) -> None:
        """Never returns."""
        while True:
            started = time.monotonic()
            try:
                self.hear()
                self.look()
                self.flush()
            except OSError as error:
                told(error)
            time.sleep(max(0.01, TURN_S - (time.monotonic() - started)))


def opened(session: Session, options: Any) -> Events:
    """Events that run() publishes. options: those of peercache-routers. Raises OSError."""
    if not options.texts:
        raise OSError(errno.EINVAL, "--events needs --texts PATH, which clients have in "
                      "$PEERCACHE_EVENTS")
    return Events(session, Publisher(options.events), options)
