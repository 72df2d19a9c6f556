# SPDX-License-Identifier: Apache-2.0
"""PeerCacheTier: a secondary tier of vLLM's OffloadingConnector, which loads it by `module_path`.

    {"type": "PeerCacheTier", "module_path": "peercache.vllm", "discovery_addr": "10.0.0.1:31998"}

The other words are keys of the extra config. vLLM calls the tier in its scheduler's process, whose
thread makes no copies: look-ups are made in the thread of vLLM's AsyncLookupManager, jobs in two
pools of threads here. Chunks move between the pools and vLLM's region in /dev/shm, which the engine
maps, so that its NICs write to it.
"""

import concurrent.futures
import ctypes
import time
from types import SimpleNamespace
from typing import Any, Iterable, Optional

from vllm.v1.kv_offload.base import LookupResult, RequestOffloadingContext
from vllm.v1.kv_offload.file_mapper import FileMapper
from vllm.v1.kv_offload.tiering.async_lookup import AsyncLookupManager
from vllm.v1.kv_offload.tiering.base import JobResult, SecondaryTierManager

from peercache import config as configuration
from peercache import keys as names
from peercache import values
from peercache.guard import Guarded, guarded
from peercache.memory import Memory

LOADS, STORES = 4, 2  # threads


class LookUps(AsyncLookupManager):
    """Look-ups of keys by batches of a step."""

    def __init__(self, tier: "PeerCacheTier") -> None:
        self._tier = tier
        super().__init__(tier.tier_type)

    def batch_lookup(self, keys: list, req_context: Any) -> Iterable[bool]:
        """Which keys have a value; none if that cannot be known."""
        return self._tier.found(keys)


class PeerCacheTier(SecondaryTierManager, Guarded):
    """The tier of one vLLM engine. The scheduler's thread calls it."""

    def __init__(self, offloading_spec: Any, primary_kv_view: memoryview, tier_type: str,
                 backpressure_detector: Any = None, **extra: Any) -> None:
        super().__init__(offloading_spec, primary_kv_view, tier_type, backpressure_detector)
        config = configuration.read({"engine_start": True, **extra})
        config.warn()
        files = FileMapper.from_offloading_spec("", offloading_spec, parallel_agnostic=True,
                                                blocks_per_file=offloading_spec.blocks_per_chunk)
        layout = getattr(offloading_spec.config, "kv_cache_layout", None)
        parts = (*zip(("prefix", "tag"), config.tags),
                 ("files", f"{files.base_path}_r{files.rank}"),
                 ("layout", str(layout)), ("bytes", str(self._block_size_bytes)))
        self._space = "|".join(["vl1", *(f"{name}={names.escape(value)}"
                                         for name, value in parts)])
        self._timeout, self._exists_timeout = config.timeout_ms, config.exists_timeout_ms
        self._base = ctypes.addressof(ctypes.c_char.from_buffer(primary_kv_view))
        self._jobs: dict[concurrent.futures.Future, Any] = {}  # -> vLLM's TransferJob
        self._attach(config)
        self._memory: Optional[Memory] = Memory(self._session)
        region = getattr(offloading_spec, "_scheduler_mmap", None)
        if region is not None:
            self._memory.add("vllm", SimpleNamespace(
                allocator=SimpleNamespace(fds=[region.fd], mms=[region.mmap_obj]),
                tensor=region.base_tensor), [self._base])
        self._loads = concurrent.futures.ThreadPoolExecutor(LOADS, "peercache-load")
        self._stores = concurrent.futures.ThreadPoolExecutor(STORES, "peercache-store")
        self._look_ups = LookUps(self)

    # ---- look-ups -----------------------------------------------------------------------------

    @guarded(lambda keys: [False] * len(keys))
    def found(self, keys: list) -> list[bool]:
        """Which keys have a value. Called in the thread of the look-ups."""
        return self._session.exists(self._space, keys, self._exists_timeout)

    def lookup(self, key: bytes, req_context: Any) -> LookupResult:
        """HIT or MISS; RETRY until the look-up has ended."""
        found = self._look_ups.lookup(key, req_context)
        return LookupResult.RETRY if found is None else \
            LookupResult.HIT if found else LookupResult.MISS

    def on_schedule_end(self, context: Any) -> None:
        """Starts the look-ups of the step."""
        self._look_ups.flush()

    def on_new_request(self, req_context: Any) -> RequestOffloadingContext:
        """Chunks are stored as they come."""
        return RequestOffloadingContext()

    def on_request_finished(self, req_context: Any) -> None:
        """Forgets the look-ups of the request."""
        self._look_ups.cleanup(req_context.req_id)

    # ---- jobs ---------------------------------------------------------------------------------

    def submit_store(self, job_metadata: Any) -> None:
        """Stores chunks of the region, in a thread."""
        self._jobs[self._stores.submit(self.move, job_metadata, values.write)] = job_metadata

    def submit_load(self, job_metadata: Any) -> None:
        """Reads chunks to the region, in a thread."""
        self._jobs[self._loads.submit(self.move, job_metadata, values.read)] = job_metadata

    @guarded(lambda job, steps: ([], None))
    def move(self, job: Any, steps: Any) -> tuple[list, Optional[float]]:
        """Moves the chunks of a job. Returns the keys that were moved whole, and the seconds."""
        began = time.monotonic()
        ptrs = [self._base + int(chunk) * self._block_size_bytes for chunk in job.chunk_ids]
        keys, done = list(job.keys), values.HIT if steps is values.write else self._block_size_bytes
        results = values.run(self._session, self._space, self._timeout,
                             steps(keys, ptrs, [self._block_size_bytes] * len(ptrs)))
        return ([key for key, result in zip(keys, results) if result == done],
                time.monotonic() - began)

    def get_finished_jobs(self) -> list[JobResult]:
        """The jobs that have ended. What a load has not read is a miss from now on."""
        ended = [(self._jobs.pop(call), call.result()) for call in list(self._jobs) if call.done()]
        finished = []
        for job, (moved, seconds) in ended:
            failed = set(job.keys).difference(moved)
            if job.is_promotion:
                self._look_ups.mark_miss(failed)
            finished.append(JobResult(
                job.job_id, not failed, tuple(moved) if failed and job.is_promotion else None,
                seconds, len(moved) * self._block_size_bytes))
        return finished

    def drain_jobs(self) -> None:
        """Waits for the jobs, at most until their deadlines."""
        concurrent.futures.wait(list(self._jobs))

    def shutdown(self) -> None:
        """Waits for the jobs and the look-up in flight, and detaches."""
        self._look_ups.shutdown()
        for pool in (self._loads, self._stores):
            pool.shutdown()
        self._memory = None
        self.close()
