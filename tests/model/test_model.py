#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Spin checks the protocols of shared memory and of one-sided reads exhaustively.

    tests/model/test_model.py        exit 77: no spin, or no C compiler

Each model must hold in every interleaving and in every order in which stores can reach memory.
Each of its mutants, which the comment at its top lists, must fail.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
from concurrent.futures import ThreadPoolExecutor

HERE = os.path.dirname(os.path.abspath(__file__))

CCACHE = ["ccache"] if shutil.which("ccache") else []

# model: the error that a mutant must cause, and the variants of the model
MODELS = {
    "ring": ("assertion violated", [[]]),
    "sleep": ("invalid end state", [[], ["EXCHANGE"]]),
    "head": ("assertion violated", [[]]),
    "lease": ("assertion violated", [[], ["LIMBO=3"]]),
    "slot": ("assertion violated", [[]]),
    "shard": ("assertion violated", [[]]),
}


def mutants(model):
    with open(os.path.join(HERE, model + ".pml"), encoding="utf-8") as file:
        comment = re.search(r"/\*\n.*?\*/", file.read(), re.S)[0]
    return re.findall(r"^ \*   ([A-Z_]+) ", comment, re.M)


def check_all(checks):
    """Returns each (model, defines) with what check() returns or raises; as many run as cores."""
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        return [(*one, pool.submit(check, *one)) for one in checks]


def check(model, defines):
    """Returns the error that Spin found ("": none) and the number of states it searched."""
    with tempfile.TemporaryDirectory() as folder:
        flags = [f"-D{define}" for define in defines]
        source = os.path.join(HERE, model + ".pml")
        subprocess.run(["spin", *flags, "-a", source], cwd=folder, check=True,
                       capture_output=True, text=True, timeout=60)
        # Most of the time goes into the compiler: what it has compiled once is kept.
        subprocess.run([*CCACHE, "cc", "-w", "-O0", "-DSAFETY", "-DVECTORSZ=2048", "-c", "pan.c"],
                       cwd=folder, check=True, timeout=120)
        subprocess.run(["cc", "-o", "pan", "pan.o"], cwd=folder, check=True, timeout=120)
        text = subprocess.run(["./pan", "-m200000", "-w18"], cwd=folder, capture_output=True,
                              text=True, timeout=300).stdout
    wrong = re.search(r"^pan:\d+: (.*)", text, re.M)
    errors = int(re.search(r"errors: (\d+)", text)[1])
    if "max search depth too small" in text or (errors > 0) != bool(wrong):
        raise AssertionError(f"{model} {defines}: the search is incomplete\n{text}")
    return wrong[1] if wrong else "", int(re.search(r"(\d+) states, stored", text)[1])


class Models(unittest.TestCase):
    def test_each_model_holds_in_every_order(self):
        for model, variant, checked in check_all(
                [(model, variant) for model, (_, variants) in MODELS.items()
                 for variant in variants]):
            with self.subTest(model=model, variant=variant):
                wrong, states = checked.result()
                print(" ".join([model, *variant]) + f": {states} states")
                self.assertEqual(wrong, "")
                self.assertGreater(states, 50)

    def test_each_mutant_fails(self):
        for model in MODELS:
            self.assertTrue(mutants(model))
        for model, defines, checked in check_all(
                [(model, [*variant, mutant]) for model, (_, variants) in MODELS.items()
                 for variant in variants for mutant in mutants(model)]):
            with self.subTest(model=model, defines=defines):
                self.assertIn(MODELS[model][0], checked.result()[0])


if __name__ == "__main__":
    for program in ("spin", "cc"):
        if not shutil.which(program):
            print(f"skipped: {program} not found")
            sys.exit(77)
    unittest.main(verbosity=2)
