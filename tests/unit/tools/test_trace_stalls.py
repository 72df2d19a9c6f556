# SPDX-License-Identifier: Apache-2.0
"""Tests tools/trace-stalls: the analysis of a trace, refusals, and one real trace."""

import importlib.machinery
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(
    os.path.abspath(__file__)))))
TOOL = os.path.join(ROOT, "tools", "trace-stalls")

GOOD = """\
# tracer: nop
#
# entries-in-buffer/entries-written: 20/25   #P:2
       pc-poll-0-41      [001] d.h..   10.000000: local_timer_entry: vector=236
       pc-poll-0-41      [001] d.h..   10.000001: hrtimer_expire_entry: hrtimer=0 function=tick
       pc-poll-0-41      [001] d.h..   10.000004: hrtimer_expire_exit: hrtimer=0
       pc-poll-0-41      [001] d.h..   10.000005: local_timer_exit: vector=236
       pc-poll-0-41      [001] d.h..   10.100000: local_timer_entry: vector=236
       pc-poll-0-41      [001] d.h..   10.100020: local_timer_exit: vector=236
       pc-poll-0-41      [001] d.h..   10.200000: irq_handler_entry: irq=36 name=virtio1-req.0
            bash-77      [000] d.h..   10.200001: irq_handler_entry: irq=9 name=acpi
            bash-77      [000] d.h..   10.200002: irq_handler_exit: irq=9 ret=handled
       pc-poll-0-41      [001] d.h..   10.200007: irq_handler_exit: irq=36 ret=handled
       pc-poll-0-41      [001] ..s..   10.300000: softirq_entry: vec=9 [action=RCU]
       pc-poll-0-41      [001] ..s..   10.300003: softirq_exit: vec=9 [action=RCU]
       pc-poll-0-41      [001] d..2.   10.400000: sched_switch: prev_comm=pc-poll-0 prev_pid=41 \
prev_prio=120 prev_state=R+ ==> next_comm=a b: c next_pid=99 next_prio=120
        a b: c-99        [001] d..2.   10.402000: sched_switch: prev_comm=a b: c prev_pid=99 \
prev_prio=120 prev_state=S ==> next_comm=pc-poll-0 next_pid=41 next_prio=120
       pc-poll-0-41      [001] .....   10.500000: sys_enter: NR 24 (0, 0, 0, 0, 0, 0)
       pc-poll-0-41      [001] d..2.   10.500001: sched_switch: prev_comm=pc-poll-0 prev_pid=41 \
prev_prio=120 prev_state=R ==> next_comm=yielded_to next_pid=98 next_prio=120
      yielded_to-98      [001] d..2.   10.509000: sched_switch: prev_comm=yielded_to prev_pid=98 \
prev_prio=120 prev_state=S ==> next_comm=pc-poll-0 next_pid=41 next_prio=120
       pc-poll-0-41      [001] .....   10.509001: sys_exit: NR 24 = 0
       pc-poll-0-41      [001] d..2.   10.600000: sched_switch: prev_comm=pc-poll-0 prev_pid=41 \
prev_prio=120 prev_state=S ==> next_comm=slept_for next_pid=97 next_prio=120
       pc-poll-4-42      [000] d.h..   10.700000: reschedule_entry: vector=253
"""


class TraceStalls(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def run_tool(self, *arguments, expect=0):
        done = subprocess.run([TOOL, *arguments], capture_output=True, text=True, timeout=100)
        self.assertEqual(done.returncode, expect, done.stdout + done.stderr)
        return done

    def analyse(self, text, expect=0):
        path = os.path.join(self.folder, "trace.txt")
        with open(path, "w") as f:
            f.write(text)
        done = self.run_tool("--json", "--from", path, expect=expect)
        return json.loads(done.stdout) if expect == 0 else done.stderr

    def proc(self, *names):
        for tid, name in enumerate(names, 500):
            os.makedirs(f"{self.folder}/7/task/{tid}")
            with open(f"{self.folder}/7/task/{tid}/comm", "w") as f:
                f.write(name + "\n")
        return ("--proc", self.folder)

    def test_each_cause_has_its_count_and_times(self):
        summary = self.analyse(GOOD)
        rows = {r["who"]: (r["count"], r["total_us"], r["worst_us"])
                for r in summary["stalls"]["pc-poll-0/41"]}
        self.assertEqual(rows, {"thread a b: c": (1, 2000.0, 2000.0),
                                "interrupt local_timer": (2, 25.0, 20.0),
                                "irq 36 virtio1-req.0": (1, 7.0, 7.0),
                                "softirq RCU": (1, 3.0, 3.0),
                                "timer tick": (1, 3.0, 3.0)})
        worst = [r["worst_us"] for r in summary["stalls"]["pc-poll-0/41"]]
        self.assertEqual(worst, sorted(worst, reverse=True))
        self.assertEqual(summary["stalls"]["pc-poll-4/42"], [])  # no exit event
        self.assertEqual(summary["lost_events"], 5)

    def test_yielding_and_sleeping_are_not_stalls(self):
        text = json.dumps(self.analyse(GOOD))
        self.assertNotIn("yielded_to", text)
        self.assertNotIn("slept_for", text)
        # Without the line of the system call the same switch is a stall.
        text = "\n".join(line for line in GOOD.splitlines() if "sys_enter" not in line)
        self.assertIn("yielded_to", json.dumps(self.analyse(text)))

    def test_poll_threads_of_another_engine_are_ignored(self):
        self.parse("")
        stalls = self.tool.Stalls(only={42})
        for line in GOOD.splitlines():
            stalls.line(line)
        self.assertEqual(stalls.stalls, {"pc-poll-4/42": {}})

    def test_truncated_lines_cause_no_error(self):
        for cut in range(0, len(GOOD), 7):
            for text in (GOOD[cut:], GOOD[:cut] + "\x00\xff" + GOOD[cut + 3:]):
                for row in json.loads(self.parse(text)).values():
                    for r in row:
                        self.assertGreaterEqual(r["worst_us"], 0)

    def parse(self, text):
        """Analyses `text` in this process; a subprocess for each text would take minutes."""
        if not hasattr(TraceStalls, "tool"):
            sys.dont_write_bytecode = True
            loader = importlib.machinery.SourceFileLoader("trace_stalls", TOOL)
            TraceStalls.tool = importlib.util.module_from_spec(
                importlib.util.spec_from_loader("trace_stalls", loader))
            loader.exec_module(TraceStalls.tool)
        stalls, summary = self.tool.Stalls(), {}
        for line in text.splitlines():
            stalls.line(line)
        self.tool.summarise(stalls, summary)
        return json.dumps(summary["stalls"])

    def test_a_trace_without_poll_threads_is_an_error(self):
        self.assertIn("no thread named pc-poll-N", self.analyse("# nothing\n", expect=1))

    def test_exit_status_of_no_engine_no_tracefs_and_wrong_usage(self):
        done = self.run_tool("--proc", self.folder, expect=1)
        self.assertIn("is an engine up", done.stderr)
        proc = self.proc("bash", "pc-poll-0")
        done = self.run_tool(*proc, "--tracefs", "/nowhere", expect=3)
        self.assertIn("no tracefs at /nowhere", done.stderr)
        self.assertIn("mount -t tracefs", done.stderr)
        self.run_tool(*proc, "--pid", "8", expect=1)
        for bad in (("--seconds", "0"), ("--seconds", "x"), ("--pid", "-1"), ("--bad",),
                    ("--from", "/nowhere/trace")):
            self.run_tool(*bad, expect=2)

    def test_a_folder_without_tracefs_is_refused(self):
        os.makedirs(f"{self.folder}/fs/instances")
        done = self.run_tool(*self.proc("pc-poll-0"), "--tracefs", f"{self.folder}/fs",
                             "--seconds", "0.1", expect=3)
        self.assertIn("trace: No such file", done.stderr)

    def test_help_has_examples(self):
        self.assertIn("trace-stalls --seconds 10", self.run_tool("--help").stdout)

    @unittest.skipUnless(os.geteuid() == 0 and os.path.exists(
        "/sys/kernel/tracing/events/sched/sched_switch"), "needs root and a mounted tracefs")
    def test_a_real_trace_finds_the_thread_and_removes_its_instance(self):
        spin = subprocess.Popen([sys.executable, "-c",
                                 "open('/proc/self/comm', 'w').write('pc-poll-9')\n"
                                 "print('up', flush=True)\nwhile True: pass"],
                                stdout=subprocess.PIPE)
        try:
            spin.stdout.readline()
            tool = subprocess.Popen([TOOL, "--json", "--seconds", "0.5", "--pid", str(spin.pid)],
                                    stdout=subprocess.PIPE, text=True)
            out = tool.communicate(timeout=100)[0]
        finally:
            spin.kill()
            spin.wait()
            spin.stdout.close()
        self.assertEqual(tool.returncode, 0)
        self.assertEqual(list(json.loads(out)["stalls"]), [f"pc-poll-9/{spin.pid}"])
        self.assertNotIn(f"trace-stalls-{tool.pid}", os.listdir("/sys/kernel/tracing/instances"))


if __name__ == "__main__":
    unittest.main(verbosity=2)
