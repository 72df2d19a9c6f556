# SPDX-License-Identifier: Apache-2.0
"""The client of test_deb.py, which runs it in its hosts with the package python3-peercache.

    deb_pages.py set COUNT          stores the pages 0 to COUNT - 1
    deb_pages.py read COUNT         reads them
    deb_pages.py load FROM FOLDER   stores pages from FROM on and reads earlier ones, 0 or more of
                                    each, until FOLDER/stop exists; makes FOLDER/began

Prints JSON: how many pages of `asked` were hits, and how many had wrong bytes; of a load, the
first page that it did not store, and of its reads the longest time without a hit.
"""

import ctypes
import json
import os
import sys
import time

from peercache import Session

BYTES, BATCH, TIMEOUT_MS = 4096, 16, 15000


def page_bytes(i):
    return i.to_bytes(8, "little") * (BYTES // 8)


class Pages:
    """A session with the memory of one batch."""

    def __init__(self):
        self.session = Session(None, "always")
        self.memory = ctypes.create_string_buffer(BYTES * BATCH)
        self.at = ctypes.addressof(self.memory)

    def call(self, verb, first, count):
        return verb("deb", [b"%d" % i for i in range(first, first + count)],
                    [self.at + i * BYTES for i in range(count)], BYTES, TIMEOUT_MS)

    def set(self, first, count):
        """Whether all of them are stored."""
        self.memory[:count * BYTES] = b"".join(map(page_bytes, range(first, first + count)))
        return all(self.call(self.session.set, first, count))

    def get(self, first, count):
        """Number of hits, and of those with wrong bytes."""
        found = self.call(self.session.get, first, count)
        wrong = [1 for i, hit in enumerate(found)
                 if hit and self.memory[i * BYTES:(i + 1) * BYTES] != page_bytes(first + i)]
        return sum(found), len(wrong)


def pages_read(pages, count):
    hits = wrong = 0
    for first in range(0, count, BATCH):
        got, bad = pages.get(first, min(BATCH, count - first))
        hits, wrong = hits + got, wrong + bad
    return {"asked": count, "hits": hits, "wrong": wrong}


def pages_set(pages, count):
    for first in range(0, count, BATCH):
        while not pages.set(first, min(BATCH, count - first)):
            pass
    return {"asked": count}


def load(pages, begin, folder):
    """`begin` is negative: only reads the pages below -begin."""
    at = max(begin, 0)
    asked = hits = wrong = first = 0
    longest, hit_at = 0.0, time.monotonic()
    with open(os.path.join(folder, "began"), "w", encoding="ascii"):
        pass
    while not os.path.exists(os.path.join(folder, "stop")):
        if begin >= 0 and pages.set(at, BATCH):
            at += BATCH  # a batch that is not stored is tried again
        got, bad = pages.get(first, BATCH)
        asked, hits, wrong = asked + BATCH, hits + got, wrong + bad
        if got:
            longest, hit_at = max(longest, time.monotonic() - hit_at), time.monotonic()
        first = (first + BATCH) % (abs(begin) // BATCH * BATCH)
        time.sleep(0.002)
    return {"asked": asked, "hits": hits, "wrong": wrong, "next": at,
            "longest_s": round(longest, 3)}


def main():
    what, count = sys.argv[1], int(sys.argv[2])
    pages = Pages()
    if what == "load":
        print(json.dumps(load(pages, count, sys.argv[3])))
    else:
        print(json.dumps({"set": pages_set, "read": pages_read}[what](pages, count)))


if __name__ == "__main__":
    main()
