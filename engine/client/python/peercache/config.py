# SPDX-License-Identifier: Apache-2.0
"""SGLang's extra config: the keys of PeerCache 0.8.2 with their meaning, and this project's own.

Nothing here raises for a key: what is unknown, and what names a feature that is not there yet, is
said in one warning each.
"""

import logging
import os
import re
import socket as sockets
from dataclasses import dataclass, field
from typing import Any, Mapping, Optional

logger = logging.getLogger("peercache")

UNITS = {"": 1, "b": 1, "kb": 1 << 10, "mb": 1 << 20, "gb": 1 << 30, "tb": 1 << 40,
         "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "tib": 1 << 40,
         "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
POOL_BYTES = 4 << 30  # of PeerCache 0.8.2
PORT = 31998
POOL_BYTES_MIN = 4 << 20

# SGLang's own, which it leaves in the dict.
SGLANG = {"backend_name", "module_path", "class_name", "interface_v1", "allocator", "tp_lcm_size",
          "prefetch_threshold", "prefetch_timeout_base", "prefetch_timeout_per_ki_token",
          "hicache_storage_pass_prefix_keys", "extra_backend_tag"}
# Ours.
OURS = {"engine_socket", "engine_start", "engine_keep", "engine_path", "engine_log",
        "engine_settings", "timeout_ms", "exists_timeout_ms"}
# PeerCache 0.8.2's, with a meaning here.
MAPPED = {"discovery_addr", "mode", "role", "write_policy", "protocol", "device_name",
          "device_names", "ib_port", "gid_index", "max_channels_per_peer", "global_segment_size",
          "directory_replicas", "local_hostname", "node_id", "prefix", "heartbeat_interval",
          "member_ttl"}
# The same, of which nothing is left to choose: the value that asks for nothing is in the table.
NOT_NEEDED = {"directory_read_cache_ttl": None, "rdma_bind_host": None, "rdma_port": 0,
              "control_bind_host": None, "control_port": 0, "meta_bind_host": None}
# The same, whose feature is not there yet: named when they ask for something.
MISSING = {"vnodes": 160, "max_masters": 3, "disk_enabled": False, "disk_path": None,
           "disk_size": None, "metrics_enabled": False, "metrics_bind_host": None,
           "metrics_port": None, "metrics_dashboard": None, "slot_max_page_bytes": None,
           "slot_ways": None, "slot_num_buckets": None}


def size(value: Any) -> int:
    """Bytes of 4294967296, "4gb" or "4GiB"."""
    if isinstance(value, (int, float)):
        return int(value)
    match = re.fullmatch(r"\s*([0-9.]+)\s*([a-z]*)\s*", str(value).lower())
    if not match or match[2] not in UNITS:
        raise ValueError(f"{value!r} is no size; write 4294967296, 4gb or 4GiB")
    return int(float(match[1]) * UNITS[match[2]])


def flag(value: Any) -> bool:
    if isinstance(value, str):
        return value.strip().lower() in ("1", "true", "yes", "on")
    return bool(value)


def default_socket() -> str:
    path = os.environ.get("PEERCACHE_SOCKET")
    if path:
        return path
    if os.geteuid() == 0:
        return "/run/peercache/engine.sock"
    return f"/tmp/peercache-{os.geteuid()}/engine.sock"


def local_address(seed: str) -> str:
    """This host's address on the way to a seed: no packet is sent."""
    host = seed.rsplit(":", 1)[0].strip("[]")
    try:
        family, kind, _, _, address = sockets.getaddrinfo(host, 9, type=sockets.SOCK_DGRAM)[0]
        with sockets.socket(family, kind) as probe:
            probe.connect(address)
            return str(probe.getsockname()[0])
    except OSError:
        return "127.0.0.1"


def numeric(seed: str) -> str:
    """host:port with the host as an address, where it can be resolved now."""
    host, _, port = seed.rpartition(":")
    try:
        return f"{sockets.gethostbyname(host)}:{port}"
    except OSError:
        return seed


@dataclass
class Config:
    engine_socket: str = ""
    engine_start: bool = True
    engine_keep: bool = False
    engine_path: str = ""
    engine_log: str = ""
    tag: str = ""
    interface_v1: bool = False
    timeout_ms: int = 5000
    exists_timeout_ms: int = 1000
    settings: dict[str, str] = field(default_factory=dict)  # of the engine, when we start it
    unknown: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)

    def warn(self) -> None:
        if self.unknown:
            logger.warning("peercache: unknown keys in the extra config, ignored: %s",
                           ", ".join(sorted(self.unknown)))
        if self.missing:
            logger.warning("peercache: these keys of the extra config ask for what this version "
                           "does not have yet; they have no effect: %s",
                           ", ".join(sorted(self.missing)))


def rails(extra: Mapping[str, Any]) -> list[str]:
    """The NICs; "soft" is the software NIC."""
    if str(extra.get("protocol", "rdma")).lower() == "tcp":
        return ["soft"]
    named = extra.get("device_names") or extra.get("device_name") or ""
    if not isinstance(named, str):
        named = ",".join(map(str, named))
    devices = [name.strip() for name in named.split(",") if name.strip()]
    if devices:
        return devices
    try:
        present = sorted(os.listdir("/sys/class/infiniband"))
    except OSError:
        present = []
    return present[:1] or ["soft"]


def engine_settings(extra: Mapping[str, Any], config: Config) -> dict[str, str]:
    devices = rails(extra)
    seeds = [s.strip() for s in str(extra.get("discovery_addr") or "").split(",") if s.strip()]
    pool = size(extra.get("global_segment_size", POOL_BYTES)) // len(devices)
    out = {"engine.socket": config.engine_socket,
           "engine.pool_bytes": str(max(pool // 4096 * 4096, POOL_BYTES_MIN)),
           "rail.devices": ",".join(devices)}
    if devices == ["soft"]:
        out["soft.link"] = "tcp" if seeds else "shm"
    if seeds:
        out["cluster.seeds"] = ",".join(map(numeric, seeds))
        out["cluster.port"] = seeds[0].rsplit(":", 1)[-1]
        out["cluster.address"] = local_address(seeds[0])
    host = extra.get("local_hostname")
    if host:
        out["cluster.address"] = numeric(f"{host}:0").rpartition(":")[0]
    for key, setting, convert in (
            ("gid_index", "rail.gid_index", int),
            ("max_channels_per_peer", "rail.qps_per_peer", lambda v: min(max(int(v), 1), 8)),
            ("directory_replicas", "cluster.replicas", lambda v: min(max(int(v), 1), 4)),
            ("node_id", "engine.name", str),
            ("heartbeat_interval", "cluster.heartbeat_ms", lambda v: int(float(v) * 1000)),
            ("member_ttl", "cluster.dead_after_ms", lambda v: int(float(v) * 1000))):
        if extra.get(key) not in (None, ""):
            out[setting] = str(convert(extra[key]))
    out.update({str(k): str(v) for k, v in dict(extra.get("engine_settings") or {}).items()})
    return out


def asks(extra: Mapping[str, Any], key: str, nothing: Any) -> bool:
    if key not in extra:
        return False
    value = extra[key]
    return flag(value) if nothing is False else value != nothing


def read(extra: Optional[Mapping[str, Any]]) -> Config:
    """Raises ValueError for a value that cannot be what its key means."""
    extra = dict(extra or {})
    config = Config()
    known = SGLANG | OURS | MAPPED | set(NOT_NEEDED) | set(MISSING)
    config.unknown = [str(key) for key in extra if key not in known]
    config.missing = [key for key, nothing in MISSING.items() if asks(extra, key, nothing)]
    if str(extra.get("mode", "p2p")).lower() not in ("p2p", "hybrid"):
        config.missing.append(f"mode={extra['mode']}")
    if str(extra.get("write_policy", "local")).lower() != "local":
        config.missing.append(f"write_policy={extra['write_policy']}")
    if str(extra.get("role", "auto")).lower() == "storage":
        config.missing.append("role=storage")
    if extra.get("ib_port") not in (None, 1, "1"):
        config.missing.append(f"ib_port={extra['ib_port']}")
    config.engine_socket = str(extra.get("engine_socket") or default_socket())
    config.engine_start = flag(extra.get("engine_start", True))
    config.engine_keep = flag(extra.get("engine_keep", False))
    config.engine_path = str(extra.get("engine_path") or "")
    config.engine_log = str(extra.get("engine_log") or config.engine_socket + ".log")
    tags = [str(extra.get("prefix") or ""), str(extra.get("extra_backend_tag") or "")]
    config.tag = "/".join(tag for tag in tags if tag)
    config.interface_v1 = flag(extra.get("interface_v1", 0))
    config.timeout_ms = int(extra.get("timeout_ms", config.timeout_ms))
    config.exists_timeout_ms = int(extra.get("exists_timeout_ms", config.exists_timeout_ms))
    config.settings = engine_settings(extra, config)
    return config
