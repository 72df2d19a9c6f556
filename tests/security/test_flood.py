# SPDX-License-Identifier: Apache-2.0
"""10,000 strangers at once: half-open connections and bad handshakes. Engines with the key join
meanwhile, the loop goes on, and memory is bounded."""

import contextlib
import os
import socket
import ssl
import sys
import threading
import time

from secured import harness
from test_certificates import Certificates
from test_security import Secured

STRANGERS, AT_ONCE = 10000, 900
SOURCES = [f"127.0.0.{i}" for i in (2, 3, 4)]
JOIN_SECONDS, LAG_NS, MORE_BYTES = 2, 5_000_000, 64 << 20


def client_hello():
    """The first bytes of a TLS 1.3 client that has no key."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    out = ssl.MemoryBIO()
    try:
        context.wrap_bio(ssl.MemoryBIO(), out).do_handshake()
    except ssl.SSLWantReadError:
        pass
    return out.read()


def resident(pid):
    with open(f"/proc/{pid}/status", encoding="ascii") as file:
        return next(int(line.split()[1]) << 10 for line in file if line.startswith("VmRSS"))


class Attack:
    """For a Secured: begun() starts an engine, belongs() says with what others join it."""

    def flood(self, port, first, at_once):
        """Connects STRANGERS times from SOURCES, AT_ONCE open at a time; each sends `first`:
        `at_once` of them when all have connected."""
        links = []
        for i in range(STRANGERS):
            links.append(socket.create_connection(("127.0.0.1", port),
                                                  source_address=(SOURCES[i % len(SOURCES)], 0)))
            if i % at_once == at_once - 1:
                for link in links[-at_once:]:
                    with contextlib.suppress(OSError):
                        link.sendall(first)
            while len(links) >= max(at_once, AT_ONCE):
                links.pop(0).close()
        for link in links:
            link.close()

    def lag_ns(self, engines):
        """p50, p99 and p99.9 since the start of the engine"""
        lag = engines.status(0)["loop_lag"]
        return lag["p50_ns"], lag["p99_ns"], lag["p999_ns"]

    def attack(self, first, at_once=1):
        engines = self.begun()
        before = resident(engines.process[0].pid)
        thread = threading.Thread(target=self.flood, args=[engines.port[0], first, at_once])
        begun = time.monotonic()
        thread.start()
        joins, starved = [], self.starved(engines)
        while thread.is_alive() and len(joins) < 5:
            log, process = self.engine(engines.port[0], *self.belongs())
            self.said(log, "ready:")
            at = time.monotonic()
            self.said(log, "joined")
            joins.append(time.monotonic() - at)
            process.terminate()
            harness.ended(process)
        thread.join()
        spent, starved = time.monotonic() - begun, self.starved(engines) - starved
        more = resident(engines.process[0].pid) - before
        counters = engines.status(0)["counters"]
        print(f"{STRANGERS} strangers in {spent:.1f} s; joins {joins} s; starved {starved:.2f} s; "
              f"memory +{more >> 20} MiB; loop lag p50, p99, p99.9 "
              f"{', '.join(f'{ns / 1e6:.2f}' for ns in self.lag_ns(engines))} ms; "
              f"refused {counters['strangers_refused']}, evicted {counters['strangers_evicted']}",
              file=sys.stderr)
        self.assertLess(max(joins), JOIN_SECONDS * harness.SLOW + starved)
        # those that the engine has seen; others were closed while it waited for a processor
        self.assertGreater(counters["strangers_evicted"] + counters["strangers_refused"] +
                           counters["strangers_silent"], STRANGERS / 4)
        self.assertLess(more, MORE_BYTES)
        if os.environ.get("PEERCACHE_QUIET"):  # on a machine that does nothing else
            self.assertLess(max(joins), JOIN_SECONDS)
            self.assertLess(self.lag_ns(engines)[2], LAG_NS)


class WithKeys(Attack, Secured):
    def begun(self):
        return self.secured(1, ["cluster.heartbeat_ms=200"])

    def belongs(self):
        return [f"cluster.psk_file={self.key}"]

    def test_bad_handshakes_keep_no_engine_out(self):
        self.attack(client_hello())

    def test_half_open_connections_keep_no_engine_out(self):
        self.attack(b"")


class WithCertificates(Attack, Certificates):
    def begun(self):
        return self.certified(1, ["cluster.heartbeat_ms=200"])

    def belongs(self):
        port = harness.cluster.free_port()
        folder = os.path.join(self.folder, f"joins{port}")
        self.ca.engine(folder, f"127.0.0.1:{port}")
        return [f"cluster.tls_dir={folder}", f"cluster.port={port}"]

    def test_bad_handshakes_keep_no_engine_out(self):
        """The engine signs for each of them."""
        self.attack(client_hello())

    def test_signatures_that_take_long_keep_no_engine_out(self):
        self.ca.KEYS = ("RSA", "-pkeyopt", "rsa_keygen_bits:2048")
        self.attack(client_hello())

    def test_handshakes_that_come_at_once_keep_no_engine_out(self):
        self.attack(client_hello(), at_once=500)


if __name__ == "__main__":
    harness.unittest.main()
