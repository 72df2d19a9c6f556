# SPDX-License-Identifier: Apache-2.0
"""vLLM over peercache.vllm, with the line of VLLM.md, on the CPU: its tiering classes, and a model.

vLLM's worker for the tiers needs a GPU. Worker is in its place when the model is served: it copies
blocks to vLLM's region and back.

    test_vllm.py                                  exit 77: PyPI has no vLLM
    test_vllm.py drive SPEC PIDS SOCKET SOCKET    the managers of two vLLM hosts, on two engines

The environment is that of test_mooncake_engines.py.
"""

import glob
import itertools
import json
import os
import re
import signal
import subprocess
import sys
import time

from test_mooncake_engines import BLOCK, PACKAGE, PROMPTS, ROOT, Served, harness, main

CHUNK, CHUNKS = 64 << 10, 8


class Host:
    """One vLLM host: its manager, and what its scheduler does in a step."""

    def __init__(self, name, spec, **changed):
        import numpy
        from vllm.v1.kv_offload import config
        from vllm.v1.kv_offload.base import ReqContext, ScheduleEndContext
        from vllm.v1.kv_offload.tiering.spec import TieringOffloadingSpec
        values = {
            "groups": (config.OffloadingGroupConfig(16, ("layer.0",), 0),),
            "worker_kv_bytes_per_block": CHUNK, "enable_kv_cache_events": False,
            "extra_config": {"cpu_bytes_to_use": CHUNK * CHUNKS * 2, "secondary_tiers": [spec]},
            "engine_id": f"{name}-{os.getpid()}",
            "model": config.OffloadingModelConfig("m/llama", "bfloat16"),
            "cache": config.OffloadingCacheConfig(16, 1),
            "parallel": config.OffloadingParallelConfig(0, 1, 1, 1, 1, 1, 0, 1, None, True),
            **changed}
        self.manager = TieringOffloadingSpec(config.OffloadingConfig(**values)).get_manager()
        [self.tier] = self.manager.secondary_tiers
        self.view = numpy.asarray(self.manager.primary_tier.get_kv_memoryview())
        self.request, self.end = ReqContext, ScheduleEndContext((), ())
        self.requests = 0

    def new_request(self):
        self.requests += 1
        request = self.request(str(self.requests))
        self.manager.on_new_request(request)
        return request

    def step(self):
        self.manager.on_schedule_end(self.end)

    def settle(self):
        while self.manager._transfer_jobs:
            self.step()
            time.sleep(0.001)

    def store(self, keys):
        import numpy
        request = self.new_request()
        spec = self.manager.prepare_store(keys, request).store_spec
        for key, chunk in zip(keys, spec.chunk_ids):
            self.view[int(chunk)] = numpy.frombuffer(content(key), self.view.dtype)
        self.manager.complete_store(keys, request)
        self.manager.on_request_finished(request)
        self.step()
        self.settle()

    def look(self, key, request):
        """The last answer about a key, after the RETRYs."""
        from vllm.v1.kv_offload.base import LookupResult
        waits = (LookupResult.RETRY, LookupResult.HIT_PENDING)
        while (found := self.manager.lookup(key, request)) in waits:
            self.step()
        return found.name

    def load(self, keys):
        """For each key: its bytes are right, they are wrong, or the last answer."""
        request, told = self.new_request(), []
        for key in keys:
            found = self.look(key, request)
            if found == "HIT":
                [chunk] = self.manager.prepare_load([key], request).chunk_ids
                found = "right" if self.view[int(chunk)].tobytes() == content(key) else "WRONG"
                self.manager.complete_load([key], request)
            told.append(found)
        self.manager.on_request_finished(request)
        return told


def work_on_a_cpu():
    """Puts a worker for a CPU in place of vLLM's."""
    import torch
    from vllm.v1.kv_offload.base import OffloadingWorker, TransferResult
    from vllm.v1.kv_offload.cpu.shared_offload_region import SharedOffloadRegion
    from vllm.v1.kv_offload.tiering.spec import TieringOffloadingSpec

    class Worker(OffloadingWorker):
        def __init__(self, spec, kv_caches):
            self.done = []
            self.region = SharedOffloadRegion(
                spec.config.engine_id, spec.num_chunks, 0, spec.kv_bytes_per_chunk,
                spec.cpu_page_size_per_worker)
            self.pairs = [
                (cache.tensor.view(torch.int8).view(-1, cache.page_size_bytes),
                 self.region.create_next_worker_view(cache.page_size_bytes))
                for cache in kv_caches.tensors]

        def copy(self, job_id, ids, forth):
            for block, chunk in ids:
                for blocks, chunks in self.pairs:
                    if forth:
                        chunks[chunk].copy_(blocks[block])
                    else:
                        blocks[block].copy_(chunks[chunk])
            self.done.append(TransferResult(job_id, True, 0, 0.0))
            return True

        def submit_store(self, job_id, src_spec, dst_spec):
            return self.copy(job_id, zip(src_spec.block_ids, dst_spec.chunk_ids), True)

        def submit_load(self, job_id, src_spec, dst_spec):
            return self.copy(job_id, zip(dst_spec.block_ids, src_spec.chunk_ids), False)

        def get_finished(self):
            done, self.done = self.done, []
            return done

        def wait(self, job_ids):
            pass

    TieringOffloadingSpec.get_worker = lambda spec, kv_caches: Worker(spec, kv_caches)


def content(key):
    return (key * CHUNK)[:CHUNK]


def keys_of(name, count=CHUNKS):
    return [f"{name}{n}".encode().ljust(32, b".") + bytes(4) for n in range(count)]


def direct(host, keys):
    """A job of the tier itself: starts to load the keys to the first chunks."""
    import numpy
    from vllm.v1.kv_offload.tiering.base import TransferJob
    host.tier.submit_load(TransferJob(77, keys, numpy.arange(len(keys), dtype=numpy.int32), True,
                                      host.new_request()))


def ended(host):
    """[success, keys that were loaded, seconds] of that job."""
    began = time.monotonic()
    host.tier.drain_jobs()
    [result] = host.tier.get_finished_jobs()
    return [result.success, [key.decode().split(".")[0] for key in result.successful_keys or ()],
            time.monotonic() - began]


def drive(spec, pids, *sockets):
    spec, pids, told = json.loads(spec), json.loads(pids), {}
    extra = [{"engine_start": False, "engine_socket": socket, "timeout_ms": 20000,
              "exists_timeout_ms": 20000} for socket in sockets]
    a, b = (Host(name, {**spec, **more}) for name, more in zip("ab", extra))
    told["paths"] = [host.tier._memory.paths for host in (a, b)]
    keys = keys_of("k")
    a.store(keys)
    told["other host"] = b.load([*keys, *keys_of("none", 1)])

    others = [Host("other", {**spec, **extra[1]}, **changed) for changed in (
        {"kv_cache_layout": "HND"}, {"worker_kv_bytes_per_block": CHUNK // 2})]
    told["other layout, other length"] = [host.load(keys[:1]) for host in others]
    told["other prefix"] = Host("other", {**spec, **extra[1], "prefix": "x"}).load(keys[:1])

    keys = keys_of("short", 3)
    a.store(keys)
    session, space = a.tier._session, a.tier._space
    session.remove(space, keys[1:2], 20000)
    half = (b"x" * CHUNK)[:CHUNK // 2]
    from peercache.places import place
    kept = []
    ptr, nbytes = place(half, None, False, kept)
    assert session.set(space, keys[1:2], [ptr], nbytes, 20000) == [True]
    told["wrong length"] = b.load(keys)

    keys = keys_of("evicted", 3)
    a.store(keys)
    request = b.new_request()
    told["hits"] = []
    for key in keys:
        while (found := b.tier.lookup(key, request).name) == "RETRY":
            b.tier.on_schedule_end(b.end)
        told["hits"].append(found)
    session.remove(space, keys[1:2], 20000)
    direct(b, keys)
    told["evicted"] = ended(b)
    told["then"] = [b.tier.lookup(key, request).name for key in keys]

    keys = keys_of("killed", 3)
    a.store(keys)
    os.kill(pids[1], signal.SIGSTOP)
    direct(b, keys)
    os.kill(pids[1], signal.SIGKILL)
    told["killed"] = ended(b)
    told["goes on"] = b.load(keys)
    for host in (a, b, *others):
        host.manager.shutdown()
    told["left"] = [name for name in os.listdir("/dev/shm") if str(os.getpid()) in name]
    print("told", json.dumps(told), flush=True)


def config_of_page():
    """--kv-transfer-config of the page, and its words of the tier that name no host."""
    with open(os.path.join(ROOT, "engine/client/python/VLLM.md"), encoding="utf-8") as file:
        [text] = re.findall(r"--kv-transfer-config '(\{.*?\})'", file.read(), re.S)
    config = json.loads(text)
    [spec] = config["kv_connector_extra_config"]["secondary_tiers"]
    return config, {name: spec[name] for name in ("type", "module_path")}


class Tier(Served):
    def test_vllm_reads_what_another_host_has_computed(self):
        (config, spec), number = config_of_page(), itertools.count()

        def mode(engines, node):
            name = f"test-{os.getpid()}-{next(number)}"
            self.addCleanup(lambda: [os.unlink(path) for path in glob.glob(
                f"/dev/shm/vllm_offload_{name}*")])  # vLLM is killed
            config["engine_id"] = name
            config["kv_connector_extra_config"].update(
                cpu_bytes_to_use=64 << 20, secondary_tiers=[{
                    **spec, "engine_start": False, "engine_socket": engines.sockets[node],
                    "timeout_ms": 20000, "exists_timeout_ms": 20000}])
            return json.dumps(config)

        # also the last block, of which vLLM computes one token again
        self.check_two_hosts(mode, sum(PROMPTS.values()) // BLOCK, [192, 1024],
                             ["engine.unsealed_memory=yes"])

    def test_the_tiering_classes(self):
        config, spec = config_of_page()
        self.assertEqual(config["kv_connector_extra_config"]["spec_name"], "TieringOffloadingSpec")
        engines = self.start(2, pool_bytes="64MiB", settings=["engine.unsealed_memory=yes"])
        done = harness.run(
            [self.python, __file__, "drive", json.dumps(spec),
             json.dumps([process.pid for process in engines.process]), *engines.sockets], 400,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            env={**os.environ, "PYTHONPATH": PACKAGE})
        self.assertIn("\ntold ", done.stdout, done.stdout[-6000:])
        told = json.loads(done.stdout.split("\ntold ")[1].splitlines()[0])
        print(told)
        self.assertEqual(told["paths"], [{"vllm": "shm"}] * 2)
        self.assertEqual(told["other host"], ["right"] * CHUNKS + ["MISS"])
        self.assertEqual(told["other layout, other length"], [["MISS"]] * 2)
        self.assertEqual(told["other prefix"], ["MISS"])
        self.assertEqual(told["wrong length"], ["right", "MISS", "right"])
        self.assertEqual(told["hits"], ["HIT"] * 3)
        self.assertEqual(told["evicted"][:2], [False, ["evicted0", "evicted2"]])
        self.assertEqual(told["then"], ["HIT", "MISS", "HIT"])
        self.assertEqual(told["killed"][:2], [False, []])
        self.assertEqual(told["goes on"], ["MISS"] * 3)
        self.assertEqual(told["left"], [])


if __name__ == "__main__":
    sys.exit(drive(*sys.argv[2:]) if sys.argv[1:2] == ["drive"] else main(Tier))
