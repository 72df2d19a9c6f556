# SPDX-License-Identifier: Apache-2.0
"""peercache-keeper, with a program that plays an engine (played_engine.py) and with real engines.
"""

import ctypes
import fcntl
import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import unittest

import harness

PLAYED = os.path.join(os.path.dirname(os.path.abspath(__file__)), "played_engine.py")
PAUSE = re.compile(r"restart in (\d+) ms")
STORE_MAX = 640
PTRACE_SEIZE = 0x4206


class Played:
    """One start of the played engine: its connection to the test."""

    def __init__(self, connection):
        connection.settimeout(60 * harness.SLOW)
        self.lines = connection.makefile("rw", encoding="utf-8")
        connection.close()
        self.about = json.loads(self.lines.readline())
        self.pid = self.about["pid"]

    def ask(self, **order):
        print(json.dumps(order), file=self.lines, flush=True)
        return json.loads(self.lines.readline())

    def tell(self, text, *files):
        """Sends a message and returns after the keeper has read it: 0 or an errno."""
        failed = self.ask(op="tell", text=text, files=files)
        self.ask(op="barrier")
        return failed or 0

    def end(self, **order):
        """Makes it end: op="exit", status=N, or op="signal", number=N."""
        print(json.dumps(order), file=self.lines, flush=True)
        self.lines.readline()
        self.lines.close()


class Keeper(unittest.TestCase):
    """Base class: a folder, a stage to which played engines connect, and keepers that are ended."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="peercache-")
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.socket = os.path.join(self.folder, "e.sock")
        self.stage = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.stage.bind(os.path.join(self.folder, "stage"))
        self.stage.listen()
        self.stage.settimeout(60 * harness.SLOW)
        self.addCleanup(self.stage.close)
        self.played = []

    def keep(self, *command, options=(), pass_fds=()):
        """Starts a keeper, of the played engine unless a command is given."""
        command = command or (sys.executable, PLAYED, os.path.join(self.folder, "stage"))
        self.log_path = os.path.join(self.folder, "log")
        with open(self.log_path, "ab") as log:
            keeper = subprocess.Popen(
                [harness.program("engine/peercache-keeper"), "--socket", self.socket, *options,
                 "--", *command], stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                pass_fds=pass_fds)
        self.addCleanup(self.end, keeper)
        return keeper

    def end(self, keeper):
        """Ends the keeper and its engine, whatever the test did to them."""
        if keeper.poll() is None:
            keeper.send_signal(signal.SIGTERM)
            try:
                harness.ended(keeper, 20)
            except subprocess.TimeoutExpired:
                keeper.kill()
                keeper.wait()
        for played in self.played:
            played.lines.close()

    def engine(self):
        """The next engine that the keeper starts."""
        played = Played(self.stage.accept()[0])
        self.played.append(played)
        return played

    def ready(self):
        played = self.engine()
        played.tell("READY=1")
        return played

    def log(self):
        with open(self.log_path, encoding="utf-8", errors="replace") as file:
            return file.read()

    def logged(self, text):
        harness.wait_for(lambda: text in self.log(), 30, f"the log has {text!r}")

    def fds(self, process):
        return len(os.listdir(f"/proc/{process.pid}/fd"))


class Restarts(Keeper):
    def test_an_engine_gets_its_socket_names_and_nothing_else(self):
        extra, other = os.pipe()
        self.addCleanup(os.close, extra)
        self.addCleanup(os.close, other)
        keeper = self.keep(pass_fds=(extra, other))
        about = self.engine().about
        self.assertEqual(about["names"], ["clients", "keeper"])
        self.assertEqual(about["listen_pid"], str(about["pid"]))
        self.assertEqual(about["argv"][-2:], ["--set", f"engine.socket={self.socket}"])
        self.assertEqual(about["open"], [0, 1, 2, 3, 4])
        self.assertEqual(about["blocked"], [])
        self.assertIsNone(keeper.poll())

    def test_every_end_of_an_engine_that_was_ready_is_followed_by_a_start(self):
        self.keep()
        for end in ({"op": "exit", "status": 0}, {"op": "exit", "status": 1},
                    {"op": "signal", "number": signal.SIGKILL},
                    {"op": "signal", "number": signal.SIGSEGV},
                    {"op": "signal", "number": signal.SIGABRT},
                    {"op": "signal", "number": signal.SIGTERM}):
            self.ready().end(**end)
        self.ready()
        self.assertEqual(PAUSE.findall(self.log()), ["100"] * 6)

    def test_the_pause_doubles_until_an_engine_is_ready(self):
        self.keep()
        self.ready().end(op="exit", status=1)
        for _ in range(3):
            self.engine().end(op="exit", status=1)
        self.ready().end(op="exit", status=1)
        self.ready()
        self.assertEqual(PAUSE.findall(self.log()), ["100", "200", "400", "800", "100"])

    def test_an_engine_that_was_never_ready_ends_the_keeper_with_its_status(self):
        for end, status in (({"op": "exit", "status": 3}, 3), ({"op": "exit", "status": 0}, 0),
                            ({"op": "signal", "number": signal.SIGKILL}, 137)):
            keeper = self.keep()
            self.engine().end(**end)
            self.assertEqual(harness.ended(keeper, 30), status)
        self.assertEqual(self.log().count("it has never served"), 3)

    def test_an_engine_that_refuses_its_settings_ends_the_keeper(self):
        keeper = self.keep()
        self.ready().end(op="exit", status=1)
        self.engine().end(op="exit", status=2)
        self.assertEqual(harness.ended(keeper, 30), 2)
        self.assertIn("it refuses its settings", self.log())

    def test_a_program_that_cannot_run_is_an_error_at_first_and_retried_later(self):
        keeper = self.keep("/nowhere/engine")
        self.assertEqual(harness.ended(keeper, 30), 127)
        self.assertIn("cannot run /nowhere/engine: No such file", self.log())
        program = os.path.join(self.folder, "engine")
        os.symlink(sys.executable, program)
        self.keep(program, PLAYED, os.path.join(self.folder, "stage"))
        first = self.ready()
        os.unlink(program)
        first.end(op="exit", status=0)
        self.logged(f"cannot run {program}")
        os.symlink(sys.executable, program)
        self.ready()

    def test_a_successor_waits_until_the_engine_was_reaped(self):
        """The test traces the engine, so that the dead engine is not reaped before the test is."""
        self.keep()
        engine = self.ready()
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.ptrace(PTRACE_SEIZE, engine.pid, None, None) < 0:
            self.skipTest("this user cannot trace a process")
        os.kill(engine.pid, signal.SIGKILL)
        os.waitid(os.P_PID, engine.pid, os.WEXITED | os.WNOWAIT)
        # Absence can only be observed for a time: longer than the first pause of 0.1 s.
        self.stage.settimeout(0.5)
        with self.assertRaises(TimeoutError):
            self.stage.accept()
        self.stage.settimeout(60 * harness.SLOW)
        os.waitid(os.P_PID, engine.pid, os.WEXITED)
        self.assertNotEqual(self.ready().pid, engine.pid)

    def test_sigterm_ends_engine_and_keeper_and_removes_the_files(self):
        keeper = self.keep()
        self.ready()
        self.assertTrue({"e.sock", "e.sock.notify"} <= set(os.listdir(self.folder)))
        keeper.send_signal(signal.SIGHUP)
        keeper.send_signal(signal.SIGTERM)
        self.assertEqual(harness.ended(keeper, 30), 0)
        self.assertEqual(set(os.listdir(self.folder)), {"log", "stage"})

    def test_sigterm_during_a_pause_ends_the_keeper(self):
        keeper = self.keep()
        self.ready().end(op="exit", status=1)
        for _ in range(4):
            self.engine().end(op="exit", status=1)
        self.logged("restart in 1600 ms")
        keeper.send_signal(signal.SIGTERM)
        self.assertEqual(harness.ended(keeper, 30), 0)

    def test_an_engine_that_ignores_sigterm_is_killed(self):
        keeper = self.keep(options=["--stop-timeout", "1"])
        self.ready().ask(op="ignore")
        keeper.send_signal(signal.SIGTERM)
        self.assertEqual(harness.ended(keeper, 30), 0)
        self.assertIn("did not end within 1 s of SIGTERM: killed", self.log())

    def test_the_last_client_ends_the_engine(self):
        path = self.socket + ".clients"
        clients = []
        for _ in range(2):
            clients.append(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
            fcntl.flock(clients[-1], fcntl.LOCK_SH)
        keeper = self.keep(options=["--clients", path])
        self.ready()
        os.close(clients.pop())
        self.ready_again(keeper)
        os.close(clients.pop())
        self.assertEqual(harness.ended(keeper, 30), 0)
        self.assertIn("the last client has ended", self.log())

    def ready_again(self, keeper):
        self.played[-1].end(op="exit", status=0)
        self.ready()
        self.assertIsNone(keeper.poll())

    def test_a_socket_has_one_keeper(self):
        self.keep()
        self.ready()
        second = self.keep()
        self.assertEqual(harness.ended(second, 30), 1)
        self.assertIn("another keeper has the socket", self.log())

    def test_ready_fd_tells_once(self):
        read_end, write_end = os.pipe()
        self.keep(options=["--ready-fd", str(write_end)], pass_fds=(write_end,))
        os.close(write_end)
        self.ready().end(op="exit", status=0)
        self.ready()
        with open(read_end, "rb") as told:
            self.assertEqual(told.read(), b"\0")

    def test_wrong_usage_says_what_to_give(self):
        keeper = harness.program("engine/peercache-keeper")
        for words in ([], ["--socket", "/x"], ["--socket", "", "true"], ["--no-such", "x"],
                      ["--socket", "/x", "--stop-timeout", "0", "true"],
                      ["--socket", "/x", "--lock-fd", "2", "true"]):
            done = subprocess.run([keeper, *words], capture_output=True, text=True)
            self.assertEqual(done.returncode, 2, words)
            self.assertRegex(done.stderr, "give a number|--help")
        done = subprocess.run([keeper, "--socket", "/tmp/" + "x" * 100, "true"],
                              capture_output=True, text=True)
        self.assertEqual(done.returncode, 1)
        self.assertIn("give a shorter path", done.stderr)


class Store(Keeper):
    def test_stored_files_reach_the_next_engine_and_removed_ones_do_not(self):
        keeper = self.keep()
        engine = self.ready()
        before = self.fds(keeper)
        engine.tell("FDSTORE=1\nFDNAME=a", "memfd:one")
        engine.tell("FDSTORE=1\nFDNAME=b\nFDPOLL=0", "memfd:two", "memfd:three")
        engine.tell("FDSTORE=1\nFDNAME=c\nFDPOLL=0", "broken pipe")
        engine.tell("FDSTORE=1\nFDNAME=d", "memfd:four")
        self.assertEqual(self.fds(keeper), before + 5)
        engine.tell("FDSTOREREMOVE=1\nFDNAME=nothing")
        engine.tell("FDSTOREREMOVE=1\nFDNAME=a")
        self.assertEqual(self.fds(keeper), before + 4)
        engine.end(op="signal", number=signal.SIGKILL)
        engine = self.ready()
        self.assertEqual(engine.about["names"], ["clients", "keeper", "b", "b", "c", "d"])
        self.assertEqual(engine.ask(op="read", name="b"), ["two", "three"])
        self.assertEqual(engine.ask(op="read", name="d"), ["four"])
        engine.tell("FDSTOREREMOVE=1\nFDNAME=b")
        engine.tell("FDSTOREREMOVE=1\nFDNAME=c")
        self.assertEqual(self.fds(keeper), before + 1)
        for i in range(600):  # a name is replaced again and again
            engine.ask(op="tell", text="FDSTOREREMOVE=1\nFDNAME=s")
            engine.ask(op="tell", text="FDSTORE=1\nFDNAME=s", files=[f"memfd:{i}"])
        engine.ask(op="barrier")
        self.assertEqual(self.fds(keeper), before + 2)
        engine.end(op="exit", status=0)
        self.assertEqual(self.ready().ask(op="read", name="s"), ["599"])

    def test_what_an_engine_stores_just_before_its_end_is_kept(self):
        self.keep()
        for i in range(20):
            engine = self.ready()
            self.assertEqual(engine.ask(op="read", name="last"), [str(i - 1)] if i else [])
            engine.ask(op="tell", text="FDSTOREREMOVE=1\nFDNAME=last")
            engine.ask(op="tell", text="FDSTORE=1\nFDNAME=last", files=[f"memfd:{i}"])
            engine.end(op="signal", number=signal.SIGKILL)

    def test_the_store_is_bounded(self):
        keeper = self.keep()
        engine = self.ready()
        before = self.fds(keeper)
        for i in range(0, 720, 40):
            engine.tell(f"FDSTORE=1\nFDNAME=n{i}", *(f"memfd:{i + k}" for k in range(40)))
        self.assertEqual(self.fds(keeper), before + STORE_MAX)
        self.logged("the store has its maximum of 640")
        engine.end(op="exit", status=0)
        engine = self.ready()
        self.assertEqual(len(engine.about["names"]), STORE_MAX + 2)
        self.assertEqual(engine.ask(op="read", name="n0"), [str(i) for i in range(40)])
        for i in range(0, 720, 40):
            engine.tell(f"FDSTOREREMOVE=1\nFDNAME=n{i}")
        self.assertEqual(self.fds(keeper), before)

    def test_messages_of_other_processes_count_for_nothing(self):
        keeper = self.keep()
        engine = self.engine()
        before = self.fds(keeper)
        fd = os.memfd_create("foreign")
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as to:
            to.connect(self.socket + ".notify")
            to.send(b"READY=1")
            socket.send_fds(to, [b"FDSTORE=1\nFDNAME=foreign"], [fd])
        os.close(fd)
        self.logged("messages of process")
        engine.ask(op="barrier")
        self.assertEqual(self.fds(keeper), before)
        engine.end(op="exit", status=5)
        self.assertEqual(harness.ended(keeper, 30), 5, "it has never been ready")
        self.assertEqual(self.log().count("messages of process"), 1)

    def test_only_this_user_may_write_to_the_socket_of_messages(self):
        self.keep()
        self.engine()
        self.assertEqual(os.stat(self.socket + ".notify").st_mode & 0o777, 0o600)

    def test_malformed_messages_change_nothing(self):
        keeper = self.keep()
        engine = self.ready()
        before = self.fds(keeper)
        for text in ("FDSTORE=1\nFDNAME=", "FDSTORE=1\nFDNAME=" + "x" * 256,
                     "FDSTORE=1\nFDNAME=a:b", "FDSTORE=1\nFDNAME=a\nFDNAME=b",
                     "FDSTORE=1\nFDNAME=a\0b", "FDSTORE=1\nFDNAME=ä", "BARRIER=1\nFDSTORE=1",
                     "FDSTORE=1\nFDSTOREREMOVE=1\nFDNAME=a", "FDSTOREREMOVE=1", "FDSTORE=1",
                     "FDSTORE=11", "", "FDSTORE=1\n" + "x" * 5000,
                     "STATUS=FDSTORE=1"):
            engine.tell(text, "memfd:x", "pipe")
            self.assertEqual(self.fds(keeper), before, text[:40])
        engine.tell("FDSTORE=1\nFDNAME=" + "y" * 255, "memfd:x")
        self.assertEqual(self.fds(keeper), before + 1)

    def test_random_messages_leave_the_keeper_bounded_and_serving(self):
        seed = int(os.environ.get("SEED", random.randrange(1 << 30)))
        print(f"SEED={seed}", file=sys.stderr)
        rnd = random.Random(seed)
        keeper = self.keep()
        engine = self.ready()
        before = self.fds(keeper)
        words = [b"FDSTORE=1", b"FDNAME=", b"FDNAME=a", b"FDSTOREREMOVE=1", b"FDPOLL=0", b"READY=1",
                 b"BARRIER=1", b"\0", b"\xff" * 300]
        for _ in range(300):
            text = b"\n".join(rnd.choices(words, k=rnd.randrange(6))) + rnd.randbytes(
                rnd.choice((0, 0, 0, 1, 40, 4096)))
            engine.ask(op="tell", raw=list(text[:rnd.choice((10, 100, 9000))]),
                       files=["memfd:r", "pipe", "broken pipe"][:rnd.randrange(4)]
                       + ["memfd:m"] * rnd.choice((0, 0, 0, 100)))
        engine.ask(op="barrier")
        self.assertLessEqual(self.fds(keeper), before + STORE_MAX)
        engine.tell("FDSTOREREMOVE=1\nFDNAME=a")
        engine.end(op="exit", status=0)
        names = self.ready().about["names"]
        self.assertEqual(self.fds(keeper), before + len(names) - 2)
        with open(f"/proc/{keeper.pid}/status", encoding="ascii") as status:
            resident = int(re.search(r"VmRSS:\s+(\d+) kB", status.read())[1])
        self.assertLess(resident, 64 * 1024 * harness.SLOW)


class RealEngine(Keeper):
    def command(self, *before):
        values = {"engine.pool_bytes": "16MiB", "engine.huge_pages": "no", "metrics.port": 0,
                  "cluster.port": harness.cluster.free_port()}
        return [*before, harness.program("engine/peercache-engine"),
                *(word for name, value in values.items() for word in ("--set", f"{name}={value}"))]

    def keep_serving(self, *command):
        """Starts a keeper and waits until its engine serves."""
        before = self.log().count("serves after") if hasattr(self, "log_path") else 0
        keeper = self.keep(*command)
        harness.wait_for(lambda: self.log().count("serves after") > before, 60, "it serves")
        return keeper

    def pid(self):
        with open(self.socket + ".pid", encoding="ascii") as file:
            return int(file.read())

    def ctl(self, *words):
        return harness.run([harness.program("tools/peercachectl"), "--socket", self.socket, *words],
                           capture_output=True, text=True)

    def served(self):
        """The engine's process id after peercachectl got an answer."""
        ctl = self.ctl("status")
        self.assertEqual(ctl.returncode, 0, ctl.stderr + self.log())
        return self.pid()

    def test_clients_are_never_refused_while_engines_die(self):
        self.keep_serving(*self.command())
        failed, over = [], threading.Event()

        def connect():
            while not over.is_set():
                with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as client:
                    try:
                        client.connect(self.socket)
                    except OSError as error:
                        failed.append(error)
                        return
                over.wait(0.001)

        client = threading.Thread(target=connect)
        client.start()
        seen = {self.served()}
        for how in (signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT, signal.SIGTERM) * 3:
            os.kill(self.pid(), how)
            harness.wait_for(lambda: self.log().count("serves after") > len(seen), 60,
                             "the next engine serves")
            seen.add(self.served())
        over.set()
        client.join()
        self.assertEqual(failed, [])
        self.assertEqual(len(seen), 13)
        self.assertEqual(set(PAUSE.findall(self.log())), {"100"})
        self.assertNotRegex(self.log(), r"Sanitizer: (?!SEGV)|runtime error")  # SEGV: ours

    def test_a_client_that_connects_while_no_engine_runs_waits_and_is_served(self):
        go = os.path.join(self.folder, "go")
        with open(go, "w", encoding="ascii"):
            pass
        script = (f"test -e {go} || echo waits >&2; "
                  f"while ! test -e {go}; do sleep 0.02; done; exec \"$@\"")
        self.keep_serving(*self.command("sh", "-c", script, "sh"))
        self.served()
        os.unlink(go)
        os.kill(self.pid(), signal.SIGKILL)
        self.logged("waits\n")
        client = subprocess.Popen([harness.program("tools/peercachectl"), "--socket", self.socket,
                                   "status"], stdout=subprocess.PIPE, stderr=subprocess.PIPE)

        def waits():
            """The socket that waits to be accepted has the name of the listening one."""
            with open("/proc/net/unix", encoding="utf-8") as file:
                return sum(line.endswith(f" {self.socket}\n") for line in file) > 1
        harness.wait_for(waits, 30, "the client is connected")
        self.assertIsNone(client.poll())
        with open(go, "w", encoding="ascii"):
            pass
        out, err = harness.cluster.communicate(client, 60 * harness.SLOW)
        self.assertEqual(client.returncode, 0, err)
        self.assertIn(b"version", out)

    def test_an_engine_whose_keeper_dies_serves_on_and_says_so_once(self):
        keeper = self.keep_serving(*self.command())
        engine = self.served()
        keeper.kill()
        keeper.wait()
        self.logged("the keeper of this engine has ended")
        self.assertEqual(self.served(), engine)
        # the command sees it at once, also before the engine's next report says so
        refused = self.ctl("restart")
        self.assertEqual(refused.returncode, 1, refused.stderr)
        self.assertIn("left running: its keeper has ended", refused.stderr)
        harness.wait_for(lambda: "keeper_gone" in self.ctl("health").stdout + self.ctl(
            "--json", "health").stdout, 30, "it is a finding")
        examined = self.ctl("doctor", "--set", f"engine.socket={self.socket}")
        self.assertRegex(examined.stdout, rf"the keeper of the engine \(pid {engine}\) has ended")
        status = json.loads(self.ctl("--json", "status").stdout)
        self.assertEqual((status["pid"], status["figures"]["life"]), (engine, 0))
        second = self.keep(*self.command())
        self.assertEqual(harness.ended(second, 30), 1)
        self.assertIn("already listens on", self.log())
        self.assertEqual(self.served(), engine)
        os.kill(engine, signal.SIGTERM)
        harness.wait_for(lambda: not os.path.exists(self.socket + ".pid"), 30, "the engine ends")
        self.assertEqual(self.log().count("the keeper of this engine has ended"), 1)
        self.keep_serving(*self.command())  # takes over the socket that was left behind
        self.assertNotEqual(self.served(), engine)

    def test_an_engine_refuses_a_passed_socket_that_is_not_its_own(self):
        for kind, path in ((socket.SOCK_STREAM, self.socket),
                           (socket.SOCK_SEQPACKET, self.socket + ".other")):
            with socket.socket(socket.AF_UNIX, kind) as listener:
                listener.bind(path)
                listener.listen()
                held = os.dup2(listener.fileno(), 60)
                done = harness.run(
                    ["bash", "-c", 'export LISTEN_PID=$$ LISTEN_FDS=1; exec "$@" 3<&60', "bash",
                     *self.command(), "--set", f"engine.socket={self.socket}"],
                    capture_output=True, text=True, pass_fds=(held,),
                    seconds=30)
                os.close(held)
            self.assertEqual(done.returncode, 1)
            self.assertIn("ListenSequentialPacket", done.stderr)
            os.unlink(path)

    def starts_and_stops(self, **environment):
        """What an engine with NOTIFY_SOCKET stores; returns the first lines of its other messages.

        It extends the time of its start, tells when it serves and stops."""
        path = os.path.join(self.folder, "notify")
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as told:
            told.bind(path)
            told.settimeout(60 * harness.SLOW)
            engine = subprocess.Popen([*self.command(), "--set", f"engine.socket={self.socket}"],
                                      env={**os.environ, "NOTIFY_SOCKET": path, **environment},
                                      stderr=subprocess.DEVNULL)
            self.addCleanup(self.end, engine)
            messages = [told.recv(4096)]
            while messages[-1] != b"READY=1":
                messages.append(told.recv(4096))
            self.assertGreater(messages.count(b"EXTEND_TIMEOUT_USEC=120000000"), 5)
            engine.terminate()
            self.assertEqual(told.recv(4096), b"STOPPING=1")
            self.assertEqual(harness.ended(engine, 30), 0)
        return {m.split(b"\n")[0] for m in messages} - {
            b"READY=1", b"EXTEND_TIMEOUT_USEC=120000000"}

    def test_with_a_store_an_engine_stores_its_memory_and_leaves_its_socket(self):
        # of its memory: see test_restart.py
        self.assertEqual(self.starts_and_stops(FDSTORE="650"),
                         {b"FDSTOREREMOVE=1", b"FDSTORE=1", b"BARRIER=1"})
        self.assertTrue(os.path.exists(self.socket))

    def test_without_a_store_an_engine_stores_nothing_and_removes_its_socket(self):
        self.assertNotIn(b"FDSTORE=1", self.starts_and_stops())
        self.assertFalse(os.path.exists(self.socket))

    def test_variables_for_another_process_are_ignored(self):
        done = harness.run(
            [*self.command(), "--set", f"engine.socket={self.socket}", "--set",
             "cluster.address=0.0.0.0"], capture_output=True, text=True,
            env={**os.environ, "LISTEN_PID": "1", "LISTEN_FDS": "1"}, seconds=30)
        self.assertNotIn("LISTEN_FDS", done.stderr)
        self.assertIn("cluster.address", done.stderr)


if __name__ == "__main__":
    harness.main()
