# SPDX-License-Identifier: Apache-2.0
"""What a host is: its doctor, its ports, their counters, who else uses them. Main thread."""

import glob
import os
import platform
import re
from typing import Any, Optional

from peercache import __version__
from peercache.trial.engines import Engines
from peercache.trial.frame import Answer, Trial, Unknown

CLASS = "/sys/class/infiniband"
MELLANOX = "0x15b3"
# Of a port that had no trouble they stay as they are, with the first of them in lossy networks.
TROUBLE = re.compile(r"discard|error|out_of_sequence|timeout|_nak|rnr|symbol|link_downed|"
                     r"excessive|implied|slow_restart|pause.*duration|congestion")


def read(*parts: str) -> Optional[str]:
    """The text of a small file; None: it cannot be read."""
    try:
        with open(os.path.join(*parts), encoding="utf-8", errors="replace") as file:
            return file.read().strip()
    except OSError:
        return None


def listed(*parts: str) -> list[str]:
    try:
        return sorted(os.listdir(os.path.join(*parts)))
    except OSError:
        return []


def devices() -> list[str]:
    """The names of the ConnectX of this host."""
    return [name for name in listed(CLASS) if read(CLASS, name, "device", "vendor") == MELLANOX]


def pretended() -> bool:
    """Are the ports software?"""
    return bool(os.environ.get("SOFT_CONNECTX_LIBRARY"))


def gids(name: str, port: str) -> list[dict[str, str]]:
    """The GID table of a port without its empty rows."""
    folder = os.path.join(CLASS, name, "ports", port)
    rows = []
    for index in sorted(listed(folder, "gids"), key=int):
        gid = read(folder, "gids", index) or ""
        if gid.strip("0:"):
            rows.append({"index": index, "gid": gid,
                         "type": read(folder, "gid_attrs", "types", index) or "",
                         "netdev": read(folder, "gid_attrs", "ndevs", index) or ""})
    return rows


def port_facts(name: str) -> dict[str, Any]:
    """What sysfs tells of a device and its first port; None: not known."""
    device, port = os.path.join(CLASS, name), os.path.join(CLASS, name, "ports", "1")
    facts: dict[str, Any] = {
        "firmware": read(device, "fw_ver"), "board": read(device, "board_id"),
        "card": read(device, "device", "device"), "numa": read(device, "device", "numa_node"),
        "pcie_speed": read(device, "device", "current_link_speed"),
        "pcie_width": read(device, "device", "current_link_width"),
        "pcie_width_max": read(device, "device", "max_link_width"),
        "iommu_group": bool(listed(device, "device", "iommu_group")) or None,
        "link": read(port, "link_layer"), "state": read(port, "state"), "rate": read(port, "rate"),
        "gids": gids(name, "1"),
    }
    net = next((row["netdev"] for row in facts["gids"] if row["netdev"]), "")
    facts["netdev"] = net or None
    facts["netdev_mtu"] = read("/sys/class/net", net, "mtu") if net else None
    return facts


def software() -> dict[str, Optional[str]]:
    """The versions of what is below the engine."""
    found = glob.glob("/usr/lib*/libibverbs.so.1.*") + glob.glob("/usr/lib/*/libibverbs.so.1.*")
    provider = glob.glob("/usr/lib*/libmlx5.so.1.*") + glob.glob("/usr/lib/*/libmlx5.so.1.*")
    return {"kernel": platform.release(), "system": (read("/etc/debian_version") or
                                                     platform.platform()),
            "libibverbs": os.path.basename(found[0]) if found else None,
            "libmlx5": os.path.basename(provider[0]) if provider else None,
            "mlx5_core": read("/sys/module/mlx5_core/version"),
            "ofed": read("/usr/bin/ofed_info") and "MLNX_OFED", "peercache": __version__,
            "python": platform.python_version()}


def see_software(trial: Trial) -> Answer:
    found = software()
    trial.facts["software"] = found
    for name in ("peercache-engine", "peercache-keeper", "peercache-bench", "peercachectl"):
        trial.program(name)
    missing = [name for name in ("libibverbs", "libmlx5") if not found[name]]
    said = ", ".join(f"{name} {value}" for name, value in found.items() if value)
    if missing and trial.options.devices != ["soft"]:
        return Answer("no", f"{' and '.join(missing)} is not installed; {said}",
                      "install rdma-core's ibverbs-providers, or the OFED of the NIC", found)
    return Answer("yes", said, data=found)


def see_doctor(trial: Trial, engines: Engines) -> Answer:
    words = [*engines.settings(0), *(["--peer", trial.options.peer] if trial.options.peer else [])]
    found = trial.document(engines.ctl("--json", "doctor", *words), "doctor.log", 120)
    mend = [f for f in found["findings"] if f["state"] == "found"]
    text = f"{found['found']} to mend, {found['unknown']} not known"
    if not mend:
        return Answer("yes", text, data=found)
    return Answer("no", f"{text}: " + "; ".join(f["text"] for f in mend),
                  " Then: ".join(f["fix"] for f in mend if f["fix"]), found)


def see_ports(trial: Trial) -> Answer:
    if trial.options.devices == ["soft"]:
        raise Unknown("no hardware for it: this host shows no ConnectX, so the engines have the "
                      "software NIC", "name NICs with --devices if it has some")
    found = {name: port_facts(name) for name in trial.options.devices}
    trial.facts["ports"] = found
    wrong, told = [], []
    for name, facts in found.items():
        if not os.path.isdir(os.path.join(CLASS, name)):
            wrong.append(f"there is no {name}")
            continue
        unknown = [key for key, value in facts.items() if value is None]
        pcie = f"{facts['pcie_speed']} x{facts['pcie_width']}" if facts["pcie_width"] else "unknown"
        told.append(f"{name} {facts['link']} {facts['rate']}, firmware {facts['firmware']}, PCIe "
                    f"{pcie}, {len(facts['gids'])} GIDs"
                    + (f" (unknown: {', '.join(unknown)})" if unknown else ""))
        if facts["gids"] and not facts["gids"][0]["gid"].startswith("fe80"):
            told[-1] += (f"; GID {facts['gids'][0]['index']} is {facts['gids'][0]['gid']}, not the "
                         "link-local one: an index that was written down may name another address")
        if facts["state"] and "ACTIVE" not in facts["state"]:
            wrong.append(f"{name} is {facts['state']}")
        if facts["pcie_width"] != facts["pcie_width_max"]:
            wrong.append(f"{name} has {facts['pcie_width']} PCIe lanes of "
                         f"{facts['pcie_width_max']}")
    if wrong:
        return Answer("no", "; ".join(wrong + told), "look at cable, switch port and slot; "
                      f"--devices names the ports to use, of {', '.join(devices()) or 'none'}",
                      found)
    return Answer("yes", "; ".join(told), data=found)


def counters(names: list[str]) -> dict[str, int]:
    """All counters of the ports."""
    found = {}
    for name in names:
        for folder in ("counters", "hw_counters"):
            for file in listed(CLASS, name, "ports", "1", folder):
                value = read(CLASS, name, "ports", "1", folder, file) or ""
                if value.isdigit():
                    found[f"{name} {file}"] = int(value)
    return found


def count_before(trial: Trial) -> Answer:
    trial.facts["counters"] = found = counters(trial.options.devices)
    if not found:
        raise Unknown("no hardware for it: the ports have no counters")
    return Answer("yes", f"{len(found)} counters noted")


def count_after(trial: Trial) -> Answer:
    """Which counters of trouble have moved since count_before()?"""
    before, after = trial.facts.get("counters"), counters(trial.options.devices)
    if not before:
        raise Unknown("no hardware for it: the ports have no counters")
    moved = {name: after.get(name, 0) - value for name, value in before.items()
             if after.get(name, 0) != value}
    bad = {name: n for name, n in moved.items() if TROUBLE.search(name)}
    if bad:
        return Answer("no", "counters that should stand still moved: " + ", ".join(
            f"{name} +{n}" for name, n in sorted(bad.items())), "set PFC or ECN of this traffic "
            "class on hosts and switches, and look at the cable; the doctor names what is set",
            moved)
    return Answer("yes", f"no counter of errors or discards moved; {len(moved)} others "
                  "did", data=moved)


def see_users(trial: Trial) -> Answer:
    """Which processes have the devices open? Only root sees those of others."""
    found: dict[int, str] = {}
    hidden = 0
    for pid in map(int, filter(str.isdigit, listed("/proc"))):
        try:
            files = os.listdir(f"/proc/{pid}/fd")
        except PermissionError:
            hidden += 1
            continue
        except OSError:  # it has ended
            continue
        for file in files:
            try:
                if "/dev/infiniband/uverbs" in os.readlink(f"/proc/{pid}/fd/{file}"):
                    found[pid] = read(f"/proc/{pid}/comm") or "?"
            except OSError:
                continue
    said = ", ".join(f"{name} ({pid})" for pid, name in found.items())
    if found:
        return Answer("no", f"other processes use the ports: {said}",
                      "stop them for the time of the trial: figures of a shared port mean nothing")
    if hidden:
        raise Unknown(f"the files of {hidden} processes cannot be read", "run the trial as root")
    return Answer("yes", "no other process uses the ports")
