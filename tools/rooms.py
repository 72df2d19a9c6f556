#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""
The calls in engine/, by the symbols of the objects of a build folder: how full the folders are,
which external functions have one user only, and whether calls between the rooms of engine/control
and of engine/client point down.

    tools/rooms.py BUILD            prints the figures
    tools/rooms.py BUILD --advise   also each external function that one other file uses
    tools/rooms.py BUILD --check    exit 1 if a figure is above its limit in LIMITS

A function is external if the linker sees it. Its users are the other product files that use it; a
test is no user. A call points upward if the caller's room stands below that of the function in
ROOMS. What two files share by a header (fields, inline functions) is not seen. Exit status 77: the
folder has no objects that nm can read. Python 3.9, no packages.
"""
import argparse
import collections
import os
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))

# From the top of the house to its floor. The root is the folder engine/control itself.
ROOMS = ["root", "observe", "conns", "clients", "copies", "directory", "pages", "members", "net",
         "base"]
CONTROL, CLIENT = "engine/control", "engine/client"
HOUSES = {CONTROL: ROOMS,
          CLIENT: ["explain", "call", "read", "write", "lookup", "attach", "page", "rings", "root"]}

# --check fails above these. They only go down: lower them to what the tree has reached.
LIMITS = {
    "files in the fullest folder": 26,  # engine/control/pages, since pages.h is seven headers
    "pairs of rooms both ways": 0,
    "functions called upward": 0,
    "functions called upward in engine/client": 4,  # write/clear.c makes calls of its own
    "arrows between rooms": 42,
    # in percent of the external functions of the folder
    "one user in engine/client": 42,
    "one user in engine/control": 68,
    "one user in engine/disk": 78,
    "one user in engine/keeper": 88,
    "one user in engine/rail": 76,
}
SOURCES = (".c", ".h", ".def", ".py", ".proto", ".in")


# ---- what the objects say ---------------------------------------------------------------------

def sources(root):
    """{name of the object, without its target: path} of the C files below engine/, for each folder
    whose meson.build may name them."""
    found = {}
    for folder, _, files in os.walk(os.path.join(root, "engine")):
        for file in files:
            if not file.endswith(".c"):
                continue
            path = os.path.relpath(os.path.join(folder, file), root)
            parts = path.split("/")
            for depth in range(1, len(parts)):
                found["/".join(parts[:depth]), "_".join(parts[depth:]) + ".o"] = path
    return found


def objects(build, root):
    """Two maps {object: path of its source}: of engine/, and of tests and measurements."""
    known, product, tests = sources(root), {}, {}
    for folder, _, files in os.walk(build):
        if not folder.endswith(".p"):
            continue
        place = os.path.relpath(os.path.dirname(folder), build)
        for file in files:
            path = os.path.join(folder, file)
            if place.split("/")[0] in ("tests", "perf") and file.endswith(".o"):
                tests[path] = place + "/" + file
            elif (place, file) in known:
                product[path] = known[place, file]
    return product, tests


def symbols(paths):
    """(object, symbol, type) of the external and the undefined symbols."""
    for at in range(0, len(paths), 500):
        out = subprocess.run(["nm", "-A", "-P", "-g"] + paths[at:at + 500], stdout=subprocess.PIPE,
                             stderr=subprocess.DEVNULL, universal_newlines=True).stdout
        for line in out.splitlines():
            path, _, rest = line.rpartition(": ")
            words = rest.split()
            if len(words) > 1:
                yield path, words[0], words[1]


def read(build, root):
    """{function: file} that defines it, {function: files of engine/ that use it}, and the functions
    that tests use."""
    product, tests = objects(build, root)
    home, users, tested = {}, collections.defaultdict(set), set()
    rows = list(symbols(sorted(product)))
    for path, name, kind in rows:
        if kind in "TW" and name != "main":
            home.setdefault(name, product[path])
    for path, name, kind in rows:
        if kind == "U" and name in home and home[name] != product[path]:
            users[name].add(product[path])
    for path, name, kind in symbols(sorted(tests)):
        if kind == "U":
            tested.add(name)
    return home, users, tested & set(home)


# ---- figures ----------------------------------------------------------------------------------

def room_of(path, house=CONTROL):
    """The room of the house that a file is in, or None."""
    parts = path.split("/")
    if "/".join(parts[:2]) != house:
        return None
    return parts[2] if len(parts) > 3 else "root"


def count_users(home, users, tested, inside):
    """Of the files `inside`: (functions, used by no other file, by one, of these by one of the same
    folder, and by no test)."""
    names = [name for name in home if inside(home[name])]
    one = [name for name in names if len(users.get(name, ())) == 1]
    none = sum(not users.get(name) for name in names)
    near = sum(os.path.dirname(min(users[name])) == os.path.dirname(home[name]) for name in one)
    return len(names), none, len(one), near, sum(name not in tested for name in one)


def arrows(home, users, house=CONTROL):
    """{(room that calls, room that is called): functions}"""
    found = collections.defaultdict(set)
    for name, files in users.items():
        called = room_of(home[name], house)
        for file in files:
            caller = room_of(file, house)
            if caller and called and caller != called:
                found[caller, called].add(name)
    return found


def upward(found, house=CONTROL):
    """The arrows that point from a lower room to a higher one. One that HOUSES lacks is above."""
    height = {room: -at for at, room in enumerate(HOUSES[house])}
    return {pair: names for pair, names in found.items()
            if height.get(pair[1], 99) > height.get(pair[0], 99)}


def both_ways(found):
    return sorted(pair for pair in found if pair[0] < pair[1] and pair[::-1] in found)


def folder_sizes(paths):
    """{folder: number of source files in it}"""
    return collections.Counter(os.path.dirname(path) for path in paths if path.endswith(SOURCES))


def percent(part, whole):
    return 100 * part // whole if whole else 0


def folders_of(home):
    """The folders engine/X that define functions, in order."""
    return sorted({"/".join(path.split("/")[:2]) for path in home.values() if path.count("/") > 1})


def figures(paths, home, users, tested):
    """{name of a limit: figure}"""
    found = arrows(home, users)
    ret = {
        "files in the fullest folder": max(folder_sizes(paths).values(), default=0),
        "pairs of rooms both ways": len(both_ways(found)),
        "functions called upward": len(set().union(*upward(found).values(), set())),
        "arrows between rooms": len(found),
        "functions called upward in engine/client": len(set().union(
            *upward(arrows(home, users, CLIENT), CLIENT).values(), set())),
    }
    for folder in folders_of(home):
        total, _, one, _, _ = count_users(home, users, tested,
                                          lambda path: path.startswith(folder + "/"))
        ret["one user in " + folder] = percent(one, total)
    return ret


# ---- output -----------------------------------------------------------------------------------

def print_row(name, files, row):
    total, none, one, near, untested = row
    print("%-28s %5s %9d %8d %8d %4d%% %9d %9d"
          % (name, files, total, none, one, percent(one, total), near, untested))


def print_all(paths, home, users, tested):
    sizes = folder_sizes(paths)
    print("%-28s %5s %9s %8s %8s %5s %9s %9s" % (
        "folder", "files", "external", "no user", "one user", "", "in folder", "untested"))
    for folder in folders_of(home):
        below = [size for name, size in sizes.items() if (name + "/").startswith(folder + "/")]
        print_row(folder, max(below, default=0), count_users(
            home, users, tested, lambda path: path.startswith(folder + "/")))
    for house, rooms in HOUSES.items():
        for room in rooms:
            folder = house if room == "root" else house + "/" + room
            print_row("  " + folder[7:], sizes[folder], count_users(
                home, users, tested, lambda path: room_of(path, house) == room))
    print("files: in the fullest folder; in folder, untested: of those with one user, those whose "
          "user is in the same folder, and those that no test uses\n")
    found = arrows(home, users)
    print("arrows between rooms: %d; functions called from other rooms: %d"
          % (len(found), len(set().union(*found.values(), set()))))
    print("both ways: " + (", ".join("%s and %s" % pair for pair in both_ways(found)) or "none"))
    for house in HOUSES:
        for (caller, called), names in sorted(upward(arrows(home, users, house), house).items()):
            print("upward: %s -> %s: %s" % (caller, called, " ".join(sorted(names))))


def advise(home, users, tested):
    for name in sorted(home, key=lambda name: (home[name], name)):
        if len(users.get(name, ())) == 1:
            print("%s: advice: %s() is used by %s only%s" % (
                home[name], name, min(users[name]), "" if name in tested else ", and by no test"))


def above(figure, limits):
    """The lines about figures that are above their limits."""
    return ["rooms: %s: %d, at most %d" % (name, figure[name], limits[name])
            for name in sorted(limits) if figure.get(name, 0) > limits[name]]


def main():
    parser = argparse.ArgumentParser(
        description="Counts the calls in engine/, by the objects of a build folder.")
    parser.add_argument("build", help="a build folder of Meson")
    parser.add_argument("--root", default=ROOT, help="the tree of the build folder")
    parser.add_argument("--check", action="store_true", help="fail above the limits in LIMITS")
    parser.add_argument("--advise", action="store_true",
                        help="also print each function that one other file uses")
    args = parser.parse_args()
    root = os.path.abspath(args.root)
    home, users, tested = read(os.path.abspath(args.build), root)
    if not home:
        print("skipped: %s has no objects of engine/ that nm can read" % args.build)
        return 77
    paths = [os.path.relpath(os.path.join(folder, file), root)
             for folder, _, files in os.walk(os.path.join(root, "engine")) for file in files]
    print_all(paths, home, users, tested)
    if args.advise:
        advise(home, users, tested)
    lines = above(figures(paths, home, users, tested), LIMITS) if args.check else []
    for line in lines:
        print(line)
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
