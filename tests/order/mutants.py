#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Ordering mutants: each removes one barrier, acquire or release from the engine's own sources.

    tests/order/mutants.py --list                 prints the names, one per line
    tests/order/mutants.py NAME SOURCE DIRECTORY  writes the mutated file below DIRECTORY, at its
                                                  path from the root; -iquote DIRECTORY makes a
                                                  compiler include it instead
A mutant replaces text that must occur exactly once in one function; otherwise it is an error.
"""

import os
import re
import sys

FENCE, NOTHING = "shm_fence_sleep();", "(void)0;"

# name: file, function, text in it, its replacement
MUTANTS = {
    "flush": ("engine/client/submit.c", "wake_told", FENCE, NOTHING),
    "flush_ctl": ("engine/client/submit.c", "submit_ctl_flush", FENCE, NOTHING),
    "client_sleep": ("engine/client/wait.c", "sleep_until", FENCE, NOTHING),
    "rail_wake": ("engine/rail/poll_core.c", "poll_wake", FENCE, NOTHING),
    "rail_rest": ("engine/rail/poll_core.c", "rest", FENCE, NOTHING),
    "rail_command_send": ("engine/rail/open.c", "rail_command_send", FENCE, NOTHING),
    "ctl_flush": ("engine/control/ctl.c", "ctl_flush", FENCE, NOTHING),
    "slot_enter": ("engine/client/set.c", "slot_enter", "shm_fence_store_load();", NOTHING),
    "channel_close": ("engine/control/ctl.c", "ctl_channel_close",
                      "shm_fence_store_load();", NOTHING),
    "channel_end": ("engine/control/warm_owner.c", "channel_end",
                    "shm_fence_store_load();", NOTHING),
    "control_sleep": ("engine/control/loop.c", "sleep_or_work", FENCE, NOTHING),
    "ring_publish": ("engine/abi/ring.h", "ring_publish_turned", "shm_store_release64(",
                     "shm_store64("),
    "ring_release": ("engine/abi/ring.h", "ring_release", "shm_store_release(", "shm_store("),
    "page_head_retire": ("engine/abi/page.h", "page_head_retire", "shm_fence_store();", NOTHING),
    "page_head_length": ("engine/abi/page.h", "page_head_length", "shm_fence_load();", NOTHING),
    "pool_rest": ("engine/control/pool.c", "pool_rest", "shm_fence_clock();", NOTHING),
    "fence_clock_x86": ("engine/abi/ring.h", "shm_fence_clock", "\\n\\tlfence", ""),
    "fence_clock_arm": ("engine/abi/ring.h", "shm_fence_clock", "\\n\\tisb", ""),
    "fence_lease_x86": ("engine/abi/ring.h", "shm_fence_lease", "lfence", "nop"),
    "fence_lease_arm": ("engine/abi/ring.h", "shm_fence_lease", "\\n\\tisb", ""),
    "statistics_begin": ("engine/abi/statistics.h", "statistics_write_begin",
                         "shm_fence_store();", NOTHING),
    "statistics_end": ("engine/abi/statistics.h", "statistics_write_end", "shm_store_release(",
                       "shm_store("),
    "statistics_look": ("engine/abi/statistics.h", "statistics_read", "shm_load_acquire(",
                        "shm_load("),
    "statistics_look_again": ("engine/abi/statistics.h", "statistics_read", "shm_fence_load();",
                              NOTHING),
    "shard_move": ("engine/control/shard.c", "cell_store",
                   "\n\n\tshm_fence_store();\n", "\n\n"),
    # snapshots_publish() and snapshots_newest() hand buffers over with it
    "exchange": ("engine/abi/ring.h", "shm_exchange", "__ATOMIC_SEQ_CST", "__ATOMIC_RELAXED"),
    "owner_before_cqe": ("dv/hot.h", "dv_poll", "dv_owner_before_cqe();", NOTHING),
    "doorbell_flush": ("dv/hot.h", "dv_ring", "dv_doorbell_flush();", NOTHING),
    "wqe_before_record": ("dv/hot.h", "dv_ring", "dv_wqe_before_record();", NOTHING),
    "record_before_doorbell": ("dv/hot.h", "dv_ring", "dv_record_before_doorbell();", NOTHING),
    "cqe_before_record": ("dv/hot.h", "dv_poll", "dv_cqe_before_record();", NOTHING),
}


def mutate(text, function, old, new):
    """Returns `text` with `old` replaced in the body of the function."""
    body = re.search(r"^\w[^\n]*\b%s\([^;{]*\)\n\{\n.*?^\}" % function, text, re.M | re.S)
    if not body or body[0].count(old) != 1:
        sys.exit(f"mutants.py: {old} does not occur exactly once in {function}(): "
                 "update the table MUTANTS")
    return text[:body.start()] + body[0].replace(old, new) + text[body.end():]


def write(name, root, directory):
    path, function, old, new = MUTANTS[name]
    with open(os.path.join(root, path), encoding="utf-8") as file:
        text = mutate(file.read(), function, old, new)
    to = os.path.join(directory, path)
    os.makedirs(os.path.dirname(to), exist_ok=True)
    with open(to, "w", encoding="utf-8") as file:
        file.write(text)


def main():
    if sys.argv[1:] == ["--list"]:
        print("\n".join(MUTANTS))
        return 0
    if len(sys.argv) < 4 or sys.argv[1] not in MUTANTS:
        sys.exit(__doc__)
    write(*sys.argv[1:4])
    for stamp in sys.argv[4:]:
        with open(stamp, "w", encoding="utf-8") as file:
            file.write(f"/* {sys.argv[1]} */\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
