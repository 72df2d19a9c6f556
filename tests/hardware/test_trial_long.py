# SPDX-License-Identifier: Apache-2.0
"""peercachectl trial at its full length, a peer that disappears in each step, a disk that fills."""

import glob
import json
import os
import shutil
import subprocess
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from test_trial import Both, TrialTest, harness  # noqa: E402

FILLED = """
mount -t tmpfs -o size=68m none "$0" || exit 77
(until grep -q '] bytes' "$0.log"; do sleep .1; done; dd if=/dev/zero of="$0/fill" bs=1M) &
"$@" 2> "$0.log"
echo "status $? $(ls -A "$0" | grep -v fill)"
"""


class Long(TrialTest):
    def test_a_trial_of_full_length_with_churn(self):
        process = self.trial("--json", "--minutes", "0.5", "--pool-bytes", "128MiB",
                             "--seconds", "1", devices=1, link="ib", quick=False)
        status, out, err = harness.finish(process, 900)
        self.assertIn(status, (0, 1), err)
        steps = {step["name"]: step for step in json.loads(out)["steps"]}
        for name in ("card: payload before its completion", "bytes: one process",
                     "churn: evictions and a kill"):
            self.assertEqual(steps[name]["answer"], "yes", err)
        self.assertEqual(len(steps["bytes: one process"]["data"]), 8)  # 128 MiB are too many
        self.assert_left_nothing()

    def test_where_an_experiment_fails_the_engines_have_the_fallback(self):
        process = self.trial("--json", odd="tail,stale")
        _, out, err = harness.finish(process)
        found = json.loads(out)
        answers = {step["name"]: step["answer"] for step in found["steps"]}
        self.assertEqual(answers["card: payload before its completion"], "no", err)
        self.assertEqual(answers["bytes: one process"], "yes", err)
        self.assertEqual(answers["churn: evictions and a kill"], "yes", err)
        self.assertIn("Go on: ONLY with rail.validate=crc", found["verdict"][0])

    def test_a_response_that_is_repeated_is_told_and_harms_no_page(self):
        """`order`: of two READs in one doorbell the first may be the younger one."""
        done = harness.run(
            [*self.before(2, "ib", "order"), harness.program("engine/peercache-engine"), "--card",
             "mlx5_0,mlx5_1", "--tries", "3000"], env=self.env, capture_output=True, text=True)
        steps = {step["name"]: step for step in map(json.loads, done.stdout.splitlines())}
        self.assertGreater(steps["payload and head in one doorbell"]["against"], 0)
        self.assertEqual(steps["head READ after the payload"]["against"], 0)

    def test_a_disk_that_fills_is_said(self):
        if os.geteuid() or not shutil.which("unshare"):
            self.skipTest("needs root and unshare")
        os.mkdir(self.output)
        done = harness.run(
            ["unshare", "--mount", "sh", "-c", FILLED, self.output,
             harness.program("tools/peercachectl"), "trial", "--quick", "--pool-bytes", "64MiB",
             "--output", self.output], env=self.env, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL, text=True)
        self.assertEqual(done.stdout, "status 2 \n")
        with open(self.output + ".log", encoding="utf-8") as file:
            self.assertIn("is full: the report is not complete", file.read())


class Gone(Both):
    def test_a_peer_that_disappears_in_any_step_is_said(self):
        for step in ("] bytes: one process", "] bytes: the other way", "] peer: end"):
            with self.subTest(step):
                shutil.rmtree(self.output, ignore_errors=True)
                first, second = self.two()
                for process in (first, second):
                    self.until(process, step)
                second.kill()
                harness.ended(second)
                status, out, err = harness.finish(first)
                self.assertIn(status, (0, 1), err)
                self.assertTrue(json.loads(out)["steps"])
                self.assertEqual(len(glob.glob(self.output + "/0/*.html")), 1)


if __name__ == "__main__":
    del Both, TrialTest  # theirs run in test_trial.py
    unittest.main()
