# SPDX-License-Identifier: Apache-2.0
"""What the pages for users say is what the programs print, and both languages say the same."""

import glob
import os
import re
import subprocess
import sys
import unittest

from commands import (NAMES, PAGES, README, README_ZH, ROOT, bare, blocks, commands, names, page,
                      shell)

sys.path.insert(0, os.path.join(ROOT, "tools"))
import cluster  # noqa: E402
import pages  # noqa: E402

BACKEND = os.path.join(ROOT, "engine", "client", "python", "README.md")
ZH = os.path.join(PAGES, "zh")
EXAMPLE = os.path.join(ROOT, "config", "examples", "eight-rails.conf")
MACHINE = os.path.join(ROOT, "tests", "unit", "numa", "eight-nics.xml")
STRING = re.compile(r'"((?:\\.|[^"\\\n])*)"|\b(PRI[a-z]\d+)\b|(\s+|/\*.*?\*/)|(.)', re.S)
CONVERSION = re.compile(r"%(?:%|[-+ #0]*(?:\*|\d+)?(?:\.(?:\*|\d+))?(?:hh|h|ll|l|z|j)?[a-zA-Z])")
LETTERS_MIN = 14  # of a message without its conversions
PART_MAX = 70     # of a line: what a conversion stands for; a longer one is a message, too


def literals(text):
    """The strings of C or Python; neighbours are one, a macro for a conversion is part of it."""
    found, now = [], ""
    for string, macro, blank, _other in STRING.findall(text):
        if string:
            now += re.sub(r"\\(.)", lambda m: {"n": "\n"}.get(m[1], m[1]), string)
        elif macro and now:
            now += "d"
        elif not blank:
            found.append(now)
            now = ""
    return [string for string in found + [now] if string]


def pattern(message):
    """(regular expression of a message, its letters)."""
    parts, letters, at = [], 0, 0
    for match in CONVERSION.finditer(message):
        fixed = message[at:match.start()]
        parts.append(re.escape(fixed) + ("%" if match[0] == "%%" else "(.*?)"))
        letters += len(re.sub(r"\W", "", fixed))
        at = match.end()
    fixed = message[at:].rstrip("\n")
    return "".join(parts) + re.escape(fixed), letters + len(re.sub(r"\W", "", fixed))


# What stands before a message about a line of a file, and the system's error behind a message.
BEFORE, BEHIND = re.compile(r"^/\S+:\d+: "), re.compile(r": [A-Z][a-z ]+$")


class Messages:
    """All messages of the sources."""

    def __init__(self):
        texts = [path for folder in ("engine", "dv", "numa", "config", "tools") for path in
                 glob.glob(os.path.join(ROOT, folder, "**", "*.[ch]"), recursive=True)]
        texts += glob.glob(os.path.join(ROOT, "engine/client/python/peercache/*.py"))
        self.patterns = []
        for path in texts:
            with open(path, encoding="utf-8") as file:
                for message in literals(file.read()):
                    expression, letters = pattern(message)
                    if letters >= LETTERS_MIN:
                        self.patterns.append(re.compile(expression, re.S))

    def has(self, line):
        """Can a program print this line? What a conversion stands for may be a message itself."""
        line = BEHIND.sub("", BEFORE.sub("", line))
        for expression in self.patterns:
            match = expression.fullmatch(line)
            if match and all(len(part) <= PART_MAX or self.has(part) for part in match.groups()):
                return True
        return False


class Truth(unittest.TestCase):
    def test_the_launch_line_of_the_readme_is_that_of_the_backend(self):
        """The suite served runs the latter."""
        line, = [command for block in shell(README) for command in commands(block)
                 if "sglang.launch_server" in command]
        self.assertIn(line, [command for block in shell(BACKEND) for command in commands(block)])

    def test_each_line_of_a_log_is_a_message_of_the_sources(self):
        messages = Messages()
        lines = [line for name in names() for block in blocks(page(name))
                 if block.language == "log" for line in block.lines]
        self.assertGreater(len(lines), 20)
        for line in lines:
            with self.subTest(line=line):
                self.assertTrue(messages.has(line))

    def test_findings_in_the_pages_exist(self):
        with open(os.path.join(ROOT, "engine/control/observe/health.def"), encoding="utf-8") as f:
            exist = set(re.findall(r"^FINDING\((\w+),", f.read(), re.M))
        with open(os.path.join(ROOT, "config/examples/RUNBOOK.md"), encoding="utf-8") as f:
            self.assertEqual(set(re.findall(r"^\| `peercache_(\w+)`", f.read(), re.M)) - exist,
                             {"engine_gone"}, "no engine, no finding")
        with open(page("troubleshooting"), encoding="utf-8") as f:
            text = f.read()
        named = {word for line in text.split("\n") if "inding" in line or "in `health`" in line
                 for word in re.findall(r"`([a-z]+_[a-z_]+)`", line)}
        self.assertGreater(len(named), 8)
        self.assertEqual(named - exist, set())

    def test_settings_in_the_pages_exist(self):
        with open(os.path.join(ROOT, "config", "SETTINGS.md"), encoding="utf-8") as f:
            exist = set(re.findall(r"^\| `([a-z]+\.[a-z_]+)`", f.read(), re.M))
        sections = "|".join({name.split(".")[0] for name in exist})
        for path in [README, README_ZH, *map(page, names()), *glob.glob(ZH + "/*.md")]:
            with open(path, encoding="utf-8") as f:
                text = f.read()
            named = set(re.findall(rf"`((?:{sections})\.[a-z_]+)(?: = [^`]+)?`", text))
            self.assertEqual(named - exist, set(), path)

    def test_options_of_commands_in_the_pages_exist(self):
        build = cluster.default_build()
        helps = {}
        for name in ("engine/peercache-engine", "engine/peercache-keeper", "tools/peercachectl",
                     "tools/peercache-bench", "tools/peercache-bench policy"):
            program, *command = name.split()
            helps[os.path.basename(name)] = subprocess.run(
                [cluster.find_program(build, program), *command, "--help"], capture_output=True,
                text=True, check=True).stdout
        helps["peercache-setup-host"] = subprocess.run(
            [os.path.join(ROOT, "tools", "setup-host"), "--help"], capture_output=True, text=True,
            check=True).stdout
        for path in [README, *map(page, names())]:
            for block in shell(path):
                for command in commands(block):
                    for words in re.split(r"&&|\||;|\bdo\b", command):
                        self.options(helps, words.split())

    def options(self, helps, words):
        program = None
        for word in words:
            program = next((name for name in (f"{program} {word}", word) if name in helps), program)
            if program and word.startswith("--") and len(word) > 2:
                self.assertIn(word, helps[program], f"{program}: {words}")

    def test_the_plan_of_the_example_is_printed_by_the_engine(self):
        block, = [b for b in blocks(page("sizing")) if b.language == "text"]
        done = subprocess.run(
            [cluster.find_program(cluster.default_build(), "engine/peercache-engine"), "--config",
             EXAMPLE, "--plan"], env={**os.environ, "HWLOC_XMLFILE": MACHINE},
            capture_output=True, text=True, check=True)
        self.assertEqual(block.lines, [line.rstrip() for line in done.stdout.splitlines()])
        with open(page("sizing"), encoding="utf-8") as f:
            prose = f.read().replace(",", "")
        for numbers in re.findall(r"^(?:\d+|sum) +\d+ +([\d.]+) +(\d+)$", done.stdout, re.M):
            self.assertIn(f" {numbers[0]} GiB of memory in all" if numbers[1] == "529408"
                          else f" {numbers[1]} ", prose)

    def test_the_arithmetic_of_sizing_is_right(self):
        with open(page("sizing"), encoding="utf-8") as f:
            text = f.read()
        rows = re.findall(r"^\| (\d+) layers, (.*?), 2 bytes .*\| ([\d,]+) \| ([\d,]+) \|$", text,
                          re.M)
        self.assertEqual(len(rows), 2)
        for layers, shape, token, fit in rows:
            numbers = [int(n) for n in re.findall(r"\d+", shape)]
            width = sum(numbers) if "MLA" in shape else 2 * numbers[0] * numbers[1]
            self.assertEqual(int(token.replace(",", "")), int(layers) * width * 2)
            self.assertEqual(int(fit.replace(",", "")), (1 << 40) // (int(layers) * width * 2))


class Languages(unittest.TestCase):
    def pairs(self):
        yield README, README_ZH
        for path in sorted(glob.glob(os.path.join(ZH, "*.md"))):
            yield page(os.path.basename(path)[:-3]), path

    def test_the_pages_are_there(self):
        self.assertEqual({name for name in os.listdir(PAGES) if name.endswith(".md")}, set(NAMES))
        self.assertEqual({os.path.basename(path) for _, path in self.pairs()},
                         {"README.zh.md", *NAMES} - {"README.md"})

    def test_command_lines_are_the_same(self):
        for english, chinese in self.pairs():
            said = [[[bare(c) for block in shell(path) for c in commands(block)],
                     [block[1:] for block in blocks(path) if block.language not in ("sh", "")]]
                    for path in (english, chinese)]
            for block in said[0][1] + said[1][1]:
                self.assertIn(block[0], ("log", "text", "ini"), chinese)
            self.assertEqual(said[0], said[1], chinese)

    def test_sections_and_tables_are_the_same(self):
        for english, chinese in self.pairs():
            shape = []
            for path in (english, chinese):
                with open(path, encoding="utf-8") as file:
                    text = re.sub(r"^```.*?^```$", "", file.read(), flags=re.M | re.S)
                shape.append(re.findall(r"^(#+ |\|(?!-)|- )", text, re.M))
            self.assertEqual(shape[0], shape[1], chinese)

    def test_the_hosts_of_blocks_are_the_same(self):
        for english, chinese in self.pairs():
            self.assertEqual([b.hosts for b in shell(english)], [b.hosts for b in shell(chinese)],
                             chinese)


class Staged(unittest.TestCase):
    def test_every_page_is_staged(self):
        """For an installation and for the site; tools_installed checks the links."""
        places = set(pages.places().values())
        wanted = {f"pages/{name}.md" for name in names()}
        wanted |= {"pages/zh/" + os.path.basename(path) for path in glob.glob(ZH + "/*.md")}
        self.assertLessEqual(wanted, places)

    def test_a_link_to_what_is_not_staged_is_text(self):
        where = {"a/x.md": "x.md", "b/y.md": "p/y.md"}
        self.assertEqual(pages.relink("[y](../b/y.md#h) [z](z.md) [`z.md`](z.md) [n](https://a.b)\n"
                                      "```\n[y](../b/y.md)\n```\n[h](#h)", "a/x.md", where),
                         "[y](p/y.md#h) z (`a/z.md`) `z.md` [n](https://a.b)\n"
                         "```\n[y](../b/y.md)\n```\n[h](#h)")


if __name__ == "__main__":
    unittest.main(verbosity=2)
