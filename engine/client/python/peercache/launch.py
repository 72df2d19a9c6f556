# SPDX-License-Identifier: Apache-2.0
"""Attaching to the engine of this host. If none runs, the first rank starts one.

Files beside the socket. The first three are locks, which the kernel releases when their holder
dies:
  .clients  shared lock of every store while it lives; the keeper waits for the last one
  .lock     lock of the rank that looks for an engine and starts one; others wait, then attach
  .keeper   lock of the keeper (keeper.py) while it runs: a socket has at most one keeper
  .failed   no lock: why the last start failed
A rank that waited for a failed start, or that comes shortly after it with the same settings,
reports the same reason instead of starting an engine that fails again.
"""

import fcntl
import json
import logging
import os
import shutil
import subprocess
import sys
import sysconfig
import threading
import time
from typing import Optional

from peercache import Session
from peercache.config import Config

logger = logging.getLogger("peercache")
START_SECONDS = 120.0  # registering a large pool is slow
FAILED_SECONDS = 10.0  # a failed start is not repeated for this time
LOG_BYTES = 2000       # bytes of the engine's log quoted in an error
LOOK_SECONDS = 0.01    # between checks of a live engine; no engine restarts faster


def lock(path: str, how: int) -> int:
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, how)
    except BaseException:
        os.close(fd)
        raise
    return fd


def make_folder(path: str) -> None:
    """Makes the directory that contains `path`, as the engine does. Its parent must exist."""
    try:
        os.mkdir(os.path.dirname(path) or ".", mode=0o700)
    except FileExistsError:
        pass


def find_engine(config: Config) -> str:
    """Path of the engine's program: as configured, beside Python (where pip puts it), or on PATH.
    """
    for key, wanted in (("engine_path", config.engine_path),
                        ("$PEERCACHE_ENGINE", os.environ.get("PEERCACHE_ENGINE", ""))):
        if wanted and not os.access(wanted, os.X_OK):
            raise FileNotFoundError(f"{key} = {wanted!r}: no program that this user may run; "
                                    "give the path of peercache-engine")
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
            'install it, or give its path in "engine_path" or $PEERCACHE_ENGINE')
    return found


def attach(path: str) -> Optional[Session]:
    try:
        return Session(path)
    except (FileNotFoundError, ConnectionRefusedError, ConnectionResetError):
        return None


def engine_command(config: Config) -> list[str]:
    # The memfds of SGLang's shm allocator cannot be sealed; its ranks do not shrink them.
    command = [find_engine(config), "--set", "engine.unsealed_memory=yes"]
    for name, value in config.settings.items():
        command += ["--set", f"{name}={value}"]
    return command


def start(config: Config, command: list[str]) -> bool:
    """Starts a keeper. False: a keeper exists; it restarts its engine or is about to end."""
    keeper = os.path.join(os.path.dirname(os.path.abspath(__file__)), "keeper.py")
    line = [sys.executable, "-I", keeper, "--clients", config.engine_socket + ".clients"]
    try:
        held = lock(config.engine_socket + ".keeper", fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        logger.info("peercache: waiting for the keeper of the engine at %s, its log is %s",
                    config.engine_socket, config.engine_log)
        return False
    logger.info("peercache: no engine at %s: starting one on %s, its log is %s",
                config.engine_socket, config.settings.get("rail.devices"), config.engine_log)
    if config.settings.get("rail.devices") == "soft":
        logger.warning("peercache: the engine that is started gets the software NIC: no RDMA "
                       "device was named or found")
    try:
        with open(config.engine_log, "ab") as log:
            subprocess.Popen([*line, *["--keep"] * config.engine_keep, "--", *command],
                             stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                             start_new_session=True, pass_fds=(held,))
    finally:
        os.close(held)  # the keeper has inherited the lock
    return True


def keeper_ended(config: Config) -> bool:
    try:
        os.close(lock(config.engine_socket + ".keeper", fcntl.LOCK_EX | fcntl.LOCK_NB))
        return True
    except BlockingIOError:
        return False


def log_bytes(config: Config) -> int:
    try:
        return os.stat(config.engine_log).st_size
    except OSError:
        return 0


def log_since(config: Config, begin: int) -> str:
    try:
        with open(config.engine_log, "rb") as log:
            size = os.fstat(log.fileno()).st_size
            log.seek(max(begin if begin <= size else 0, size - LOG_BYTES))  # may be a new file
            return log.read().decode(errors="replace").strip()
    except OSError as error:
        return str(error)


def wait_started(config: Config, ours: bool, log_begin: int) -> Optional[Session]:
    """Waits for the engine. None: the keeper that existed before this call has ended."""
    end = time.monotonic() + START_SECONDS
    while True:
        session = attach(config.engine_socket)
        if session:
            return session
        ended = keeper_ended(config)
        if ended and not ours:
            return None
        if ended or time.monotonic() > end:
            why = "ended" if ended else f"is not ready after {START_SECONDS:.0f} s"
            said = log_since(config, log_begin)
            keys = [f'\n{setting} is set by "{key}" of the extra config'
                    for setting, key in config.origins.items() if setting in said]
            raise RuntimeError(f"the engine that was started for {config.engine_socket} {why}; "
                               f"{config.engine_log} says:\n{said}{''.join(keys)}")
        time.sleep(0.02)


def failed_lately(config: Config, command: list[str], since: float) -> str:
    """Reason why a start with this command failed after `since` (time.time()); "": none failed."""
    try:
        with open(config.engine_socket + ".failed", encoding="utf-8") as file:
            failed = json.load(file)
        same = failed["command"] == command and since <= failed["at"] <= time.time()
        return str(failed["why"]) if same else ""
    except (OSError, ValueError, KeyError, TypeError):
        return ""


def remember_failure(config: Config, command: list[str], why: str) -> None:
    try:
        with open(config.engine_socket + ".failed", "w", encoding="utf-8") as file:
            json.dump({"at": time.time(), "command": command, "why": why}, file)
    except OSError as error:
        logger.warning("peercache: cannot write %s.failed, so every rank retries: %s",
                       config.engine_socket, error)


def attach_or_start(config: Config, since: float) -> Session:
    """Attaches, or starts an engine and attaches. The caller holds .lock."""
    session = attach(config.engine_socket)
    if session:
        return session
    command = engine_command(config)
    why = failed_lately(config, command, since)
    if why:
        raise RuntimeError(f"{why}\n(The start was tried less than {FAILED_SECONDS:.0f} s ago by "
                           "another rank, or an earlier one; it is not repeated before that.)")
    try:
        while session is None:
            begin = log_bytes(config)
            session = wait_started(config, start(config, command), begin)
        return session
    except RuntimeError as error:
        remember_failure(config, command, str(error))
        raise


class Attachment:
    """A session, and the lock that keeps the engine started for it running. Any thread.

    Raises OSError if no engine can be reached, RuntimeError if one was started and failed.
    """

    def __init__(self, config: Config) -> None:
        self.clients = -1
        self.session: Optional[Session] = None
        self.config = config
        self.lock = threading.Lock()
        self.lost_at: Optional[float] = None  # time.monotonic(); None: attached
        self.look_at = 0.0  # time of the next check; time.monotonic()
        if not config.engine_start:
            self.session = Session(config.engine_socket)
            return
        since = time.time() - FAILED_SECONDS
        try:
            make_folder(config.engine_socket)
            # Waits while a keeper ends its engine.
            self.clients = lock(config.engine_socket + ".clients", fcntl.LOCK_SH)
            starting = lock(config.engine_socket + ".lock", fcntl.LOCK_EX)
        except PermissionError:
            self.session = Session(config.engine_socket)  # only another user may start this engine
            return
        except OSError as error:
            self.close()
            raise type(error)(error.errno, f"engine_socket = {config.engine_socket!r}: "
                              f"{error.strerror}; an engine cannot be started there: name a "
                              "directory that this user can write", error.filename) from error
        try:
            self.session = attach_or_start(config, since)
        except BaseException:
            self.close()
            raise
        finally:
            os.close(starting)

    def look(self) -> None:
        """Logs each loss and each return of the engine once. Cheap enough to call before each call.
        """
        now = time.monotonic()
        if now < self.look_at and self.lost_at is None:
            return
        self.look_at = now + LOOK_SECONDS
        session = self.session
        if session is None or session.attached() == (self.lost_at is None):
            return
        with self.lock:
            there = session.attached()  # checked again: another thread may have logged it
            if self.session is None or there == (self.lost_at is None):
                return
            if there:
                logger.info("peercache: the engine at %s is back after %.1f s",
                            self.config.engine_socket, time.monotonic() - self.lost_at)
                self.lost_at = None
            else:
                self.lost_at = time.monotonic()
                logger.warning("peercache: the engine at %s is gone: pages are misses until it "
                               "is back; look into its log, %s where a store started it",
                               self.config.engine_socket, self.config.engine_log)

    def close(self) -> None:
        """Ends the session and releases the engine. May be called twice."""
        session, self.session = self.session, None
        clients, self.clients = self.clients, -1
        try:
            if session:
                session.close()
        finally:
            if clients >= 0:
                os.close(clients)
