# SPDX-License-Identifier: Apache-2.0
"""Tensor-parallel ranks of SGLang on the CPU.

    python rank.py DRIVER JSON    runs a process for each rank; exit status 0 if all ranks had 0
    python rank.py --import       imports everything that ranks and servers of the newest version
                                  import

DRIVER is the module with the class Rank: controller or tree. JSON is a list with one dict per rank,
its plan: tp_rank, tp_size, rendezvous (a file for torch), errors (a file for its output) and socket
(number of a descriptor). A rank answers each JSON line on its socket, the name of a method ("do")
and its arguments, with one JSON line. The process imports SGLang once and then forks the ranks,
because the import takes many times as long as the tests.
"""

import gc
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
    """Imports a driver and returns its class Rank."""
    found = importlib.import_module(name).Rank
    foreign.install_kernels()
    return found


def serve(rank_class, plan, lines):
    """Answers a rank's requests until the socket closes. Returns the rank's exit status.

    An exception is answered with its text, and ends the rank.
    """
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
    """Forks a rank and returns its process id.

    The rank closes the sockets of the other ranks, so that the test reads the end of a socket when
    the rank of that socket has ended.
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
    os._exit(serve(rank_class, plan, mine.makefile("rw")))  # does not wait for daemon threads


def main():
    if sys.argv[1] == "--import":
        with tempfile.TemporaryDirectory() as folder:
            driver("tree")({"tp_rank": 0, "tp_size": 1, "rendezvous": folder + "/rendezvous"}
                           ).make_device_pools()
        importlib.import_module("sglang.srt.entrypoints.http_server")
        return 0
    rank_class = driver(sys.argv[1])
    plans = json.loads(sys.argv[2])
    sockets = {plan["socket"]: socket.socket(fileno=plan["socket"]) for plan in plans}
    gc.collect()
    gc.freeze()  # no rank searches what was imported for garbage, which would also copy its memory
    ranks = [fork(rank_class, plan, sockets) for plan in plans]
    for each in sockets.values():
        each.close()
    return max(os.waitstatus_to_exitcode(os.waitpid(rank, 0)[1]) != 0 for rank in ranks)


if __name__ == "__main__":
    sys.exit(main())
