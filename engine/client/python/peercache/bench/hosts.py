# SPDX-License-Identifier: Apache-2.0
"""serve and drive: a measurement over two hosts. Main thread.

serve stores pages in the engine of its host, drive reads them through the engine of its own. Both
know the same keys, because the seed is the same.
"""

import argparse
import json
import time
from contextlib import closing
from typing import Any

from peercache import config
from peercache.bench import sweep
from peercache.bench.client import Client, Spec
from peercache.bench.clients import Stop
from peercache.bench.engines import Engines, Started, report_of

EVERYWHERE = ("0.0.0.0", "[::]", "*")  # 0.8.4's serve was given the address that it listened on


def extra_of(options: argparse.Namespace, pool_bytes: int) -> dict[str, Any]:
    """The extra config of this host's engine. Raises ValueError for a wrong --discovery-addr."""
    host, _, port = options.discovery_addr.partition(",")[0].rpartition(":")
    given = sweep.extra_of(options, options.global_segment_size or pool_bytes, soft_link="tcp")
    given.update(local_hostname=options.local_host, node_id=options.node_id)
    if host not in EVERYWHERE:
        return {**given, "discovery_addr": options.discovery_addr}
    if options.command == "drive":
        raise ValueError(f"--discovery-addr {options.discovery_addr}: give the address of serve's "
                         "host, which serve prints")
    config.number(1, 65535)(port)
    address = {} if options.local_host else {"cluster.address": "auto"}
    given["engine_settings"] = {"cluster.port": port, **address, **given["engine_settings"]}
    return given


def engine_of(options: argparse.Namespace, pool_bytes: int) -> Engines:
    """The engine that --sockets names, else one that is started."""
    if options.sockets:
        return Engines(options.sockets.split(","))
    extra = extra_of(options, pool_bytes)
    print(f"starting an engine, {extra['global_segment_size'] >> 20} MiB", flush=True)
    return Started([extra])


def address_of(socket: str) -> str:
    """Address and port of the engine at this socket, as other hosts name it."""
    for member in report_of(socket)["members"]:
        if member["self"]:
            return f"{member['address']}:{member['port']}"
    return "?"


def spec_of(options: argparse.Namespace, sizes: sweep.Sizes, socket: str, slots: int) -> Spec:
    """The client of this process."""
    return Spec(socket, sizes.page, sizes.segments, slots, sizes.working_set, options.seed,
                index=sweep.PRELOADER)


def serve(options: argparse.Namespace) -> int:
    """Stores the pages and waits for Ctrl-C. Returns the exit status."""
    stop = Stop()
    sizes = sweep.Sizes(options, [sweep.Group("get", 1, [1])], sweep.rails_of(options))
    with closing(engine_of(options, sizes.far)) as engines:
        sweep.warn_of_ports(engines)
        sweep.preload(spec_of(options, sizes, engines.far, sizes.preload))
        print(f"serving; on another host: peercache-bench drive --discovery-addr "
              f"{address_of(engines.near)} --layout {options.layout} --page-size "
              f"{options.page_size} --working-set {options.working_set} --seed {options.seed} "
              f"--protocol {options.protocol}\nCtrl-C ends it", flush=True)
        stop.measuring = True
        while not stop.requested:
            time.sleep(0.1)
        return 0


def wait_for_pages(options: argparse.Namespace, sizes: sweep.Sizes, socket: str) -> None:
    """Waits until this host finds serve's pages. Raises RuntimeError after --connect-timeout."""
    client, last = Client(spec_of(options, sizes, socket, 1)), sizes.working_set - 1
    probes = [client.keys(i, 1)[0] for i in sorted({0, last // 2, last})]
    end = time.monotonic() + options.connect_timeout
    with closing(client.store):
        while client.store.batch_exists(probes) < len(probes):
            if time.monotonic() > end:
                members = json.loads(client.store._session.report())  # pylint: disable=W0212
                raise RuntimeError(
                    f"after {options.connect_timeout:g} s this host does not find the pages of "
                    f"serve; its engine sees {len(members['members'])} members: does serve run at "
                    f"{options.discovery_addr}, with the same --layout, --page-size and --seed and "
                    "at least this --working-set?")
            time.sleep(0.05)


def drive(options: argparse.Namespace) -> int:
    """Measures reads of serve's pages. Returns the exit status."""
    stop, groups = Stop(), sweep.groups_of(options)
    sizes = sweep.Sizes(options, groups, sweep.rails_of(options))
    with closing(engine_of(options, sizes.near)) as engines:
        sweep.warn_of_ports(engines)
        wait_for_pages(options, sizes, engines.near)
        return sweep.Run(options, stop, engines, sizes).measure(groups)
