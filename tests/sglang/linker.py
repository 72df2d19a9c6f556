# SPDX-License-Identifier: Apache-2.0
"""Drives SGLang's external cache linker on the CPU: device pools and the store, without host pools.

SGLang's own code makes the linker from its configuration, and the tree stores what is inserted and
asks for what it lacks. The configuration is that of the launch line in LINKER.md.
"""

import argparse
import os
import re
import shlex
from types import SimpleNamespace

import torch

import tree
from pages import content
from sglang.srt import runtime_context
from sglang.srt.mem_cache import base_prefix_cache as base
from sglang.srt.mem_cache import registry
from sglang.srt.server_args import ServerArgs


PAGE = os.path.join(os.path.dirname(os.path.abspath(__file__)),
                    "../../engine/client/python/LINKER.md")


def launch_line():
    """What SGLang makes of the arguments in LINKER.md."""
    with open(PAGE, encoding="utf-8") as file:
        line = re.search("^    python3 -m sglang.launch_server (.*?)\n\n", file.read(), re.M | re.S)
    parser = argparse.ArgumentParser()
    ServerArgs.add_cli_args(parser)
    return parser.parse_args(shlex.split(line[1].replace("\\\n", " ")))


class Event:
    """In place of a GPU's event: what the CPU has done is done."""

    def record(self, _stream=None):
        pass

    def synchronize(self):
        pass


class Request:
    """A scheduler's request: what is not set here is None."""

    swa_host_hit_length = mamba_host_hit_length = 0

    def __init__(self, rid):
        self.rid = rid

    def __getattr__(self, _name):
        return None


class Rank(tree.Rank):
    """As of tree.py; the store is the linker's."""

    def publish(self, **plan):
        line = launch_line()
        config = {**line.unified_cache_external_linker_config}
        config["linker_extra_config"] = {
            name: value for name, value in plan["extra"].items()
            if name in ("engine_socket", "engine_start")}
        self.args = ServerArgs(
            model_path="dummy", served_model_name="model", device="cpu", tp_size=self.ranks,
            page_size=plan["page_size"], unified_cache_external_linker_config=config,
            enable_unified_cache_external_linker=line.enable_unified_cache_external_linker,
            unified_cache_external_linker_backend=line.unified_cache_external_linker_backend)
        self.args._mamba_cache_chunk_size = 64
        runtime_context.publish(self.args, role="scheduler",
                                ranks=runtime_context.SpawnRanks(world_rank=self.rank))
        if not hasattr(torch.cpu, "Event"):
            torch.cpu.Event = Event

    def make(self, **plan):
        made = super().make(**plan)
        self.tree.cache_controller = None
        return made

    def tree_of(self, params):
        worker = SimpleNamespace(register_hicache_layer_transfer_counter=lambda _counter: None,
                                 model_runner=SimpleNamespace(forward_stream=None))
        made = registry.create_tree_cache(registry.TreeCacheBuildContext(
            server_args=self.args, params=params, tp_worker=worker, model_config=None,
            is_hybrid_swa=self.pool.window is not None, disable_radix_cache=False,
            is_hybrid_ssm=self.pool.requests is not None, enable_hierarchical_cache=False,
            tp_size=self.ranks, tp_rank=self.rank, tp_group=None))
        self.linker = made.linker.cache_linker
        made.cache_controller = SimpleNamespace(
            mem_pool_host=SimpleNamespace(entries=()), storage_backend=self.linker.store)
        return made

    def alive(self):
        return True

    def idle(self):
        return not self.tree.linker.pending_offloads

    def device_rank(self):
        return 0 if self.linker.group.rank_replicated else self.rank

    def fetch(self, seed, pages, lose=False):
        """Runs a request for these pages, and compares them in the device pools.

        lose: the pages are removed between the look-up and the load; "once": the first READ of
        some of them fails.
        """
        self.requests += 1
        request = Request(f"request{self.requests}")
        found = self.tree.match_prefix(base.MatchPrefixParams(key=self.key(seed, pages),
                                                              req=request))
        request.last_node = found.last_device_node
        loaded, _ = self.tree.init_load_back(base.InitLoadBackParams(
            best_match_node=found.best_match_node, host_hit_length=found.host_hit_length,
            req=request))
        indices = self.tree.linker.private_load_indices.get(request.rid)
        if lose == "once":  # every third page; the engine has it when it is READ again
            move = self.store._move

            def moved(what, pool, keys, at):
                done = [i % 3 > 0 for i in range(len(keys))]
                self.store._move = move
                rest = [i for i, kept in enumerate(done) if kept]
                some = move(what, pool, [keys[i] for i in rest],
                            at.reshape(-1, pool.page_size)[rest].reshape(-1))
                return [kept and some[rest.index(i)] for i, kept in enumerate(done)]

            self.store._move = moved
        elif lose:
            self.store.clear()
        index = self.tree.ready_to_load_host_cache()
        for layer in range(self.linker.group.num_layers if index >= 0 else 0):
            self.linker.layer_done_counter.set_consumer(index)
            self.linker.layer_done_counter.wait_until(layer)
        failed = self.tree.linker.finish_loads()
        wrong = 0 if indices is None else self.pool.wrong(
            indices, lambda buffer: content(seed, buffer, self.device_rank()))
        return {"pages": loaded // self.page_size, "aborted": len(failed), "wrong": wrong}

    def counts(self):
        return {"alive": True, "stats": "", **self.store.counts()}
