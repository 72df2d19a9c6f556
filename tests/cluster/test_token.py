# SPDX-License-Identifier: Apache-2.0
"""metrics.token_file: who has no token reads nothing but the probes, whatever the method."""

import base64
import http.client
import os
import tempfile

import harness

TOKENS = ["0123456789abcdef" * 2, "fedcba9876543210" * 2]
OPEN = ["/healthz", "/readyz", "/get_all_segments"]
CLOSED = ["/metrics", "/", "/dashboard", "/api/status", "/api/history", "/api/cluster", "/none"]
METHODS = ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT"]


class Token(harness.ClusterTest):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="peercache-token-")
        self.addCleanup(folder.cleanup)
        self.path = os.path.join(folder.name, "token")

    def write(self, text, mode=0o600):
        with open(self.path + ".new", "w", encoding="ascii") as file:
            file.write(text + "\n")
        os.chmod(self.path + ".new", mode)
        os.rename(self.path + ".new", self.path)

    def ask(self, path, method="GET", authorization=None):
        """(status, headers, body)"""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20 * harness.SLOW)
        connection.request(method, path, headers={"Authorization": authorization}
                           if authorization else {})
        answer = connection.getresponse()
        body = answer.read()
        connection.close()
        return answer.status, answer.getheaders(), body

    def begin(self):
        self.port = harness.cluster.free_port()
        self.engines = self.start(1, pool_bytes="16MiB", settings=[
            f"metrics.port={self.port}", "metrics.address=127.0.0.1",
            f"metrics.token_file={self.path}"])

    def test_only_who_has_the_token_reads(self):
        self.write(TOKENS[0])
        self.begin()
        basic = base64.b64encode(b"anyone:" + TOKENS[0].encode()).decode()
        harness.wait_for(lambda: self.ask("/readyz")[0] in (200, 503), 20, "it serves")
        for path in OPEN:
            self.assertIn(self.ask(path)[0], (200, 503), path)
        refused = 0
        for path in CLOSED:
            for wrong in (None, "Bearer " + TOKENS[1], "Basic " + basic[:-4], TOKENS[0]):
                status, headers, body = self.ask(path, authorization=wrong)
                refused += 1
                self.assertEqual(status, 401, path)
                self.assertIn(("WWW-Authenticate", "Bearer"), headers)
                self.assertIn(b"metrics.token_file", body)
                self.assertNotIn(TOKENS[0].encode(), body)
            for right in ("Bearer " + TOKENS[0], "Basic " + basic):
                self.assertEqual(self.ask(path, authorization=right)[0],
                                 404 if path == "/none" else 200, path)
        for method in METHODS:
            for path in ("/metrics", "/healthz"):
                self.assertEqual(self.ask(path, method, "Bearer " + TOKENS[0])[0], 405)
        self.assertEqual(self.ask("/metrics", "HEAD", "Bearer " + TOKENS[0])[2], b"")
        self.assertEqual(self.engines.status(0)["figures"]["http_unauthorized_total"], refused)
        log = self.engines.log(0)
        self.assertEqual(log.count("a request of 127.0.0.1 is refused: it has no token"), 1)
        for text in (log, str(self.engines.status(0))):
            self.assertNotIn(TOKENS[0], text)

    def test_the_file_is_read_again_when_it_changes_and_a_wrong_one_changes_nothing(self):
        self.write(TOKENS[0])
        self.begin()

        def status(token):
            return self.ask("/metrics", authorization="Bearer " + token)[0]

        harness.wait_for(lambda: status(TOKENS[0]) == 200, 20, "the token is accepted")
        self.write(TOKENS[1])
        harness.wait_for(lambda: status(TOKENS[1]) == 200, 20, "the new token is accepted")
        self.assertEqual(status(TOKENS[0]), 401)
        for text, mode, why in ((TOKENS[0], 0o644, "chmod 600"), ("short", 0o600, "openssl rand"),
                                ("two words of a token", 0o600, "more than one word")):
            self.write(text, mode)
            harness.wait_for(lambda why=why: why in self.engines.log(0), 20, why)
            self.assertEqual(status(TOKENS[1]), 200)
            self.assertEqual(status(text.split()[0]), 401)
        os.remove(self.path)
        harness.wait_for(lambda: "No such file" in self.engines.log(0), 20, "it is missed")
        self.assertEqual(status(TOKENS[1]), 200)

    def test_a_wrong_file_is_an_error_at_the_start(self):
        self.write(TOKENS[0], 0o604)
        for more in ([], ["--check"]):
            done = harness.run([harness.program("engine/peercache-engine"), *more, "--set",
                                f"metrics.token_file={self.path}", "--set",
                                f"metrics.port={harness.cluster.free_port()}", "--set",
                                "engine.pool_bytes=16MiB", "--set",
                                f"cluster.port={harness.cluster.free_port()}", "--set",
                                f"engine.socket={self.path}.sock"], capture_output=True, text=True)
            self.assertNotEqual(done.returncode, 0)
            self.assertRegex(done.stderr, f"metrics.token_file {self.path}: .*chmod 600")


if __name__ == "__main__":
    harness.main()
