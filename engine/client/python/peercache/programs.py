# SPDX-License-Identifier: Apache-2.0
"""The programs of the package: entry points of a wheel, and how `python3 -m` ends. Main thread."""

import os
import sys
from typing import Callable, NoReturn


def become() -> None:
    """Becomes the program that has the name of this script."""
    os.environ.setdefault("PEERCACHE_PYTHON", sys.executable)  # peercache-bench runs the package
    programs = os.path.join(os.path.dirname(__file__), "bin")
    os.execv(os.path.join(programs, os.path.basename(sys.argv[0])), sys.argv)


def as_mooncake() -> None:
    """Becomes a command, in whose Python mooncake.store is that of this package."""
    if len(sys.argv) < 2 or sys.argv[1] in ("-h", "--help"):
        print("usage: peercache-as-mooncake COMMAND ...\n"
              "Runs COMMAND with a package mooncake first on PYTHONPATH: its store is PeerCache.")
        sys.exit(0 if len(sys.argv) > 1 else 2)
    first = os.path.join(os.path.dirname(os.path.abspath(__file__)), "as_mooncake")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (first, os.environ.get("PYTHONPATH"))))
    try:
        os.execvp(sys.argv[1], sys.argv[1:])
    except OSError as error:
        sys.exit(f"peercache-as-mooncake: cannot run {sys.argv[1]!r}: {error.strerror}")


def run(program: str, main: Callable[[], int]) -> NoReturn:
    """Runs a module for `program`, which has become Python, and ends with its status; 2: what it
    wrote cannot be written."""
    os.environ.pop("PYTHONSAFEPATH", None)  # become_python() of tools/common.c means this process
    status = main()
    try:
        sys.stdout.flush()
    except OSError as failure:
        print(f"{program}: cannot write to standard output: {failure.strerror}", file=sys.stderr)
        os._exit(2)
    sys.exit(status)
