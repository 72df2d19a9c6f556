# SPDX-License-Identifier: Apache-2.0
"""A program that plays an engine for tests of the keeper: a test tells it what to do, step by step.

    played_engine.py STAGE [ARGUMENT]...

It connects to the Unix socket STAGE, sends one JSON line about itself, and then obeys JSON lines,
each with one answer line:
  {"op": "tell", "text": ..., "files": [...]}  sends a message to NOTIFY_SOCKET; a file is
        "memfd:TEXT", "pipe" (its read end; the write end stays open here) or "broken pipe"
        (its write end is closed); "raw": the text as a list of byte values
  {"op": "barrier"}   sends BARRIER=1 and answers when the other side has closed the descriptor
  {"op": "read", "name": ...}  answers with the content of the passed descriptor of that name
  {"op": "ignore"}    ignores SIGTERM from now on
  {"op": "exit", "status": N}, {"op": "signal", "number": N}  ends
On SIGTERM it exits with status 0.
"""

import array
import json
import os
import select
import signal
import socket
import sys


def passed():
    """{name: descriptor} of LISTEN_FDS, in its order."""
    names = os.environ.get("LISTEN_FDNAMES", "").split(":")
    count = int(os.environ.get("LISTEN_FDS", "0"))
    return [(names[i], 3 + i) for i in range(count)]


def make(what, kept):
    """Makes one descriptor to send. Other ends that must stay open are added to `kept`."""
    if what.startswith("memfd:"):
        fd = os.memfd_create("played")
        os.write(fd, what[len("memfd:"):].encode())
        return fd
    read_end, write_end = os.pipe()
    if what == "pipe":
        kept.append(write_end)
    else:
        os.close(write_end)
    return read_end


def tell(data, fds=()):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as to:
        to.connect(os.environ["NOTIFY_SOCKET"])
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
        to.sendmsg([data], rights)


def barrier():
    read_end, write_end = os.pipe()
    tell(b"BARRIER=1", [write_end])
    os.close(write_end)
    poll = select.poll()
    poll.register(read_end, 0)
    poll.poll()
    os.close(read_end)


def obey(order, fds, kept):
    op = order["op"]
    if op == "tell":
        sent = [make(what, kept) for what in order.get("files", ())]
        try:
            tell(bytes(order["raw"]) if "raw" in order else order["text"].encode(), sent)
        except OSError as error:
            return error.errno
        finally:
            for fd in sent:
                os.close(fd)
    elif op == "barrier":
        barrier()
    elif op == "read":
        return [os.pread(fd, 4096, 0).decode() for name, fd in fds if name == order["name"]]
    elif op == "ignore":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    elif op == "exit":
        os._exit(order["status"])
    elif op == "signal":
        if order["number"] != signal.SIGKILL:
            signal.signal(order["number"], signal.SIG_DFL)
        os.kill(os.getpid(), order["number"])
    return None


def main():
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    fds, kept = passed(), []
    open_fds = sorted(int(n) for n in os.listdir("/proc/self/fd"))[:-1]  # the last: the listing's
    stage = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    stage.connect(sys.argv[1])
    with stage.makefile("rw", encoding="utf-8") as lines:
        about = {"pid": os.getpid(), "argv": sys.argv[2:], "names": [name for name, _ in fds],
                 "listen_pid": os.environ.get("LISTEN_PID"), "open": open_fds,
                 "blocked": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, []))}
        print(json.dumps(about), file=lines, flush=True)
        for line in lines:
            print(json.dumps(obey(json.loads(line), fds, kept)), file=lines, flush=True)


main()
