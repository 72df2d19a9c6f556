#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""
The house rules that a machine can check: which folder includes which, lengths, the hot path's
forbidden words, owners of cache lines, where atomics live, licence lines, READMEs, the top level,
words that the prose of this tree does without, subjects of commits.

    tools/tidy.py [--root DIR]     all files git tracks or would add, and the subjects of commits;
                                   exit 1 on any finding
    tools/tidy.py --format         are they as clang-format writes them? exit 77 without it

Prints `file:line: rule: text`. Python 3.9, no packages. A function of a hot file that does not run
once per page has `/* cold: WHY */` just before it: it may use what the hot path may not, and have
the length of other functions.
"""
import argparse
import os
import re
import shutil
import subprocess
import sys

COLUMNS = 100
FILE_LINES_MAX, SUBJECT_MAX = 1000, 72
FUNCTION_LINES_MAX, HOT_FUNCTION_LINES_MAX = 70, 40

# What runs at least once per page. In engine/client only files whose every function does, or has a
# cold mark: channel.c and wait.c run per batch or wait as well.
HOT = {"dv/hot.h", "dv/order.h", "engine/abi/ring.h",
       "engine/rail/core.h", "engine/rail/intake.c", "engine/rail/lone_page.c",
       "engine/rail/lot.h", "engine/rail/run.c", "engine/rail/run_post.c", "engine/rail/step.c",
       "engine/rail/wqe.c", "engine/rail/wqe.h",
       "engine/client/attach/memory.h", "engine/client/call/call.c", "engine/client/call/pages.c",
       "engine/client/copy.c", "engine/client/lookup/head.c", "engine/client/lookup/look.c",
       "engine/client/lookup/lookup.h", "engine/client/lookup/map.c", "engine/client/page/batch.h",
       "engine/client/page/cache.h", "engine/client/page/key.c", "engine/client/page/key.h",
       "engine/client/page/page.c", "engine/client/read/answer.c", "engine/client/read/fetch.c",
       "engine/client/read/runs.c", "engine/client/rings/rail.c", "engine/client/rings/rings.h",
       "engine/client/rings/staging.c", "engine/client/rings/submit.c",
       "engine/client/write/ctl.c", "engine/client/write/set.c"}
ORDERING = {"dv/order.h", "engine/abi/ring.h"}

OURS = ("config", "numa", "dv", "engine", "tests", "perf", "tools")
TOP_REQUIRED = {"meson.build", "engine", "dv", "numa", "config", "tests", "perf", "tools",
                "README.md"}
CLANG_FORMAT = "14"  # Debian 12's; others break lines in other places
TOP_ALLOWED = {"LICENSE", "pyproject.toml", "meson_options.txt"}
README_FOLDERS = ("config", "numa", "dv", "engine", "tests", "perf", "tools")
# The rooms, upper ones first: a room includes the headers of those behind it.
ROOMS = ["engine/control/" + room for room in (
    "observe", "conns", "clients", "copies", "directory", "pages", "members", "net", "base")]
README_ROOMS = ["engine/control"] + ROOMS

# The most bytes of a README, of that of a room of engine/control, and of another page beside it, of
# the first page of the tree and of those in config/pages.
README_MAX, ROOM_README_MAX, PAGE_MAX = 12000, 6000, 8000
# functions of other programs that pages name
FOREIGN = {"histogram_quantile"}

# Folder -> what it may include: a folder (with what is below it), one header, or the files in a
# folder (FOLDER/*). Longest match on the including file wins, so one file can have rights of its
# own.
MATRIX = {
    "config": ["config"],
    "numa": ["numa", "config"],
    "dv": ["dv", "config", "numa"],
    "engine/abi": ["engine/abi", "config"],
    "engine/client": ["engine/client", "engine/abi", "config"],
    "engine/rail": ["engine/rail", "engine/abi", "config", "numa", "dv/hot.h"],
    "engine/rail/open.c": ["engine/rail", "engine/abi", "config", "numa", "dv/hot.h",
                           "dv/setup.h"],
    "engine/rail/poll_core.c": ["engine/rail", "engine/abi", "config", "numa", "dv/hot.h",
                           "dv/setup.h"],
    "engine/rail/model_clock.c": ["engine/rail", "engine/abi", "config", "numa", "dv/hot.h",
                           "dv/setup.h"],
    "engine/keeper": ["engine/keeper", "config"],
    "engine/disk": ["engine/disk", "engine/abi", "config", "numa"],
    "engine/main.c": ["engine", "config", "numa", "dv/setup.h", "dv/experiment.h"],
    "engine/doctor": ["engine/doctor", "engine/abi", "engine/control/net/address.h",
                      "engine/control/pages/sizes.h", "config", "numa"],
    "tools": ["tools", "engine/client", "engine/abi", "config"],
    "tools/ctl_doctor.c": ["tools", "engine/client", "engine/abi", "engine/doctor/doctor.h",
                           "config"],
    "tools/bench_policy.c": ["tools", "engine/control/pages/pages_inner.h", "config"],
    "tests": ["tests", "config", "numa", "dv", "engine", "tools"],
    "perf": ["perf", "config", "numa", "dv", "engine", "tools", "tests/nic_stub.h",
             "tests/unit/client"],
}

FLOOR = {"engine/control/net", "engine/control/base"}
OUTSIDE = ["engine/abi", "config", "numa", "dv/setup.h", "engine/rail/rail.h",
           "engine/rail/inbox.h", "engine/disk/disk.h", "engine/keeper/service.h",
           "engine/keeper/socket_file.h"]


def room_header(room):
    """What other rooms may include of a room."""
    return room if room in FLOOR else "%s/%s.h" % (room, os.path.basename(room))


MATRIX.update({room: [room] + [room_header(below) for below in ROOMS[at + 1:]] + OUTSIDE
               for at, room in enumerate(ROOMS)})
MATRIX["engine/control/observe"].append("engine/control/dashboard.h")  # Meson makes it
MATRIX["engine/control"] = ["engine/control/*"] + [room_header(room) for room in ROOMS] + OUTSIDE

SYSTEM_CALLS = ("write|read|pwrite|pread|writev|readv|poll|ppoll|select|epoll_wait|open|close|"
                "ioctl|mmap|munmap|send|recv|sendmsg|recvmsg|sleep|usleep|nanosleep|"
                "sched_yield|syscall|madvise|eventfd_write|eventfd_read|clock_gettime|"
                "fsync|abort|exit")
HOT_BANNED = [
    (re.compile(r"\berrno\b"), "errno"),
    (re.compile(r"\b(malloc|calloc|realloc|aligned_alloc|strdup|alloca)\b"), "allocation"),
    (re.compile(r"\bfree\s*\("), "free()"),
    (re.compile(r"\b(pthread|mtx)_\w+"), "a lock or a thread call"),
    (re.compile(r"\blog_\w+"), "logging"),
    (re.compile(r"\b\w*printf\b|\bputs\s*\(|\bperror\s*\("), "printing"),
    (re.compile(r"\bfutex\w*"), "a system call"),
    (re.compile(r"\b(%s)\s*\(" % SYSTEM_CALLS), "a system call"),
]
ATOMIC = re.compile(r"\b(__atomic_\w+|__sync_\w+|atomic_(?!cap\b)\w+|_Atomic|asm|__asm__|__asm|"
                    r"_mm_[lsm]fence|__builtin_ia32_[lsm]fence|__faststorefence)\b"
                    r"|<stdatomic\.h>")
INCLUDE = re.compile(r'^\s*#\s*include\s*(["<])([^">]+)[">]')
ALIGNED = re.compile(r"\b(?:alignas|_Alignas)\s*\(\s*64\s*\)|\baligned\s*\(\s*64\s*\)")


# Words that the prose of this tree does without, and what to write. Names of code are no prose:
# whole words only, and nothing in `code spans`, before a parenthesis or behind an arrow or a dot.
FATAL = [(re.compile(r"(?<![\w-])(?:%s)(?![\w-])" % words.replace(" ", r"\s+"), re.I), remedy)
         for words, remedy in (
    (r"somebody|nobody|anybody|whoever|whom|whomever", "name the component"),
    (r"reckon(?:ed|ing|s)?", "write compute, estimate or count"),
    (r"dealt with|deals? with", "write handled, processed or answered"),
    (r"gone through", "write scanned or visited"),
    (r"borne", "write limited by or allowed"),
    (r"on its way|on their way|under way", "write in flight, in progress or running"),
    (r"spoken", "name the protocol and the sender"),
    (r"heard of|hears? of", "write learns, receives or is notified"),
    (r"asked for", "write requested"),
    (r"so many|so much", "write the number, the unit or the variable"),
    (r"as ever", "write unchanged"),
    (r"such(?! as\b)(?! file\b)", "name the thing; `such as` may stay"))]  # strerror(ENOENT)
CODE_NAMES = re.compile(r"`[^`]*`|->\w+|\b\w+\.\w+(?:\.\w+)*|\b\w+\(|[\w.-]*/[\w./*-]+")
NO_PROSE = ("tools/tidy.py", "tests/unit/tools/test_tidy.py")  # they have the words


def is_script(path, text):
    return text.startswith("#!") and "." not in os.path.basename(path)


def has_prose(path, text):
    return path not in NO_PROSE and (
        path.endswith((".c", ".h", ".def", ".proto", ".pml", ".bt", ".sh", ".conf", ".toml",
                       ".yml", ".yaml", ".service", ".md", ".py"))
        or os.path.basename(path) == "meson.build" or is_script(path, text))


def is_c(path):
    return path.endswith((".c", ".h"))


def needs_spdx(path, text):
    return (path.endswith((".c", ".h", ".def", ".py", ".sh", ".proto"))
            or os.path.basename(path) == "meson.build" or is_script(path, text))


def blank(match):
    return re.sub(r"[^\n]", " ", match.group(0))


LITERALS = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', re.S)
COMMENTS = re.compile(r'("(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\')|//[^\n]*|/\*.*?\*/', re.S)


def without_comments(text):
    """The same lines and columns; comments are spaces."""
    return COMMENTS.sub(lambda m: m.group(0) if m.group(1) else blank(m), text)


def code_only(text):
    """The same lines and columns; comments and literals are spaces."""
    return LITERALS.sub(blank, text)


class Findings:
    def __init__(self):
        self.rows = []

    def add(self, path, line, rule, text):
        self.rows.append((path, line, rule, text))

    def rules(self):
        return {row[2] for row in self.rows}


# ---- one file ---------------------------------------------------------------------------------

def long_string(path, line):
    """Whether only a string literal makes this line too long: a message stands in one piece."""
    short = re.sub(r'"(?:\\.|[^"\\\n])*"', '""', line)
    return is_c(path) and short != line and len(short.expandtabs(8)) <= COLUMNS


def check_lines(path, text, found):
    lines = text.split("\n")
    for number, line in enumerate(lines, 1):
        if line.endswith("\r"):
            found.add(path, number, "whitespace", "line ends in CR LF")
        elif line != line.rstrip():
            found.add(path, number, "whitespace", "trailing whitespace")
        if path.endswith(".py") and "\t" in line:
            found.add(path, number, "tabs", "tab in a Python file")
        width = len(line.rstrip("\r").expandtabs(8))
        if width > COLUMNS and not (path.endswith((".def", ".proto")) or long_string(path, line)):
            found.add(path, number, "columns", "%d columns, at most %d" % (width, COLUMNS))
    if text and not text.endswith("\n"):
        found.add(path, len(lines), "whitespace", "no newline at the end")
    if is_c(path):
        count = text.count("\n")
        if count > FILE_LINES_MAX:
            found.add(path, count, "file-length",
                      "%d lines, at most %d: two nouns in one file?" % (count, FILE_LINES_MAX))


def check_top(path, text, found):
    lines = text.split("\n")
    at = 1 if lines[0].startswith("#!") else 0
    if "SPDX-License-Identifier: Apache-2.0" not in "".join(lines[at:at + 1]):
        found.add(path, at + 1, "spdx", "starts with no SPDX-License-Identifier: Apache-2.0")
        return
    if not is_c(path):
        return
    comment = re.match(r"\s*(/\*.*?\*/|(?://[^\n]*\n)+)", "\n".join(lines[at + 1:]), re.S)
    if not comment or len(re.findall(r"\w+", comment.group(1))) < 3:
        found.add(path, at + 2, "top-comment",
                  "no comment after the licence line: what does it own, which thread runs it?")


def folder_rights(path):
    """The longest row of MATRIX that `path` is in, and its name."""
    best = ""
    for name in MATRIX:
        if (path == name or path.startswith(name + "/")) and len(name) > len(best):
            best = name
    return best, MATRIX.get(best, [])


def include_refusal(path, target):
    """Why `path` may not include `target`, or None."""
    if target.split("/")[0] not in OURS or ".." in target.split("/"):
        return "own headers are included from the root: \"folder/%s\"" % os.path.basename(target)
    name, rights = folder_rights(path)
    if name == "engine/control" and os.path.dirname(path) != name:
        return "no row of the table allows this: is %s a room?" % os.path.dirname(path)
    if not name:
        return None if path.split("/")[0] not in OURS else "no row of the table allows this"
    if not any(target == r or target.startswith(r + "/")
               or r == os.path.dirname(target) + "/*" for r in rights):
        return "%s may not include %s" % (name, target)
    return None


def check_includes(path, text, found):
    for number, line in enumerate(without_comments(text).split("\n"), 1):
        match = INCLUDE.match(line)
        if not match:
            continue
        quote, target = match.groups()
        if quote == "<":
            if target.split("/")[0] in OURS and "/" in target:
                found.add(path, number, "include", "own header in <>: write \"%s\"" % target)
            continue
        refusal = include_refusal(path, target)
        if refusal:
            found.add(path, number, "include", refusal)


def functions(code):
    """(first line, last line, name) of each function; bodies open and close in column 0."""
    lines = code.split("\n")
    start = None
    for number, line in enumerate(lines, 1):
        opens = line.rstrip() == "{" or re.match(r"\w.*\)\s*\{\s*$", line)
        if start is None and opens and not re.match(r"(struct|union|enum)\b[^()]*\{", line):
            start = number
            while start > 1 and lines[start - 2].strip() and \
                    not re.search(r"[;}]\s*$|^#", lines[start - 2]):
                start -= 1
        elif start is not None and line.startswith("}"):
            head = " ".join(lines[start - 1:number])
            name = re.search(r"(\w+)\s*\(", head)
            yield start, number, name.group(1) if name else "?"
            start = None


def hot_word(line):
    """What a line of code does that the hot path may not, or None."""
    for pattern, what in HOT_BANNED:
        match = pattern.search(line)
        if match:
            return "%s on the hot path: %s" % (what, match.group(0).strip())
    return None


def cold_marks(text):
    """{line of the mark: its reason}"""
    return {text.count("\n", 0, match.start(1)) + 1: match.group(2).split("*/")[0].strip()
            for match in re.finditer(r"^(?:/\*| \*)[ \t]+(cold:)([^\n]*)", text, re.M)}


def cold_mark_of(lines, first):
    """The line of the mark in the comments that end just before line `first`, or None."""
    number = first - 1
    while number > 0 and lines[number - 1].startswith(("/*", " *")):
        if re.match(r"(/\*| \*)[ \t]+cold:", lines[number - 1]):
            return number
        number -= 1
    return None


def check_functions(path, text, code, found):
    """Lengths, and the cold marks. Returns the lines that cold functions lift from the hot path."""
    marks = cold_marks(text)
    cold, lines, code_lines = set(), text.split("\n"), code.split("\n")
    for first, last, name in functions(code):
        count = last - first + 1
        mark = cold_mark_of(lines, first)
        hot = path in HOT and mark is None
        limit = HOT_FUNCTION_LINES_MAX if hot else FUNCTION_LINES_MAX
        if count > limit:
            found.add(path, first, "function-length",
                      "%s(): %d lines, at most %d" % (name, count, limit))
        if path in HOT and mark is not None:
            body = range(first, last + 1)
            if len(re.findall(r"\w{2,}", marks.pop(mark))) < 3:
                found.add(path, mark, "cold-mark", "%s(): cold for which reason?" % name)
            elif count <= HOT_FUNCTION_LINES_MAX and not any(
                    hot_word(code_lines[n - 1]) for n in body):
                found.add(path, mark, "cold-mark", "%s() needs no exemption" % name)
            cold.update(body)
    for mark in marks:
        found.add(path, mark, "cold-mark", "no function of a hot file follows")
    return cold


def check_words(path, text, code, cold, found):
    exempt = path.split("/")[0] in ("tests", "perf")
    uncommented = without_comments(text).split("\n")
    for number, line in enumerate(code.split("\n"), 1):
        if path in HOT and number not in cold and hot_word(line):
            found.add(path, number, "hot-path", hot_word(line))
        if path not in ORDERING and not exempt:
            # An #include <...> survives in both; the code has no strings.
            match = ATOMIC.search(line) or (INCLUDE.match(uncommented[number - 1])
                                            and ATOMIC.search(uncommented[number - 1]))
            if match:
                found.add(path, number, "ordering",
                          "%s: fences, atomics and asm live in dv/order.h and engine/abi/ring.h"
                          % match.group(0))


def structs(code):
    """(name, first offset of the body, its end) of each named struct definition."""
    for match in re.finditer(r"\bstruct\s+(\w+)\s*\{", code):
        depth, at = 1, match.end()
        while at < len(code) and depth:
            depth += {"{": 1, "}": -1}.get(code[at], 0)
            at += 1
        yield match.group(1), match.end(), at


def comment_before(text, at):
    """The text of the comment on lines of its own that ends just before offset `at`, or ''."""
    match = re.search(r"^[ \t]*/\*((?:(?!\*/).)*)\*/\s*\Z", text[:at], re.S | re.M)
    return match.group(1) if match else ""


def owner_said(text, code, at):
    """A comment just before the member, or before the nested struct it is the first member of."""
    line = text.rfind("\n", 0, at) + 1
    nested = re.search(r"\bstruct\s*\{\s*$", code[:line])
    for place in [line] + ([nested.start()] if nested else []):
        if re.search(r"owner:|read-only", comment_before(text, place)):
            return True
    return False


def check_owners(path, text, code, found):
    for name, first, end in structs(code):
        aligned = [m.start() for m in ALIGNED.finditer(code, first, end)]
        if not aligned:
            continue
        line_of = lambda at: code.count("\n", 0, at) + 1
        for at in aligned:
            if not owner_said(text, code, at):
                found.add(path, line_of(at), "owner", "struct %s: a cache line without \"owner:\" "
                          "or \"read-only\" in a comment just before it" % name)
        asserts = re.findall(r"static_assert\s*\(([^;]*);", code)
        if not any(re.search(r"(sizeof|offsetof)\s*\(\s*struct\s+%s\b" % name, a)
                   for a in asserts):
            found.add(path, line_of(first), "layout-assert",
                      "struct %s: no static_assert on its size or an offset here" % name)


def check_file(path, text, found):
    if needs_spdx(path, text):
        check_top(path, text, found)
        check_lines(path, text, found)
    if is_c(path) or path.endswith(".def"):
        check_includes(path, text, found)
    if is_c(path):
        code = code_only(text)
        cold = check_functions(path, text, code, found)
        check_words(path, text, code, cold, found)
        check_owners(path, text, code, found)


# ---- the tree ---------------------------------------------------------------------------------

def check_tree(paths, found):
    top = {p.split("/")[0] for p in paths}
    for name in sorted(top - TOP_REQUIRED - TOP_ALLOWED):
        if not name.startswith("."):
            found.add(name, 1, "top-level", "does not belong at the top level")
    for name in sorted(TOP_REQUIRED - top):
        found.add(name, 1, "top-level", "is missing")
    for folder in README_FOLDERS:
        if folder in top and folder + "/README.md" not in paths:
            found.add(folder + "/README.md", 1, "readme", "is missing: one page on what lives here")
    for folder in README_ROOMS:
        if folder + "/README.md" not in paths and any(p.startswith(folder + "/") for p in paths):
            found.add(folder + "/README.md", 1, "readme", "is missing: what does this room own?")


def page_limit(path):
    """The most bytes that a page of prose may have, or None."""
    if not path.endswith(".md") or path.startswith("."):
        return None
    if path == "README.md" or path.startswith("config/pages/"):
        return PAGE_MAX
    if path.startswith("engine/control/"):
        return ROOM_README_MAX if os.path.basename(path) == "README.md" else PAGE_MAX
    return README_MAX if os.path.basename(path) == "README.md" else None


def check_page(path, size, found):
    limit = page_limit(path)
    if limit is not None and size > limit:
        found.add(path, 1, "page-length", "%d bytes, at most %d: a page of its own beside the code?"
                  % (size, limit))


def check_hot(paths, found):
    for path in sorted(HOT):
        if path not in paths:
            found.add(path, 1, "hot-list", "is no file: where did the code go that runs per page?")


# (path, anchor) of a link to a file of the tree
LINK = re.compile(r"\]\(([^)#: ]*)(?:#([^) ]*))?\)")


def anchors(text):
    """The anchors of a page's headings, as GitHub makes them."""
    found, code = set(), False
    for line in text.split("\n"):
        code ^= line.startswith("```")
        if line.startswith("#") and not code:
            name = re.sub(r"[^\w\- ]", "", line.lstrip("#").strip().lower()).replace(" ", "-")
            n = 0
            while name + ("-%d" % n if n else "") in found:
                n += 1
            found.add(name + ("-%d" % n if n else ""))
    return found


def check_mentions(pages, calls, paths, found):
    """Pages of prose name functions, files and headings: these exist. pages: {path: text}; calls:
    the names in front of a parenthesis in all files that are no pages."""
    for path, text in sorted(pages.items()):
        folder = os.path.dirname(path)
        past = os.path.basename(path) == "CHANGELOG.md"  # names what there is no more
        for number, line in enumerate(text.split("\n"), 1):
            for name in [] if past else re.findall(r"`(\w+)\(\)`", line):
                if name not in calls and name not in FOREIGN:
                    found.add(path, number, "mention", "there is no function %s()" % name)
            for name in [] if past else re.findall(
                    r"`([\w./-]+\.(?:c|h|py|def|proto|js|pml|md|map))`", line):
                if not (name in paths or name.startswith("build/") or name.split(".")[0].isupper()
                        or any(p.endswith("/" + name) for p in paths)):
                    found.add(path, number, "mention", "there is no file %s" % name)
            for link, anchor in LINK.findall(line):
                target = os.path.normpath(os.path.join(folder, link)) if link else path
                if target not in paths and not any(p.startswith(target + "/") for p in paths):
                    found.add(path, number, "mention", "there is no %s to link to" % link)
                elif anchor and target in pages and anchor not in anchors(pages[target]):
                    found.add(path, number, "mention", "%s has no heading #%s" % (target, anchor))


def prose_of(path, text):
    """The same lines; what is no prose is spaces: code of C, of examples in pages, and names."""
    if path.endswith((".c", ".h", ".def", ".proto")):
        code = list(code_only(text))
        text = "".join(" " if code[i] == char and char != "\n" else char
                       for i, char in enumerate(text))
    elif path.endswith(".md"):
        text = re.sub(r"(?ms)^```.*?^```[^\n]*$", blank, text)
    return CODE_NAMES.sub(blank, text)


def check_prose(path, text, found):
    body = prose_of(path, text)
    for words, remedy in FATAL:
        for match in words.finditer(body):
            found.add(path, body.count("\n", 0, match.start()) + 1, "prose",
                      "\"%s\": %s" % (" ".join(match.group(0).split()), remedy))


def subject_faults(subject):
    """What is wrong with one commit's subject."""
    if re.match(r"Merge |Revert \"", subject):
        return
    if len(subject) > SUBJECT_MAX:
        yield "%d characters, at most %d" % (len(subject), SUBJECT_MAX)
    if not re.match(r"[\w.,/{}*+ -]+: \S", subject):
        yield "is not \"area: what changed\""
    for words, remedy in FATAL:
        if words.search(prose_of("", subject)):
            yield remedy


def check_subjects(root, found):
    """The newest commits. A shallow clone has fewer of them, an unpacked archive none."""
    done = subprocess.run(["git", "-C", root, "log", "-n", "100", "--no-merges",
                           "--format=%h %s"], capture_output=True, text=True)
    for row in done.stdout.splitlines():
        commit, _, subject = row.partition(" ")
        for fault in subject_faults(subject):
            found.add("commit " + commit, 1, "subject", "%s: %s" % (fault, subject))


def list_files(root):
    try:
        out = subprocess.run(
            ["git", "-C", root, "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True).stdout
        paths = out.decode("utf-8", "surrogateescape").split("\0")
    except (OSError, subprocess.CalledProcessError):  # an unpacked archive
        paths = []
        for folder, names, files in os.walk(root):
            names[:] = [n for n in names if not n.startswith((".git", "build", "__pycache__"))]
            paths += [os.path.relpath(os.path.join(folder, f), root) for f in files]
    return sorted({p for p in paths if p and os.path.isfile(os.path.join(root, p))})


def check_root(root):
    found = Findings()
    paths = list_files(root)
    check_tree(paths, found)
    check_hot(paths, found)
    pages, calls = {}, set()
    for path in paths:
        with open(os.path.join(root, path), "rb") as file:
            head = file.read(2)
            first = head.decode("latin-1")
            if not (needs_spdx(path, first) or has_prose(path, first)):
                continue
            text = (head + file.read()).decode("utf-8", "replace")
        if path.endswith(".md"):
            pages[path] = text
        else:
            calls.update(re.findall(r"\b(\w+)\s*\(", text))
        check_file(path, text, found)
        check_page(path, len(text.encode()), found)
        if has_prose(path, text):
            check_prose(path, text, found)
    check_mentions(pages, calls, set(paths), found)
    check_subjects(root, found)
    return found


# ---- the program ------------------------------------------------------------------------------

def check_format(root):
    """0: every C file is as clang-format writes it, 1: one is not, 77: no clang-format to ask."""
    program = shutil.which("clang-format-" + CLANG_FORMAT) or shutil.which("clang-format")
    if not program:
        print("skipped: clang-format is not installed; tools/install installs it")
        return 77
    version = subprocess.run([program, "--version"], stdout=subprocess.PIPE, check=True,
                             universal_newlines=True).stdout.strip()
    if not re.search(r"\bversion %s\." % CLANG_FORMAT, version):
        print("skipped: %s is \"%s\", and the tree is formatted by version %s"
              % (program, version, CLANG_FORMAT))
        return 77
    paths = [path for path in list_files(root) if is_c(path)]
    ended = subprocess.run([program, "--dry-run", "-Werror", "--style=file"] + paths, cwd=root)
    if ended.returncode:
        print("to repair: %s -i FILE" % program)
    return 1 if ended.returncode else 0


def main():
    parser = argparse.ArgumentParser(description="Checks the house rules a machine can check.")
    parser.add_argument("--root", default=os.path.join(os.path.dirname(__file__), ".."))
    parser.add_argument("--format", action="store_true",
                        help="check with clang-format, and nothing else")
    args = parser.parse_args()
    if args.format:
        return check_format(os.path.abspath(args.root))
    found = check_root(os.path.abspath(args.root))
    for path, line, rule, text in found.rows:
        print("%s:%d: %s: %s" % (path, line, rule, text))
    return 1 if found.rows else 0


if __name__ == "__main__":
    sys.exit(main())
