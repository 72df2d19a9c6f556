# SPDX-License-Identifier: Apache-2.0
"""peercache-meta and peercache-storage-server of PeerCache 0.8, with the flags of 0.8.4.

peercache-meta becomes an engine without rails, which tells the others of each other.
peercache-storage-server is an engine on a host without SGLang: it prints the engine's command line
that means the same, and ends with status 2. Main thread.
"""

import argparse
import os
import shlex
import sys
from typing import Any, Optional, Sequence

from peercache import config, launch

STORAGE = """\
peercache-storage-server is an engine on a host without SGLang: every engine keeps pages and serves
them to all hosts. The line for these flags:"""
SERVICE = """\
As a service: these settings in /etc/peercache.conf, and systemctl enable --now peercache-engine."""
DISK = """\
Make the directory of disk.paths first; for the service it is below /var/lib/peercache, or in
ReadWritePaths= of a drop-in."""


def line_of(settings: dict[str, str]) -> str:
    """The engine's command line."""
    return shlex.join(["peercache-engine", *(word for name, value in settings.items()
                                             for word in ("--set", f"{name}={value}"))])


def say(text: str, meaning: config.Config) -> int:
    """Prints what replaces a program, and the flags that do not act as given. Returns its exit
    status."""
    for line in meaning.idle:
        print(f"does not act as given: {line}", file=sys.stderr)
    print(f"{text}\n\n    {line_of(meaning.settings)}\n\n{SERVICE}", file=sys.stderr)
    if meaning.settings.get("disk.paths"):
        print(DISK, file=sys.stderr)
    return 2


def parser_of(name: str, does: str) -> argparse.ArgumentParser:
    """A parser with the flag that both programs have."""
    parser = argparse.ArgumentParser(prog=name, description=does)
    parser.add_argument("--verbose", action="store_true", help="log.level=debug")
    return parser


def meta_settings(bind: str, member_ttl: str) -> dict[str, str]:
    """Settings of the engine that peercache-meta becomes. Raises ValueError.

    Each engine is a seed, so one beside it on this host has the port, socket and HTTP port already:
    it has a socket of its own, and no HTTP port.
    """
    address, port = config.seeds(bind)[0].rsplit(":", 1)
    address = address.strip("[]")
    settings = {"rail.devices": "none", "cluster.address": address, "cluster.port": port,
                "engine.socket": os.path.join(os.path.dirname(config.default_socket()),
                                              f"seed-{port}.sock"), "metrics.port": "0"}
    if address in ("0.0.0.0", "::"):
        settings.update({"cluster.address": "auto", "cluster.bind": address})
    if member_ttl:
        settings["cluster.dead_after_ms"] = str(config.milliseconds(50, 600000)(member_ttl))
    return settings


def meta(arguments: Optional[Sequence[str]] = None) -> int:
    """The program peercache-meta. Returns only if there is no engine."""
    parser = parser_of("peercache-meta", "Tells engines of each other: an engine without pages.")
    parser.add_argument("--bind", default="0.0.0.0:31998", help="cluster.bind and cluster.port")
    parser.add_argument("--member-ttl", default="", help="seconds: cluster.dead_after_ms, the same "
                        "on all engines")
    options = parser.parse_args(arguments)
    try:
        settings = meta_settings(options.bind, options.member_ttl)
        engine = launch.find_engine(config.Config(engine_socket=settings["engine.socket"]))
    except (ValueError, FileNotFoundError) as error:
        parser.error(str(error))
    if options.verbose:
        settings["log.level"] = "debug"
    line = line_of(settings)
    print(f"peercache-meta runs {line}", file=sys.stderr, flush=True)
    os.execv(engine, shlex.split(line))


def storage_server(arguments: Optional[Sequence[str]] = None) -> int:
    """The program peercache-storage-server."""
    parser = parser_of("peercache-storage-server",
                       "Prints the line of peercache-engine that replaces this program.")
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
    if options.no_disk:
        for name in ("disk_path", "disk_size"):
            if extra[name] == parser.get_default(name):
                del extra[name]  # it was not given
    extra["disk_enabled"] = not options.no_disk
    try:
        meaning = config.read(extra)
    except ValueError as error:
        parser.error(str(error))
    meaning.settings.pop("engine.socket")  # the service has the default one
    if options.verbose:
        meaning.settings["log.level"] = "debug"
    return say(STORAGE, meaning)
