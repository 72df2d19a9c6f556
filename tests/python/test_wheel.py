# SPDX-License-Identifier: Apache-2.0
"""The wheel of `tools/package wheel` on a bare Debian: no compiler, no RDMA, no network. Runs the
lines that README.md gives for it, the first of which installs the wheel and the last of which reads
a page from a second engine.

    test_wheel.py [ROOT]      ROOT: a folder of debootstrap with python3-venv, used as it is

Exit status 77: not root, or no debootstrap.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile

TREE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SLOW = float(os.environ.get("PEERCACHE_SLOW", "1"))
SECONDS = 60  # of all lines together, on a machine that has nothing else to do
LIMIT = 600 * SLOW  # for hangs
ALONE = ["unshare", "--mount", "--net", "--pid", "--fork", "--kill-child"]
# $1: the folder of the system
INSIDE = """
set -e
ip link set lo up
mount -t tmpfs tmpfs "$1/tmp"
mount -t proc proc "$1/proc"
mount -t sysfs sysfs "$1/sys"
cd /
exec env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root chroot "$1" sh -ec 'cd; . /root/lines'
"""


def run(*command, **options):
    done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, timeout=LIMIT, **options)
    return done.returncode, done.stdout


def lines():
    """The block of README.md that begins with the installation of the wheel."""
    with open(os.path.join(TREE, "README.md"), encoding="utf-8") as file:
        text = file.read().splitlines()
    begin = next(i for i, line in enumerate(text) if "-m venv peercache" in line)
    block = []
    for line in text[begin:]:
        if not line.startswith("    "):
            break
        block.append(line[4:])
    block.insert(1, "test -f \"$(peercachectl --help | sed -n 's,^  /,/,p')pages/deployment.md\"")
    # exit status 1: the doctor finds something to mend
    block.insert(2, "peercachectl trial --quick --only host,engines,bytes --output trial || "
                 "test $? = 1; ls trial/*.tar.gz")
    return "\n".join(block) + "\n"


def lacks_notices(wheel):
    """Libraries inside the wheel without a licence or a component of its SBOM; relative links."""
    with zipfile.ZipFile(wheel) as file:
        names = file.namelist()
        text = file.read(next(n for n in names if n.endswith("dist-info/METADATA"))).decode()
        bom = json.loads(file.read(next(n for n in names if n.endswith(".cdx.json"))))
    libraries = [re.match(r"peercache\.libs/(lib[a-z-]+?)-[0-9a-f]{8}\.so", n) for n in names]
    wanted = {match[1] for match in libraries if match} | {"libevent"}
    parts = [part["name"] for part in bom["components"]]
    licences = [n.split("/licenses/")[1] for n in names
                if "/licenses/" in n and not n.endswith("/")]
    wrong = [f"no {what} of {name}" for name in wanted for what, have in
             (("licence", licences), ("part", parts))
             if not any(one.startswith(name.replace("crypto", "ssl")) for one in have)]
    wrong += [f"no License-File: {n}" for n in licences if f"\nLicense-File: {n}\n" not in text]
    wrong += [f"no {word}" for word in ("Project-URL: ", "Author: ", "Classifier: ")
              if "\n" + word not in text]
    return wrong + [f"link to {to}" for to in re.findall(r"\]\(([^)]*)\)", text)
                    if not to.startswith("https://")]


def bare(folder):
    """A new bare Debian; empty: it cannot be made here."""
    root = os.path.join(folder, "root")
    status, out = run("debootstrap", "--variant=minbase", "--include=python3-venv", "bookworm",
                      root)
    if status:
        print("skipped: debootstrap failed:", out[-500:])
    return "" if status else root


def absent(root):
    """What must not be there."""
    found = [name for name in ("gcc", "cc", "meson") if shutil.which(name, path=root + "/usr/bin")]
    return found + [name for name in os.listdir(root + "/usr/lib/x86_64-linux-gnu")
                    if name.startswith(("libibverbs", "libmlx5", "libhwloc", "libevent"))]


def main():
    if os.geteuid() or not shutil.which("debootstrap") or not shutil.which("unshare"):
        print("skipped: needs root, debootstrap and unshare")
        return 77
    with tempfile.TemporaryDirectory(prefix="peercache-wheel-") as folder:
        root = sys.argv[1] if len(sys.argv) > 1 else bare(folder)
        if not root:
            return 77
        status, out = run(os.path.join(TREE, "tools", "package"), "wheel")
        if status:
            print(out)
            return 1
        shutil.copy(out.split()[-1], os.path.join(root, "root"))
        if lacks_notices(out.split()[-1]):
            print("the wheel has", lacks_notices(out.split()[-1]))
            return 1
        with open(os.path.join(root, "root", "lines"), "w", encoding="utf-8") as file:
            file.write(lines())
        if absent(root):
            print("the system is not bare:", absent(root))
            return 1
        begun, used = time.monotonic(), os.times()
        status, out = run(*ALONE, "bash", "-c", INSIDE, "bash", root)
        seconds = time.monotonic() - begun
        after = os.times()
        worked = (after.children_user + after.children_system - used.children_user -
                  used.children_system)
        print(out, f"{seconds:.1f} s, of which the processors worked {worked:.1f} s", sep="")
        if status or not out.splitlines()[-1].endswith("world") or "no RDMA here" not in out:
            return 1
        return 1 if min(seconds / SLOW, worked) > SECONDS else 0


if __name__ == "__main__":
    sys.exit(main())
