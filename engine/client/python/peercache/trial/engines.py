# SPDX-License-Identifier: Apache-2.0
"""Engines of the trial's own: two on one host, or one on each of two. Main thread."""

import contextlib
import json
import os
import random
import select
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from typing import Any, Callable, Optional

from peercache.trial.frame import Failed, Trial, Unknown

START_SECONDS = 120.0
JOIN_SECONDS = 30.0
# What a --config may have for a service, and two engines beside it must not.
OWN = ("metrics.port=0", "disk.paths=", "cluster.psk_file=", "cluster.tls_dir=", "cluster.etcd=",
       "cluster.bind=", "cluster.seeds_file=", "rail.cores=auto", "control.core=auto",
       "soft.port=0")


def free_port() -> int:
    """A TCP port that no socket uses, below those that outgoing connections take."""
    for port in random.sample(range(20000, 32000), 1000):
        with socket.socket() as s, contextlib.suppress(OSError):
            s.bind(("127.0.0.1", port))
            return port
    raise OSError("no free TCP port from 20000 to 32000")


class Engines:
    """Attributes:
        devices: of each engine, the value of rail.devices.
        sockets: of each engine.
        keepers: their processes; None: it does not run.
    """

    def __init__(self, trial: Trial) -> None:
        self.trial = trial
        self.home = tempfile.mkdtemp(prefix="peercache-trial-")  # short: sockets have 107 bytes
        options = trial.options
        # with one port, both engines use it; with several, each has its half of them
        half = max(1, len(options.devices) // 2)
        own = options.devices[:half], options.devices[half:] or options.devices
        self.count = 1 if options.peer else 2
        self.devices = [",".join(options.devices if options.peer else d) for d in own]
        self.sockets = [os.path.join(self.home, f"{i}.sock") for i in range(self.count)]
        self.keepers: list[Optional[subprocess.Popen[Any]]] = [None] * self.count
        if options.peer:
            address, self.ports = options.address, [options.port]
            self.seeds = f"{address}:{options.port},{options.peer}:{options.port}"
        else:
            address, self.ports = "127.0.0.1", [free_port(), free_port()]
            self.seeds = ",".join(f"127.0.0.1:{port}" for port in self.ports)
        self.address = address
        self.pool_bytes = options.pool_bytes

    def settings(self, i: int) -> list[str]:
        """The words of the command line of an engine, or of the doctor of its host."""
        words = []
        for path in self.trial.options.config:
            words += ["--config", path]
        own = [f"engine.socket={self.sockets[i]}", f"engine.pool_bytes={self.pool_bytes}",
               f"rail.devices={self.devices[i]}", f"cluster.address={self.address}",
               f"cluster.port={self.ports[i]}", f"cluster.seeds={self.seeds}",
               f"engine.name=trial-{i}" if self.count > 1 else "", "cluster.id=peercache-trial",
               *OWN]
        secured = any(word.startswith(("cluster.psk_file=", "cluster.tls_dir="))
                      for word in self.trial.options.settings)
        own.append("" if secured else "cluster.security=none")
        own += ["soft.link=tcp" if self.trial.options.peer else "",
                self.trial.facts.get("fallback", "")]
        for value in [*filter(None, own), *self.trial.options.settings]:
            words += ["--set", value]
        return words

    def ctl(self, *words: str) -> list[str]:
        return [self.trial.program("peercachectl"), *words]

    def start(self, i: int) -> float:
        """Starts engine i under a keeper. Returns the seconds until it served. Raises Failed."""
        begun = time.monotonic()
        ready, end = os.pipe()
        words = [self.trial.program("peercache-keeper"), "--socket", self.sockets[i], "--ready-fd",
                 str(end), "--", self.trial.program("peercache-engine"), *self.settings(i)]
        try:
            keeper = self.trial.start(words, f"engine-{i}.log", pass_fds=[end])
        finally:
            os.close(end)
        self.keepers[i] = keeper
        readable, _, _ = select.select([ready], [], [], START_SECONDS)
        served = readable and os.read(ready, 1)
        os.close(ready)
        if not served:
            self.trial.end(keeper)
            self.keepers[i] = None
            said = self.trial.tail(f"engine-{i}.log", " keeper: ")
            raise Failed(f"engine {i} does not start: {said}",
                         f"do what the line says; engine-{i}.log of the report has all of them")
        return time.monotonic() - begun

    def status(self, i: int) -> Any:
        """The report of engine i. Raises Failed."""
        return self.trial.document(
            self.ctl("--socket", self.sockets[i], "--json", "status"), "ctl.log", 30)

    def until(self, done: Callable[[], bool], seconds: float, text: Callable[[], str],
              do: str = "read the logs of the engines in the report") -> float:
        """Waits until done(). Returns the seconds. Raises Failed."""
        begun = time.monotonic()
        while not done():
            if time.monotonic() > begun + seconds:
                raise Failed(text(), do)
            time.sleep(.02)
        return time.monotonic() - begun

    def wait_members(self, count: int, seconds: float = JOIN_SECONDS) -> float:
        """Waits until all engines see `count` members. Returns the seconds. Raises Failed."""
        def seen() -> list[int]:
            return [len(self.status(i)["members"]) for i in range(self.count)]
        return self.until(lambda: all(n == count for n in seen()), seconds, lambda: (
            f"the engines see {' and '.join(map(str, seen()))} members instead of {count} after "
            f"{seconds:.0f} s"), "read the logs of the engines in the report: the last lines name "
            "what each of them tried")

    def need(self) -> None:
        """Raises Unknown unless all engines run."""
        if not all(keeper and keeper.poll() is None for keeper in self.keepers):
            raise Unknown("no engines run: see the step engines")

    def put(self, i: int, key: str) -> None:
        """Stores a small value through engine i. Raises Failed."""
        status, _ = self.trial.run(
            self.ctl("--socket", self.sockets[i], "put", key, "--string", key), "ctl.log", 30)
        if status:
            raise Failed(f"engine {i} does not store: {self.trial.tail('ctl.log')}",
                         f"read engine-{i}.log of the report")

    def has(self, i: int, key: str) -> bool:
        """Does engine i read what put() has stored?"""
        status, out = self.trial.run(
            self.ctl("--socket", self.sockets[i], "get", key), "ctl.log", 30)
        return status == 0 and out == key

    def wait_key(self, key: str, seconds: float) -> float:
        """Waits until the peer has stored the key. Returns the seconds. Raises Failed."""
        begun = time.monotonic()
        while not self.has(0, key):
            if len(self.status(0)["members"]) < 2:
                raise Failed("the peer has gone", "look at the trial there; then type the command "
                             "on both hosts again")
            if time.monotonic() > begun + seconds:
                raise Failed(f"the peer did not come to {key} within {seconds:.0f} s",
                             "look at the trial there")
            time.sleep(.2)
        return time.monotonic() - begun

    def crash(self, i: int) -> float:
        """Kills engine i. Returns the seconds until the next one, which its keeper starts, is
        ready. Raises Failed."""
        before = self.status(i)["pid"]
        begun = time.monotonic()
        os.kill(before, signal.SIGKILL)
        while time.monotonic() < begun + START_SECONDS:
            status, out = self.trial.run(
                self.ctl("--socket", self.sockets[i], "--json", "status"), "ctl.log", 30)
            if status == 0 and json.loads(out)["pid"] != before:
                return time.monotonic() - begun
            time.sleep(.02)
        raise Failed(f"engine {i} was killed and does not serve again within {START_SECONDS:.0f} "
                     "s", f"read engine-{i}.log of the report")

    def cpu_seconds(self) -> list[float]:
        """The processor time of the engines so far."""
        ticks = os.sysconf("SC_CLK_TCK")
        found = []
        for i in range(self.count):
            with open(f"/proc/{self.status(i)['pid']}/stat", encoding="ascii") as file:
                words = file.read().rpartition(")")[2].split()
            found.append((int(words[11]) + int(words[12])) / ticks)
        return found

    def stop(self) -> list[int]:
        """Ends all engines. Returns the status of each."""
        for keeper in filter(None, self.keepers):
            if keeper.poll() is None:
                keeper.terminate()
        ended = [self.trial.end(keeper) for keeper in filter(None, self.keepers)]
        self.keepers = [None] * self.count
        return ended

    def close(self) -> None:
        self.stop()
        shutil.rmtree(self.home, ignore_errors=True)
