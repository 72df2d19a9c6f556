# SPDX-License-Identifier: Apache-2.0
"""Runs an engine while clients use it. Started by launch.py as a separate program.

    keeper.py --clients FILE [--keep] -- ENGINE [ARG]...

Each client holds a shared lock on FILE. When the keeper gets the exclusive lock, the last client is
gone and the keeper ends the engine. The keeper restarts an engine that ends earlier for any reason,
with growing pauses. The first start is tried once: if the engine never becomes ready (--ready-fd),
the keeper exits with the engine's status, so that the process waiting for it can report why.
Imports nothing of this package.
"""

import argparse
import fcntl
import os
import signal
import subprocess
import sys
import threading
import time

PAUSE_SECONDS = 0.1
PAUSE_SECONDS_MAX = 30.0
LIVED_SECONDS = 60.0  # an engine that lived this long is started again without back-off
SETTINGS_REFUSED = 2  # exit status of the engine
NO_PROGRAM = 127


class Keeper:
    def __init__(self, command: list) -> None:
        self.command = command
        self.lock = threading.Lock()
        self.over = threading.Event()
        self.engine: subprocess.Popen | None = None

    def end(self, *_: object) -> None:
        """Ends the engine: called when the last client is gone, and on a signal."""
        self.over.set()
        engine = self.engine
        if engine and engine.poll() is None:
            engine.terminate()

    def wait_unused(self, path: str) -> None:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(fd, fcntl.LOCK_EX)  # held until this process ends: new clients wait
        with self.lock:
            self.end()

    def run_once(self) -> tuple[int, bool]:
        """Exit status of one engine (128 + a signal's number), and whether it became ready."""
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
            say(f"the engine ended with {status}; starting it again in {pause:.1f} s")
            self.over.wait(pause)
            pause = min(pause * 2, PAUSE_SECONDS_MAX)
        return 0


def say(text: str) -> None:
    print(f"keeper: {text}", file=sys.stderr, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description="Runs an engine as long as a client uses it.")
    parser.add_argument("--clients", required=True)
    parser.add_argument("--keep", action="store_true",
                        help="keep the engine running after the last client")
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
