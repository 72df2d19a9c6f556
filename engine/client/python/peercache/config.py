# SPDX-License-Identifier: Apache-2.0
"""Reads SGLang's extra config: the keys of PeerCache 0.8.4, and further keys of this project.

Invalid values are refused: one ValueError lists all of them, each with key, value and remedy. One
warning lists the unknown keys, one the keys that do not act as given. A value of None or "" means
the same as a missing key.

A config with "discovery_addr", which 0.8.4 requires, and without a key of this project was written
for 0.8.4: its engine has the disk that 0.8.4 has by default, and exports its metrics, too.
"""

import json
import logging
import os
import re
from dataclasses import dataclass, field
from typing import Any, Callable, Mapping, Optional

from peercache.migration import VALUES, WITHOUT_EFFECT

logger = logging.getLogger("peercache")

UNITS = {"": 1, "b": 1, "kb": 1 << 10, "mb": 1 << 20, "gb": 1 << 30, "tb": 1 << 40,
         "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "tib": 1 << 40,
         "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
# Ranges of the engine's settings (config/settings.def) that the keys below set.
POOL_BYTES = 4 << 30  # default of all rails together; of each rank in PeerCache 0.8.4
POOL_BYTES_MIN, POOL_BYTES_MAX = 4 << 20, 1 << 40  # bytes of one rail's pool
NAME_MAX, SOCKET_MAX = 63, 107  # bytes of a name and of a socket's path
PATHS_MAX = 1023  # bytes of the list of directories on disks
DISK_PATH, DISK_BYTES = "/data/peercache/", 100 << 30  # defaults of PeerCache 0.8.4
DISK_BYTES_MIN, DISK_BYTES_MAX = 6 << 20, 1 << 44  # bytes in one directory
DISK_SEGMENTS_MIN, SEGMENT_BYTES = 6, 256 << 20  # files of a directory, their default size
QPS_MAX, REPLICAS_MAX = 8, 4  # QPs per connection, replicas of a directory entry
HEARTBEAT_MS, DEAD_AFTER_MS = 500, 3000  # defaults of the engine
METRICS_PORT = 31997  # default of the engine
VERIFY_ONE_IN, VERIFY_ONE_IN_MAX = 1000, 1000000  # of libpeercache, PC_VERIFY_*
TTL_MAX_S = 31536000  # of the engine

# Keys of SGLang itself, which it leaves in the dict.
SGLANG = {"backend_name", "module_path", "class_name", "interface_v1", "allocator", "tp_lcm_size",
          "prefetch_threshold", "prefetch_timeout_base", "prefetch_timeout_per_ki_token",
          "hicache_storage_pass_prefix_keys", "extra_backend_tag"}
# Keys of this project, which no config of PeerCache 0.8 has.
OURS = {"engine_socket", "engine_start", "engine_keep", "engine_path", "engine_log",
        "engine_settings", "timeout_ms", "exists_timeout_ms", "verify", "verify_one_in"}

# Keys whose values are the fields of Config with the same names.
OWN_FIELDS = ("engine_socket", "engine_start", "engine_keep", "engine_path", "timeout_ms",
              "exists_timeout_ms", "verify", "verify_one_in", "interface_v1",
              "namespace_secret_file", "quota", "ttl_s")


# ---- readers of one value: return what it means, or raise ValueError with the remedy -------------


def scalar(value: Any, fix: str) -> str:
    """Text of a text, number or boolean. Raises ValueError(fix) for a list, a dict or None."""
    if isinstance(value, (list, tuple, dict, set)) or value is None:
        raise ValueError(fix)
    return str(value).strip()


def size(value: Any) -> int:
    """Number of bytes that 4294967296, "4gb" or "4GiB" means; above 0, in powers of 1024."""
    fix = "give a size above 0, like 4294967296, 4gb or 4GiB"
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-z]*)", scalar(value, fix).lower())
    if isinstance(value, bool) or not match or match[2] not in UNITS:
        raise ValueError(fix)
    nbytes = int(float(match[1]) * UNITS[match[2]]) if "." in match[1] \
        else int(match[1]) * UNITS[match[2]]
    if not nbytes:
        raise ValueError(fix)
    return nbytes


def flag(value: Any) -> bool:
    """Reads true, yes, on, 1 and their opposites."""
    word = scalar(value, "give true or false").lower()
    if word in ("1", "true", "yes", "on"):
        return True
    if word in ("0", "false", "no", "off"):
        return False
    raise ValueError("give true or false")


def flag_of_sglang(value: Any) -> bool:
    """Reads a flag that SGLang reads too, by bool(): a text that says no would mean yes there."""
    got = flag(value)
    if bool(value) != got:
        raise ValueError("give 0 or false without quotes: SGLang reads each text as true")
    return got


def number(low: int, high: Optional[int] = None) -> Callable[[Any], int]:
    """Makes a reader of whole numbers from low to high, both included; high None: no limit."""
    fix = f"give a whole number from {low} to {high}" if high is not None \
        else f"give a whole number, {low} or more"

    def parse(value: Any) -> int:
        text = scalar(value, fix)
        if isinstance(value, bool) or not re.fullmatch(r"-?\d{1,18}(\.0*)?", text):
            raise ValueError(fix)
        got = int(text.split(".")[0])
        if got < low or (high is not None and got > high):
            raise ValueError(fix)
        return got
    return parse


def milliseconds(low: int, high: int) -> Callable[[Any], int]:
    """Makes a reader of seconds that returns milliseconds from low to high, both included."""
    fix = f"give seconds from {low / 1000:g} to {high / 1000:g}"

    def parse(value: Any) -> int:
        text = scalar(value, fix)
        if isinstance(value, bool) or not re.fullmatch(r"\d{1,9}(\.\d*)?", text) or \
                not low <= int(float(text) * 1000) <= high:
            raise ValueError(fix)
        return int(float(text) * 1000)
    return parse


def text(longest: Optional[int] = None) -> Callable[[Any], str]:
    """Makes a reader of printable texts of at most `longest` bytes; None: no limit."""
    fix = "give a text" + (f" of at most {longest} bytes" if longest else "")

    def parse(value: Any) -> str:
        got = scalar(value, fix + ", not a list")
        if isinstance(value, bool) or not got.isprintable() or \
                (longest and len(os.fsencode(got)) > longest):
            raise ValueError(fix)
        return got
    return parse


def path(longest: Optional[int] = None, several: bool = False) -> Callable[[Any], str]:
    """Makes a reader of an absolute path, or of several with commas between them.

    `~/` stands for the home directory. A relative path is refused, because it would mean another
    file in each working directory.
    """
    fix = "give an absolute path, or one that begins with ~/, without quotes and variables"
    plain = text(longest)

    def parse(value: Any) -> str:
        found = []
        for one in plain(value).split(",") if several else [plain(value)]:
            one = os.path.expanduser(one.strip()) if re.match(r"~(/|$)", one.strip()) \
                else one.strip()
            if not one.startswith("/") or re.search(r"[$\"]|^'|'$", one):
                raise ValueError(fix)
            found.append(one)
        return plain(",".join(found))
    return parse


def verbatim(value: Any) -> str:
    """Reads a printable text and keeps its spaces: two texts that differ at all name two tenants.
    """
    text()(value)
    return str(value)


def choice(*words: str) -> Callable[[Any], str]:
    """Makes a reader that accepts these words in upper or lower case and returns lower case."""
    fix = f"give {', '.join(words[:-1])} or {words[-1]}"

    def parse(value: Any) -> str:
        got = scalar(value, fix).lower()
        if got not in words:
            raise ValueError(fix)
        return got
    return parse


def devices(value: Any) -> list[str]:
    """Reads names of NICs, separated by commas."""
    fix = 'give names of different NICs in one text, comma separated, like "mlx5_0,mlx5_1"'
    names = [name.strip() for name in scalar(value, fix).split(",")]
    if not all(re.fullmatch(r"[\w.:-]+", name) for name in names) or \
            len(set(names)) < len(names):
        raise ValueError(fix)
    return names


def seeds(value: Any) -> list[str]:
    """Reads addresses host:port, separated by commas; IPv6 hosts stand in brackets."""
    fix = 'give host:port in one text, comma separated, like "10.0.0.1:31998,10.0.0.2:31998"'
    found = [seed.strip() for seed in scalar(value, fix).split(",")]
    for seed in found:
        match = re.fullmatch(r"(\[[0-9a-fA-F:.]+\]|[^\s:\[\]]+):(\d{1,5})", seed)
        if not match or not 1 <= int(match[2]) <= 65535:
            raise ValueError(fix)
        if len(os.fsencode(match[1])) > NAME_MAX:
            raise ValueError(f"give an address, or a name of at most {NAME_MAX} bytes: {match[1]}")
    return found


def flatten(value: Mapping[Any, Any]) -> list[tuple[str, Any]]:
    """(name, value) of a dict's entries; a dict within it is a part of the name, as TOML reads it.
    """
    out = []
    for name, one in value.items():
        if isinstance(one, Mapping):
            out += [(f"{name}.{rest}", inner) for rest, inner in flatten(one)]
        else:
            out.append((str(name), one))
    return out


def settings(value: Any) -> dict[str, str]:
    """Reads a dict of engine settings: section.key -> text. Booleans become yes and no.

    A dict of sections, as a TOML table with dots in its keys gives it, means the same.
    """
    fix = 'give an object like {"engine.huge_pages": "no"}'
    if not isinstance(value, Mapping):
        raise ValueError(fix)
    out: dict[str, str] = {}
    for name, one in flatten(value):
        if not re.fullmatch(r"[a-z_]+\.[a-z_]+", name):
            raise ValueError(f"{fix}: {name!r} is not section.key")
        if name in out:
            raise ValueError(f"{fix}: {name!r} is given twice")
        word = scalar(one, f"{fix}: the value of {name!r} is no text, number or boolean")
        out[name] = {True: "yes", False: "no"}[one] if isinstance(one, bool) else word
    return out


# The keys that have a meaning here, with their readers: keys of this project, of SGLang and of
# PeerCache 0.8.4.
READERS: dict[str, Callable[[Any], Any]] = {
    "engine_socket": path(SOCKET_MAX), "engine_start": flag, "engine_keep": flag,
    "engine_path": path(), "engine_log": path(), "engine_settings": settings,
    "timeout_ms": number(1, 3600000), "exists_timeout_ms": number(1, 3600000),
    "namespace_secret_file": path(), "psk_file": path(1000), "tls_dir": path(1000),
    "verify": choice("never", "sample", "always"), "verify_one_in": number(1, VERIFY_ONE_IN_MAX),
    "quota": size, "ttl_s": number(1, TTL_MAX_S),
    "interface_v1": flag_of_sglang, "extra_backend_tag": verbatim, "prefix": verbatim,
    "discovery_addr": seeds, "device_name": devices, "device_names": devices,
    "protocol": choice("rdma", "tcp"),
    "mode": choice("p2p", "hybrid", "centralized", "slotmap"),
    "role": choice("auto", "inference", "storage"),
    "write_policy": choice("local", "storage", "both"),
    "ib_port": number(1, 255), "gid_index": number(-1, 255),
    "max_channels_per_peer": number(1), "directory_replicas": number(1),
    "global_segment_size": size, "local_hostname": text(NAME_MAX), "node_id": text(NAME_MAX),
    "heartbeat_interval": milliseconds(10, 60000), "member_ttl": milliseconds(50, 600000),
    "metrics_enabled": flag, "metrics_port": number(0, 65535),
    "metrics_bind_host": text(NAME_MAX), "metrics_dashboard": flag,
    "disk_enabled": flag, "disk_path": path(PATHS_MAX, several=True), "disk_size": size,
}


def default_socket() -> str:
    """Socket of the engine without "engine_socket": the same as libpeercache's default.

    Raises ValueError if $PEERCACHE_SOCKET is no absolute path.
    """
    named = os.environ.get("PEERCACHE_SOCKET")
    if named:
        try:
            return path(SOCKET_MAX)(named)
        except ValueError as error:
            raise ValueError(f"{error} in $PEERCACHE_SOCKET, which is {named!r}") from error
    if os.geteuid() == 0:
        return "/run/peercache/engine.sock"
    return f"/tmp/peercache-{os.geteuid()}/engine.sock"


@dataclass
class Config:
    """The meaning of an extra config. read() makes it; nothing changes it later."""

    engine_socket: str = ""  # path of the engine's Unix socket
    engine_start: bool = True  # start an engine if none runs
    engine_keep: bool = False  # keep a started engine running after its last client
    engine_path: str = ""  # the engine's program; "": search for it
    engine_log: str = ""  # log of a started engine
    # "prefix" and "extra_backend_tag"; each is a part of every key, and "" stands for a missing one
    tags: tuple[str, str] = ("", "")
    # file with a secret that is hashed into every namespace; only its path is here
    namespace_secret_file: str = ""
    interface_v1: bool = False  # SGLang calls the v1 methods
    timeout_ms: int = 5000  # deadline of a get or set
    exists_timeout_ms: int = 1000  # deadline of a look-up
    verify: str = "sample"  # which pages of a get are compared with their CRC32C
    verify_one_in: int = VERIFY_ONE_IN  # "sample": one page in this number
    quota: int = 0  # bytes of the host's pools for this namespace's pages; 0: none is told
    ttl_s: int = 0  # seconds after which they are gone; 0: none is told
    settings: dict[str, str] = field(default_factory=dict)  # of an engine that the store starts
    origins: dict[str, str] = field(default_factory=dict)  # setting -> the key that set it
    given: set[str] = field(default_factory=set)  # keys of the extra config that have a value
    idle: list[str] = field(default_factory=list)  # keys that do not act as given, with reasons
    alone: bool = False  # the engine that the store starts is told of no other host
    former: bool = False  # written for PeerCache 0.8.4
    disk_default: bool = False  # no "disk_path" is given: the disk is DISK_PATH, if it can be had
    ranks: int = 1  # of the server that this store belongs to, on all of its hosts
    unknown: list[str] = field(default_factory=list)  # keys without a meaning

    def warn(self) -> None:
        """Logs one warning for the unknown keys and one for those that do not act as given."""
        if self.unknown:
            logger.warning("peercache: unknown keys in the extra config are ignored: %s",
                           ", ".join(sorted(self.unknown)))
        if self.idle:
            logger.warning("peercache: these keys of the extra config do not act as given: %s",
                           "; ".join(self.idle))
        if self.alone:
            logger.info('peercache: without "discovery_addr" an engine that is started here joins '
                        "no other host; its pages stay on this host until another one names it")

    def differences(self, running: Mapping[str, Any]) -> list[str]:
        """The settings that the user gave and that a running engine does not have, as texts.

        running: the engine's settings by section.key, as its report has them: for "auto" it has
        what the engine has chosen, which is no difference.
        """
        found = []
        for setting, wanted in self.settings.items():
            key = self.origins[setting]
            if key in self.given and setting in running and wanted != "auto" and \
                    not same_value(wanted, running[setting]):
                found.append(f'{setting} = {shown(running[setting])}, not {wanted} ("{key}")')
        return found


def shown(value: Any) -> str:
    """A value of a setting as a user writes it."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value) if value != "" else "nothing"


def same_value(wanted: str, value: Any) -> bool:
    """True if the text of a setting means the value that the engine reports."""
    try:
        if isinstance(value, bool):
            return flag(wanted) == value
        if isinstance(value, int):
            return (size(wanted) if wanted.strip("0") else 0) == value
    except ValueError:
        return wanted == str(value)  # a negative number
    return wanted.replace(" ", "") == str(value).replace(" ", "")


def rails(given: Mapping[str, Any]) -> list[str]:
    """Names of the NICs: as configured, else the host's first RDMA device, else "soft".

    "soft" is the software NIC, which "protocol": "tcp" selects.
    """
    if given.get("protocol") == "tcp":
        return ["soft"]
    named = given.get("device_names") or given.get("device_name")
    if named:
        return list(named)
    try:
        present = sorted(os.listdir("/sys/class/infiniband"))
    except OSError:
        present = []
    return present[:1] or ["soft"]


def pool_bytes(given: Mapping[str, Any], count: int, refuse: Callable[[str, str], None]) -> int:
    """Bytes of one rail's pool: the share of `count` rails, rounded down to 4 KiB.

    Calls refuse(key, remedy) for a value out of range.
    """
    share = given.get("global_segment_size", POOL_BYTES) // count
    if share > POOL_BYTES_MAX:
        refuse("global_segment_size", f"give at most 1tb for each NIC, of which there are {count}")
    return max(share, POOL_BYTES_MIN) // 4096 * 4096


def cluster_settings(given: Mapping[str, Any], refuse: Callable[[str, str], None],
                     put: Callable[[str, str, Any], None]) -> None:
    """Derives the cluster.* settings and passes each to put(key, setting, value).

    Calls refuse(key, remedy) for values that contradict each other.
    """
    found = given.get("discovery_addr", [])
    host = given.get("local_hostname")
    if found:
        # Names stay names: the engine resolves them at each dial, and tries all their addresses.
        put("discovery_addr", "cluster.seeds", ",".join(found))
        put("discovery_addr", "cluster.port", found[0].rsplit(":", 1)[-1])
        if not host:
            put("discovery_addr", "cluster.address", "auto")
    if host:
        put("local_hostname", "cluster.address", host)
    for name in ("psk_file", "tls_dir"):
        if name in given:
            put(name, "cluster." + name, given[name])
    beat = given.get("heartbeat_interval", HEARTBEAT_MS)
    dead = given.get("member_ttl", max(DEAD_AFTER_MS, 3 * beat))
    if dead < 2 * beat:
        refuse("member_ttl", f'give two heartbeats or more ("heartbeat_interval"): {beat / 500:g}')
    if "heartbeat_interval" in given:
        put("heartbeat_interval", "cluster.heartbeat_ms", beat)
    if "heartbeat_interval" in given or "member_ttl" in given:
        put("member_ttl", "cluster.dead_after_ms", dead)


def disk_settings(given: Mapping[str, Any], config: Config, refuse: Callable[[str, str], None],
                  put: Callable[[str, str, Any], None]) -> None:
    """Derives the disk.* settings, and config.disk_default.

    Calls refuse(key, remedy) for a size out of range.
    """
    if not given.get("disk_enabled", True):
        put("disk_enabled", "disk.paths", "")
        return
    config.disk_default = "disk_path" not in given
    if config.disk_default and not given.get("disk_enabled", config.former):
        config.disk_default = False
        return
    put("disk_enabled" if config.disk_default else "disk_path", "disk.paths",
        given.get("disk_path", DISK_PATH))
    size_ = given.get("disk_size", DISK_BYTES)
    if not DISK_BYTES_MIN <= size_ <= DISK_BYTES_MAX:
        refuse("disk_size", "give 6mb to 16tb")
    elif "disk_size" in given or config.disk_default:
        put("disk_size", "disk.bytes", size_)
        if size_ < DISK_SEGMENTS_MIN * SEGMENT_BYTES:
            put("disk_size", "disk.segment_bytes",
                1 << (size_ // DISK_SEGMENTS_MIN).bit_length() - 1)


def role_settings(given: Mapping[str, Any], put: Callable[[str, str, Any], None]) -> None:
    """Derives engine.role and engine.write_policy, as "mode" of 0.8.4 combines them.

    A storage host keeps what it stores; its policy is of no meaning.
    """
    if given.get("role") == "storage":
        put("role", "engine.role", "storage")
    elif given.get("mode") == "centralized":
        put("mode", "engine.write_policy", "storage")
    elif given.get("mode") == "hybrid" and "write_policy" in given:
        put("write_policy", "engine.write_policy", given["write_policy"])


def metrics_settings(given: Mapping[str, Any], config: Config,
                     put: Callable[[str, str, Any], None]) -> None:
    """Derives the metrics.* settings."""
    if not given.get("metrics_enabled", True):
        put("metrics_enabled", "metrics.port", 0)
        return
    if given.get("metrics_port"):
        put("metrics_port", "metrics.port", given["metrics_port"])
    if "metrics_bind_host" in given:
        put("metrics_bind_host", "metrics.address", given["metrics_bind_host"])
    if "metrics_dashboard" in given:
        put("metrics_dashboard", "metrics.dashboard",
            "yes" if given["metrics_dashboard"] else "no")
    if config.former:
        put("a config of PeerCache 0.8", "metrics.compat", "0.8")


def engine_settings(given: Mapping[str, Any], config: Config,
                    refuse: Callable[[str, str], None]) -> None:
    """Fills config.settings and config.origins for an engine that the store starts.

    Calls refuse(key, remedy) for invalid values.
    """
    def put(key: str, setting: str, value: Any) -> None:
        before = config.origins.get(setting)
        if before in given and config.settings[setting] != str(value):
            config.idle.append(f'{before}: {setting} in "engine_settings" overrides it')
        config.settings[setting] = str(value)
        config.origins[setting] = key

    names = rails(given)
    put("engine_socket", "engine.socket", config.engine_socket)
    put("global_segment_size", "engine.pool_bytes", pool_bytes(given, len(names), refuse))
    named = [key for key in ("device_names", "device_name") if key in given]
    put("protocol" if names == ["soft"] or not named else named[0], "rail.devices",
        ",".join(names))
    if names == ["soft"]:
        put("protocol", "soft.link", "tcp" if given.get("discovery_addr") else "shm")
    cluster_settings(given, refuse, put)
    if names != ["soft"] and given.get("ib_port", 1) != 1:
        refuse("ib_port", "give 1: each port of a card is a device of its own, which you name in "
               '"device_names"')
    for key, setting, most in (("gid_index", "rail.gid_index", None),
                               ("max_channels_per_peer", "rail.qps_per_peer", QPS_MAX),
                               ("directory_replicas", "cluster.replicas", REPLICAS_MAX),
                               ("node_id", "engine.name", None)):
        if key in given:
            put(key, setting, given[key] if most is None else min(given[key], most))
    metrics_settings(given, config, put)
    disk_settings(given, config, refuse, put)
    role_settings(given, put)
    for setting, value in given.get("engine_settings", {}).items():
        if setting == "engine.socket":
            refuse("engine_settings", 'give the socket as "engine_socket"')
        put("engine_settings", setting, value)
    config.alone = not any(config.settings.get("cluster." + name)
                           for name in ("seeds", "seeds_file", "etcd"))


def idle(extra: Mapping[str, Any], given: Mapping[str, Any], config: Config) -> list[str]:
    """The keys that the user gave and that do not act as given, each with reason or remedy.

    extra: the config as given. given: the values that the readers returned.
    """
    off = not given.get("metrics_enabled", True)
    no_disk = not given.get("disk_enabled", True)
    attached = not given.get("engine_start", True)
    names = rails(given)
    rows = [(key, True, why) for key, why in WITHOUT_EFFECT.items()]
    rows += [(key, given.get(key) == value, why) for key, values in VALUES.items()
             for value, why in values.items()]
    rows += [
        ("disk_size", not (no_disk or config.disk_default or "disk_path" in given),
         'there is no disk without "disk_path"'),
        ("write_policy", given.get("write_policy", "local") != "local" and
         given.get("mode") != "hybrid", 'it counts with "mode": "hybrid", as in PeerCache 0.8'),
        ("write_policy", given.get("write_policy", "local") != "local" and
         given.get("role") == "storage", '"role" is storage'),
        ("verify_one_in", given.get("verify", "sample") != "sample", '"verify" is not sample'),
        ("device_name", "device_names" in given, '"device_names" is used'),
        ("gid_index", names == ["soft"], "the software NIC has no GIDs"),
        ("ib_port", names == ["soft"] and given.get("ib_port", 1) != 1,
         "the software NIC has one port")]
    rows += [(key, given.get("protocol") == "tcp", '"protocol": "tcp" selects the software NIC')
             for key in ("device_name", "device_names")]
    rows += [(key, off, '"metrics_enabled" is false')
             for key in ("metrics_port", "metrics_bind_host", "metrics_dashboard")]
    rows += [(key, no_disk, '"disk_enabled" is false') for key in ("disk_path", "disk_size")]
    rows += [(key, attached, '"engine_start" is false')
             for key in ("engine_keep", "engine_path", "engine_log")]
    rows += [  # behind the keys that are off, because the first reason of a key is named
        ("max_channels_per_peer", given.get("max_channels_per_peer", 0) > QPS_MAX,
         f"{QPS_MAX} are used, the most there are"),
        ("directory_replicas", given.get("directory_replicas", 0) > REPLICAS_MAX,
         f"{REPLICAS_MAX} are used, the most there are"),
        ("global_segment_size",
         given.get("global_segment_size", POOL_BYTES) // len(names) < POOL_BYTES_MIN,
         "4mb are used for each NIC, the least there is"),
        ("metrics_port", given.get("metrics_port") == 0,
         f"one engine serves the metrics of this host, at port {METRICS_PORT}: give another port, "
         'or "metrics_enabled": false')]
    found: dict[str, str] = {}
    for key, useless, why in rows:
        if useless and key in extra and extra[key] not in (None, ""):
            found.setdefault(key, f"{key}={extra[key]} ({why})")
    return list(found.values())


def read(extra: Optional[Mapping[str, Any]], ranks: int = 1) -> Config:
    """Reads the extra config; None is an empty one. Any thread.

    ranks: Config.ranks. Raises one ValueError that lists all invalid values.
    """
    extra = dict(extra or {})
    given: dict[str, Any] = {}
    refused: list[str] = []

    def refuse(key: str, fix: str) -> None:
        refused.append(f'"{key}": {json.dumps(extra.get(key), default=repr)}: {fix}')

    for key, reader in READERS.items():
        if extra.get(key) in (None, ""):
            continue
        try:
            given[key] = reader(extra[key])
        except ValueError as error:
            refuse(key, str(error))
    config = Config(ranks=ranks, given=set(given),
                    **{key: given[key] for key in OWN_FIELDS if key in given})
    known = SGLANG | set(READERS) | set(WITHOUT_EFFECT)
    config.unknown = [str(key) for key in extra if key not in known]
    config.former = "discovery_addr" in given and not OURS & config.given
    try:
        config.engine_socket = config.engine_socket or default_socket()
    except ValueError as error:
        refuse("engine_socket", str(error))
    config.engine_log = given.get("engine_log") or config.engine_socket + ".log"
    config.tags = (given.get("prefix", ""), given.get("extra_backend_tag", ""))
    engine_settings(given, config, refuse)
    config.idle += idle(extra, given, config)
    if refused:
        raise ValueError("peercache: the extra config has invalid values: "
                         + "; ".join(refused))
    return config
