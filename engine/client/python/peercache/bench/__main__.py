# SPDX-License-Identifier: Apache-2.0
"""peercache-bench, the part in Python: `python3 -m peercache.bench COMMAND [OPTION]...`"""

import argparse
import os
import sys

from peercache.bench import calls, compare, hosts, micro, options, served, sweep
from peercache.bench.client import log_to


def run(given: argparse.Namespace) -> int:
    """Runs the command. Returns the exit status."""
    if given.command in ("get", "set", "exists"):
        return calls.run(given)
    if given.command == "serve":
        return hosts.serve(given)
    if given.command == "drive":
        return hosts.drive(given)
    if given.command == "served":
        return served.run(given)
    if given.command == "compare" and given.tags:
        return compare.run(given)
    if given.command in ("micro", "compare"):
        return micro.run(given)
    return sweep.run(given)


def main() -> int:
    """Returns the exit status: 1 a page was wrong, a request failed or nothing moved, 2 wrong
    usage, no engine, no server, no output or an error that ended it early, 130 interrupted before
    there was a result."""
    given = options.parse()
    try:
        log_to(given.log_level, given.log_file)
        return run(given)
    except KeyboardInterrupt:
        print("peercache-bench: interrupted", file=sys.stderr)
        return 130
    except (OSError, RuntimeError, ValueError) as error:
        print(f"peercache-bench: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    status = main()
    try:
        sys.stdout.flush()
    except OSError as failure:
        print(f"peercache-bench: cannot write to standard output: {failure.strerror}",
              file=sys.stderr)
        os._exit(2)
    sys.exit(status)
