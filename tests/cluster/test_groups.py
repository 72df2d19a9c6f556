# SPDX-License-Identifier: Apache-2.0
"""Limits of groups of namespaces on real engines: quotas under pressure, pages that end."""

import json
import os
import sys
import tempfile
import threading
import time

import harness

sys.path.insert(0, os.path.join(harness.BUILD, "engine", "client", "python", "peercache"))
import _peercache  # noqa: E402

CTL = harness.program("tools/peercachectl")
PAGE, BATCH = 4096, 250
SETS = int(os.environ.get("PEERCACHE_SETS", "100000"))
QUOTAS = {"red||rank 0": 12 << 20, "green": 16 << 20, "blue||rank 1": 20 << 20}
SOON = ["cluster.heartbeat_ms=100", f"cluster.dead_after_ms={int(2000 * harness.SLOW)}"]
DISK = ["disk.segment_bytes=1MiB", "disk.bytes=24MiB"]


def ctl(engines, *arguments, group=None):
    done = harness.run([CTL, "--socket", engines.sockets[0], "--json", *arguments,
                        *(["--namespace", group] if group else [])],
                       capture_output=True, text=True)
    return json.loads(done.stdout)


class Groups(harness.ClusterTest):
    def session(self, engines, i=0, limits=None):
        session = _peercache.Session(engines.sockets[i])
        self.addCleanup(session.close)
        if limits:
            session.limits(*limits)
        return session

    def store(self, session, space, first, count):
        """Stores that many pages. Returns how many sets did not say that they did."""
        base, lost = session.alloc(BATCH * PAGE), 0
        for at in range(first, first + count, BATCH):
            keys = [f"{space} {n}" for n in range(at, min(at + BATCH, first + count))]
            done = session.set(space, keys, [base + i * PAGE for i in range(len(keys))], PAGE,
                               60000)
            lost += done.count(False)
        session.release(base)
        return lost

    def there(self, session, space, first, count):
        return sum(session.exists(space, [f"{space} {n}" for n in range(first, first + count)],
                                  20000))

    def group(self, engines, space, name="bytes", i=0):
        """What the report says of the group."""
        shown = ctl(engines, "quota", group=space.split("||")[0])["group"]
        return shown[name] if shown else 0

    def test_groups_above_their_quotas_evict_only_their_own_pages(self):
        names = list(QUOTAS)
        engines = self.start(1, settings=[f"engine.quotas=red={QUOTAS[names[0]]}, none=1GiB"])
        ctl(engines, "quota", str(QUOTAS[names[2]]), group="blue")
        sessions = [self.session(engines, limits=(QUOTAS["green"], -1) if name == "green" else None)
                    for name in names]
        other = self.session(engines)
        self.assertEqual(self.store(other, "other", 0, 1000), 0)
        lost, each = [None] * 3, SETS // 3 // BATCH * BATCH

        def work(i):
            lost[i] = self.store(sessions[i], names[i], 0, each)
        threads = [threading.Thread(target=work, args=[i]) for i in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(lost, [0, 0, 0])
        for i, name in enumerate(names):
            got, most = self.group(engines, name), QUOTAS[name]
            print(f"{name}: {got} of {most} bytes after {each} sets", file=sys.stderr)
            self.assertLessEqual(got, most)
            self.assertGreaterEqual(got, most * 0.99)
            self.assertEqual(self.there(sessions[i], name, each - got // PAGE, got // PAGE),
                             got // PAGE)
        self.assertEqual(self.there(other, "other", 0, 1000), 1000)
        counters = engines.status(0)["counters"]
        self.assertEqual(counters["pages_evicted"], counters["pages_over_quota"])
        # lowered while it runs
        self.assertEqual(ctl(engines, "quota", "1MiB", group="blue")["group"]["quota"], 1 << 20)
        harness.wait_for(lambda: self.group(engines, "blue") <= 1 << 20, 10, "the lower quota")
        self.stop_cleanly(engines)

    def test_a_group_at_its_quota_takes_nothing_from_a_full_pool(self):
        for rails in (1, 2):
            with self.subTest(rails=rails):
                self.full_pool(rails)

    def full_pool(self, rails):
        engines = self.start(1, pool_bytes=f"{32 // rails}MiB",
                             settings=["rail.devices=" + ",".join(["soft"] * rails)])
        tenant, others = self.session(engines, limits=(8 << 20, -1)), self.session(engines)
        self.assertEqual(self.store(tenant, "tenant", 0, 4000), 0)
        self.assertEqual(self.store(others, "others", 0, 12000), 0)  # 6144 fit
        before = [self.group(engines, space, "pages") for space in ("tenant", "others")]
        evicted = engines.status(0)["counters"]["pages_evicted"]
        self.assertGreater(min(before), 1000)
        self.assertEqual(self.store(tenant, "tenant", 4000, 16000), 0)
        after = [self.group(engines, space, "pages") for space in ("tenant", "others")]
        print(f"pages of the tenant and of others: {before}, then {after}", file=sys.stderr)
        self.assertEqual(after[1], before[1])
        counters = engines.status(0)["counters"]
        self.assertGreater(counters["pages_evicted"], evicted + 12000)
        self.assertGreater(counters["pages_over_quota"], 12000)
        self.stop_cleanly(engines)

    def test_pinned_pages_stay_up_to_their_share(self):
        engines = self.start(1, pool_bytes="16MiB", settings=["engine.pinned_percent=25"])
        flood, session = self.session(engines), self.session(engines, limits=(12 << 20, -1))
        self.assertEqual(self.store(session, "pins", 0, 500), 0)
        keys = [f"pins {n}" for n in range(500)]
        self.assertEqual(session.pin("pins", keys[:400] + ["none"], 3600, 20000),
                         [True] * 400 + [False])
        self.assertEqual(session.pin("pins", keys[400:450], 1, 20000), [True] * 50)
        self.assertEqual(self.store(flood, "flood", 0, 40000), 0)
        self.assertEqual(self.store(session, "pins", 1000, 6000), 0)  # above its quota
        self.assertEqual(session.exists("pins", keys[:400], 20000), [True] * 400)
        harness.wait_for(lambda: engines.figure(0, "pinned_bytes") == 400 * PAGE, 60,
                         "the short pins are over")
        self.assertEqual(self.store(flood, "flood", 40000, 20000), 0)
        self.assertLess(self.there(session, "pins", 0, 500), 500)
        # a quarter of its quota of 3072 pages may be pinned; of the pools: 1024
        self.assertEqual(self.store(session, "pins", 7000, 500), 0)
        done = session.pin("pins", [f"pins {n}" for n in range(7000, 7500)], 3600, 20000, True)
        self.assertEqual((done.count(0), done.count(5)), (768 - 400, 500 - 768 + 400))
        self.assertEqual(self.store(flood, "flood", 0, 500), 0)
        done = flood.pin("flood", [f"flood {n}" for n in range(500)], 3600, 20000, True)
        self.assertEqual((done.count(0), done.count(5)), (1024 - 768, 500 - 1024 + 768))
        self.assertEqual(engines.status(0)["counters"]["pins_refused"], 132 + 244)
        self.assertEqual(engines.figure(0, "pinned_bytes"), 4 << 20)
        # what is removed or unpinned makes room
        self.assertEqual(session.remove("pins", keys[:100], 20000), [True] * 100)
        self.assertEqual(session.pin("pins", keys[100:400], 0, 20000), [True] * 300)
        harness.wait_for(lambda: engines.figure(0, "pinned_bytes") == (4 << 20) - 400 * PAGE, 60,
                         "the unpinned pages count no more")
        self.assertEqual(ctl(engines, "pin", "none", group="pins")["results"][0]["result"], "miss")
        self.stop_cleanly(engines)

    def test_pages_end_and_their_room_is_back(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        engines = self.start(2, pool_bytes="8MiB", keeper=True, disk=folder.name,
                             settings=["engine.ttls=short=2, long=3600", *DISK, *SOON])
        here, away = self.session(engines), self.session(engines, 1)
        self.assertEqual(self.store(here, "lasting", 0, 500), 0)
        self.assertEqual(self.store(here, "long", 0, 250), 0)
        begun, waited = time.monotonic(), self.starved(engines)
        self.assertEqual(self.store(here, "short", 0, 1000), 0)
        stored = time.monotonic()
        while self.there(away, "short", 0, 1000):
            self.assertLess(time.monotonic() - stored, 3 + self.starved(engines) - waited)
        self.assertGreater(time.monotonic() - begun, 2)
        self.assertEqual(engines.figure(0, "pages"), 750)  # their room is back
        self.assertEqual(engines.status(0)["counters"]["pages_expired"], 1000)
        harness.wait_for(lambda: engines.figure(0, "disk_pages") == 500, 60,
                         "the lasting pages, and no others, are on disk")
        # no process knows how old pages of an earlier one are
        engines.crash(0)
        harness.wait_for(lambda: not self.there(away, "long", 0, 250), 60, "none is found")
        harness.wait_for(lambda: self.there(away, "lasting", 0, 500) == 500, 60, "all are found")
        # what is on disk only when its group gets a time ends, too
        again = self.session(engines)
        self.assertEqual(self.store(again, "late", 0, 500), 0)
        self.assertEqual(self.store(again, "flood", 0, 2000), 0)
        harness.wait_for(lambda: self.there(away, "late", 0, 500) >
                         self.group(engines, "late", "pages"), 60, "some are on disk only")
        ctl(engines, "quota", "--ttl", "3600", group="late")
        kept = self.group(engines, "late", "pages")
        harness.wait_for(lambda: self.there(away, "late", 0, 500) == kept, 60, "those on disk end")
        self.stop_cleanly(engines)


if __name__ == "__main__":
    harness.main()
