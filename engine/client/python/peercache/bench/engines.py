# SPDX-License-Identifier: Apache-2.0
"""The engines of a run: those that the user names, or engines started for the run. Main thread.

The far engine keeps the pages that are read, the near one is that of the threads and keeps what
they store: the hosts of prefill and decode. Engines are started as a store starts one: a keeper
ends its engine when the benchmark has ended, however it ended.
"""

import json
import os
import random
import shutil
import socket
import sys
import tempfile
import time
from typing import Any, Mapping, Optional, Sequence

from peercache import Session, config, keys, launch

MEET_SECONDS = 60.0  # until two engines must have met
GONE_SECONDS = 30.0  # until the keeper of an engine without clients must have ended
DEFAULT_PORTS = (31997, 31998)  # of the engine: metrics.port, cluster.port
MODEL = "bench"  # the name under which pages are stored
GROUP = f"{keys.VERSION}|model={MODEL}|prefix=|tag="  # of those pages: keys.group()
CLEAR_MS = 10000
RESERVED: list[socket.socket] = []  # one for each port that free_port() has returned
NOT_A_NIC = "not a NIC: do not quote"
UNKNOWN = "NIC or software ConnectX"
UNREADABLE = ("the engine's process cannot be read: do not quote; run this as root or as the "
              "engine's user, and in its container")


def reserve(port: int) -> bool:
    """Takes the TCP port for this process until it ends, if no socket of 127.0.0.1 uses it. False:
    it is taken. The name of the socket in RESERVED is that of tools/cluster.py."""
    taken = socket.socket(socket.AF_UNIX)
    try:
        taken.bind(f"\0peercache-port-{port}")  # first: no port that is taken is probed
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
    except OSError:
        taken.close()
        return False
    RESERVED.append(taken)
    return True


def free_port() -> int:
    """A TCP port of 127.0.0.1 that nothing uses, for this process alone: below the range of
    ephemeral ports, and no default of the engine."""
    for _ in range(1000):
        port = random.randrange(15000, 32000)
        if port not in DEFAULT_PORTS and reserve(port):
            return port
    raise RuntimeError("no free TCP port on 127.0.0.1")


def nic_kind(pid: int) -> str:
    """What the NICs of the engine with this process are: "software ConnectX" (the library of
    tools/soft-connectx is mapped), "NIC", or UNKNOWN.

    A process of another user cannot be read, and one in another PID namespace has another number
    here: only one that maps the engine's program proves something.
    """
    try:
        with open(f"/proc/{pid}/maps", encoding="utf-8", errors="replace") as maps:
            mapped = maps.read()
    except OSError:
        return UNKNOWN
    if "libsoftconnectx" in mapped:
        return "software ConnectX"
    return "NIC" if "/peercache-engine" in mapped else UNKNOWN


def ports_of(report: Mapping[str, Any]) -> dict[str, Any]:
    """What the rails of an engine are, from its report.

    Returns "devices" (names), "kind" ("NIC", "software NIC", "software ConnectX" or UNKNOWN) and
    "warning", which is "" for a NIC.
    """
    devices = [str(rail["device"]) for rail in report["rails"]]
    if any(device == "soft" or device.startswith("soft:") for device in devices):
        kind = "software NIC"
    else:
        kind = nic_kind(int(report["pid"]))
    why = {"NIC": "", UNKNOWN: f"{UNKNOWN}: {UNREADABLE}"}
    return {"devices": devices, "kind": kind, "warning": why.get(kind, f"{kind}: {NOT_A_NIC}")}


def report_of(path: str) -> dict[str, Any]:
    """The report of the engine at this socket. Raises OSError or ValueError."""
    session = Session(path)
    try:
        return json.loads(session.report())
    finally:
        session.close()


def populated(path: str) -> dict[str, Any]:
    """The report of the engine at this socket once its memory is populated, because that takes time
    from what is measured."""
    looks = 0
    while True:
        report = report_of(path)
        figures = report["figures"]
        left = figures.get("memory_bytes", 0) - figures.get("memory_populated_bytes", 0)
        if left <= 0:
            return report
        looks += 1
        if looks % 20 == 0:
            say(f"waiting until the memory of the engine at {path} is populated: "
                f"{left / (1 << 30):.1f} GiB left")
        time.sleep(0.1)


class Engines:
    """The engines of a run.

    Attributes:
        near, far: their sockets; the same for one engine.
        ports: of the near engine, as ports_of() returns them.
        version: of the near engine.
    """

    def __init__(self, sockets: Sequence[str]) -> None:
        """sockets: of running engines; the first is near, the last far."""
        self.near, self.far = sockets[0], sockets[-1]
        populated(self.far)
        report = populated(self.near)
        self.ports, self.version = ports_of(report), str(report["version"])

    def close(self) -> None:
        """Removes the pages of this program from the engines, which are left as they are."""
        for path in {self.near, self.far}:
            try:
                session = Session(path)
                try:
                    session.clear(GROUP, CLEAR_MS)
                finally:
                    session.close()
            except OSError as error:
                say(f"the pages of this run stay in the engine at {path}: {error}; remove them "
                    f"with peercachectl clear --namespace '{GROUP}'")


class Started(Engines):
    """Engines that run while the object is open, on this host and in a directory of their own."""

    def __init__(self, extras: Sequence[Mapping[str, Any]], disk: str = "") -> None:
        """extras: the extra config of each engine, without its socket. disk: a directory in which
        each engine gets a new one for its pages, which close() removes; "": no disk.

        Raises RuntimeError, OSError or ValueError if an engine does not start.
        """
        self.directory = tempfile.mkdtemp(prefix="peercache-bench-")
        self.disk = ""
        self.attached: list[launch.Attachment] = []
        sockets = [os.path.join(self.directory, f"{i}.sock") for i in range(len(extras))]
        try:
            if disk:
                os.makedirs(disk, exist_ok=True)
                self.disk = tempfile.mkdtemp(prefix="peercache-bench-disk-", dir=disk)
            for i, (path, extra) in enumerate(zip(sockets, extras)):
                self._start(path, extra, os.path.join(self.disk, str(i)) if disk else "")
            self._meet(len(extras))
            super().__init__(sockets)
        except BaseException:
            self.close()
            raise

    def _start(self, path: str, extra: Mapping[str, Any], disk: str) -> None:
        """Starts one engine, and holds it."""
        given: dict[str, Any] = {**extra, "engine_socket": path, "disk_enabled": bool(disk)}
        if disk:
            os.mkdir(disk)
            given["disk_path"] = disk
        meaning = config.read(given)
        # The settings of the run and of --set override others on purpose.
        meaning.idle = [line for line in meaning.idle if "overrides it" not in line]
        meaning.warn()
        self.attached.append(launch.Attachment(meaning))

    def _meet(self, count: int) -> None:
        """Waits until the engines see each other. Raises RuntimeError."""
        end = time.monotonic() + MEET_SECONDS
        for attached in self.attached if count > 1 else ():
            while members(attached.session) < count:
                if time.monotonic() > end:
                    raise RuntimeError("the engines of this run do not see each other: "
                                       + attached.config.engine_log)
                time.sleep(0.02)

    def close(self) -> None:
        """Ends the engines, waits for their keepers and removes the directories. What does not
        end and what cannot be removed is named on standard error; below an engine that runs,
        nothing is removed."""
        for attached in self.attached:
            attached.close()
        end = time.monotonic() + GONE_SECONDS
        ended = [keeper_awaited(attached.config, end) for attached in self.attached]
        self.attached = []
        paths = [path for path in (self.directory, self.disk) if path]
        if not all(ended):
            say(f"remove {' and '.join(paths)} when it has ended")
            return
        for path in paths:
            remove(path)


def say(line: str) -> None:
    """Prints a line of this program on standard error."""
    print(f"peercache-bench: {line}", file=sys.stderr)


def keeper_awaited(meaning: config.Config, end: float) -> bool:
    """Waits until the keeper of the engine has ended, at most until `end` (of time.monotonic()).
    False: it has not, which is said."""
    while not launch.keeper_ended(meaning):
        if time.monotonic() >= end:
            say(f"the engine at {meaning.engine_socket} and its keeper have not ended after "
                f"{GONE_SECONDS:.0f} s; their log is {meaning.engine_log}")
            return False
        time.sleep(0.02)
    return True


def remove(path: str) -> None:
    """Removes a directory, and says why if something of it stays."""
    shutil.rmtree(path, ignore_errors=True)  # does not end at the first failure
    try:
        if os.path.lexists(path):
            shutil.rmtree(path)
    except OSError as error:
        say(f"{path} stays: {error}")


def members(session: Optional[Session]) -> int:
    """The number of members that the session's engine sees."""
    return len(json.loads(session.report())["members"]) if session else 0
