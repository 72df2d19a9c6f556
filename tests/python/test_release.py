# SPDX-License-Identifier: Apache-2.0
"""A clone of the tree on a bare Debian 13, whose libraries and compiler are newer than those of
Debian 12 and partly have other names (t64): tools/install, tools/demo and tools/package deb, whose
packages are installed there.

    test_release.py [ROOT]      ROOT: a folder of debootstrap, changed

Exit status 77: not root, or the tools, the archive or namespaces are missing.
"""

import os
import sys

from bare import LONG, TREE, main, run, run_outside
from test_deb import APT, GROUPS

RELEASE = "trixie"
# $1: the folder of the system
ENTER = """
set -e
mount -t proc proc "$1/proc"
mount -t sysfs sysfs "$1/sys"
mount -t tmpfs tmpfs "$1/tmp"
mount --rbind /dev "$1/dev"
mount -t tmpfs tmpfs "$1/dev/shm"
ip link set lo up
exec env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root chroot "$1" sh -exc "$2"
"""
LINES = """
cd /root/tree
tools/install --deb --check
tools/demo --requests 100
peercachectl --version
peercache-meta --help
test -f /etc/peercache.conf
"""


def prepare(folder, bare):
    if not bare:
        bare = os.path.join(folder, "bare")
        run_outside("debootstrap", "--variant=minbase", RELEASE, bare)
    tree = os.path.join(bare, "root", "tree")
    run("rm", "-rf", tree)
    run("git", "-c", "safe.directory=*", "clone", "-q", TREE, tree)
    run_outside("chroot", bare, "apt-get", "-q", "update")
    run("unshare", "--mount", "--pid", "--fork", "bash", "-c", ENTER, "bash", bare,
        "cd /root/tree; tools/install --deb; tools/package deb; " + " ".join(APT) +
        " install --no-install-recommends $(ls ./build/package/deb/*.deb | grep -v dbgsym)",
        seconds=LONG)
    return sys.executable, bare


def inside(_folder, bare):
    """In namespaces of its own, without a network."""
    print(run("bash", "-c", ENTER, "bash", bare, LINES, seconds=LONG))


if __name__ == "__main__":
    sys.exit(main("release", GROUPS, prepare, inside))
