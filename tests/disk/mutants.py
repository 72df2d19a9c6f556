#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Planted bugs: copies of the sources of engine/disk with one rule broken; tests must find each.

    tests/disk/mutants.py NAME SOURCE_ROOT OUTPUT    writes the mutated file

A mutant replaces text that must occur exactly once in the file; otherwise it is an error.
"""

import os
import sys

SEGMENT, STORE, SCAN, INDEX = "segment.c", "store.c", "scan.c", "index.c"

# name: file, text in it, its replacement
MUTANTS = {
    "no_sync_before_footer": (SEGMENT, "path->segment[i].step = 0;",
                              "path->segment[i].step = 1;"),
    "no_invalidation": (SEGMENT, "_seal(block);\n\tsegment_open_submit(path);",
                        "_seal(block);\n\tsegment->state = SEGMENT_READY;"),
    "unsynced_invalidation": (SEGMENT, "if (segment->step++ < 2)\n\t\tsegment_open_submit",
                              "if (segment->step++ < 1)\n\t\tsegment_open_submit"),
    "no_epoch_check": (SCAN, "block->epoch == scanner->segment->epoch && ", ""),
    "open_not_verified": (SCAN, "if (!page_is_whole(entry, pages))", "if (0)"),
    "forgotten_is_added": (INDEX, "if (forgotten && shm_load8(forgotten)) {", "if (0) {"),
    "tail_not_zeroed": (STORE, "memset(tail + rest, 0, PAGE_UNIT - rest);",
                        "memcpy(tail + rest, (const uint8_t *)request->data + whole + rest,\n"
                        "\t\t\tPAGE_UNIT - rest);"),
}


def main():
    name, root, output = sys.argv[1:]
    file, old, new = MUTANTS[name]
    with open(os.path.join(root, "engine", "disk", file), encoding="utf-8") as source:
        text = source.read()
    if text.count(old) != 1:
        sys.exit(f"mutants.py: {name}: {old!r} does not occur exactly once in {file}: "
                 "update the table MUTANTS")
    with open(output, "w", encoding="utf-8") as mutant:
        mutant.write(text.replace(old, new))


if __name__ == "__main__":
    main()
