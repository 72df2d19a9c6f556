# SPDX-License-Identifier: Apache-2.0
"""The keeper: a program that runs an engine while clients use it. launch.py starts it.

    keeper.py --clients FILE [--keep] -- ENGINE [ARG]...

Each client holds a shared lock on FILE. The keeper waits for the exclusive lock; when it gets the
lock, the last client has ended, and the keeper ends the engine. If the engine ends earlier, for any
reason, the keeper starts it again after a pause that doubles each time.

The keeper tries the first start only once. If the engine never becomes ready (--ready-fd), the
keeper exits with the engine's status, and the process that started the keeper reports the reason
from the log. This file imports nothing of the package, so that it can run alone.
"""

import argparse
import fcntl
import os
import signal
import subprocess
import sys
import threading
import time

PAUSE_SECONDS = 0.1  # before the first restart; doubled for each further one
PAUSE_SECONDS_MAX = 30.0  # upper limit of the pause
LIVED_SECONDS = 60.0  # after a run this long, or with status 0, the pause is PAUSE_SECONDS again
SETTINGS_REFUSED = 2  # exit status of an engine that refuses its settings; it is not restarted
NO_PROGRAM = 127  # exit status of a keeper that cannot run the engine's program


class Keeper:
    """Starts the engine, restarts it, and ends it.

    run() belongs to the main thread, wait_unused() to a thread of its own. end() may be called by
    any thread and by a signal handler of the main thread, so it takes no lock itself. With `lock`,
    run_once() checks `over` and starts an engine in one step, so that wait_unused() cannot miss an
    engine that starts at that moment.

    Attributes:
        command: the engine's program and arguments.
        over: set when the engine must not be started again.
        engine: the engine that was started last.
    """

    def __init__(self, command: list) -> None:
        self.command = command
        self.lock = threading.Lock()
        self.over = threading.Event()
        self.engine: subprocess.Popen | None = None

    def end(self, *_: object) -> None:
        """Sends SIGTERM to the engine and lets run() return.

        Called after the last client has ended, and on a signal. Does not wait.
        """
        self.over.set()
        engine = self.engine
        if engine and engine.poll() is None:
            engine.terminate()

    def wait_unused(self, path: str) -> None:
        """Waits until no client holds the lock `path`, then ends the engine. Runs in a thread.

        A client that starts later waits for the lock until this process has ended.
        """
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(fd, fcntl.LOCK_EX)
        with self.lock:
            self.end()

    def run_once(self) -> tuple[int, bool]:
        """Runs an engine until it ends. Returns its exit status and whether it became ready.

        The status is 128 + the number of the signal that ended it, or NO_PROGRAM if the program
        cannot run.
        """
        tell, told = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            with self.lock:
                if self.over.is_set():
                    return 0, False
                self.engine = subprocess.Popen([*self.command, "--ready-fd", str(told)],
                                               pass_fds=(told,))
            status = self.engine.wait()
            os.close(told)
            told = -1
            return (status if status >= 0 else 128 - status), bool(os.read(tell, 1))
        except OSError as error:
            say(f"cannot run {self.command[0]}: {error.strerror}")
            return NO_PROGRAM, False
        finally:
            os.close(tell)
            if told >= 0:
                os.close(told)

    def run(self) -> int:
        """Runs engines until end() is called or a start must not be repeated.

        Returns the exit status of the keeper: 0 after end(), else the status of the last engine.
        """
        pause, was_ready = PAUSE_SECONDS, False
        while not self.over.is_set():
            began = time.monotonic()
            status, ready = self.run_once()
            was_ready |= ready
            if self.over.is_set():
                break
            if not was_ready or status == SETTINGS_REFUSED:
                return status
            if status == 0 or time.monotonic() - began > LIVED_SECONDS:
                pause = PAUSE_SECONDS
            say(f"the engine ended with status {status}; starting it again in {pause:.1f} s")
            self.over.wait(pause)
            pause = min(pause * 2, PAUSE_SECONDS_MAX)
        return 0


def say(text: str) -> None:
    """Writes one line to stderr, which is the engine's log."""
    print(f"keeper: {text}", file=sys.stderr, flush=True)


def main() -> int:
    """Reads the command line, handles SIGTERM and SIGINT, ignores SIGHUP, and runs the keeper."""
    parser = argparse.ArgumentParser(description="Runs an engine as long as a client uses it.")
    parser.add_argument("--clients", required=True)
    parser.add_argument("--keep", action="store_true",
                        help="keep the engine running after the last client has ended")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    command = options.command[1:] if options.command[:1] == ["--"] else options.command
    keeper = Keeper(command)
    signal.signal(signal.SIGTERM, keeper.end)
    signal.signal(signal.SIGINT, keeper.end)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    if not options.keep:
        threading.Thread(target=keeper.wait_unused, args=(options.clients,), daemon=True).start()
    return keeper.run()


if __name__ == "__main__":
    sys.exit(main())
