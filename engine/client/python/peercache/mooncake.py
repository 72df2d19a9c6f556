# SPDX-License-Identifier: Apache-2.0
"""MooncakeDistributedStore: the Python class of Mooncake Store 0.3.14 over PeerCache.

For engines that speak that class: SGLang's backend `mooncake`, vLLM's MooncakeStoreConnector,
LMCache's mooncakestore://. They find it as mooncake.store under `peercache-as-mooncake COMMAND`.
MOONCAKE.md tells what each argument means here, and what differs.

Answers are Mooncake's: lengths, 0, or its negative error codes. A batch is one C call, which runs
without the interpreter's lock.
"""

import ctypes
import enum
import errno
import json
import logging
import mmap
import os
import re
import sys
import threading
from itertools import chain
from typing import Any, Callable, Mapping, Optional, Sequence

from peercache import config as configuration
from peercache import keys as names
from peercache import values
from peercache.guard import Guarded, guarded, stores
from peercache.places import place
from peercache.values import VALUE_BYTES_MAX, keys_of

logger = logging.getLogger("peercache")

# Mooncake's error codes.
NO_AVAILABLE_HANDLE, INVALID_PARAMS, OBJECT_NOT_FOUND, TRANSFER_FAIL, RPC_FAIL = \
    -200, -600, -704, -800, -900
# Codes of the results of a set and of a remove, by the number of enum pc_result.
INVALID = 6
SET_CODES = {0: 0, 3: RPC_FAIL, 4: RPC_FAIL, 5: NO_AVAILABLE_HANDLE, INVALID: INVALID_PARAMS,
             7: RPC_FAIL}  # others: TRANSFER_FAIL
REMOVE_CODES = {0: 0, 1: OBJECT_NOT_FOUND, 2: OBJECT_NOT_FOUND,
                INVALID: INVALID_PARAMS}  # others: RPC_FAIL
CLEAR_MS = 120000  # deadline of remove_all()
EXTRA = "PEERCACHE_EXTRA_CONFIG"  # environment: keys of the extra config, as JSON
NEEDED = ("local_hostname", "metadata_server")  # keys of a dict of setup()

# What an argument of setup() means: a key of the extra config. The last two are LMCache's words.
MEANS = {"protocol": "protocol", "rdma_devices": "device_names",
         "master_server_addr": "discovery_addr", "global_segment_size": "global_segment_size",
         "ssd_offload_path": "disk_path", "device_name": "device_names",
         "master_server_address": "discovery_addr"}
# Arguments without a meaning, and why.
WITHOUT = {"metadata_server": "engines tell each other what they have",
           "engine": "the engine of this host has the NICs",
           "enable_client_http_server": "the engine serves metrics",
           "enable_embedded_master": "there is no master",
           "ipc_socket_path": "the socket is engine_socket of $" + EXTRA}


def arguments(local_hostname: str, metadata_server: str, global_segment_size: int,
              local_buffer_size: int, protocol: str, rdma_devices: str, master_server_addr: str,
              engine: Any = None, enable_ssd_offload: bool = False, ssd_offload_path: str = "",
              tenant_id: str = "default", enable_client_http_server: bool = False,
              client_http_port: int = 9300, enable_embedded_master: bool = False) -> dict[str, Any]:
    """The arguments of setup() by name. Raises TypeError as a function with these does."""
    return dict(locals())


arguments.__qualname__ = "setup"  # in the text of a TypeError


def size_or_none(value: Any) -> int:
    """A size as config.size() reads it, or 0, also without a unit. Raises ValueError."""
    return 0 if str(value).strip() == "0" else configuration.size(value)


def extra_config(given: Mapping[str, Any]) -> dict[str, Any]:
    """The extra config that arguments of setup() and $PEERCACHE_EXTRA_CONFIG mean.

    The latter wins. Raises ValueError.
    """
    text = os.environ.get(EXTRA) or "{}"
    try:
        own = dict(json.loads(text))
    except (ValueError, TypeError) as error:
        raise ValueError(f"${EXTRA} = {text!r} is no JSON object: {error}") from error
    # a key of this project: the config is not one of PeerCache 0.8, whose engine has a disk
    extra: dict[str, Any] = {"engine_start": True}
    for argument, key in MEANS.items():
        if given.get(argument) not in (None, "", 0, "0"):
            extra[key] = given[argument]
    if "global_segment_size" in extra:
        configuration.size(extra["global_segment_size"])
    if re.match(r"[a-z0-9]+://", str(extra.get("discovery_addr", ""))):
        logger.warning("peercache: master_server_addr = %s names no engine: give host:port of one "
                       "that all hosts can reach", extra.pop("discovery_addr"))
    extra["disk_enabled"] = configuration.flag(given.get("enable_ssd_offload") or False)
    if not extra["disk_enabled"]:
        extra.pop("disk_path", None)
    # an engine that the operator starts has its own settings
    return {**extra, **own} if own.get("engine_start", True) else own


def is_host_memory(address: int, nbytes: int) -> bool:
    """True if a processor can read the first and the last byte: that of a GPU it cannot."""
    out, into = os.pipe()
    try:
        write = ctypes.CDLL(None).write
        return all(write(into, ctypes.c_void_p(at), ctypes.c_size_t(1)) == 1
                   for at in (address, address + nbytes - 1))
    finally:
        os.close(out)
        os.close(into)


class SoftPinAction(enum.Enum):
    """What a put does with a pin; there are none here."""

    PRESERVE, ENABLE, DISABLE = range(3)


class ExistOptions:
    """Options of look-ups, which have no effect: pages come from a disk when they are read."""

    def __init__(self, prefetch_to_memory: bool = False) -> None:
        self.prefetch_to_memory = prefetch_to_memory


class ReplicateConfig:
    """How a value is stored in Mooncake. Here each is stored once, on the host that puts it."""

    USUAL = {"replica_num": 1, "nof_replica_num": 0, "dfs_replica_num": 0, "with_hard_pin": False,
             "with_soft_pin": False, "soft_pin_action": SoftPinAction.PRESERVE,
             "preferred_segment": "", "preferred_segments": [], "preferred_nof_segments": [],
             "prefer_alloc_in_same_node": False, "data_type": None, "group_ids": None,
             "session_ids": None, "preferred_hca_names": None,
             "per_key_preferred_hca_names": None, "residency_affinity_ids": None}
    __slots__ = (*USUAL, "_ttl")

    def __init__(self) -> None:
        self._ttl: Optional[int] = None
        for name, value in self.USUAL.items():
            setattr(self, name, list(value) if isinstance(value, list) else value)

    def __repr__(self) -> str:
        return "ReplicateConfig(" + ", ".join(f"{name}={getattr(self, name)}"
                                              for name in self.USUAL) + ")"

    @property
    def soft_pin_ttl_ms(self) -> Optional[int]:
        """Lifetime of a pin; None: Mooncake's default."""
        return self._ttl

    @soft_pin_ttl_ms.setter
    def soft_pin_ttl_ms(self, value: Optional[int]) -> None:
        if value is not None and (not isinstance(value, int) or not 0 <= value < 1 << 64):
            raise TypeError("soft_pin_ttl_ms is None or a number of 64 bits")
        self._ttl = value


class BufferHandle(mmap.mmap):
    """The bytes of a value in memory of their own, which has Python's buffer protocol."""

    def __new__(cls, nbytes: int) -> "BufferHandle":
        return super().__new__(cls, -1, nbytes)

    def ptr(self) -> int:
        """Address of the bytes, valid as long as the handle."""
        return ctypes.addressof(ctypes.c_char.from_buffer(self))

    def size(self) -> int:
        """Number of bytes."""
        return len(self)


class MooncakeDistributedStore(Guarded):
    """Mooncake's client over the engine of this host. Any thread may call any method at any time.

    The memory of a call is the caller's, and is not touched after the call has returned. A GPU's
    memory is refused by register_buffer(). Wrong types raise TypeError; nothing else is raised.
    """

    def __init__(self) -> None:
        self._held: dict[Any, list] = {}  # key -> [bytes, sessions that have it]
        self._buffers: dict[int, int] = {}  # registered: address -> bytes
        self._said: set[str] = set()
        self._space = self._hostname = ""
        self._put_bytes_max = self._timeout = self._exists_timeout = 0
        self._setting_up = threading.Lock()
        stores.add(self)

    def _after_fork(self) -> None:
        super()._after_fork()
        self._setting_up = threading.Lock()

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"PeerCache's MooncakeDistributedStore has no {name!r}: MOONCAKE.md "
                             "beside it lists what it has")

    def _say(self, what: str, why: str) -> None:
        """Logs once that `what` has no effect."""
        if what not in self._said:
            self._said.add(what)
            logger.info("peercache: %s has no effect here: %s", what, why)

    # ---- open and close -----------------------------------------------------------------------

    def setup(self, *given: Any, **named: Any) -> int:
        """Attaches to the engine of this host, and starts one if none runs. Returns 0 or a code.

        The arguments are those of arguments(), or one dict with these names. May block for about
        two minutes. A store that is set up already stays as it is; in a child of fork(), that of
        the parent is left and another one attached.
        """
        whole = len(given) + len(named) == 1 and [*given, *named.values()][0]
        known = dict(whole) if isinstance(whole, Mapping) else arguments(*given, **named)
        with self._setting_up:
            if self._attachment and self._session.inherited():
                self._held.clear()
                super().close()
            return 0 if self._attachment else self._set_up(known)

    def _set_up(self, given: Mapping[str, Any]) -> int:
        """setup() with arguments by name, in one thread at a time."""
        try:
            missing = [name for name in NEEDED if name not in given]
            if missing:
                raise ValueError(f"setup() needs {' and '.join(missing)}")
            self._put_bytes_max = size_or_none(given.get("local_buffer_size", 16 << 20))
            config = configuration.read(extra_config(given))
            config.warn()
            tenant = given.get("tenant_id") or "default"
            parts = zip(("prefix", "tag", "tenant"), (*config.tags, str(tenant)))
            self._space = "|".join(["mc1", *(f"{name}={names.escape(value)}"
                                             for name, value in parts)])
            self._timeout, self._exists_timeout = config.timeout_ms, config.exists_timeout_ms
            self._hostname = str(given["local_hostname"])
            if not re.search(r":\d+$", self._hostname):
                self._hostname += f":{12300 + os.getpid() % 2000}"
            self._attach(config)
            self._register(self._buffers)
        except (ValueError, OSError, RuntimeError) as error:
            logger.error("peercache: setup() of MooncakeDistributedStore failed: %s", error)
            return INVALID_PARAMS if isinstance(error, ValueError) else RPC_FAIL
        self._tell_setup(given, str(tenant), config)
        return 0

    def _tell_setup(self, given: Mapping[str, Any], tenant: str,
                    config: configuration.Config) -> None:
        """Logs what the arguments of setup() have become."""
        for name, why in WITHOUT.items():
            if given.get(name):
                self._say(name, why)
        known = {*MEANS, *WITHOUT, *arguments(*[""] * 7)}
        for name in given:
            if name not in known:
                self._say(name, "it is no argument of setup()")
        try:
            pool = json.loads(self._session.report())["settings"]["engine.pool_bytes"] >> 20
        except (OSError, ValueError, KeyError):
            pool = 0
        logger.info("peercache: mooncake.store is PeerCache: the engine at %s, tenant %s. All "
                    "processes of this host share its pool of %d MiB for each NIC, whatever their "
                    "global_segment_size", config.engine_socket, tenant, pool)
        if "vllm.distributed.kv_transfer" in sys.modules and not os.environ.get("PYTHONHASHSEED"):
            logger.warning("peercache: PYTHONHASHSEED is not set: vLLM's keys differ in each "
                           "process, so that no page is found again: set the same on all hosts, or "
                           "--prefix-caching-hash-algo sha256_cbor")

    def close(self) -> int:
        """Detaches after the running calls. Returns 0. The values stay; setup() may follow."""
        super().close()
        self._held.clear()
        self._buffers.clear()
        return 0

    def _open_session(self) -> Any:
        """The session; None before setup() and after close()."""
        attachment = self._attachment
        return attachment.session if attachment else None

    def health_check(self) -> int:
        """0: attached to an engine; 1: not set up; 2: the engine is gone."""
        session = self._open_session()
        return 1 if session is None else 0 if session.attached() else 2

    def get_hostname(self) -> str:
        """local_hostname of setup(), with a port."""
        return self._hostname

    def register_buffer(self, buffer_ptr: int, size: int) -> int:
        """Lets the engine's NICs write to memory, until unregister_buffer(): pages are read without
        a copy. Returns 0, also if there are none; INVALID_PARAMS: it is known or no memory of the
        host. May block for minutes while the engine pins a large range."""
        if buffer_ptr <= 0 or size <= 0:
            return INVALID_PARAMS
        if not is_host_memory(buffer_ptr, size):
            logger.error("peercache: register_buffer(%#x, %d): no memory of the host: pages of a "
                         "GPU must be copied to the host first", buffer_ptr, size)
            return INVALID_PARAMS
        with self._setting_up:
            if any(base < buffer_ptr + size and buffer_ptr < base + nbytes
                   for base, nbytes in self._buffers.items()):
                return INVALID_PARAMS
            self._buffers[buffer_ptr] = size
            self._register({buffer_ptr: size})
        return 0

    def _register(self, buffers: Mapping[int, int]) -> None:
        """Registers memory with the engine's NICs."""
        session = self._open_session()
        for base, nbytes in buffers.items() if session is not None else ():
            try:
                session.register(base, nbytes, -1)
            except (OSError, ValueError) as error:
                self._say("register_buffer()", f"pages are copied once: {error}")

    def unregister_buffer(self, buffer_ptr: int) -> int:
        """Forgets that memory. Returns 0, or INVALID_PARAMS if none was registered there, or it is
        still in use."""
        session = self._open_session()
        if buffer_ptr in self._buffers and session is not None:
            try:
                session.release(buffer_ptr)
            except OSError as error:  # ENOENT: it is copied
                if error.errno != errno.ENOENT:
                    logger.error("peercache: unregister_buffer(%#x) failed, keep the memory: %s",
                                 buffer_ptr, error)
                    return INVALID_PARAMS
            except ValueError:
                pass  # the session is closed
        return INVALID_PARAMS if self._buffers.pop(buffer_ptr, None) is None else 0

    # ---- moving pages: lists of addresses and sizes, with as many segments for each key --------

    def _run(self, session: Any, steps: values.Steps) -> Any:
        """values.run(), which raises TypeError for a number that is negative or too large."""
        try:
            return values.run(session, self._space, self._timeout, steps)
        except OverflowError as error:
            raise TypeError(f"an address or a size: {error}") from error

    def _write(self, keys: list, ptrs: list[int], sizes: list[int]) -> list[int]:
        """Stores pages. Returns 0 or a code for each key."""
        session = self._open_session()
        if session is None or not keys:
            return [INVALID_PARAMS] * len(keys)
        results = self._run(session, values.write(keys, ptrs, sizes))
        codes = [SET_CODES.get(result, TRANSFER_FAIL) for result in results]
        if INVALID in results:  # wrong, or stored with another length: then it stays
            some = [i for i, result in enumerate(results) if result == INVALID]
            there = session.exists(self._space, [keys[i] for i in some], self._exists_timeout)
            for i, stored in zip(some, there):
                codes[i] = 0 if stored and all(sizes[i * len(sizes) // len(keys):
                                                     (i + 1) * len(sizes) // len(keys)]) \
                    else INVALID_PARAMS
        return codes

    def _read(self, keys: list, ptrs: list[int], sizes: list[int]) -> list[int]:
        """Reads pages of at most that length. Returns the length or a code for each key."""
        session = self._open_session()
        if session is None or not keys:
            return [INVALID_PARAMS] * len(keys)
        lengths = self._run(session, values.read(keys, ptrs, sizes))
        return [length if length > 0 else INVALID_PARAMS if length else OBJECT_NOT_FOUND
                for length in lengths]

    def _flat(self, call: Callable, keys: Sequence[Any], ptrs: Sequence[int],
              sizes: Sequence[int]) -> list[int]:
        """`call`, one of the two above, for pages of one segment each."""
        keys, sizes = keys_of(keys), list(sizes)
        if not len(keys) == len(ptrs) == len(sizes):
            return [INVALID_PARAMS] * len(keys)
        # no value is longer, and a room may be
        rooms = [min(nbytes, VALUE_BYTES_MAX) for nbytes in sizes] if call == self._read else sizes
        codes = call(keys, ptrs, rooms)
        if 0 in sizes or 0 in ptrs:
            codes = [code if nbytes and ptr else INVALID_PARAMS
                     for code, nbytes, ptr in zip(codes, sizes, ptrs)]
        return codes

    def _multi(self, call: Callable, keys: Sequence[Any], all_ptrs: Sequence[Sequence[int]],
               all_sizes: Sequence[Sequence[int]]) -> list[int]:
        """`call` for pages of several segments: one C call for those with the same number."""
        keys = keys_of(keys)
        codes = [INVALID_PARAMS] * len(keys)
        if not len(keys) == len(all_ptrs) == len(all_sizes):
            return codes
        if any(0 in sizes for sizes in all_sizes):  # a segment without bytes is none
            all_ptrs = [[ptr for ptr, nbytes in zip(ptrs, sizes) if nbytes]
                        if len(ptrs) == len(sizes) else [] for ptrs, sizes in
                        zip(all_ptrs, all_sizes)]
            all_sizes = [[nbytes for nbytes in sizes if nbytes] for sizes in all_sizes]
        counts = [len(ptrs) if len(ptrs) == len(sizes) else 0
                  for ptrs, sizes in zip(all_ptrs, all_sizes)]
        for count in set(counts) - {0}:
            some = [i for i, other in enumerate(counts) if other == count]
            part = call([keys[i] for i in some],
                        list(chain.from_iterable(all_ptrs[i] for i in some)),
                        list(chain.from_iterable(all_sizes[i] for i in some)))
            for i, code in zip(some, part):
                codes[i] = code
        return codes

    def _fetch(self, keys: list) -> list[Optional[BufferHandle]]:
        """The whole values; None for what is not there. Two C calls: the lengths come first."""
        session, found = self._open_session(), [None] * len(keys)
        if session is None or not keys:
            return found
        lengths = [length for length, _ in self._run(session, values.lists(keys))]
        some = [i for i, length in enumerate(lengths) if length]
        handles = [BufferHandle(lengths[i]) for i in some]
        read = self._read([keys[i] for i in some], [handle.ptr() for handle in handles],
                          [len(handle) for handle in handles])
        for i, handle, length in zip(some, handles, read):
            if length == len(handle):  # else another value has come meanwhile
                found[i] = handle
        return found

    def _accepts(self, config: Optional[ReplicateConfig]) -> bool:
        """Whether a put takes this config; says what has no effect."""
        if config is None:
            return True
        idle = [name for name, usual in config.USUAL.items() if getattr(config, name) != usual]
        for name in idle:
            self._say(f"ReplicateConfig.{name}", "a value is stored once, on the host that puts "
                      "it, without pins")
        return config.soft_pin_ttl_ms is None or config.soft_pin_action == SoftPinAction.ENABLE

    def _put(self, key: Any, parts: Sequence[Any], replaces: bool = False) -> int:
        """Stores a value of these parts. replaces: in place of one that is there."""
        kept: list[Any] = []
        places = [place(part if memoryview(part).c_contiguous else bytes(part), None, False, kept)
                  for part in parts]
        nbytes = sum(length for _, length in places)
        if not nbytes or nbytes > self._put_bytes_max:
            return INVALID_PARAMS
        if replaces:
            code = self.remove(key)
            if code not in (0, OBJECT_NOT_FOUND):
                return code
        return self._multi(self._write, [key], [[ptr for ptr, _ in places]],
                           [[length for _, length in places]])[0]

    # ---- put ----------------------------------------------------------------------------------

    @guarded(None)
    def put(self, key: str, value: Any, config: Optional[ReplicateConfig] = None) -> int:
        """Stores a value, unless the key has one. Returns 0 or a code."""
        return self._put(key, [value]) if self._accepts(config) else INVALID_PARAMS

    @guarded(None)
    def put_parts(self, key: str, *parts: Any, config: Optional[ReplicateConfig] = None) -> int:
        """put() of the parts, one behind the other."""
        return self._put(key, parts) if self._accepts(config) else INVALID_PARAMS

    @guarded(None)
    def put_batch(self, keys: list[str], values: list[Any],
                  config: Optional[ReplicateConfig] = None) -> int:
        """put() of each. Returns 0 or the first code."""
        if len(keys) != len(values) or not self._accepts(config):
            return INVALID_PARAMS
        return next(filter(None, [self._put(key, [value]) for key, value in zip(keys, values)]), 0)

    @guarded(None)
    def upsert(self, key: str, value: Any, config: Optional[ReplicateConfig] = None) -> int:
        """Stores a value in place of one that is there, which is removed first."""
        return self._put(key, [value], True) if self._accepts(config) else INVALID_PARAMS

    @guarded(None)
    def put_from(self, key: str, buffer_ptr: int, size: int,
                 config: Optional[ReplicateConfig] = None) -> int:
        """put() of memory."""
        return self.batch_put_from([key], [buffer_ptr], [size], config)[0]

    @guarded(None)
    def batch_put_from(self, keys: list[str], buffer_ptrs: list[int], sizes: list[int],
                       config: Optional[ReplicateConfig] = None) -> list[int]:
        """put() of memory for each key. Returns 0 or a code for each."""
        if not self._accepts(config):
            return [INVALID_PARAMS] * len(keys)
        return self._flat(self._write, keys, buffer_ptrs, sizes)

    @guarded(None)
    def batch_put_from_multi_buffers(
            self, keys: list[str], all_buffer_ptrs: list[list[int]], all_sizes: list[list[int]],
            config: Optional[ReplicateConfig] = None) -> list[int]:
        """put() of several ranges of memory for each key. Returns 0 or a code for each."""
        if not self._accepts(config):
            return [INVALID_PARAMS] * len(keys)
        return self._multi(self._write, keys, all_buffer_ptrs, all_sizes)

    # ---- get ----------------------------------------------------------------------------------

    @guarded(None)
    def batch_get_buffer(self, keys: list[str]) -> list[Optional[BufferHandle]]:
        """The value of each key; None: it has none."""
        return self._fetch(keys_of(keys))

    def get_buffer(self, key: str) -> Optional[BufferHandle]:
        """The value; None: there is none."""
        return self.batch_get_buffer([key])[0]

    def get(self, key: str) -> bytes:
        """The value; b"": there is none."""
        return self.get_batch([key])[0]

    def get_batch(self, keys: list[str]) -> list[bytes]:
        """The value of each key; b"": it has none."""
        return [b"" if value is None else bytes(value) for value in self.batch_get_buffer(keys)]

    @guarded(None)
    def get_size(self, key: str) -> int:
        """Length of the value, or OBJECT_NOT_FOUND."""
        session = self._open_session()
        if session is None:
            return INVALID_PARAMS
        [(length, _)] = self._run(session, values.lists(keys_of([key])))
        return length or OBJECT_NOT_FOUND

    def get_into(self, key: str, buffer_ptr: int, size: int) -> int:
        """Reads a value of at most `size` bytes into memory. Returns its length or a code."""
        return self.batch_get_into([key], [buffer_ptr], [size])[0]

    @guarded(None)
    def batch_get_into(self, keys: list[str], buffer_ptrs: list[int],
                       sizes: list[int]) -> list[int]:
        """get_into() for each key."""
        return self._flat(self._read, keys, buffer_ptrs, sizes)

    @guarded(None)
    def batch_get_into_multi_buffers(
            self, keys: list[str], all_buffer_ptrs: list[list[int]], all_sizes: list[list[int]],
            prefer_alloc_in_same_node: bool = False) -> list[int]:
        """Reads values into several ranges of memory each, which must have exactly their length.

        Returns the length for each key, INVALID_PARAMS of a longer value, TRANSFER_FAIL of a
        shorter one, or another code.
        """
        codes = self._multi(self._read, keys, all_buffer_ptrs, all_sizes)
        return [TRANSFER_FAIL if 0 < code < sum(sizes) else code
                for code, sizes in zip(codes, all_sizes)] if len(codes) == len(all_sizes) else codes

    # ---- parts of values ----------------------------------------------------------------------

    @guarded(None)
    def batch_get_session_start(self, keys: list[str]) -> list[int]:
        """Reads the values of the keys and holds them until batch_get_session_end().

        Returns 0 or OBJECT_NOT_FOUND for each key.
        """
        keys = keys_of(keys)
        found = self._fetch(keys)
        for key, value in zip(keys, found):
            if value is not None:
                with self._lock:
                    self._held.setdefault(key, [value, 0])[1] += 1
        return [OBJECT_NOT_FOUND if value is None else 0 for value in found]

    def batch_get_session_end(self, keys: list[str]) -> int:
        """Forgets what batch_get_session_start() of these keys has read. Returns 0."""
        for key in keys_of(keys):
            held = self._held.get(key)
            if held:
                with self._lock:
                    held[1] -= 1
                    if held[1] <= 0:
                        self._held.pop(key, None)
        return 0

    @staticmethod
    def _copy(value: Optional[BufferHandle], ptrs: Sequence[int], sizes: Sequence[int],
              offsets: Sequence[int]) -> int:
        """Copies ranges of a value to memory. Returns their bytes or INVALID_PARAMS."""
        if value is None or not len(ptrs) == len(sizes) == len(offsets) or \
                any(offset < 0 or nbytes < 0 or offset + nbytes > len(value)
                    for nbytes, offset in zip(sizes, offsets)):
            return INVALID_PARAMS
        base = value.ptr()
        for ptr, nbytes, offset in zip(ptrs, sizes, offsets):
            ctypes.memmove(ptr, base + offset, nbytes)
        return sum(sizes)

    def batch_get_into_multi_buffer_ranges(
            self, keys: list[str], all_buffer_ptrs: list[list[int]], all_sizes: list[list[int]],
            all_src_offsets: list[list[int]]) -> list[int]:
        """Copies ranges of values that a session holds. Returns the bytes or a code for each."""
        keys = keys_of(keys)
        if not len(keys) == len(all_buffer_ptrs) == len(all_sizes) == len(all_src_offsets):
            return [INVALID_PARAMS] * len(keys)
        return [self._copy(self._held.get(key, [None])[0], *ranges) for key, *ranges in
                zip(keys, all_buffer_ptrs, all_sizes, all_src_offsets)]

    @guarded(None)
    def get_into_ranges(self, buffer_ptrs: list[int], all_keys: list[list[str]],
                        all_dst_offsets: list[list[list[int]]],
                        all_src_offsets: list[list[list[int]]],
                        all_sizes: list[list[list[int]]]) -> list[list[list[int]]]:
        """Copies ranges of the values of several keys to each registered buffer.

        Returns the bytes or a code of each range.
        """
        wanted = list(dict.fromkeys(chain.from_iterable(all_keys)))
        values = dict(zip(wanted, self._fetch(keys_of(wanted))))

        def copied(ptr: int, key: str, *ranges: list[int]) -> list[int]:
            if len(set(map(len, ranges))) != 1:
                return [INVALID_PARAMS] * max(map(len, ranges))
            return [self._copy(values[key], [ptr + to], [nbytes], [at])
                    if 0 <= to <= self._buffers.get(ptr, 0) - nbytes else INVALID_PARAMS
                    for to, at, nbytes in zip(*ranges)]

        return [[copied(ptr, *one) for one in zip(*buffer)] for ptr, *buffer in
                zip(buffer_ptrs, all_keys, all_dst_offsets, all_src_offsets, all_sizes)]

    # ---- look-ups, removal --------------------------------------------------------------------

    @guarded(None)
    def batch_is_exist(self, keys: list[str], options: Optional[ExistOptions] = None) -> list[int]:
        """1 for each key that has a value, else 0, also when that cannot be known."""
        session, keys = self._open_session(), keys_of(keys)
        return [0] * len(keys) if session is None else \
            list(map(int, session.exists(self._space, keys, self._exists_timeout)))

    def is_exist(self, key: str, options: Optional[ExistOptions] = None) -> int:
        """batch_is_exist() of one key."""
        return self.batch_is_exist([key])[0]

    def probe_key(self, key: str) -> int:
        """is_exist(): there are no leases."""
        return self.batch_is_exist([key])[0]

    def batch_probe_key(self, keys: list[str], policy: str = "none",
                        candidate_size: int = 1) -> list[int]:
        """batch_is_exist(): there are no leases."""
        if policy not in ("none", "LastHitOnly") or candidate_size < 1 or \
                len(keys) % candidate_size:
            return [INVALID_PARAMS] * len(keys)
        return self.batch_is_exist(keys)

    def remove(self, key: str, force: bool = False) -> int:
        """Removes a value from all hosts. Returns 0 or a code."""
        return self.batch_remove([key])[0]

    @guarded(None)
    def batch_remove(self, keys: list[str], force: bool = False) -> list[int]:
        """remove() of each key."""
        session, keys = self._open_session(), keys_of(keys)
        if session is None or not keys:
            return [INVALID_PARAMS] * len(keys)
        return [REMOVE_CODES.get(result, RPC_FAIL) for result in
                self._run(session, values.remove(keys))]

    @guarded(None)
    def remove_all(self, force: bool = False) -> int:
        """Removes the tenant's values from all hosts. Returns how many this host had, or a code."""
        session = self._open_session()
        if session is None:
            return INVALID_PARAMS
        try:
            return session.clear(self._space, CLEAR_MS, True)
        except (OSError, ValueError) as error:
            logger.error("peercache: remove_all() failed: %s", error)
            return RPC_FAIL
