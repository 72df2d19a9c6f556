# SPDX-License-Identifier: Apache-2.0
"""
peercache-bench policy: its policies against traces whose hits were counted by hand and against
their papers, its optimum against a search of all choices, the engine's pool beside the others.
$SEED: that of random traces.

    test_bench_policy.py PEERCACHE-BENCH
"""
import itertools
import json
import os
import random
import subprocess
import sys
import tempfile
import unittest

BENCH = ""
NAMES = ["engine", "lru", "clock", "slru", "s3fifo", "arc", "optimum"]


def run(*arguments, expect=0):
    done = subprocess.run([BENCH, "policy", *map(str, arguments)], capture_output=True, text=True)
    assert done.returncode == expect, (done.returncode, done.stderr)
    return done


def results(*arguments):
    return json.loads(run("--json", "-", *arguments).stdout)["traces"]


def hits(trace, cell, policy):
    """The number of hits of a cell with one host."""
    return round(cell["hit_ratio"][policy] * trace["blocks"])


def subsets(blocks, most):
    """What a pool may keep: as many as fit."""
    return map(frozenset, itertools.combinations(blocks, min(most, len(blocks))))


def served_by_l2(requests, blocks):
    """How many blocks an LRU of that size serves of each request."""
    l2, served = [], []
    for request in requests:
        served.append(len(list(itertools.takewhile(lambda block: block in l2, request))))
        for block in reversed(request):
            l2 = [b for b in l2 if b != block] + [block]
            l2 = l2[len(l2) - min(blocks, len(l2)):]
    return served


def most_hits(requests, blocks, l2_blocks):
    """The most usable hits of any choice of blocks to keep."""
    states = {frozenset(): 0}
    for request, served in zip(requests, served_by_l2(requests, l2_blocks)):
        after = {}
        for held, sum_hits in states.items():
            sum_hits += len(list(itertools.takewhile(lambda block: block in held,
                                                     request[served:])))
            for kept in subsets(held | set(request), blocks):
                after[kept] = max(after.get(kept, 0), sum_hits)
        states = after
    return max(states.values())


def slru_hits(uses, size):
    new, again, sum_hits = [], [], 0  # the newest last
    for block in uses:
        if block in new + again:
            sum_hits += 1
            (new if block in new else again).remove(block)
            again.append(block)
            if len(again) > size // 2:
                new.append(again.pop(0))
        else:
            new.append(block)
            if len(new) + len(again) > size:
                new.pop(0)
    return sum_hits


def s3fifo_hits(uses, size):
    small, main, gone, count, sum_hits = [], [], [], {}, 0

    def evict():
        if len(small) >= max(1, size // 10):
            while small:
                block = small.pop(0)
                if count[block] > 1:
                    main.append(block)
                    count[block] = 0
                else:
                    gone.append(block)
                    del gone[:-size]
                    return
        while count[main[0]]:
            count[main[0]] -= 1
            main.append(main.pop(0))
        main.pop(0)

    for block in uses:
        if block in small + main:
            sum_hits += 1
            count[block] = min(3, count[block] + 1)
            continue
        if len(small) + len(main) == size:
            evict()
        (main if block in gone else small).append(block)
        gone = [b for b in gone if b != block]
        count[block] = 0
    return sum_hits


def arc_hits(uses, size):
    t1, t2, b1, b2, target, sum_hits = [], [], [], [], 0, 0  # the names of the paper

    def replace(in_b2):
        if t1 and (len(t1) > target or (in_b2 and len(t1) == target)):
            b1.append(t1.pop(0))
        else:
            b2.append(t2.pop(0))

    for block in uses:
        if block in t1 + t2:
            sum_hits += 1
            (t1 if block in t1 else t2).remove(block)
            t2.append(block)
            continue
        full = len(t1) + len(t2) == size
        if block in b1:
            target = min(size, target + max(1, len(b2) // len(b1)))
        elif block in b2:
            target = max(0, target - max(1, len(b1) // len(b2)))
        elif len(t1) + len(b1) == size:
            full = full and len(t1) < size
            (b1 if len(t1) < size else t1).pop(0)
        elif len(t1) + len(t2) + len(b1) + len(b2) == 2 * size:
            b2.pop(0)
        if full:
            replace(block in b2)
        (t2 if block in b1 + b2 else t1).append(block)
        for ghosts in (b1, b2):
            if block in ghosts:
                ghosts.remove(block)
    return sum_hits


class Policy(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def trace(self, requests, name="trace"):
        path = os.path.join(self.folder, name)
        with open(path, "w", encoding="utf-8") as out:
            for request in requests:
                out.write(json.dumps({"hash_ids": request}) + "\n")
        return path

    def test_hits_are_those_that_were_counted_by_hand(self):
        # Pools of 3 blocks. What each holds, from the block that leaves next; * is a mark:
        # LRU:   0 hits 1; 1 2 3 hit 1 2 -> 312; 4 5 3 -> 453 hit 4 5 4 -> 354; 1 3 -> 413 hit 4
        # CLOCK: 0 hits 1; 0*12; 3 -> 203; 1 2 4 5 3 -> 453 hit 4 5 4 -> 4*5*3; 1 -> 451; 3 -> 513
        # optimum: 0 hits; 123 hit 1 2; 4 for 2, 5 for 1 -> 345 hit 3 4 5 4; 1 is not kept; hit 3 4
        path = self.trace([[b] for b in (0, 0, 1, 2, 3, 1, 2, 4, 5, 3, 4, 5, 4, 1, 3, 4)])
        trace, = results(path, "--hosts", 1, "--l2", "0%", "--pool", "50%")
        got = {name: hits(trace, trace["cells"][0], name) for name in NAMES[1:]}
        self.assertEqual(got, {"lru": 7, "clock": 4, "slru": 3, "s3fifo": 8, "arc": 6,
                               "optimum": 9})
        writes = trace["cells"][0]["write_ratio"]["lru"] * trace["blocks"]
        self.assertEqual(round(writes), 16 - 7)

    def test_policies_are_those_of_their_papers(self):
        seed = int(os.environ.get("SEED", random.randrange(1 << 30)))
        choose, uses, paths = random.Random(seed), {}, []
        for i in range(30):
            # 40 blocks, some of which are used often; others are used by turns
            made = list(range(40)) + [
                choose.choice([choose.randrange(5), choose.randrange(40), use % 30])
                for use in range(400)]
            paths.append(self.trace([[block] for block in made], f"trace{i}"))
            uses[paths[-1]] = made
        for trace in results(*paths, "--hosts", 1, "--l2", "0%", "--pool", "20%,60%"):
            for cell, size in zip(trace["cells"], (8, 24)):
                for name, model in (("slru", slru_hits), ("s3fifo", s3fifo_hits),
                                    ("arc", arc_hits)):
                    with self.subTest(seed=seed, trace=trace["trace"], policy=name, size=size):
                        self.assertEqual(hits(trace, cell, name), model(uses[trace["trace"]], size))

    def test_the_last_page_of_a_prompt_leaves_first(self):
        # 2 of 4 blocks fit: of 0 1 2, the head 0 1 stays, and the second request hits it
        path = self.trace([[0, 1, 2], [0, 1, 3]])
        trace, = results(path, "--hosts", 1, "--l2", "0%", "--pool", "50%")
        for name in NAMES[1:]:  # the engine stores more than 2 blocks at once
            with self.subTest(policy=name):
                self.assertEqual(hits(trace, trace["cells"][0], name), 2)

    def test_a_page_behind_a_gap_is_no_usable_hit(self):
        # a pool of 3 has 4 0 3, oldest first, when 0 1 3 comes: 0 is usable, 3 is not
        path = self.trace([[0, 1], [3], [4], [0], [3], [0, 1, 3]])
        trace, = results(path, "--hosts", 1, "--l2", "0%", "--pool", "75%", "--policy", "lru")
        self.assertEqual(trace["different_blocks"], 4)
        self.assertEqual(hits(trace, trace["cells"][0], "lru"), 3)  # [0], [3], 0 of the last

    def test_l2_serves_the_head_and_the_pool_what_is_behind_it(self):
        # an L2 of 2 of 8 blocks serves 0 1; the pool of 8 has 2, and 1 2 of the last request
        path = self.trace([[0, 1, 2], [0, 1, 2, 3], [4, 5], [0, 1, 2], [6], [7]])
        trace, = results(path, "--hosts", 1, "--l2", "25%", "--pool", "100%", "--policy", "lru")
        cell, = trace["cells"]
        self.assertEqual(round(cell["l2_ratio"] * trace["blocks"]), 2)
        self.assertEqual(hits(trace, cell, "lru"), 1 + 3)

    def test_the_optimum_is_that_of_all_choices(self):
        seed = int(os.environ.get("SEED", random.randrange(1 << 30)))
        choose, requests, paths = random.Random(seed), {}, []
        for i in range(40):
            # prompts are paths in a tree of 7 blocks, 1 and 2 below 0
            made = []
            for _ in range(8):
                block = choose.randrange(7)
                prompt = [block]
                while block:
                    block = (block - 1) // 2
                    prompt.insert(0, block)
                made.append(prompt)
            made += [[0, 1, 3], [0, 1, 4], [0, 2, 5], [0, 2, 6]]  # all blocks are in the trace
            paths.append(self.trace(made, f"trace{i}"))
            requests[paths[-1]] = made
        # 3 and 4 of 7 blocks; an L2 of none or one
        for trace in results(*paths, "--hosts", 1, "--l2", "0%,15%", "--pool", "45%,60%",
                             "--policy", "optimum"):
            for cell, (l2, pool) in zip(trace["cells"], itertools.product((0, 1), (3, 4))):
                with self.subTest(seed=seed, requests=requests[trace["trace"]], l2=l2, pool=pool):
                    self.assertEqual(hits(trace, cell, "optimum"),
                                     most_hits(requests[trace["trace"]], pool, l2))

    def test_no_policy_beats_the_optimum_and_a_pool_for_all_has_all_hits(self):
        trace, = results("--requests", 1500, "--pool", "5%,20%,100%", "--hosts", "1,3")
        for cell in trace["cells"]:
            ratios = cell["hit_ratio"]
            with self.subTest(cell=cell):
                self.assertEqual(list(ratios), NAMES)
                self.assertGreaterEqual(min(ratios.values()), 0)
                self.assertEqual(max(ratios.values()), ratios["optimum"])
                if cell["pool"] == 1 and cell["hosts"] == 1:
                    self.assertEqual(ratios["lru"], ratios["optimum"])
                    self.assertAlmostEqual(ratios["lru"] + cell["l2_ratio"],
                                           trace["prefix_ratio"])

    def test_the_engine_hits_as_the_best_of_the_others(self):
        trace, = results("--requests", 3000, "--pool", "10%", "--hosts", 2, "--l2", "1%",
                         "--seeds", 1)
        self.assertGreater(trace["cells"][0]["engine_to_best"], 0.85)

    def test_of_prompts_that_come_in_turn_the_engine_keeps_some(self):
        # 60 prompts of 100 blocks, again and again, in a pool of half of them
        path = self.trace([list(range(100 * d, 100 * d + 100)) for d in [*range(60)] * 12])
        trace, = results(path, "--hosts", 1, "--l2", "0%", "--pool", "50%",
                         "--policy", "engine,lru,optimum")
        ratios = trace["cells"][0]["hit_ratio"]
        self.assertEqual(ratios["lru"], 0)
        self.assertGreater(ratios["engine"], 0.4 * ratios["optimum"])

    def test_runs_are_equal_and_seeds_differ(self):
        arguments = ("--requests", 300, "--pool", "10%", "--hosts", 2, "--seeds", 1)
        self.assertEqual(results(*arguments), results(*arguments))
        self.assertNotEqual(results(*arguments), results(*arguments, "--seed", 2))

    def test_the_table_has_a_row_for_each_cell(self):
        text = run("--requests", 200, "--pool", "10%,50%", "--hosts", 1, "--policy",
                   "engine,lru").stdout
        rows = [line.split() for line in text.splitlines()]
        self.assertEqual([row[:3] for row in rows if row[0] == "1"],
                         [["1", l2, pool] for l2 in ("0%", "2%", "5%") for pool in ("10%", "50%")])
        self.assertIn(["hosts", "L2", "pool", "in", "L2", "engine", "lru", "of", "best,",
                       "optimum"], rows)

    def test_what_cannot_be_meant_is_named(self):
        bad = os.path.join(self.folder, "bad")
        with open(bad, "w", encoding="utf-8") as out:
            out.write('{"hash_ids": [1]}\n{"hash_ids": [1, "x"]}\n')
        empty = self.trace([[]], "empty")
        for arguments, words in (
                ([bad], ["bad:2", "hash_ids[1]"]), ([empty], ["empty", "no blocks"]),
                (["/nowhere"], ["/nowhere", "No such file"]),
                (["--pool", "5"], ["--pool", '"5"']), (["--pool", "0"], ["--pool", '"0"']),
                (["--l2", "-1%"], ["--l2", '"-1%"']), (["--l2", "nan%"], ["--l2", "nan"]),
                (["--pool", ""], ["--pool", '""']), (["--hosts", "65"], ["--hosts", "65"]),
                (["--policy", "lru,sieve"], ["--policy", '"sieve"']),
                (["--l2", ",".join(["1%"] * 17)], ["--l2", "16"]),
                (["--requests", "x"], ["--requests", "x"]), (["--pole", "1"], ["--help"])):
            with self.subTest(arguments=arguments):
                said = run(*arguments, expect=2).stderr
                for word in words:
                    self.assertIn(word, said)

    def test_help_has_examples_that_run(self):
        text = run("--help").stdout
        path = self.trace([[0, 1], [0, 2]])
        for line in text[text.index("Examples:"):].splitlines()[1:]:
            words = line.split()
            self.assertEqual(words[:3], ["$", "peercache-bench", "policy"])
            run(*[path if word.endswith(".jsonl") else word for word in words[3:]])


if __name__ == "__main__":
    BENCH = sys.argv.pop(1)
    unittest.main()
