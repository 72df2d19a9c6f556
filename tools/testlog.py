#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""
Counts the results in Meson's test log; tools/test prints the counts.

    tools/testlog.py LOG [AGAIN]    prints skipped tests with their reasons, failed tests, and
                                    `N passed, N failed, N skipped`; exit status 1 if any failed.
                                    AGAIN is the log of a second run of failed tests: those that
                                    pass there are printed as flaky and count as passed
    tools/testlog.py --failed LOG   prints the names of the failed tests
    tools/testlog.py --suites JSON  prints the suites in the output of `meson introspect --tests`
    tools/testlog.py --self-test
"""
import json
import re
import sys

PASSED = {"OK", "EXPECTEDFAIL"}
SKIPPED = {"SKIP", "IGNORED"}  # any other result, also an unknown one, is a failure


def reason(row):
    """The last line that a skipped test printed: by house rule, it names what the machine lacks."""
    text = (row.get("stdout") or "") + "\n" + (row.get("stderr") or "")
    lines = [line.strip() for line in text.split("\n") if line.strip()]
    return lines[-1] if lines else "the test printed no reason"


def count(lines):
    """Returns (passed, failed, skipped), each a list of (name, text)."""
    passed, failed, skipped = [], [], []
    for line in lines:
        if not line.strip():
            continue
        row = json.loads(line)
        name, result = row["name"], row["result"]
        if result in PASSED:
            passed.append((name, ""))
        elif result in SKIPPED:
            skipped.append((name, reason(row)))
        else:
            failed.append((name, result.lower()))
    return passed, failed, skipped


def run_again(first, again):
    """The results after a second run of failed tests, and the names of those that passed then."""
    passed, failed, skipped = first
    better = {name for name, _ in again[0]}
    flaky = [name for name, _ in failed if name in better]
    left = [row for row in failed if row[0] not in better]
    return (passed + [(name, "") for name in flaky], left, skipped), flaky


def report(passed, failed, skipped, flaky=()):
    for name, text in skipped:
        print("skipped: %s: %s" % (name, text))
    for name in flaky:
        print("flaky: %s: failed, then passed alone" % name)
    for name, text in failed:
        print("failed: %s: %s" % (name, text))
    print("%d passed, %d failed, %d skipped" % (len(passed), len(failed), len(skipped)))
    return 1 if failed or not passed + skipped else 0


def read(log):
    with open(log, encoding="utf-8", errors="replace") as file:
        return count(file)


def suites(tests):
    names = {re.sub(r"^[^:]*:", "", suite) for test in tests for suite in test["suite"]}
    return sorted(name for name in names if name)


def self_test():
    rows = [("a", "OK"), ("b", "FAIL"), ("c", "TIMEOUT"), ("d", "ERROR"), ("e", "UNEXPECTEDPASS"),
            ("f", "EXPECTEDFAIL"), ("g", "INTERRUPT"), ("i", "a result of the future")]
    lines = [json.dumps({"name": n, "result": r}) for n, r in rows]
    lines.append(json.dumps({"name": "h", "result": "SKIP", "stdout": "x\nno NIC here\n"}))
    passed, failed, skipped = count(lines + [""])
    assert [n for n, _ in passed] == ["a", "f"], passed
    assert [n for n, _ in failed] == ["b", "c", "d", "e", "g", "i"], failed
    assert skipped == [("h", "no NIC here")], skipped
    assert count([]) == ([], [], [])
    again = ([("b", ""), ("x", "")], [("c", "fail")], [("d", "no NIC here")])
    (passed, failed, skipped), flaky = run_again((passed, failed, skipped), again)
    assert flaky == ["b"], flaky
    assert [n for n, _ in passed] == ["a", "f", "b"], passed
    assert [n for n, _ in failed] == ["c", "d", "e", "g", "i"], failed
    tests = [{"suite": ["p:unit"]}, {"suite": ["p:soft", "p"]}, {"suite": ["p:unit"]}]
    assert suites(tests) == ["p", "soft", "unit"], suites(tests)
    return 0


def main(arguments):
    if arguments == ["--self-test"]:
        return self_test()
    if len(arguments) == 2 and arguments[0] == "--suites":
        with open(arguments[1], encoding="utf-8") as file:
            print("\n".join(suites(json.load(file))))
        return 0
    if len(arguments) == 2 and arguments[0] == "--failed":
        for name, _ in read(arguments[1])[1]:
            print(re.sub(r"^.* / ", "", name))
        return 0
    if len(arguments) not in (1, 2) or arguments[0].startswith("-"):
        print(__doc__.strip())
        return 2
    results, flaky = read(arguments[0]), ()
    if len(arguments) == 2:
        results, flaky = run_again(results, read(arguments[1]))
    return report(*results, flaky)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
