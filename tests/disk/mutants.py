#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Planted bugs: copies of the sources of engine/disk with one rule broken; tests must find each.

    tests/disk/mutants.py NAME SOURCE_ROOT OUTPUT    writes the mutated file

A mutant replaces text that must occur exactly once in the file; otherwise it is an error.
"""

import os
import sys

SEGMENT, STORE, SCAN, RECOVER = "segment.c", "store.c", "scan.c", "recover.c"

# name: file, text in it, its replacement
MUTANTS = {
    "no_sync_before_footer": (SEGMENT, "path->segment[oldest].step = 0;",
                              "path->segment[oldest].step = 1;"),
    "no_invalidation": (SEGMENT, "&block[1]);\n\tsegment_open_submit(path);",
                        "&block[1]);\n\tsegment->state = SEGMENT_READY;"),
    "unsynced_invalidation": (SEGMENT, "if (segment->step++ < 2)\n\t\tsegment_open_submit",
                              "if (segment->step++ < 1)\n\t\tsegment_open_submit"),
    "no_epoch_check": (SCAN, " && block->epoch == scanner->epoch;", ";"),
    "unsynced_tombstone": (STORE, "path_submit(path, &path->batch_io);",
                           "TAILQ_INSERT_TAIL(&path->flying, &path->batch_io, flying);\n"
                           "\tremove_batch_synced(&path->batch_io);"),
    "tail_not_zeroed": (STORE, "memset(tail + rest, 0, PAGE_UNIT - rest);",
                        "memcpy(tail + rest, (const uint8_t *)request->data + whole + rest,\n"
                        "\t\t\tPAGE_UNIT - rest);"),
    "tombstones_not_salvaged": (RECOVER, "(void)recovery_run(path, path_tombstones_synced);", ""),
    "oldest_salvaged_first": (RECOVER, "ordinal > path->segment[newest].ordinal))",
                              "ordinal < path->segment[newest].ordinal))"),
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
