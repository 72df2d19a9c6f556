# SPDX-License-Identifier: Apache-2.0
"""What became of the names of PeerCache 0.8.4: keys, programs, paths, methods, with their defaults.

config.py names keys without effect with the reasons below. config/MIGRATION.md is made of these
lists, of the parser of peercache-bench and of metrics_compat.def; tests/python/test_migration.py
compares it with them, and them with the wheel of 0.8.4.

    python3 -m peercache.migration FILE     reads an extra config in JSON, - is the standard input;
                                            prints the settings file of an engine that does the same

The lines behind # name the keys that do not act as given, and what comes from the machine that
runs this. The status is 2 for a wrong value.
"""

import json
import os
import sys
import textwrap
from typing import Iterator, Sequence

PROGRAMS = {
    "peercache-meta": "`peercache-meta`, an engine that is a seed only; not needed where "
                      "`discovery_addr` names a host with an engine",
    "peercache-storage-server": "`peercache-engine` on a host without SGLang. It prints the line "
                                "that means the same, and ends with 2",
    "peercache-bench": "`peercache-bench`, with its commands; the flags are below",
    "python -m peercache.examples.launch_meta": "as `peercache-meta`",
    "python -m peercache.examples.launch_storage": "as `peercache-storage-server`",
    **{f"python -m peercache.bench.{name}": "`peercache-bench`" for name in (
        "cli", "compare", "hicache", "microbench", "mooncake_bench")},
}
LINE_BYTES = 189  # of a line of a settings file without its end, at most; config/settings_file.c
# Flags of peercache-storage-server that are no key with another notation.
STORAGE_FLAGS = {"--no-disk": 'as `"disk_enabled": false`', "--verbose": "`log.level = debug`"}

# Keys that have a meaning: default of 0.8.4, what the key does.
KEYS = {
    "discovery_addr": (None, "`cluster.seeds`: of one to three hosts with an engine, one that "
                       "lives is enough. Its port is `cluster.port`, and `cluster.address` is "
                       "`auto`. Not required: an engine without it is alone"),
    "mode": ("p2p", "`p2p` is as there; others are named and change nothing"),
    "write_policy": ("local", "`local` is as there; others are named and change nothing"),
    "role": ("auto", "`auto` is as there; others are named and change nothing"),
    "protocol": ("rdma", "`rail.devices`; `tcp`, and hosts without RDMA: the software NIC"),
    "device_name": ("", "`rail.devices`; default: the host's first RDMA device"),
    "device_names": ("", "`rail.devices`, a rail each; overrides `device_name`"),
    "ib_port": (1, "1; others are refused: each port of a card is a device of its own"),
    "gid_index": (3, "`rail.gid_index`; default, and -1: the engine chooses"),
    "max_channels_per_peer": (16, "`rail.qps_per_peer`; above 8, 8 are used and that is named. "
                              "Default: as many as fill the port"),
    "global_segment_size": ("4gb", "`engine.pool_bytes` of all NICs of the host, **per host and "
                            "not per rank**. Below 4mb for each NIC it is raised and named"),
    "directory_replicas": (2, "`cluster.replicas`, equal on all hosts; above 4, 4 are used and "
                           "that is named"),
    "local_hostname": ("", "`cluster.address`, at most 63 bytes"),
    "disk_enabled": (True, "false: no disk. Default: true in a config with `discovery_addr` and "
                     "without keys of this engine, else true with a `disk_path`"),
    "disk_path": ("/data/peercache/", "`disk.paths`, which the store makes if it is missing; all "
                  "ranks share it. The default is used with a line in the log, if the disk has "
                  "room"),
    "disk_size": ("100gb", "`disk.bytes`, allocated at the start; 6mb to 16tb"),
    "metrics_enabled": (True, "false: `metrics.port = 0`"),
    "metrics_bind_host": ("0.0.0.0", "`metrics.address`; default: `cluster.address`"),
    "metrics_port": (31997, "`metrics.port`, one for each host; 0 is named and means the default. "
                     "If it was given and is in use, the engine does not start"),
    "metrics_dashboard": (True, "`metrics.dashboard`"),
    "node_id": ("", "`engine.name`; default: address and port"),
    "prefix": ("", "a part of every key"),
    "interface_v1": (False, "read by SGLang, where any text is true: 1 for the calls "
                     "without a copy"),
    "heartbeat_interval": (2.0, "`cluster.heartbeat_ms`, 0.01 to 60 seconds; default 0.5"),
    "member_ttl": (6.0, "`cluster.dead_after_ms`, at least two heartbeats; default 3 seconds, at "
                   "least three heartbeats"),
}

LISTENS = 'the engine listens at "local_hostname", or at cluster.bind in "engine_settings"'
SLOTS = "pages of all sizes share the pool: remove it"
# Keys without effect: default of 0.8.4, the reason and what to do.
WITHOUT_EFFECT = {
    "directory_read_cache_ttl": (0.0, "locations are checked at each read: remove it"),
    "vnodes": (160, "an engine's part of the directory follows from its capacity: remove it"),
    "max_masters": (3, "there are no masters, each engine answers for all others: remove it"),
    "rdma_bind_host": ("0.0.0.0", 'a NIC needs no address: name it in "device_names"'),
    "rdma_port": (0, 'a NIC needs no port: name it in "device_names"'),
    "control_bind_host": ("0.0.0.0", LISTENS),
    "meta_bind_host": ("0.0.0.0", LISTENS),
    "control_port": (0, 'the port is that of "discovery_addr"'),
    "slot_max_page_bytes": (262144, SLOTS),
    "slot_ways": (4, SLOTS),
    "slot_num_buckets": (0, SLOTS),
}
# Values without effect of keys that have a meaning.
VALUES = {
    "mode": {"hybrid": "engines are peers always: remove it",
             "centralized": "engines are peers always, also on hosts without SGLang: remove it",
             "slotmap": "engines are peers always, and the NIC reads their directory: remove it"},
    "write_policy": {word: "a page stays on the host that stores it, and all others read it there: "
                     "remove it" for word in ("storage", "both")},
    "role": {"inference": "each engine holds and serves pages: remove it",
             "storage": "each engine holds and serves pages; a host without SGLang runs "
             "peercache-engine: remove it"},
}

PATHS = {
    "/": "the dashboard", "/dashboard": "the dashboard", "/index.html": "the dashboard",
    "/metrics": "metrics; also with the names of 0.8.4 in a config of 0.8.4, or with "
                "`metrics.compat = 0.8`",
    "/healthz": "200 while the control plane runs; `/readyz` is new: does it serve?",
}

# Public methods of PeerCacheStore.
METHODS = {
    **{name: "as there" for name in (
        "register_mem_pool_host", "register_mem_host_pool_v2", "batch_get_v1", "batch_set_v1",
        "batch_exists", "batch_get_v2", "batch_set_v2", "batch_exists_v2", "exists")},
    **{name: "as there: tensors, arrays, bytes, and addresses with `target_sizes`"
       for name in ("set", "batch_set")},
    **{name: "as there, into writable memory; `bytes` are refused, because they cannot be written"
       for name in ("get", "batch_get")},
    "clear": "removes the pages of this model and tag from this host, whichever rank stored them",
    "get_stats": "each batch since the last call, in pages and GB/s (0.8.4: totals since the "
                 "start, bytes/s)",
    "check_server": "true while the engine serves; false after `close()`",
    "warmup": "does nothing, as there: the constructor has attached",
    "close": "calls after it are misses, counted as `closed`",
}


def setting_of(key: str, value: str) -> Iterator[str]:
    """The lines of a setting: a list that is too long for one continues on an indented line."""
    line, *others = value.split(",")
    line = f"{key} = {line}"
    for one in others:
        if len(os.fsencode(f"{line},{one},")) > LINE_BYTES:
            yield line + ","
            line = "    " + one
        else:
            line += "," + one
    yield line


def conf_of(settings: dict[str, str]) -> str:
    """A settings file of the engine."""
    sections: dict[str, list[str]] = {}
    for name, value in settings.items():
        section, _, key = name.partition(".")
        sections.setdefault(section, []).extend(setting_of(key, value))
    return "\n\n".join("\n".join([f"[{name}]", *lines]) for name, lines in sections.items())


def main(words: Sequence[str]) -> int:
    """Prints what an extra config means. Returns the exit status."""
    from peercache import config  # it imports this module
    if len(words) != 1 or words[0].startswith("--"):
        print(__doc__, file=sys.stderr)
        return 2
    try:
        with sys.stdin if words[0] == "-" else open(words[0], encoding="utf-8") as file:
            extra = json.load(file)
        if not isinstance(extra, dict):
            raise ValueError("an extra config is an object of JSON: {...}")
        meaning = config.read(extra)
    except (OSError, ValueError) as error:
        print(f"peercache.migration: {error}", file=sys.stderr)
        return 2
    for line in [f"unknown: {key}" for key in meaning.unknown] + meaning.idle:
        print(textwrap.fill(line, 98, initial_indent="# ", subsequent_indent="#   "))
    if meaning.origins["rail.devices"] == "protocol" and \
            not meaning.given & {"device_name", "device_names"} and \
            str(extra.get("protocol")).strip().lower() != "tcp":
        print('# rail.devices is that of this machine: name the NICs of the host in "device_names"')
    if "engine_socket" not in extra:
        del meaning.settings["engine.socket"]  # the engine's own default is that of a service
    if extra.get("allocator") == "shm":  # SGLang's memory; an engine that a store starts takes it
        meaning.settings.setdefault("engine.unsealed_memory", "yes")
    print(conf_of(meaning.settings))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
