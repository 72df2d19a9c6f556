# SPDX-License-Identifier: Apache-2.0
"""peercache-bench as a user runs it: its own engines, two hosts, kept runs, Ctrl-C, what it leaves.

The runs are short, and no test asserts on speed.
"""

import collections
import contextlib
import csv
import ctypes
import glob
import io
import json
import multiprocessing
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest
from types import SimpleNamespace
from unittest import mock

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path[:0] = [os.path.join(ROOT, "tests", "cluster"),
                os.path.join(os.environ.get("PEERCACHE_BUILD", ""), "engine/client/python")]
import harness  # noqa: E402
from peercache.bench import (client, clients, compare, engines, options, report,  # noqa: E402
                             rows, sweep)

# The line that users of PeerCache 0.8.4 know.
LINE = ("peercache-bench suite --device-name mlx5_0 --layout mla --page-size 131072 "
        "--batch-size 32 --concurrencies 1,2,4,8,16,32,64 --duration 10 --tag rdma")
SMALL = ["--page-size", "4096", "--working-set", "256", "--warmup", "0.05", "--duration", "0.2"]
ENGINES = ["--set", "engine.huge_pages=no", "--set", "rail.polling=adaptive"]
WARNING = "not a NIC: do not quote"
LIBRARY = "tests/connectx/libsoftconnectx.so"


def children(pid):
    """The child processes of a process, by state."""
    found = {}
    for path in glob.glob("/proc/[0-9]*/stat"):
        try:
            with open(path, encoding="utf-8", errors="replace") as file:
                words = file.read().rpartition(")")[2].split()
        except OSError:
            continue
        if int(words[1]) == pid:
            found[int(path.split("/")[2])] = words[0]
    return found


def child_with(pid, words):
    """A child process of a process with these words in its command line; None: there is none."""
    for child in children(pid):
        with contextlib.suppress(OSError), \
                open(f"/proc/{child}/cmdline", encoding="utf-8", errors="replace") as line:
            if words in line.read():
                return child
    return None


class Run(harness.ClusterTest):
    """Base class: a folder for the reports of a test, and what a run may leave: nothing."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="peercache-")
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.temporary = os.path.join(self.folder, "tmp")  # $TMPDIR of the program
        self.reports = os.path.join(self.folder, "peercache-bench-results")
        os.mkdir(self.temporary)
        ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER: adopts what is left

    def bench(self, *words, before=(), **options):
        """Starts the program; the test waits for it."""
        process = subprocess.Popen(
            [*before, harness.program("tools/peercache-bench"), *map(str, words)], text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=self.folder,
            env={**os.environ, "TMPDIR": self.temporary}, **options)
        self.addCleanup(process.__exit__, None, None, None)
        self.addCleanup(process.kill)
        return process

    def done(self, *words, expect=0, **options):
        """Runs the program to its end; returns its output. It leaves nothing."""
        process = self.bench(*words, **options)
        status, out, err = harness.finish(process)
        self.assertEqual(status, expect, out + err)
        self.assert_nothing_left()
        return out + err

    def assert_nothing_left(self, folders=True):
        """No process that a run has started is alive, and no folder of it is there."""
        def gone():
            while True:
                try:
                    if os.waitpid(-1, os.WNOHANG)[0] == 0:
                        break
                except ChildProcessError:
                    break
            return not children(os.getpid())
        harness.wait_for(gone, 30, f"no process is left: {children(os.getpid())}")
        if folders:
            self.assertEqual(os.listdir(self.temporary), [])

    def report(self, name="*"):
        """The JSON of the only report whose name fits."""
        paths = glob.glob(os.path.join(self.reports, f"hicache-{name}.json"))
        self.assertEqual(len(paths), 1, paths)
        with open(paths[0], encoding="utf-8") as file:
            return json.load(file)

    def text(self, end):
        """The text of the only file of the reports with this extension."""
        path, = glob.glob(os.path.join(self.reports, "*." + end))
        with open(path, encoding="utf-8") as file:
            return file.read()


class Zombies(threading.Thread):
    """Looks for children of a process that have ended and are not waited for."""

    SEEN = 20  # looks in a row

    def __init__(self, process):
        super().__init__(daemon=True)
        self.process, self.found = process, {}

    def run(self):
        while self.process.poll() is None:
            dead = {pid for pid, state in children(self.process.pid).items() if state == "Z"}
            self.found = {pid: self.found.get(pid, 0) + 1 for pid in
                          dead | {p for p, n in self.found.items() if n >= self.SEEN}}
            time.sleep(0.1)

    def left(self):
        return [pid for pid, seen in self.found.items() if seen >= self.SEEN]


class Suite(Run):
    @unittest.skipUnless(os.access(os.path.join(harness.BUILD, LIBRARY), os.R_OK),
                         "this build has no software ConnectX")
    def test_the_line_of_0_8_4_runs_on_a_software_connectx(self):
        words = shlex.split(LINE.replace("--duration 10", "--duration 0.2"))[1:]
        process = self.bench(
            *words, "--warmup", "0.05", "--working-set", "256", "--progress", "0.1", *ENGINES,
            before=[os.path.join(ROOT, "tools", "soft-connectx"), "--library",
                    harness.program(LIBRARY)])
        zombies = Zombies(process)
        zombies.start()
        status, out, err = harness.finish(process, 600)
        zombies.join()
        self.assertEqual(status, 0, out + err)
        self.assertEqual(zombies.left(), [])
        self.assert_nothing_left()
        report = self.report("suite-software-connectx-rdma-*")
        self.check_rows(report["rows"])
        self.assertEqual((report["ports"]["kind"], report["ports"]["devices"], report["tag"]),
                         ("software ConnectX", ["mlx5_0"], "rdma"))
        self.check_progress(err)
        self.check_files(out)

    def check_rows(self, rows):
        """Every point is there, with only hits, the right bytes and latencies in order."""
        threads = [1, 2, 4, 8, 16, 32, 64]
        self.assertEqual([(r["op"], r["threads"], r["batch"]) for r in rows],
                         [(op, 1, 1) for op in ("get", "set", "exists")] +
                         [(op, n, 32) for op in ("get", "exists-get", "set", "exists")
                          for n in threads])
        for row in rows:
            self.assertEqual((row["misses"], row["wrong"], row["errors"]), (0, 0, ""), row)
            self.assertEqual(row["pages"], row["calls"] * row["batch"])
            self.assertGreater(row["pages"], 0, row)
            self.assertAlmostEqual(row["tokens_per_s"], 64 * row["pages_per_s"], places=3)
            shares = [row[name] for name in ("p50_us", "p95_us", "p99_us", "p999_us", "max_us")]
            self.assertEqual(shares, sorted(shares), row)
            if row["op"] in ("get", "exists-get"):
                self.assertGreater(row["pages_remote"], 0)
        sweep = [r for r in rows if r["op"] == "get" and r["batch"] == 32]
        peaks = [r for r in sweep if "peak" in r["note"]]
        self.assertEqual([r["pages_per_s"] for r in peaks], [max(r["pages_per_s"] for r in sweep)])

    def check_progress(self, err):
        """The counts of each point's progress only grow."""
        grown, last = 0, (None, 0, 0)
        for line in re.findall(r"(?m)^  .* calls, .*$", err):
            shown = re.match(r"  ([\w-]+, \d+ threads): \d+ s, ([\d,]+) calls, ([\d,]+) pages",
                             line)
            self.assertTrue(shown, line)
            now = (shown[1], *(int(number.replace(",", "")) for number in shown.groups()[1:]))
            if now[0] == last[0]:
                self.assertGreaterEqual(now[1:], last[1:])
                grown += now[1] > last[1] and now[2] > last[2]
            last = now
        self.assertGreater(grown, 0, "no progress was shown")

    def check_files(self, out):
        """JSON, CSV and HTML with plots, and each names the software ports."""
        page = self.text("html")
        titles = re.findall(r"<svg.*?<title>(.*?)</title>", page)
        self.assertEqual(len(titles), 9, titles)
        lines = list(csv.DictReader(self.text("csv").splitlines()))
        self.assertEqual(len(lines), 31)
        for text in (out, page, self.text("json"), *titles, *(row["ports"] for row in lines)):
            self.assertIn(WARNING, text)
        svg = re.search(r"<svg.*?pages/s by threads.*?</svg>", page)[0]
        self.assertEqual([len(points.split()) for points in
                          re.findall(r'<polyline points="([^"]*)"', svg)], [7] * 3)


class Measures(Run):
    def grown(self, most, rates):
        """The numbers of threads that a saturation with these rates measures."""
        growth, threads = sweep.Growth(most), []
        for rate in rates:
            threads.append(growth.threads)
            if not growth.goes_on(rate):
                break
        return threads

    def test_saturation_ends_when_throughput_does_not_grow(self):
        self.assertEqual(self.grown(64, [100, 190, 200, 195, 201, 900]), [1, 2, 4, 8, 16])
        self.assertEqual(self.grown(64, [100, 99, 200, 100, 400, 800, 1600, 3200]),
                         [1, 2, 4, 8, 16, 32, 64])
        self.assertEqual(self.grown(6, [1, 2, 4, 8]), [1, 2, 4, 6])
        self.done("saturation", "--op", "exists-get", *SMALL, *ENGINES)
        rows = self.report()["rows"]
        self.assertEqual([row["threads"] for row in rows],
                         self.grown(64, [row["pages_per_s"] for row in rows]))

    def test_readers_and_writers_of_several_processes_are_measured_together(self):
        said = self.done("saturation", "--concurrencies", "1,2", "--writers", 1, "--processes", 2,
                         "--layout", "mha", *SMALL, *ENGINES)
        rows = self.report()["rows"]
        self.assertEqual([(r["op"], r["threads"], r["readers"], r["writers"]) for r in rows],
                         [("get", 2, 1, 1), ("set", 2, 1, 1), ("get", 4, 2, 1), ("set", 2, 2, 1)])
        self.assertEqual({r["processes"] for r in rows}, {2})
        pairs, alone = compare.pairs_of({"rows": rows}, {"rows": rows[::-1]}, report.POINTS)
        self.assertTrue(all(old is new for old, new in pairs), "beside as many readers")
        self.assertEqual((len(pairs), alone), (4, 0))
        self.assertEqual(len({report.point_name(r) for r in rows}), 4)
        self.assertEqual({r["page_bytes"] for r in rows}, {8192})  # K and V
        self.assertTrue(all(r["pages"] and not r["wrong"] for r in rows), said)

    def test_misses_are_apart(self):
        engines = self.start(1, pool_bytes="16MiB")
        status, out, err = harness.finish(self.bench(
            "throughput", "--sockets", engines.sockets[0], "--concurrency", 1, "--page-size",
            "128k", "--working-set", 1024, "--batch-size", 512, "--duration", "0.5"))
        self.assertEqual(status, 0, out + err)
        row, = self.report()["rows"]
        self.assertGreater(row["misses"], 0)
        self.assertEqual((row["p50_us"], row["max_us"]), (0, 0), "no call had only hits")
        self.assertGreater(row["missed_p50_us"], 0)
        self.assertLess(row["hit_ratio"], 1)
        self.stop_cleanly(engines)

    def test_the_client_library_is_measured_beside_the_store(self):
        said = self.done("micro", "--path", "both", "--block-size", "4096", "--batch-size", 32,
                         "--duration", "0.2", "--warmup", "0.05", *ENGINES)
        rows = self.report()["rows"]
        self.assertEqual([(r["path"], r["wrong"], r["misses"]) for r in rows],
                         [("transport", 0, 0), ("store", 0, 0)])
        self.assertTrue(all(r["pages_per_s"] > 0 and r["p95_us"] > 0 for r in rows))
        self.assertIn("4096 bytes: store / transport", said)

    def test_a_run_that_needs_more_memory_than_allowed_is_refused(self):
        said = self.done("latency", "--max-bytes", "64MiB", *ENGINES, expect=2)
        self.assertRegex(said, "takes [0-9]+ MiB of memory, more than --max-bytes")

    def test_a_log_that_cannot_be_written_is_an_error_of_one_line(self):
        path = os.path.join(self.folder, "none", "log")
        said = self.done("--log-file", path, "latency", *SMALL, expect=2)
        self.assertEqual(said, f"peercache-bench: --log-file {path}: No such file or directory\n")

    def test_an_engine_that_does_not_start_is_an_error_with_its_reason(self):
        said = self.done("latency", *SMALL, "--set", "engine.huge_pages=perhaps", expect=2)
        self.assertIn("engine.huge_pages", said)


class Parts(unittest.TestCase):
    """Single functions, without engines."""

    def test_the_memory_that_is_planned_is_that_of_the_clients(self):
        for threads, writers, processes in ((1, 0, 1), (16, 0, 2), (17, 0, 1), (33, 3, 2)):
            given = options.parse(["throughput", "--concurrency", str(threads), "--writers",
                                   str(writers), "--processes", str(processes)])
            group, = sweep.groups_of(given)
            sizes = sweep.Sizes(given, [group], 1)
            specs = sweep.specs_of(given, "", sizes, group)
            self.assertEqual(sum(spec.slots * spec.stores for spec in specs) + sizes.preload,
                             sizes.clients // sizes.page)

    def test_seconds_are_from_the_first_call_of_all_processes_to_the_last(self):
        total = {}
        for first, last in ((5, 8), (0, 0), (2, 6)):  # in s; the second one made no call
            caller = SimpleNamespace(calls=first, hits=first, misses=0, wrong=0, call_ns=1,
                                     first_ns=first * 10 ** 9, last_ns=last * 10 ** 9,
                                     hit=client.Histogram(), missed=client.Histogram())
            clients.merge(total, client.result([caller], collections.Counter()))
        self.assertEqual((total["seconds"], total["calls"], total["threads"]), (6, 7, 3))

    def test_a_run_with_the_seed_of_another_one_stores_new_pages(self):
        spec = client.Spec("", 4096, 1, 8, 256, seed=7)
        one = SimpleNamespace(spec=spec, pool=mock.Mock())
        point = {"batch": 8, "number": 1}
        seen = set()
        for _ in range(3):
            caller = client.Caller(one, point, "set", 0)
            for _ in range(3):
                first = caller.choose()
                seen |= set(range(first, first + 8))
        self.assertEqual(len(seen), 72)

    def client_alone(self, **made):
        """The status of a client process whose benchmark ended during the start."""
        ours, theirs = multiprocessing.Pipe()
        ours.send(vars(client.Spec("", 4096, 1, 8, 256, seed=7, stores=2)))
        ours.close()
        self.addCleanup(theirs.close)
        parts = {"Connection": lambda _number: theirs, "Client": mock.Mock(**made),
                 "log_to": mock.Mock()}
        with mock.patch.multiple(client, **parts), \
                mock.patch.object(client.signal, "signal"), \
                mock.patch.object(client.sys, "argv", ["client", "0"]):
            return client.main()

    def test_a_client_whose_benchmark_has_ended_closes_its_stores(self):
        made = [mock.Mock(), mock.Mock()]
        self.assertEqual(self.client_alone(side_effect=made), 0)
        for one in made:
            one.store.close.assert_called_once_with()

    def test_a_client_that_fails_when_its_benchmark_has_ended_ends_with_1(self):
        self.assertEqual(self.client_alone(side_effect=OSError("no engine")), 1)

    def test_latency_is_not_compared_with_a_sweep(self):
        same = {"op": "get", "path": "store", "layout": "mla", "page_bytes": 4096, "batch": 1,
                "processes": 1, "threads": 1, "readers": 1, "writers": 0}
        rows = [{**same, "note": note} for note in ("latency", "peak")]
        pairs, alone = compare.pairs_of({"rows": rows}, {"rows": rows[::-1]},
                                        report.POINTS)
        self.assertEqual([(old["note"], new["note"]) for old, new in pairs],
                         [("latency", "latency"), ("peak", "peak")])
        self.assertEqual(alone, 0)
        self.assertNotEqual(report.point_name(rows[0]), report.point_name(rows[1]))

    def kind(self, devices, pid):
        """(kind, warning) of the ports of an engine with these devices and this process."""
        ports = engines.ports_of({"rails": [{"device": one} for one in devices], "pid": pid})
        self.assertEqual(ports["devices"], devices)
        return ports["kind"], ports["warning"]

    def test_a_numbered_software_port_is_no_nic(self):
        for devices in (["soft"], ["soft:0", "soft:1"], ["mlx5_0", "soft:7"]):
            self.assertEqual(self.kind(devices, os.getpid()),
                             ("software NIC", f"software NIC: {WARNING}"))

    def test_ports_are_a_nic_only_if_the_process_of_the_engine_shows_it(self):
        folder = tempfile.TemporaryDirectory(prefix="peercache-")
        self.addCleanup(folder.cleanup)
        maps = os.path.join(folder.name, "maps")
        real_open = open
        for text, kind in (("/usr/bin/peercache-engine\n/usr/lib/libmlx5.so.1\n", "NIC"),
                           ("/usr/bin/peercache-engine\n/x/libsoftconnectx.so\n",
                            "software ConnectX"),
                           ("/usr/bin/bash\n", engines.UNKNOWN), (None, engines.UNKNOWN)):
            with self.subTest(text):
                if text:
                    with real_open(maps, "w", encoding="utf-8") as file:
                        file.write(text)
                else:
                    os.unlink(maps)
                with mock.patch.object(engines, "open", lambda _path, **how: real_open(maps, **how),
                                       create=True):
                    found, warning = self.kind(["mlx5_0"], 7)
                self.assertEqual(found, kind)
                self.assertEqual("do not quote" in warning, kind != "NIC", warning)

    def test_it_waits_until_the_memory_of_both_engines_is_populated(self):
        looks = []

        def report(path):
            looks.append(path)
            done = looks.count(path) > 20
            return {"version": "1", "pid": "1", "figures":
                    {"memory_bytes": 2 << 30, "memory_populated_bytes": 1 + done << 30}}

        said = io.StringIO()
        with mock.patch.object(engines, "report_of", report), \
                mock.patch.object(engines, "ports_of", lambda _report: {}), \
                mock.patch.object(engines.time, "sleep"), contextlib.redirect_stderr(said):
            engines.Engines(["near", "far"])
        self.assertEqual((looks.count("near"), looks.count("far")), (21, 21))
        for path in ("near", "far"):
            self.assertIn(f"engine at {path} is populated: 1.0 GiB left", said.getvalue())

    def test_a_report_of_running_engines_names_their_ports_and_no_flags_of_others(self):
        words = ["throughput", "--batch-size", "8"]
        for sockets, kind, file, protocol in (
                (["--sockets", "/run/a"], "software NIC", "software-nic", None),
                ([], "software NIC", "software-nic", "rdma"), ([], "NIC", "rdma", "rdma")):
            with self.subTest(sockets), tempfile.TemporaryDirectory(prefix="peercache-") as folder:
                given = vars(options.parse([*words, *sockets]))
                ports = {"devices": ["soft"], "kind": kind, "warning": ""}
                path = report.write(report.made(given, ports, "1", [], False, ""), folder,
                                    report.POINTS)
                self.assertRegex(os.path.basename(path), rf"^hicache-throughput-get-{file}-\d")
                with open(path + ".json", encoding="utf-8") as text:
                    shown = json.load(text)["options"]
                self.assertEqual((shown.get("protocol"), shown["batch_size"]), (protocol, 8))
                self.assertEqual("max_bytes" in shown, not sockets)
                with open(path + ".html", encoding="utf-8") as text:
                    self.assertEqual("<td>protocol</td>" in text.read(), not sockets)

    def closed(self, folder, keepers):
        """What Started.close() says. folder: has the directory and the disk of its engines.
        keepers: for each engine, whether its keeper has ended."""
        started = engines.Started.__new__(engines.Started)
        started.directory, started.disk = (os.path.join(folder, name) for name in ("run", "disk"))
        started.attached = [mock.Mock(config=SimpleNamespace(
            engine_socket=f"/run/{i}.sock", engine_log=f"/run/{i}.log", ended=ended))
            for i, ended in enumerate(keepers)]
        with mock.patch.object(engines.launch, "keeper_ended", lambda config: config.ended), \
                mock.patch.object(engines, "GONE_SECONDS", 0), \
                contextlib.redirect_stderr(io.StringIO()) as said:
            started.close()
        return said.getvalue()

    def test_what_a_run_leaves_is_named(self):
        with tempfile.TemporaryDirectory(prefix="peercache-") as folder:
            run, disk = (os.path.join(folder, name) for name in ("run", "disk"))
            for path in (run, disk):
                os.makedirs(os.path.join(path, "files"))
            said = self.closed(folder, [True, False])
            self.assertIn("peercache-bench: the engine at /run/1.sock and its keeper have not "
                          "ended after 0 s; their log is /run/1.log\n", said)
            self.assertIn(f"remove {run} and {disk} when it has ended\n", said)
            self.assertNotIn("/run/0.sock", said)
            self.assertEqual(sorted(os.listdir(folder)), ["disk", "run"])
            self.assertEqual(self.closed(folder, [True, True]), "")
            self.assertEqual(os.listdir(folder), [])
            os.mkdir(run)
            os.symlink(run, disk)  # which rmtree() refuses to remove
            self.assertRegex(self.closed(folder, [True]),
                             rf"^peercache-bench: {disk} stays: .*\n$")
            self.assertEqual(os.listdir(folder), ["disk"])

    def compared(self, wrong=0, **changes):
        """(exit status, output, page) of a comparison of two kept runs. The newer one has this
        number of wrong pages, and these changes."""
        row = {**dict.fromkeys(rows.COLUMNS, 0), "op": "get", "path": "store", "note": ""}
        ports = {"devices": ["mlx5_0"], "kind": "NIC", "warning": ""}
        with tempfile.TemporaryDirectory(prefix="peercache-") as folder, \
                contextlib.redirect_stdout(io.StringIO()) as said:
            for tag, bad, more in (("old", 0, {}), ("new", wrong, changes)):
                made = report.made({"command": "suite", "tag": tag}, ports, "1",
                                   [{**row, "wrong": bad}], False, "")
                with open(os.path.join(folder, f"{tag}.json"), "w", encoding="utf-8") as file:
                    json.dump({**made, **more}, file)
            status = compare.run(options.parse(["compare", "old", "new", "--out-dir", folder]))
            path, = glob.glob(os.path.join(folder, "*.html"))
            with open(path, encoding="utf-8") as file:
                return status, said.getvalue(), file.read()

    def test_a_comparison_names_a_run_that_failed_or_read_wrong_pages(self):
        for changes, expected, note in (
                ({}, 0, None), ({"wrong": 3}, 1, "new: 3 pages had wrong bytes"),
                ({"failed": "no engine"}, 0,
                 "new: failed, no engine: these are the results until then"),
                ({"interrupted": True}, 0, "new: interrupted: these are the results until then")):
            with self.subTest(changes):
                status, said, page = self.compared(**changes)
                self.assertEqual(status, expected)
                self.assertEqual(said.startswith(f"{note}\n"), bool(note), said)
                self.assertEqual(re.findall('<p class="not">(.*?)</p>', page),
                                 [note] if note else [])

    def test_a_run_of_another_version_is_named_unless_there_is_one_of_this(self):
        for kept, said in (
                ([], "no run in .* has the tag new"), ([7], "no run in"),
                (["another 1"], "no run in"), ([None], "no run in"),
                (["peercache-bench 1"],
                 "/0.json is of another version of peercache-bench: measure it again$"),
                (["peercache-bench 1", report.FORMAT], None)):
            with tempfile.TemporaryDirectory(prefix="peercache-") as folder:
                for i, version in enumerate(kept):
                    for tag, one in (("new", version), ("old", "peercache-bench 1")):
                        path = os.path.join(folder, f"{i if tag == 'new' else tag}.json")
                        with open(path, "w", encoding="utf-8") as file:
                            json.dump({"format": one, "tag": tag}, file)
                with self.subTest(kept):
                    if said:
                        with self.assertRaisesRegex(ValueError, said):
                            compare.kept(folder, "new")
                    else:
                        self.assertEqual(compare.kept(folder, "new")["format"], report.FORMAT)

    def test_a_port_that_a_test_has_reserved_is_not_taken(self):
        taken, used = socket.socket(socket.AF_UNIX), socket.socket()
        self.addCleanup(taken.close)
        self.addCleanup(used.close)
        used.bind(("127.0.0.1", 0))
        reserved, = harness.cluster.free_ports(1)
        wanted, = harness.cluster.free_ports(1)
        harness.cluster.PORTS.pop().close()
        tried = [31997, 31998, reserved, used.getsockname()[1], wanted]
        with mock.patch.object(engines.random, "randrange", side_effect=tried):
            self.assertEqual(engines.free_port(), wanted)
        self.addCleanup(engines.RESERVED.pop().close)
        with self.assertRaises(OSError):  # it stays reserved
            taken.bind(f"\0peercache-port-{wanted}")


class Kept(Run):
    def test_two_tags_are_compared(self):
        for tag, threads in (("old", "1,2"), ("new", "1,2,3")):
            self.done("saturation", "--concurrencies", threads, "--tag", tag, *SMALL, *ENGINES)
        said = self.done("compare", "old", "new")
        page = self.text_of_comparison()
        for text in (said, page):
            self.assertIn("1 rows are in one run only", text)
            self.assertIn(WARNING, text)
        rows = {tag: self.report(f"*-{tag}-*")["rows"] for tag in ("old", "new")}
        for old, new in zip(rows["old"], rows["new"]):
            ratio = f"{new['pages_per_s'] / old['pages_per_s']:.2f}"
            self.assertRegex(said, rf"{old['threads']} threads +pages/s .* {ratio}\n")
        self.assertIn("<svg", page)
        self.assertIn("no run in", self.done("compare", "old", "other", expect=2))

    def text_of_comparison(self):
        path, = glob.glob(os.path.join(self.reports, "compare-old-new-*.html"))
        with open(path, encoding="utf-8") as file:
            return file.read()


class Ends(Run):
    """Ctrl-C ends it with what it has, and nothing stays."""

    LONG = ["throughput", "--concurrency", 2, "--page-size", "4096", "--duration", 600,
            "--warmup", "0.05", "--progress", "0.1", *ENGINES]

    def measuring(self, process):
        """Waits until the program shows progress of counted calls."""
        for line in process.stderr:
            if re.search(r" [1-9][\d,]* calls", line):
                return
        self.fail(f"it ended before it measured: {process.communicate()}")

    def test_ctrl_c_ends_it_with_what_it_has(self):
        process = self.bench(*self.LONG, "--working-set", 256, start_new_session=True)
        self.measuring(process)
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does
        status, out, err = harness.finish(process, 30)
        self.assertEqual(status, 0, out + err)
        self.assert_nothing_left()
        report = self.report()
        row, = report["rows"]
        self.assertTrue(report["interrupted"])
        self.assertGreater(row["calls"], 0)
        self.assertIn("interrupted", row["note"])
        self.assertIn("interrupted: these are the results until then", self.text("html"))

    def test_evicted_pages_go_to_a_disk_that_is_emptied(self):
        process = self.bench(*self.LONG, "--op", "set", "--disk", "--set",
                             "disk.segment_bytes=1MiB", "--set", "disk.bytes=16MiB",
                             "--out-dir", os.path.basename(self.reports))

        def spilled():
            self.assertIsNone(process.poll())
            near = glob.glob(os.path.join(self.temporary, "peercache-bench-*", "0.sock"))
            done = harness.run([harness.program("tools/peercachectl"), "--socket", *near, "--json",
                                "status"], capture_output=True, text=True) if near else None
            return done and not done.returncode and json.loads(done.stdout)["figures"]["disk_pages"]
        threading.Thread(target=process.stderr.read, daemon=True).start()
        harness.wait_for(spilled, 30, "pages are on the disk")
        process.send_signal(signal.SIGINT)
        process.stdout.read()
        self.assertEqual(harness.ended(process), 0)
        self.assert_nothing_left()
        self.assertEqual([name for name in os.listdir(self.reports) if "disk" in name], [])

    def test_ctrl_c_before_it_measures_ends_it_without_results(self):
        process = self.bench(*self.LONG, "--working-set", 1 << 22, "--max-bytes", "64GiB",
                             "--set", "engine.pool_bytes=64MiB", start_new_session=True)
        for line in process.stdout:
            if line.startswith("storing"):
                break
        os.killpg(process.pid, signal.SIGINT)
        status, out, err = harness.finish(process, 30)
        self.assertEqual(status, 130, out + err)
        self.assert_nothing_left()
        self.assertFalse(os.path.exists(self.reports))

    def test_ctrl_c_in_the_warm_up_ends_it_without_a_report(self):
        process = self.bench(*self.LONG, "--working-set", 256, "--warmup", 600,
                             start_new_session=True)
        for line in process.stderr:
            if "warming up" in line:
                break
        os.killpg(process.pid, signal.SIGINT)
        status, out, err = harness.finish(process, 30)
        self.assertEqual(status, 130, out + err)
        self.assert_nothing_left()
        self.assertFalse(os.path.exists(self.reports))

    def test_ctrl_c_keeps_the_rows_that_are_measured(self):
        # While the store's pages are stored; while the C program of the next size runs.
        for line, child, rows in (("storing ", "", ["transport"]), (
                "store / transport", "--page-bytes\0" "8192\0", ["transport", "store"])):
            with self.subTest(line):
                self.interrupt_comparison(line, child, rows)
                shutil.rmtree(self.reports)

    def interrupt_comparison(self, until, child, rows):
        """Ctrl-C when the program has printed `until` and has this child leaves these rows."""
        process = self.bench("compare", "--skip-mooncake", "--block-sizes", "4096,8192",
                             "--duration", "3", "--warmup", "0", *ENGINES,
                             start_new_session=True)
        for line in process.stdout:
            if until in line:
                break
        harness.wait_for(lambda: not child or child_with(process.pid, child), 30, "it has a child")
        os.killpg(process.pid, signal.SIGINT)
        status, out, err = harness.finish(process, 30)
        self.assertEqual(status, 0, out + err)
        self.assert_nothing_left()
        self.assertTrue(self.report()["interrupted"])
        kept = [(r["path"], r["page_bytes"]) for r in self.report()["rows"]]
        self.assertEqual(kept[:len(rows)], [(path, 4096) for path in rows])
        # on a busy machine Ctrl-C may come in the next measurement
        self.assertLessEqual(len(kept), len(rows) + 1)

    def test_a_client_process_that_dies_leaves_the_rows_before(self):
        process = self.bench("saturation", "--concurrencies", ",".join(64 * "1"), *SMALL,
                             "--progress", 0, *ENGINES)
        for line in process.stdout:
            if line.startswith("get, 1 threads"):
                break
        os.kill(child_with(process.pid, "peercache.bench.client"), signal.SIGKILL)
        status, out, err = harness.finish(process, 60)
        self.assertEqual(status, 2, out + err)
        self.assertIn("a client process ended with -9", err)
        self.assert_nothing_left()
        self.assertIn(len(self.report()["rows"]), range(1, 64))
        self.assertIn("ended with -9", self.report()["failed"])
        self.assertIn("ended with -9: see above: these are the results until then",
                      self.text("html"))

    def test_its_engines_and_clients_end_when_it_is_killed(self):
        process = self.bench(*self.LONG, "--working-set", 256, start_new_session=True)
        self.measuring(process)
        process.kill()
        harness.ended(process)
        self.assert_nothing_left(folders=False)


@unittest.skipUnless(os.geteuid() == 0 and shutil.which("ip"), "namespaces need root and ip")
class Hosts(Run):
    def test_serve_and_drive_measure_over_two_hosts(self):
        hosts = harness.cluster.Namespaces(2)
        self.addCleanup(hosts.close)
        pages = ["--page-size", "4096", "--working-set", "256", *ENGINES]
        inside = [["ip", "netns", "exec", name] for name in hosts.names]
        serve = self.bench("serve", "--discovery-addr", "0.0.0.0:31998", "--seed", 7, "--protocol",
                           "tcp", "--global-segment-size", "128MiB", *pages, before=inside[0])
        said = ""
        for line in serve.stdout:
            said += line
            if "Ctrl-C ends it" in line:
                break
        drive = re.search(r"(drive --discovery-addr 10\.77\.0\.1:31998 .*)\n", said)
        self.assertTrue(drive, said + str(serve.poll() is not None and serve.communicate()))
        self.assertIn("starting an engine, 128 MiB\n", said)
        self.assertIn(" --seed 7 --protocol tcp\n", said)
        self.assertIn(WARNING, said)
        process = self.bench(*shlex.split(drive[1]), "--op", "exists-get", "--concurrencies", "1,4",
                             "--processes", 2, "--duration", "0.2", "--warmup", "0.05", "--tag",
                             "two", *ENGINES, before=inside[1])
        status, out, err = harness.finish(process)
        self.assertEqual(status, 0, out + err)
        rows = self.report("drive-exists-get-software-nic-two-*")["rows"]
        self.assertEqual([(r["threads"], r["misses"], r["wrong"], r["pages_local"]) for r in rows],
                         [(2, 0, 0, 0), (8, 0, 0, 0)])
        self.assertTrue(all(r["pages"] > 0 and r["pages_remote"] >= r["pages"] for r in rows))
        serve.send_signal(signal.SIGINT)
        status, out, err = harness.finish(serve, 30)
        self.assertEqual(status, 0, out + err)
        self.assert_nothing_left()

    def test_drive_says_when_it_finds_no_pages(self):
        hosts = harness.cluster.Namespaces(1)
        self.addCleanup(hosts.close)
        said = self.done("drive", "--discovery-addr", "10.77.0.1:31998", "--connect-timeout", "0.5",
                         "--concurrencies", "1", "--page-size", "4096", *ENGINES, expect=2,
                         before=["ip", "netns", "exec", hosts.names[0]])
        self.assertIn("this host does not find the pages of serve; its engine sees 1 members", said)


if __name__ == "__main__":
    unittest.main()
