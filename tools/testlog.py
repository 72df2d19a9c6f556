#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""
Reads Meson's test log; tools/test prints what it returns.

    tools/testlog.py LOG          prints the table of suites, skipped tests with their reasons,
                                  failed tests, and `N passed, N failed, N skipped`; exit status 1
                                  if any failed
"""
import json
import re
import sys

PASSED = {"OK", "EXPECTEDFAIL"}
LAST_LINES = 30  # of a failed test, shown again when several variants have ended
SKIPPED = {"SKIP", "IGNORED"}  # any other result, also an unknown one, is a failure


class Result:
    """What a test did. text: why it was skipped, or how it failed; seconds: wall time; output: the
    end of what a failed test wrote."""

    def __init__(self, row):
        # Meson writes `project:suite+suite / name`
        suites, _, name = row["name"].partition(" / ")
        self.name = name
        self.suite = re.sub(r"^[^:]*:", "", suites).split("+")[0]
        self.seconds = row.get("duration") or 0
        result = row["result"]
        if result in PASSED:
            self.kind, self.text = "passed", ""
        elif result in SKIPPED:
            self.kind, self.text = "skipped", reason(row)
        else:
            self.kind, self.text = "failed", result.lower()
        self.output = written(row)[-LAST_LINES:] if self.kind == "failed" else []


def written(row):
    """The lines that a test wrote."""
    text = (row.get("stdout") or "") + "\n" + (row.get("stderr") or "")
    return [line.rstrip() for line in text.split("\n") if line.strip()]


def reason(row):
    """The last line that a skipped test printed: by house rule, it names what the machine lacks."""
    lines = written(row)
    return lines[-1].strip() if lines else "the test printed no reason"


def results(lines):
    return [Result(json.loads(line)) for line in lines if line.strip()]


def read(log):
    with open(log, encoding="utf-8", errors="replace") as file:
        return results(file)


def count(tests):
    """The numbers of passed, failed and skipped tests."""
    return tuple(sum(test.kind == kind for test in tests)
                 for kind in ("passed", "failed", "skipped"))


def summed(counts):
    """The line that ends a run."""
    return "%d passed, %d failed, %d skipped" % tuple(counts)


def table(tests):
    """Lines: for each suite its tests, the sum of their wall times, and the longest one."""
    suites = {}
    for test in tests:
        suites.setdefault(test.suite, []).append(test)
    for name, rows in sorted(suites.items(), key=lambda item: -sum(t.seconds for t in item[1])):
        longest = max(rows, key=lambda test: test.seconds)
        yield "%-10s %4d tests %6.0f s   longest: %s, %.0f s" % (
            name, len(rows), sum(test.seconds for test in rows), longest.name, longest.seconds)


def failures(tests):
    """Lines: each failed test with the end of its output."""
    for test in tests:
        if test.kind == "failed":
            yield from ("", f"failed: {test.name}: {test.text}", *test.output)


def report(tests):
    """Prints everything. Returns the exit status: 1 if a test failed, or if there was none."""
    for line in table(tests):
        print(line)
    for kind in ("skipped", "failed"):
        for test in tests:
            if test.kind == kind:
                print("%s: %s: %s" % (kind, test.name, test.text))
    counts = count(tests)
    print(summed(counts))
    return 1 if counts[1] or not tests else 0


def main(arguments):
    if len(arguments) != 1 or arguments[0].startswith("-"):
        print(__doc__.strip())
        return 2
    return report(read(arguments[0]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
