# SPDX-License-Identifier: Apache-2.0
"""Attaches a store to the engine of this host. If no engine runs, the first rank starts one.

Four files stand beside the socket. The first three are locks, which the kernel releases when the
process that holds them dies:
  .clients  every store holds a shared lock while it is open; the keeper waits for the last of them
  .lock     held by the rank that looks for an engine and starts one; other ranks wait, then attach
  .keeper   held by the program peercache-keeper while it runs: a socket has at most one keeper
  .failed   JSON without a lock: time, command and reason of the last start that failed
A rank that waited while a start failed does not start an engine that would fail again. It raises
the same reason. So does a rank with the same settings within FAILED_SECONDS after that.
"""

import errno
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
from peercache.config import SEGMENT_BYTES, Config, size

logger = logging.getLogger("peercache")
START_SECONDS = 120.0  # time-out of a start or restart: a pause of systemd, and a large pool
FAILED_SECONDS = 10.0  # time in which a failed start is not repeated
LOG_BYTES = 2000       # bytes of the engine's log that an error quotes
LOOK_SECONDS = 0.01    # time between two checks for the engine; an engine takes longer to restart
NOTICE_SECONDS = 0.2   # time-out for a keeper to notice that its last client has gone
END_SECONDS = 3.0      # time-out for an engine to end after its last client


class FileLock:
    """A lock on a file, which is created if it is missing.

    A child of fork() does not hold the locks of its parent. Otherwise an engine would live as long
    as any child of the process that started it.
    """

    held: set["FileLock"] = set()  # of this process

    def __init__(self, path: str, how: int) -> None:
        """how: fcntl.LOCK_SH or LOCK_EX, with LOCK_NB to raise BlockingIOError instead of waiting.

        Raises OSError.
        """
        FileLock.held.add(self)
        self.fd = -1
        while self.fd < 0:
            self.fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(self.fd, how)
            except BaseException:
                self.release()
                raise
            if not os.fstat(self.fd).st_nlink:  # a keeper that has ended removed it meanwhile
                os.close(self.fd)
                self.fd = -1

    def release(self) -> None:
        """Ends the lock, also for programs that have inherited it. May be called twice."""
        if self.fd >= 0:
            fcntl.flock(self.fd, fcntl.LOCK_UN)
        self.leave()

    def leave(self) -> None:
        """Closes the file only, so that a program that has inherited the lock keeps it."""
        FileLock.held.discard(self)
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)


def after_fork() -> None:
    """In a child of fork(): leaves the locks to the parent."""
    for held in list(FileLock.held):
        held.leave()


os.register_at_fork(after_in_child=after_fork)


def make_folder(path: str) -> None:
    """Makes the directory of the file `path` with mode 0700, as the engine does.

    The parent of the directory must exist, or OSError is raised.
    """
    try:
        os.mkdir(os.path.dirname(path) or ".", mode=0o700)
    except FileExistsError:
        pass


def find_program(name: str, *beside: str) -> Optional[str]:
    """Path of a program: in one of the folders `beside`, in the package (a wheel has them there),
    beside Python, or on PATH; else None."""
    for folder in (*beside, os.path.join(os.path.dirname(__file__), "bin"),
                   sysconfig.get_path("scripts"), os.path.dirname(sys.executable)):
        path = os.path.join(folder or "", name)
        if folder and os.access(path, os.X_OK):
            return path
    return shutil.which(name)


def find_engine(config: Config) -> str:
    """Path of the engine's program.

    It is "engine_path", $PEERCACHE_ENGINE, the file beside Python (where pip puts it), or the one
    on PATH; the first that is set or exists. Raises FileNotFoundError.
    """
    for key, wanted in (("engine_path", config.engine_path),
                        ("$PEERCACHE_ENGINE", os.environ.get("PEERCACHE_ENGINE", ""))):
        if wanted and not os.access(wanted, os.X_OK):
            raise FileNotFoundError(f"{key} = {wanted!r}: this user can run no program there; "
                                    "give the path of peercache-engine")
        if wanted:
            return wanted
    found = find_program("peercache-engine")
    if not found:
        raise FileNotFoundError(
            f"no engine runs at {config.engine_socket}, and no program peercache-engine is found: "
            'install it, or give its path in "engine_path" or $PEERCACHE_ENGINE')
    return found


def find_keeper(engine: str) -> str:
    """Path of the program peercache-keeper for this engine.

    It is $PEERCACHE_KEEPER, the file beside the engine, beside Python, or the one on PATH; the
    first that is set or exists. Raises FileNotFoundError.
    """
    found = os.environ.get("PEERCACHE_KEEPER") or find_program(
        "peercache-keeper", os.path.dirname(engine))
    if not found or not os.access(found, os.X_OK):
        raise FileNotFoundError(
            f"the program peercache-keeper, which runs the engine, is not found beside {engine}, "
            "beside Python or on PATH: install it, or give its path in $PEERCACHE_KEEPER")
    return found


def session_arguments(config: Config) -> tuple[str, str, int, str]:
    """The arguments of Session() that a config means."""
    return (config.engine_socket, config.verify, config.verify_one_in,
            config.namespace_secret_file)


def attach(config: Config) -> Optional[Session]:
    """A session with the engine of config.engine_socket; None if no engine serves there.

    A keeper or systemd owns the socket while no engine runs: the connection waits, until the
    time-out of the library, 5 s. Raises OSErrors that a start of an engine would not cure: without
    a keeper, TimeoutError when an engine does not answer, BlockingIOError when it restarts.
    """
    try:
        return Session(*session_arguments(config))
    except (FileNotFoundError, ConnectionRefusedError, ConnectionResetError):
        return None
    except (TimeoutError, BlockingIOError):
        if keeper_ended(config):
            raise
        return None


def warn_of_differences(config: Config, session: Session) -> None:
    """Logs one line with the settings that a running engine has and the extra config does not."""
    try:
        running = json.loads(session.report()).get("settings", {})
    except (OSError, ValueError) as error:
        logger.warning("peercache: the settings of the engine at %s are not known: %s",
                       config.engine_socket, error)
        return
    found = config.differences(running)
    if found:
        logger.warning("peercache: the engine at %s runs with other settings, which an extra "
                       "config cannot change: %s: restart it with these, or remove the keys",
                       config.engine_socket, "; ".join(found))


def disk_missing(path: str, wanted: int) -> str:
    """Why no disk of `wanted` bytes, those of its files, can be had in this directory; "": it can.

    Files of the engine that are there already count as room. If they are all there, nothing is
    allocated: whether the file system has become full meanwhile does not matter.
    """
    try:
        if not os.access(path, os.R_OK | os.W_OK | os.X_OK):
            return "cannot be written by this user"
        room = os.statvfs(path)
        ours = sum(entry.stat(follow_symlinks=False).st_blocks * 512
                   for entry in os.scandir(path) if entry.name.startswith("peercache-disk."))
    except OSError as error:
        return f"cannot be used: {error.strerror}"
    if ours >= wanted:
        return ""
    free = room.f_bavail * room.f_frsize + ours
    if free - room.f_blocks * room.f_frsize // 10 >= wanted:
        return ""
    return (f"has {free >> 20} MiB free, and {wanted >> 20} MiB are allocated at the start and a "
            "tenth of the file system stays free")


def disk_settings(config: Config) -> dict[str, str]:
    """The settings disk.* of an engine that is started. Makes the directories of "disk_path".

    A directory that cannot be made is no reason not to start. Without the default one there is no
    disk, and without a given one the engine has none there: one line says so.
    """
    found = {name: value for name, value in config.settings.items() if name.startswith("disk.")}
    if config.origins.get("disk.paths") not in ("disk_path", "disk_enabled") or \
            not found["disk.paths"]:
        return found
    why = ""
    for path in found["disk.paths"].split(","):
        try:
            os.makedirs(path, mode=0o700, exist_ok=True)
        except OSError as error:
            why = f"cannot be made: {error.strerror}"
            if not config.disk_default:
                logger.warning('peercache: "disk_path": %s %s: the engine has no disk there: give '
                               "a directory that this user can write", path, why)
    if not config.disk_default:
        return found
    try:
        nbytes = size(found["disk.bytes"])
        segment = size(found.get("disk.segment_bytes", SEGMENT_BYTES))
    except ValueError:
        return found  # the engine refuses it
    why = why or disk_missing(found["disk.paths"], nbytes // segment * segment)
    if not why:
        logger.info("peercache: evicted pages go to %s, %d MiB, as in PeerCache 0.8: "
                    "\"disk_enabled\": false turns that off", found["disk.paths"], nbytes >> 20)
        return found
    logger.warning("peercache: no disk: %s, the default of PeerCache 0.8, %s: give a directory on "
                   "a local SSD as \"disk_path\" and its \"disk_size\", or \"disk_enabled\": "
                   "false", found["disk.paths"], why)
    return {}


def warn_of_share(config: Config) -> None:
    """Logs that the pool of a config of PeerCache 0.8, which had one for each rank, is smaller."""
    if config.former and config.ranks > 1:
        pool = int(config.settings["engine.pool_bytes"]) * \
            len(config.settings["rail.devices"].split(","))
        logger.warning("peercache: this host's pool has %d MiB for all ranks together; PeerCache "
                       "0.8 gave each rank as much, %d MiB for the %d ranks of this server: to "
                       "keep that, give the sum over the ranks of a host as "
                       "\"global_segment_size\"", pool >> 20, pool * config.ranks >> 20,
                       config.ranks)


def engine_command(config: Config) -> list[str]:
    """The engine's program and arguments. Raises FileNotFoundError."""
    # The engine must accept unsealed memfds, because those of SGLang's shm allocator cannot be
    # sealed. SGLang does not shrink them.
    command = [find_engine(config), "--set", "engine.unsealed_memory=yes"]
    others = {name: value for name, value in config.settings.items()
              if not name.startswith("disk.")}
    for name, value in {**others, **disk_settings(config)}.items():
        command += ["--set", f"{name}={value}"]
    return command


def start(config: Config, command: list[str]) -> bool:
    """Starts a keeper with the engine's command. Returns without waiting for the engine.

    False: another keeper holds the lock; it is restarting its engine or is about to end.
    """
    line = [find_keeper(command[0]), "--socket", config.engine_socket]
    if not config.engine_keep:
        line += ["--clients", config.engine_socket + ".clients"]
    try:
        held = FileLock(config.engine_socket + ".keeper", fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        logger.info("peercache: waiting for the keeper of the engine at %s, whose log is %s",
                    config.engine_socket, config.engine_log)
        return False
    logger.info("peercache: no engine runs at %s: starting one on %s, whose log is %s",
                config.engine_socket, config.settings.get("rail.devices"), config.engine_log)
    if config.settings.get("rail.devices") == "soft":
        logger.warning("peercache: the engine uses the software NIC, because no RDMA device was "
                       "named or found: for RDMA, name one in \"device_names\"")
    try:
        with open(config.engine_log, "ab") as log:
            keeper = subprocess.Popen([*line, "--lock-fd", str(held.fd), "--", *command],
                                      stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                      start_new_session=True, pass_fds=(held.fd,))
    finally:
        held.leave()  # the keeper inherited the lock and keeps it
    # It may end long after the last store of this process, or at once: then it must not stay as
    # a defunct process.
    threading.Thread(target=keeper.wait, name="peercache-keeper", daemon=True).start()
    return True


def keeper_ended(config: Config) -> bool:
    """True if no keeper runs for this socket."""
    if not os.path.exists(config.engine_socket + ".keeper"):
        return True
    try:
        FileLock(config.engine_socket + ".keeper", fcntl.LOCK_EX | fcntl.LOCK_NB).release()
        return True
    except BlockingIOError:
        return False


def wait_ended(config: Config) -> None:
    """Waits, at most END_SECONDS, while the keeper ends its engine after the last client.

    Returns at once if another store is open, and after NOTICE_SECONDS if no keeper waits for
    clients, because the engine is systemd's.
    """
    def free(file: str, how: int) -> bool:
        if not os.path.exists(config.engine_socket + file):
            return True
        try:
            FileLock(config.engine_socket + file, how | fcntl.LOCK_NB).release()
            return True
        except BlockingIOError:
            return False

    start = time.monotonic()
    try:
        while True:
            passed = time.monotonic() - start
            last = free(".clients", fcntl.LOCK_EX)  # if a keeper waits, it takes the lock next
            if passed > (NOTICE_SECONDS if last else END_SECONDS) or \
                    not last and free(".clients", fcntl.LOCK_SH) or free(".keeper", fcntl.LOCK_EX):
                return
            time.sleep(LOOK_SECONDS)
    except OSError:
        return  # the files are gone, or another user's


def log_bytes(config: Config) -> int:
    """Size of the engine's log in bytes; 0 without a log."""
    try:
        return os.stat(config.engine_log).st_size
    except OSError:
        return 0


def log_since(config: Config, begin: int) -> str:
    """Text of the engine's log from byte `begin` on, at most the last LOG_BYTES.

    Returns the error's text if the log cannot be read.
    """
    try:
        with open(config.engine_log, "rb") as log:
            size = os.fstat(log.fileno()).st_size
            log.seek(max(begin if begin <= size else 0, size - LOG_BYTES))  # a shorter log is new
            return log.read().decode(errors="replace").strip()
    except OSError as error:
        return str(error)


def wait_started(config: Config, ours: bool, log_begin: int) -> Optional[Session]:
    """Waits until the engine serves, and attaches.

    ours: True if this process started the keeper. log_begin: size of the engine's log before the
    start. None: a keeper of another process ended. Raises RuntimeError with the end of the log if
    our keeper ended, or if the engine is not ready after START_SECONDS.
    """
    end = time.monotonic() + START_SECONDS
    while True:
        session = attach(config)
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
    """Reason of the last start's failure; "" unless it had this command and came after `since`.

    since: seconds, as time.time() returns.
    """
    try:
        with open(config.engine_socket + ".failed", encoding="utf-8") as file:
            failed = json.load(file)
        same = failed["command"] == command and since <= failed["at"] <= time.time()
        return str(failed["why"]) if same else ""
    except (OSError, ValueError, KeyError, TypeError):
        return ""


def remember_failure(config: Config, command: list[str], why: str) -> None:
    """Writes the file .failed, which failed_lately() of other ranks reads."""
    try:
        with open(config.engine_socket + ".failed", "w", encoding="utf-8") as file:
            json.dump({"at": time.time(), "command": command, "why": why}, file)
    except OSError as error:
        logger.warning("peercache: cannot write %s.failed, so every rank retries the start: %s",
                       config.engine_socket, error)


def attach_or_start(config: Config, since: float) -> Session:
    """Attaches, and starts an engine if none runs. The caller holds .lock.

    since: a start that failed after this time (time.time(), seconds) is not repeated. Raises
    RuntimeError if the engine did not start, OSError if it cannot be reached.
    """
    session = attach(config)
    if session:
        return session
    command = engine_command(config)
    warn_of_share(config)
    why = failed_lately(config, command, since)
    if why:
        raise RuntimeError(f"{why}\n(This start failed less than {FAILED_SECONDS:.0f} s ago, in "
                           "this rank or another; it is not repeated earlier.)")
    try:
        while session is None:
            begin = log_bytes(config)
            session = wait_started(config, start(config, command), begin)
        return session
    except RuntimeError as error:
        remember_failure(config, command, str(error))
        raise


class Attachment:
    """A session with the engine, and the lock on .clients that keeps a started engine running.

    Any thread may call look() and close().

    Attributes:
        session: the session; None after close().
        clients: the shared lock on .clients; None: none.
        lost_at: time.monotonic() when the loss of the engine was noticed; None: attached.
        refusal: what an engine that is there answered since then, as it was logged; "": nothing.
        look_at: time.monotonic() of the next check for the engine.
    """

    def __init__(self, config: Config) -> None:
        """Attaches, and starts an engine if none runs and config.engine_start is set.

        Waits for an engine that systemd or a keeper restarts, at most START_SECONDS, which is more
        than the longest pause of the unit (30 s) and a start. Raises OSError if no engine can be
        reached or started, RuntimeError if the engine that was started did not become ready. May
        block for START_SECONDS, or longer while other ranks try.
        """
        self.clients: Optional[FileLock] = None
        self.session: Optional[Session] = None
        self.config = config
        self.lock = threading.Lock()
        self.lost_at: Optional[float] = None
        self.refusal = ""
        self.look_at = 0.0
        self._open()
        warn_of_differences(config, self.session)

    def _open(self) -> None:
        """Repeats _try() while the engine restarts. Other ranks have their turn in between."""
        end = time.monotonic() + START_SECONDS
        told = False
        while True:
            try:
                self._try()
                return
            except BlockingIOError as error:
                if error.errno != errno.EINPROGRESS or time.monotonic() > end:
                    raise
            if not told:
                logger.warning("peercache: the engine at %s is being restarted: waiting for it, "
                               "at most %.0f s; read its log", self.config.engine_socket,
                               START_SECONDS)
                told = True

    def _try(self) -> None:
        """Sets `session`, and `clients` unless the engine is another user's. Raises as __init__."""
        config = self.config
        if not config.engine_start:
            self.session = Session(*session_arguments(config))
            return
        since = time.time() - FAILED_SECONDS
        try:
            make_folder(config.engine_socket)
            # A keeper that is ending its engine holds this lock exclusively until it has ended.
            self.clients = FileLock(config.engine_socket + ".clients", fcntl.LOCK_SH)
            starting = FileLock(config.engine_socket + ".lock", fcntl.LOCK_EX)
        except PermissionError:
            self.session = Session(*session_arguments(config))  # another user's engine
            return
        except OSError as error:
            self.close()
            raise type(error)(error.errno, f"engine_socket = {config.engine_socket!r}: "
                              f"{error.strerror}; no engine can be started there: name a file in a "
                              "directory that this user can write", error.filename) from error
        try:
            self.session = attach_or_start(config, since)
        except BaseException:
            self.close()
            raise
        finally:
            starting.release()

    def look(self) -> None:
        """Logs each loss and each return of the engine once, and why one that is there refuses.

        The store calls it before each call: it costs little, because it checks at most every
        LOOK_SECONDS while the engine is attached.
        """
        now = time.monotonic()
        if now < self.look_at and self.lost_at is None:
            return
        self.look_at = now + LOOK_SECONDS
        session = self.session
        if session is None or session.inherited():
            return
        refusal = "" if self.lost_at is None else session.refusal()
        if session.attached() == (self.lost_at is None) and refusal in ("", self.refusal):
            return
        with self.lock:
            if refusal not in ("", self.refusal):
                self.refusal = refusal
                logger.error("peercache: the engine at %s gives no session, pages are misses "
                             "until one does: %s", self.config.engine_socket, refusal)
            there = session.attached()  # another thread may have logged the change meanwhile
            if self.session is None or there == (self.lost_at is None):
                return
            if there:
                logger.info("peercache: the engine at %s is back after %.1f s",
                            self.config.engine_socket, time.monotonic() - self.lost_at)
                self.lost_at, self.refusal = None, ""
            else:
                self.lost_at = time.monotonic()
                logger.warning("peercache: the engine at %s is gone: pages are misses until it "
                               "is back; read its log (%s if a store started it)",
                               self.config.engine_socket, self.config.engine_log)

    def close(self) -> None:
        """Closes the session after its running calls, and releases the lock on .clients.

        After the last client's release the keeper ends the engine; this waits for it, at most
        END_SECONDS, so that nothing of it is left when this returns. May be called twice.
        """
        session, self.session = self.session, None
        clients, self.clients = self.clients, None
        try:
            if session:
                session.close()
        finally:
            if clients:
                clients.release()
                wait_ended(self.config)
