# SPDX-License-Identifier: Apache-2.0
"""A rolling reboot of four hosts whose memory is lost with the engine: what clients hit with and
without a drain, beside the same requests without reboots."""

import ctypes
import os
import random
import signal
import sys

import harness

sys.path.insert(0, os.path.join(harness.BUILD, "engine", "client", "python", "peercache"))
import _peercache  # noqa: E402

CTL = harness.program("tools/peercachectl")
HOSTS, PAGE, POOL_MIB = 4, 32768, 16
# 70% of the pools
PAGES = int(HOSTS * POOL_MIB * (1 << 20) // PAGE * 0.7)
REQUESTS = 1200  # between two reboots
SPACE = "rolling"
SETTINGS = ["cluster.heartbeat_ms=100", f"cluster.dead_after_ms={int(2000 * harness.SLOW)}"]


def content(key):
    return (key.encode() + b".") * (PAGE // (len(key) + 1)) + b"." * (PAGE % (len(key) + 1))


class Rolling(harness.ClusterTest):
    def run_requests(self, engines, hosts, asked):
        """Each request gets a page, and sets it if that is a miss. Returns the hits."""
        hits = 0
        sessions = [_peercache.Session(engines.sockets[i]) for i in hosts]
        bases = [session.alloc(PAGE) for session in sessions]
        for n in range(REQUESTS):
            at = n % len(sessions)
            key = [f"page {asked.randrange(PAGES)}"]
            if sessions[at].get(SPACE, key, [bases[at]], PAGE, 20000)[0]:
                self.assertEqual(ctypes.string_at(bases[at], PAGE), content(key[0]))
                hits += 1
            else:
                ctypes.memmove(bases[at], content(key[0]), PAGE)
                sessions[at].set(SPACE, key, [bases[at]], PAGE, 20000)
        for session in sessions:
            session.close()
        return hits

    def replay(self, reboots, drain):  # pylint: disable=arguments-differ
        engines = self.start(HOSTS, pool_bytes=f"{POOL_MIB}MiB", settings=SETTINGS)
        every, asked, hits = range(HOSTS), random.Random(7), 0
        for i in every:
            session = _peercache.Session(engines.sockets[i])
            base = session.alloc(PAGE)
            for n in range(i, PAGES, HOSTS):
                ctypes.memmove(base, content(f"page {n}"), PAGE)
                self.assertEqual(session.set(SPACE, [f"page {n}"], [base], PAGE, 20000), [True])
            session.close()
        for i in every:
            if reboots:
                if drain:
                    harness.run([CTL, "--socket", engines.sockets[i], "drain"], seconds=120,
                                capture_output=True)
                engines.kill(i, signal.SIGTERM)
                engines.wait_members(HOSTS - 1, among=[k for k in every if k != i])
                hits += self.run_requests(engines, [k for k in every if k != i], asked)
                engines.restart(i)
                engines.wait_members(HOSTS)
            else:
                hits += self.run_requests(engines, [k for k in every if k != i], asked)
            hits += self.run_requests(engines, every, asked)
        engines.stop()
        return hits

    def test_a_rolling_reboot_keeps_the_hits(self):
        without = self.replay(False, False)
        cold = self.replay(True, False)
        drained = self.replay(True, True)
        print(f"hits of {2 * HOSTS * REQUESTS}: without reboots {without}, with a drain {drained}, "
              f"without one {cold}", file=sys.stderr)
        self.assertGreaterEqual(drained, 0.95 * without)
        self.assertLess(cold, 0.95 * without)


if __name__ == "__main__":
    harness.main()
