#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Instructions of a 64-byte READ, post and completion together, 32 per doorbell, by callgrind.

    tests/verbs/test_instructions.py [BUILD]

Through libibverbs (ibv_post_send and ibv_poll_cq) and through dv/hot.h, on the same emulated
ConnectX. Only the posting and polling functions and their callees are counted. Exits with 1 when
dv/hot.h takes more than 0.4 of the instructions of libibverbs.
"""

import os
import re
import shutil
import subprocess
import sys

LIMIT = 0.4
ROUNDS = 100


def instructions(functions, command):
    """Returns callgrind's count for the functions with their callees, and the command's output."""
    done = subprocess.run(
        ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null"]
        + [f"--toggle-collect={function}" for function in functions] + command,
        capture_output=True, text=True, timeout=300)
    collected = re.search(r"Collected : (\d+)", done.stderr)
    if done.returncode or not collected:
        sys.exit(done.stdout + done.stderr)
    return int(collected[1]), done.stdout


def count(program, way, parts=("post", "poll")):
    collected, printed = instructions([f"count_{way}_{part}" for part in parts],
                                      [program, way, str(ROUNDS)])
    return collected / int(re.search(r"^reads (\d+)", printed, re.M)[1])


def main():
    build = sys.argv[1] if len(sys.argv) > 1 else "build"
    if not shutil.which("valgrind"):
        print("skipped: valgrind not found")
        return 77
    program = os.path.join(build, "tests", "verbs", "count_reads")
    verbs, hot = count(program, "verbs"), count(program, "hot")
    print(f"libibverbs {verbs:.1f}  dv/hot.h {hot:.1f}  ratio {hot / verbs:.3f}")
    return 0 if hot <= LIMIT * verbs else 1


if __name__ == "__main__":
    sys.exit(main())
