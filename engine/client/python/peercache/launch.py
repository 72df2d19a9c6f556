# SPDX-License-Identifier: Apache-2.0
"""Attaching to the engine of this host; with none running, the first rank starts one.

Two files beside the socket. `.clients`: every store holds it shared as long as it lives; the kernel
lets go for those that die. `.lock`: held while somebody looks for an engine and starts one, so that
one rank starts and the others attach. The engine runs under peercache/keeper.py, which ends it when
nobody holds `.clients` any more.
"""

import fcntl
import logging
import os
import shutil
import subprocess
import sys
import sysconfig
import time
from typing import Optional

from peercache import Session
from peercache.config import Config

logger = logging.getLogger("peercache")
START_SECONDS = 120.0  # registering a large pool takes its time


def lock(path: str, how: int) -> int:
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, how)
    except BaseException:
        os.close(fd)
        raise
    return fd


def find_engine(config: Config) -> str:
    """The engine's program: as configured, beside Python (where pip puts it), on PATH."""
    wanted = config.engine_path or os.environ.get("PEERCACHE_ENGINE", "")
    if wanted:
        return wanted
    for folder in (sysconfig.get_path("scripts"), os.path.dirname(sys.executable)):
        path = os.path.join(folder or "", "peercache-engine")
        if os.access(path, os.X_OK):
            return path
    found = shutil.which("peercache-engine")
    if not found:
        raise FileNotFoundError(
            f"no engine at {config.engine_socket}, and no program peercache-engine to start: "
            'install it, or say where it is with "engine_path" or $PEERCACHE_ENGINE')
    return found


def attach(path: str) -> Optional[Session]:
    try:
        return Session(path)
    except (FileNotFoundError, ConnectionRefusedError, ConnectionResetError):
        return None


def start(config: Config) -> subprocess.Popen:
    keeper = os.path.join(os.path.dirname(os.path.abspath(__file__)), "keeper.py")
    command = [sys.executable, "-I", keeper, "--clients", config.engine_socket + ".clients"]
    if config.engine_keep:
        command.append("--keep")
    command += ["--", find_engine(config)]
    # The memfds of SGLang's shm allocator cannot be sealed; its ranks do not shrink them.
    command += ["--set", "engine.unsealed_memory=yes"]
    for name, value in config.settings.items():
        command += ["--set", f"{name}={value}"]
    logger.info("peercache: no engine at %s: starting one on %s, its log is %s",
                config.engine_socket, config.settings.get("rail.devices"), config.engine_log)
    if config.settings.get("rail.devices") == "soft":
        logger.warning("peercache: the engine that is started gets the software NIC: no RDMA "
                       "device was named or found")
    with open(config.engine_log, "ab") as log:
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                start_new_session=True)


def log_tail(config: Config) -> str:
    try:
        with open(config.engine_log, "rb") as log:
            return log.read()[-2000:].decode(errors="replace")
    except OSError as error:
        return str(error)


def wait_started(config: Config, keeper: subprocess.Popen) -> Session:
    end = time.monotonic() + START_SECONDS
    while True:
        session = attach(config.engine_socket)
        if session:
            return session
        if keeper.poll() is not None or time.monotonic() > end:
            why = "ended" if keeper.poll() is not None else f"is not there after {START_SECONDS} s"
            raise RuntimeError(f"the engine that was started {why}; its log ends:\n"
                               f"{log_tail(config)}")
        time.sleep(0.02)


class Attachment:
    """A session, and the hold on the engine that was started for it."""

    def __init__(self, config: Config) -> None:
        self.clients = -1
        self.session: Optional[Session] = None
        if not config.engine_start:
            self.session = Session(config.engine_socket)
            return
        try:
            folder = os.path.dirname(config.engine_socket)
            if folder:
                os.makedirs(folder, mode=0o700, exist_ok=True)
            # Waits for a keeper that is just ending its engine.
            self.clients = lock(config.engine_socket + ".clients", fcntl.LOCK_SH)
            starting = lock(config.engine_socket + ".lock", fcntl.LOCK_EX)
        except PermissionError:
            self.session = Session(config.engine_socket)  # somebody else's to start
            return
        try:
            self.session = attach(config.engine_socket)
            if not self.session:
                self.session = wait_started(config, start(config))
        except BaseException:
            self.close()
            raise
        finally:
            os.close(starting)

    def close(self) -> None:
        """Twice is fine."""
        session, self.session = self.session, None
        clients, self.clients = self.clients, -1
        try:
            if session:
                session.close()
        finally:
            if clients >= 0:
                os.close(clients)
