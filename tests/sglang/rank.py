# SPDX-License-Identifier: Apache-2.0
"""Tensor-parallel ranks of SGLang on the CPU.

    python rank.py DRIVER JSON    a process for each rank; exit 0 when every rank exited with 0
    python rank.py --import       imports all that the newest version's ranks import; no engine

DRIVER is the module with the class Rank: controller or tree. The JSON has for each rank tp_rank,
tp_size, rendezvous (a file), errors (a file) and socket (its number). Each JSON line on the socket,
the name of a method and its arguments, is answered by one JSON line. SGLang is imported once and
ranks are forked, because the import takes many times as long as the tests.
"""

import importlib
import json
import os
import socket
import sys
import tempfile
import traceback

import foreign

foreign.install()


def driver(name):
    found = importlib.import_module(name).Rank
    foreign.install_kernels()
    return found


def serve(rank_class, plan, lines):
    """Serves the requests of a rank until the socket closes; returns its exit status."""
    def say(answer):
        lines.write(json.dumps(answer) + "\n")
        lines.flush()

    try:
        rank = rank_class(plan)
        say({"ready": True})
        for line in lines:
            request = json.loads(line)
            say(getattr(rank, request.pop("do"))(**request))
        rank.close()
    except Exception:  # pylint: disable=broad-except
        say({"failed": traceback.format_exc()})
        return 1
    return 0


def fork(rank_class, plan, sockets):
    """Forks a rank that keeps only its own socket, so that the reader of a socket notices its
    rank's end.
    """
    pid = os.fork()
    if pid:
        return pid
    errors = os.open(plan["errors"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(errors, 1)
    os.dup2(errors, 2)
    mine = sockets.pop(plan["socket"])
    for other in sockets.values():
        other.close()
    os._exit(serve(rank_class, plan, mine.makefile("rw")))  # joins no daemon threads


def main():
    if sys.argv[1] == "--import":
        with tempfile.TemporaryDirectory() as folder:
            driver("tree")({"tp_rank": 0, "tp_size": 1, "rendezvous": folder + "/rendezvous"}
                           ).make_device_pools()
        return 0
    rank_class = driver(sys.argv[1])
    plans = json.loads(sys.argv[2])
    sockets = {plan["socket"]: socket.socket(fileno=plan["socket"]) for plan in plans}
    ranks = [fork(rank_class, plan, sockets) for plan in plans]
    for each in sockets.values():
        each.close()
    return max(os.waitstatus_to_exitcode(os.waitpid(rank, 0)[1]) != 0 for rank in ranks)


if __name__ == "__main__":
    sys.exit(main())
