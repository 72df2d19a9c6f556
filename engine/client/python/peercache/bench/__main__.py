# SPDX-License-Identifier: Apache-2.0
"""peercache-bench, the part in Python: `python3 -m peercache.bench COMMAND [OPTION]...`"""

import sys

from peercache import programs
from peercache.bench import calls, options, served


def main() -> int:
    """Returns the exit status: 1 a page was wrong, a request failed or nothing moved, 2 wrong
    usage, no engine, no server, no output or an error that ended it early, 130 interrupted before
    there was a result."""
    given = options.parse()
    try:
        return served.run(given) if given.command == "served" else calls.run(given)
    except KeyboardInterrupt:
        print("peercache-bench: interrupted", file=sys.stderr)
        return 130
    except (OSError, RuntimeError, ValueError) as error:
        print(f"peercache-bench: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    programs.run("peercache-bench", main)
