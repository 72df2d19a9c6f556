# SPDX-License-Identifier: Apache-2.0
"""Runs an engine as long as somebody uses it. Started by launch.py; a program of its own.

    keeper.py --clients FILE [--keep] -- ENGINE [ARG]...

Clients hold FILE shared; getting it exclusively means that the last is gone: the engine is ended.
An engine that dies before is started again, later each time. Imports nothing of this package.
"""

import argparse
import fcntl
import os
import signal
import subprocess
import sys
import threading
import time

PAUSE_SECONDS_MAX = 30.0
LIVED_SECONDS = 60.0  # an engine that lived so long is started again at once


class Keeper:
    def __init__(self, command: list) -> None:
        self.command = command
        self.lock = threading.Lock()
        self.over = threading.Event()
        self.engine: subprocess.Popen | None = None

    def end(self, *_: object) -> None:
        """The last client is gone, or a signal came."""
        self.over.set()
        engine = self.engine
        if engine and engine.poll() is None:
            engine.terminate()

    def wait_unused(self, path: str) -> None:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(fd, fcntl.LOCK_EX)  # held until this process is gone: who comes now waits
        with self.lock:
            self.end()

    def run(self) -> int:
        pause, status = 0.1, 0
        while not self.over.is_set():
            began = time.monotonic()
            with self.lock:
                if self.over.is_set():
                    break
                self.engine = subprocess.Popen(self.command)
            status = self.engine.wait()
            if self.over.is_set() or status == 0:
                break
            if status == 2:  # its settings are refused: the next one's would be, too
                return status
            if time.monotonic() - began > LIVED_SECONDS:
                pause = 0.1
            print(f"keeper: the engine ended with {status}; starting it again in {pause:.1f} s",
                  file=sys.stderr, flush=True)
            self.over.wait(pause)
            pause = min(pause * 2, PAUSE_SECONDS_MAX)
        return 0 if self.over.is_set() else status


def main() -> int:
    parser = argparse.ArgumentParser(description="Runs an engine as long as somebody uses it.")
    parser.add_argument("--clients", required=True)
    parser.add_argument("--keep", action="store_true", help="do not end it with the last client")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    command = options.command[1:] if options.command[:1] == ["--"] else options.command
    keeper = Keeper(command)
    signal.signal(signal.SIGTERM, keeper.end)
    signal.signal(signal.SIGINT, keeper.end)
    if not options.keep:
        threading.Thread(target=keeper.wait_unused, args=(options.clients,), daemon=True).start()
    return keeper.run()


if __name__ == "__main__":
    sys.exit(main())
