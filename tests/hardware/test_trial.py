# SPDX-License-Identifier: Apache-2.0
"""peercachectl trial over software ConnectX: its steps, its report, and what ends it early."""

import errno
import glob
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tarfile
import tempfile
import types
import unittest
from unittest import mock

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path[:0] = [os.path.join(ROOT, "tests", "cluster")]
import harness  # noqa: E402

sys.path.insert(0, os.path.join(harness.BUILD, "engine/client/python"))
from peercache.trial import claims, frame, link, measure, report  # noqa: E402

HERE = os.path.dirname(os.path.abspath(__file__))
PLAYED = os.path.join(HERE, "played")  # programs and packages that hosts have


class TrialTest(unittest.TestCase):
    def setUp(self):
        home = tempfile.TemporaryDirectory(prefix="pct-")
        self.addCleanup(home.cleanup)
        self.scratch, self.output = (os.path.join(home.name, name) for name in ("t", "o"))
        os.mkdir(self.scratch)
        self.env = {**os.environ, "TMPDIR": self.scratch, "PEERCACHE_PYTHON": sys.executable,
                    "PEERCACHE_TRIAL_LOCK": f"trial-{os.getpid()}-{self.id()}"}

    def before(self, devices, link, odd):
        return [os.path.join(ROOT, "tools", "soft-connectx"), "--library",
                harness.program("tests/connectx/libsoftconnectx.so"), "--devices", str(devices),
                "--link", link, "--odd", odd]

    def trial(self, *words, devices=2, link="roce", odd="", quick=True, **env):
        """Starts a quick trial. odd: how its ports differ, of tests/connectx/odd.c."""
        before = self.before(devices, link, odd) if devices else []
        process = subprocess.Popen(
            [*before, harness.program("tools/peercachectl"), "trial", *["--quick"] * quick,
             "--pool-bytes", "64MiB", "--output", self.output, *words], env={**self.env, **env},
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.addCleanup(process.communicate)
        self.addCleanup(process.kill)
        return process

    def until(self, process, text):
        """Reads the progress of a trial up to a line."""
        for line in process.stderr:
            if text in line:
                return
        self.fail(f"no {text!r}")

    def assert_left_nothing(self):
        left = [name for name in os.listdir(self.scratch) if not name.startswith("soft-connectx")]
        self.assertEqual(left, [])
        for path in glob.glob("/proc/[0-9]*/cmdline"):
            try:
                with open(path, "rb") as file:
                    self.assertNotIn(self.scratch.encode(), file.read(), path)
            except OSError:
                continue

    def all_gone(self):
        """Has every process ended that has our folder in its words?"""
        try:
            return not any(self.scratch in open(path, encoding="utf-8", errors="replace").read()
                           for path in glob.glob("/proc/[0-9]*/cmdline"))
        except OSError:
            return False

    def archive(self):
        """The texts of the report's files, and the page beside it."""
        page, = glob.glob(self.output + "/*.html")
        packed, = glob.glob(self.output + "/*.tar.gz")
        self.assertEqual(len(os.listdir(self.output)), 2)
        with tarfile.open(packed) as archive:
            texts = {os.path.basename(member.name): archive.extractfile(member).read().decode()
                     for member in archive if member.isfile()}
        with open(page, encoding="utf-8") as file:
            self.assertEqual(file.read(), texts["report.html"])
        return texts


class All(TrialTest):  # it takes longest, so its name is the first one
    def test_a_trial_answers_each_step_and_leaves_one_report(self):
        status, out, err = harness.finish(self.trial(
            "--json", "--anonymous", "--set", "cluster.id=secret=swordfish"))
        found = json.loads(out)
        answers = {step["name"]: step["answer"] for step in found["steps"]}
        for name, answer in answers.items():
            with self.subTest(name):
                self.assertIn(answer, ("yes", "unknown") if name != "host: doctor" else
                              ("yes", "no"), err)
        self.assertEqual(status, int("no" in answers.values()), err)
        for name in ("engines", "bytes: one process", "bytes: several processes", "churn: restart",
                     "churn: evictions and a kill", "card: payload before its completion"):
            self.assertEqual(answers[name], "yes", err)
        self.assertIn("The ConnectX was software", found["verdict"][0])
        for step in found["steps"]:
            self.assertTrue(step["text"], step)
            self.assertNotIn("could not be examined", step["text"])
            if step["answer"] == "no":
                self.assertTrue(step["do"], step)
        texts = self.archive()
        self.assertTrue({"trial.json", "report.html", "engine-0.log", "engine-1.log"} <= set(texts))
        self.assertIn("<svg", texts["report.html"])
        for name, text in texts.items():
            self.assertNotRegex(text, rf"(?<!\w)(?<!/sys/){socket.gethostname()}(?!\w)", name)
            self.assertNotIn("swordfish", text, name)
        names = report.Names(types.SimpleNamespace(options=types.SimpleNamespace(
            peer="vm", address="10.1.2.3")))
        self.assertRegex(names.clean("vm, http://vm:1 /data/vm /proc/sys/vm/x 10.1.2.3:5 0:1:2:3"),
                         r"^(name-\d), http://\1:1 /data/\1 /proc/sys/vm/x name-\d:5 0:1:2:3$")
        for name, text in texts.items():
            self.assertNotIn("0000:0000:0000:ffff", text, name)  # a GID
        self.assert_left_nothing()

    def test_without_a_nic_the_report_says_that_nothing_is_known(self):
        process = self.trial("--json", "--only", "ports", devices=0)
        status, out, err = harness.finish(process)
        self.assertIn(status, (0, 1), err)
        found = json.loads(out)
        self.assertIn("Go on: NOT KNOWN", found["verdict"][0])
        ports = next(step for step in found["steps"] if step["name"] == "ports: state")
        self.assertEqual(ports["answer"], "unknown")


class Odd(TrialTest):
    def steps(self, *words, **how):
        """The steps of a trial, by name, and the lines of its verdict."""
        status, out, err = harness.finish(self.trial("--json", "--only", "ports,card", *words,
                                                     **how))
        self.assertEqual(status, 1, err)
        found = json.loads(out)
        return {step["name"]: step for step in found["steps"]}, found["verdict"]

    def test_each_way_in_which_a_card_differs_is_named(self):
        steps, verdict = self.steps(odd="tail,stale,torn,syndrome,mtu,nobf,qps,gids,relaxed")
        for name, said in (
                ("payload before its completion", r"[1-9]\d* of \d+ completions came before"),
                ("a READ sees the last store", r"[1-9]\d* of \d+ READs missed a store"),
                ("8-byte words are whole", r"[1-9]\d* of \d+ against it"),
                ("a wrong key", "syndrome 0x12"), ("beyond a region", "syndrome 0x12"),
                ("forms and limits", "MTU 4096 and 2048.*no BlueFlame"),
                ("queue pairs of a port", "63 of 256")):
            with self.subTest(name):
                step = steps["card: " + name]
                self.assertEqual(step["answer"], "no", step)
                self.assertRegex(step["text"], said)
                self.assertIn("It breaks: " + step["data"]["promise"], step["text"])
                self.assertTrue(step["do"])
        self.assertGreater(steps["card: payload and head in one READ"]["data"]["against"], 0)
        self.assertIn("GID 0 is 0000:", steps["ports: state"]["text"])
        self.assertIn("rail.validate=crc", steps["card: payload before its completion"]["do"])
        for name in ("one CQE for a batch", "a peer that is gone"):
            self.assertEqual(steps["card: " + name]["answer"], "yes", name)
        self.assertRegex(verdict[0], "Go on: NO.*card: payload before its completion")

    def test_a_path_that_is_narrow_one_way_is_named(self):
        steps, _ = self.steps(odd="way")
        self.assertIn("up to 2048 bytes arrive, 1048576 the other way",
                      steps["card: long READs both ways"]["text"])
        self.assertEqual(steps["card: payload before its completion"]["answer"], "unknown")

    def test_a_card_that_the_engine_refuses_is_named(self):
        steps, verdict = self.steps(odd="segments")
        self.assertIn("8 data segments in an RDMA READ; the engine needs 30",
                      steps["card"]["text"])
        self.assertIn("Go on: NO", verdict[0])


class Port(TrialTest):
    """A port goes down and up: $PLAYED/ip does it to the software ConnectX."""

    def port(self, *words, refuses=""):
        return self.trial("--json", "--only", "engines,churn: a port", *words,
                          PATH=PLAYED + os.pathsep + os.environ["PATH"], PLAYED_REFUSES=refuses)

    def answer(self, process, expect=0):
        status, out, err = harness.finish(process)
        self.assertEqual(status, expect, err)
        return json.loads(out)["steps"][-1]

    def played(self):
        """What was done to the link."""
        with open(os.path.join(self.scratch, "link"), encoding="ascii") as file:
            return file.read().split()

    def test_a_port_is_taken_down_and_up_and_pages_are_read_again(self):
        step = self.answer(self.port("--disrupt"))
        self.assertEqual(step["answer"], "yes", step)
        self.assertRegex(step["text"], "eth_0 of mlx5_0 down: seen after .* a miss with 0 ports "
                         "left; up: read again after")
        self.assertEqual(self.played(), ["down", "up"])
        os.remove(os.path.join(self.scratch, "link"))
        self.assert_left_nothing()

    def test_it_stays_up_without_the_flag_or_where_ip_refuses(self):
        step = self.answer(self.port())
        self.assertEqual((step["answer"], step["text"]), ("unknown", "not requested"))
        step = self.answer(self.port("--disrupt", refuses="Operation not permitted"))
        self.assertEqual(step["answer"], "unknown", step)
        self.assertIn("not taken down: Operation not permitted", step["text"])

    def test_it_is_up_again_however_the_trial_ends(self):
        for number in (signal.SIGINT, signal.SIGKILL):
            process = self.port("--disrupt")
            harness.wait_for(lambda: os.path.exists(self.scratch + "/link"), 60, "it is down")
            process.send_signal(number)
            harness.ended(process)
            harness.wait_for(lambda: self.played() == ["down", "up"], 30, "it is up")
            os.remove(os.path.join(self.scratch, "link"))

    def test_a_port_with_the_default_route_stays_up(self):
        four = "Iface Destination Gateway\neth0\t00000000\t0102000A\neth1\t0000000A\t00000000\n"
        six = f"{'0' * 32} 00 {'0' * 32} 00 {'f' * 32} 0 0 0 0 eth2\n"
        uppers = {"eth3": ["mtu", "upper_bond0"], "bond0": ["upper_eth2"], "eth4": ["upper_eth1"]}
        with mock.patch("peercache.trial.host.read",
                        side_effect=lambda path: six if "ipv6" in path else four), \
                mock.patch("peercache.trial.host.listed",
                           side_effect=lambda _, net: uppers.get(net, [])):
            self.assertEqual([link.default_route(f"eth{i}") for i in range(5)],
                             [True, False, True, True, False])


class Model(TrialTest):
    """SGLang as PLAYED has it: a page hits if a server with an engine had it before."""

    def steps(self, *words):
        status, out, err = harness.finish(self.trial(
            "--json", "--only", "engines,SGLang,claim", "--model", *words, devices=0,
            PLAYED_STORE=self.scratch + "/store", PYTHONPATH=os.pathsep.join(filter(None, (
                PLAYED, os.path.join(ROOT, "tests", "python"), os.environ.get("PYTHONPATH"))))))
        self.assertEqual(status, 0, err)
        return {step["name"]: step for step in json.loads(out)["steps"]}

    def test_hits_and_first_tokens_with_and_without_l3(self):
        steps = self.steps("played --tp 2")
        found = steps["SGLang: hits, time to the first token"]
        self.assertEqual(found["answer"], "yes", found)
        self.assertRegex(found["text"], r"(\d+) of \1 tokens that the other .* were hits; .*p50")
        claim = steps["claim: hits on another host / those possible"]
        self.assertEqual((claim["answer"], claim["text"]), ("yes", "here 1, there 1: 1.00"))

    def test_a_server_that_does_not_start_is_said(self):
        step = self.steps("absent")["SGLang: hits, time to the first token"]
        self.assertEqual(step["answer"], "unknown")
        self.assertIn("does not start: there is no model absent", step["text"])


class Both(TrialTest):
    def two(self, *words):
        """Trials of two hosts, which are two addresses of this one."""
        port = str(harness.cluster.free_port())
        return [self.trial("--json", "--only", "engines,bytes,peer", "--port", port, "--peer",
                           f"127.0.0.{2 - i}", "--address", f"127.0.0.{1 + i}", "--output",
                           f"{self.output}/{i}", *words, devices=0,
                           PATH=PLAYED + os.pathsep + os.environ["PATH"], PLAYED_SSH="",
                           PEERCACHE_TRIAL_LOCK=f"{self.id()}-{os.getpid()}-{i}")
                for i in range(2)]

    def test_the_same_command_on_two_hosts_measures_both_ways(self):
        for process in self.two():
            status, out, err = harness.finish(process)
            self.assertEqual(status, 0, err)
            found = json.loads(out)["steps"]
            self.assertEqual({step["name"] for step in found if step["answer"] != "yes"}, {
                "bytes: ib_read_bw, ib_read_lat", "bytes: several processes", "peer: over ssh",
                "peer: its report"}, err)
            self.assertRegex(found[0]["text"], "ssh ended with 255: .*Connection refused")
            self.assertRegex(found[0]["do"], "type this on 127.0.0.[12]: peercachectl trial --qui")
            said = " ".join(step["text"] for step in found)
            self.assertIn("the peer read for", said)
            self.assertIn("0 misses of ", said)
        self.assert_left_nothing()

    def called(self):
        """A trial whose ssh works."""
        return self.trial(
            "--json", "--only", "engines,bytes,peer", "--port", str(harness.cluster.free_port()),
            "--peer", "127.0.0.2", "--address", "127.0.0.1", devices=0,
            PLAYED_SSH=os.path.dirname(harness.program("tools/peercachectl")),
            PATH=PLAYED + os.pathsep + os.environ["PATH"],
            PLAYED_MORE=f"--output {self.scratch}-there")

    def test_ssh_starts_the_other_one_whose_report_comes_back(self):
        status, out, err = harness.finish(self.called())
        self.assertEqual(status, 0, err)
        steps = {step["name"]: step for step in json.loads(out)["steps"]}
        self.assertRegex(steps["peer: over ssh"]["text"], "started there: peercachectl")
        self.assertIn("Go on: NOT KNOWN", steps["peer: its report"]["text"])
        there = json.loads(self.archive()["peer.json"])["steps"]
        self.assertIn(("bytes: one process", "yes"),
                      [(step["name"], step["answer"]) for step in there])
        self.assert_left_nothing()

    def test_the_other_one_ends_with_the_trial_that_has_called_it(self):
        for number in (signal.SIGINT, signal.SIGKILL):
            process = self.called()
            self.until(process, "] engines")  # the other one waits for it then
            process.send_signal(number)
            harness.ended(process)
            harness.wait_for(self.all_gone, 60, "all end")

    def test_a_peer_that_disappears_is_said(self):
        first, second = self.two()
        for process in (first, second):
            self.until(process, "] bytes: one process")
        second.kill()
        harness.ended(second)
        status, out, err = harness.finish(first)
        self.assertEqual(status, 1, err)
        self.assertIn("the peer", " ".join(step["text"] for step in json.loads(out)["steps"]
                                           if step["answer"] == "no"))


class Said(unittest.TestCase):
    def test_memory_of_an_engine_is_added_up_by_node(self):
        maps = ("7f00 bind:0 file=/memfd:peercache-pool\\040(deleted) dirty=3 N0=2 N1=1 "
                "kernelpagesize_kB=2048\n7f01 default heap anon=1 N1=1 kernelpagesize_kB=4\n"
                "7f02 default file=/memfd:peercache-heads dirty=4 N0=4 kernelpagesize_kB=4\n")
        self.assertEqual(measure.bytes_by_node(maps), {"0": (4 << 20) + 16384, "1": 2 << 20})

    def test_what_takes_more_than_10_us_of_a_poll_core_is_named(self):
        def found(status, said, alone=True):
            trial = types.SimpleNamespace(
                program=str, options=types.SimpleNamespace(seconds=1, working_set=1),
                start=lambda *_: 0, run=lambda *_: (status, said), end=lambda *_: 0,
                tail=lambda log: "no tracefs")
            engines = types.SimpleNamespace(
                need=lambda: 0, sockets=[""], count=1,
                status=lambda i: {"rails": [{"isolated": alone}]})
            return measure.interrupts(trial, engines)
        rows = [{"who": "irq 9 nvme", "count": 3, "worst_us": 35.2}, {
            "who": "softirq RCU", "count": 9, "worst_us": 2}]
        said = json.dumps({"stalls": {"pc-poll-0/41": rows}})
        self.assertEqual(found(0, said)[:2], ("no", "irq 9 nvme on pc-poll-0/41: 3 times, at most "
                                              "35 us"))
        self.assertIn("are not isolated", found(0, said, alone=False).text)
        self.assertEqual(found(0, json.dumps({"stalls": {"pc-poll-0/41": rows[1:]}})).answer, "yes")
        with self.assertRaises(frame.Unknown) as why:
            found(3, "")
        self.assertEqual(why.exception.args[0], "no tracefs")

    def test_pages_quote_the_figures_of_the_claims(self):
        for claim in claims.CLAIMS:
            self.assertTrue(claim.quotes)
            for name, text in claim.quotes:
                with open(os.path.join(ROOT, name), encoding="utf-8") as file:
                    page = " ".join(file.read().split())
                self.assertIn(claims.quote(claim, text), page, name)

    def test_a_claim_that_is_not_met_is_no_and_says_what_to_do(self):
        rows = [{"page_bytes": 131072, "batch": 32, "gbps": 40, "p50_us": 100},
                {"page_bytes": 4096, "batch": 128, "pages_per_second": 9e6}]
        facts = {"bytes": rows, "processes": {4: {"gbps": 36}}, "restart_s": 9,
                 "vendor": {"read_gbps": {131072: 48}},
                 "card": {"rtt_ns": 5000, "gbps": 400}, "software_port": False}
        trial = types.SimpleNamespace(facts=facts, options=types.SimpleNamespace(
            devices=["a", "b"], peer=""))
        found = [answer for _, answer in claims.judge(trial)]
        self.assertEqual([answer.answer for answer in found],
                         ["yes", "yes", "yes", "yes", "no", *["unknown"] * 5])
        self.assertIn("there 0.833: 0.88", found[0].text)
        self.assertIn("huge pages", found[4].do)
        facts["software_port"] = True
        self.assertNotIn("no", [answer.answer for _, answer in claims.judge(trial)])

    def test_go_on_is_yes_only_if_pages_were_read(self):
        def first(fallback="", **answers):
            trial = types.SimpleNamespace(
                options=types.SimpleNamespace(devices=["mlx5_0"]), stopped=False, started=0,
                count=lambda answer: 0, facts={"fallback": fallback},
                steps=[{"name": name.replace("__", ": ").replace("_", " "), "answer": answer,
                        "text": "t", "do": fallback, "data": {"grave": name == "card"}}
                       for name, answer in answers.items()])
            with mock.patch("peercache.trial.host.pretended", return_value=False):
                return report.verdict(trial)[0]
        odd = {"card": "no", "engines": "yes", "bytes__one_process": "yes",
               "churn__evictions_and_a_kill": "yes"}
        self.assertIn("Go on: ONLY with x=y", first("x=y", **odd))
        self.assertIn("Go on: NO.", first(**odd))
        self.assertIn("Go on: NO.", first("x=y", **{**odd, "churn__evictions_and_a_kill": "no"}))
        self.assertIn("Go on: YES.", first(card="yes", engines="yes", bytes__one_process="yes"))
        self.assertIn("NOT KNOWN", first(engines="yes", bytes__one_process="yes"))
        self.assertIn("NOT KNOWN", first(card="unknown", engines="yes", bytes__one_process="yes"))
        self.assertIn("NOT KNOWN", first(engines="unknown", bytes__one_process="unknown"))
        self.assertIn("NOT KNOWN", first(engines="yes"))
        self.assertIn("Go on: NO", first(engines="no", bytes__one_process="unknown"))
        self.assertIn("mend first", first(card="yes", engines="yes", bytes__one_process="yes",
                                          ports="no"))


class Early(TrialTest):
    def test_a_second_trial_is_refused_and_ctrl_c_keeps_what_there_is(self):
        first = self.trial("--only", "ports,engines,bytes")
        self.until(first, "] engines")
        status, out, err = harness.finish(self.trial(devices=0))
        self.assertEqual((status, out), (2, ""), err)
        holder = re.search(r"another trial runs on this host: process (\d+) of user", err)
        self.assertEqual(int(holder[1]), first.pid, err)
        first.send_signal(signal.SIGINT)
        status, _, err = harness.finish(first)
        self.assertEqual(status, 130, err)
        self.assertIn("Go on: NOT KNOWN. The trial was stopped", err)
        steps = json.loads(self.archive()["trial.json"])["steps"]
        self.assertEqual(steps[0]["answer"], "yes", steps[0])
        self.assertIn("not run", steps[-1]["text"])
        self.assert_left_nothing()

    def test_a_killed_trial_leaves_no_engine(self):
        process = self.trial("--only", "engines,bytes")
        self.until(process, "] bytes")
        process.kill()
        harness.ended(process)
        harness.wait_for(self.all_gone, 30, "the engines end")

    def test_an_engine_that_does_not_start_is_no_and_says_why(self):
        status, out, err = harness.finish(self.trial(
            "--json", "--only", "engines,bytes: one", "--set", "rail.devices=mlx5_7"))
        self.assertEqual(status, 1, err)
        steps = {step["name"]: step for step in json.loads(out)["steps"]}
        self.assertEqual(steps["engines"]["answer"], "no")
        self.assertRegex(steps["engines"]["text"], "engine 0 does not start.*no NIC mlx5_7 on this")
        self.assertIn("no engines run", steps["bytes: one process"]["text"])
        self.assertIn("Go on: NO.", err)
        self.assert_left_nothing()

    def test_no_room_for_the_report_is_said(self):
        os.mkdir(self.output)
        trial = types.SimpleNamespace(
            options=types.SimpleNamespace(devices=["soft"], anonymous=False), steps=[],
            stopped=False, facts={}, started=0, folder=self.scratch, count=lambda answer: 0,
            path=lambda name: os.path.join(self.scratch, name))
        full = OSError(errno.ENOSPC, "No space left on device")
        with mock.patch("tarfile.TarFile.add", side_effect=full), \
                self.assertRaises(frame.Refused) as said:
            report.write(trial, self.output + "/report")
        self.assertIn("is full: the report is not complete", str(said.exception))
        self.assertEqual(os.listdir(self.output), ["report.html"])
        status, _, err = harness.finish(self.trial("--output", "/proc/sys", devices=0))
        self.assertEqual(status, 2)
        self.assertRegex(err, "/proc/sys")


if __name__ == "__main__":
    harness.main(at_once=3)
