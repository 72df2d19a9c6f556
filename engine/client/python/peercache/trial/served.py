# SPDX-License-Identifier: Apache-2.0
"""What SGLang gains with a model of the user: `--model`. Main thread.

One server after the other: without a cache, then one on each engine. The last one begins with
empty L1 and L2, so what it hits was stored by the one before and comes over the NIC.
"""

import importlib.util
import json
import os
import shlex
import sys
import time
import urllib.request
from typing import Any, Optional

from peercache.trial.engines import Engines, free_port
from peercache.trial.frame import Answer, Failed, Trial, Unknown

START_SECONDS, SECONDS = 900.0, 3600.0  # of a server, and of its dialogues
DIALOGUES = ("--users", "4", "--turns", "3", "--prompt-max", "1000", "--seed", "7")


def flags(engines: Engines, i: Optional[int]) -> list[str]:
    """Those of the README's line, for engine i; None: without a cache."""
    if i is None:
        return ["--disable-radix-cache"]
    return ["--enable-hierarchical-cache", "--hicache-mem-layout", "page_first",
            "--hicache-storage-backend", "dynamic", "--hicache-storage-backend-extra-config",
            json.dumps({"backend_name": "peercache", "module_path": "peercache.store",
                        "class_name": "PeerCacheStore", "interface_v1": 1, "allocator": "shm",
                        "prefetch_threshold": 64, "engine_socket": engines.sockets[i],
                        "engine_start": False})]


def answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def measure(trial: Trial, engines: Engines, i: Optional[int]) -> Any:
    """The row of the dialogues' first run at a server that has just started. `bound_tokens` are of
    the second one: what can hit if another server has had all of them."""
    log, port = f"sglang-{i}.log", str(free_port())
    url = f"http://127.0.0.1:{port}"
    server = trial.start(
        [sys.executable, "-m", "sglang.launch_server", "--model-path",
         *shlex.split(trial.options.model), "--host", "127.0.0.1", "--port", port, "--page-size",
         "64", "--enable-cache-report", *flags(engines, i)], log,
        env={**os.environ, "PYTHONSAFEPATH": "1"})
    begun = time.monotonic()
    try:
        while not answers(url):
            if server.poll() is not None or time.monotonic() > begun + START_SECONDS:
                raise Unknown(f"the server of SGLang does not start: {trial.tail(log)}",
                              f"read {log} of the report")
            time.sleep(.2)
        found = trial.document([trial.program("peercache-bench"), "served", "--url", url,
                                *DIALOGUES, "--settle", "3" if i == 0 else "0", "--json", "-",
                                "--out-dir", trial.folder], "served.log", SECONDS)
    finally:
        trial.end(server)
    first, again = [row for row in found["rows"] if row["turn"] == "all"]
    return {**first, "bound_tokens": again["bound_tokens"]}


def serve(trial: Trial, engines: Engines) -> Answer:
    if not trial.options.model:
        raise Unknown("not requested", "run the trial with --model and the path of a model, by the "
                      "Python that has SGLang")
    if importlib.util.find_spec("sglang") is None:
        raise Unknown(f"{sys.executable} has no SGLang", "install the wheel beside SGLang, and run "
                      "its peercachectl")
    engines.need()
    without, _, other = rows = [measure(trial, engines, i) for i in (None, 0, 1)]
    ratio, hits = other["ttft_p50_ms"] / without["ttft_p50_ms"], other["hit_tokens"]
    trial.facts["served"] = {"ttft": ratio, "hits": hits / max(1, other["bound_tokens"])}
    text = (f"{hits} of {other['bound_tokens']} tokens that the other engine's server had stored "
            f"were hits; time to the first token p50 {other['ttft_p50_ms']:.0f} ms, without a cache"
            f" {without['ttft_p50_ms']:.0f} ms: {ratio:.2f}")
    if not hits:
        raise Failed(text, "give a larger --pool-bytes; read the logs of servers and engines")
    return Answer("yes", text, data=rows)
