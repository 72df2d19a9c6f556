# SPDX-License-Identifier: Apache-2.0
"""
The suite `sim`, clusters above 32 nodes, whose engines keep links with neighbours only: all
scenarios with their checkers, limits of time and traffic, and planted mistakes.
usage: test_large.py RUN [--few] [--any-state]    --few: three of the scenarios; --any-state: for
                                                  builds with sanitizers, which are slow: without
                                                  planted mistakes
"""

import json
import os
import subprocess
import sys

NODES = "36"
CLEAN = ("join", "kill", "power", "stop", "gray", "mtu", "partition", "onelink", "oneway", "loss",
         "clock", "slow", "rack", "rolling", "churn", "cross", "late", "crash", "seed")
FEW = ("kill", "gray", "rack")
# longest time until the member is off all maps, ms
GONE = {"kill": 500, "power": 3900, "stop": 3900, "gray": 4300, "mtu": 4800}
# by mutant: in which scenario which checker must fire
PLANTED = {"no-refute": {"onelink": "false removal", "oneway": "false removal"},
           "beat-refute": {"gray": "gray: removed"},
           "reshuffle": {"rack": "more entries moved than the shares of the members"}}

ANY_STATE = "--any-state" in sys.argv


def run(program, *scenarios, mutant="none", seed=1):
    """Runs scenarios and returns their reports, in the order of `scenarios`; fails when the
    simulator itself fails."""
    command = [program, "--json", "--scenario", ",".join(scenarios), "--seed", str(seed),
               "--nodes", NODES, "--mutant", mutant]
    done = subprocess.run(command, capture_output=True, text=True, check=False,
                          env={**os.environ, "MALLOC_PERTURB_": "0"})
    assert done.returncode in (0, 1), f"{command}: {done.returncode}\n{done.stderr}"
    reports = {}
    for line in done.stdout.splitlines():
        report = json.loads(line)
        report["failed"] = [name for name in report["failed"]
                            if not (ANY_STATE and name.startswith("state above"))]
        print(report["scenario"], mutant, report["failed"] or "clean")
        reports[report["scenario"]] = report
    return [reports[scenario] for scenario in scenarios]


def main(program, few):
    """Runs all checks."""
    for report in run(program, *(FEW if few else CLEAN)):
        scenario = report["scenario"]
        assert report["failed"] == [] and report["false_absent"] == 0, report
        assert report["false_removals"] == 0, report
        if scenario in GONE:
            assert 0 <= report["gone_ms"] <= GONE[scenario], report
        if scenario == "rack":
            assert report["agreed_ms"] <= 3900 and report["kbits"] <= 700, report
            assert 0 < report["moved"] <= 6, report
    # restarts that meet a Hello: member_down() is called by the link that it must not free
    for scenario, seed in () if few else (("rolling", 4), ("churn", 5)):
        assert run(program, scenario, seed=seed)[0]["failed"] == [], (scenario, seed)
    for mutant, found in {} if ANY_STATE else PLANTED.items():
        for report in run(program, *found, mutant=mutant):
            assert found[report["scenario"]] in report["failed"], report


main(sys.argv[1], "--few" in sys.argv)
