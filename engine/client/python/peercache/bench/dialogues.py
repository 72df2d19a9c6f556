# SPDX-License-Identifier: Apache-2.0
"""Dialogues of several turns, for peercache-bench served: made ones, or a file's. Any thread.

A dialogue is a list of prompts. Each has the history of the dialogue and a new question. The answer
that enters the history is the dialogue's, not a server's: so every server gets the same prompts.

Made dialogues have the lengths of ShareGPT as the paper of WildChat gives them (Zhao et al., 2024,
arXiv 2405.01470, table 1): a question has 94.46 tokens (deviation 626.39), an answer 348.45
(269.93), in 3.51 turns. Both are drawn from log-normal distributions with these moments; the number
of turns is fixed.
"""

import argparse
import json
import math
import random
from typing import Any, Callable, Optional, Union

Prompt = Union[str, list[int]]  # a text, or token ids
QUESTION, ANSWER = (94.46, 626.39), (348.45, 269.93)  # tokens: mean and deviation
TOKEN_MIN = 3  # smaller ids are often special tokens
LETTERS = 4  # characters of a token of a text, about


def drawn(chance: random.Random, moments: tuple[float, float], most: int) -> int:
    """A number of tokens from the log-normal distribution with this mean and deviation."""
    mean, deviation = moments
    sigma = math.log(1 + (deviation / mean) ** 2)
    return max(1, min(most, round(chance.lognormvariate(
        math.log(mean) - sigma / 2, math.sqrt(sigma)))))


def made(options: argparse.Namespace) -> list[list[Prompt]]:
    """Dialogues of random tokens. options: seed, users, turns, prompt_max, vocabulary."""
    chance = random.Random(options.seed)
    tokens = range(TOKEN_MIN, options.vocabulary)
    dialogues: list[list[Prompt]] = []
    for _ in range(options.users):
        history: list[int] = []
        prompts: list[Prompt] = []
        for _ in range(options.turns):
            most = options.prompt_max - len(history)
            if most < 1:
                break
            history += chance.choices(tokens, k=drawn(chance, QUESTION, most))
            prompts.append(list(history))
            history += chance.choices(tokens, k=drawn(chance, ANSWER, options.prompt_max))
        dialogues.append(prompts)
    return dialogues


def prompts_of(row: Any, most: int, words: Optional[Callable[[str], list[int]]]) -> list[Prompt]:
    """The prompts of a row of a file, until one has more than `most` tokens."""
    turns = row.get("conversations") if isinstance(row, dict) else None
    history, prompts = "", []
    for turn in turns if isinstance(turns, list) else []:
        if not isinstance(turn, dict) or not isinstance(turn.get("value"), str):
            break
        history += turn["value"] + "\n"
        if turn.get("from") in ("human", "user"):
            prompt = words(history) if words else history
            if len(prompt) > most * (1 if words else LETTERS):
                break
            prompts.append(prompt)
    return prompts


def read(options: argparse.Namespace,
         words: Optional[Callable[[str], list[int]]] = None) -> list[list[Prompt]]:
    """Dialogues of a file like ShareGPT's. options: dialogues, users, turns, prompt_max. words:
    makes tokens of a text; None: texts are sent. Raises ValueError for another file, OSError.
    """
    try:
        with open(options.dialogues, encoding="utf-8") as file:
            rows = json.load(file)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"--dialogues {options.dialogues} is no JSON: {error}") from error
    dialogues: list[list[Prompt]] = []
    for row in rows if isinstance(rows, list) else []:
        prompts = prompts_of(row, options.prompt_max, words)
        if len(prompts) > 1:
            dialogues.append(prompts[:options.turns])
        if len(dialogues) == options.users:
            break
    if not dialogues:
        raise ValueError(f"--dialogues {options.dialogues} has no dialogue of two turns that "
                         f"begins within {options.prompt_max} tokens: give a list of "
                         '{"conversations": [{"from": "human", "value": TEXT}, ...]}')
    return dialogues
