# SPDX-License-Identifier: Apache-2.0
"""Values to 256 MiB under keys of any length, for classes over `peercache.Session` and Channel.

A value above 64 MiB, the longest page, is stored in parts. The page under its key is a list: MAGIC,
the length, and a random number, of which the keys of the parts are made. A list is stored after its
parts, and a part under its key never changes, so a reader has the bytes of one writer. A value of
which a part is missing is a miss, and its list is removed, so that the next put stores it anew.

What is done is a generator of *steps*: it yields a call, (name of the method, keys, addresses and
sizes of segments), and is sent its results: lengths of get_sized, else numbers of enum pc_result.
run() makes the calls on a session; a class with a channel makes them as answers come.
"""

import ctypes
import hashlib
import os
import struct
import time
from itertools import chain
from typing import Any, Generator, Sequence

from peercache._peercache import SEGMENTS_MAX
from peercache.places import PAGE_BYTES_MAX

Steps = Generator[tuple, list, Any]

VALUE_BYTES_MAX = 256 << 20
PART_BYTES = 16 << 20
KEY_BYTES_MAX = 1024  # of the library; a longer key is stored under its digest
HIT, MISS, STALE, INVALID = 0, 1, 2, 6  # enum pc_result
MAGIC = b"\0PeerCache: list of parts\r\n\x1a"
LIST = struct.Struct(f"<{len(MAGIC)}sQ16s")
# The arguments of a call behind its deadline, with which it returns numbers.
NUMBERS = {"get": (False, True), "set": (False, True), "get_sized": (), "exists": (True,),
           "remove": (True,)}


def key_of(key: Any) -> Any:
    """The key under which the library has a key of any length."""
    raw = key.encode() if isinstance(key, str) else key
    return raw if len(raw) <= KEY_BYTES_MAX else \
        b"\0sha256:" + hashlib.sha256(raw).hexdigest().encode()


def keys_of(keys: Sequence[Any]) -> list:
    """The keys as the library takes them. Raises TypeError for one text in place of a list."""
    if isinstance(keys, (str, bytes)):
        raise TypeError("keys is one text: give a list of keys")
    keys = list(keys)
    # a character has at most 4 bytes
    return [key_of(key) for key in keys] if keys and max(map(len, keys)) > KEY_BYTES_MAX // 4 \
        else keys


def run(session: Any, space: str, timeout_ms: int, steps: Steps) -> Any:
    """Makes the calls of the steps, all by one deadline. Returns what the steps return.

    Pages of more than SEGMENTS_MAX segments are copied through the session's memory.
    """
    end, results = time.monotonic() + timeout_ms / 1000, None
    try:
        while True:
            verb, *arguments = steps.send(results)
            rest = max(1, int((end - time.monotonic()) * 1000))
            staged = len(arguments) > 1 and len(arguments[1]) > SEGMENTS_MAX * len(arguments[0])
            results = getattr(session, verb)(
                space, *arguments, rest, *((True, True) if staged else NUMBERS[verb]))
    except StopIteration as done:
        return done.value


def cut(ptrs: Sequence[int], sizes: Sequence[int], nbytes: int, each: int) -> list:
    """The first `nbytes` of the segments in pieces of `each`: lists of addresses and of sizes."""
    pieces: list = []
    room = 0
    for ptr, length in zip(ptrs, sizes):
        length = min(length, nbytes)
        nbytes -= length
        while length:
            if not room:
                pieces.append(([], []))
                room = each
            now = min(length, room)
            pieces[-1][0].append(ptr)
            pieces[-1][1].append(now)
            ptr, length, room = ptr + now, length - now, room - now
    return pieces


def move(verb: str, keys: Sequence[Any], pages: list) -> Steps:
    """get or set of pages of any number of segments: one call for those with the same number."""
    results = [INVALID] * len(keys)
    for count in {len(ptrs) for ptrs, _ in pages}:
        some = [i for i, (ptrs, _) in enumerate(pages) if len(ptrs) == count]
        found = yield (verb, [keys[i] for i in some],
                       list(chain.from_iterable(pages[i][0] for i in some)),
                       list(chain.from_iterable(pages[i][1] for i in some)))
        for i, result in zip(some, found):
            results[i] = result
    return results


def parts_of(number: bytes, nbytes: int) -> list[bytes]:
    """The keys of the parts of a value."""
    return [b"\0part:%s:%d" % (number.hex().encode(), part)
            for part in range(-(-nbytes // PART_BYTES))]


def lists(keys: Sequence[Any]) -> Steps:
    """(length, keys of the parts) of each key; no keys: one page; length 0: no value."""
    room = ctypes.create_string_buffer(LIST.size * len(keys))
    at = ctypes.addressof(room)
    lengths = yield ("get_sized", keys, range(at, at + len(room) - 1, LIST.size), LIST.size)
    found = []
    for i, length in enumerate(lengths):
        magic, nbytes, number = LIST.unpack_from(room, i * LIST.size)
        listed = length == LIST.size and magic == MAGIC and nbytes <= VALUE_BYTES_MAX
        found.append((nbytes, parts_of(number, nbytes)) if listed else (abs(length), []))
    return found


def store(key: Any, ptrs: Sequence[int], sizes: Sequence[int]) -> Steps:
    """Stores a value in parts, unless the key has one. Returns a number of enum pc_result."""
    nbytes = sum(sizes)
    [(length, names)] = yield from lists([key])
    if names:
        there = yield ("exists", names)
        if not any(there):  # they also count as used
            return HIT if length == nbytes else INVALID
        yield ("remove", [key])
    elif length:
        return HIT if length == nbytes else INVALID
    number = os.urandom(16)
    names = parts_of(number, nbytes)
    results = yield from move("set", names, cut(ptrs, sizes, nbytes, PART_BYTES))
    if not any(results):
        listed = ctypes.create_string_buffer(LIST.pack(MAGIC, nbytes, number), LIST.size)
        results = yield ("set", [key], [ctypes.addressof(listed)], LIST.size)
        [(length, stored)] = yield from lists([key])
        if stored == names or not (length or any(results)):  # its list cannot be read just now
            return HIT
        if not any(results):  # another process has stored a value meanwhile
            results = [HIT if length == nbytes else INVALID]
    yield ("remove", names)
    return max(results)


def write(keys: Sequence[Any], ptrs: Sequence[int], sizes: Sequence[int]) -> Steps:
    """Stores values of len(ptrs) / len(keys) segments each. Returns numbers of enum pc_result."""
    each = len(ptrs) // len(keys)
    rows = range(0, len(keys) * each, each)
    totals = sizes if each == 1 else [sum(sizes[at:at + each]) for at in rows]
    own = {i for i, nbytes in enumerate(totals) if nbytes > PAGE_BYTES_MAX or nbytes == LIST.size}
    if not own:
        return (yield ("set", keys, ptrs, sizes))
    pages = [(ptrs[at:at + each], sizes[at:at + each]) for at in rows]
    some = [i for i in range(len(keys)) if i not in own]
    results = [INVALID] * len(keys)
    for i in sorted(own):
        if totals[i] <= VALUE_BYTES_MAX and 0 not in pages[i][0]:
            results[i] = yield from store(keys[i], *pages[i])
    found = yield from move("set", [keys[i] for i in some], [pages[i] for i in some])
    for i, result in zip(some, found):
        results[i] = result
    return results


def read_one(key: Any, ptrs: Sequence[int], sizes: Sequence[int]) -> Steps:
    """read() of one key whose value may be a list, or whose room is longer than a page."""
    [(length, names)] = yield from lists([key])
    if not length or length > sum(sizes) or 0 in ptrs:
        return -length
    pieces = cut(ptrs, sizes, length, PART_BYTES if names else PAGE_BYTES_MAX)
    results = yield from move("get", names or [key], pieces)
    if names and {MISS, STALE} & set(results):
        yield ("remove", [key])
    return 0 if any(results) else length


def read(keys: Sequence[Any], ptrs: Sequence[int], sizes: Sequence[int]) -> Steps:
    """Reads values of at most the length of their segments. Returns lengths as get_sized does."""
    each = len(ptrs) // len(keys)
    own = set()
    if max(sizes) * each > PAGE_BYTES_MAX:
        own = {i for i in range(len(keys)) if sum(sizes[i * each:][:each]) > PAGE_BYTES_MAX}
    lengths = [0] * len(keys)
    some = [i for i in range(len(keys)) if i not in own]
    if some:
        pages = (keys, ptrs, sizes) if not own else (
            [keys[i] for i in some],
            list(chain.from_iterable(ptrs[i * each:][:each] for i in some)),
            list(chain.from_iterable(sizes[i * each:][:each] for i in some)))
        for i, length in zip(some, (yield ("get_sized", *pages))):
            lengths[i] = length
    for i, length in enumerate(lengths):
        if i in own or abs(length) == LIST.size:
            lengths[i] = yield from read_one(keys[i], ptrs[i * each:][:each],
                                             sizes[i * each:][:each])
    return lengths


def remove(keys: Sequence[Any]) -> Steps:
    """Removes values with their parts. Returns numbers of enum pc_result."""
    found = yield from lists(keys)
    parts = list(chain.from_iterable(names for _, names in found))
    results = yield ("remove", [*keys, *parts])
    return results[:len(keys)]
