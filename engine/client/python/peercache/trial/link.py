# SPDX-License-Identifier: Apache-2.0
"""A port that is taken down and up while engines use it: `--disrupt`. Main thread."""

import subprocess
import time

from peercache.trial import host
from peercache.trial.engines import Engines
from peercache.trial.frame import GRACE_SECONDS, Answer, Failed, Trial, Unknown

LIMIT = 60.0  # seconds until an engine has seen it
# It brings the port up when its input is closed or a signal comes, so however the trial ends.
DOWN = """trap 'ip link set dev "$1" up' EXIT
trap exit HUP INT TERM
ip link set dev "$1" down && echo down && read -r _"""


def default_route(net: str) -> bool:
    """Does the network device have a default route?"""
    four = [line.split() for line in (host.read("/proc/net/route") or "").splitlines()]
    six = [line.split() for line in (host.read("/proc/net/ipv6_route") or "").splitlines()]
    return any(words[:2] == [net, "00000000"] for words in four) or any(
        words[:2] == ["0" * 32, "00"] and words[-1] == net for words in six)


def to_take(trial: Trial, engines: Engines) -> tuple[str, str]:
    """The port to take down, and its network device. Raises Unknown."""
    name = engines.devices[0].split(",")[-1]
    net = None if name == "soft" else host.port_facts(name.split(":")[0])["netdev"]
    if not trial.options.disrupt:
        raise Unknown("not requested", f"run the trial with --disrupt: it takes {name} down and up")
    if not net:
        raise Unknown(f"no hardware for it: {name} has no network device", "pull its cable while "
                      "peercache-bench get --timeline runs")
    if default_route(net):
        raise Unknown(f"{net} of {name} has the default route of this host: it stays up",
                      "name other ports with --devices")
    return name, net


def state(engines: Engines, name: str) -> str:
    return next(str(rail["state"]) for rail in engines.status(0)["rails"]
                if rail["device"] == name)


def wait(engines: Engines, name: str, wanted: str, key: str = "") -> float:
    """Waits for a state of the port, and for a page. Returns the seconds. Raises Failed."""
    begun = time.monotonic()
    while state(engines, name) != wanted or key and not engines.has(0, key):
        if time.monotonic() > begun + LIMIT:
            raise Failed(f"{LIMIT:.0f} s after it went {wanted}, {name} is {state(engines, name)}"
                         + (" and its page is still a miss" if key else ""),
                         "read the logs of the engines in the report")
    return time.monotonic() - begun


def down_and_up(trial: Trial, engines: Engines) -> Answer:
    """A port of the reader: pages of the other engine are read before, and when it is back."""
    engines.need()
    name, net = to_take(trial, engines)
    key = f"trial-link-{time.time_ns()}"
    engines.put(1, key)
    if not engines.has(0, key):
        raise Failed("a page that was stored a moment before is a miss", "read the logs of the "
                     "engines in the report")
    child = trial.start(["sh", "-c", DOWN, "sh", net], "link.log", stdin=subprocess.PIPE,
                        stdout=subprocess.PIPE, text=True)
    assert child.stdin and child.stdout
    try:
        if child.stdout.readline() != "down\n":
            raise Unknown(f"{net} was not taken down: {trial.tail('link.log')}",
                          "run the trial as root")
        seen = wait(engines, name, "down")
        hit, ports = engines.has(0, key), len(engines.devices[0].split(","))
    finally:
        child.stdin.close()
        child.wait(GRACE_SECONDS)
        trial.end(child)
    back = wait(engines, name, "up", key)
    text = (f"{net} of {name} down: seen after {seen:.1f} s, a page over the {ports - 1} other "
            f"ports a {'hit' if hit else 'miss'}; up: read again after {back:.1f} s")
    if ports > 1 and not hit:
        raise Failed(text, "send us the report: a port that is down must cost no page")
    return Answer("yes", text, data={"seen_s": seen, "back_s": back, "hit": hit})
