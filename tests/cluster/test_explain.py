# SPDX-License-Identifier: Apache-2.0
"""peercachectl explain on real engines: why a key is found, absent, evicted or not known."""

import json
import signal

import harness

CTL = harness.program("tools/peercachectl")
# A member stays on the map for as long as a test needs it to, whatever happens to it. It is suspect
# after a tenth of that time.
SETTINGS = ["cluster.heartbeat_ms=100", f"cluster.dead_after_ms={int(200000 * harness.SLOW)}"]
TIMEOUT_MS = str(int(8000 * harness.SLOW))


def ctl(socket, *arguments):
    return harness.run([CTL, "--socket", socket, "--timeout-ms", TIMEOUT_MS, *arguments],
                       capture_output=True, text=True, seconds=120)


class Explain(harness.ClusterTest):
    def explain(self, socket, key, *options):
        """The exit status and the answer."""
        done = ctl(socket, "--json", *options, "explain", key)
        self.assertTrue(done.stdout.startswith("{"), done.stdout + done.stderr)
        return done.returncode, json.loads(done.stdout)

    def expect(self, socket, key, status, verdict):
        got, shown = self.explain(socket, key)
        self.assertEqual((got, shown["verdict"]), (status, verdict), shown)
        text = ctl(socket, "explain", key)
        self.assertEqual(text.returncode, status, text.stdout + text.stderr)
        # the reason of a failure may differ from one call to the next
        self.assertEqual(text.stdout.splitlines()[-1].split(": ")[0], shown["text"].split(": ")[0])
        return shown

    @staticmethod
    def owners(shown):
        """{name: answer} of the owners by the current map. While entries move after the start, a
        third engine is asked, too."""
        return {o["name"]: o["answer"] for o in shown["owners"]}

    def key_of(self, engines, owners):
        """A key whose owners are exactly these engines."""
        names = {f"{engines.address[i]}:{engines.port[i]}" for i in owners}
        for n in range(1000):
            _, shown = self.explain(engines.sockets[0], f"key{n}")
            if set(self.owners(shown)) == names:
                return f"key{n}"
        raise AssertionError(f"no key of {names}")

    def put(self, socket, key):
        done = ctl(socket, "put", key, "--string", f"value of {key}")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def name(self, engines, i):
        return f"{engines.address[i]}:{engines.port[i]}"


class Healthy(Explain):
    def test_a_key_is_present_absent_or_in_another_namespace(self):
        engines = self.start(3, pool_bytes="64MiB", settings=SETTINGS)
        for holder in range(3):
            self.put(engines.sockets[holder], f"of{holder}")
            hashes = set()
            for socket in engines.sockets:
                shown = self.expect(socket, f"of{holder}", 0, "present")
                hashes.add(shown["hash"])
                self.assertEqual(list(self.owners(shown).values()), ["present"] * 2)
                self.assertEqual([(h["name"], h["state"], h["proven"], h["bytes"])
                                  for h in shown["holders"]],
                                 [(self.name(engines, holder), "page", True, 65536)])
                self.assertEqual(shown["holders"][0]["here"], socket == engines.sockets[holder])
            self.assertEqual(len(hashes), 1)
        shown = self.expect(engines.sockets[0], "never stored", 1, "absent")
        self.assertEqual(list(self.owners(shown).values()), ["absent"] * 2)
        self.assertEqual(shown["holders"], [])
        status, shown = self.explain(engines.sockets[0], "of0", "--namespace", "other")
        self.assertEqual((status, shown["verdict"]), (1, "absent"))
        self.assertNotIn(shown["hash"], hashes)
        self.assertEqual(ctl(engines.sockets[1], "rm", "of0").returncode, 0)
        harness.wait_for(lambda: self.explain(engines.sockets[2], "of0")[1]["verdict"] == "absent",
                         60, "the removed key is absent")
        self.stop_cleanly(engines)

    def test_an_engine_that_does_not_answer_is_status_3(self):
        self.assertEqual(ctl("/nowhere/e.sock", "explain", "a").returncode, 3)
        self.assertEqual(ctl("/nowhere/e.sock", "explain").returncode, 2)
        engines = self.start(1, pool_bytes="16MiB")
        harness.freeze(engines.process[0])
        try:
            done = ctl(engines.sockets[0], "--timeout-ms", "300", "explain", "a")
            self.assertEqual(done.returncode, 3, done.stdout + done.stderr)
            self.assertIn("no answer", done.stdout)
        finally:
            engines.process[0].send_signal(signal.SIGCONT)
        harness.wait_for(lambda: self.explain(engines.sockets[0], "a")[0] == 1, 60, "it answers")
        self.stop_cleanly(engines)


class Faults(Explain):
    def test_an_entry_of_a_page_that_is_gone_is_evicted(self):
        engines = self.start(3, pool_bytes="64MiB", settings=SETTINGS)
        key = self.key_of(engines, (1, 2))
        self.put(engines.sockets[2], key)
        self.expect(engines.sockets[0], key, 0, "present")
        # The owner's memory still answers READs, but it removes no entry.
        harness.freeze(engines.process[1])
        try:
            ctl(engines.sockets[2], "--timeout-ms", "1000", "rm", key)
            harness.wait_for(lambda: self.explain(engines.sockets[0], key)[1]["verdict"] ==
                             "evicted", 60, "the stale entry is noticed")
            shown = self.expect(engines.sockets[0], key, 1, "evicted")
            self.assertEqual(self.owners(shown), {self.name(engines, 1): "present",
                                                   self.name(engines, 2): "absent"})
            holder, = shown["holders"]
            self.assertEqual((holder["name"], holder["state"]),
                             (self.name(engines, 2), "evicted"))
            self.assertGreater(holder["head_generation"], holder["generation"])
        finally:
            engines.process[1].send_signal(signal.SIGCONT)
        harness.wait_for(lambda: self.explain(engines.sockets[0], key)[1]["verdict"] == "absent",
                         60, "the entry is removed")
        self.stop_cleanly(engines)

class Changes(Explain):
    """Absence after members have changed: explain and a get agree."""
    QUICK = ["cluster.heartbeat_ms=100", f"cluster.dead_after_ms={int(2000 * harness.SLOW)}"]

    def got(self, socket, key):
        done = ctl(socket, "--json", "get", key, "-o", "/dev/null")
        return json.loads(done.stdout)["results"][0]["result"]

    def test_absent_keys_are_misses_when_owners_have_died(self):
        engines = self.start(4, pool_bytes="16MiB", settings=self.QUICK)
        for i in (2, 3):
            engines.kill(i)
        engines.wait_members(2, among=[0, 1])
        for n in range(60):
            status, shown = self.explain(engines.sockets[0], f"absent{n}")
            self.assertEqual((status, shown["verdict"]), (1, "absent"), shown)
            self.assertEqual(self.got(engines.sockets[0], f"absent{n}"), "miss")
        self.stop_cleanly(engines)


if __name__ == "__main__":
    harness.main()
