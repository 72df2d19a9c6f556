# SPDX-License-Identifier: Apache-2.0
"""The engine without the verbs module, without libibverbs, and with a module of another version."""

import os
import shutil
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
        empty = os.path.join(self.folder, "empty")
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
        self.refuses(PACKAGES, LD_LIBRARY_PATH=self.without_libraries())

    def test_without_the_module_a_software_nic_serves_and_a_connectx_is_refused(self):
        program = self.copy(None)
        self.serves_with_one_line(MODULE + " is missing", program=program)
        self.refuses(MODULE + " is missing", program=program)

    def test_a_module_of_another_version_is_refused(self):
        with open(os.path.join(os.path.dirname(ENGINE), MODULE), "rb") as file:
            module = file.read()
        version = subprocess.run([ENGINE, "--version"], capture_output=True, text=True,
                                 check=True).stdout.split()[1].encode() + b"\0"
        self.assertIn(version, module)
        program = self.copy(module.replace(version, b"9" + version[1:]))
        self.serves_with_one_line("is not of version", program=program)
        self.refuses("is not of version", program=program)

    def test_a_module_that_is_no_library_is_refused(self):
        program = self.copy(b"\x7fELF not really")
        self.refuses(MODULE, program=program)


if __name__ == "__main__":
    unittest.main(verbosity=2)
