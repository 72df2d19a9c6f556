# SPDX-License-Identifier: Apache-2.0
"""The example units under systemd as the first process of a namespace: an engine that is killed, or
restarted by systemctl, comes back with its pages. Skipped where the machine forbids namespaces."""

import json
import os
import shutil
import signal
import subprocess
import tempfile
import unittest

import harness

SYSTEMD = "/lib/systemd/systemd"
UNITS = ("peercache-engine.service", "peercache-engine.socket")
PAGES = 1000
DEADLINE_MS = str(int(15000 * harness.SLOW))
UNSHARE = ["unshare", "--fork", "--pid", "--mount", "--mount-proc", "--uts", "--ipc", "--cgroup",
           "--kill-child"]
# $1: the folder of the units
INSIDE = """
set -e
mount -t tmpfs tmpfs /run
mkdir -p /run/systemd/system
umount -R /sys/fs/cgroup || true
mount -t cgroup2 cgroup2 /sys/fs/cgroup
cp "$1"/peercache* /run/systemd/system/
export container=lxc
exec %s --system --unit=peercache.target
""" % SYSTEMD
TARGET = """
[Unit]
DefaultDependencies=no
Requires=peercache-engine.service
"""


class Systemd(unittest.TestCase):
    def setUp(self):
        if os.geteuid() or not os.path.exists(SYSTEMD) or not shutil.which("unshare"):
            self.skipTest("skipped: needs root, systemd and unshare")
        self.folder = tempfile.mkdtemp(prefix="peercache-systemd-")
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        self.socket = os.path.join(self.folder, "engine.sock")
        self.log_path = os.path.join(self.folder, "engine.log")
        command = [harness.program("engine/peercache-engine")]
        for value in (f"engine.socket={self.socket}", "engine.pool_bytes=64MiB",
                      "engine.huge_pages=no", "metrics.port=0",
                      f"cluster.port={harness.cluster.free_port()}"):
            command += ["--set", value]
        for name in UNITS:
            with open(os.path.join(harness.ROOT, "config", "examples", name),
                      encoding="utf-8") as file:
                text = file.read()
            # there is no network and no basic.target in the namespace
            text = text.replace("[Unit]", "[Unit]\nDefaultDependencies=no")
            text = text.replace(" network-online.target", "").replace(
                "Wants=network-online.target\n", "")
            text = text.replace("/usr/bin/peercache-engine --config /etc/peercache.conf",
                                " ".join(command))
            text = text.replace("/run/peercache/engine.sock", self.socket)
            text = text.replace("[Service]", f"[Service]\nStandardError=append:{self.log_path}")
            self.write(name, text)
        self.write("peercache.target", TARGET)

    def write(self, name, text):
        with open(os.path.join(self.folder, name), "w", encoding="utf-8") as file:
            file.write(text)

    def log(self):
        if not os.path.exists(self.log_path):
            return ""
        with open(self.log_path, encoding="utf-8") as file:
            return file.read()

    def begin(self):
        first = subprocess.Popen([*UNSHARE, "bash", "-c", INSIDE, "bash", self.folder],
                                 stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                 stderr=subprocess.STDOUT, text=True)
        self.addCleanup(first.stdout.close)
        self.addCleanup(first.wait)
        self.addCleanup(first.kill)
        try:
            harness.wait_for(lambda: "ready: " in self.log() or first.poll() is not None, 60,
                             "the engine serves")
        except AssertionError:
            self.assertNotIn("ready: ", self.log())
            if self.log():
                raise
            self.skipTest("skipped: systemd does not start in a namespace here")
        if first.poll() is not None:
            self.skipTest("skipped: no namespace for systemd here: " + first.stdout.read()[-200:])
        return first

    def pid(self):
        ctl = harness.run([harness.program("tools/peercachectl"), "--socket", self.socket,
                           "--json", "status"], capture_output=True, text=True, check=False)
        return json.loads(ctl.stdout)["pid"] if ctl.returncode == 0 else None

    def outer_pids(self):
        """Process ids, outside the namespace, of engines with this socket."""
        found = []
        for name in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open(f"/proc/{name}/cmdline", encoding="utf-8") as file:
                    words = file.read().split("\0")
            except OSError:
                continue
            if words[0].endswith("peercache-engine") and f"engine.socket={self.socket}" in words:
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
        systemd = self.begin()
        self.assertEqual(self.kept("set")["hit"], PAGES)
        for end in (signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT, signal.SIGTERM, "restart"):
            before = self.pid()
            if end == "restart":
                children = subprocess.run(["pgrep", "-P", str(systemd.pid)], capture_output=True,
                                          text=True, check=True).stdout.split()
                harness.run(["nsenter", "-t", children[0], "-a", "systemctl", "restart",
                             "peercache-engine.service"], check=True)
            else:
                for pid in self.outer_pids():
                    os.kill(pid, end)
            harness.wait_for(lambda: (self.pid() or before) != before, 60, "the next one serves")
            harness.wait_for(lambda: self.kept("find")["read"] == PAGES, 60, "all pages")
        self.assertEqual(self.log().count(f"has {PAGES} pages of the engine before"), 5)


if __name__ == "__main__":
    harness.main()
