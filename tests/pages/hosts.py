# SPDX-License-Identifier: Apache-2.0
"""Two hosts for the command lines of pages: host-a and host-b, each a shell of root that stays.

A host has its own /etc, /run, /var/lib, processes and host name, and its address in a namespace of
the network: 10.0.0.1 and 10.0.0.2. The programs of the build are on its PATH.
"""

import os
import queue
import shutil
import signal
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
LIMIT = 120 * SLOW  # seconds of clock() for one command: finds hangs
# $1: host name, $2: folder of programs. The last command becomes the shell of the host.
INSIDE = """
set -e
mount --make-rprivate /
mount -t tmpfs tmpfs /mnt
mkdir /mnt/upper /mnt/work
mount -t overlay overlay -o lowerdir=/etc,upperdir=/mnt/upper,workdir=/mnt/work /etc
for folder in /run /var/lib; do mount -t tmpfs tmpfs $folder; done
hostname "$1"
unset PEERCACHE_SOCKET PEERCACHE_SOCKETS PEERCACHE_RUN_DIR
PATH=$2:$PATH exec bash
"""


def missing():
    """What this machine lacks for hosts, or None."""
    if os.geteuid() or not shutil.which("unshare") or not shutil.which("ip"):
        return "needs root, unshare and ip"
    try_it = "mount -t tmpfs t /mnt && mkdir /mnt/u /mnt/w && mount -t overlay o " \
             "-o lowerdir=/etc,upperdir=/mnt/u,workdir=/mnt/w /etc"
    done = subprocess.run(["unshare", "--mount", "--pid", "--fork", "sh", "-c", try_it],
                          capture_output=True, text=True, check=False)
    return done.stderr.strip() if done.returncode else None


def link_programs(build, folder):
    """Puts what an installation has in its folder of programs into `folder`."""
    for path in ("engine/peercache-engine", "engine/peercache-keeper", "tools/peercachectl",
                 "tools/peercache-bench", "tools/peercache-replay"):
        os.symlink(cluster.find_program(build, path), os.path.join(folder, os.path.basename(path)))
    os.symlink(os.path.join(ROOT, "tools", "setup-host"),
               os.path.join(folder, "peercache-setup-host"))


class Host:
    """One host. Not for two threads at once. alone: it sees its own processes only; pretended NICs
    read the memory of the processes of others."""

    def __init__(self, name, namespace, folder, programs, alone):
        self.name, self.lines = name, queue.Queue()
        self.folder = os.path.join(folder, name)
        os.mkdir(self.folder)
        self.output = os.path.join(self.folder, "output")
        reading, writing = os.pipe()
        own = ["--pid", "--fork", "--kill-child", "--mount-proc"] if alone else []
        with open(self.output, "wb") as output:
            self.process = subprocess.Popen(
                ["ip", "netns", "exec", namespace, "unshare", "--mount", "--uts", *own, "bash",
                 "-c", INSIDE, "bash", name, programs],
                stdin=subprocess.PIPE, stdout=output, stderr=output, text=True, cwd=self.folder,
                pass_fds=[writing], start_new_session=True)
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

    def signal(self, number):
        """Sends a signal to all processes of the host. False: none is left."""
        try:
            os.killpg(self.process.pid, number)
        except ProcessLookupError:
            return False
        return True

    def close(self):
        self.process.stdin.close()
        begun, end = time.monotonic(), cluster.clock() + 20 * SLOW
        while self.signal(signal.SIGTERM) and cluster.clock() < end:
            self.process.poll()
            cluster.pause(begun)
        self.signal(signal.SIGKILL)
        self.process.wait()
        self.reader.join()
        self.statuses.close()


class Hosts:
    """Both hosts. same_network: one namespace has both addresses, and all processes are seen."""

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
        self.host = {name: Host(name, names[i], self.folder, programs, not same_network)
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
        for host in self.host.values():
            host.close()
        self.network.close()
        shutil.rmtree(self.folder, ignore_errors=True)
