# SPDX-License-Identifier: Apache-2.0
"""The units under systemd as the first process of a namespace: an engine that is killed, or
restarted by systemctl, comes back with its pages. Skipped where the machine forbids namespaces."""

import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
import unittest

import harness

SYSTEMD = "/lib/systemd/systemd"
UNIT = "peercache-engine.service"
PAGES = 1000
DEADLINE_MS = str(int(15000 * harness.SLOW))
UNSHARE = ["unshare", "--fork", "--pid", "--mount", "--mount-proc", "--uts", "--ipc", "--cgroup",
           "--kill-child"]
# $1: the folder of the units. systemd-sysusers makes the user in copies of passwd and group.
INSIDE = """
set -e
mount --make-rprivate /
mount -t tmpfs -o mode=755 tmpfs /run
mkdir /run/folder
mount --bind "$1" /run/folder
mount -t tmpfs -o mode=1777 tmpfs /tmp
mkdir -p "$1"
mount --bind /run/folder "$1"
mount -t tmpfs tmpfs /var/lib
mkdir -p /run/systemd/system /run/users/etc
umount -R /sys/fs/cgroup || true
mount -t cgroup2 cgroup2 /sys/fs/cgroup
cp "$1"/peercache*.{service,target} /run/systemd/system/
cp /etc/passwd /etc/group /run/users/etc/
systemd-sysusers --root=/run/users "$1"/peercache.conf
for name in passwd group; do mount --bind /run/users/etc/$name /etc/$name; done
export container=lxc
exec %s --system --unit=peercache.target
""" % SYSTEMD
# Not Requires=: systemd must go on when the engine fails.
TARGET = """
[Unit]
DefaultDependencies=no
Wants=peercache-engine.service
"""
WATCHDOG_SECONDS = int(5 * harness.SLOW)


class Systemd(unittest.TestCase):
    def setUp(self):
        if os.geteuid() or not os.path.exists(SYSTEMD) or not shutil.which("unshare"):
            self.skipTest("skipped: needs root, systemd and unshare")
        self.folder = tempfile.mkdtemp(prefix="peercache-systemd-")
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        os.chmod(self.folder, 0o755)
        self.socket = None  # as seen from here, once the namespace is there
        self.log_path = os.path.join(self.folder, "engine.log")
        # Its user may not be able to see the build, but it sees this folder.
        program = shutil.copy(harness.program("engine/peercache-engine"), self.folder)
        module = os.path.join(harness.BUILD, "engine", "peercache-verbs.so")
        if os.path.exists(module):  # not in a build without RDMA
            shutil.copy(module, self.folder)
        self.command = [program]
        for value in ("engine.pool_bytes=64MiB", "engine.huge_pages=no", "metrics.port=0",
                      f"cluster.port={harness.cluster.free_port()}"):
            self.command += ["--set", value]
        shutil.copy(os.path.join(harness.ROOT, "config/systemd/peercache.conf"), self.folder)
        self.write("peercache.target", TARGET)

    def unit(self):
        path = os.path.join(harness.BUILD, "config", "systemd", UNIT)
        with open(path, encoding="utf-8") as file:
            return file.read()

    def write_unit(self, command):
        # there is no network and no basic.target in the namespace
        text = self.unit().replace("[Unit]", "[Unit]\nDefaultDependencies=no")
        text = re.sub("(?m)^(After|Wants)=network-online.target\n", "", text)
        text = re.sub("(?m)^ExecStart=.*", "ExecStart=" + " ".join(command), text)
        text = re.sub(r"\S+/peercachectl", harness.program("tools/peercachectl"), text)
        text = re.sub("(?m)^WatchdogSec=.*", f"WatchdogSec={WATCHDOG_SECONDS}", text)
        text = text.replace("[Service]", f"[Service]\nStandardError=append:{self.log_path}\n"
                                         f"BindReadOnlyPaths={self.folder}")
        self.write(UNIT, text)

    def write(self, name, text):
        with open(os.path.join(self.folder, name), "w", encoding="utf-8") as file:
            file.write(text)

    def log(self):
        if not os.path.exists(self.log_path):
            return ""
        with open(self.log_path, encoding="utf-8") as file:
            return file.read()

    def begin(self, command=None):
        """Starts systemd as the first process of a namespace. Returns the process of unshare."""
        self.write_unit(command or self.command)
        first = subprocess.Popen([*UNSHARE, "bash", "-c", INSIDE, "bash", self.folder],
                                 stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                 stderr=subprocess.STDOUT, text=True)
        self.addCleanup(first.stdout.close)
        self.addCleanup(first.wait)
        self.addCleanup(first.kill)
        try:
            harness.wait_for(lambda: os.path.exists(self.log_path) or first.poll() is not None, 60,
                             "systemd starts the engine")
        except AssertionError:
            self.skipTest("skipped: systemd does not start in a namespace here")
        if first.poll() is not None:
            self.skipTest("skipped: no namespace for systemd here: " + first.stdout.read()[-200:])
        self.inside = subprocess.run(["pgrep", "-P", str(first.pid)], capture_output=True,
                                     text=True, check=True).stdout.split()[0]
        self.socket = f"/proc/{self.inside}/root/run/peercache/engine.sock"

    def serve(self):
        self.begin()
        harness.wait_for(lambda: "ready: " in self.log(), 60, "the engine serves")

    def enter(self, *command):
        """Runs a program as root beside the unit."""
        return harness.run(["nsenter", "-t", self.inside, "-a", *command],
                           capture_output=True, text=True, check=False)

    def systemctl(self, *arguments):
        return self.enter("systemctl", *arguments)

    def state(self, name="ActiveState"):
        return self.systemctl("show", "--value", "-p", name, UNIT).stdout.strip()

    def pid(self):
        ctl = harness.run([harness.program("tools/peercachectl"), "--socket", self.socket,
                           "--json", "status"], capture_output=True, text=True, check=False)
        return json.loads(ctl.stdout)["pid"] if ctl.returncode == 0 else None

    def outer_pids(self):
        """Process ids, outside the namespace, of this test's engines."""
        found = []
        for name in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open(f"/proc/{name}/cmdline", encoding="utf-8") as file:
                    words = file.read().split("\0")
            except OSError:
                continue
            if words[0] == self.command[0]:
                found.append(int(name))
        return found

    def kept(self, command):
        done = harness.run(
            [harness.program("tests/cluster/kept"), command, "--results",
             os.path.join(self.folder, "pages"), "--from", "0", "--count", str(PAGES),
             "--timeout-ms", DEADLINE_MS], capture_output=True, text=True, check=False,
            env={**os.environ, "PEERCACHE_SOCKETS": self.socket}, seconds=120)
        self.assertEqual(done.returncode, 0, done.stderr + self.log())
        return json.loads(done.stdout)

    def test_pages_survive_kills_and_restarts(self):
        self.serve()
        self.assertEqual(self.kept("set")["hit"], PAGES)
        for end in (signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT, signal.SIGTERM, "restart"):
            before = self.pid()
            if end == "restart":
                self.assertEqual(self.systemctl("restart", UNIT).returncode, 0)
            else:
                for pid in self.outer_pids():
                    os.kill(pid, end)
            harness.wait_for(lambda: (self.pid() or before) != before, 60, "the next one serves")
            harness.wait_for(lambda: self.kept("find")["read"] == PAGES, 60, "all pages")
        self.assertEqual(self.log().count(f"has {PAGES} pages of the engine before"), 5)
        self.assertNotIn("drain: ", self.log())  # its pages stay

    def test_the_engine_has_no_privilege(self):
        self.serve()
        pid = self.outer_pids()[0]
        with open(f"/proc/{pid}/status", encoding="utf-8") as file:
            status = dict(line.split(":", 1) for line in file.read().splitlines())
        self.assertNotIn("0", status["Uid"].split())
        self.assertEqual(int(status["CapBnd"], 16), 0)
        self.assertEqual(status["NoNewPrivs"].strip(), "1")
        self.assertEqual(status["Seccomp"].strip(), "2")
        self.assertNotIn("forbid", self.log())

    def test_check_and_doctor_answer_for_the_unit(self):
        self.serve()
        mine = os.path.join(self.folder, "private")
        os.mkdir(mine, 0o700)
        for running in True, False:
            done = self.enter(self.command[0], "--check", *self.command[1:])
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn("the settings are valid for user peercache\n", done.stdout)
            done = self.enter(self.command[0], "--check", *self.command[1:], "--set",
                              f"engine.socket={mine}/e.sock")
            self.assertEqual(done.returncode, 2, done.stdout)
            self.assertIn(f"{mine}: Permission denied", done.stderr)
            done = self.enter(harness.program("tools/peercachectl"), "--json", "doctor",
                              *self.command[1:])
            findings = json.loads(done.stdout)["findings"]
            limits = {(f["state"], f["where"]) for f in findings if f["check"] == "limits"}
            self.assertEqual({state for state, _ in limits}, {"ok" if running else "unknown"})
            self.assertNotIn(("ok", "/proc/self/limits"), limits)
            self.systemctl("stop", UNIT)

    def test_the_disk_tier_works_in_the_state_directory(self):
        self.command += ["--set", "disk.paths=/var/lib/peercache", "--set", "disk.bytes=256MiB",
                         "--set", "disk.segment_bytes=16MiB"]
        self.serve()
        harness.wait_for(lambda: "found on 1 path(s)" in self.log(), 60, "the disk is open")

    def test_an_engine_that_does_not_answer_is_started_again(self):
        self.serve()
        self.assertEqual(self.kept("set")["hit"], PAGES)
        before = self.pid()
        os.kill(self.outer_pids()[0], signal.SIGSTOP)
        harness.wait_for(lambda: self.log().count("ready: ") == 2, 120, "the next one serves")
        self.assertNotEqual(self.pid(), before)
        harness.wait_for(lambda: self.kept("find")["read"] == PAGES, 60, "all pages")

    def test_a_living_engine_outlives_its_watchdog_time(self):
        self.serve()

        def sign_us():
            return int(self.state("WatchdogTimestampMonotonic"))

        first = sign_us()
        harness.wait_for(lambda: sign_us() - first > 2e6 * WATCHDOG_SECONDS, 120,
                         "signs of life over twice the time of the watchdog")
        self.assertEqual(self.log().count("ready: "), 1, self.log())

    def test_a_stopped_engine_stays_stopped_when_a_client_comes(self):
        self.serve()
        self.assertEqual(self.kept("set")["hit"], PAGES)
        harness.wait_for(lambda: self.state() == "active", 60, "systemd knows that it serves")
        began = time.monotonic()
        self.assertEqual(self.systemctl("stop", UNIT).returncode, 0)
        # it offers its pages; alone, it does not wait
        self.assertLess(time.monotonic() - began, 20 * harness.SLOW)
        self.assertIn(f"drain: {PAGES} pages are offered to 0 hosts", self.log())
        self.assertIsNone(self.pid())
        self.assertEqual(self.state(), "inactive")
        self.assertFalse(os.path.exists(self.socket))
        self.assertEqual(self.systemctl("start", UNIT).returncode, 0)
        self.assertIsNotNone(self.pid())

    def test_clients_wait_while_a_killed_engine_restarts(self):
        self.serve()
        before = self.pid()
        for pid in self.outer_pids():
            os.kill(pid, signal.SIGKILL)
        # the first attempt is answered, by the next engine
        self.assertNotIn(self.pid(), (None, before))

    def test_wrong_settings_are_not_tried_again(self):
        self.begin([*self.command, "--set", "engine.pool_bites=1"])
        harness.wait_for(lambda: self.state() == "failed", 60, "the service fails")
        self.assertIsNone(self.pid())
        self.assertEqual(self.state("NRestarts"), "0")
        self.assertEqual(self.state("ExecMainStatus"), "2")
        self.assertEqual(self.log().count("engine.pool_bites"), 1, self.log())

    def test_the_unit_is_hardened(self):
        self.write(UNIT, self.unit())
        done = harness.run(["systemd-analyze", "security", "--offline=true", "--threshold=30",
                            os.path.join(self.folder, UNIT)], capture_output=True, text=True,
                           check=False)
        if "Unknown" in done.stderr and "offline" in done.stderr:
            self.skipTest("skipped: this systemd-analyze reads no files")
        self.assertEqual(done.returncode, 0, done.stdout[-500:])


if __name__ == "__main__":
    harness.main()
