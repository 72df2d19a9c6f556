# SPDX-License-Identifier: Apache-2.0
"""Runs the command lines of README.md that build a release and start engines on this machine: those
of tools/demo and tools/soft-connectx. Exit status 77: not root."""

import os
import shutil
import subprocess
import sys
import unittest

from commands import README, ROOT, bare, commands, shell
from not_run import why_not

LIMIT = 1200  # seconds of one command, the first of which builds: finds hangs


class Demo(unittest.TestCase):
    def test_the_lines_of_the_readme_succeed(self):
        run = [bare(command) for block in shell(README) for command in commands(block)]
        run = [command for command in run if not why_not(command)]
        self.assertGreater(len(run), 4)
        env = {**os.environ}
        env.pop("PEERCACHE_BUILD", None)  # the build of a reader
        for command in run:
            with self.subTest(command=command):
                done = subprocess.run(["bash", "-c", command], cwd=ROOT, text=True, timeout=LIMIT,
                                      stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, env=env,
                                      stderr=subprocess.STDOUT, check=False)
                self.assertEqual(done.returncode, 0, done.stdout[-3000:])


if __name__ == "__main__":
    if os.geteuid() or not shutil.which("ib_read_bw"):
        print("skipped: needs root, and perftest")
        sys.exit(77)
    unittest.main(verbosity=2)
