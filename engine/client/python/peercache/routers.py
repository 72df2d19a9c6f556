# SPDX-License-Identifier: Apache-2.0
"""What routers ask: which hosts have the pages of a prompt. `Directory` in Python; the program
peercache-routers answers it over HTTP, on a host that has an engine.

The port of an engine does not answer it: its thread sees figures only and must not wait, and only
clients of an engine READ the directory.
"""

import argparse
import contextlib
import http.server
import json
import re
import socket
import sys
import threading
import time
import urllib.parse
from typing import Any, Optional, Sequence

from peercache import Session, events

KEYS_MAX = 65536  # of one question (PC_BATCH_MAX)
BODY_MAX = 8 << 20  # bytes of one question
AT_ONCE = 64  # connections that are served; others wait in the kernel
REQUEST_S = 5.0  # for a part of a request to come in
CONNECTION_S = 10.0  # for all of it, and its answer
MATCH_MS = 500  # for an answer of the directory
NAMES_S = 1.0  # between two looks at the members for a name that is not known
VALUES_MAX = 2 * KEYS_MAX + 32  # texts and marks between them in JSON


class Directory:
    """Session.match() with the names of the hosts. Any thread."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.lock = threading.Lock()
        self.members: dict[str, tuple[str, str]] = {}  # ref -> name and address
        self.looked = 0.0

    def member(self, ref: str) -> tuple[str, str]:
        """Name and address of the engine with this ref; "" and "" while they are not known."""
        with self.lock:
            if ref not in self.members and time.monotonic() - self.looked >= NAMES_S:
                self.members = {m["incarnation"][-8:]: (m["name"], m["address"])
                                for m in json.loads(self.session.report())["members"]}
                self.looked = time.monotonic()
            return self.members.get(ref, ("", ""))

    def match(self, name_space: str, keys: Sequence[Any], timeout_ms: int = MATCH_MS
              ) -> dict[str, Any]:
        """What /api/match answers (README.md). Raises OSError, ValueError, TypeError."""
        prefix, unknown, hosts, holders = self.session.match(name_space, keys, timeout_ms)
        listed = []
        for ref, leading, pages, on_disk, here in holders:
            name, address = self.member(ref)
            listed.append({"name": name, "address": address, "ref": ref, "here": here,
                           "prefix": leading, "pages": pages, "pages_on_disk": on_disk})
        return {"keys": len(keys), "prefix": prefix, "unknown": unknown, "holders_all": hosts,
                "holders": listed}


def crowded(text: str) -> bool:
    """True if JSON has far more values than a question may have. Raises ValueError."""
    if sum(map(text.count, "[{,")) <= KEYS_MAX + 16:  # also within texts
        return False
    values, at, end = 0, -1, 0
    while at < len(text) and values <= VALUES_MAX:
        at = text.find('"', end) % (len(text) + 1)  # or the end
        values += 1 + sum(text.count(mark, end, at) for mark in "[{,")
        if at < len(text):
            end = json.decoder.scanstring(text, at + 1, False)[1]
    return values > VALUES_MAX


def question(body: bytes, is_json: bool) -> tuple[str, list[bytes]]:
    """Namespace and keys of a request. Raises ValueError."""
    text = body.decode("utf-8", "surrogateescape")
    if is_json:
        if crowded(text):
            raise ValueError(f"give an object with namespace and at most {KEYS_MAX} keys")
        asked = json.loads(text)
        if not isinstance(asked, dict):
            raise ValueError("give an object with namespace and keys")
        space, keys = asked.get("namespace", ""), asked.get("keys")
    else:
        fields = urllib.parse.parse_qs(text, keep_blank_values=True, max_num_fields=KEYS_MAX + 1)
        space, keys = fields.get("namespace", [""])[-1], fields.get("key", [])
    if not isinstance(space, str) or "\0" in space or not isinstance(keys, list) or \
            not all(isinstance(key, str) for key in keys) or not 0 < len(keys) <= KEYS_MAX:
        raise ValueError(f"give a namespace and 1 to {KEYS_MAX} keys, which are texts")
    return space, [key.encode() for key in keys]


class Handler(http.server.BaseHTTPRequestHandler):
    """One connection. A thread of its own."""

    timeout = REQUEST_S
    server_version = "peercache-routers"
    server: "Server"

    def answer(self, status: int, document: dict[str, Any]) -> None:
        """Sends a document, and ends the connection after an error."""
        text = json.dumps(document).encode() + b"\n"
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(text)

    def serve(self, text: bytes, is_json: bool) -> None:
        """Answers a request whose arguments these are."""
        if urllib.parse.urlsplit(self.path).path != "/api/match":
            self.answer(404, {"error": "there is /api/match"})
            return
        try:
            with self.server.parsing:
                asked = question(text, is_json)
            del text
            found = self.server.directory.match(*asked)
        except (ValueError, TypeError, RecursionError) as error:
            self.answer(400, {"error": str(error)})
        except OSError as error:  # EINVAL: a key is empty or too long
            self.answer(400 if error.errno == 22 else 503, {"error": error.strerror})
        else:
            self.answer(200, found)

    def do_GET(self) -> None:  # pylint: disable=invalid-name
        """?namespace=N&key=K&key=K: as many keys as a line of 64 KiB has room for."""
        self.serve(urllib.parse.urlsplit(self.path).query.encode(), False)

    do_HEAD = do_GET

    def do_POST(self) -> None:  # pylint: disable=invalid-name
        """The same text as a body, or JSON: {"namespace": N, "keys": [K, ...]}."""
        length = self.headers.get("Content-Length", "")
        if not re.fullmatch("[0-9]{1,10}", length):
            self.answer(411, {"error": "give a Content-Length"})
        elif int(length) > BODY_MAX:
            self.answer(413, {"error": f"at most {BODY_MAX} bytes"})
        else:
            self.serve(self.rfile.read(int(length)), "json" in self.headers.get("Content-Type", ""))

    def log_message(self, format: str, *args: Any) -> None:  # pylint: disable=redefined-builtin
        """No line for each request."""


class Server(http.server.ThreadingHTTPServer):
    """Serves AT_ONCE connections at a time; the rest waits in the kernel's queue."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, address: tuple[str, int], directory: Directory) -> None:
        super().__init__(address, Handler)
        self.directory = directory
        self.room = threading.BoundedSemaphore(AT_ONCE)
        self.parsing = threading.Lock()  # one at a time, which bounds the memory

    def process_request(self, request: Any, client_address: Any) -> None:
        self.room.acquire()
        try:
            super().process_request(request, client_address)
        except BaseException:  # no thread
            self.room.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        late = threading.Timer(CONNECTION_S, self.cut, [request])
        late.daemon = True
        try:
            late.start()
            super().process_request_thread(request, client_address)
        finally:
            late.cancel()
            self.room.release()

    @staticmethod
    def cut(request: Any) -> None:
        """Ends a connection whose client sends little by little, or takes no answer."""
        with contextlib.suppress(OSError):
            request.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that has gone is no event."""
        if not isinstance(sys.exc_info()[1], (OSError, ValueError)):
            super().handle_error(request, client_address)


def main(words: Optional[Sequence[str]] = None) -> int:
    """The program peercache-routers."""
    parser = argparse.ArgumentParser(
        prog="peercache-routers", description="Tells routers over HTTP which hosts have a prompt's "
        "pages: GET or POST /api/match.", epilog="example: peercache-routers & curl "
        "'http://127.0.0.1:31996/api/match?namespace=N&key=K1&key=K2'")
    parser.add_argument("--socket", help="the engine's socket (default: $PEERCACHE_SOCKET or built "
                        "in)")
    parser.add_argument("--bind", default="127.0.0.1", help="address to listen on (default: "
                        "127.0.0.1; who asks learns which prompts were seen)")
    parser.add_argument("--port", type=int, default=31996, help="(default: 31996; 0: any)")
    parser.add_argument("--events", metavar="ENDPOINT", help="also publish what is stored and "
                        "removed, over ZeroMQ (libzmq5), such as tcp://127.0.0.1:31995")
    parser.add_argument("--texts", metavar="PATH", help="of --events: a socket that this program "
                        "makes; clients on this host have the path in $PEERCACHE_EVENTS")
    parser.add_argument("--namespace-secret-file", metavar="FILE", help="secret of the tenant "
                        "whose pages these are, as in the extra config")
    parser.add_argument("--backend", default="peercache", help="of --events: backend_id")
    parser.add_argument("--known", type=int, default=1 << 20, help="of --events: pages that are "
                        "known at most (default: 1048576)")
    options = parser.parse_args(words)
    try:
        session = Session(options.socket, "sample", 0, options.namespace_secret_file)
        server = Server((options.bind, options.port), Directory(session))
        if options.events:
            published = events.opened(session, options)
            threading.Thread(target=published.run, daemon=True).start()
    except (OSError, OverflowError) as error:
        print(f"peercache-routers: {error}", file=sys.stderr)
        return 2
    print(f"peercache-routers: ready on {server.server_address[0]}:{server.server_address[1]}",
          flush=True)
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        return 0
    return 0


if __name__ == "__main__":
    sys.exit(main())
