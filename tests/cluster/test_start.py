# SPDX-License-Identifier: Apache-2.0
"""Starting an engine: what is found before memory is made, who waits for what, signals."""

import os
import signal
import unittest

import harness


class Signals(harness.ClusterTest):
    def test_sighup_is_ignored(self):
        engines = self.start(1, pool_bytes="16MiB")
        pid = engines.process[0].pid
        os.kill(pid, signal.SIGHUP)
        with open(f"/proc/{pid}/status", encoding="ascii") as status:
            ignored = next(int(line.split()[1], 16) for line in status
                           if line.startswith("SigIgn:"))
        self.assertTrue(ignored >> (signal.SIGHUP - 1) & 1)
        self.replay(engines, "--requests", 5)
        self.assertEqual(engines.process[0].pid, pid)
        self.stop_cleanly(engines)


if __name__ == "__main__":
    unittest.main(verbosity=2)
