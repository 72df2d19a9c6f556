# SPDX-License-Identifier: Apache-2.0
"""Warm restarts: engines under a keeper are killed; the next process has the pages of the last one,
and no slot that an earlier client may still write to is given out."""

import contextlib
import io
import json
import os
import random
import select
import signal
import socket
import struct
import subprocess
import sys
import tarfile
import tempfile
import time
import unittest

import harness

SETTINGS = ["engine.huge_pages=no", "cluster.heartbeat_ms=100",
            f"cluster.dead_after_ms={int(3000 * harness.SLOW)}"]
DEADLINE_MS = str(int(15000 * harness.SLOW))
KILLS = int(os.environ.get("PEERCACHE_KILLS", "12"))
IMAGE_PAGES = 24
ENDS = (signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT, signal.SIGTERM)


class Restart(harness.ClusterTest):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="peercache-restart-")
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def begin(self, nodes, pool_bytes, *settings, **more):
        return self.start(nodes, pool_bytes=pool_bytes, settings=[*SETTINGS, *settings],
                          keeper=True, **more)

    @staticmethod
    def ask(path, *words):
        return harness.run([harness.program("tools/peercachectl"), "--socket", path, *words],
                           capture_output=True, text=True)

    def client(self, command, engines, i, name, first, count, *more):
        """Starts `kept` for `count` pages through engine i."""
        process = subprocess.Popen(
            [harness.program("tests/cluster/kept"), command, "--results",
             os.path.join(self.folder, name), "--from", str(first), "--count", str(count),
             "--timeout-ms", DEADLINE_MS, *more],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env={**os.environ, "PEERCACHE_SOCKETS": engines.sockets[i]})
        self.addCleanup(self.end, process)
        return process

    @staticmethod
    def end(process):
        if process.poll() is None:
            process.kill()
        process.communicate()

    def ended(self, process):
        status, out, err = harness.finish(process)
        self.assertEqual(status, 0, out + err)
        return json.loads(out)

    def store(self, engines, i, name, first, count, *more):
        return self.ended(self.client("set", engines, i, name, first, count, *more))

    def find(self, engines, i, name, first, count, *more):
        got = self.ended(self.client("find", engines, i, name, first, count, *more))
        self.assertEqual(got["wrong"], 0, got)
        return got

    def find_all(self, engines, i, name, first, count, *more):
        """Waits until every page whose set said "hit" is found through engine i, and is read."""
        harness.wait_for(
            lambda: (got := self.find(engines, i, name, first, count, *more))["kept"] ==
            got["found"] == got["read"], 60, f"all pages of {name} are found through engine {i}")

    def reserved(self, engines, i=0):
        return engines.figure(i, "client_credits_reserved")

    def counter(self, engines, name, i=0):
        return engines.status(i)["counters"][name]


    def settled(self, engines):
        harness.wait_for(
            lambda: not any(engines.figure(i, "directory_moving")
                            for i in range(len(engines.sockets))),
            60, "all entries are at their owners")


class Pages(Restart):
    def test_pages_survive_every_kind_of_end(self):
        engines = self.begin(2, "64MiB")
        self.assertEqual(self.store(engines, 0, "a", 0, 1000)["hit"], 1000)
        self.assertEqual(self.store(engines, 1, "b", 5000, 500)["hit"], 500)
        self.settled(engines)
        names = [engines.status(0)["incarnation"]]
        for life, how in enumerate(ENDS, 2):
            engines.crash(0, how)
            self.assertEqual(engines.figure(0, "life"), life)
            names.append(engines.status(0)["incarnation"])
            self.assertEqual(self.counter(engines, "pages_adopted"), 1000)
            self.assertEqual(engines.figure(0, "pages"), 1000)
            for i in (0, 1):
                self.find_all(engines, i, "a", 0, 1000)
                self.find_all(engines, i, "b", 5000, 500)
            self.settled(engines)
            for i in (0, 1):
                self.assertEqual(engines.figure(i, "directory_entries"), 1500)
        self.assertEqual(len({name[-8:] for name in names}), 1, names)  # the ref
        self.assertEqual(len(set(names)), 5, names)
        log = engines.log(0)
        self.assertEqual(log.count("has 1000 pages of the engine before"), 4)
        self.assertNotIn("stay reserved", log)
        self.stop_cleanly(engines)

    def restart(self, engines, *options):
        done = harness.run(
            [harness.program("tools/peercachectl"), "--socket", engines.sockets[0], *options,
             "restart"], capture_output=True, text=True, seconds=120, check=False)
        return done.returncode, done.stdout, done.stderr

    def test_local_pages_are_served_while_memory_is_registered(self):
        """The time of the registration doubles until the pages were found before its end. Without
        seeds: others may have cleared what an engine with seeds has."""
        for seconds in (4, 8, 16, 32, 64):
            engines = self.begin(1, "64MiB", f"soft.model=register={round(seconds * 16000)}ms",
                                 "cluster.seeds=")
            self.store(engines, 0, "a", 0, 1000)
            engines.crash(0, signal.SIGKILL)
            self.find_all(engines, 0, "a", 0, 1000)
            early = engines.status(0)["rails"][0]["registered_bytes"] == 0
            harness.wait_for(lambda e=engines: e.status(0)["rails"][0]["registered_bytes"] >
                             64 << 20, 300, "the registration")
            self.assertIn("clients of this host are served meanwhile", engines.log(0))
            self.stop_cleanly(engines)
            if early:
                return
        self.fail("local pages were found only after the registration")

    def test_an_engine_stops_in_order_while_memory_is_registered(self):
        engines = self.begin(1, "16MiB", "soft.model=register=100s")
        self.store(engines, 0, "a", 0, 10)
        self.stop_cleanly(engines)

    def test_the_command_restarts_an_engine_whose_pages_are_kept(self):
        engines = self.begin(1, "64MiB")
        self.store(engines, 0, "a", 0, 1000)
        before = engines.status(0)["pid"]
        status, out, err = self.restart(engines, "--json")
        self.assertEqual(status, 0, err)
        got = json.loads(out)
        self.assertEqual((got["pid_before"], got["life"]), (before, 2))
        self.assertEqual((got["pages_before"], got["pages_adopted"]), (1000, 1000))
        self.assertEqual(got["pid"], engines.status(0)["pid"])
        status, out, err = self.restart(engines)
        self.assertEqual(status, 0, err)
        self.assertIn("life 3, 1000 of 1000 pages adopted", out)
        # what the command needs to know of an engine of another version
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as client:
            client.connect(engines.sockets[0])
            pid, = struct.unpack_from("i", client.getsockopt(
                socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        self.assertEqual(pid, engines.status(0)["pid"])
        with open(f"/proc/{pid}/environ", "rb") as file:
            self.assertRegex(file.read(), rb"(^|\0)FDSTORE=[1-9]")
        self.find_all(engines, 0, "a", 0, 1000)
        self.stop_cleanly(engines)

    def test_the_command_leaves_an_engine_running_whose_pages_would_be_lost(self):
        engines = self.start(1, pool_bytes="16MiB", settings=SETTINGS)
        before = engines.status(0)["pid"]
        status, _, err = self.restart(engines)
        self.assertEqual(status, 1)
        self.assertIn("left running", err)
        self.assertEqual(engines.status(0)["pid"], before)
        self.stop_cleanly(engines)
        self.assertEqual(self.restart(engines)[0], 3)

    def test_the_command_restarts_an_engine_of_another_version(self):
        """It gives no session. A program plays it and, as a keeper does, starts the next one."""
        next_one = [
            word for value in ("engine.pool_bytes=16MiB", "engine.huge_pages=no", "metrics.port=0",
                               f"cluster.port={harness.cluster.free_port()}")
            for word in ("--set", value)]
        environment = {k: v for k, v in os.environ.items() if k != "FDSTORE"}
        gone = {"FDSTORE": "8", "LISTEN_FDNAMES": "clients:keeper:warm"}
        for stored, status in (({}, 1), ({"FDSTORE": "0"}, 1), ({"FDSTORE": "8"}, 0), (gone, 1)):
            path = os.path.join(self.folder, f"{len(stored)}{status}.sock")
            with subprocess.Popen([sys.executable, "-c", harness.OTHER_PROTOCOL, path,
                                   harness.program("engine/peercache-engine"), "--set",
                                   f"engine.socket={path}", *next_one], text=True,
                                  env={**environment, **stored}, stdout=subprocess.PIPE,
                                  stderr=subprocess.DEVNULL) as keeper:
                old = int(keeper.stdout.readline())
                done = self.ask(path, "--json", "restart")
                with contextlib.suppress(ProcessLookupError):
                    os.kill(old, signal.SIGKILL)
                keeper.terminate()
            self.assertEqual(done.returncode, status, done.stdout + done.stderr)
            got = json.loads(done.stdout)
            if status:
                self.assertIn("its keeper has ended" if stored == gone else
                              "neither peercache-keeper", got["error"])
            else:
                self.assertEqual((got["pid_before"], got["pid"]), (old, keeper.pid))
                self.assertNotIn("pages_before", got)
                self.assertEqual(got["pages_adopted"], 0)
                self.assertIn("restart the engine with its newer program", got["seen"])
            self.assertRegex(done.stderr, rf"the engine \(pid {old}\) gives no report: the engine "
                             r"speaks version \d+ of the client protocol, this library version \d")

    def test_the_command_tells_of_a_next_engine_of_another_version(self):
        """As the `peercachectl` of before an upgrade sees the engine of after it."""
        path = os.path.join(self.folder, "engine.sock")
        other = [sys.executable, "-c", harness.OTHER_PROTOCOL, path]
        for json_option in ([], ["--json"]):
            with subprocess.Popen([*other, *other], env={**os.environ, "FDSTORE": "8"}, text=True,
                                  stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as keeper:
                pids = [int(keeper.stdout.readline())]
                done = self.ask(path, *json_option, "restart")
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pids[0], signal.SIGKILL)
                pids.append(int(keeper.stdout.readline() or 0))
                os.kill(pids[1] or keeper.pid, signal.SIGKILL)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            self.assertRegex(done.stderr, rf"the next engine \(pid {pids[1]}\) gives no report: "
                             r"the engine speaks version \d+ of the client protocol")
            if json_option:
                got = json.loads(done.stdout)
                self.assertEqual([got["pid_before"], got["pid"]], pids)
                self.assertEqual({"life", "pages_adopted"} & set(got), set())
                self.assertIn("speaks version", got["seen"])
            else:
                self.assertRegex(done.stdout,
                                 rf"^restarted in [\d.]+ s: pid {pids[0]} -> {pids[1]}\n$")

    def test_a_client_that_stores_all_the_time_loses_nothing(self):
        """Kills at random moments of sets, evictions and publishes."""
        seed = int(os.environ.get("SEED", time.time_ns()))
        print(f"SEED={seed}")
        rnd = random.Random(seed)
        engines = self.begin(2, "32MiB")
        first = (1 << 24, 2 << 24)
        size = [("--bytes", str(rnd.choice((4096, 16384, 65536)))) for _ in (0, 1)]
        writers = [self.client("set", engines, i, f"w{i}", first[i], 1 << 24, *size[i],
                               "--rest-us", "1000") for i in (0, 1)]
        for _ in range(KILLS):
            victim = rnd.randrange(2)
            published = self.counter(engines, "pages_published", victim)
            some = published + rnd.randrange(1, 400)
            harness.wait_for(
                lambda: self.counter(engines, "pages_published", victim) >= some, 60,
                "the client stores pages")
            engines.crash(victim, rnd.choice(ENDS))
        for writer in writers:
            harness.end_early(writer)
        for i, writer in enumerate(writers):
            stored = self.ended(writer)["sets"]
            for reader in (0, 1):
                got = self.find(engines, reader, f"w{i}", first[i], stored, *size[i])
                self.assertGreater(got["read"], 0)
        # The clients have ended, so no slot is reserved any more.
        harness.wait_for(lambda: self.reserved(engines, 0) + self.reserved(engines, 1) == 0, 30,
                         "no slot is reserved")
        self.stop_cleanly(engines)


class Slots(Restart):
    BYTES = ("--bytes", str(256 << 10))
    POOL = "64MiB"  # 256 pages
    PAGES = 1000

    def holder(self, engines, how):
        """A client that stands still in the middle of copying a page into its slot."""
        before = ["unshare", "--pid", "--fork", "--kill-child"] if how == "namespace" else []
        held = subprocess.Popen(
            [*before, harness.program("tests/cluster/late_copy"), "held", engines.sockets[0], how],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.addCleanup(self.end, held)
        if how == "orphan":
            held.child = int(held.stdout.readline())
        self.assertEqual(held.stdout.readline(), "copying\n")
        return held

    @staticmethod
    def namespaces():
        """May this process make a PID namespace?"""
        try:
            return subprocess.run(["unshare", "--pid", "--fork", "true"], check=False,
                                  capture_output=True).returncode == 0
        except FileNotFoundError:
            return False

    def go_on(self, held):
        held.stdin.write("go on\n")
        held.stdin.flush()
        self.assertEqual(held.stdout.readline(), "left\n")

    def check_reuse(self, engines, name):
        """Stores into every slot that can be had; no page of it may change afterwards."""
        harness.run([harness.program("tools/peercachectl"), "--socket", engines.sockets[0],
                     "clear"], check=True, capture_output=True)  # old pages may stay
        self.store(engines, 0, name, 7000, self.PAGES, *self.BYTES)
        found = self.find(engines, 0, name, 7000, self.PAGES, *self.BYTES)["read"]
        self.assertGreater(found, 64)
        return found

    def released(self, engines):
        harness.wait_for(lambda: self.reserved(engines) == 0, 30, "no slot is reserved")

    def test_a_copy_that_outlives_two_engines_changes_no_page(self):
        engines = self.begin(1, self.POOL)
        for how in ("alone", "fork", "namespace")[:3 if self.namespaces() else 2]:
            held = self.holder(engines, how)
            for kill in (signal.SIGKILL, signal.SIGTERM):
                engines.crash(0, kill)
                self.assertGreater(self.reserved(engines), 0)
                found = self.check_reuse(engines, how)
            self.go_on(held)
            # its child, which has copies of all descriptors, lives
            self.released(engines)
            # its own next page may have evicted some
            got = self.find(engines, 0, how, 7000, self.PAGES, *self.BYTES)
            self.assertGreater(got["read"], found // 2)
            self.end(held)
        self.stop_cleanly(engines)

    def test_slots_of_a_killed_client_are_free_again(self):
        engines = self.begin(1, self.POOL)
        held = self.holder(engines, "alone")
        engines.crash(0)
        reserved = self.reserved(engines)
        self.assertGreater(reserved, 0)
        engines.crash(0)
        self.assertEqual(self.reserved(engines), reserved)
        held.kill()
        self.released(engines)
        harness.wait_for(lambda: engines.figure(0, "client_credits") == 0, 30, "no credits")
        self.check_reuse(engines, "after")
        self.assertEqual(self.reserved(engines), 0)
        self.stop_cleanly(engines)


    def test_a_client_that_was_killed_with_its_engine_reserves_nothing_while_a_child_lives(self):
        engines = self.begin(1, self.POOL)
        held = self.holder(engines, "orphan")
        harness.freeze(engines.engine_pid(0))  # it does not see that the client ends
        held.kill()
        held.wait()
        engines.crash(0)
        self.released(engines)
        os.kill(held.child, 0)  # it lives
        self.check_reuse(engines, "after")
        self.stop_cleanly(engines)

    def test_clients_that_are_stopped_reserve_a_slot_each_and_change_no_page(self):
        engines = self.begin(1, self.POOL)
        clients = [self.client("set", engines, 0, f"stopped-{i}", 20000 + 5000 * i, 5000,
                               *self.BYTES) for i in range(8)]
        harness.wait_for(lambda: self.counter(engines, "pages_evicted") > 2 * 256, 60,
                         "the pool is full and all clients store")
        for client in clients:
            harness.freeze(client)
        for kill in (signal.SIGKILL, signal.SIGTERM):
            engines.crash(0, kill)
            harness.wait_for(lambda: self.reserved(engines) <= len(clients), 30,
                             "a client reserves one slot at most")
            self.check_reuse(engines, "others")
        for client in clients:
            client.send_signal(signal.SIGCONT)
            client.send_signal(signal.SIGTERM)
        for i, client in enumerate(clients):
            self.ended(client)
            self.find(engines, 0, f"stopped-{i}", 20000 + 5000 * i, 5000, *self.BYTES)
        self.find(engines, 0, "others", 7000, self.PAGES, *self.BYTES)
        self.released(engines)
        self.stop_cleanly(engines)


class Manager(harness.ClusterTest):
    """This process stores an engine's descriptors, as systemd does."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="peercache-restart-")
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.stored = {}  # name: descriptor
        self.told = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.addCleanup(self.told.close)
        self.told.bind(os.path.join(self.folder, "notify"))
        self.told.settimeout(60 * harness.SLOW)
        self.addCleanup(lambda: [os.close(fd) for fd in self.stored.values()])

    def launch(self, number, *settings, **environment):
        """Starts an engine and passes it what is stored. Its log is in <folder>/<number>.log."""
        while select.select([self.told], [], [], 0)[0]:
            self.serve()  # a manager has done what an engine requested before it starts the next
        passed = {name: os.dup(fd) for name, fd in self.stored.items()}
        order = list(passed.values())
        values = ["engine.pool_bytes=16MiB", "engine.huge_pages=no", "metrics.port=0",
                  f"engine.socket={self.folder}/{number}.sock",
                  f"cluster.port={harness.cluster.free_port()}", *settings]
        # The shell puts the descriptors to 3 and up, as sd_listen_fds(3) says.
        script = ("import os, sys\n"
                  "fds = [int(x) for x in sys.argv[1].split(',') if x]\n"
                  "high = [os.dup(fd) for fd in fds]\n"
                  "high = [__import__('fcntl').fcntl(fd, 1030, 200) for fd in high]\n"
                  "[os.dup2(fd, 3 + i, True) for i, fd in enumerate(high)]\n"
                  "os.environ['LISTEN_PID'] = str(os.getpid())\n"
                  "os.execv(sys.argv[2], sys.argv[2:])")
        with open(os.path.join(self.folder, f"{number}.log"), "ab") as log:
            engine = subprocess.Popen(
                [sys.executable, "-c", script, ",".join(map(str, order)),
                 harness.program("engine/peercache-engine"),
                 *(word for value in values for word in ("--set", value))],
                env={**os.environ, "NOTIFY_SOCKET": os.path.join(self.folder, "notify"),
                     "FDSTORE": "650",
                     "LISTEN_FDS": str(len(order)), "LISTEN_FDNAMES": ":".join(passed),
                     **environment},
                pass_fds=order, stdout=log, stderr=log)
        for fd in order:
            os.close(fd)
        self.addCleanup(self.end, engine)
        return engine

    @staticmethod
    def end(engine):
        if engine.poll() is None:
            engine.kill()
        engine.wait()

    def serve(self):
        """Does what the next message of an engine asks for. Returns its lines."""
        text, fds, _, _ = socket.recv_fds(self.told, 4096, 8)
        lines = text.decode().split("\n")
        name = next((x[7:] for x in lines if x.startswith("FDNAME=")), None)
        if "FDSTORE=1" in lines:
            self.assertIn("FDPOLL=0", lines)
            self.assertNotIn(name, self.stored, "a name is stored once")
            self.stored[name] = fds.pop()
        elif "FDSTOREREMOVE=1" in lines and name in self.stored:
            os.close(self.stored.pop(name))
        for fd in fds:
            os.close(fd)
        return lines

    def obey(self, until):
        """Does what engines ask for until a message is `until`."""
        while until not in self.serve():
            pass

    def log(self, number):
        with open(os.path.join(self.folder, f"{number}.log"), encoding="utf-8") as file:
            return file.read()

    def kept(self, command, number, count=1000, *more):
        done = harness.run(
            [harness.program("tests/cluster/kept"), command, "--results",
             os.path.join(self.folder, "pages"), "--from", "0", "--count", str(count),
             "--timeout-ms", DEADLINE_MS, *more], capture_output=True, text=True,
            env={**os.environ, "PEERCACHE_SOCKETS": f"{self.folder}/{number}.sock"},
            seconds=120)
        self.assertEqual(done.returncode, 0, done.stderr + self.log(number))
        return json.loads(done.stdout)

    def ref(self, number):
        done = harness.run(
            [harness.program("tools/peercachectl"), "--socket", f"{self.folder}/{number}.sock",
             "status", "--json"], capture_output=True, text=True, check=True)
        return json.loads(done.stdout)["incarnation"][-8:]

    def filled(self):
        """An engine with 1,000 pages was killed; its memory is stored."""
        first = self.launch(0)
        self.obey("READY=1")
        self.assertEqual(sorted(self.stored), [
            "clients", "epochs", "heads-0", "pool-0", "shard", "shard-state", "slots-0", "state"])
        self.assertEqual(self.kept("set", 0)["hit"], 1000)
        return first

    def test_signs_of_life_do_not_wait_for_a_long_heartbeat(self):
        self.launch(0, "cluster.heartbeat_ms=60000", "cluster.dead_after_ms=600000",
                    WATCHDOG_USEC=str(int(2000000 * harness.SLOW)))
        self.obey("READY=1")
        begun = harness.clock()
        for _ in range(4):
            self.obey("WATCHDOG=1")
        self.assertLess(harness.clock() - begun, 20 * harness.SLOW)  # not four heartbeats

    def test_a_second_engine_on_the_same_memory_is_refused_and_told_the_first(self):
        first = self.filled()
        second = self.launch(1)
        self.assertEqual(harness.ended(second, 60), 1)
        self.assertIn(f"in use by the engine with pid {first.pid}", self.log(1))
        self.assertEqual(self.kept("find", 0)["read"], 1000)
        self.end(first)
        third = self.launch(2)
        self.obey("READY=1")
        harness.wait_for(lambda: self.kept("find", 2)["read"] == 1000, 30, "all pages")
        third.terminate()
        self.assertEqual(harness.ended(third, 60), 0)

    def test_a_manager_that_does_nothing_delays_the_start_only(self):
        engine = self.launch(0)
        harness.wait_for(lambda: "ready: " in self.log(0), 60, "it serves")
        self.assertIn("has not stored its memory", self.log(0))
        self.assertEqual(self.kept("set", 0)["hit"], 1000)
        engine.terminate()
        self.assertEqual(harness.ended(engine, 60), 0)

    def test_memory_of_another_layout_or_size_makes_a_cold_start(self):
        cases = (("state", 4, b"\7", (), "has layout 7, this engine 2: another version"),
                 ("state", 32, b"\3", (), "3 engines in turn crashed"),
                 ("slots-0", 4, b"\7", (), "another size, layout or NUMA node"),
                 (None, 0, b"", ("engine.pool_bytes=32MiB",), "another size, layout or NUMA node"))
        engine = self.filled()
        refs = [self.ref(0)]
        for number, (name, offset, data, settings, why) in enumerate(cases, 1):
            self.end(engine)
            if name:
                os.pwrite(self.stored[name], data, offset)
            engine = self.launch(number, *settings)
            self.obey("READY=1")
            self.assertIn(why, self.log(number))
            refs.append(self.ref(number))
            self.assertNotEqual(refs[-1], refs[-2], "places of before must not be found")
            self.assertEqual(self.kept("find", number)["read"], 0)
            self.assertEqual(self.kept("set", number)["hit"], 1000)
            harness.wait_for(lambda: self.kept("find", number)["read"] == 1000, 30, "all pages")

    def test_parts_of_different_pools_are_not_taken_for_one(self):
        """As if one message of an engine that replaced its memory was lost."""
        engine = self.filled()
        for number, name in enumerate(("heads-0", "pool-0", "state"), 1):
            self.end(engine)
            size = os.fstat(self.stored[name]).st_size
            other = os.memfd_create("other")
            os.truncate(other, size)
            os.pwrite(other, os.pread(self.stored[name], size, 0), 0)  # the same bytes
            os.close(self.stored[name])
            self.stored[name] = other
            engine = self.launch(number)
            self.obey("READY=1")
            self.assertIn("not all of it was stored", self.log(number))
            self.assertEqual(self.kept("find", number)["read"], 0)
            self.assertEqual(self.kept("set", number)["hit"], 1000)

    @unittest.skipUnless("PEERCACHE_IMAGE" in os.environ, "writes the image of this version")
    def test_image(self):
        """PEERCACHE_IMAGE=FILE: the memory of an engine of this build with IMAGE_PAGES pages."""
        engine = self.launch(0, "engine.pool_bytes=4MiB")
        self.obey("READY=1")
        got = self.kept("set", 0, IMAGE_PAGES, "--bytes", "4096")
        self.assertEqual(got["hit"], IMAGE_PAGES)
        self.end(engine)
        with tarfile.open(os.environ["PEERCACHE_IMAGE"], "w:xz") as image:
            for name in sorted(self.stored.keys() - {"clients"}):
                if not name.startswith("channel"):
                    size = os.fstat(self.stored[name]).st_size
                    info = tarfile.TarInfo(name)
                    info.size = size
                    image.addfile(info, io.BytesIO(os.pread(self.stored[name], size, 0)))

    def restore(self, image):
        """Stores the files of an image, under the numbers that they have on this machine."""
        with tarfile.open(image) as files:
            for info in files:
                fd = os.memfd_create(info.name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
                os.truncate(fd, info.size)
                os.pwrite(fd, files.extractfile(info).read(), 0)
                self.stored[info.name] = fd

        def number(name):
            stat = os.fstat(self.stored[name])
            return (stat.st_dev << 40 ^ stat.st_ino) & (1 << 64) - 1

        os.pwrite(self.stored["slots-0"],  # memory, heads, owners of struct pool_state
                  struct.pack("=QQQ", number("pool-0"), number("heads-0"), number("state")), 32)

    def test_pages_of_the_version_before_are_adopted(self):
        """An upgrade: the image was written by the engine of the landing before (test_image)."""
        self.restore(os.path.join(os.path.dirname(__file__), "image-0.1.0.tar.xz"))
        with open(os.path.join(self.folder, "pages"), "wb") as file:
            file.write(b"1" * IMAGE_PAGES)
        engine = self.launch(1, "engine.pool_bytes=4MiB")
        self.obey("READY=1")
        self.assertIn(f"rail 0 has {IMAGE_PAGES} pages of the engine before", self.log(1))
        harness.wait_for(
            lambda: self.kept("find", 1, IMAGE_PAGES, "--bytes", "4096")["read"] == IMAGE_PAGES, 30,
            "all pages")
        got = self.kept("find", 1, IMAGE_PAGES, "--bytes", "4096")
        self.assertEqual(got["wrong"], 0)
        engine.terminate()
        self.assertEqual(harness.ended(engine, 60), 0)

    def test_damaged_memory_gives_no_wrong_page(self):
        seed = int(os.environ.get("SEED", time.time_ns()))
        print(f"SEED={seed}")
        rnd = random.Random(seed)
        engine = self.filled()
        for number in range(1, 11):
            self.end(engine)
            name = ("heads-0", "slots-0", "state", "shard", "shard-state", "epochs")[number % 6]
            size = os.fstat(self.stored[name]).st_size
            for _ in range(rnd.choice((1, 10, 1000))):
                os.pwrite(self.stored[name], rnd.randbytes(rnd.choice((1, 4, 32))),
                          rnd.randrange(size - 32))
            engine = self.launch(number)
            self.obey("READY=1")
            self.assertEqual(self.kept("find", number)["wrong"], 0)
            self.assertGreater(self.kept("set", number)["hit"], 0)
            self.assertEqual(self.kept("find", number)["wrong"], 0)
        self.assertNotRegex("".join(self.log(n) for n in range(1, 11)), "Sanitizer|runtime error")


if __name__ == "__main__":
    harness.main()
