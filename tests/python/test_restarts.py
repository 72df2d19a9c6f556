# SPDX-License-Identifier: Apache-2.0
"""The pauses between restarts of the unit, with the systemd of Debian 13 as the first process of a
namespace: Debian 12's knows no growing ones. A shell script plays the engine. One that is never
ready is started again for ever, with pauses that grow to the unit's limit; one that was ready comes
back at once, however often it has ended; one that refuses its settings stays down. Prints what it
measured.

    test_restarts.py [ROOT]      ROOT: a folder of debootstrap with systemd and iproute2, changed

Exit status 77: not root, or the tools, the archive, namespaces or control groups are missing.
"""

import os
import re
import shutil
import sys

from bare import TREE, Groups, expect, harness, main, run, run_outside, wait_for
from test_deb import GROUPS, UNIT, Host

RELEASE = "trixie"
# In the state directory. as: what to do; each start adds the seconds since the boot to starts.
ENGINE = """#!/bin/sh
cd /var/lib/peercache
cut -d' ' -f1 /proc/uptime >>starts
read as <as
case $as in
ready) exec systemd-notify --ready --pid=self --exec \\; sleep infinity ;;
*) exit "$as" ;;
esac
"""


def unit_text():
    path = os.path.join(harness.BUILD, "config", "systemd", UNIT)
    with open(path, encoding="utf-8") as file:
        return file.read()


def seconds(text, name):
    """The value of a key of the unit in seconds."""
    number, what = re.search(rf"(?m)^{name}=(\d+)(ms|s)$", text).groups()
    return int(number) / (1000 if what == "ms" else 1)


def pauses(text):
    """The unit's pauses up to the limit, as systemd.service(5) describes them."""
    first, last = seconds(text, "RestartSec"), seconds(text, "RestartMaxDelaySec")
    steps = int(re.search(r"(?m)^RestartSteps=(\d+)$", text).group(1))
    return [first * (last / first) ** (i / steps) for i in range(steps + 1)]


class Unit:
    """The unit on a host."""

    def __init__(self, host):
        self.host = host
        self.folder = f"/proc/{host.first}/root/var/lib/peercache"
        os.makedirs(self.folder)

    def engine_is(self, what):
        with open(self.folder + "/as", "w", encoding="ascii") as file:
            file.write(what + "\n")

    def starts(self):
        if not os.path.exists(self.folder + "/starts"):
            return []
        with open(self.folder + "/starts", encoding="ascii") as file:
            return [float(line) for line in file]

    def waits_for(self, number):
        wait_for(lambda: len(self.starts()) >= number or self.host.state() == "failed", 600,
                 f"start {number} of the engine")
        expect(len(self.starts()) >= number, f"it is given up after start {len(self.starts())}")
        return self.starts()

    def begin(self, what):
        """Starts it anew, without the history of former starts."""
        self.host.systemctl("stop", UNIT)
        if os.path.exists(self.folder + "/starts"):
            os.remove(self.folder + "/starts")
        self.engine_is(what)
        self.host.systemctl("start", "--no-block", UNIT)


def pauses_grow(unit):
    expected = pauses(unit_text())
    unit.begin("1")
    at = unit.waits_for(len(expected) + 2)
    found = [after - before for before, after in zip(at, at[1:])]
    print("pauses:", " ".join(f"{pause:.1f}" for pause in found), "s; expected:",
          " ".join(f"{pause:.1f}" for pause in expected), "s, then the last one again and again")
    for pause, least in zip(found, [*expected, expected[-1]]):
        expect(pause > 0.98 * least, f"a pause of {pause:.2f} s instead of {least:.2f} s")


def ready_engines_come_back_at_once(unit):
    """Each time, also when it has ended more often than the pause has steps."""
    first = unit.host.state("RestartUSec")
    unit.begin("ready")
    for number in range(len(pauses(unit_text())) + 2):
        unit.waits_for(number + 1)
        wait_for(lambda: unit.host.state() == "active", 60, "the engine is ready")
        pause = unit.host.state("RestartUSecNext")
        expect(pause == first, f"after {number} ends the next pause is {pause}")
        unit.host.run("systemctl", "kill", "-s", "KILL", UNIT)
    print(f"the pause after {number} ends of a ready engine: {pause}")


def wrong_settings_end_it(unit):
    unit.begin("2")
    wait_for(lambda: unit.host.state() == "failed" or len(unit.starts()) > 1, 60,
             "the unit fails")
    expect(len(unit.starts()) == 1, f"{len(unit.starts())} starts")
    print("wrong settings: one start, then the unit is failed")


def inside(folder, bare):
    """In namespaces of its own: all mounts and processes end with this process."""
    run("mount", "--make-rprivate", "/")
    host = Host(folder, 1, bare, Groups(folder, GROUPS))
    print(host.run("systemctl", "--version").splitlines()[0])
    host.run("systemd-sysusers")
    unit = Unit(host)
    try:
        for step in (wrong_settings_end_it, ready_engines_come_back_at_once, pauses_grow):
            step(unit)
    except BaseException:
        print(host.log()[-3000:])
        raise


def prepare(folder, bare):
    """Makes a bare Debian with the unit and the script. Returns Python and its path."""
    text = unit_text()
    if not bare:
        bare = os.path.join(folder, "bare")
        run_outside("debootstrap", "--variant=minbase",
                    "--include=systemd,systemd-sysv,iproute2", RELEASE, bare)
    program = bare + re.search(r"(?m)^ExecStart=(\S+)", text).group(1)
    os.makedirs(os.path.dirname(program), exist_ok=True)
    with open(program, "w", encoding="ascii") as file:
        file.write(ENGINE)
    os.chmod(program, 0o755)
    with open(f"{bare}/etc/systemd/system/{UNIT}", "w", encoding="ascii") as file:
        file.write(text)
    shutil.copy(os.path.join(TREE, "config/systemd/peercache.conf"), bare + "/usr/lib/sysusers.d")
    return sys.executable, bare


if __name__ == "__main__":
    sys.exit(main("restarts", GROUPS, prepare, inside))
