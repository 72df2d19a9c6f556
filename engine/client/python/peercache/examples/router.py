# SPDX-License-Identifier: Apache-2.0
"""`python -m peercache.examples.router TRACE`: a small router, beside round-robin.

Replays the requests of a trace (Mooncake's format: timestamp in ms, hash_ids of the prompt's
blocks) over the engines of $PEERCACHE_SOCKETS, as if each had a server: the chosen host stores the
pages that no host has. Prints what part of the prompts' pages some host has, and what part the
chosen host itself has, which costs no network. One thread.
"""

import argparse
import json
import os
import sys
from typing import Iterable, Iterator, Optional, Sequence

from peercache import Session
from peercache.routers import Directory

SPACE = "router example"
PAGE = 4096  # bytes of a page that stands for a block
REMOTE = 0.5  # cost of a page that another host has; 1: of a page that is computed
BLOCK_MS = 25.0  # of a server, to compute a block


class Router:
    """Chooses the host of least cost: the work that waits there, what it must compute, and what it
    must fetch. Hosts are known by ref."""

    def __init__(self, hosts: Sequence[str]) -> None:
        self.waits = dict.fromkeys(hosts, 0.0)  # work of each host, in blocks
        self.now_ms = 0.0

    def choose(self, blocks: int, prefix: int, pages: dict[str, int], now_ms: float) -> str:
        """The host for a prompt of `blocks`, of which the cluster has the first `prefix`, and each
        host the number in `pages`."""
        done = max(0.0, now_ms - self.now_ms) / BLOCK_MS
        self.now_ms = max(self.now_ms, now_ms)
        for host in self.waits:
            self.waits[host] = max(0.0, self.waits[host] - done)

        def cost(host: str) -> float:
            return blocks - prefix + REMOTE * (prefix - min(prefix, pages.get(host, 0)))

        chosen = min(self.waits, key=lambda host: self.waits[host] + cost(host))
        self.waits[chosen] += cost(chosen)
        return chosen


class RoundRobin(Router):
    """Every host in its turn."""

    def choose(self, blocks: int, prefix: int, pages: dict[str, int], now_ms: float) -> str:
        self.waits = dict(list(self.waits.items())[1:] + list(self.waits.items())[:1])
        return next(iter(self.waits))


def read(path: str, most: int) -> Iterator[tuple[float, list[str]]]:
    """Time and keys of each of the first `most` requests."""
    with open(path, encoding="ascii") as file:
        for _, line in zip(range(most), file):
            request = json.loads(line)
            yield float(request["timestamp"]), [f"block {n}" for n in request["hash_ids"]]


def replay(requests: Iterable[tuple[float, list[str]]], sockets: Sequence[str],
           policy: type[Router]) -> dict[str, float]:
    """Parts of all blocks: that some host has, in front of the first that none has ("hits"), and
    that the chosen host has of these ("own"). The engines are emptied first."""
    sessions = {}
    for socket in sockets:
        session = Session(socket)
        sessions[json.loads(session.report())["incarnation"][-8:]] = session
        session.clear(None, 60000)
    memory = {host: session.alloc(PAGE) for host, session in sessions.items()}
    directory = Directory(next(iter(sessions.values())))
    router = policy(list(sessions))
    blocks = hits = own = 0
    for now_ms, keys in requests:
        found = directory.match(SPACE, keys)
        has = {holder["ref"]: holder["pages"] for holder in found["holders"]}
        host = router.choose(len(keys), found["prefix"], has, now_ms)
        blocks += len(keys)
        hits += found["prefix"]
        own += min(found["prefix"], has.get(host, 0))
        rest = keys[found["prefix"]:]
        if rest:
            sessions[host].set(SPACE, rest, [memory[host]] * len(rest), PAGE, 60000)
    for session in sessions.values():
        session.close()
    return {"blocks": blocks, "hits": hits / max(1, blocks), "own": own / max(1, blocks)}


def main(words: Optional[Sequence[str]] = None) -> int:
    """Prints both policies."""
    parser = argparse.ArgumentParser(description="A small router beside round-robin.")
    parser.add_argument("trace")
    parser.add_argument("--requests", type=int, default=1 << 40)
    options = parser.parse_args(words)
    sockets = os.environ.get("PEERCACHE_SOCKETS", "").split(",")
    for name, policy in (("round-robin", RoundRobin), ("router", Router)):
        figures = replay(read(options.trace, options.requests), sockets, policy)
        print(f"{name}: of {figures['blocks']} blocks, {figures['hits']:.4f} hits, "
              f"{figures['own']:.4f} on the chosen host")
    return 0


if __name__ == "__main__":
    sys.exit(main())
