# SPDX-License-Identifier: Apache-2.0
"""peercachectl match, and match() of the extension, on real engines: what each host has of a list
of keys, beside what its engine says of each key."""

import json
import os
import random
import signal
import sys

import harness

sys.path.insert(0, os.path.join(harness.BUILD, "engine", "client", "python", "peercache"))
import _peercache  # noqa: E402

CTL = harness.program("tools/peercachectl")
SETTINGS = ["cluster.heartbeat_ms=100", f"cluster.dead_after_ms={int(200000 * harness.SLOW)}"]
SPACE = "routers"


def ctl(socket, *arguments):
    return harness.run([CTL, "--socket", socket, "--namespace", SPACE, *arguments],
                       capture_output=True, text=True, seconds=120)


class Match(harness.ClusterTest):
    def name(self, engines, i):
        return f"{engines.address[i]}:{engines.port[i]}"

    def refs(self, session, engines):
        """{ref: index} of the engines."""
        members = {m["name"]: m["incarnation"][-8:]
                   for m in json.loads(session.report())["members"]}
        return {members[self.name(engines, i)]: i for i in range(len(engines.sockets))}

    @staticmethod
    def put(session, keys):
        base = session.alloc(4096)
        done = session.set(SPACE, keys, [base] * len(keys), 4096, 20000)
        session.release(base)
        return done

    def has(self, socket, key):
        """Does that engine itself have the page?"""
        shown = json.loads(ctl(socket, "--json", "explain", key).stdout)
        return shown["here"] == "memory"

    def test_each_host_has_what_its_engine_says(self):
        engines = self.start(3, pool_bytes="64MiB", settings=SETTINGS)
        sessions = [_peercache.Session(socket) for socket in engines.sockets]
        keys = [f"page {n}" for n in range(24)]
        holder = random.Random(5)
        for n, key in enumerate(keys[:20]):
            self.assertEqual(self.put(sessions[0 if n < 6 else holder.randrange(3)], [key]), [True])
        truth = [[self.has(socket, key) for key in keys] for socket in engines.sockets]
        self.assertEqual([sum(column) for column in zip(*truth)], [1] * 20 + [0] * 4)
        for i, session in enumerate(sessions):
            prefix, unknown, hosts, holders = session.match(SPACE, keys, 20000)
            self.assertEqual((prefix, unknown, hosts), (20, 0, 3))
            self.assertEqual(session.prefix(SPACE, keys, 20000), prefix)
            refs = self.refs(session, engines)
            self.assertEqual({refs[h[0]] for h in holders}, {0, 1, 2})
            for ref, leading, pages, disk, here in holders:
                has = truth[refs[ref]]
                self.assertEqual((leading, pages, disk, here),
                                 ((has + [False]).index(False), sum(has), 0, refs[ref] == i))
            self.assertEqual([h[1:3] for h in holders],
                             sorted((h[1:3] for h in holders), reverse=True))
        # a removed page ends the prefix of its holder
        self.assertEqual(sessions[1].remove(SPACE, [keys[3]], 20000), [True])
        prefix, _, _, holders = sessions[2].match(SPACE, keys, 20000)
        self.assertEqual((prefix, holders[0][1]), (3, 3))
        self.assertEqual(sessions[2].match("other", keys, 20000), (0, 0, 0, []))
        self.assertEqual(sessions[2].match(SPACE, [], 20000), (0, 0, 0, []))
        with self.assertRaises(ValueError):
            sessions[0].match(SPACE, ["k"] * 65537, 1000)
        with self.assertRaises(OSError):
            sessions[0].match(SPACE, [""], 1000)
        sessions[0].close()
        with self.assertRaises(ValueError):
            sessions[0].match(SPACE, keys, 1000)
        self.command(engines, keys)
        for session in sessions:
            session.close()
        self.stop_cleanly(engines)

    def command(self, engines, keys):
        done = ctl(engines.sockets[1], "--json", "match", *keys)
        self.assertEqual(done.returncode, 0, done.stderr)
        shown = json.loads(done.stdout)
        self.assertEqual((shown["keys"], shown["prefix"], shown["unknown"]), (24, 3, 0))
        self.assertEqual((shown["holders"][0]["name"], shown["holders"][0]["prefix"]),
                         (self.name(engines, 0), 3))
        self.assertEqual([h["here"] for h in shown["holders"]].count(True), 1)
        done = ctl(engines.sockets[1], "match", *keys)
        self.assertIn("3 of 24 keys from the first on are stored; 3 hosts", done.stdout)
        self.assertIn(f"  {self.name(engines, 0)}: prefix 3, ", done.stdout)
        self.assertEqual(ctl(engines.sockets[1], "match", "never stored").returncode, 1)
        self.assertEqual(ctl(engines.sockets[1], "match").returncode, 2)

    def test_keys_of_an_owner_that_does_not_answer_are_unknown(self):
        engines = self.start(3, pool_bytes="64MiB", settings=SETTINGS + ["cluster.replicas=1"])
        session = _peercache.Session(engines.sockets[0])
        keys = [f"page {n}" for n in range(60)]
        harness.freeze(engines.process[1])
        harness.wait_for(lambda: "unreachable" in
                         [r["result"] for r in json.loads(
                             ctl(engines.sockets[0], "--json", "--timeout-ms", "2000", "exists",
                                 *keys[:20]).stdout)["results"]],
                         60, "an owner is missed")
        prefix, unknown, hosts, holders = session.match(SPACE, keys, 20000)
        self.assertEqual((prefix, hosts, holders), (0, 0, []))
        self.assertGreater(unknown, 5)
        self.assertLess(unknown, 50)
        done = ctl(engines.sockets[0], "match", *keys)
        self.assertEqual(done.returncode, 4, done.stdout)
        self.assertIn("keys are not known", done.stdout)
        engines.process[1].send_signal(signal.SIGCONT)
        session.close()


if __name__ == "__main__":
    harness.main()
