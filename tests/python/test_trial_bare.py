# SPDX-License-Identifier: Apache-2.0
"""The first hour of a stranger: `pip install` of the wheel on two bare Debian hosts with nothing
else than rdma-core and pretended ConnectX ports of RoCE v2, then `peercachectl trial --peer` on
both. The hosts are folders with namespaces of mounts; they share a network of their own, because
pretended ports meet in it. Prints the seconds from nothing to the reports.

    test_trial_bare.py [ROOT]   ROOT: a folder of debootstrap with the PACKAGES, used as it is

Exit status 77: not root, or debootstrap, the archive or namespaces are missing.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time

from bare import ABSENT, ALONE, LONG, TREE, Missing, expect, harness, run, run_outside

PACKAGES = "python3-venv,ibverbs-providers"
SECONDS = 600  # from nothing to the reports
# $1: the folder of the system, $2: number of the host, $3: that of the other one
ENTER = """
set -e
cd "$1"
mount -t proc proc proc
mount -t sysfs sysfs sys
mount -t tmpfs tmpfs tmp
mount --rbind /dev dev
mount -t tmpfs tmpfs dev/shm
exec env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root PEERCACHE_TRIAL_LOCK=host$2 chroot . \\
    sh -ec '
cd
python3 -m venv peercache >/dev/null
. peercache/bin/activate
pip install --no-index ./peercache-*.whl >/dev/null
soft/soft-connectx --library soft/libsoftconnectx.so --devices 2 --link roce \\
    peercachectl trial --quick --quiet --json --output trial --pool-bytes 64MiB --minutes 0 \\
    --address 127.0.0.'$2' --peer 127.0.0.'$3' || test $? = 1'
"""
UNKNOWN = ("no hardware", "--peer", "over ssh", "cannot be read", "isolate", "claim",
           "not measured", "software", "as root")


def prepare(folder, bare):
    if not bare:
        bare = os.path.join(folder, "bare")
        run_outside("debootstrap", "--variant=minbase", "--include=" + PACKAGES, "bookworm", bare)
    try:
        library = harness.program("tests/connectx/libsoftconnectx.so")
    except SystemExit as why:
        raise Missing(why) from why
    wheel = run(os.path.join(TREE, "tools", "package"), "wheel", seconds=LONG).split()[-1]
    soft = os.path.join(bare, "root", "soft")
    os.makedirs(soft, exist_ok=True)
    shutil.copy(wheel, os.path.join(bare, "root"))
    shutil.copy(library, soft)
    shutil.copy(os.path.join(TREE, "tools", "soft-connectx"), soft)
    second = os.path.join(folder, "second")
    run("cp", "-a", bare, second)
    return bare, second


def inside(*roots):
    """In namespaces of its own, without a network but its own addresses."""
    run("ip", "link", "set", "lo", "up")
    begun = time.monotonic()
    hosts = [subprocess.Popen(
        ["unshare", "--mount", "bash", "-c", ENTER, "bash", root, str(1 + i), str(2 - i)],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
        for i, root in enumerate(roots)]
    outs = [harness.finish(host, LONG) for host in hosts]
    seconds = time.monotonic() - begun
    for (status, out, _), root in zip(outs, roots):
        expect(status == 0, f"{root}: {status}: {out[-3000:]}")
        found = json.loads(out[out.index("{"):])
        print(f"{found['verdict'][:2]}, {seconds:.0f} s")
        for step in found["steps"]:
            print(f"  {step['answer']:8}{step['seconds']:7.1f} s  {step['name']}: "
                  f"{step['text'][:120]}")
            if step["name"] == "host: doctor":  # the hosts were not set up: it says how
                expect(step["do"], step)
                continue
            expect(step["answer"] != "no", step)
            expect(step["answer"] == "yes" or any(
                word in step["text"] + step["do"] for word in UNKNOWN), step)
        expect(len([n for n in os.listdir(root + "/root/trial") if n.endswith(".html")]) == 1,
               "one report")
    expect(seconds < SECONDS * harness.SLOW, f"{seconds:.0f} s")


def main():
    if sys.argv[1:2] == ["--inside"]:
        inside(*sys.argv[2:])
        return 0
    with tempfile.TemporaryDirectory(prefix="peercache-trial-") as folder:
        try:
            if os.geteuid() or not shutil.which("debootstrap"):
                raise Missing("needs root and debootstrap")
            run_outside(*ALONE, "true")
            roots = prepare(folder, sys.argv[1] if len(sys.argv) > 1 else "")
        except Missing as why:
            print("skipped:", why)
            return ABSENT
        return harness.run([*ALONE, sys.executable, os.path.abspath(__file__), "--inside",
                            *roots], LONG).returncode


if __name__ == "__main__":
    sys.exit(main())
