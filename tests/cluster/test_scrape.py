# SPDX-License-Identifier: Apache-2.0
"""Readers of the metrics: many at once, and thousands that are slow or broken, while pages move."""

import concurrent.futures
import errno
import os
import resource
import select
import socket
import struct
import threading
import time

import harness
import metered
from metered import exposition

FLOOD, FLOOD_TOTAL = 2400, 10000
SCRAPERS, SCRAPES = 50, 4
GROWTH_MAX = 16 << 20
DEAF_SECONDS = 2  # a client with a closed window does not see that the server has closed
REQUEST = b"GET /metrics HTTP/1.1\r\nHost: a\r\nX-Long: " + 500 * b"x" + b"\r\n\r\n"


class Nuisance:
    """One broken client. `kind`: silent, drip (a byte at a time), deaf (reads nothing) or reset."""

    KINDS = "silent", "drip", "deaf", "reset"

    def __init__(self, address, kind):
        self.kind, self.sent, self.until = kind, 0, time.monotonic() + DEAF_SECONDS
        self.socket = socket.socket()
        if kind == "deaf":
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
        self.socket.setblocking(False)
        rc = self.socket.connect_ex(address)
        if rc not in (0, errno.EINPROGRESS):
            raise OSError(rc, os.strerror(rc))

    def go_on(self):
        """Sends a little more; False: this connection has ended."""
        if self.kind == "silent":
            return True
        if self.kind == "reset" and self.sent:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            return False
        if self.kind == "deaf" and time.monotonic() > self.until:
            return False
        more = {"drip": 1, "reset": 20, "deaf": len(REQUEST)}[self.kind]
        try:
            self.sent += self.socket.send(REQUEST[self.sent:self.sent + more])
        except BlockingIOError:
            pass  # not connected yet
        except OSError:
            return False
        return True


class Flood(threading.Thread):
    """FLOOD broken clients at a time, each replaced when it ends, FLOOD_TOTAL in all."""

    def __init__(self, address):
        super().__init__(daemon=True)
        self.address, self.open, self.opened, self.failure = address, {}, 0, None
        self.stop = threading.Event()

    def add(self, poll):
        try:
            client = Nuisance(self.address, Nuisance.KINDS[self.opened % len(Nuisance.KINDS)])
        except OSError as error:
            if error.errno not in (errno.EAGAIN, errno.EADDRNOTAVAIL):
                raise
            return
        self.open[client.socket.fileno()] = client
        poll.register(client.socket, select.EPOLLRDHUP | select.EPOLLERR | select.EPOLLHUP)
        self.opened += 1

    def end(self, poll, fd):
        client = self.open.pop(fd)
        poll.unregister(fd)
        client.socket.close()

    def turn(self, poll):
        for _ in range(200):
            if len(self.open) < FLOOD and self.opened < FLOOD_TOTAL:
                self.add(poll)
        for fd, _ in poll.poll(0.01):
            self.end(poll, fd)
        for fd, client in list(self.open.items()):
            if not client.go_on():
                self.end(poll, fd)

    def run(self):
        poll = select.epoll()
        try:
            while not self.stop.is_set() and (self.opened < FLOOD_TOTAL or
                                              len(self.open) > FLOOD // 4):
                self.turn(poll)
        except OSError as error:
            self.failure = error
        for fd in list(self.open):
            self.end(poll, fd)
        poll.close()


class Scrape(metered.MeteredTest):
    def setUp(self):
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if hard < FLOOD + 500:
            self.skipTest(f"{hard} open files are allowed, {FLOOD + 500} are needed")
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        self.addCleanup(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        self.engines = self.start(2, pool_bytes="64MiB")
        self.load = harness.tool("tools/peercache-bench", "get", "--seconds", 3600,
                                 "--page-bytes", "16KiB", "--working-set", "4MiB",
                                 "--no-baseline", sockets=self.engines.sockets)
        self.addCleanup(self.load.communicate)
        self.addCleanup(self.load.kill)
        self.pages_move()

    def pages_move(self):
        before = self.total(self.engines, "get_remote_pages_total")
        harness.wait_for(
            lambda: self.total(self.engines, "get_remote_pages_total") > before, 60, "pages move")
        self.assertIsNone(self.load.poll())

    def members(self):
        return [sorted((m["incarnation"], m["state"]) for m in self.engines.status(i)["members"])
                for i in range(2)]

    def test_many_scrapers_at_once_get_whole_answers(self):
        start = threading.Barrier(SCRAPERS)

        def scraper(n):
            answers = []
            start.wait()
            for _ in range(SCRAPES):
                began = harness.clock()
                text = self.engines.get(n % 2)
                answers.append((harness.clock() - began, exposition.parse(text)))
            return answers

        with concurrent.futures.ThreadPoolExecutor(SCRAPERS) as pool:
            results = list(pool.map(scraper, range(SCRAPERS)))
        took = sorted(seconds for answers in results for seconds, _ in answers)
        print(f"{len(took)} scrapes by {SCRAPERS} at once: p50 {took[len(took) // 2] * 1e3:.1f} ms"
              f", longest {took[-1] * 1e3:.1f} ms")
        self.assertEqual(len(took), SCRAPERS * SCRAPES)
        self.assertLess(took[-1], 20 * harness.SLOW)
        for answers in results:
            pages = [exposition.value(f, "peercache_get_remote_pages_total") for _, f in answers]
            self.assertEqual(pages, sorted(pages))
        self.pages_move()

    def test_slow_and_broken_clients_cost_bounded_memory(self):
        members = self.members()
        files = self.engines.open_files(0)
        before = most = self.engines.anonymous_bytes(0)
        flood = Flood((self.engines.address[0], self.engines.metrics[0]))
        self.addCleanup(flood.stop.set)
        flood.start()
        scrapes = widest = 0
        while flood.is_alive():
            self.engines.scrape(0)  # patiently: newer connections may take its place
            scrapes += 1
            most = max(most, self.engines.anonymous_bytes(0))
            widest = max(widest, self.engines.open_files(0) - files)
            self.assertEqual(self.members(), members)
        flood.join()
        self.assertIsNone(flood.failure)
        print(f"{flood.opened} broken clients; {scrapes} scrapes meanwhile; at most {widest} "
              f"descriptors; memory grew from {before >> 10} by {(most - before) >> 10} KiB")
        self.assertEqual(flood.opened, FLOOD_TOTAL)
        self.assertGreater(scrapes, 0)
        self.assertLess(widest, 320)  # HTTP_CONNECTIONS_MAX and a few of the clients'
        if harness.SLOW == 1:  # a sanitizer keeps freed memory
            self.assertLess(most - before, GROWTH_MAX)
        harness.wait_for(lambda: self.engines.open_files(0) <= files + 4, 60,
                         "the connections of the broken clients are closed")
        self.pages_move()
        self.assertEqual(self.members(), members)
        for i in range(2):
            counters = self.engines.status(i)["counters"]
            self.assertEqual((counters["members_died"], counters["members_refused"]), (0, 0))


if __name__ == "__main__":
    harness.main()
