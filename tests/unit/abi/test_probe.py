# SPDX-License-Identifier: Apache-2.0
"""The built engine and library contain the probes that engine/abi/probe.h documents, with those
arguments, and the scripts in perf/recipes use only probes that exist.

    test_probe.py BUILD    exit 77: built without probes, or readelf is missing
"""

import os
import re
import shutil
import struct
import subprocess
import sys
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(
    os.path.abspath(__file__)))))
BUILD = sys.argv.pop(1) if len(sys.argv) > 1 else os.path.join(ROOT, "build", "gcc")
FILES = {"client library": "engine/client/libpeercache.so.0",
         "poll core": "engine/peercache-engine", "control plane": "engine/peercache-engine"}
BYTES = {"cookie": 8, "offset": 8}  # bytes of an argument; all others have at most 4
NOPS = {62: 0x90, 183: 0x1f}  # first byte of a nop, by ELF machine: x86-64, arm64


def documented():
    """The table in the header's comment: name -> (where, [argument])."""
    with open(os.path.join(ROOT, "engine/abi/probe.h")) as f:
        rows = re.findall(r"^ \*   (\w+) +(client library|poll core|control plane) +(.+)$",
                          f.read(), re.M)
    return {name: (where, arguments.split(", ")) for name, where, arguments in rows}


def built(path):
    """Each probe site of provider `peercache`: (name, address, [bytes of each argument])."""
    text = subprocess.run(["readelf", "-n", path], capture_output=True, text=True,
                          check=True).stdout
    sites = re.findall(r"Provider: peercache\s+Name: (\w+)\s+Location: (0x\w+),.*\s+"
                       r"Arguments: (.*)", text)
    return [(name, int(at, 16), [abs(int(a)) for a in re.findall(r"(-?\d+)@", arguments)])
            for name, at, arguments in sites]


def machine(path):
    """e_machine of an ELF file."""
    with open(path, "rb") as f:
        return struct.unpack_from("<H", f.read(20), 18)[0]


def byte_at(path, address):
    """The byte that an ELF file maps at a virtual address."""
    with open(path, "rb") as f:
        elf = f.read()
    at, size, count = struct.unpack_from("<Q", elf, 32)[0], *struct.unpack_from("<HH", elf, 54)
    for i in range(count):
        kind, _, offset, start, _, in_file = struct.unpack_from("<IIQQQQ", elf, at + i * size)
        if kind == 1 and start <= address < start + in_file:
            return elf[offset + address - start]
    raise AssertionError(f"{path}: no loadable segment contains the address {address:#x}")


class Probes(unittest.TestCase):
    def setUp(self):
        self.path = {where: os.path.join(BUILD, file) for where, file in FILES.items()}

    def test_every_documented_probe_exists_with_its_arguments(self):
        probes = documented()
        self.assertEqual(len(probes), 7)
        for name, (where, arguments) in probes.items():
            sites = [s for s in built(self.path[where]) if s[0] == name]
            self.assertTrue(sites, f"{name}: not in {self.path[where]}")
            for _, _, sizes in sites:
                self.assertEqual(len(sizes), len(arguments), name)
                for argument, size in zip(arguments, sizes):
                    want = BYTES.get(argument)
                    self.assertTrue(size == want if want else size <= 4,
                                    f"{name}: {argument} has {size} bytes")

    def test_no_probe_is_undocumented(self):
        names = {s[0] for path in set(self.path.values()) for s in built(path)}
        self.assertEqual(names, set(documented()))

    def test_a_probe_without_a_tracer_is_a_nop(self):
        for path in set(self.path.values()):
            for name, at, _ in built(path):
                self.assertEqual(byte_at(path, at), NOPS[machine(path)], f"{name} at {at:#x}")


class Recipes(unittest.TestCase):
    FOLDER = os.path.join(ROOT, "perf/recipes")

    def setUp(self):
        self.scripts = sorted(f for f in os.listdir(self.FOLDER) if f.endswith(".bt"))
        self.assertGreaterEqual(len(self.scripts), 4)

    def test_scripts_use_only_probes_of_the_right_program(self):
        program = {"client library": "$2", "poll core": "$1", "control plane": "$1"}
        for script in self.scripts:
            with open(os.path.join(self.FOLDER, script)) as f:
                text = re.sub(r"//.*", "", f.read())
            for where, name in re.findall(r"usdt:(\$\d):peercache:(\w+)", text):
                self.assertIn(name, documented(), script)
                self.assertEqual(where, program[documented()[name][0]], f"{script}: {name}")

    @unittest.skipUnless(shutil.which("bpftrace") and os.geteuid() == 0
                         and os.path.exists("/sys/kernel/tracing/uprobe_events"),
                         "needs bpftrace, root and a mounted tracefs")
    def test_bpftrace_compiles_the_scripts(self):
        files = [os.path.abspath(os.path.join(BUILD, FILES[w]))
                 for w in ("poll core", "client library")]
        for script in self.scripts:
            done = subprocess.run(["bpftrace", "-d", os.path.join(self.FOLDER, script), *files],
                                  capture_output=True, text=True, timeout=100)
            self.assertEqual(done.returncode, 0, script + ": " + done.stderr[-500:])


if __name__ == "__main__":
    if os.environ.get("PEERCACHE_USDT") == "no" or not shutil.which("readelf"):
        print("skipped: built without probes (sys/sdt.h, option usdt), or no readelf (binutils)")
        sys.exit(77)
    unittest.main(verbosity=2)
