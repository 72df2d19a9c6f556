# SPDX-License-Identifier: Apache-2.0
"""
Many seeds of the simulator: each runs all short scenarios, with 4 to 8 engines and 1 to 3 owners
per key. No checker may fire. A run that fails is printed as the command that repeats it.
usage: test_seeds.py RUN SEEDS [--any-state]
$PEERCACHE_SEEDS: number of seeds, in place of SEEDS. $SEED: the first one.
"""

import concurrent.futures
import json
import os
import subprocess
import sys
import time

SCENARIOS = ("join", "onelink", "gray", "mtu", "late", "power", "kill", "crash", "partition",
             "oneway", "stop", "loss", "clock", "slow", "repair", "flapper", "turns",
             "chaos")
# Large shards are part of the state.
KNOWN = {"chaos": ["state above 1 MiB a node"]}
ANY_STATE = "--any-state" in sys.argv


def run(program, seed):
    """Runs all scenarios. Returns for each the command that repeats it, and what is wrong: the
    names of the checkers that fired, or that the program ended without a report."""
    options = ["--seed", str(seed), "--nodes", str(4 + seed % 5),
               "--replicas", str(1 + seed // 5 % 3)]
    done = subprocess.run([program, "--scenario", ",".join(SCENARIOS), *options, "--json"],
                          capture_output=True, text=True, check=False,
                          env={**os.environ, "MALLOC_PERTURB_": "0"})
    reports = {}
    for line in done.stdout.splitlines():
        report = json.loads(line)
        reports[report["scenario"]] = [name for name in report["failed"]
                                       if name not in KNOWN.get(report["scenario"], []) and
                                       not (ANY_STATE and name.startswith("state above"))]
    wrong = {scenario: reports.get(scenario, ["no report"]) for scenario in SCENARIOS}
    if done.returncode not in (0, 1):
        print(f"seed {seed}: exit status {done.returncode}: {done.stderr[-2000:]}", flush=True)
        wrong[SCENARIOS[-1]] = wrong[SCENARIOS[-1]] or ["exit status"]
    return [([program, "--scenario", scenario, *options], names)
            for scenario, names in wrong.items()]


def main(program, seeds):
    """Runs all seeds on all processors, on what other processes leave of them."""
    os.nice(19)
    first, start, failures, runs = int(os.environ.get("SEED", "1")), time.monotonic(), 0, 0
    seeds = int(os.environ.get("PEERCACHE_SEEDS", seeds))
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        todo = [pool.submit(run, program, first + i) for i in range(seeds)]
        for done in concurrent.futures.as_completed(todo):
            for command, failed in done.result():
                runs += 1
                if failed:
                    failures += 1
                    print("failed:", *failed, "|", *command, flush=True)
    print(f"seeds {first} to {first + seeds - 1}: {runs} runs, {failures} failed, "
          f"{time.monotonic() - start:.0f} s")
    return 1 if failures else 0


sys.exit(main(sys.argv[1], sys.argv[2]))
