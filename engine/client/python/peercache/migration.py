# SPDX-License-Identifier: Apache-2.0
"""Keys and values of PeerCache 0.8.4 that have no effect here, and the settings of a whole config.

config.py names these keys with the reasons below. config/MIGRATION.md has every name of 0.8.4.

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

LINE_BYTES = 189  # of a line of a settings file without its end, at most; config/settings_file.c

LISTENS = 'the engine listens at "local_hostname", or at cluster.bind in "engine_settings"'
SLOTS = "pages of all sizes share the pool: remove it"
# Keys without effect: the reason and what to do.
WITHOUT_EFFECT = {
    "directory_read_cache_ttl": "locations are checked at each read: remove it",
    "vnodes": "an engine's part of the directory follows from its capacity: remove it",
    "max_masters": "there are no masters, each engine answers for all others: remove it",
    "rdma_bind_host": 'a NIC needs no address: name it in "device_names"',
    "rdma_port": 'a NIC needs no port: name it in "device_names"',
    "control_bind_host": LISTENS,
    "meta_bind_host": LISTENS,
    "control_port": 'the port is that of "discovery_addr"',
    "slot_max_page_bytes": SLOTS,
    "slot_ways": SLOTS,
    "slot_num_buckets": SLOTS,
}
# Values without effect of keys that have a meaning.
VALUES = {
    "mode": {"slotmap": "a page is found without asking another process always, because the NIC "
             "reads the directory: remove it"},
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
