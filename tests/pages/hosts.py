# SPDX-License-Identifier: Apache-2.0
"""Two hosts for the command lines of pages: host-a and host-b, each a shell of root that stays.

A host has its own /etc, /run, /var/lib and host name, and its address in a namespace of the
network: 10.0.0.1 and 10.0.0.2. The programs of the build are on its PATH. Both have one home
folder, so what a reader copies from one host to the other is there.
"""

import os
import queue
import shutil
import subprocess
import sys
import tempfile
import threading
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "tools"))
import cluster  # noqa: E402

NAMES = ("host-a", "host-b")
ADDRESSES = ("10.0.0.1", "10.0.0.2")
SLOW = float(os.environ.get("PEERCACHE_SLOW", "1"))
LIMIT = 60 * SLOW  # seconds of clock() for one command: finds hangs
# $1: host name, $2: folder of programs. The last command becomes the shell of the host.
INSIDE = """
set -e
mount --make-rprivate /
mount -t proc proc /proc
mount -t tmpfs tmpfs /mnt
mkdir /mnt/upper /mnt/work
mount -t overlay overlay -o lowerdir=/etc,upperdir=/mnt/upper,workdir=/mnt/work /etc
for folder in /run /var/lib; do mount -t tmpfs tmpfs $folder; done
hostname "$1"
unset PEERCACHE_SOCKET PEERCACHE_SOCKETS PEERCACHE_RUN_DIR
HOME=$2 PATH=$2:$PATH exec bash
"""


def missing():
    """What this machine lacks for hosts, or None."""
    if os.geteuid() or not all(map(shutil.which, ("unshare", "nsenter", "setpriv", "ip"))):
        return "needs root, unshare, nsenter, setpriv and ip"
    try_it = "mount -t tmpfs t /mnt && mkdir /mnt/u /mnt/w && mount -t overlay o " \
             "-o lowerdir=/etc,upperdir=/mnt/u,workdir=/mnt/w /etc"
    done = subprocess.run(["unshare", "--mount", "--pid", "--fork", "sh", "-c", try_it],
                          capture_output=True, text=True, check=False)
    return done.stderr.strip() if done.returncode else None


def link_programs(build, folder):
    """Puts what an installation has in its folder of programs into `folder`."""
    for path in ("engine/peercache-engine", "engine/peercache-keeper", "tools/peercachectl",
                 "tools/peercache-bench"):
        os.symlink(cluster.find_program(build, path), os.path.join(folder, os.path.basename(path)))
    os.symlink(os.path.join(ROOT, "tools", "setup-host"),
               os.path.join(folder, "peercache-setup-host"))


class Processes:
    """A namespace for all processes of the hosts: they end with it, and it with this process."""

    def __init__(self):
        self.first = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", "unshare", "--pid", "--fork", "--kill-child",
             "sleep", "infinity"], stdin=subprocess.DEVNULL)
        self.path = None
        begun, children = time.monotonic(), f"/proc/{self.first.pid}/task/{self.first.pid}/children"
        while not self.path:
            with open(children, encoding="ascii") as file:
                inside = file.read().split()
            self.path = f"/proc/{inside[0]}/ns/pid" if inside else None
            assert self.first.poll() is None, "unshare ended"
            cluster.pause(begun)

    def close(self):
        self.first.kill()
        self.first.wait()


class Host:
    """One host. Not for two threads at once."""

    def __init__(self, name, network, processes, folder, programs):
        self.name, self.lines = name, queue.Queue()
        self.folder = os.path.join(folder, name)
        os.mkdir(self.folder)
        self.output = os.path.join(self.folder, "output")
        reading, writing = os.pipe()
        with open(self.output, "wb") as output:
            self.process = subprocess.Popen(
                ["ip", "netns", "exec", network, "nsenter", "--pid=" + processes.path, "unshare",
                 "--mount", "--uts", "bash", "-c", INSIDE, "bash", name, programs],
                stdin=subprocess.PIPE, stdout=output, stderr=output, text=True, cwd=self.folder,
                pass_fds=[writing])
        os.close(writing)
        self.status_to = writing
        self.statuses = open(reading, encoding="ascii")
        self.reader = threading.Thread(target=self.read, daemon=True)
        self.reader.start()

    def read(self):
        for line in self.statuses:
            self.lines.put(int(line))

    def run(self, command):
        """(exit status, output since its start, other processes' too). None: it did not end."""
        path = os.path.join(self.folder, "command")
        with open(path, "w", encoding="utf-8") as file:
            file.write(command + "\n")
        begin = os.path.getsize(self.output)
        self.process.stdin.write(f". {path} </dev/null; echo $? >&{self.status_to}\n")
        self.process.stdin.flush()
        status, begun, end = None, time.monotonic(), cluster.clock() + LIMIT
        while status is None and cluster.clock() < end and self.process.poll() is None:
            try:
                status = self.lines.get(timeout=0.05)
            except queue.Empty:
                cluster.pause(begun)
        with open(self.output, encoding="utf-8", errors="replace") as file:
            file.seek(begin)
            return status, file.read()

    def close(self):
        """Once all its processes have ended."""
        self.process.wait()
        self.process.stdin.close()
        self.reader.join()
        self.statuses.close()


class Hosts:
    """Both hosts. same_network: one namespace has both addresses, as pretended NICs need it."""

    def __init__(self, same_network=False):
        self.folder = tempfile.mkdtemp(prefix="peercache-pages-")
        programs = os.path.join(self.folder, "bin")
        os.mkdir(programs)
        link_programs(cluster.default_build(), programs)
        self.network = cluster.Namespaces(1 if same_network else 2, "10.0.0")
        names = self.network.names * 2 if same_network else self.network.names
        if same_network:
            subprocess.run(["ip", "-n", names[0], "addr", "add", ADDRESSES[1] + "/24", "dev",
                            "eth0"], check=True)
        self.processes = Processes()
        self.host = {name: Host(name, names[i], self.processes, self.folder, programs)
                     for i, name in enumerate(NAMES)}

    def run(self, names, command):
        """Runs a command on these hosts at the same time: {name: (status, output)}."""
        results = {}

        def one(name):
            results[name] = self.host[name].run(command)
        threads = [threading.Thread(target=one, args=(name,)) for name in names]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return results

    def close(self):
        self.processes.close()
        for host in self.host.values():
            host.close()
        self.network.close()
        shutil.rmtree(self.folder, ignore_errors=True)
