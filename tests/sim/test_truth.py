# SPDX-License-Identifier: Apache-2.0
"""
The words hit and miss of the directory: the scenarios of faults.c with the oracle of truth.h, in
clusters of 2, 3, 5 and 8 engines. Each planted mistake must be found.
usage: test_truth.py RUN [SEEDS] [--sanitized]    SEEDS: further seeds, the first one is $SEED;
                                                  --sanitized: without planted mistakes, and with
                                                  any state
"""

import concurrent.futures
import json
import os
import subprocess
import sys
import time

FIXED = (4, 5, 2)  # the fewest engines first: most planted mistakes are found there
SANITIZED = "--sanitized" in sys.argv
FEW = 10
SCENARIOS = ("calm", "clear", "cleardisk",
             "term", "kill9", "copying", "cold", "freeze", "cutlink", "flaplink", "split",
             "upgrade", "full", "dropped", "mixture",
             "spill", "diskstart", "diskpower", "diskfail",
             "ports", "handshake", "apart", "nics", "copies")
MORE = (7, 9, 10, 28)  # for planted mistakes that these do not find
# scenario, seed: runs that have found faults of the engine
FOUND = (("diskpower", 3),)
# scenario, mutant, and the checkers that must fire
PLANTED = (("calm", "no-verify", ("set said hit, and no node has the page",)),
           ("term", "no-verify", ("set said hit, and no node has the page",)),
           ("calm", "lost-ack", ("set said hit, and a get does not find the page",
                                 "page without an entry", "page is not found")),
           ("calm", "no-room", ("set without a fault is refused",)),
           ("calm", "half-forget", ("removed page is found", "removed page came back")),
           ("calm", "lost-remove", ("removal ended before an owner dropped the entry",
                                    "entry without a page")),
           ("cold", "lost-remove", ("entry at a member that does not own it",)),
           ("calm", "no-promise", ("removal without a fault is unreachable",)),
           ("copying", "lost-return", ("credit is lost", "slot is lost")),
           ("copying", "no-quarantine", ("bytes of another page",)),
           ("term", "no-show", ("entry without a page",)),
           ("dropped", "no-show", ("entry without a page",)),
           ("spill", "no-tombstone", ("removed page is found", "removed page came back")),
           ("spill", "disk-remove", ("removal ended before an owner dropped the entry",)),
           ("spill", "unread", ("bytes of another page",)),
           ("spill", "disk-untold", ("page is not found",)),
           ("spill", "lost-write", ("slot is lost",)),
           ("diskstart", "no-recovery", ("a disk recovers its pages",)),
           ("diskfail", "error-is-ok", ("bytes of another page",)),
           ("apart", "qp-reused", ("READ of another process",)),
           ("ports", "unproven", ("a connection comes up",)),
           ("ports", "deaf-port", ("a rail is out while its port is",)),
           ("ports", "no-stall", ("a connection without an answer breaks",)),
           ("nics", "kept-stuck", ("a broken connection is returned",)),
           ("ports", "kept-conn", ("connection is lost",)),
           ("ports", "lost-qp", ("QP is lost",)),
           ("handshake", "kept-qps", ("half a connection ends", "READ is lost")),
           ("clear", "no-epoch", ("removed page is found",)),
           ("clear", "open-door", ("removed page is found",)),
           ("clear", "deaf-epoch", ("a clear reaches each host",)),
           ("cleardisk", "lost-epochs", ("a clear reaches each host",)),
           ("clear", "no-sweep", ("cleared page was not swept",)),
           ("copies", "late-copy", ("removed page is found",)))


def command_of(program, scenario, seed, *more):
    """The run of a seed: 2, 3, 5 or 8 engines, 1 or 2 owners per key."""
    return [program, "--json", "--scenario", scenario, "--seed", str(seed), "--nodes",
            str((2, 3, 5, 8)[seed % 4]), "--replicas", str(1 + seed // 4 % 2), *more]


def report_of(command):
    """Runs it. Returns its report; one that has failed when the simulator itself fails."""
    done = subprocess.run(command, capture_output=True, text=True, check=False,
                          env={**os.environ, "MALLOC_PERTURB_": "0"})
    if done.returncode not in (0, 1):
        return {"failed": [f"exit status {done.returncode}: {done.stderr[-1000:]}"], "broken": {}}
    report = json.loads(done.stdout)
    if SANITIZED:
        report["failed"] = [name for name in report["failed"] if not name.startswith("state")]
    return report


def run_all(program, runs):
    """Runs the scenarios, each with a seed, on all processors. Returns how many have failed."""
    wrong = 0
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        todo = {pool.submit(report_of, command): command
                for scenario, seed in runs
                for command in [command_of(program, scenario, seed)]}
        for done in concurrent.futures.as_completed(todo):
            report = done.result()
            if report["failed"]:
                wrong += 1
                print("failed:", *(f"{name} ({report['broken'].get(name, '-')})"
                                   for name in report["failed"]), "|", *todo[done], flush=True)
    return wrong


def mutants_missed(program):
    """Returns the number of planted mistakes that one of their checkers does not find."""
    missed = 0
    for scenario, mutant, checkers in PLANTED:
        fired = set()
        for seed in (*FIXED, *MORE):
            if not fired.issuperset(checkers):
                fired |= set(report_of(command_of(program, scenario, seed, "--mutant",
                                                  mutant))["failed"])
        silent = [name for name in checkers if name not in fired]
        print(scenario, mutant, f"NOT found by: {silent}" if silent else "found", flush=True)
        missed += bool(silent)
    return missed


def main(program, seeds, mutants):
    """Runs all checks."""
    if seeds > FEW:  # they take what other processes leave
        os.nice(19)
    start, first = time.monotonic(), int(os.environ.get("SEED", "1"))
    fixed = [(scenario, seed) for seed in FIXED for scenario in SCENARIOS]
    others = [(scenario, first + i) for i in range(seeds) for scenario in SCENARIOS]
    wrong = run_all(program, [*FOUND, *fixed]) + (mutants_missed(program) if mutants else 0)
    wrong += run_all(program, others)
    print(f"{len(SCENARIOS)} scenarios, seeds {FIXED} and {seeds} from {first} on: {wrong} wrong, "
          f"{time.monotonic() - start:.0f} s")
    return 1 if wrong else 0


COUNTS = [int(word) for word in sys.argv[2:] if word.isdigit()]
sys.exit(main(sys.argv[1], COUNTS[0] if COUNTS else 0, not SANITIZED))
