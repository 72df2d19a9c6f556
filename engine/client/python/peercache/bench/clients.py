# SPDX-License-Identifier: Apache-2.0
"""The client processes of a run (client.py), and what ends a run early. Main thread."""

import contextlib
import multiprocessing
import multiprocessing.connection
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from typing import Any, Callable, Optional, Sequence

import peercache
from peercache.bench.client import Spec, merge

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
        self.pipe, theirs = multiprocessing.Pipe()
        with theirs:
            # A session of its own: Ctrl-C is for the benchmark, which stops the clients.
            self.child = subprocess.Popen(
                [sys.executable, "-m", "peercache.bench.client", str(theirs.fileno())],
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, start_new_session=True,
                pass_fds=(theirs.fileno(),), env={**os.environ, "PYTHONPATH": path})
        self.tell(vars(spec))

    def tell(self, message: Any) -> None:
        """Sends one message. An error is one of read(), which sees that the process has ended."""
        with contextlib.suppress(OSError):
            self.pipe.send(message)

    def read(self) -> tuple[str, Any]:
        """The next message; blocks until it comes. Raises RuntimeError if the process has ended."""
        try:
            what, value = self.pipe.recv()
        except (EOFError, OSError) as error:
            raise RuntimeError(f"a client process ended with {self.child.wait()}: see above"
                               ) from error
        if what == "failed":
            raise RuntimeError(value)
        return what, value


class Clients:
    """The client processes. A run of a point takes all of them."""

    def __init__(self, specs: Sequence[Spec], stop: Stop) -> None:
        """Starts one process for each spec and waits until all are attached.

        Raises RuntimeError with the reason of the first one that is not.
        """
        self.stop = stop
        self.processes: list[Process] = []
        try:
            for spec in specs:
                self.processes.append(Process(spec))
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
        got: dict[Any, dict[str, Any]] = {}
        latest: dict[Any, Counter[str]] = {}
        at = {process.pipe: process for process in self.processes}
        end: Optional[float] = None
        while len(got) < len(self.processes):
            if self.stop.requested and end is None:
                end = time.monotonic() + STOP_SECONDS
                for process in self.processes:
                    process.tell(("stop", None))
            if end is not None and time.monotonic() > end:
                break
            for pipe in multiprocessing.connection.wait(at, 0.2):
                name, value = at[pipe].read()
                if name == "progress":
                    latest[pipe] = value
                elif name == what:
                    got[pipe] = value
            if latest:
                progress(sum(latest.values(), Counter()))
        return list(got.values())

    def run(self, point: dict[str, Any], progress: Callable[[dict[str, int]], None]
            ) -> dict[str, dict[str, Any]]:
        """Runs one point in all processes. Returns the merged results by op.

        Empty if a stop came and no process has answered it.
        """
        for process in self.processes:
            process.tell(("run", point))
        merged: dict[str, dict[str, Any]] = {}
        for done in self._wait("done", progress):
            for op, one in done.items():
                merge(merged.setdefault(op, {}), one)
        return merged

    def close(self) -> None:
        """Ends the processes; kills those that do not end. No process is left."""
        for process in self.processes:
            process.pipe.close()
        for process in self.processes:
            try:
                process.child.wait(END_SECONDS)
            except subprocess.TimeoutExpired:
                process.child.kill()
                process.child.wait()
        self.processes = []
