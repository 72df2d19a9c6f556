# SPDX-License-Identifier: Apache-2.0
"""The machine that figures were measured on: processor, cores, memory, kernel, build, load."""

import glob
import json
import os
import platform
import re
import subprocess


def read(path, default=""):
    try:
        with open(path, errors="replace") as f:
            return f.read().strip()
    except OSError:
        return default


def said(*command):
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=60).stdout.strip()
    except (OSError, subprocess.TimeoutExpired):
        return ""


def siblings(cores):
    """Groups of this process's cores that share one physical core; None: unknown."""
    groups = set()
    for core in cores:
        text = read(f"/sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list")
        if not text:
            return None
        group = []
        for part in text.split(","):
            first, _, last = part.partition("-")
            group += range(int(first), int(last or first) + 1)
        groups.add(tuple(c for c in group if c in cores))
    return [list(group) for group in sorted(groups) if len(group) > 1]


def build_of(build):
    """Build type, optimisation, assertions, sanitizers and compiler of a Meson build folder."""
    try:
        options = json.loads(read(f"{build}/meson-info/intro-buildoptions.json"))
        compiler = json.loads(read(f"{build}/compile_commands.json"))[0]["command"].split()
    except (ValueError, LookupError):
        options, compiler = [], []
    found = {row["name"]: row["value"] for row in options}
    known = next((w for w in compiler if re.search(r"(cc|gcc|clang)$", w)), "")
    return {"type": found.get("buildtype", "unknown"),
            "optimization": found.get("optimization", ""),
            "sanitizers": found.get("b_sanitize", "none"),
            "test_hooks": str(found.get("test_hooks", "")) == "true",
            "assertions": str(found.get("b_ndebug", "")) != "true",
            "compiler": said(known, "--version").partition("\n")[0] if known else "unknown"}


def describe(root, build):
    cores = sorted(os.sched_getaffinity(0))
    info, memory = read("/proc/cpuinfo"), read("/proc/meminfo")
    model = re.search(r"^model name\s*: (.*)$", info, re.M)
    value = dict(re.findall(r"^(\w+):\s+(\d+)", memory, re.M))
    governors = {read(path) for path in
                 glob.glob("/sys/devices/system/cpu/cpu*/cpufreq/scaling_governor")}
    revision = said("git", "-C", root, "rev-parse", "--short=12", "HEAD")
    if said("git", "-C", root, "status", "--porcelain", "--untracked-files=no"):
        revision += " with changes"
    return {
        "cpu": model[1] if model else platform.machine(),
        "cores": len(cores),
        "siblings": siblings(cores),
        "virtual": bool(re.search(r"^flags\s*:.*\bhypervisor\b", info, re.M)),
        "memory_bytes": int(value.get("MemTotal", 0)) << 10,
        "huge_pages": int(value.get("HugePages_Total", 0)),
        "huge_pages_free": int(value.get("HugePages_Free", 0)),
        "huge_page_bytes": int(value.get("Hugepagesize", 0)) << 10,
        "numa_nodes": len(glob.glob("/sys/devices/system/node/node[0-9]*")) or 1,
        "kernel": f"{platform.system()} {platform.release()}",
        "governor": ", ".join(sorted(governors)) or "not told",
        "load": os.getloadavg()[0],
        "revision": revision or "unknown",
        "build": build_of(build),
    }


def rows(machine):
    """The description as rows (name, text) for the report."""
    m, b = machine, machine["build"]
    shared = "not told" if m["siblings"] is None else \
        "; ".join(" and ".join(map(str, group)) for group in m["siblings"]) or "none"
    return [
        ("processor", m["cpu"] + (", virtual" if m["virtual"] else "")),
        ("hardware threads", str(m["cores"])),
        ("threads that share a core", shared),
        ("NUMA nodes", str(m["numa_nodes"])),
        ("memory", f"{m['memory_bytes'] / 2**30:.1f} GiB"),
        ("huge pages", f"{m['huge_pages']} of {m['huge_page_bytes'] >> 10} KiB, "
                       f"{m['huge_pages_free']} free"),
        ("kernel", m["kernel"]),
        ("governor", m["governor"]),
        ("load average", f"{m['load']:.2f} before, {m.get('load_after', m['load']):.2f} after"),
        ("revision", m["revision"]),
        ("build", f"{b['type']}, -O{b['optimization']}, {b['compiler']}, assertions "
                  f"{'on' if b['assertions'] else 'off'}, sanitizers {b['sanitizers']}, test hooks "
                  f"{'on' if b['test_hooks'] else 'off'}"),
    ]
