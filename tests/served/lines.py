# SPDX-License-Identifier: Apache-2.0
"""The launch lines of engine/client/python/README.md, with the values of a test.

Only what names a machine is replaced: model, NICs, addresses and the size of the pool. PATIENCE and
ON_A_CPU list everything that is added; the README of this folder says why.
"""

import json
import os
import re
import shlex

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
README = os.path.join(ROOT, "engine", "client", "python", "README.md")
EXTRA = "--hicache-storage-backend-extra-config"
LAUNCH = "python3 -m sglang.launch_server"
ON_A_CPU = ("--device cpu --attention-backend torch_native --hicache-io-backend direct "
            "--disable-cuda-graph --skip-server-warmup --skip-tokenizer-init "
            "--enable-cache-report --max-running-requests 4").split()
PATIENCE = {"timeout_ms": 60000, "exists_timeout_ms": 60000, "prefetch_timeout_base": 60}


def blocks():
    """The launch lines of the README as lists of words, by their order."""
    with open(README, encoding="utf-8") as file:
        text = file.read()
    found = []
    for block in re.findall(r"(?:^    .*\n|^\n(?=    ))+", text, re.M):
        joined = block.replace("\\\n", " ")
        for part in joined.split(LAUNCH)[1:]:
            words = shlex.split(part, comments=True)
            found.append([LAUNCH.split()[-1], *words])
    return found


def value_of(words, flag):
    """The word after a flag."""
    return words[words.index(flag) + 1]


def line_of(mode=None):
    """The words of the README's line for one node, or for this disaggregation mode.

    The extra config "{...}" of a later line means that of the first one.
    """
    lines = blocks()
    for words in lines:
        given = value_of(words, "--disaggregation-mode") if "--disaggregation-mode" in words \
            else None
        if given == mode and EXTRA in words:
            if value_of(words, EXTRA) == "{...}":
                words[words.index(EXTRA) + 1] = value_of(lines[0], EXTRA)
            return words
    raise AssertionError(f"{README} has no launch line with {EXTRA} and mode {mode}")


def without(words, *flags):
    """The words without these flags and the values of those that have one."""
    kept, skip = [], False
    for word in words:
        skip = word in flags or skip and not word.startswith("--")
        if not skip:
            kept.append(word)
    return kept


def line(model, seeds, mode=None, extra=(), flags=(), patience=PATIENCE):
    """The words of a server's launch line.

    mode: None or a disaggregation mode. extra: keys of the extra config that are added or replaced.
    flags: words that are added; a flag that the line has already gets the new value.
    """
    words = line_of(mode)
    words[words.index("--model-path") + 1] = model
    config = json.loads(value_of(words, EXTRA))
    replaced = {"discovery_addr": seeds, "device_names": "soft", "global_segment_size": "256mb"}
    assert set(replaced) <= set(config), config
    config.update(replaced)
    config.update(patience)
    config.update(extra)
    words[words.index(EXTRA) + 1] = json.dumps(config)
    return words + ON_A_CPU + list(flags)
