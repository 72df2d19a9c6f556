# SPDX-License-Identifier: Apache-2.0
"""peercachectl trial: `python3 -m peercache.trial [OPTION]...`"""

import argparse
import ipaddress
import os
import shutil
import socket
import sys
import tempfile
import time
from functools import partial
from typing import Any, Sequence

from peercache import config, programs
from peercache.trial import card, claims, host, link, measure, peer, report, served
from peercache.trial.engines import Engines
from peercache.trial.frame import Answer, Refused, Step, Stopped, Trial, take_lock

ROOM = 64 << 20  # bytes that the folder of the report must have free
EPILOG = """\
Exit status:
  0    all steps are yes or unknown
  1    a step is no: the report says what to do
  2    wrong usage, another trial runs on this host, or the report could not be written
  130  stopped; the report has what there was

Examples:
  $ peercachectl trial
  $ peercachectl trial --devices mlx5_0,mlx5_1 --output /var/tmp --anonymous
"""


def parse(words: Sequence[str]) -> Any:
    parser = argparse.ArgumentParser(
        "peercachectl trial", formatter_class=argparse.RawDescriptionHelpFormatter, epilog=EPILOG,
        description="Examines this host and its NICs with engines of its own, step by step, and "
        "leaves one\nreport, one page of HTML, and everything in a .tar.gz beside it. An "
        "engine that\nruns already is not touched. Ctrl-C ends it with what there is.")
    parser.add_argument("--devices", metavar="LIST", help="NICs, such as mlx5_0,mlx5_1 (all "
                        "ConnectX of this host; soft: the software NIC)")
    parser.add_argument("--peer", metavar="HOST", default="", help="measure between this host and "
                        "HOST, where ssh starts the same command; or type it there, with this "
                        "host's name")
    parser.add_argument("--address", metavar="A", default="", help="own address for HOST (the one "
                        "from which it is reached)")
    parser.add_argument("--port", type=int, default=31900, help="TCP port of the engines (31900)")
    parser.add_argument("--minutes", type=float, default=0, help="of verified reads beside "
                        "evictions (one round)")
    parser.add_argument("--disrupt", action="store_true", help="also take a port down and up with "
                        "ip link: addresses and routes that no service sets again are lost")
    parser.add_argument("--model", metavar="PATH", default="", help="also start servers of SGLang "
                        "with this model, if it is installed; \"PATH --tp 8\": with more flags")
    parser.add_argument("--output", metavar="DIR", default=".", help="folder of the report (.)")
    parser.add_argument("--anonymous", action="store_true",
                        help="replace names, addresses and secrets in all files of the report")
    parser.add_argument("--quick", action="store_true", help="fewer and shorter measurements")
    parser.add_argument("--only", metavar="LIST", default="", help="steps whose names begin with "
                        "one of these words, such as card,bytes (all)")
    parser.add_argument("--seconds", type=int, help="of each measurement (3; with --quick 1)")
    parser.add_argument("--pool-bytes", metavar="B", help="memory of each NIC for pages (1GiB; "
                        "with --quick 256MiB)")
    parser.add_argument("--config", action="append", default=[], metavar="FILE",
                        help="settings of the engines, such as those of a service")
    parser.add_argument("--set", dest="settings", action="append", default=[],
                        metavar="S.KEY=VALUE", help="one setting, overrides FILE")
    parser.add_argument("--json", action="store_true", help="print the report as JSON, too")
    parser.add_argument("--quiet", action="store_true", help="print no progress")
    parser.add_argument("--called", action="store_true", help=argparse.SUPPRESS)  # by peer.call()
    options = parser.parse_args(words)
    if options.peer:
        meet(parser, options, words)
    options.devices = options.devices.split(",") if options.devices else host.devices() or ["soft"]
    options.seconds = options.seconds or (1 if options.quick else 3)
    try:
        options.pool_bytes = config.size(
            options.pool_bytes or ("256MiB" if options.quick else "1GiB"))
    except ValueError as error:
        parser.error(f"--pool-bytes: {error}")
    # of each size of page; a peer stores all sizes at once
    options.working_set = options.pool_bytes // (8 if options.peer else 4)
    return options


def meet(parser: argparse.ArgumentParser, options: Any, words: Sequence[str]) -> None:
    """Finds the addresses of both hosts, and the command of the other one. The one with the lower
    address reads first."""
    try:
        peer = socket.getaddrinfo(options.peer, options.port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(peer[0], socket.SOCK_DGRAM) as probe:
            probe.connect(peer[4])
            options.address = options.address or probe.getsockname()[0]
        own = socket.getaddrinfo(options.address, options.port, type=socket.SOCK_DGRAM)[0]
        own_ip, peer_ip = (ipaddress.ip_address(found[4][0]) for found in (own, peer))
        if own_ip.version != peer_ip.version:
            raise OSError(f"--address {options.address} is of another family")
    except OSError as error:
        parser.error(f"--peer {options.peer}: {error.strerror or error}")
    if own_ip == peer_ip:
        parser.error(f"--peer {options.peer}: that is this host: name the other one")
    options.first = int(own_ip) < int(peer_ip)
    options.there = ["peercachectl", "trial", *words, "--peer", str(own_ip), "--address",
                     str(peer_ip)]


def make_folder(output: str) -> str:
    """The folder in which the report's files are collected. Raises Refused."""
    try:
        os.makedirs(output, exist_ok=True)
        free = os.statvfs(output)
        if free.f_bavail * free.f_frsize < ROOM:
            raise Refused(f"the disk of {output} has {free.f_bavail * free.f_frsize >> 20} MiB "
                          f"free, and a report needs {ROOM >> 20}: make room, or give another "
                          "folder as --output")
        return tempfile.mkdtemp(prefix=".peercache-trial-", dir=output)
    except OSError as error:
        raise Refused(f"--output {output}: {error.strerror}") from None


def by_hand(_trial: Trial) -> Answer:
    return Answer("unknown", "not between two hosts", "type the command on each without --peer, "
                  "too")


def steps_of(trial: Trial, engines: Engines) -> list[Step]:
    """All steps in their order."""
    def step(name: str, call: Any, *words: Any) -> Step:
        return Step(name, partial(call, trial, *words))
    one = [step("bytes: one process", measure.read_bytes, engines),
           step("bytes: ib_read_bw, ib_read_lat", measure.vendor, engines),
           step("bytes: several processes", measure.processes, engines),
           step(report.CHURN, measure.churn, engines),
           step("churn: restart", measure.restart, engines),
           step("churn: a port down and up", link.down_and_up, engines),
           step("SGLang: hits, time to the first token", served.serve, engines)]
    two = [step("bytes: one process", measure.with_peer, engines, 0),
           step("bytes: the other way", measure.with_peer, engines, 1),
           *(step(name, by_hand) for name in ("bytes: ib_read_bw, ib_read_lat",
                                              "bytes: several processes", "churn", "SGLang"))]
    calls = trial.options.peer and not trial.options.called
    return [*([step("peer: over ssh", peer.call)] if calls else []),
            step("host: software", host.see_software),
            step("host: doctor", host.see_doctor, engines),
            step("ports: state", host.see_ports),
            step("ports: other users", host.see_users),
            step("ports: counters before", host.count_before),
            step("card", card.try_out, engines),
            step("card: as soft.model", card.model_line),
            step("engines", measure.start, engines),
            *(two if trial.options.peer else one),
            step("cores: gaps", measure.cores, engines),
            step("cores: what interrupts them", measure.interrupts, engines),
            step("pools: NUMA nodes", measure.pools, engines),
            step("ports: counters after", host.count_after),
            step("claim", claims.judge),
            *([step("peer: end", measure.part, engines)] if trial.options.peer else []),
            *([step("peer: its report", peer.report)] if calls else [])]


def examine(trial: Trial) -> None:
    """Runs all steps. Nothing of them runs afterwards."""
    engines = Engines(trial)
    trial.facts["software_port"] = host.pretended() or trial.options.devices == ["soft"]
    try:
        only = tuple(trial.options.only.split(","))
        steps = steps_of(trial, engines)
        chosen = [step for step in steps if step.name.startswith(only)]
        if not chosen:
            raise Refused(f"--only {trial.options.only}: no step begins with it; there are: "
                          + ", ".join(step.name for step in steps))
        trial.go(chosen)
    except Stopped:  # between two steps
        pass
    finally:
        trial.ending = True
        engines.close()
        trial.close()


def deliver(trial: Trial, output: str) -> int:
    """Writes and prints the report. Returns the exit status."""
    name = time.strftime("peercache-trial-%Y%m%d-%H%M%S", time.gmtime(trial.started))
    try:
        paths = report.write(trial, os.path.join(output, name))
    finally:
        for line in report.verdict(trial):
            trial.say(line)
    for path in paths:
        trial.say(f"wrote {path}")
    if trial.options.json:
        with open(trial.path("trial.json"), encoding="utf-8") as file:
            print(file.read())
    if trial.stopped:
        return 130
    return 1 if trial.count("no") else 0


def main(words: Sequence[str]) -> int:
    options = parse(words)
    output = os.path.abspath(options.output)
    folder = ""
    try:
        lock = take_lock()
        folder = make_folder(output)
        trial = Trial(options, folder)
        if options.called:
            peer.watch()
        try:
            examine(trial)
        except OSError as error:
            for line in report.verdict(trial):
                trial.say(line)
            raise Refused(report.no_room(error, output)) from error
        status = deliver(trial, output)
        lock.close()
        return status
    except Refused as why:
        print(f"peercachectl trial: {why}", file=sys.stderr)
        return 2
    finally:
        if folder:
            shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    programs.run("peercachectl", partial(main, sys.argv[1:]))
