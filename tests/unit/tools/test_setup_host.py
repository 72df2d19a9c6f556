# SPDX-License-Identifier: Apache-2.0
"""Tests tools/setup-host on folders with the files of a host: what the doctor finds there is
written, printed and taken back. What it finds is the subject of tests/cluster/test_doctor.py."""

import json
import os
import subprocess
import sys
import tempfile
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(
    os.path.abspath(__file__)))))
sys.path.insert(0, os.path.join(ROOT, "tests", "cluster"))
from test_doctor import CPU, DEVICES, HUGE, LIMITS, healthy_tree, settings  # noqa: E402

TOOL = os.path.join(ROOT, "tools", "setup-host")
LOCKED = LIMITS.replace("8388608              unlimited", "8388608              8388608  ")
THP = "sys/kernel/mm/transparent_hugepage/enabled"
# file, bad value, value that --apply writes; None: it writes none
BAD = (
    (HUGE.format(1) + "/nr_hugepages", "0", "516"),
    (HUGE.format(1) + "/free_hugepages", "0", None),
    ("proc/irq/40/effective_affinity_list", "4", None),
    (f"{CPU}/cpu4/cpufreq/scaling_governor", "powersave", "performance"),
    (f"{CPU}/cpu1/cpuidle/state2/disable", "0", "1"),
    (THP, "[always] madvise never", "madvise"),
    ("proc/sys/kernel/numa_balancing", "1", "0"),
    ("proc/sys/vm/swappiness", "60", "1"),
    (f"{CPU}/isolated", "1", None),
)
ARGUMENTS = settings(*DEVICES)


class SetupHost(unittest.TestCase):
    def setUp(self):
        self.tree = tempfile.TemporaryDirectory()
        self.addCleanup(self.tree.cleanup)
        for name, text in healthy_tree().items():
            self.write(name, text)

    def path(self, name):
        return os.path.join(self.tree.name, name)

    def write(self, name, text):
        os.makedirs(os.path.dirname(self.path(name)), exist_ok=True)
        with open(self.path(name), "w") as f:
            f.write(f"{text}\n")

    def read(self, name):
        with open(self.path(name)) as f:
            return f.read().strip()

    def run_tool(self, *arguments, expect=0):
        done = subprocess.run([TOOL, "--root", self.tree.name, *arguments],
                              capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, expect, done.stdout + done.stderr)
        return done.stdout

    def everything_bad(self):
        for name, bad, _ in BAD:
            self.write(name, bad)

    def all_files(self):
        return {os.path.join(d, n): self.read(os.path.join(d, n))
                for d, _, names in os.walk(self.tree.name) for n in names}

    def test_a_check_prints_what_the_doctor_finds(self):
        self.run_tool(*ARGUMENTS)
        self.write("proc/sys/vm/swappiness", "60")
        self.assertIn("fix: echo 1 | tee /proc/sys/vm/swappiness",
                      self.run_tool("--check", *ARGUMENTS, expect=1))
        whole = json.loads(self.run_tool("--json", *ARGUMENTS, expect=1))
        self.assertEqual([f["check"] for f in whole["findings"] if f["state"] == "found"],
                         ["vm.swappiness"])

    def test_the_settings_may_be_in_a_file(self):
        with open(self.path("engine.conf"), "w") as f:
            f.write("[rail]\ndevices = mlx5_0,mlx5_1\n[engine]\npool_bytes = 2GiB\n")
        text = self.run_tool("--dry-run", "--config", f.name, expect=0)
        self.assertRegex(text, r"would write /" + HUGE.format(1) + r"/nr_hugepages: 600 -> 10\d\d")

    def test_a_dry_run_prints_and_changes_nothing(self):
        self.everything_bad()
        before = self.all_files()
        text = self.run_tool("--dry-run", "--persist", *ARGUMENTS, expect=1)
        for file, _, value in BAD:
            if value:
                self.assertIn(f"would write /{file}: ", text)
        self.assertRegex(text, "by hand: isolation: .*: kernel command line: "
                               "isolcpus=managed_irq,domain,1,4")
        self.assertEqual(self.all_files(), before)

    def test_apply_prints_each_change_and_undo_restores_all(self):
        self.everything_bad()
        before = self.all_files()
        text = self.run_tool("--apply", *ARGUMENTS, expect=1)  # 1: cannot fix isolation
        for file, bad, value in BAD:
            if value:
                self.assertEqual(self.read(file), value)
                self.assertIn(f"write /{file}: {bad} -> {value}", text)
        self.assertEqual(self.read("proc/irq/40/smp_affinity_list"), "0,2-3,5-7")
        self.assertFalse(os.path.exists(self.path("etc")), "only --persist writes to /etc")
        self.run_tool("--undo", *ARGUMENTS)
        after = self.all_files()
        self.assertEqual(after.pop(self.path(THP)), "always")  # --undo writes the active word
        before.pop(self.path(THP))
        self.assertEqual(after, before)
        self.assertIn("nothing to undo", self.run_tool("--undo"))

    def test_a_second_apply_keeps_the_first_saved_values(self):
        self.write("proc/sys/vm/swappiness", "60")
        self.run_tool("--apply", *ARGUMENTS)
        self.write("proc/sys/vm/swappiness", "33")
        self.run_tool("--apply", *ARGUMENTS)
        self.run_tool("--undo")
        self.assertEqual(self.read("proc/sys/vm/swappiness"), "60")

    def lines(self, folder):
        return self.read(f"etc/{folder}/90-peercache.conf").splitlines()

    def test_persist_writes_all_changes_of_this_and_of_former_runs_to_etc(self):
        self.write("proc/self/limits", LOCKED)
        self.everything_bad()
        self.write(f"{CPU}/isolated", "1,4")
        self.run_tool("--apply", *ARGUMENTS, expect=1)  # 1: locked memory
        # as the kernel does
        self.write("proc/irq/40/effective_affinity_list", "6")
        self.write(HUGE.format(1) + "/free_hugepages", "516")
        text = self.run_tool("--apply", "--persist", *ARGUMENTS)
        self.assertEqual(self.lines("sysctl.d"),
                         ["kernel.numa_balancing = 0", "vm.swappiness = 1"])
        self.assertEqual(set(self.lines("tmpfiles.d")), {
            f"w /{file} - - - - {value}" for file, _, value in BAD
            if value and file.startswith("sys/")})
        self.assertIn("memlock unlimited", self.lines("security/limits.d")[1])
        self.assertIn("until the next boot: /proc/irq/40/smp_affinity_list", text)

    def test_what_was_persisted_stays_when_more_is(self):
        self.everything_bad()
        self.run_tool("--apply", "--persist", *ARGUMENTS, expect=1)
        before = set(self.lines("tmpfiles.d"))
        os.unlink(self.path("run/peercache/setup-host.undo"))  # the machine boots
        file = f"{CPU}/cpu1/cpufreq/scaling_governor"
        self.write(file, "powersave")
        self.run_tool("--apply", "--persist", *ARGUMENTS, "--set", "engine.pool_bytes=2GiB",
                      expect=1)
        pages = "w /" + HUGE.format(1) + "/nr_hugepages - - - - "
        after = set(self.lines("tmpfiles.d"))
        self.assertLessEqual({line for line in before if not line.startswith(pages)}, after)
        self.assertIn(f"w /{file} - - - - performance", after)
        self.assertEqual(len([line for line in after if line.startswith(pages)]), 1)
        self.assertNotIn(pages + "516", after, "the new value replaces the former one")
        self.assertEqual(self.lines("sysctl.d"),
                         ["kernel.numa_balancing = 0", "vm.swappiness = 1"])

    def test_an_undo_file_with_another_format_is_ignored(self):
        for text in ('[["etc/passwd", "x"]]', '[["sys/../etc/passwd", "x"]]', '{"a": 1}', "[1]",
                     "not json", '[["proc/sys/vm/swappiness"]]'):
            with self.subTest(text):
                self.write("run/peercache/setup-host.undo", text)
                self.run_tool("--undo")
                self.assertFalse(os.path.exists(self.path("etc")))

    def test_what_is_not_known_is_printed(self):
        os.unlink(self.path("proc/sys/vm/swappiness"))
        os.mkdir(self.path("proc/sys/vm/swappiness"))  # it cannot be read
        for what in "--apply", "--dry-run":
            self.assertIn("not known: vm.swappiness: /proc/sys/vm/swappiness: it cannot be read",
                          self.run_tool(what, *ARGUMENTS))

    def test_a_running_irqbalance_is_reported(self):
        self.write("proc/irq/40/effective_affinity_list", "4")
        self.write("proc/77/comm", "irqbalance")
        self.assertIn("IRQBALANCE_BANNED_CPULIST=1,4", self.run_tool(*ARGUMENTS, expect=1))

    def test_wrong_usage_is_refused(self):
        for bad in (("--set", "rail.poling=x"), ("--config", "/nowhere/x.conf"), ("--persist",),
                    ("--check", "--apply"), ("--frobnicate",)):
            self.run_tool(*bad, expect=2)
        done = subprocess.run([TOOL, "--root", "/nowhere"], capture_output=True, text=True,
                              timeout=60)
        self.assertEqual(done.returncode, 2)
        self.assertIn("no sysfs", done.stderr)

    def test_help_has_examples(self):
        self.assertIn("setup-host --config /etc/peercache.conf --apply", self.run_tool("--help"))


if __name__ == "__main__":
    unittest.main(verbosity=2)
