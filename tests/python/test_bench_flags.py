# SPDX-License-Identifier: Apache-2.0
"""peercache-bench beside that of PeerCache 0.8.4: each of its commands and flags is accepted with a
meaning, or refused with what replaces it.

peercache-0.8.4.json has its commands, flags, choices and defaults; test_migration.py compares it
with the wheel of PyPI.
"""

import contextlib
import glob
import io
import json
import os
import re
import sys
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path[:0] = [os.path.join(ROOT, "tests", "cluster"),
                os.path.join(os.environ.get("PEERCACHE_BUILD", ""), "engine/client/python")]
import harness  # noqa: E402, F401
from peercache.bench import options  # noqa: E402

with open(os.path.join(ROOT, "tests", "python", "peercache-0.8.4.json"), encoding="utf-8") as file:
    OLD = json.load(file)
# What a command needs beside the flag that is tried.
NEEDED = {"compare": ["--skip-mooncake"], "serve": ["--discovery-addr", "10.0.0.1:31998"],
          "drive": ["--discovery-addr", "10.0.0.1:31998"]}
REFUSED = {("serve", "--readers"), ("drive", "--gpu"), ("compare", "--mooncake-threads"),
           ("compare", "--skip-store")}
VALUES = {"--ib-port": ("1", "2"), "--dir-cache-ttl": ("0", "1.5")}  # accepted, refused
# Flags whose meaning is in the parser: only one value, or what is refused without the flag.
DECIDED = {("compare", "--skip-mooncake"), ("drive", "--dir-cache-ttl")}
# Defaults that differ: the engine chooses better, or the sweep ends where throughput does.
CHOSEN = {"--gid-index", "--max-channels", "--readers", "--mooncake-threads"}


def parsed(*words):
    """(Namespace or None, what the parser printed)."""
    said = io.StringIO()
    with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
        try:
            return options.parse(list(words)), said.getvalue()
        except SystemExit as end:
            assert end.code == 2, (words, end.code, said.getvalue())
            return None, said.getvalue()


def dest_of(flag):
    return flag[2:].replace("-", "_")


def samples(flag, row):
    """Values that 0.8.4 took; [] for a flag without one."""
    if "value" in row:
        return [[]]
    if flag in VALUES:
        return [[VALUES[flag][0]]]
    if "choices" in row:
        return [[choice] for choice in row["choices"]]
    if "default" in row:
        return [[str(row["default"])]]
    return [["1" if "type" in row else "10.0.0.1:31998" if "addr" in flag else "name"]]


class Flags(unittest.TestCase):
    def each(self):
        for command, flags in OLD["commands"].items():
            for flag, row in flags.items():
                yield command, flag, row

    def test_every_flag_is_accepted_or_refused_with_its_replacement(self):
        for command, flag, row in self.each():
            for value in samples(flag, row):
                with self.subTest(command=command, flag=flag, value=value):
                    got, said = parsed(command, *NEEDED.get(command, []), flag, *value)
                    if command == "mooncake":
                        self.assertIsNone(got)
                        self.assertRegex(said, "mooncake: .*perf/compare")
                    elif (command, flag) in REFUSED:
                        self.assertIsNone(got)
                        self.assertRegex(said, rf"error: {flag}: .*(leave it out|use |perf/)")
                    else:
                        self.assertIsNotNone(got, said)
                        self.assertTrue(hasattr(got, dest_of(flag)))

    def test_a_value_without_a_meaning_is_refused_with_its_replacement(self):
        for command, flag, _ in self.each():
            if flag in VALUES and command != "mooncake":
                got, said = parsed(command, *NEEDED.get(command, []), flag, VALUES[flag][1])
                self.assertIsNone(got, flag)
                self.assertRegex(said, r"is not supported: .*(--device-name|leave it out)")

    def test_every_flag_that_is_accepted_is_used(self):
        text = ""
        for path in glob.glob(os.path.join(os.path.dirname(options.__file__), "*.py")):
            if os.path.basename(path) != "options.py":
                with open(path, encoding="utf-8") as source:
                    text += source.read()
        for command, flag, _ in self.each():
            if command != "mooncake" and (command, flag) not in REFUSED | DECIDED:
                used = rf'\b(options|given)(\.{dest_of(flag)}\b|\["{dest_of(flag)}"\])'
                self.assertTrue(re.search(used, text) or f'(options, "{dest_of(flag)}"' in text,
                                f"{command} {flag} changes nothing")

    def test_a_comparison_with_mooncake_is_refused_with_what_makes_it(self):
        got, said = parsed("compare", "--block-sizes", "4k,64k")
        self.assertIsNone(got)
        self.assertRegex(said, "perf/compare")

    def test_the_defaults_are_those_of_0_8_4(self):
        for command, flag, row in self.each():
            if command == "mooncake" or flag in CHOSEN | set(VALUES) or \
                    (command, flag) == ("saturation", "--concurrencies") or "default" not in row:
                continue
            got, _ = parsed(command, *NEEDED.get(command, []))
            given, _ = parsed(command, *NEEDED.get(command, []), flag, str(row["default"]))
            self.assertEqual(getattr(got, dest_of(flag)), getattr(given, dest_of(flag)),
                             f"{command} {flag}")

    def test_flags_that_change_nothing_beside_sockets_are_named(self):
        for command, words, named in (
                ("suite", ["--set", "rail.polling=busy", "--disk", "--protocol", "tcp",
                           "--devices", "mlx5_0", "--max-bytes", "1GiB", "--batch-size", "8"],
                 "--protocol --devices --set --max-bytes --disk"),
                ("micro", ["--device-name", "mlx5_0", "--gid-index", "3", "--max-channels", "2"],
                 "--device-name --gid-index --max-channels"),
                ("serve", ["--discovery-addr", "10.0.0.1:31998", "--global-segment-size", "1GiB",
                           "--node-id", "a", "--local-host", "10.0.0.1"],
                 "--local-host --global-segment-size --node-id"), ("suite", [], "")):
            with self.subTest(command=command, words=words):
                got, said = parsed(command, *words, "--sockets", "/run/a,/run/b")
                self.assertIsNotNone(got, said)
                _, _, flags = said.partition("so these flags change nothing: ")
                self.assertEqual(sorted(flags.split()), sorted(named.split()), said)
                self.assertEqual(said.count("\n"), 1 if named else 0)
                self.assertEqual(parsed(command, *NEEDED.get(command, []), *words)[1], "")

    def test_flags_before_the_command_are_accepted(self):
        for flag, row in OLD["before_the_command"].items():
            for value in samples(flag, row):
                got, said = parsed(flag, *value, "latency")
                self.assertIsNotNone(got, said)

    def test_an_unknown_flag_and_an_unknown_command_are_refused(self):
        self.assertRegex(parsed("suite", "--nonsense")[1], "suite has no flag or word --nonsense")
        self.assertRegex(parsed("nonsense")[1], "invalid choice")

    def test_a_disk_below_a_folder_that_no_engine_can_name_is_refused(self):
        self.assertEqual(parsed("latency", "--disk", "--out-dir", "runs")[0].out_dir,
                         os.path.join(os.getcwd(), "runs"))
        for folder in ("a,b", "a$b", 'a"b', "a'"):
            self.assertIsNotNone(parsed("latency", "--out-dir", folder)[0])
            self.assertRegex(parsed("latency", "--disk", "--out-dir", folder)[1],
                             "error: --disk: its files go below --out-dir, .*: give a path without")


class Program(unittest.TestCase):
    """The C program of the same name passes the commands on."""

    def run_it(self, *words):
        done = harness.run([harness.program("tools/peercache-bench"), *words],
                           capture_output=True, text=True)
        return done.returncode, done.stdout + done.stderr

    def test_it_runs_every_command_of_0_8_4(self):
        for command in OLD["commands"]:
            status, said = self.run_it(command, "--help")
            if command == "mooncake":
                self.assertEqual(status, 2)
                self.assertIn("perf/compare", said)
            else:
                self.assertEqual(status, 0, said)
                self.assertRegex(said, rf"usage: peercache-bench {command} ")
        self.assertEqual(self.run_it("--log-level", "info", "--log-file=/dev/null", "suite",
                                     "--help")[0], 0)

    def test_help_begins_with_the_folder_that_is_left(self):
        for command in ("latency", "throughput", "drive", "micro", "compare", "served"):
            said = self.run_it(command, "--help")[1]
            self.assertRegex(said, r"^usage: .*\n\nReports are left in ./peercache-bench-results, ")

    def test_its_help_names_every_command(self):
        status, said = self.run_it("--help")
        self.assertEqual(status, 0)
        for command in [*OLD["commands"], "get", "set", "exists"]:
            self.assertRegex(said, rf"(?m)^  .*\b{command}\b")
        self.assertRegex(self.run_it("nonsense")[1], '"nonsense" is not a command')


if __name__ == "__main__":
    unittest.main()
