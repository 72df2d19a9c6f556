# SPDX-License-Identifier: Apache-2.0
"""Runs the command lines of README.md and tools/README.md that build a release and start engines on
this machine: those of tools/demo. Exit status 77: not root."""

import os
import subprocess
import sys
import unittest

from commands import README, README_TOOLS, ROOT, bare, commands, shell
from not_run import why_not

LIMIT = 1200  # seconds of one command, the first of which builds: finds hangs


class Demo(unittest.TestCase):
    def test_the_lines_of_the_readmes_succeed(self):
        run = [bare(command) for block in shell(README) + shell(README_TOOLS)
               for command in commands(block)]
        run = [command for command in dict.fromkeys(run) if not why_not(command)]
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
    if os.geteuid():
        print("skipped: needs root")
        sys.exit(77)
    unittest.main(verbosity=2)
