# SPDX-License-Identifier: Apache-2.0
"""The engine without the verbs module, without libibverbs, and with a module of another build."""

import json
import os
import re
import shutil
import struct
import subprocess
import tempfile
import unittest

import ports

ENGINE = os.path.join(ports.BUILD, "engine", "peercache-engine")
MODULE = "peercache-verbs.so"
PACKAGES = "libibverbs1 and ibverbs-providers"


class Module(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="peercache-module-")
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def start(self, device, program=ENGINE, **variables):
        """The engine's log until it serves or ends, and its exit status, None if it served."""
        line = ports.command([], program)
        for value in (f"engine.socket={self.folder}/e.sock", "engine.pool_bytes=16MiB",
                      "engine.huge_pages=no", "metrics.port=0", f"rail.devices={device}",
                      f"cluster.port={ports.cluster.free_port()}"):
            line += ["--set", value]
        with subprocess.Popen(line, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                              stderr=subprocess.PIPE, text=True,
                              env={**os.environ, **variables}) as engine:
            log = ""
            for text in engine.stderr:
                log += text
                if text.startswith("ready: "):
                    engine.terminate()
                    return log, None
        return log, engine.returncode

    def without_libraries(self):
        """A folder that the loader searches first; the library in it is an empty file."""
        empty = os.path.join(self.folder, "empty" + 100 * "-")
        os.mkdir(empty)
        with open(os.path.join(empty, "libibverbs.so.1"), "w", encoding="ascii"):
            pass
        return empty

    def copy(self, module):
        """A copy of the engine, beside it a module with these bytes, or none."""
        program = os.path.join(self.folder, "peercache-engine")
        shutil.copy(ENGINE, program)
        if module:
            with open(os.path.join(self.folder, MODULE), "wb") as file:
                file.write(module)
        return program

    def serves_with_one_line(self, words, **options):
        log, status = self.start("soft", **options)
        self.assertIsNone(status, log)
        lines = [line for line in log.splitlines() if "RDMA" in line]
        self.assertEqual(len(lines), 1, log)
        self.assertIn("no RDMA here, only software NICs", lines[0])
        self.assertIn(words, lines[0])

    def refuses(self, words, **options):
        log, status = self.start("mlx5_0", **options)
        self.assertEqual(status, 1, log)
        self.assertIn("opening NIC mlx5_0: ", log)
        self.assertIn(words, log)

    def test_the_program_itself_needs_no_rdma_library(self):
        needed = subprocess.run(["readelf", "-d", ENGINE], capture_output=True, text=True,
                                check=True).stdout
        self.assertNotRegex(needed, r"NEEDED.*(libibverbs|libmlx5)")

    def test_with_libraries_and_module_a_connectx_is_opened_and_nothing_is_told(self):
        log, status = self.start("mlx5_0")
        self.assertIsNone(status, log)
        self.assertNotIn("no RDMA", log)

    def test_without_libraries_a_software_nic_serves(self):
        self.serves_with_one_line(PACKAGES, LD_LIBRARY_PATH=self.without_libraries())

    def test_without_libraries_a_connectx_is_refused_by_the_name_of_the_packages(self):
        """The text is complete, also with a long path before it."""
        self.refuses(PACKAGES + ", or the like", LD_LIBRARY_PATH=self.without_libraries())

    def test_without_the_module_a_software_nic_serves_and_a_connectx_is_refused(self):
        program = self.copy(None)
        self.serves_with_one_line(MODULE + " is missing", program=program)
        self.refuses(MODULE + " is missing", program=program)

    def hooks(self):
        """What the text of a build has at its end: "+hooks" with -Dtest_hooks=true."""
        path = os.path.join(ports.BUILD, "meson-info", "intro-buildoptions.json")
        with open(path, encoding="utf-8") as file:
            options = {option["name"]: option["value"] for option in json.load(file)}
        return "+hooks" if options["test_hooks"] else ""

    def refuses_module(self, other, bytes_other=None):
        """With this text and size in its module, the engine refuses it and names both builds."""
        with open(os.path.join(os.path.dirname(ENGINE), MODULE), "rb") as file:
            module = file.read()
        version = subprocess.run([ENGINE, "--version"], capture_output=True, text=True,
                                 check=True).stdout.split()[1]
        found = re.search(rb"\x48\0\0\0(" + re.escape(version.encode()) + rb"-[0-9a-f]{16}" +
                          re.escape(self.hooks().encode()) + rb")\0", module)
        self.assertTrue(found, "no text of a build with these options")
        own = found[1].decode()
        text = other(version, own)
        exported = struct.pack("<I60s", bytes_other or 72, text.encode())
        program = self.copy(module[:found.start()] + exported + module[found.start() + 64:])
        if bytes_other:
            text = text[:27]  # all that the engine reads of it
        words = f"is of build {text}, this program of build {own}: install"
        self.serves_with_one_line(words, program=program)
        self.refuses(words, program=program)

    def test_a_module_of_another_version_is_refused(self):
        self.refuses_module(lambda version, own: "9" + own[1:])

    def test_a_module_of_this_version_with_another_interface_is_refused(self):
        self.refuses_module(lambda version, own: version + "-" + 16 * "0")

    def test_a_module_built_with_other_test_hooks_is_refused(self):
        ends = {"+hooks": "", "": "+hooks"}
        self.refuses_module(lambda version, own:
                            own.removesuffix(self.hooks()) + ends[self.hooks()])

    def test_a_module_whose_table_has_another_size_is_refused(self):
        self.refuses_module(lambda version, own: own, 40)

    def test_a_module_that_is_no_library_is_refused(self):
        program = self.copy(b"\x7fELF not really")
        self.refuses(MODULE, program=program)


if __name__ == "__main__":
    unittest.main(verbosity=2)
