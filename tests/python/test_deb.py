# SPDX-License-Identifier: Apache-2.0
"""The packages of `tools/package deb` on two bare Debian hosts: namespaces in which systemd is the
first process, with an Ethernet between them and nothing else. One host has all packages, the other
one has no RDMA. Pages are read by the other host, the packages are upgraded under load, the service
is stopped, the packages are purged. Prints what it measured.

    test_deb.py [ROOT]      ROOT: a folder of debootstrap with systemd and iproute2, used as it is

Exit status 77: not root, or the tools, the archive, namespaces or control groups are missing.
"""

import glob
import json
import os
import re
import shutil
import subprocess
import sys
import time

from bare import (HERE, LIMIT, SLOW, TREE, Groups, expect, harness, main, packages_make, run,
                  run_outside, wait_for)
sys.path.insert(0, os.path.join(TREE, "tools"))
import pages  # noqa: E402

GROUPS = "tree"  # systemd makes more below its own
UNIT = "peercache-engine.service"
PAGES = 1008  # pages before the load
ALL = ["peercache-engine", "peercache-engine-verbs", "libpeercache0", "libpeercache-dev",
       "python3-peercache"]
LESS = ["peercache-engine", "libpeercache0", "python3-peercache"]
APT = ["env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "-y", "-o", "Dpkg::Use-Pty=0"]
# What apt and dpkg write for themselves, and caches that every installation writes.
THEIRS = re.compile(r"/(var/(lib/(dpkg|apt|systemd)|cache|log|tmp)|etc/ld\.so\.cache|tmp|root"
                    r"|etc/(passwd|group|g?shadow)-|debs[0-9]*|etc/machine-id|etc/\.updated"
                    r"|var/\.updated)(/|$)|/__pycache__(/|$)")
# $0: a control group for the host, which becomes the root of those that it sees
HOST = """
echo $$ >"$0/cgroup.procs"
exec unshare --mount --net --pid --uts --ipc --cgroup --fork --kill-child "$@"
"""
# $1: the folder of the system, $2: its name. `exec` keeps the process, which becomes systemd.
INSIDE = """
set -e
hostname "$2"
mount --make-rprivate /
cd "$1"
mount -t proc proc proc
mount -t sysfs sysfs sys
mount -t tmpfs tmpfs run
mount -t tmpfs tmpfs tmp
mount -t tmpfs -o mode=755 tmpfs dev
mkdir dev/shm
mount -t tmpfs tmpfs dev/shm
for node in null zero full random urandom; do
    touch dev/$node
    mount --bind /dev/$node dev/$node
done
ln -s /proc/self/fd dev/fd
mount -t cgroup2 cgroup2 sys/fs/cgroup
mkdir run/old
pivot_root . run/old
umount -l run/old
export container=lxc
exec env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin container=lxc /lib/systemd/systemd \\
    --unit=multi-user.target
"""


class Host:
    """A system with its own root, an overlay on the bare one, and its own control group of the
    Groups. `number` is in its address."""

    def __init__(self, folder, number, bare, groups):
        self.name, self.address = f"host{number}", f"10.9.0.{number}"
        upper, work, self.root = (os.path.join(folder, self.name + part)
                                  for part in ("", ".work", ".root"))
        for path in (upper, work, self.root):
            os.mkdir(path)
        run("mount", "-t", "overlay", "overlay", "-o",
            f"lowerdir={bare},upperdir={upper},workdir={work}", self.root)
        shutil.copy(os.path.join(HERE, "deb_pages.py"), self.root + "/root")
        self.outer = subprocess.Popen(["bash", "-c", HOST, groups.make(self.name), "bash", "-c",
                                       INSIDE, "bash", self.root, self.name],
                                      stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        self.first = wait_for(lambda: run("pgrep", "-P", str(self.outer.pid), check=False),
                              60, f"{self.name} has a first process").strip()
        wait_for(lambda: "running" in self.systemctl("is-system-running")
                 or "degraded" in self.systemctl("is-system-running"),
                 60, f"{self.name} has started")

    def command(self, *command):
        return ["nsenter", "-t", self.first, "-a", "--root", "env", "-C", "/", "-i",
                "PATH=/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root", *command]

    def run(self, *command, **options):
        return run(*self.command(*command), **options)

    def systemctl(self, *words):
        return self.run("systemctl", *words, check=False)

    def state(self, name="ActiveState"):
        return self.systemctl("show", "--value", "-p", name, UNIT).strip()

    def pages(self, *words):
        return json.loads(self.run("python3", "/root/deb_pages.py", *map(str, words)))

    def load(self, first):
        """Starts a load, whose folder is in the system's /run."""
        return subprocess.Popen(self.command("python3", "/root/deb_pages.py", "load", str(first),
                                             "/run/load"), stdout=subprocess.PIPE, text=True)

    def log(self):
        return self.run("journalctl", "--no-pager", "-u", UNIT, "-o", "cat")

    def files(self):
        found = self.run("find", "/", "-xdev", "-printf", "%p\n").splitlines()
        return {path for path in found if not THEIRS.search(path)}

    def accounts(self):
        """All users and groups, but the group rdma, which Debian's libibverbs1 leaves."""
        lines = self.run("cat", "/etc/passwd", "/etc/group", "/etc/shadow", "/etc/gshadow")
        return {line for line in lines.splitlines() if not line.startswith("rdma:")}

    def install(self, folder, packages):
        files = [glob.glob(f"{self.root}/{folder}/{name}_*.deb")[0] for name in packages]
        return self.run(*APT, "install", "--no-install-recommends",
                        *(f"/{folder}/{os.path.basename(file)}" for file in files))

    def configure(self, other):
        text = (f"[engine]\npool_bytes = 256MiB\nhuge_pages = no\n"
                f"[rail]\ndevices = soft\npolling = adaptive\n[soft]\nlink = tcp\n"
                f"[cluster]\naddress = {self.address}\nseeds = {other.address}:31998\n"
                f"dead_after_ms = {int(30000 * SLOW)}\n"
                "[disk]\npaths = /var/lib/peercache\nbytes = 256MiB\nsegment_bytes = 16MiB\n")
        self.run("sh", "-c", 'printf "%s" "$1" >/etc/peercache.conf', "sh", text)
        self.run("systemctl", "enable", "--now", "peercache-engine")


def hosts_connect(first, second):
    run("ip", "link", "add", "peer1", "type", "veth", "peer", "name", "peer2")
    for host, name in ((first, "peer1"), (second, "peer2")):
        run("ip", "link", "set", name, "netns", host.first)
        for words in (["link", "set", "lo", "up"], ["link", "set", name, "up"],
                      ["addr", "add", host.address + "/24", "dev", name]):
            host.run("ip", *words)


def service_starts(first, second):
    """The installed service runs as its own user and is not enabled before the administrator."""
    for host, other in ((first, second), (second, first)):
        expect(host.state() == "inactive", f"{host.name}: the installation started the service")
        host.configure(other)
        expect(host.state() == "active", host.log())
        user = host.run("stat", "-c", "%U", "/proc/" + host.state("MainPID")).strip()
        expect(user == "peercache", f"the engine's user is {user}")
    expect(not glob.glob(second.root + "/usr/lib/*/libibverbs*"), "RDMA libraries are installed")
    expect("peercache-verbs.so" in first.run("dpkg", "-L", "peercache-engine-verbs"), "no module")


def documents_are_installed(host):
    """LICENSE is Debian's copyright file, which names the licence."""
    doc = "/usr/share/doc/peercache-engine"
    expect(f"\n  {doc}/\n" in host.run("peercachectl", "--help"), f"--help names no {doc}")
    lacks = pages.lacks(f"/proc/{host.first}/root{doc}", "LICENSE")
    expect(not lacks, f"{doc} lacks {lacks}")


def pages_are_shared(first, second):
    first.pages("set", PAGES)
    wait_for(lambda: second.pages("read", PAGES)["hits"] == PAGES, 60, "the second host reads all")
    print(f"the second host read {PAGES} of {PAGES} pages of the first one")


def upgrade_loses_nothing(first, second):
    loads = [first.load(PAGES), second.load(-PAGES)]
    for host in (first, second):
        wait_for(lambda: os.path.exists(f"/proc/{host.first}/root/run/load/began"),
                 60, "the load has begun")
    before, pid = first.log().count("ready: "), first.state("MainPID")
    begun = time.monotonic()
    out = first.install("debs2", ALL)
    seconds = time.monotonic() - begun
    wait_for(lambda: first.log().count("ready: ") > before, 60, "the upgraded engine serves")
    for host in (first, second):
        host.run("touch", "/run/load/stop")
    results = [json.loads(harness.finish(load, LIMIT)[1]) for load in loads]
    print(f"upgrade {seconds:.1f} s; load of the first host {results[0]}, of the second one"
          f" {results[1]}")
    expect(first.state("MainPID") != pid, "the upgrade restarted nothing:\n" + out)
    expect(first.log().count("ready: ") == before + 1, "restarted more than once:\n" + first.log())
    stored = results[0]["next"]
    expect(stored > PAGES and not any(r["wrong"] for r in results), "no load, or wrong bytes")
    for host in (first, second):
        wait_for(lambda: host.pages("read", stored)["hits"] == stored,
                 60, f"{host.name} reads the {stored} pages that were stored: {host.log()}")
        expect(host.pages("read", stored)["wrong"] == 0, "wrong bytes")
    print(f"0 of {stored} pages lost")


def purge_leaves_nothing(host, files, accounts):
    host.run("systemctl", "stop", UNIT)
    expect(host.state() == "inactive", "the service did not stop")
    expect(not glob.glob(f"/proc/{host.first}/root/run/peercache/*"), "files of the socket")
    host.run("systemctl", "start", UNIT)  # and the removal stops it
    # iproute2 of the bare Debian suggests python3, which came with the packages
    host.run(*APT, "-o", "APT::AutoRemove::SuggestsImportant=false", "purge", "--autoremove", *ALL)
    left = sorted(host.files() ^ files)
    expect(not left, f"left behind or missing: {left}")
    left = sorted(host.accounts() ^ accounts)
    expect(not left, f"accounts left behind or missing: {left}")
    units = host.systemctl("list-units", "--all", "--no-legend", "peercache*") + \
        host.systemctl("list-unit-files", "--no-legend", "peercache*")
    expect(not units.strip(), "units: " + units)
    processes = host.run("sh", "-c", "cat /proc/[0-9]*/comm", check=False)
    expect("systemd" in processes and "peercache" not in processes, "processes: " + processes)
    expect(not os.listdir(f"/proc/{host.first}/root/dev/shm"), "shared memory")
    print("the purge left no file, user, unit, process or shared memory")


def scenario(hosts):
    for host in hosts:
        host.run("mkdir", "/run/load")
    files, accounts = hosts[0].files(), hosts[0].accounts()
    # As a wheel's user has it: dpkg must not ask.
    hosts[1].run("sh", "-c", "echo '# mine' >/etc/peercache.conf")
    for host, packages in zip(hosts, (ALL, LESS)):
        host.install("debs1", packages)
    expect(hosts[1].run("cat", "/etc/peercache.conf") == "# mine\n", "the settings are not kept")
    expect("[engine]" in hosts[0].run("cat", "/etc/peercache.conf"), "no settings")
    expect("usage: peercache-meta" in hosts[0].run("peercache-meta", "--help"), "no peercache-meta")
    expect("usage: peercache-storage-server" in hosts[0].run("peercache-storage-server", "--help"),
           "no peercache-storage-server")
    documents_are_installed(hosts[0])
    service_starts(*hosts)
    pages_are_shared(*hosts)
    upgrade_loses_nothing(*hosts)
    purge_leaves_nothing(hosts[0], files, accounts)


def inside(folder, bare):
    """In namespaces of its own: all mounts and processes end with this process."""
    run("mount", "--make-rprivate", "/")
    groups = Groups(folder, GROUPS)
    hosts = [Host(folder, number, bare, groups) for number in (1, 2)]
    hosts_connect(*hosts)
    scenario(hosts)


def newer(path, folder):
    """A package with the same files and a higher version."""
    tree = os.path.join(folder, "tree")
    run("dpkg-deb", "-R", path, tree)
    control = os.path.join(tree, "DEBIAN", "control")
    with open(control, encoding="utf-8") as file:
        text = file.read()
    version = re.search(r"(?m)^Version: (.*)$", text).group(1)
    with open(control, "w", encoding="utf-8") as file:
        file.write(text.replace(version, version + "+newer"))
    run("dpkg-deb", "-b", tree, folder)
    shutil.rmtree(tree)


def prepare(folder, bare):
    """Makes the packages, newer ones, and a bare Debian that has what they depend on in its cache.
    Returns Python and the path of that Debian."""
    packages = packages_make()
    out = run("lintian", "--allow-root", "--fail-on", "error", "--no-tag-display-limit",
              *glob.glob(os.path.join(os.path.dirname(packages[-1]), "*.changes")))
    print("lintian:", out.count("E: "), "errors,", out.count("W: "), "warnings")
    if not bare:
        bare = os.path.join(folder, "bare")
        run_outside("debootstrap", "--variant=minbase",
                    "--include=systemd,systemd-sysv,iproute2", "bookworm", bare)
    for name in ("debs1", "debs2"):
        shutil.rmtree(os.path.join(bare, name), ignore_errors=True)
        os.mkdir(os.path.join(bare, name))
    for path in packages:
        shutil.copy(path, os.path.join(bare, "debs1"))
        newer(path, os.path.join(bare, "debs2"))
    run_outside("chroot", bare, "apt-get", "-q", "update")
    run("chroot", bare, *APT, "install", "--download-only", "--no-install-recommends",
        *(f"/debs1/{name}" for name in os.listdir(os.path.join(bare, "debs1"))))
    return sys.executable, bare


if __name__ == "__main__":
    sys.exit(main("deb", GROUPS, prepare, inside))
