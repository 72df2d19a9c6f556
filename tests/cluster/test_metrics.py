# SPDX-License-Identifier: Apache-2.0
"""Statistics of clients: exact, monotonic when clients die, and safe from a client that lies."""

import os
import random
import struct

import harness
import metered
from test_hostile import STATISTICS, Client

# engine/abi/statistics.h, in 64-bit words from the start of the area
BUCKETS = 106
CALLS, CALL_WORDS, OTHERS = 8, 10 + BUCKETS, 9
BATCHES, PAGES, HIT, LATENCY_SUM, LATENCY = 0, 1, 2, 9, 10
GET_BYTES, GET_STAGED, LOOKUPS = (CALLS + 4 * CALL_WORDS + n for n in (2, 3, 7))
END = CALLS + 4 * CALL_WORDS + OTHERS


class Liar(Client):
    """A client that writes its statistics itself."""

    def word(self, n, value):
        struct.pack_into("<Q", self.memory, STATISTICS + 8 * n, value)

    def step(self):
        """Makes the sequence odd before the words are written, and even afterwards."""
        self.written = getattr(self, "written", 0) + 1
        struct.pack_into("<I", self.memory, STATISTICS, self.written)

    def batches(self, n, pages=8):
        """As an honest client does: n get batches so far, each of about 5 us."""
        self.step()
        self.counts(n, pages)
        self.step()

    def counts(self, n, pages=8):
        self.word(CALLS + BATCHES, n)
        self.word(CALLS + PAGES, n * pages)
        self.word(CALLS + HIT, n * pages)
        self.word(CALLS + LATENCY_SUM, n * 5000)
        self.word(CALLS + LATENCY + 9, n)  # 4.096 to 5.12 us


def rubbish(client):
    # High bytes are never 0: a word that is far too large is among them.
    for n in range(CALLS, END):
        client.word(n, random.getrandbits(64) | 1 << 60)


def shrinks(client):
    client.counts(9)


LIES = {
    "rubbish in every word": rubbish,
    "a counter that shrinks": shrinks,
    "bytes that no memory moves": lambda client: client.word(GET_BYTES, 1 << 60),
    "more staged than read": lambda client: client.word(GET_STAGED, 1),
    "look-ups that no thread does": lambda client: client.word(LOOKUPS, 1 << 50),
    "pages without a result": lambda client: client.word(CALLS + PAGES, 81),
    "batches without a latency": lambda client: client.word(CALLS + BATCHES, 11),
    "a sum of latencies that is not theirs": lambda client: client.word(CALLS + LATENCY_SUM, 7),
    "the highest value": lambda client: client.word(CALLS + HIT, (1 << 64) - 1),
}


class Statistics(metered.MeteredTest):
    def setUp(self):
        self.seed = int(os.environ.get("SEED", random.randrange(1 << 32)))
        print(f"SEED={self.seed}")
        random.seed(self.seed)
        self.engines = self.start(2, pool_bytes="64MiB")

    def liar(self):
        client = Liar(self.engines.sockets[0], 20 * harness.SLOW)
        self.addCleanup(client.close)
        return client

    def refused(self):
        return self.engines.figure(0, "client_statistics_refused_total")

    def sessions(self):
        """Of both engines; each status request is one of them."""
        return sum(self.engines.figure(i, "client_sessions") for i in range(2))

    def sessions_become(self, count):
        harness.wait_for(lambda: self.sessions() == count, 20, f"{count} sessions are left")

    def replay_exactly(self):
        """Runs a replay; the totals of all engines must grow by exactly what it did."""
        def totals():
            calls = [self.calls(self.engines, i) for i in range(2)]
            return [sum(c[op][what] for c in calls) for op, what in (
                ("exists", "pages"), ("get", "hit"), ("get", "pages"), ("set", "hit"),
                ("set", "pages"))] + [sum(c[name] for c in calls) for name in (
                    "get_local_pages", "get_remote_pages", "get_bytes")]

        before, sessions = totals(), self.sessions()
        done = self.replay(self.engines, "--requests", 60, "--seed", random.randrange(1 << 30),
                           "--namespace", f"{self.id()}{random.random()}")
        self.sessions_become(sessions)
        self.assertEqual([now - was for now, was in zip(totals(), before)],
                         [done["blocks"], done["hits"], done["hits"], done["sets"], done["sets"],
                          done["hits_local"], done["hits_remote"], done["get_bytes"]])

    def test_totals_are_what_clients_did(self):
        self.replay_exactly()
        before = [self.calls(self.engines, i) for i in range(2)]
        bench = harness.tool("tools/peercache-bench", "get", "--seconds", 1, "--threads", 3,
                             "--page-bytes", "16KiB", "--working-set", "8MiB", "--json", "-",
                             "--no-baseline", sockets=self.engines.sockets)
        status, out, err = harness.finish(bench)
        self.assertEqual(status, 0, err)
        done = harness.json.loads(out[out.index("{"):])
        self.sessions_become(2)
        after = [self.calls(self.engines, i) for i in range(2)]
        self.assertEqual(after[1]["set"]["pages"] - before[1]["set"]["pages"], 512)
        self.assertEqual(after[1]["set_bytes"] - before[1]["set_bytes"], 8 << 20)
        for mine, theirs in (("get_local_pages", "hits_local"),
                             ("get_remote_pages", "hits_remote")):
            self.assertEqual(after[0][mine] - before[0][mine], done[theirs])
        hits = after[0]["get"]["hit"] - before[0]["get"]["hit"]
        self.assertEqual(hits, done["hits_local"] + done["hits_remote"])
        self.assertEqual(after[0]["get_bytes"] - before[0]["get_bytes"], hits * 16384)
        # The metrics tell the same figures as the status.
        harness.wait_for(
            lambda: self.total(self.engines, "call_pages_total", op="get", result="hit") ==
            after[0]["get"]["hit"] + after[1]["get"]["hit"], 20, "the next snapshot")
        self.assertEqual(self.total(self.engines, "call_seconds_count", op="set"),
                         after[0]["set"]["batches"] + after[1]["set"]["batches"])

    def test_a_client_that_lies_spoils_no_total(self):
        for n, (name, lie) in enumerate(LIES.items()):
            with self.subTest(name=name):
                before = self.calls(self.engines, 0)
                client = self.liar()
                client.batches(10)
                harness.wait_for(lambda: self.calls(self.engines, 0)["get"]["pages"] ==
                                 before["get"]["pages"] + 80, 20, "honest figures are counted")
                counted = self.calls(self.engines, 0)
                client.step()
                lie(client)
                client.step()
                harness.wait_for(lambda: self.refused() == n + 1, 20, "the lie is refused")
                client.batches(20)  # the truth comes too late
                self.assertEqual(self.calls(self.engines, 0), counted)
                self.replay_exactly()
                client.socket.close()
        self.sessions_become(2)
        self.assertEqual(self.refused(), len(LIES))
        self.replay_exactly()
        log = self.engines.log(0)
        self.assertRegex(log, rf"warn  clients: process {os.getpid()} wrote impossible statistics "
                         r"into channel \d+; they are not counted")
        harness.wait_for(lambda: self.total(self.engines, "client_statistics_refused_total") ==
                         len(LIES), 20, "the metrics tell it")
        status = harness.json.loads(self.engines.get(0, "/api/status"))
        self.assertIn(f"{len(LIES)} channel(s) wrote impossible statistics",
                      [finding["text"] for finding in status["health"]["findings"]])

    def test_a_client_that_never_ends_its_writing_is_not_counted(self):
        client = self.liar()
        client.step()
        rubbish(client)
        self.replay_exactly()
        self.assertEqual(self.refused(), 0)
        client.socket.close()
        self.sessions_become(2)
        self.assertEqual(self.refused(), 0)
        self.replay_exactly()

    def test_totals_never_go_back_when_clients_are_killed(self):
        seen = metered.Monotonic()
        seen.look(self.engines)
        for n in range(8):
            before = self.total(self.engines, "get_remote_pages_total")
            clients = [harness.tool("tools/peercache-bench", "get", "--seconds", 600,
                                    "--threads", 2, "--page-bytes", "16KiB", "--working-set",
                                    "2MiB", "--no-baseline", sockets=self.engines.sockets)
                       for _ in range(2)]
            for client in clients:
                self.addCleanup(client.communicate)
                self.addCleanup(client.kill)
            harness.wait_for(lambda: seen.look(self.engines) and self.total(
                self.engines, "get_remote_pages_total") > before, 60, "the clients read pages")
            for client in clients:
                client.kill()
                client.communicate()
                seen.look(self.engines)
        harness.wait_for(lambda: seen.look(self.engines) and self.sessions() == 2, 20,
                         "all are gone")
        seen.look(self.engines)
        print(f"{seen.scrapes} scrapes")
        for i in range(2):
            self.assertEqual(self.engines.figure(i, "client_statistics_refused_total"), 0)
            calls = self.calls(self.engines, i)["get"]
            self.assertEqual(calls["pages"], sum(calls[how] for how in (
                "hit", "miss", "stale", "unreachable", "timeout", "no_space", "other")))


if __name__ == "__main__":
    harness.main()
