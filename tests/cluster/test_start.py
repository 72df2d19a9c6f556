# SPDX-License-Identifier: Apache-2.0
"""Starting an engine: errors found before memory is allocated, readiness, signals, stderr."""

import os
import signal
import socket
import stat
import subprocess
import tempfile
import textwrap
import threading
import unittest
import unittest.mock

import harness
from test_refusals import engine, settings

# More than any machine has: an error reported with this pool size was found before the pools.
LARGE = "1TiB"


class Examples(harness.ClusterTest):
    def test_the_two_engines_of_the_first_page_print_no_warning(self):
        ports = harness.cluster.free_ports(2)
        example = os.path.join(harness.ROOT, "config/examples/soft-two-nodes.conf")
        with tempfile.TemporaryDirectory(prefix="peercache-") as folder:
            sockets, logs = ([os.path.join(folder, f"{i}.{end}") for i in range(2)]
                             for end in ("sock", "log"))
            for i in range(2):
                values = [f"cluster.seeds=127.0.0.1:{ports[0]},127.0.0.1:{ports[1]}",
                          f"engine.name=node-{i}", f"cluster.port={ports[i]}",
                          f"engine.socket={sockets[i]}"]
                with open(logs[i], "w", encoding="utf-8") as log:
                    process = subprocess.Popen(  # pylint: disable=consider-using-with
                        [harness.program("engine/peercache-engine"), "--config", example,
                         *(word for value in values for word in ("--set", value))],
                        stdout=log, stderr=log)
                self.addCleanup(process.wait)
                self.addCleanup(process.kill)
            for path in sockets:
                harness.wait_for(lambda path=path: "0 down, 0 silent, 2 up" in harness.run(
                    [harness.program("tools/peercachectl"), "--socket", path, "members"],
                    capture_output=True, text=True).stdout, 30, "both are members")
            for path in logs:
                with open(path, encoding="utf-8") as log:
                    self.assertNotRegex(log.read(), " (warn|error) ")


class Names(harness.ClusterTest):
    """An engine that cannot have its address or socket reports it before it allocates memory."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="peercache-")
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def refused(self, *words, **values):
        given = {"engine__socket": f"{self.folder}/e.sock", "engine__pool_bytes": LARGE,
                 "cluster__port": harness.cluster.free_port(), **values}
        done = engine(*settings(**given))
        self.assertEqual(done.returncode, 1, done.stderr)
        for word in words:
            self.assertIn(word, done.stderr)
        self.assertNotIn("pool", done.stderr)
        return done

    def test_addresses_of_other_hosts_and_ports_in_use_are_refused(self):
        self.refused("cluster.address", "0.0.0.0", cluster__address="0.0.0.0")
        self.refused("cluster.address", "::", cluster__address="::")
        self.refused("192.0.2.1", "Set cluster.address", cluster__address="192.0.2.1")
        self.refused("cluster.address", "no.such.name.invalid",
                     cluster__address="no.such.name.invalid")
        with socket.socket() as other:
            other.bind(("127.0.0.1", 0))
            other.listen()
            port = other.getsockname()[1]
            self.refused(str(port), "set another cluster.port", cluster__port=port)
        self.assertEqual(os.listdir(self.folder), [], "no file is left behind")

    def test_every_bad_value_is_refused_with_its_setting_and_the_fix(self):
        rows = {
            "rail.devices": ["mlx5_9", "soft,", "soft,,soft", "soft:0,soft:0"],
            "rail.cores": ["x", "0,", "9999", "-1"], "control.core": ["x", "9999"],
            "cluster.seeds": ["a:x", "a:0", "[10.0.0.1:1]", "1:2:3", "[::1", "a:1,:2"],
            "cluster.address": ["300.1.1.1", "0.0.0.0"], "soft.address": ["xyz"],
            "engine.socket": [self.folder, f"{self.folder}/a/b/e.sock", "/proc/version/e.sock"],
            "engine.pool_bytes": ["0", "4 parsecs", "-1"], "rail.gid_index": ["x", "256"],
            "cluster.replicas": ["0"], "cluster.port": ["0", "x"], "rail.polling": ["often"],
            "log.level": ["loud"], "engine.huge_pages": ["maybe"],
        }
        for name, values in rows.items():
            for value in values:
                with self.subTest(setting=name, value=value):
                    done = engine(*settings(engine__socket=f"{self.folder}/e.sock",
                                            engine__pool_bytes=LARGE,
                                            cluster__port=harness.cluster.free_port()),
                                  "--set", f"{name}={value}")
                    self.assertIn(done.returncode, (1, 2), done.stderr)
                    said, = [line for line in done.stderr.splitlines() if name in line]
                    self.assertRegex(said, rf"{name}.*\b(give|set|use|write|name|remove|create)\b|"
                                     rf"{name}.*Set {name} to")
                    self.assertNotIn("memory peercache-pool", done.stderr)

    def test_a_data_link_address_of_another_host_is_refused_with_its_setting(self):
        done = engine(*settings(engine__socket=f"{self.folder}/e.sock", soft__link="tcp",
                                engine__pool_bytes="16MiB", soft__address="192.0.2.1",
                                cluster__port=harness.cluster.free_port()))
        self.assertEqual(done.returncode, 1)
        self.assertRegex(done.stderr, r"soft\.address.*192\.0\.2\.1")

    def test_a_socket_of_a_running_engine_is_refused(self):
        engines = self.start(1, pool_bytes="16MiB")
        self.refused(engines.sockets[0], str(engines.process[0].pid), "engine.socket",
                     engine__socket=engines.sockets[0])
        self.assertIsNotNone(engines.status(0))
        self.stop_cleanly(engines)

    def test_only_the_last_missing_directory_of_the_socket_path_is_created(self):
        self.refused("engine.socket", f"{self.folder}/a/b",
                     engine__socket=f"{self.folder}/a/b/e.sock")
        self.assertEqual(os.listdir(self.folder), [])
        self.refused(f"created directory {self.folder}/a for engine.socket, mode 0755",
                     engine__socket=f"{self.folder}/a/e.sock", cluster__address="0.0.0.0")
        self.assertEqual(stat.S_IMODE(os.stat(f"{self.folder}/a").st_mode) & 0o700, 0o700)


class Ready(unittest.TestCase):
    """Cluster.wait_ready(), with a shell script in place of the engine."""

    def launched(self, text):
        """A cluster of one script; $2 is the file descriptor of --ready-fd."""
        folder = tempfile.TemporaryDirectory(prefix="peercache-")
        self.addCleanup(folder.cleanup)
        program = f"{folder.name}/engine"
        with open(program, "w", encoding="ascii") as script:
            script.write("#!/bin/sh\n" + text)
        os.chmod(program, 0o755)
        engines = harness.cluster.Cluster(harness.BUILD, 1)
        engines.command = lambda i: [program]
        engines.logs = [f"{folder.name}/log"]
        engines.launch(0)
        self.addCleanup(engines.stop)
        return engines

    def test_an_engine_counts_as_started_when_it_writes_to_its_ready_fd(self):
        """Log lines alone do not count."""
        engines = self.launched(textwrap.dedent("""\
            trap 'printf x >/proc/self/fd/$2' USR1
            trap 'exit 0' TERM
            echo '2026-01-01 info  pool of rail 0: 16 MiB, ready after 3 ms' >&2
            echo 'ready: fake, 1 rail, clients at nowhere' >&2
            while :; do sleep 0.05; done
            """))
        harness.wait_for(lambda: "ready: fake" in engines.log(0), 20, "the log lines are written")
        waits = threading.Thread(target=engines.wait_ready, args=(0,))
        waits.start()
        waits.join(0.2)
        self.assertTrue(waits.is_alive())
        engines.process[0].send_signal(signal.SIGUSR1)
        waits.join(20 * harness.SLOW)
        self.assertFalse(waits.is_alive())

    def test_an_engine_that_exits_first_is_reported_with_its_log(self):
        engines = self.launched("echo 'the reason' >&2\nexit 3\n")
        with self.assertRaisesRegex(RuntimeError, r"(?s)ended with 3; its log:.*the reason"):
            engines.wait_ready(0)
        engines.process[0] = None

    def test_an_engine_that_does_not_serve_in_time_is_reported_with_its_log(self):
        engines = self.launched("trap 'exit 0' TERM\necho 'at work' >&2\n"
                                "while :; do sleep 0.05; done\n")
        harness.wait_for(lambda: "at work" in engines.log(0), 20, "the log line is written")
        with unittest.mock.patch.object(harness.cluster, "START_SECONDS", 0.1), \
                self.assertRaisesRegex(RuntimeError, r"(?s)did not serve within 0.1 s.*at work"):
            engines.wait_ready(0)


class Signals(harness.ClusterTest):
    def test_sighup_does_not_end_the_engine(self):
        engines = self.start(1, pool_bytes="16MiB")
        pid = engines.process[0].pid
        os.kill(pid, signal.SIGHUP)
        self.replay(engines, "--requests", 5)
        self.assertEqual(engines.process[0].pid, pid)
        self.stop_cleanly(engines)


class PipedCluster(harness.cluster.Cluster):
    """One engine whose stderr is a pipe; only log() reads it."""
    said = ""

    def launch(self, i):
        self.reader, writer = os.pipe()
        os.set_blocking(self.reader, False)
        self.spawn(i, writer)
        self.writer = os.open(f"/proc/self/fd/{writer}", os.O_WRONLY | os.O_NONBLOCK)
        os.close(writer)

    def log(self, i):
        try:
            self.said += os.read(self.reader, 1 << 20).decode(errors="replace")
        except BlockingIOError:
            pass
        return self.said

    def fill(self):
        for size in (4096, 1):
            try:
                while True:
                    os.write(self.writer, b"x" * size)
            except BlockingIOError:
                pass


class Population(harness.ClusterTest):
    def test_the_status_tells_how_far_it_is_and_a_benchmark_waits_for_it(self):
        engines = self.start(1, pool_bytes="1GiB")  # it takes longer than a look at it

        def status():
            return harness.finish(
                harness.tool("tools/peercachectl", "status", sockets=engines.sockets))[1]

        said = status()
        self.assertRegex(said, r"\nmemory: [\d.]+ \w+ of 1\.\d \w+ are populated\n")
        done = harness.run([harness.program("tools/peercache-bench"), "set", "--seconds", "1",
                            "--working-set", "4MiB"], capture_output=True, text=True,
                           env={**os.environ, "PEERCACHE_SOCKETS": engines.sockets[0]})
        self.assertEqual(done.returncode, 0, done.stderr)
        figures = engines.status(0)["figures"]
        self.assertEqual(figures["memory_populated_bytes"], figures["memory_bytes"])
        self.assertNotIn("are populated", status())
        self.stop_cleanly(engines)


class Stderr(harness.ClusterTest):
    def test_an_engine_whose_stderr_is_not_read_keeps_serving(self):
        engines = PipedCluster(harness.BUILD, 1, pool_bytes="16MiB")
        self.addCleanup(engines.stop)
        engines.start()
        self.addCleanup(os.close, engines.reader)
        self.addCleanup(os.close, engines.writer)
        engines.log(0)
        engines.fill()
        with socket.create_connection((engines.address[0], engines.port[0])) as peer:
            peer.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")  # makes the engine log a line
            peer.settimeout(60 * harness.SLOW)
            while peer.recv(65536):
                pass
        self.replay(engines, "--requests", 5, seconds=60)
        self.assertIsNone(engines.process[0].poll())
        self.assertNotIn("GET", engines.log(0))
        harness.wait_for(lambda: "lines of the log are missing here" in engines.log(0), 30,
                         "the engine logs that lines are missing")
        self.stop_cleanly(engines)


if __name__ == "__main__":
    harness.main()
