# SPDX-License-Identifier: Apache-2.0
"""Tests tools/setup-host on folders with the files of a host: findings, changes, output, undo."""

import json
import os
import subprocess
import tempfile
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(
    os.path.abspath(__file__)))))
TOOL = os.path.join(ROOT, "tools", "setup-host")
CPU = "sys/devices/system/cpu"
HUGE = "sys/devices/system/node/node{}/hugepages/hugepages-2048kB/nr_hugepages"

GOOD = {
    HUGE.format(0): "512", HUGE.format(1): "512",
    f"{CPU}/online": "0-7", f"{CPU}/isolated": "2-5", f"{CPU}/nohz_full": "2-5",
    "proc/irq/0/smp_affinity_list": "0-1", "proc/irq/40/smp_affinity_list": "0-7",
    "proc/irq/40/effective_affinity_list": "6",
    "proc/1/comm": "systemd",
    **{f"{CPU}/cpu{i}/cpufreq/scaling_governor": "performance" for i in range(8)},
    **{f"{CPU}/cpu{i}/cpuidle/state0/{k}": v for i in range(8)
       for k, v in (("name", "POLL"), ("latency", "0"), ("disable", "0"))},
    **{f"{CPU}/cpu{i}/cpuidle/state2/{k}": v for i in range(8)
       for k, v in (("name", "C6"), ("latency", "133"), ("disable", "1"))},
    "sys/kernel/mm/transparent_hugepage/enabled": "always [madvise] never",
    "proc/sys/kernel/numa_balancing": "0", "proc/sys/vm/swappiness": "1",
    "proc/self/limits": "Limit  Soft Limit  Hard Limit  Units\n"
                        "Max locked memory         unlimited            unlimited            bytes",
}
# name of the finding -> (file, bad value, value that --apply writes; None: it writes none)
BAD = {
    "huge pages": (HUGE.format(1), "0", "512"),
    "interrupts": ("proc/irq/40/effective_affinity_list", "3", None),
    "governor": (f"{CPU}/cpu3/cpufreq/scaling_governor", "powersave", "performance"),
    "C-states": (f"{CPU}/cpu4/cpuidle/state2/disable", "0", "1"),
    "THP": ("sys/kernel/mm/transparent_hugepage/enabled", "[always] madvise never", "madvise"),
    "kernel.numa_balancing": ("proc/sys/kernel/numa_balancing", "1", "0"),
    "vm.swappiness": ("proc/sys/vm/swappiness", "60", "1"),
    "isolation": (f"{CPU}/isolated", "2-3", None),
    "memlock": ("proc/self/limits", "Max locked memory  8388608  8388608  bytes", None),
}
ARGUMENTS = ("--cores", "2-5", "--huge", "2GiB")


class SetupHost(unittest.TestCase):
    def setUp(self):
        self.tree = tempfile.TemporaryDirectory()
        self.addCleanup(self.tree.cleanup)
        for name, text in GOOD.items():
            self.write(name, text)

    def path(self, name):
        return os.path.join(self.tree.name, name)

    def write(self, name, text):
        os.makedirs(os.path.dirname(self.path(name)), exist_ok=True)
        with open(self.path(name), "w") as f:
            f.write(text + "\n")

    def read(self, name):
        with open(self.path(name)) as f:
            return f.read().strip()

    def run_tool(self, *arguments, expect=0):
        done = subprocess.run([TOOL, "--root", self.tree.name, *arguments],
                              capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, expect, done.stdout + done.stderr)
        return done.stdout

    def findings(self, expect=0, arguments=ARGUMENTS):
        return {f["name"]: f for f in json.loads(
            self.run_tool("--check", "--json", *arguments, expect=expect))}

    def everything_bad(self):
        for name, bad, _ in BAD.values():
            self.write(name, bad)

    def all_files(self):
        return {os.path.join(d, n): self.read(os.path.join(d, n))
                for d, _, names in os.walk(self.tree.name) for n in names}

    def test_a_host_with_good_settings_passes(self):
        found = self.findings()
        self.assertEqual(set(BAD), set(found))
        self.assertEqual({f["state"] for f in found.values()}, {"ok"})

    def test_each_bad_setting_is_found_with_its_fix(self):
        for name, (file, bad, value) in BAD.items():
            with self.subTest(name):
                good = self.read(file)
                self.write(file, bad)
                found = self.findings(expect=1)
                self.assertEqual([n for n, f in found.items() if f["state"] == "wrong"], [name])
                self.assertTrue(found[name]["fix"])
                if value:
                    self.assertEqual(found[name]["writes"],
                                     [{"file": "/" + file, "value": value}])
                    self.assertIn(f"echo {value} | tee /{file}", found[name]["fix"])
                self.write(file, good)

    def test_missing_settings_of_a_virtual_machine_are_absent_not_wrong(self):
        for i in range(8):
            os.unlink(self.path(f"{CPU}/cpu{i}/cpufreq/scaling_governor"))
            for state in (0, 2):
                for k in ("name", "latency", "disable"):
                    os.unlink(self.path(f"{CPU}/cpu{i}/cpuidle/state{state}/{k}"))
                os.rmdir(self.path(f"{CPU}/cpu{i}/cpuidle/state{state}"))
        os.unlink(self.path("proc/sys/kernel/numa_balancing"))
        found = self.findings()
        for name in ("governor", "C-states", "kernel.numa_balancing"):
            self.assertEqual(found[name]["state"], "absent")

    def test_malformed_files_cause_findings_not_crashes(self):
        for name in GOOD:
            if name != f"{CPU}/online":
                self.write(name, "\x00 5-2,, banana \xff [")
        self.findings(expect=1)

    def test_a_dry_run_prints_and_changes_nothing(self):
        self.everything_bad()
        before = self.all_files()
        text = self.run_tool("--dry-run", "--persist", *ARGUMENTS, expect=1)
        for _, (file, _, value) in BAD.items():
            if value:
                self.assertIn(f"would write /{file}: ", text)
        self.assertIn("by hand: isolation: kernel command line: isolcpus=managed_irq,domain,2-5",
                      text)
        self.assertEqual(self.all_files(), before)

    def test_apply_prints_each_change_and_undo_restores_all(self):
        self.everything_bad()
        self.write("proc/irq/40/smp_affinity_list", "0-7")
        before = self.all_files()
        text = self.run_tool("--apply", *ARGUMENTS, expect=1)  # 1: cannot fix isolation
        for _, (file, bad, value) in BAD.items():
            if value:
                self.assertEqual(self.read(file), value)
                self.assertIn(f"write /{file}: {bad} -> {value}", text)
        self.assertEqual(self.read("proc/irq/40/smp_affinity_list"), "0-1,6-7")
        self.assertFalse(os.path.exists(self.path("etc")), "only --persist writes to /etc")
        self.run_tool("--undo", *ARGUMENTS)
        after = self.all_files()
        thp = "sys/kernel/mm/transparent_hugepage/enabled"
        self.assertEqual(after.pop(self.path(thp)), "always")  # --undo writes the active word
        before.pop(self.path(thp))
        self.assertEqual(after, before)
        self.assertIn("nothing to undo", self.run_tool("--undo"))

    def test_a_second_apply_keeps_the_first_saved_values(self):
        self.write("proc/sys/vm/swappiness", "60")
        self.run_tool("--apply", *ARGUMENTS)
        self.write("proc/sys/vm/swappiness", "33")
        self.run_tool("--apply", *ARGUMENTS)
        self.run_tool("--undo")
        self.assertEqual(self.read("proc/sys/vm/swappiness"), "60")

    def test_persist_writes_to_etc(self):
        self.write("proc/self/limits", BAD["memlock"][1])
        self.run_tool("--apply", "--persist", *ARGUMENTS)
        self.assertIn("vm.nr_hugepages = 1024", self.read("etc/sysctl.d/90-peercache.conf"))
        self.assertIn("memlock unlimited",
                      self.read("etc/security/limits.d/90-peercache.conf"))

    def test_an_undo_file_with_another_format_is_ignored(self):
        for text in ('[["etc/passwd", "x"]]', '[["sys/../etc/passwd", "x"]]', '{"a": 1}', "[1]",
                     "not json", '[["proc/sys/vm/swappiness"]]'):
            with self.subTest(text):
                self.write("run/peercache/setup-host.undo", text)
                self.run_tool("--undo")
                self.assertFalse(os.path.exists(self.path("etc")))

    def test_a_running_irqbalance_is_reported(self):
        self.write("proc/irq/40/effective_affinity_list", "3")
        self.write("proc/77/comm", "irqbalance")
        self.assertIn("IRQBALANCE_BANNED_CPULIST=2-5", self.findings(1)["interrupts"]["text"])

    def test_wrong_usage_is_refused(self):
        for bad in (("--cores", "x"), ("--cores", "9-2"), ("--cores", "7-9"), ("--huge", "much"),
                    ("--huge", "-1"), ("--persist",), ("--check", "--apply"), ("--frobnicate",)):
            self.run_tool(*bad, expect=2)
        done = subprocess.run([TOOL, "--root", "/nowhere"], capture_output=True, text=True,
                              timeout=60)
        self.assertEqual(done.returncode, 2)
        self.assertIn("no sysfs", done.stderr)

    def test_help_has_examples(self):
        self.assertIn("setup-host --cores 2-5 --huge 64GiB", self.run_tool("--help"))


if __name__ == "__main__":
    unittest.main(verbosity=2)
