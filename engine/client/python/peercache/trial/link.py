# SPDX-License-Identifier: Apache-2.0
"""A port that is taken down and up while engines use it: `--disrupt`. Main thread."""

import subprocess
from typing import Iterator

from peercache.trial import host, measure
from peercache.trial.engines import Engines
from peercache.trial.frame import GRACE_SECONDS, Answer, Failed, Trial, Unknown

NET = "/sys/class/net"
LIMIT = 60.0  # seconds until an engine has seen it
# It brings the port up when its input is closed or a signal comes, so however the trial ends.
DOWN = """trap 'test -z "$taken" || ip link set dev "$1" up' EXIT
trap exit HUP INT TERM
taken=1
ip link set dev "$1" down || taken=
test -z "$taken" || { echo down; read -r _; }"""


def upwards(net: str) -> Iterator[str]:
    """The network device, and the bridges, bonds and VLANs on it."""
    yield net
    for entry in host.listed(NET, net):
        if entry.startswith("upper_"):
            yield from upwards(entry[len("upper_"):])


def default_route(net: str) -> bool:
    """Does the network device have a default route, or one on it?"""
    nets = set(upwards(net))
    four = [line.split() for line in (host.read("/proc/net/route") or "").splitlines()]
    six = [line.split() for line in (host.read("/proc/net/ipv6_route") or "").splitlines()]
    return any(words[0] in nets and words[1] == "00000000" for words in four) or any(
        words[:2] == ["0" * 32, "00"] and words[-1] in nets for words in six)


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
    if not int(host.read(NET, net, "flags") or "1", 16) & 1:  # IFF_UP
        raise Unknown(f"{net} of {name} is down already", "name other ports with --devices")
    return name, net


def wait(engines: Engines, name: str, wanted: str, key: str = "") -> float:
    """Waits for a state of the port, and for a page. Returns the seconds. Raises Failed."""
    def state() -> str:
        return next((rail["state"] for rail in engines.status(0)["rails"]
                     if rail["device"] == name), "gone")
    return engines.until(
        lambda: state() == wanted and (not key or engines.has(0, key)), LIMIT, lambda:
        f"{LIMIT:.0f} s after it went {wanted}, {name} is {state()}, or its page still a miss")


def down_and_up(trial: Trial, engines: Engines) -> Answer:
    """A port of the reader: pages of the other engine are read before, and when it is back."""
    engines.need()
    name, net = to_take(trial, engines)
    key = measure.store(trial, engines)
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
    text = (f"{net} of {name} down: seen after {seen:.1f} s, a page was a "
            f"{'hit' if hit else 'miss'} with {ports - 1} ports left; up: read again after "
            f"{back:.1f} s")
    if ports > 1 and not hit:
        raise Failed(text, "send us the report: a port that is down must cost no page")
    return Answer("yes", text, data={"seen_s": seen, "back_s": back, "hit": hit})
