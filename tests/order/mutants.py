# SPDX-License-Identifier: Apache-2.0
"""Ordering mutants: each removes one barrier, acquire or release from the engine's own sources.

write() writes the mutated file below a directory, at its path from the root; -iquote DIRECTORY
makes a compiler include it instead. A mutant of MUTANTS replaces text that must occur exactly once
in one function; otherwise it is an error. each() makes more: for each call of an ordering in a file
one with a weaker call, and for each fence beside a store one in which they have changed places.
"""

import os
import re
import sys

FENCE, NOTHING = "shm_fence_sleep();", "(void)0;"

# name: file, function, text in it, its replacement
MUTANTS = {
    "flush": ("engine/client/rings/submit.c", "wake_told", FENCE, NOTHING),
    "flush_ctl": ("engine/client/rings/submit.c", "submit_ctl_flush", FENCE, NOTHING),
    "client_sleep": ("engine/client/call/wait.c", "sleep_until", FENCE, NOTHING),
    "rail_wake": ("engine/rail/poll_core.c", "poll_wake", FENCE, NOTHING),
    "rail_rest": ("engine/rail/poll_core.c", "poll_sleep", FENCE, NOTHING),
    "rail_command_send": ("engine/rail/open.c", "rail_command_send", FENCE, NOTHING),
    "ctl_flush": ("engine/control/clients/ctl.c", "ctl_flush", FENCE, NOTHING),
    "slot_enter": ("engine/client/write/set.c", "slot_enter", "shm_fence_store_load();", NOTHING),
    "slot_enter_drain": ("engine/client/write/set.c", "slot_enter", "shm_fence_stream();", NOTHING),
    "slot_leave": ("engine/client/write/set.c", "slot_leave", "shm_fence_stream();", NOTHING),
    "channel_close": ("engine/control/clients/ctl.c", "ctl_channel_close",
                      "shm_fence_store_load();", NOTHING),
    "channel_end": ("engine/control/pages/warm.c", "channel_end",
                    "shm_fence_store_load();", NOTHING),
    "control_sleep": ("engine/control/loop.c", "loop_sleep_or_work", FENCE, NOTHING),
    "pool_rest": ("engine/control/pages/pool.c", "pool_rest", "shm_fence_clock();", NOTHING),
    "fence_clock_x86": ("engine/abi/ring.h", "shm_fence_clock", "\\n\\tlfence", ""),
    "fence_clock_arm": ("engine/abi/ring.h", "shm_fence_clock", "\\n\\tisb", ""),
    "fence_lease_x86": ("engine/abi/ring.h", "shm_fence_lease", "lfence", "nop"),
    "fence_lease_arm": ("engine/abi/ring.h", "shm_fence_lease", "\\n\\tisb", ""),
    "owner_before_cqe": ("dv/hot.h", "dv_poll", "dv_owner_before_cqe();", NOTHING),
    "doorbell_flush": ("dv/hot.h", "dv_ring", "dv_doorbell_flush();", NOTHING),
    "wqe_before_record": ("dv/hot.h", "dv_ring", "dv_wqe_before_record();", NOTHING),
    "record_before_doorbell": ("dv/hot.h", "dv_ring", "dv_record_before_doorbell();", NOTHING),
    "cqe_before_record": ("dv/hot.h", "dv_poll", "dv_cqe_before_record();", NOTHING),
}


# orderings and what they become without their order
WEAKER = {r"shm_fence_\w+\(\);": NOTHING,
          r"shm_store_release(64)?\(": r"shm_store\1(",
          r"shm_load_acquire(64)?\(": r"shm_load\1(",
          r"shm_exchange\((.*), (.*)\)": r"(*(\1) = (\2))"}
# a fence beside a line with an access to shared memory
NEIGHBOURS = [r"(\t+shm_fence_\w+\(\);[^\n]*\n)(\t+[^\n]*\bshm_store\w*\([^\n]*;\n)",
              r"(\t+[^\n]*\bshm_store\w*\([^\n]*;\n)(\t+shm_fence_\w+\(\);[^\n]*\n)"]


def each(text):
    """Returns for each mutant of a source its name, with the line, and the mutated text."""
    found = {}

    def add(kind, match, new):
        line = text.count("\n", 0, match.start()) + 1
        found[f"{kind} of line {line}"] = text[:match.start()] + new + text[match.end():]

    for ordering, new in WEAKER.items():
        for match in re.finditer(r"^(\t.*?)\b(%s)" % ordering, text, re.M):
            weak = re.sub(ordering, new, match[2])
            add("weaker", match, match[1] + weak)
    for pair in NEIGHBOURS:
        for match in re.finditer(pair, text):
            add("changed places", match, match[2] + match[1])
    return found


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
