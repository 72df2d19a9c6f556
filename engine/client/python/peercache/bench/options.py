# SPDX-License-Identifier: Apache-2.0
"""The command line of the benchmark's part in Python."""

import argparse
import os
import re
import time
from typing import Any, Callable, Optional, Sequence

from peercache import __version__, config

OPS = ("get", "set", "exists", "exists-get")
THREADS_MAX = 16  # of one store: the channels that an engine gives a session in any case
REQUESTS_MAX = 4096  # at a time, to servers
PAGE_BYTES_MAX = 64 << 20  # of the engine
SEED_MAX = 10 ** 18 - 1

# ---- readers of one value: return what it means, or raise ArgumentTypeError ----------------------


def reader(parse: Callable[[str], Any]) -> Callable[[str], Any]:
    """Makes argparse show the remedy of a reader that raises ValueError."""
    def read(word: str) -> Any:
        try:
            return parse(word)
        except ValueError as error:
            raise argparse.ArgumentTypeError(f"{word}: {error}") from error
    return read


def whole(low: int, high: int) -> Callable[[str], int]:
    """Whole numbers from low to high."""
    return reader(config.number(low, high))


def page_size(low: int, high: int) -> Callable[[str], int]:
    """Bytes from low to high: 131072, 128k, 128KiB."""
    def parse(word: str) -> int:
        nbytes = config.size(word)
        if not low <= nbytes <= high:
            raise ValueError(f"give {low} to {high} bytes")
        return nbytes
    return reader(parse)


def seconds(low: float, high: float) -> Callable[[str], float]:
    """Seconds from low to high."""
    def parse(word: str) -> float:
        if not re.fullmatch(r"\d{1,9}(\.\d{0,9})?", word) or not low <= float(word) <= high:
            raise ValueError(f"give seconds from {low:g} to {high:g}")
        return float(word)
    return reader(parse)


# ---- the commands -----------------------------------------------------------------------------

SERVED = """\
Reports are left in ./peercache-bench-results, or in the folder of --out-dir.

Sends dialogues of several turns to running servers of SGLang: to the first --url twice, to each
further one once, so that what it has comes from the first. Measures hits and the time to the first
token by turn, by way of /generate. Start the servers anew, so that their caches are empty; they
need no flag for it. Made dialogues are token ids with the lengths of ShareGPT; those of a file are
sent as texts. If the servers have an --api-key, give it in $PEERCACHE_BENCH_API_KEY.
"""
EXAMPLES = """\
examples:
  peercache-bench served --url http://10.0.0.1:30000 --url http://10.0.0.2:30000
  peercache-bench served --url http://10.0.0.1:30000 --url http://10.0.0.2:30000 \\
      --no-cache http://10.0.0.3:30000 --users 64 --concurrency 16 --prompt-max 16000
  peercache-bench served --url http://10.0.0.1:30000 --dialogues ShareGPT.json --turns 6

The exit status is 1 if a request failed, 2 if a URL names no server of SGLang or all requests
of a turn failed.
"""


def add_served(sub: Any) -> None:
    """served."""
    parser = sub.add_parser("served", help="dialogues, sent to running servers of SGLang",
                            description=SERVED, epilog=EXAMPLES,
                            formatter_class=argparse.RawDescriptionHelpFormatter)
    put = parser.add_argument
    put("--url", action="append", required=True, help="a server; repeat it for other hosts")
    put("--no-cache", default="", metavar="URL", help="a server without cache, to compare with: "
        "launched with --disable-radix-cache and no --hicache flags")
    put("--dialogues", default="", metavar="FILE", help="JSON like ShareGPT's: a list of "
        '{"conversations": [{"from": "human", "value": TEXT}, ...]}')
    put("--seed", type=whole(0, SEED_MAX), default=None, metavar="N",
        help="of made dialogues; runs with one seed send the same prompts (the time)")
    put("--vocabulary", type=whole(4, 1 << 24), default=1024, metavar="N",
        help="made dialogues have token ids below this (1024)")
    put("--users", type=whole(1, 100000), default=8, metavar="N", help="dialogues (8)")
    put("--turns", type=whole(1, 1000), default=4, metavar="N", help="of a dialogue, at most (4)")
    put("--concurrency", type=whole(1, REQUESTS_MAX), default=2, metavar="N",
        help="requests at a time (2)")
    put("--output-tokens", type=whole(1, 1 << 20), default=8, metavar="N",
        help="of an answer (8)")
    put("--prompt-max", type=whole(1, 1 << 24), default=2000, metavar="TOKENS",
        help="a dialogue ends before its prompt has more tokens (2000)")
    put("--page-size", type=whole(1, 1 << 20), default=0, metavar="TOKENS",
        help="of the servers (they tell it)")
    put("--timeout", type=seconds(.1, 86400), default=600.0, metavar="S",
        help="a request has failed when nothing has come for this time (600)")
    put("--settle", type=seconds(0, 3600), default=3.0, metavar="S",
        help="seconds between two runs: SGLang stores pages after it has answered (3)")
    put("--json", default="", metavar="FILE", help='the report goes there, too ("-": standard '
        "output, and all other lines go to standard error)")
    put("--out-dir", default="peercache-bench-results", metavar="DIR", type=os.path.abspath,
        help="folder of the report: JSON and HTML (./peercache-bench-results)")
    put("--progress", type=seconds(0, 3600), default=None, metavar="S",
        help="seconds between two lines of progress; 0: none (1 on a terminal, else 5)")


def add_calls(sub: Any) -> None:
    """get, set, exists and exists-get, with the flags of the C program."""
    for name in OPS:
        parser = sub.add_parser(name, help="one call after the other on running engines, through "
                                "the class that SGLang calls")
        put = parser.add_argument
        put("--sockets", default="", help="pages are read through the first engine and stored "
            "through the last one ($PEERCACHE_SOCKETS)")
        put("--page-bytes", type=page_size(1, PAGE_BYTES_MAX), default=128 << 10,
            help="bytes of a page (128KiB)")
        put("--batch", type=whole(1, 65536), default=32, help="pages of a call (32)")
        put("--threads", type=whole(1, THREADS_MAX), default=1, help="client threads (1)")
        put("--seconds", type=seconds(.05, 86400), default=3, help="of the measurement (3)")
        put("--working-set", type=page_size(1, 1 << 50), default=256 << 20,
            help="bytes of all different pages (256MiB)")
        put("--shape", choices=["mla", "mha"], default="mla",
            help="mla: a page is one segment; mha: two, K and V (mla)")
        put("--private-memory", action="store_true",
            help="read into memory that the engine cannot map")
        put("--seed", type=whole(0, SEED_MAX), default=None, help="of keys and order (the time)")
        put("--json", default="", metavar="FILE", help='the result goes there, too ("-": standard '
            "output)")


def parse(arguments: Optional[Sequence[str]] = None) -> argparse.Namespace:
    """Reads the command line. Ends the program for wrong usage."""
    parser = argparse.ArgumentParser(
        prog="peercache-bench", usage="peercache-bench COMMAND [OPTION]...",
        description="Measures what SGLang gains, and the store that it calls.")
    parser.add_argument("--version", action="version", version=f"peercache-bench {__version__}")
    sub = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    add_served(sub)
    add_calls(sub)
    for name, one in sub.choices.items():
        one.usage = f"peercache-bench {name} [OPTION]...; see --help"
    options = parser.parse_args(arguments)
    if options.seed is None:
        options.seed = time.time_ns() % SEED_MAX
    return options
