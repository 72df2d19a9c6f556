# SPDX-License-Identifier: Apache-2.0
"""The client processes of a run (client.py), and what ends a run early. Main thread."""

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import time
from typing import Any, Callable, Mapping, Optional, Sequence

import peercache
from peercache.bench.client import Spec
from peercache.bench.histogram import Histogram

END_SECONDS = 15.0  # until a client process that was asked to end is killed
STOP_SECONDS = 12.0  # until a stopped point gives its results: longer than a call's deadline


class Stop:
    """Ctrl-C and SIGTERM. The first one ends the measurement, a second one the program.

    Attributes:
        requested: a signal came while something was measured.
        measuring: if false, a signal raises KeyboardInterrupt, because nothing is there to report.
    """

    def __init__(self) -> None:
        self.requested = self.measuring = False
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._come)

    def _come(self, number: int, _frame: Any) -> None:
        if self.requested or not self.measuring:
            signal.signal(number, signal.SIG_DFL)
            raise KeyboardInterrupt
        self.requested = True
        # Without sys.stderr: the main thread may be inside a write to it.
        with contextlib.suppress(OSError):
            os.write(2, b"peercache-bench: ending with what it has; once more ends it at once\n")


class Process:
    """One client process."""

    def __init__(self, spec: Spec) -> None:
        root = os.path.dirname(os.path.dirname(os.path.abspath(peercache.__file__)))
        path = os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])])
        # A session of its own: Ctrl-C is for the benchmark, which stops the clients.
        self.child = subprocess.Popen(
            [sys.executable, "-m", "peercache.bench.client"], stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, start_new_session=True, env={**os.environ, "PYTHONPATH": path})
        self.text = b""
        self.tell(spec.plain())

    def tell(self, message: Mapping[str, Any]) -> None:
        """Sends one message. An error is one of read(), which sees that the process has ended."""
        try:
            assert self.child.stdin
            self.child.stdin.write((json.dumps(message) + "\n").encode())
            self.child.stdin.flush()
        except OSError:
            pass

    def read(self) -> list[dict[str, Any]]:
        """The messages that are there; blocks if none is. Raises RuntimeError if it has ended."""
        assert self.child.stdout
        read = os.read(self.child.stdout.fileno(), 1 << 20)
        if not read:
            raise RuntimeError(f"a client process ended with {self.child.wait()}: see above")
        *lines, self.text = (self.text + read).split(b"\n")
        messages = [json.loads(line) for line in lines]
        for message in messages:
            if "failed" in message:
                raise RuntimeError(message["failed"])
        return messages


class Clients:
    """The client processes. A run of a point takes all of them."""

    def __init__(self, specs: Sequence[Spec], stop: Stop) -> None:
        """Starts one process for each spec and waits until all are attached.

        Raises RuntimeError with the reason of the first one that is not.
        """
        self.stop, self.processes = stop, []
        self.selector = selectors.DefaultSelector()
        try:
            for spec in specs:
                process = Process(spec)
                self.processes.append(process)
                assert process.child.stdout
                self.selector.register(process.child.stdout, selectors.EVENT_READ, process)
            self._wait("ready", lambda _progress: None)
        except BaseException:
            self.close()
            raise

    def _wait(self, what: str, progress: Callable[[dict[str, int]], None]
              ) -> list[dict[str, Any]]:
        """Waits until each process has sent this message. Returns the messages that came.

        progress: called with the sums of the processes' latest progress. Processes that do not
        answer a stop within STOP_SECONDS are left out.
        """
        got: dict[Process, dict[str, Any]] = {}
        latest: dict[Process, dict[str, int]] = {}
        end: Optional[float] = None
        while len(got) < len(self.processes):
            if self.stop.requested and end is None:
                end = time.monotonic() + STOP_SECONDS
                for process in self.processes:
                    process.tell({"stop": True})
            if end is not None and time.monotonic() > end:
                break
            for key, _ in self.selector.select(0.2):
                for message in key.data.read():
                    if "progress" in message:
                        latest[key.data] = message["progress"]
                    elif what in message:
                        got[key.data] = message[what]
            if latest:
                progress({name: sum(one[name] for one in latest.values())
                          for name in ("calls", "hits", "pages")})
        return list(got.values())

    def run(self, point: dict[str, Any], progress: Callable[[dict[str, int]], None]
            ) -> dict[str, dict[str, Any]]:
        """Runs one point in all processes. Returns the merged results by op, with Histograms.

        Empty if a stop came and no process has answered it.
        """
        for process in self.processes:
            process.tell({"run": point})
        merged: dict[str, dict[str, Any]] = {}
        for done in self._wait("done", progress):
            for op, one in done.items():
                merge(merged.setdefault(op, {}), one)
        return merged

    def close(self) -> None:
        """Ends the processes; kills those that do not end. No process is left."""
        for process in self.processes:
            if process.child.stdin:
                try:
                    process.child.stdin.close()
                except OSError:
                    pass
        for process in self.processes:
            try:
                process.child.wait(END_SECONDS)
            except subprocess.TimeoutExpired:
                process.child.kill()
                process.child.wait()
            if process.child.stdout:
                process.child.stdout.close()
        self.selector.close()
        self.processes = []


def merge(total: dict[str, Any], one: Mapping[str, Any]) -> None:
    """Adds the result of one process and op to `total`, an empty dict at first.

    "seconds" are from the first call of all processes to the last one: they share a clock.
    """
    for name, value in one.items():
        if name in ("hit", "missed"):
            total.setdefault(name, Histogram()).merge(Histogram.read(value))
        elif name == "first_ns":  # 0 without calls
            total[name] = min(filter(None, (total.get(name), value)), default=0)
        elif name == "last_ns":
            total[name] = max(total.get(name, 0), value)
        elif name == "counted":
            counted = total.setdefault(name, {})
            for what, count in value.items():
                counted[what] = counted.get(what, 0) + count
        else:
            total[name] = total.get(name, 0) + value
    total["seconds"] = (total["last_ns"] - total["first_ns"]) / 1e9
