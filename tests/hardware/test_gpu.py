# SPDX-License-Identifier: Apache-2.0
"""GPU memory with a stand-in for the CUDA driver (libcuda.c): what gpu.py proves on a real one."""

import json
import os
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path[:0] = [os.path.join(ROOT, "tests", "cluster")]
import harness  # noqa: E402

PAGES = 300


class Gpu(harness.ClusterTest):
    def proof(self, device="mlx5", cuda="", settings=(), how=(), expect=0):
        """Runs gpu.py on two engines. Returns its report."""
        engines = self.start(2, device=device, pool_bytes="256MiB", settings=settings)
        process = subprocess.Popen(
            [*engines.before, sys.executable, os.path.join(ROOT, "tests/hardware/gpu.py"),
             "--pages", str(PAGES), *how],
            env={**os.environ, "PEERCACHE_SOCKETS": ",".join(engines.sockets),
                 "LD_LIBRARY_PATH": os.path.join(harness.BUILD, "tests"),
                 "STAND_IN_CUDA": cuda},
            text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        status, out, err = harness.finish(process)
        self.assertEqual(status, expect, out + err)
        for i in range(2):
            harness.wait_for(lambda i=i: engines.figure(i, "client_extents") == 0, 20,
                             "all extents are deregistered")
        self.stop_cleanly(engines)
        return json.loads(out)

    def assert_way(self, report, way, why=""):
        self.assertEqual((report["way"], report["failures"]), (way, [{}, {}]))
        self.assertIn(why, report["why"])
        staged = 2 * PAGES * report["page_bytes"] if way == "staged" else 0
        self.assertEqual(report["bytes_staged"], staged)
        self.assertEqual(report["pins"], 0, "memory stays pinned")
        for text, said in zip(report["refused"], 2 * ["the CPU, which cannot read the GPU memory"] +
                              2 * ["of which a part is registered GPU memory"], strict=True):
            self.assertIn(said, text)

    def test_nics_write_into_gpu_memory(self):
        report = self.proof(settings=["rail.mr_bytes=1MiB"])
        self.assert_way(report, "direct")
        self.assertGreater(report["flushes"], PAGES // 64)

    def test_it_is_staged_where_nics_cannot_write_to_it(self):
        for how, why in ((dict(cuda="no-dma-buf"), "CUDA_ERROR_NOT_SUPPORTED"),
                         (dict(cuda="unordered"), "does not order"),
                         (dict(how=["--offset", "4096"]), "CUDA_ERROR_NOT_SUPPORTED"),
                         (dict(settings=["engine.client_verbs=no"]), "engine.client_verbs is no"),
                         (dict(device="soft"), "software NIC")):
            with self.subTest(why=why, how=how):
                self.assert_way(self.proof(**how), "staged", why)

    def test_pages_of_any_length_go_through_staging(self):
        for size in (6000, 3 << 20):
            with self.subTest(size):
                report = self.proof(cuda="no-dma-buf", how=["--pages", "20", "--page-bytes",
                                                            str(size)])
                self.assertEqual(report["get"]["hit"], 20)

    def test_a_driver_that_fails_is_no_hit(self):
        report = self.proof(cuda="failing", expect=1, how=["--pages", "20"])
        self.assertEqual(report["set"]["hit"], 0)
        self.assertIn("CUDA_ERROR_INVALID_VALUE", str(report["failures"][0]))

    def test_without_a_driver_it_says_so(self):
        process = subprocess.run(
            [sys.executable, os.path.join(ROOT, "tests/hardware/gpu.py")], text=True,
            stderr=subprocess.PIPE, env={**os.environ, "LD_LIBRARY_PATH": ""}, check=False)
        if process.returncode != 77:
            self.skipTest("this machine has a GPU")
        self.assertIn("no GPU here", process.stderr)


if __name__ == "__main__":
    harness.main()
