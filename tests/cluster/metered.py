# SPDX-License-Identifier: Apache-2.0
"""Engines that serve metrics, each at a port of its own, and clients that read them."""

import http.client
import os
import sys
import time

import cluster
import harness

sys.path.insert(0, os.path.join(harness.ROOT, "tests", "unit", "control", "observe"))
import exposition  # noqa: E402


class Engines(cluster.Cluster):
    """A cluster whose engines have metrics.port; `metrics` holds the ports."""

    def start(self):
        self.metrics = [cluster.free_port() for _ in range(self.nodes)]
        return super().start()

    def command(self, i):
        return super().command(i) + ["--set", f"metrics.port={self.metrics[i]}"]

    def get(self, i, path="/metrics", seconds=30):
        """The body of an answer with status 200; raises OSError or HTTPException."""
        connection = http.client.HTTPConnection(self.address[i], self.metrics[i],
                                                timeout=seconds * harness.SLOW)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            body = answer.read().decode()
        finally:
            connection.close()
        if answer.status != 200:
            raise http.client.HTTPException(f"{path}: {answer.status} {body}")
        return body

    def get_patiently(self, i, path="/metrics", seconds=30):
        """As get(); a connection that gave way to newer ones is made again."""
        end = harness.clock() + seconds * harness.SLOW
        while True:
            try:
                return self.get(i, path)
            except (OSError, http.client.HTTPException):
                if harness.clock() > end:
                    raise

    def scrape(self, i):
        """The families of one engine."""
        return exposition.parse(self.get_patiently(i))

    def anonymous_bytes(self, i):
        """Memory of the engine's process that is neither a file nor a pool."""
        with open(f"/proc/{self.process[i].pid}/status") as file:
            return next(int(line.split()[1]) << 10 for line in file if line[:8] == "RssAnon:")

    def open_files(self, i):
        return len(os.listdir(f"/proc/{self.process[i].pid}/fd"))


class Monotonic:
    """Sees to it that no counter and no histogram of any engine goes back or disappears."""

    def __init__(self):
        self.last, self.scrapes = {}, 0

    def look(self, engines):
        for i in range(engines.nodes):
            now = {key: value for family in engines.scrape(i).values()
                   if family.type in ("counter", "histogram")
                   for key, value in family.samples.items()}
            for key, value in self.last.get(i, {}).items():
                if key not in now or now[key] < value:
                    raise AssertionError(f"engine {i}: {key} was {value}, is {now.get(key)}")
            self.last[i] = now
            self.scrapes += 1
        return True


class MeteredTest(harness.ClusterTest):
    def start(self, nodes=2, **options):
        engines = Engines(harness.BUILD, nodes, **options)
        self.addCleanup(engines.stop)
        return engines.start()

    def calls(self, engines, i):
        """Of clients: calls by their name, and the totals of all of them."""
        status = engines.status(i)
        return {**status["calls"], **{name: status["figures"][name + "_total"] for name in (
            "get_local_pages", "get_remote_pages", "get_bytes", "set_bytes")}}

    def total(self, engines, name, **labels):
        """The sum over all engines and over all series that have these labels."""
        return sum(exposition.total(engines.scrape(i), f"peercache_{name}", **labels)
                   for i in range(engines.nodes))
