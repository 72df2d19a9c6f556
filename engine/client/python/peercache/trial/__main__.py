# SPDX-License-Identifier: Apache-2.0
"""peercachectl trial: `python3 -m peercache.trial [OPTION]...`"""

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from functools import partial
from typing import Any, Sequence

from peercache import config
from peercache.trial import card, host, measure, report
from peercache.trial.engines import Engines
from peercache.trial.frame import Refused, Step, Stopped, Trial, take_lock

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
        "leaves one\nreport: DIR/peercache-trial-DATE.html, and everything in a .tar.gz beside it. "
        "An engine that\nruns already is not touched. Ctrl-C ends it with what there is.")
    parser.add_argument("--devices", metavar="LIST", help="NICs, such as mlx5_0,mlx5_1 (all "
                        "ConnectX of this host; soft: the software NIC)")
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
    options = parser.parse_args(words)
    options.peer = options.address = ""
    options.devices = options.devices.split(",") if options.devices else host.devices() or ["soft"]
    options.seconds = options.seconds or (1 if options.quick else 3)
    try:
        options.pool_bytes = config.size(
            options.pool_bytes or ("256MiB" if options.quick else "1GiB"))
    except ValueError as error:
        parser.error(f"--pool-bytes: {error}")
    options.working_set = options.pool_bytes // 4
    return options


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


def steps_of(trial: Trial, engines: Engines) -> list[Step]:
    """All steps in their order."""
    def step(name: str, call: Any, *words: Any) -> Step:
        return Step(name, partial(call, trial, *words))
    return [step("host: software", host.see_software),
            step("host: doctor", host.see_doctor, engines),
            step("ports: state", host.see_ports),
            step("ports: other users", host.see_users),
            step("ports: counters before", host.count_before),
            step("card", card.try_out, engines),
            step("card: as soft.model", card.model_line),
            step("engines", measure.start, engines),
            step("bytes: one process", measure.read_bytes, engines),
            step("bytes: ib_read_bw, ib_read_lat", measure.vendor, engines),
            step("bytes: several processes", measure.processes, engines),
            step("ports: counters after", host.count_after)]


def examine(trial: Trial) -> None:
    """Runs all steps. Nothing of them runs afterwards."""
    engines = Engines(trial)
    try:
        only = tuple(trial.options.only.split(","))
        trial.go([step for step in steps_of(trial, engines) if step.name.startswith(only)])
    except Stopped:  # between two steps
        trial.stopped = True
    finally:
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
        print(json.dumps(report.document(trial), indent=1))
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
        try:
            examine(trial)
        except OSError as error:
            trial.stopped = True
            report.verdict(trial)
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
    done = main(sys.argv[1:])
    try:
        sys.stdout.flush()
    except OSError as failure:
        print(f"peercachectl: cannot write to standard output: {failure.strerror}",
              file=sys.stderr)
        os._exit(2)
    sys.exit(done)
