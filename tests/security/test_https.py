# SPDX-License-Identifier: Apache-2.0
"""metrics.tls_dir: the HTTP port speaks https, and nothing else."""

import contextlib
import http.client
import json
import os
import shutil
import socket
import ssl
import subprocess
import tempfile
import urllib.error
import urllib.request

import secured
from secured import harness

TOKEN = "0123456789abcdef" * 2
PROMETHEUS = shutil.which("prometheus", path=os.path.join(
    harness.ROOT, "build", "prometheus", "usr", "bin") + os.pathsep + os.environ["PATH"])


class Https(harness.ClusterTest):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="peercache-https-")
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.tls = os.path.join(self.folder, "tls")
        self.ca = secured.Authority(self.folder)
        self.port = harness.cluster.free_port()
        self.certificate()

    def certificate(self, **options):
        self.ca.engine(self.tls, "reader", more=",DNS:localhost,IP:127.0.0.1", **options)

    def begin(self, *settings):
        self.engines = self.start(1, pool_bytes="16MiB", settings=[
            f"metrics.port={self.port}", "metrics.address=127.0.0.1",
            f"metrics.tls_dir={self.tls}", *settings])
        harness.wait_for(lambda: self.ask("/readyz")[0] in (200, 503), 20, "it serves")

    def context(self, ca=None):
        return ssl.create_default_context(cafile=os.path.join((ca or self.ca).folder, "ca.pem"))

    def ask(self, path, method="GET", context=None, **headers):
        """(status, body)"""
        connection = http.client.HTTPSConnection(
            "127.0.0.1", self.port, timeout=20 * harness.SLOW, context=context or self.context())
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        body = answer.read()
        connection.close()
        return answer.status, body

    def serial(self):
        with socket.create_connection(("127.0.0.1", self.port), timeout=20 * harness.SLOW) as link:
            with self.context().wrap_socket(link, server_hostname="localhost") as tls:
                return tls.getpeercert()["serialNumber"]

    def refused(self):
        return self.engines.status(0)["figures"]["http_unauthorized_total"]

    def test_who_has_the_ca_reads(self):
        token = os.path.join(self.folder, "token")
        with open(os.open(token, os.O_WRONLY | os.O_CREAT, 0o600), "w", encoding="ascii") as file:
            file.write(TOKEN)
        self.begin(f"metrics.token_file={token}")
        bearer = {"Authorization": "Bearer " + TOKEN}
        for path, has in (("/metrics", b"peercache_"), ("/", b"</html>"), ("/api/status", b"}")):
            status, body = self.ask(path, **bearer)
            self.assertEqual(status, 200)
            self.assertIn(has, body)
        self.assertEqual(self.ask("/metrics", "HEAD", **bearer), (200, b""))
        self.assertEqual(self.ask("/metrics", "POST", **bearer)[0], 405)
        self.assertEqual(self.ask("/metrics")[0], 401)
        self.assertEqual(self.ask("/healthz")[0], 200)
        if shutil.which("curl"):
            done = harness.run(["curl", "-sS", "--cacert", os.path.join(self.ca.folder, "ca.pem"),
                                f"https://localhost:{self.port}/healthz"], capture_output=True,
                               text=True)
            self.assertEqual((done.returncode, done.stderr), (0, ""))
        # one that closes without a word, before and after its answer, is no failure
        for asked in (b"", b"GET /healthz HTTP/1.1\r\n\r\n"):
            with socket.create_connection(("127.0.0.1", self.port)) as link:
                if asked:
                    tls = self.context().wrap_socket(link, server_hostname="localhost")
                    tls.sendall(asked)
                    while tls.recv(1 << 16):
                        pass
                    tls.detach()
        # one whose handshake does not end keeps no other one out
        with socket.create_connection(("127.0.0.1", self.port)) as silent:
            silent.sendall(b"\x16\x03\x01\x01\x00\x01")
            self.assertEqual(self.ask("/healthz")[0], 200)
        self.assertEqual(self.refused(), 1)  # the one without the token

    def test_who_speaks_otherwise_is_refused(self):
        self.begin()
        with socket.create_connection(("127.0.0.1", self.port), timeout=20 * harness.SLOW) as link:
            link.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
            with contextlib.suppress(ConnectionError):
                self.assertEqual(link.recv(1 << 16), b"")
        harness.wait_for(lambda: self.refused() == 1, 20, "it is counted")
        self.assertIn("no TLS with 127.0.0.1, which metrics.tls_dir asks for: http request",
                      self.engines.log(0))
        old = self.context()
        old.maximum_version = ssl.TLSVersion.TLSv1_2
        for context in (old, self.context(secured.Authority(self.folder, "other"))):
            with self.assertRaises(ssl.SSLError):
                self.ask("/healthz", context=context)
        harness.wait_for(lambda: self.refused() == 3, 20, "they are counted")
        self.assertEqual(self.engines.log(0).count("no TLS with"), 1)

    def test_the_files_are_read_again_when_they_change_and_wrong_ones_change_nothing(self):
        self.begin()
        first = self.serial()
        self.certificate()
        harness.wait_for(lambda: self.serial() != first, 20, "the new certificate is shown")
        second = self.serial()
        os.chmod(f"{self.tls}/key.pem", 0o644)
        harness.wait_for(lambda: "chmod 600" in self.engines.log(0), 20, "it is refused")
        os.remove(f"{self.tls}/cert.pem")
        harness.wait_for(lambda: "No such file" in self.engines.log(0), 20, "it is missed")
        self.assertEqual(self.serial(), second)

    def test_wrong_files_are_an_error_at_the_start(self):
        os.chmod(f"{self.tls}/key.pem", 0o604)
        for more in ([], ["--check"]):
            done = harness.run([harness.program("engine/peercache-engine"), *more, "--set",
                                f"metrics.tls_dir={self.tls}", "--set",
                                f"metrics.port={self.port}", "--set", "engine.pool_bytes=16MiB",
                                "--set", f"cluster.port={harness.cluster.free_port()}", "--set",
                                f"engine.socket={self.folder}/sock"], capture_output=True,
                               text=True)
            self.assertNotEqual(done.returncode, 0)
            self.assertRegex(done.stderr, f"metrics.tls_dir: {self.tls}/key.pem: .*chmod 600")

    def test_prometheus_scrapes(self):
        if not PROMETHEUS:
            self.skipTest("needs Prometheus: tools/install --prometheus")
        self.begin()
        port = harness.cluster.free_port()
        config = {"scrape_configs": [{
            "job_name": "peercache", "scrape_interval": "1s", "scheme": "https",
            "tls_config": {"ca_file": os.path.join(self.ca.folder, "ca.pem")},
            "static_configs": [{"targets": [f"127.0.0.1:{self.port}"]}]}]}
        with open(f"{self.folder}/prometheus.yml", "w", encoding="ascii") as file:
            json.dump(config, file)
        with open(f"{self.folder}/log", "w", encoding="ascii") as log, subprocess.Popen(
                [PROMETHEUS, f"--config.file={self.folder}/prometheus.yml",
                 f"--storage.tsdb.path={self.folder}/data",
                 f"--web.listen-address=127.0.0.1:{port}"], stdout=log, stderr=log) as process:
            try:
                harness.wait_for(lambda: self.up(port), 30, "a scrape")
            finally:
                process.kill()

    def up(self, port):
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/v1/query?query=up",
                                        timeout=10 * harness.SLOW) as answer:
                found = json.load(answer)["data"]["result"]
        except urllib.error.URLError:
            return False
        return bool(found) and found[0]["value"][1] == "1"


if __name__ == "__main__":
    harness.main()
