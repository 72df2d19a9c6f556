#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""
Which tests do changed files reach? For tools/test --changed.

    tools/reach.py BUILD FILE...    prints the tests of a build folder that reach these files

A test reaches a file in one of these ways:
- a program that it runs or depends on is made from it: inputs in build.ninja, headers in ninja's
  log of dependencies (ninja -t deps)
- its script is that file, or imports it, in Python's terms
- its script, a module that this imports, or its source below tests/ names the file (METRICS.md)
- a meson.build reaches the tests that are defined in its folder or below
"""

import ast
import functools
import json
import os
import re
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
NINJA = "/usr/bin/ninja"
SECONDS = 80  # of tests that are chosen: two minutes with a small build
QUICK = {"unit", "soft", "fuzz", "tools"}
# of a test that was not run here yet, in these suites and in others
UNKNOWN_SECONDS, UNKNOWN_SLOW_SECONDS = 2, 20


def unescape(words):
    """The paths of a line of build.ninja, in which `$ ` is a blank and `$:` a colon."""
    return [re.sub(r"\$(.)", r"\1", word)
            for word in re.findall(r"(?:\$.|[^\s$])+", words)]


def read_graph(lines):
    """What each output of a build.ninja is made from: {output: [inputs]}, order-only ones too."""
    inputs = {}
    for line in lines:
        match = re.match(r"build ((?:\$.|[^$:])*): \S+(.*)", line.rstrip("\n"))
        if not match:
            continue
        made_from = [path for path in unescape(match[2]) if path not in ("|", "||")]
        for output in unescape(match[1]):
            if output != "|":
                inputs.setdefault(output, []).extend(made_from)
    return inputs


def read_deps(lines):
    """The headers of each object: {object: [files]}, from the output of ninja -t deps."""
    deps, now = {}, None
    for line in lines:
        if line.startswith("    "):
            now.append(line.strip())
        elif ": #deps" in line:
            now = deps.setdefault(line.split(": #deps")[0], [])
    return deps


class Files:
    """What targets are made from, and what Python scripts import and name."""

    def __init__(self, build, root):
        self.build, self.root = build, root
        with open(os.path.join(build, "build.ninja"), encoding="utf-8") as file:
            self.graph = read_graph(file)
        deps = subprocess.run([NINJA, "-C", build, "-t", "deps"], capture_output=True, text=True,
                              check=True, stdin=subprocess.DEVNULL).stdout
        self.deps = read_deps(deps.splitlines())
        self.of_path, self.of_target, self.of_script = {}, {}, {}

    def relative(self, path):
        """A path of build.ninja as one from the root of the tree; "" if it is not below it."""
        if path not in self.of_path:
            full = os.path.normpath(os.path.join(self.build, path))
            self.of_path[path] = (os.path.relpath(full, self.root)
                                  if full.startswith(self.root + os.sep) else "")
        return self.of_path[path]

    def target(self, name):
        """All files of the tree from which this output is made."""
        if name not in self.of_target:
            todo, seen = [name], {name}
            while todo:
                output = todo.pop()
                for path in self.graph.get(output, []) + self.deps.get(output, []):
                    if path not in seen:
                        seen.add(path)
                        todo.append(path)
            self.of_target[name] = set(map(self.relative, seen - {name})) - {""}
        return self.of_target[name]

    def script(self, path):
        """A Python script, and the modules of this tree that it imports, directly or not."""
        if path not in self.of_script:
            self.of_script[path] = {path}  # modules may import each other in a circle
            with open(os.path.join(self.root, path), encoding="utf-8") as file:
                text = file.read()
            found = {path}
            for name in imported(text):
                for module in self.modules(path, name):
                    found |= self.script(module)
            self.of_script[path] = found
        return self.of_script[path]

    def modules(self, importer, name):
        """Where the module of this name is: beside its importer, or where sys.path is set to."""
        beside = os.path.dirname(importer)
        for folder in dict.fromkeys([beside, "tests/cluster", "tools", "perf", "tests/sglang",
                                     "tests/python", "engine/client/python"]):
            path = os.path.join(folder, *name.split("."))
            for candidate in (path + ".py", os.path.join(path, "__init__.py")):
                if os.path.isfile(os.path.join(self.root, candidate)):
                    return [candidate]
        return []

    def test(self, test, filenames):
        """All files that a test reaches, and the scripts among them."""
        reached, scripts = set(), set()
        for target in test["depends"]:
            for file in filenames.get(target, []):
                reached |= self.target(os.path.relpath(file, self.build))
        for word in test["cmd"]:
            path = self.relative(word)
            if path.endswith(".py"):
                scripts |= self.script(path)
            elif path and not path.startswith("build" + os.sep):
                reached.add(path)
        return reached | scripts, scripts


def imported(text):
    """Names of modules that a Python text imports."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (node.module + "." + alias.name for alias in node.names)


def introspect(build, what):
    with open(os.path.join(build, "meson-info", f"intro-{what}.json"), encoding="utf-8") as file:
        return json.load(file)


def all_tests(build):
    """Meson's list of tests, with the plain names of their suites."""
    tests = introspect(build, "tests")
    for test in tests:
        test["suite"] = [suite.rpartition(":")[2] for suite in test["suite"]]
    return tests


@functools.lru_cache(maxsize=None)
def words_of(path):
    """The words of a file that may be names of files."""
    with open(path, encoding="utf-8") as file:
        return frozenset(re.findall(r"[\w.-]+", file.read()))


def named_in(texts, changed, root):
    """The changed files whose names these files contain."""
    words = {os.path.basename(path): path for path in changed}
    return {path for text in texts for word, path in words.items()
            if word in words_of(os.path.join(root, text))}


def defined_in(test, targets, build, root):
    """Folders of the meson.build files of a test: those of its programs and of its script."""
    folders = {os.path.dirname(os.path.relpath(target["defined_in"], root))
               for target in targets if target["id"] in test["depends"]}
    for word in test["cmd"]:
        path = os.path.relpath(os.path.normpath(os.path.join(build, word)), root)
        if path.endswith(".py") and path.startswith("tests"):
            folders.add(os.path.dirname(path))
    return folders


def reached(files, changed, tests):
    """The tests that reach a changed file, those first whose name or files are the closest: a test
    that reaches fewer files says more about each of them."""
    build, root, rows, changed = files.build, files.root, [], set(changed)
    targets = introspect(build, "targets")
    filenames = {target["id"]: target["filename"] for target in targets}
    for test in tests:
        reaches, scripts = files.test(test, filenames)
        texts = scripts | {path for path in reaches
                           if path.startswith("tests/") and path.endswith((".c", ".h"))}
        hit = (reaches | named_in(texts, changed - reaches, root)) & changed
        for path in changed:
            if os.path.basename(path) in ("meson.build", "meson_options.txt"):
                folder = os.path.dirname(path)
                if folder == "" or any((below + "/").startswith(folder + "/")
                                       for below in defined_in(test, targets, build, root)):
                    hit.add(path)
        if test["name"] == "tidy":
            hit |= changed  # the house rules read every file
        if hit:
            rows.append((rank(test, hit, scripts, len(reaches)), test))
    return [test for _, test in sorted(rows, key=lambda row: row[0])]


def rank(test, hit, scripts, reaches):
    """Smaller is closer: the test itself changed; its name has the word of a changed file; else
    the number of files that it reaches."""
    name = re.sub(r"\W", "_", test["name"])
    stems = [re.sub(r"\W", "_", os.path.splitext(os.path.basename(path))[0]) for path in hit]
    own = any(path.startswith("tests/") and (path in scripts or stem.removeprefix("test_") in name)
              for path, stem in zip(hit, stems))
    alike = any(re.search(rf"(^|_){re.escape(stem)}(_|$)", name) for stem in stems)
    return (0 if own else 1 if alike else 2, reaches)


def unknown(build):
    """Objects that were never compiled here, so that it is not known which headers they include."""
    files = Files(build, ROOT)
    return [output for output in files.graph if output.endswith(".o") and output not in files.deps]


def changes(root, revision):
    """Files that differ from a revision, and those that git does not track yet."""
    def git(*arguments):
        done = subprocess.run(["git", "-C", root, *arguments, "-z"], capture_output=True,
                              text=True, stdin=subprocess.DEVNULL)
        if done.returncode:
            raise SystemExit(f"test: git {arguments[0]}: {done.stderr.strip()}")
        return set(filter(None, done.stdout.split("\0")))
    return git("diff", "--name-only", revision) | git("ls-files", "--others", "--exclude-standard")


def durations(build):
    """How long each test took when it was last run here, in seconds: {name: seconds}."""
    try:
        with open(os.path.join(build, "durations.json"), encoding="utf-8") as file:
            return json.load(file)
    except (OSError, ValueError):
        return {}


def remember(build, results):
    """Notes how long tests took that passed, for the next durations()."""
    known = durations(build) | {test.name: round(test.seconds, 2) for test in results
                                if test.kind == "passed"}
    with open(os.path.join(build, "durations.json"), "w", encoding="utf-8") as file:
        json.dump(known, file)


def fitting(tests, took):
    """As many of these tests, in their order, as SECONDS allow, but at least one. Returns them, the
    others, and how long the first ones will take."""
    chosen, left, sum_s = [], [], 0
    for test in tests:
        seconds = took.get(test["name"], UNKNOWN_SECONDS if QUICK & set(test["suite"]) else
                           UNKNOWN_SLOW_SECONDS)
        # tools/test runs this many and one more side by side
        seconds /= 2 * os.cpu_count() if test["is_parallel"] else 1
        if sum_s + seconds <= SECONDS:
            chosen.append(test)
            sum_s += seconds
        else:
            left.append(test)
    if left and not chosen:
        chosen.append(left.pop(0))
    return chosen, left, sum_s


def choose(build, revision, tests, say):
    """The tests for `tools/test --changed`: as many of the reached ones as two minutes allow."""
    changed = changes(ROOT, revision)
    say(f"{len(changed)} files differ from {revision}")
    every = reached(Files(build, ROOT), changed, tests)
    chosen, left, sum_s = fitting(every, durations(build))
    say(f"{len(every)} of {len(tests)} tests reach them; {len(chosen)} of these run,",
        f"about {sum_s:.0f} s")
    if left:
        say("not run, for time:", ", ".join(test["name"] for test in left))
        say("tools/test runs all of them")
    return chosen


def main(arguments):
    if len(arguments) < 2 or arguments[0].startswith("-"):
        print(__doc__.strip())
        return 2
    build = os.path.realpath(arguments[0])
    for test in reached(Files(build, ROOT), arguments[1:], all_tests(build)):
        print(test["name"])
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
