# SPDX-License-Identifier: Apache-2.0
"""The command line of the benchmark: the commands and flags of PeerCache 0.8.4's peercache-bench,
and those of this project. A flag that has no meaning here is refused with what replaces it.
"""

import argparse
import os
import re
import sys
import time
from typing import Any, Callable, Mapping, NoReturn, Optional, Sequence

from peercache import __version__, config
from peercache.bench.client import OPS

THREADS_MAX = 64  # of one process
REQUESTS_MAX = 4096  # at a time, to servers
ALL_MAX = 128  # threads of all processes: the channels that an engine has for them
CONCURRENCIES = "1,2,4,8,16,32"  # of 0.8.4's suite
BUDGET = 8 << 30  # bytes that a run takes without --max-bytes
PAGE_BYTES_MAX = 64 << 20  # of the engine
SEED_MAX = 10 ** 18 - 1
# Flags of the engines that a run starts: they change nothing with --sockets.
OF_ENGINES = ("protocol", "device_name", "devices", "set", "ib_port", "gid_index", "max_channels",
              "max_bytes", "disk", "global_segment_size", "local_host", "node_id")
WITHOUT_MOONCAKE = ("Mooncake is measured by perf/compare of the source tree, beside this engine "
                    "and on the same software ConnectX; its own benchmark is "
                    "transfer_engine_bench of the package mooncake-transfer-engine")

ABOUT = """\
Measures the store that SGLang calls (batch_set_v1, batch_exists, batch_get_v1). Starts two engines
on this host and ends them, unless --sockets names running ones: pages are read from the second
engine through the first.

  latency      one page a call, one thread: get, set, exists
  throughput   one operation at one --concurrency
  saturation   one operation; raises the threads until throughput stops growing
  suite        latency, then sweeps of get, exists and get together, set, exists
  serve        host A: stores pages and lets other hosts read them until Ctrl-C
  drive        host B: measures reads of the pages that serve has stored
  micro        the client library (C) and the store (Python) with the same calls
  served       what running servers of SGLang gain: dialogues, sent to each --url
  compare      two kept runs, by their --tag; or a sweep of --block-sizes
  mooncake     refused: says what replaces it
  get, set, exists   one call after the other on running engines, as the C program's are
"""


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


def several(one: Callable[[str], int]) -> Callable[[str], list[int]]:
    """Numbers with commas between them."""
    def parse(words: str) -> list[int]:
        found = [one(word.strip()) for word in words.split(",") if word.strip()]
        if not 1 <= len(found) <= 64:
            raise argparse.ArgumentTypeError("give 1 to 64 numbers with commas between them")
        return found
    return parse


def only(value: str, otherwise: str) -> Callable[[str], str]:
    """Accepts one value, in any notation of its number, and says why no other is."""
    def parse(word: str) -> str:
        try:
            same = float(word) == float(value)
        except ValueError:
            same = False
        if not same:
            raise argparse.ArgumentTypeError(f"{word} is not supported: {otherwise}")
        return value
    return parse


def tag(word: str) -> str:
    """The name of a run, a part of its files' names."""
    if word and not re.fullmatch(r"[\w.+-]{1,64}", word, re.ASCII):
        raise argparse.ArgumentTypeError("give at most 64 letters, digits and . _ + -")
    return word


def setting(word: str) -> tuple[str, str]:
    """section.key=value."""
    name, equals, value = word.partition("=")
    if not equals or not re.fullmatch(r"[a-z_]+\.[a-z_]+", name):
        raise argparse.ArgumentTypeError("give SECTION.KEY=VALUE")
    return name, value


class Refuse(argparse.Action):
    """A flag of 0.8.4 that has no meaning here; `help` says what replaces it."""

    def __init__(self, option_strings: Sequence[str], dest: str, nargs: Any = None,
                 help: Optional[str] = None) -> None:  # pylint: disable=redefined-builtin
        super().__init__(option_strings, argparse.SUPPRESS, nargs=nargs, help=help)

    def __call__(self, parser: argparse.ArgumentParser, _namespace: argparse.Namespace,
                 _values: Any, option_string: Optional[str] = None) -> NoReturn:
        parser.error(f"{option_string}: {self.help}")


# ---- the flags --------------------------------------------------------------------------------

# What add_argument() takes for flags that several commands have, or that have a row of their own in
# the groups below. {default} in a help text is the flag's default.
FLAGS: dict[str, dict[str, Any]] = {
    "protocol": {"choices": ["rdma", "tcp"], "default": "rdma",
                 "help": "tcp: the software NIC, for trying it out only (rdma)"},
    "device-name": {"default": "", "metavar": "NIC", "help": "RDMA device (the host's first one)"},
    "devices": {"default": "", "metavar": "NIC,...", "help": "several devices, a rail each"},
    "sockets": {"default": "", "metavar": "A,B", "help": "sockets of running engines, instead of "
                "starting any; flags of engines then change nothing"},
    "set": {"action": "append", "default": [], "type": setting, "metavar": "SECTION.KEY=VALUE",
            "help": "a setting of the engines that are started"},
    "ib-port": {"default": "1", "metavar": "N", "help": "1; other ports are devices of their own",
                "type": only("1", "each port of a card is a device of its own: name it in "
                             "--device-name")},
    "gid-index": {"type": whole(-1, 255), "metavar": "N", "help": "GID index (the engine chooses)"},
    "max-channels": {"type": whole(1, 1024), "metavar": "N",
                     "help": "queue pairs for each peer, at most 8 (the engine chooses)"},
    "layout": {"choices": ["mla", "mha"], "default": "mla",
               "help": "mla: a page is one segment; mha: two, K and V (mla)"},
    "page-size": {"type": page_size(1, PAGE_BYTES_MAX), "default": 131072, "metavar": "BYTES",
                  "help": "bytes of a segment ({default})"},
    "tokens-per-page": {"type": whole(1, 1 << 20), "default": 64, "metavar": "N",
                        "help": "tokens of a page, for tokens/s ({default})"},
    "working-set": {"type": whole(1, 1 << 30), "default": 4096, "metavar": "PAGES",
                    "help": "different pages that are read ({default})"},
    "seed": {"type": whole(0, SEED_MAX), "default": None, "metavar": "N",
             "help": "seed of the keys that are read and of order (the time; 0 of serve and "
             "drive)"},
    "batch-size": {"type": whole(1, 65536), "default": 32, "metavar": "N",
                   "help": "pages of a call ({default})"},
    "duration": {"type": seconds(.05, 86400), "default": 10, "metavar": "S",
                 "help": "seconds of each measurement ({default})"},
    "warmup": {"type": seconds(0, 3600), "default": 2, "metavar": "S",
               "help": "seconds before each that do not count ({default})"},
    "processes": {"type": whole(1, ALL_MAX), "default": 1, "metavar": "N",
                  "help": "client processes; each has as many threads ({default})"},
    "out-dir": {"default": "peercache-bench-results", "metavar": "DIR", "type": os.path.abspath,
                "help": "folder of the reports: JSON, CSV and HTML (./{default})"},
    "tag": {"type": tag, "default": "", "help": "name of this run, for compare"},
    "progress": {"type": seconds(0, 3600), "default": None, "metavar": "S", "help": "seconds "
                 "between two lines of progress; 0: none (1 on a terminal, else 5)"},
    "max-bytes": {"type": page_size(1 << 20, 1 << 50), "default": BUDGET, "metavar": "BYTES",
                  "help": "memory that the run may take (8 GiB)"},
    "disk": {"action": "store_true", "help": "engines spill evicted pages to files below "
             "--out-dir, removed at the end"},
    "writers": {"type": whole(0, THREADS_MAX), "default": 0, "metavar": "N",
                "help": "threads of each process that store pages meanwhile ({default})"},
    "op": {"choices": OPS, "default": "get",
           "help": "exists-get: the look-up and the read that SGLang makes (get)"},
    "concurrency": {"type": whole(1, THREADS_MAX), "default": 8, "metavar": "N",
                    "help": "threads of each process ({default})"},
    "concurrencies": {"type": several(whole(1, THREADS_MAX)), "default": None, "metavar": "N,...",
                      "help": "threads of each process (1, 2, 4, ... until it stops growing)"},
    "discovery-addr": {"required": True, "metavar": "HOST:PORT", "help": "serve: address and port "
                       "of this host's engine (0.0.0.0: chosen); drive: of serve's"},
    "local-host": {"default": "", "metavar": "HOST", "help": "address of this host (chosen)"},
    "global-segment-size": {"type": reader(lambda word: 0 if word == "0" else config.size(word)),
                            "default": 0, "metavar": "BYTES",
                            "help": "pool of the engine (as the pages need)"},
    "node-id": {"default": "", "help": "name of the engine"},
    "connect-timeout": {"type": seconds(.1, 3600), "default": 60.0, "metavar": "S",
                        "help": "seconds that drive waits for serve's pages (60)"},
    "threads": {"type": whole(1, THREADS_MAX), "default": 1, "metavar": "N",
                "help": "threads ({default})"},
}
RAILS = ("protocol", "device-name", "devices", "sockets", "set", "ib-port", "gid-index",
         "max-channels")
PAGES = ("layout", "page-size", "tokens-per-page", "working-set", "seed")
LOAD = ("batch-size", "duration", "warmup")
TAKEN = ("max-bytes", "disk")  # of this host
REPORT = ("out-dir", "tag", "progress")
PEER = ("discovery-addr", "local-host", "global-segment-size", "node-id", "connect-timeout")


def add(parser: argparse.ArgumentParser, *names: str, **others: Any) -> None:
    """Adds flags of FLAGS. others: defaults that differ here, by the name in the namespace. --help
    of a command with a report begins with what is left behind."""
    if "out-dir" in names:
        parser.description = "\n\n".join(filter(None, [REPORTS, parser.description]))
    for name in names:
        given = dict(FLAGS[name])
        if name.replace("-", "_") in others:
            given["default"] = others[name.replace("-", "_")]
        given["help"] = given["help"].replace("{default}", str(given.get("default")))
        parser.add_argument("--" + name, **given)


def add_sweep(parser: argparse.ArgumentParser, default: str) -> None:
    """Numbers of threads that have a default."""
    flag = FLAGS["concurrencies"]
    parser.add_argument("--concurrencies", **{
        **flag, "default": flag["type"](default), "help": f"threads of each process ({default})"})


# ---- the commands -----------------------------------------------------------------------------


def add_hicache(sub: Any) -> None:
    """latency, throughput, saturation and suite."""
    for name, what, more in (
            ("latency", "latency of one page a call, by one thread", ()),
            ("throughput", "one operation by a number of threads", ("op", "writers",
                                                                    "concurrency")),
            ("saturation", "raises the threads until throughput stops growing",
             ("op", "writers", "concurrencies")),
            ("suite", "latency and all sweeps", ())):
        add(sub.add_parser(name, help=what), *RAILS, *PAGES, *LOAD, "processes", *TAKEN, *REPORT,
            *more)
    add_sweep(sub.choices["suite"], CONCURRENCIES)


def add_hosts(sub: Any) -> None:
    """serve and drive."""
    serve = sub.add_parser("serve", help="host A: stores pages for drive, until Ctrl-C")
    add(serve, *PEER, *RAILS, *PAGES)
    serve.add_argument("--readers", action=Refuse, help="readers may come at any time, and the "
                       "processes of a host share one engine: leave it out")
    drive = sub.add_parser("drive", help="host B: measures reads of serve's pages")
    add(drive, *PEER, *RAILS, *PAGES)
    drive.add_argument("--op", **{**FLAGS["op"], "choices": ("get", "exists", "exists-get")})
    add(drive, *LOAD, "processes")
    add_sweep(drive, "1,2,4,8,16,32,64")
    add(drive, *REPORT)
    drive.add_argument("--gpu", action=Refuse, nargs=0, help="pages are read into host memory, "
                       "from where SGLang copies them to the GPU: leave it out")
    drive.add_argument("--dir-cache-ttl", default="0", metavar="S", type=only(
        "0", "the client library keeps locations and checks each when it reads: leave it out"),
        help="0: locations are kept and checked at each read")


def add_micro(sub: Any) -> None:
    """micro, compare and mooncake."""
    micro = sub.add_parser("micro", help="the client library and the store, with the same calls")
    micro.add_argument("--path", choices=["transport", "store", "both"], default="transport",
                       help="transport: the client library, in C; store: Python (transport)")
    compare = sub.add_parser("compare", help="two kept runs; or a sweep of page sizes")
    compare.add_argument("tags", nargs="*", type=tag, metavar="TAG",
                         help="two tags of runs in --out-dir")
    compare.add_argument("--block-sizes", type=several(page_size(1, PAGE_BYTES_MAX)),
                         default=[4096, 65536, 1 << 20], metavar="BYTES,...",
                         help="page sizes of the sweep (4k,64k,1m)")
    compare.add_argument("--skip-mooncake", action="store_true",
                         help="sweep this engine alone; a sweep needs it: " + WITHOUT_MOONCAKE)
    compare.add_argument("--mooncake-threads", action=Refuse, help=WITHOUT_MOONCAKE)
    compare.add_argument("--skip-store", action=Refuse, nargs=0,
                         help="use peercache-bench micro --path transport")
    for parser in (micro, compare):
        add(parser, *RAILS, *LOAD, *TAKEN, *REPORT, "threads", batch_size=64, duration=5, warmup=1)
    micro.add_argument("--block-size", type=page_size(1, PAGE_BYTES_MAX), default=65536,
                       metavar="BYTES", help="bytes of a page (65536)")
    sub.add_parser("mooncake", help="refused: " + WITHOUT_MOONCAKE, add_help=False)


REPORTS = "Reports are left in ./peercache-bench-results, or in the folder of --out-dir."
SERVED = """\
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
      --no-cache http://10.0.0.3:30000 --users 64 --concurrency 16 --prompt-max 16000 --tag l3
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
    add(parser, *REPORT)


def add_calls(sub: Any) -> None:
    """get, set and exists, with the flags of the C program."""
    for name in ("get", "set", "exists"):
        parser = sub.add_parser(name, help="one operation on running engines, no report")
        put = parser.add_argument
        put("--sockets", default="", help="sockets of the engines ($PEERCACHE_SOCKETS)")
        put("--page-bytes", type=page_size(1, PAGE_BYTES_MAX), default=128 << 10)
        put("--batch", type=whole(1, 65536), default=128)
        put("--threads", type=whole(1, THREADS_MAX), default=1)
        put("--seconds", type=seconds(.05, 86400), default=3)
        put("--working-set", type=page_size(1, 1 << 50), default=256 << 20)
        put("--shape", choices=["mla", "mha"], default="mla")
        put("--private-memory", action="store_true")
        put("--seed", type=whole(0, SEED_MAX), default=None)
        put("--json", default="")


def parser_of() -> tuple[argparse.ArgumentParser, dict[str, argparse.ArgumentParser]]:
    """The parser of all commands, and that of each."""
    parser = argparse.ArgumentParser(
        prog="peercache-bench", description=ABOUT, usage="peercache-bench COMMAND [OPTION]...",
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--version", action="version", version=f"peercache-bench {__version__}")
    parser.add_argument("--log-level", choices=["debug", "info", "warning", "error"],
                        default="warning", help="least important line of the log (warning)")
    parser.add_argument("--log-file", default="", metavar="FILE", help="the log goes there, too")
    sub = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    add_hicache(sub)
    add_hosts(sub)
    add_micro(sub)
    add_served(sub)
    add_calls(sub)
    for name, one in sub.choices.items():
        one.usage = f"peercache-bench {name} [OPTION]...; see --help"
    return parser, sub.choices


def check_disk(parser: argparse.ArgumentParser, folder: str) -> None:
    """Ends the program if no setting of an engine can name a directory below the folder."""
    if re.search("""[$",]|'$""", folder) or not folder.isprintable():
        parser.error(f"--disk: its files go below --out-dir, {folder}: give a path without commas, "
                     "quotes and $")


def applied(given: Mapping[str, Any]) -> dict[str, Any]:
    """The flags of a run that change something: with --sockets, none of the engines."""
    return {name: value for name, value in given.items()
            if not (given.get("sockets") and name in OF_ENGINES)}


def warn_of_idle(options: argparse.Namespace, command: argparse.ArgumentParser) -> None:
    """Says which flags change nothing because --sockets names running engines."""
    given = vars(options)
    idle = ["--" + name.replace("_", "-") for name in given
            if name not in applied(given) and given[name] != command.get_default(name)]
    if idle:
        print("peercache-bench: --sockets names running engines, so these flags change nothing: "
              + " ".join(idle), file=sys.stderr)


def check_threads(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """Ends the program if there are more threads than an engine has channels."""
    threads = getattr(options, "writers", 0) + max(getattr(options, "concurrencies", None) or [
        getattr(options, "concurrency", 1)])
    if threads > THREADS_MAX or threads * getattr(options, "processes", 1) > ALL_MAX:
        parser.error(f"{threads} threads of a process: one has at most {THREADS_MAX}, and all "
                     f"together have {ALL_MAX}: change the threads, --writers or --processes")


def parse(arguments: Optional[Sequence[str]] = None) -> argparse.Namespace:
    """Reads the command line. Ends the program for wrong usage."""
    parser, commands = parser_of()
    options, rest = parser.parse_known_args(arguments)
    if options.command == "mooncake":
        parser.error("mooncake: " + WITHOUT_MOONCAKE)
    if rest:
        parser.error(f"{options.command} has no flag or word {' '.join(rest)}; see peercache-bench "
                     f"{options.command} --help")
    if options.command == "compare" and len(options.tags) not in (0, 2):
        parser.error("compare: give two tags of kept runs, or none")
    if options.command == "compare" and not options.tags and not options.skip_mooncake:
        parser.error("compare: give two tags of kept runs; or --skip-mooncake, because "
                     + WITHOUT_MOONCAKE)
    if getattr(options, "disk", False):
        check_disk(parser, options.out_dir)
    if options.command != "served":
        check_threads(parser, options)
    if getattr(options, "seed", 0) is None:  # serve and drive must agree on one
        options.seed = 0 if options.command in ("serve", "drive") else time.time_ns() % SEED_MAX
    warn_of_idle(options, commands[options.command])
    return options
