# SPDX-License-Identifier: Apache-2.0
"""The programs of the package, as entry points of a wheel. Main thread."""

import os
import sys


def become() -> None:
    """Becomes the program that has the name of this script."""
    os.environ.setdefault("PEERCACHE_PYTHON", sys.executable)  # peercache-bench runs the package
    programs = os.path.join(os.path.dirname(__file__), "bin")
    os.execv(os.path.join(programs, os.path.basename(sys.argv[0])), sys.argv)
