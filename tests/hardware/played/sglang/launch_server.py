# SPDX-License-Identifier: Apache-2.0
"""A played server of SGLang. With an engine, pages hit that a server with one had: $PLAYED_STORE.

    python3 -m sglang.launch_server --model-path played --port N [FLAG]...
"""

import json
import os
import pickle
import sys

from test_bench_served import Played

EXTRA = "--hicache-storage-backend-extra-config"


def value(flag):
    return sys.argv[sys.argv.index(flag) + 1]


class Kept(set):
    """Pages that are kept for the next server."""

    def update(self, pages):
        super().update(pages)
        with open(os.environ["PLAYED_STORE"], "wb") as file:
            pickle.dump(set(self), file)


def store():
    if "--disable-radix-cache" in sys.argv:
        return None
    config = json.loads(value(EXTRA))
    assert os.path.exists(config["engine_socket"]) and config["engine_start"] is False, config
    if not os.path.exists(os.environ["PLAYED_STORE"]):
        return Kept()
    with open(os.environ["PLAYED_STORE"], "rb") as file:
        return Kept(pickle.load(file))


if __name__ == "__main__":
    if value("--model-path") != "played":
        sys.exit(f"there is no model {value('--model-path')}")
    assert value("--tp") == "2"
    Played(store(), port=int(value("--port"))).thread.join()
