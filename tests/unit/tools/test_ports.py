# SPDX-License-Identifier: Apache-2.0
"""Tests the ports that tools/cluster.py gives to tests: each to one process, free, in a row."""

import os
import random
import socket
import subprocess
import sys
import unittest
from unittest import mock

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(
    os.path.abspath(__file__)))))
sys.path.insert(0, os.path.join(ROOT, "tools"))
import cluster  # noqa: E402


def reserved_elsewhere(port):
    """Could another process reserve the port? It gives it back at once."""
    code = f"import sys; sys.path.insert(0, {ROOT + '/tools'!r}); import cluster; " \
           f"sys.exit(cluster.reserve({port}))"
    return subprocess.run([sys.executable, "-c", code], check=False).returncode


class Ports(unittest.TestCase):
    def test_ports_in_a_row_are_all_reserved(self):
        ports = cluster.free_ports(3)
        self.assertEqual(ports, list(range(ports[0], ports[0] + 3)))
        for port in ports:
            self.assertFalse(reserved_elsewhere(port), port)

    def test_a_row_with_a_port_that_is_used_or_reserved_is_not_given(self):
        with socket.socket() as used:
            free = cluster.free_ports(1)[0]
            used.bind(("127.0.0.1", 0))
            for taken in used.getsockname()[1], free:
                with mock.patch.object(random, "randrange", side_effect=[taken - 1, 20000]), \
                        mock.patch.object(cluster, "reserve", side_effect=lambda port, taken=taken:
                                          port != taken):
                    self.assertEqual(cluster.free_ports(2), [20000, 20001])
                self.assertFalse(cluster.reserve(taken))

    def test_the_defaults_of_the_engine_are_not_given(self):
        for first in 31996, 31997, 31998:
            with mock.patch.object(random, "randrange", side_effect=[first, 20000]), \
                    mock.patch.object(cluster, "reserve", return_value=True):
                self.assertEqual(cluster.free_ports(2), [20000, 20001])


if __name__ == "__main__":
    unittest.main(verbosity=2)
