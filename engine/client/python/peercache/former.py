# SPDX-License-Identifier: Apache-2.0
"""peercache-meta and peercache-storage-server of PeerCache 0.8: each says what replaces it.

Both are an engine on a host without SGLang. The programs read the flags of 0.8.4, print the
engine's command line that means the same, and end with status 2. Main thread.
"""

import argparse
import shlex
import sys
from typing import Any, Optional, Sequence

from peercache import config

META = """\
peercache-meta is not needed: each engine answers for all others, so "discovery_addr" names one to
three hosts that run one. A host without SGLang runs an engine. Engines with other ports refuse
each other: those of RDMA hosts need an RDMA device. In a cluster with "protocol": "tcp", a host
with a NIC needs rail.devices=soft and soft.link=tcp:"""
STORAGE = """\
peercache-storage-server is an engine on a host without SGLang: every engine keeps pages and serves
them to all hosts. The line for these flags:"""
SERVICE = """\
As a service: these settings in /etc/peercache.conf, and systemctl enable --now peercache-engine."""


def line_of(settings: dict[str, str]) -> str:
    """The engine's command line."""
    return shlex.join(["peercache-engine", *(word for name, value in settings.items()
                                             for word in ("--set", f"{name}={value}"))])


def say(text: str, settings: dict[str, str]) -> int:
    """Prints what replaces a program. Returns its exit status."""
    print(f"{text}\n\n    {line_of(settings)}\n\n{SERVICE}", file=sys.stderr)
    return 2


def parser_of(name: str) -> argparse.ArgumentParser:
    """A parser with the flag that both programs have."""
    parser = argparse.ArgumentParser(
        prog=name, description="Prints the line of peercache-engine that replaces this program.")
    parser.add_argument("--verbose", action="store_true", help="log.level=debug")
    return parser


def put_level(options: argparse.Namespace, settings: dict[str, str]) -> None:
    """Adds what --verbose means."""
    if options.verbose:
        settings["log.level"] = "debug"


def meta(arguments: Optional[Sequence[str]] = None) -> int:
    """The program peercache-meta."""
    parser = parser_of("peercache-meta")
    parser.add_argument("--bind", default="0.0.0.0:31998", help="cluster.bind and cluster.port")
    parser.add_argument("--member-ttl", default="", help="cluster.dead_after_ms, the same on all "
                        "engines")
    options = parser.parse_args(arguments)
    try:
        bind = config.seeds(options.bind)[0]
        ttl = config.milliseconds(50, 600000)(options.member_ttl) if options.member_ttl else 0
    except ValueError as error:
        parser.error(str(error))
    host, port = bind.rsplit(":", 1)
    devices = config.rails({})
    settings = {"cluster.address": "auto", "cluster.bind": host.strip("[]"), "cluster.port": port,
                "rail.devices": ",".join(devices), "engine.pool_bytes": "64MiB"}
    if devices == ["soft"]:
        settings["soft.link"] = "tcp"  # as config.read() gives it to an engine with seeds
    if ttl:
        settings["cluster.dead_after_ms"] = str(ttl)
    put_level(options, settings)
    return say(META, settings)


def storage_server(arguments: Optional[Sequence[str]] = None) -> int:
    """The program peercache-storage-server."""
    parser = parser_of("peercache-storage-server")
    parser.add_argument("--discovery-addr", required=True, help="cluster.seeds")
    parser.add_argument("--global-segment-size", default="4gb", help="engine.pool_bytes")
    parser.add_argument("--disk-path", default="/data/peercache/", help="disk.paths")
    parser.add_argument("--disk-size", default="100gb", help="disk.bytes")
    parser.add_argument("--no-disk", action="store_true", help="no disk.paths")
    parser.add_argument("--protocol", default="rdma", choices=("rdma", "tcp"),
                        help="tcp: rail.devices=soft")
    parser.add_argument("--device-name", default="", help="rail.devices")
    parser.add_argument("--device-names", default="", help="rail.devices")
    parser.add_argument("--local-hostname", default="", help="cluster.address")
    parser.add_argument("--metrics-port", default="31997", help="metrics.port")
    parser.add_argument("--node-id", default="", help="engine.name")
    options = parser.parse_args(arguments)
    extra: dict[str, Any] = {name: value for name, value in vars(options).items()
                             if name not in ("no_disk", "verbose")}
    extra["disk_enabled"] = not options.no_disk
    try:
        settings = config.read(extra).settings
    except ValueError as error:
        parser.error(str(error))
    settings.pop("engine.socket")  # the service has the default one
    put_level(options, settings)
    return say(STORAGE, settings)
