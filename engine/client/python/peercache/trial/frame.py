# SPDX-License-Identifier: Apache-2.0
"""The frame of a trial: steps one after the other, their answers, progress, signals, the lock.

Main thread. A step is a function that returns an Answer, or yields several with their names. What
it raises is an answer, too: Failed is "no", anything else "unknown". Ctrl-C or SIGTERM ends the
running step; the report is written with what there is.
"""

import ctypes
import json
import os
import pwd
import signal
import socket
import struct
import subprocess
import sys
import time
import traceback
from typing import Any, Callable, Iterator, NamedTuple, Sequence, Union

from peercache.launch import find_program

LOCK = "peercache-trial"
GRACE_SECONDS = 20.0  # from SIGTERM to SIGKILL of a program of the trial


class Answer(NamedTuple):
    """What a step found.

    Attributes:
        answer: "yes", "no" or "unknown".
        text: one sentence with the figures.
        do: the sentence what to do; "": nothing.
        data: everything that was measured, for JSON.
    """
    answer: str
    text: str
    do: str = ""
    data: Any = None


class Refused(Exception):
    """The trial cannot run, or its report cannot be written: exit status 2."""


class Failed(Exception):
    """The answer of the step is "no". arguments: the text, and what to do."""


class Unknown(Exception):
    """The answer of the step is "unknown". arguments: the text, and what to do."""


class Stopped(BaseException):
    """Ctrl-C or SIGTERM."""


class Step(NamedTuple):
    name: str  # group and noun, such as "ports: link"
    call: Callable[[], Union[Answer, Iterator[tuple[str, Answer]]]]


def take_lock() -> socket.socket:
    """Only one trial at a time on a host, because two would measure each other. Raises Refused with
    who runs the other. The kernel ends the lock with this process."""
    name = "\0" + os.environ.get("PEERCACHE_TRIAL_LOCK", LOCK)
    held = socket.socket(socket.AF_UNIX)
    try:
        held.bind(name)
        held.listen(128)
        return held
    except OSError:
        held.close()
    with socket.socket(socket.AF_UNIX) as other:
        other.settimeout(1)  # the other one takes no connection, and its queue has an end
        try:
            other.connect(name)
            pid, uid, _ = struct.unpack("3i", other.getsockopt(
                socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")))
        except OSError:
            raise Refused("another trial runs on this host, or has just ended: type the command "
                          "again later") from None
    try:
        user = pwd.getpwuid(uid).pw_name
    except KeyError:
        user = str(uid)
    raise Refused(f"another trial runs on this host: process {pid} of user {user}; two would "
                  f"measure each other: wait for it, or end it with kill {pid}")


def die_with_us() -> None:
    """In a child before exec(): it gets SIGTERM when the trial is killed."""
    ctypes.CDLL(None).prctl(1, signal.SIGTERM, 0, 0, 0)  # PR_SET_PDEATHSIG


class Trial:
    """The state of a trial: options, folder, steps and what they found.

    Attributes:
        options: of the command line.
        folder: where the report's files are collected.
        steps: one dict for each step that has ended: name, answer, seconds, text, do, data.
        children: programs that run.
        stopped: a signal came.
        ending: the steps have ended: a signal no longer raises Stopped.
        facts: what steps leave for later steps and for the report.
    """

    def __init__(self, options: Any, folder: str) -> None:
        self.options, self.folder = options, folder
        self.steps: list[dict[str, Any]] = []
        self.children: list[subprocess.Popen[Any]] = []
        self.stopped = self.ending = False
        self.facts: dict[str, Any] = {}
        self.started = time.time()
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._come)

    def _come(self, number: int, _frame: Any) -> None:
        self.stopped = True
        if not self.ending:  # a second one does not cut short the end, which has limits
            self.ending = True
            raise Stopped

    # ---- programs --------------------------------------------------------------------------------

    def program(self, name: str) -> str:
        """Path of a program of this installation, or of the host. Raises Unknown."""
        folder = os.environ.get("PEERCACHE_PROGRAMS", "")
        beside = [folder, os.path.join(folder, "..", "engine")] if folder else []
        path = find_program(name, *beside)
        if not path:
            raise Unknown(f"{name} is not installed")
        return os.path.realpath(path)

    def path(self, name: str) -> str:
        """A file of the report."""
        return os.path.join(self.folder, name)

    def start(self, words: Sequence[str], log: str, **more: Any) -> "subprocess.Popen[Any]":
        """Starts a program with its output in the file `log` of the report. It gets no Ctrl-C."""
        with open(self.path(log), "ab") as file:
            child = subprocess.Popen(
                list(words), stdin=more.pop("stdin", subprocess.DEVNULL),
                stdout=more.pop("stdout", file), stderr=file, start_new_session=True,
                preexec_fn=die_with_us, **more)
        self.children.append(child)
        return child

    def end(self, child: "subprocess.Popen[Any]", seconds: float = GRACE_SECONDS) -> int:
        """Ends a program, if it still runs. Returns its status."""
        if child.poll() is None:
            child.terminate()
            try:
                child.wait(seconds)
            except subprocess.TimeoutExpired:
                child.kill()
        if child in self.children:
            self.children.remove(child)
        return child.wait()

    def run(self, words: Sequence[str], log: str, seconds: float) -> tuple[int, str]:
        """Runs a program. Returns its status and standard output; its errors are in the log. Raises
        Failed if it takes too long."""
        child = self.start(words, log, stdout=subprocess.PIPE, text=True)
        try:
            out, _ = child.communicate(timeout=seconds)
            return child.returncode, out
        except subprocess.TimeoutExpired:
            raise Failed(f"{os.path.basename(words[0])} did not end within {seconds:.0f} s",
                         f"read {log} of the report") from None
        finally:
            self.end(child, 2)

    def document(self, words: Sequence[str], log: str, seconds: float) -> Any:
        """The JSON that a program prints. Raises Failed with the end of its log if it prints
        none."""
        status, out = self.run(words, log, seconds)
        try:
            return json.loads(out)
        except ValueError:
            raise Failed(f"{os.path.basename(words[0])} ended with {status}: {self.tail(log)}",
                         f"read {log} of the report") from None

    def whole(self, log: str) -> str:
        with open(self.path(log), encoding="utf-8", errors="replace") as file:
            return file.read()

    def tail(self, log: str, but: str = "\n") -> str:
        """The last line of a log without `but`."""
        lines = [line for line in self.whole(log)[-2000:].strip().splitlines() if but not in line]
        return (lines or ["it says nothing"])[-1]

    def close(self) -> None:
        """Ends all programs."""
        for child in list(self.children):
            if child.poll() is None:
                child.terminate()
        for child in list(self.children):
            self.end(child)

    # ---- steps -----------------------------------------------------------------------------------

    def say(self, text: str) -> None:
        if not self.options.quiet:
            print(text, file=sys.stderr, flush=True)

    def go(self, steps: Sequence[Step]) -> None:
        """Runs steps, until a signal comes. All are in self.steps afterwards."""
        for i, step in enumerate(steps):
            if not self.stopped:
                self.say(f"[{i + 1}/{len(steps)}] {step.name} ...")
            begun = time.monotonic()
            for name, answer in self.answers(step):
                seconds = round(time.monotonic() - begun, 2)
                self.steps.append({"name": name, "seconds": seconds, **answer._asdict()})
                if not self.stopped:
                    self.say(f"    {'' if name == step.name else name + ': '}{answer.answer}, "
                             f"{seconds} s: {answer.text}"
                             + (f"\n    do: {answer.do}" if answer.do else ""))
                begun = time.monotonic()

    def answers(self, step: Step) -> Iterator[tuple[str, Answer]]:
        """Runs one step."""
        if self.stopped:
            yield step.name, Answer("unknown", "not run: the trial was stopped",
                                    "run the trial again")
            return
        try:
            found = step.call()
            yield from [(step.name, found)] if isinstance(found, Answer) else found
        except Stopped:
            yield step.name, Answer("unknown", "stopped while it ran", "run the trial again")
        except (Failed, Unknown) as said:
            kind = "no" if isinstance(said, Failed) else "unknown"
            yield step.name, Answer(kind, *map(str, said.args))
        except Exception as error:  # pylint: disable=broad-except
            if isinstance(error, OSError) and error.errno in (28, 122):  # ENOSPC, EDQUOT
                raise
            with open(self.path("trial.log"), "a", encoding="utf-8") as file:
                traceback.print_exc(file=file)
            yield step.name, Answer("unknown", f"it could not be examined: {error}",
                                    "read trial.log of the report, and send us the report")

    def count(self, answer: str) -> int:
        return sum(step["answer"] == answer for step in self.steps)
