# SPDX-License-Identifier: Apache-2.0
"""The blocks and the command lines of README.md, tools/README.md and the pages for users, read from
the files.

A block is fenced, with the language behind the fence; in a README it is indented and its language
is sh. A comment in its first line may name the hosts on which it runs: host-a, host-b, or both.
"""

import collections
import os
import re
import subprocess

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PAGES = os.path.join(ROOT, "config", "pages")
README = os.path.join(ROOT, "README.md")
README_TOOLS = os.path.join(ROOT, "tools", "README.md")
README_ZH = os.path.join(ROOT, ".github", "README.zh.md")

NAMES = ("README.md", "deployment.md", "getting-started.md", "migration.md", "operations.md",
         "security.md", "sizing.md", "troubleshooting.md")

Block = collections.namedtuple("Block", "heading language hosts lines")


def page(name, folder=PAGES):
    """The path of a page."""
    return os.path.join(folder, name + ".md")


def names():
    """The names of the pages in English."""
    return [name[:-3] for name in NAMES]


def hosts_of(lines):
    """The hosts that the comment in the first line names; without one: both."""
    comment = lines[0] if lines and lines[0].startswith("#") else ""
    named = re.findall(r"\bhost-[ab]\b", comment)
    return tuple(named) or ("host-a", "host-b")


def blocks(path):
    """All blocks of a file, in their order."""
    with open(path, encoding="utf-8") as file:
        lines = file.read().split("\n")
    found, heading, i = [], "", 0
    while i < len(lines):
        line, block, language = lines[i], [], ""
        i += 1
        if line.startswith("```"):
            language = line[3:].strip()
            while not lines[i].startswith("```"):
                block.append(lines[i])
                i += 1
            i += 1
        elif line.startswith("    ") and not lines[i - 2].strip():
            language = "sh"
            block.append(line[4:])
            while lines[i].startswith("    "):
                block.append(lines[i][4:])
                i += 1
        elif line.startswith("#"):
            heading = line.lstrip("# ")
        if language:
            found.append(Block(heading, language, hosts_of(block), block))
    return found


def complete(text):
    """Is this a whole command of bash?"""
    if text.endswith("\\"):
        return False
    done = subprocess.run(["bash", "-n"], input=text + "\n", capture_output=True, text=True,
                          check=False)
    return done.returncode == 0 and not done.stderr


def commands(block):
    """The commands of a block, without comments that are lines of their own."""
    found, now = [], []
    for line in block.lines:
        if not now and (not line.strip() or line.startswith("#")):
            continue
        now.append(line)
        if complete("\n".join(now)):
            found.append("\n".join(now))
            now = []
    assert not now, f"this is no whole command: {now}"
    return found


def shell(path):
    """The blocks of a file that are command lines."""
    return [block for block in blocks(path) if block.language == "sh"]


def bare(command):
    """A command without the comment at its end, with single blanks."""
    return "\n".join(re.sub(r"\s+", " ", re.sub(r"\s#.*", "", line)).strip()
                     for line in command.split("\n"))
