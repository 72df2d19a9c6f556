# SPDX-License-Identifier: Apache-2.0
"""Forks servers of SGLang from one process that has imported it.

    serve.py     reads one JSON line for each server from its standard input

A line has: "line", the words of a launch line after `python3 -m`; "env", variables to set; "path",
folders of more packages, such as peercache; "namespace", the file of a network namespace; "log", a
file for the output. The answer is a JSON
line with the server's process id. A forked process runs the launch line as `python3 -m` does, and
SGLang forks its scheduler and detokenizer, where it would spawn them: three processes of each
server would otherwise import SGLang anew, 15 s of a processor each. The servers end with this
process.
"""

import ctypes
import gc
import json
import multiprocessing
import os
import runpy
import signal
import sys
import threading
import traceback

sys.path.append(os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "sglang"))
import foreign  # noqa: E402

foreign.install()
LIBC = ctypes.CDLL(None, use_errno=True)
PR_SET_PDEATHSIG = 1
IMPORTED = ("sglang.srt.entrypoints.http_server", "sglang.srt.managers.scheduler",
            "sglang.srt.managers.detokenizer_manager", "sglang.srt.model_loader.loader",
            "sglang.srt.models.llama", "sglang.srt.models.minicpm3")


def become(request):
    """Turns a forked process into the server of a request. Does not return."""
    os.setsid()
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    log = os.open(request["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((nothing, 0), (log, 1), (log, 2)):
        os.dup2(source, target)
    namespace = os.open(request["namespace"], os.O_RDONLY)
    if LIBC.setns(namespace, 0):
        raise OSError(ctypes.get_errno(), "setns", request["namespace"])
    os.environ.update(request["env"])
    sys.path[:0] = request["path"]
    sys.argv = list(request["line"])
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


def fork(request):
    """Forks a server; returns its process id."""
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        become(request)
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:  # pylint: disable=broad-except
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def main():
    multiprocessing.set_start_method("fork")
    multiprocessing.set_start_method = lambda *_, **__: None  # SGLang would set "spawn"
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for name in IMPORTED:
        __import__(name)
    foreign.install_kernels()
    foreign.install_transfer()
    if threading.active_count() > 1:
        raise RuntimeError(f"fork() would lose these threads: {threading.enumerate()}")
    gc.collect()
    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel forgets servers that have ended
    for line in sys.stdin:
        answers.write(json.dumps({"pid": fork(json.loads(line))}) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
