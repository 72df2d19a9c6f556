# SPDX-License-Identifier: Apache-2.0
"""peercache-meta and peercache-storage-server of PeerCache 0.8, with the flags of 0.8.4.

peercache-meta becomes an engine without rails, which tells the others of each other, and
peercache-storage-server one that keeps pages for others (engine.role). Main thread.
"""

import argparse
import os
import shlex
import sys
from typing import Any, Optional, Sequence

from peercache import config, launch


def line_of(settings: dict[str, str]) -> str:
    """The engine's command line."""
    return shlex.join(["peercache-engine", *(word for name, value in settings.items()
                                             for word in ("--set", f"{name}={value}"))])


def become(program: str, engine: str, settings: dict[str, str]) -> None:
    """Replaces this process by the engine."""
    line = line_of(settings)
    print(f"{program} runs {line}", file=sys.stderr, flush=True)
    os.execv(engine, shlex.split(line))


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
    become("peercache-meta", engine, settings)
    return 1


def storage_server(arguments: Optional[Sequence[str]] = None) -> int:
    """The program peercache-storage-server. Returns only if there is no engine."""
    parser = parser_of("peercache-storage-server",
                       "Keeps pages for others: an engine whose engine.role is storage.")
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
    extra.update(disk_enabled=not options.no_disk, role="storage")
    try:
        meaning = config.read(extra)
        engine = launch.find_engine(meaning)
    except (ValueError, FileNotFoundError) as error:
        parser.error(str(error))
    disk = launch.disk_settings(meaning)
    settings = {name: value for name, value in meaning.settings.items()
                if not name.startswith("disk.") or name in disk}
    for line in meaning.idle:
        print(f"does not act as given: {line}", file=sys.stderr)
    if options.verbose:
        settings["log.level"] = "debug"
    become("peercache-storage-server", engine, settings)
    return 1
