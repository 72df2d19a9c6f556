# SPDX-License-Identifier: Apache-2.0
"""Shared by the cluster tests: the build's programs, a cluster per test, waiting for conditions.

Each test file is a meson test of suite "cluster" and runs real engines and clients.
$PEERCACHE_BUILD is the build folder; $PEERCACHE_SLOW multiplies every deadline (sanitizer builds).
Limits of waits are seconds of clock(), which goes slower on a busy machine: they find hangs, and no
test fails because others run beside it. A bound on when something happens allows for the time that
the engines waited for a processor: starved().
"""

import contextlib
import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "tools"))
import cluster  # noqa: E402

BUILD = cluster.default_build()
POOL = "64MiB"  # of each engine of start(): engines populate their pools
SLOW = float(os.environ.get("PEERCACHE_SLOW", "1"))
clock = cluster.clock
TRACE = os.path.join(ROOT, "..", "shared", "data", "conversation_trace.jsonl")


def patient(settings=()):
    """The settings, and a cluster.dead_after_ms that is long, unless they have one. An owner that
    owes an answer for a tenth of it is suspect, and sets do without it: that must not happen to
    engines that only wait for a processor."""
    if any(setting.startswith("cluster.dead_after_ms=") for setting in settings):
        return list(settings)
    return [f"cluster.dead_after_ms={int(30000 * SLOW)}", *settings]


def program(name):
    return cluster.find_program(BUILD, name)


def tool(name, *arguments, sockets=None, **options):
    """Starts a tool of the build; returns the Popen."""
    env = dict(os.environ)
    if sockets:
        env["PEERCACHE_SOCKETS"] = ",".join(sockets)
        env["PEERCACHE_SOCKET"] = sockets[0]
    return subprocess.Popen([program(name), *map(str, arguments)], env=env, text=True,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options)


def finish(process, seconds=300):
    out, err = cluster.communicate(process, seconds * SLOW)
    return process.returncode, out, err


def run(command, seconds=60, **options):
    """subprocess.run() of a program that ends within `seconds`; `data` is its input."""
    return cluster.run_limited(command, seconds * SLOW, **options)


def ended(process, seconds=60):
    """Waits until the process ends; returns its status."""
    return cluster.wait_end(process, seconds * SLOW)


def catches(process, number):
    """Has the process a handler of that signal?"""
    with open(f"/proc/{process.pid}/status", encoding="ascii") as status:
        caught = next(line.split()[1] for line in status if line.startswith("SigCgt"))
    return int(caught, 16) >> (number - 1) & 1


def end_early(process, number=signal.SIGTERM):
    """Sends the signal with which a tool ends early, once the tool is far enough to know it."""
    wait_for(lambda: process.poll() is not None or catches(process, number), 60, "a handler")
    process.send_signal(number)


def wait_for(condition, seconds, what):
    """Polls until condition() is true and returns its value; fails the test after `seconds` of
    clock()."""
    begun, end = time.monotonic(), clock() + seconds * SLOW
    while True:
        value = condition()
        if value:
            return value
        if clock() > end:
            raise AssertionError(f"not met within {seconds} s: {what} (last value: {value!r})")
        cluster.pause(begun)


def remove_folder(folder):
    """Removes a folder in which engines may be ending: they remove their sockets meanwhile."""
    def removed():
        try:
            shutil.rmtree(folder)
        except FileNotFoundError:
            return not os.path.exists(folder)
        return True
    wait_for(removed, 60, f"{folder} can be removed")


def main(at_once=4):
    """unittest.main() for tests that wait most of the time: each test runs in a process of its own,
    `at_once` of them at a time, and its output is shown when it ends. With the name of a test it is
    unittest.main()."""
    if any(not word.startswith("-") for word in sys.argv[1:]):
        unittest.main()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that engines are stopped
    tests, running, failed = list(all_tests()), {}, []
    at_once = max(1, int(at_once / SLOW))
    while tests or running:
        if tests and len(running) < at_once:
            test, output = tests.pop(0), tempfile.TemporaryFile()
            sys.stdout.flush()
            sys.stderr.flush()
            child = os.fork()
            if child == 0:
                alone()
                os.dup2(output.fileno(), 1)
                os.dup2(output.fileno(), 2)
                good = unittest.TextTestRunner(verbosity=2).run(test).wasSuccessful()
                signal.signal(signal.SIGTERM, signal.SIG_IGN)
                os.killpg(0, signal.SIGTERM)  # tools that a test has left, if it failed
                sys.exit(not good)
            running[child] = test, output
            continue
        child, status = os.wait()
        test, output = running.pop(child)
        output.seek(0)
        sys.stderr.write(output.read().decode(errors="replace"))
        output.close()
        if status:
            failed.append(test.id())
    print(f"{len(failed)} failed: {' '.join(failed)}" if failed else "OK", file=sys.stderr)
    sys.exit(bool(failed))


def alone():
    """Gives this process a session of its own, because the kernel shares the processors out among
    sessions. It ends when its parent does."""
    os.setsid()
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG


def all_tests():
    suites = [unittest.defaultTestLoader.loadTestsFromModule(sys.modules["__main__"])]
    while suites:
        for test in suites.pop(0):
            if isinstance(test, unittest.TestSuite):
                suites.append(test)
            else:
                yield test


def tasks(pid, name):
    """(number, text of that file in /proc) of each thread of the process that has not ended."""
    for task in map(int, os.listdir(f"/proc/{pid}/task")):
        with contextlib.suppress(OSError), \
                open(f"/proc/{pid}/task/{task}/{name}", encoding="ascii") as file:
            yield task, file.read()


def freeze(process):
    """Stops a process, or the one with that number, and returns when all its threads have stopped.

    The signal stops the thread that takes it; on a busy machine the others run on for a while.
    """
    pid = getattr(process, "pid", process)

    def stopped():
        return {text.rsplit(")", 1)[1].split()[0] for _, text in tasks(pid, "stat")} == {"T"}

    os.kill(pid, signal.SIGSTOP)
    wait_for(stopped, 300, "all threads of the process have stopped")


# Plays an engine of the next version of the client protocol, as a child. When it has ended in
# order, the process becomes the command of its arguments, such as an engine of this version.
OTHER_PROTOCOL = """
import os, signal, socket, sys
child = os.fork()
if child:
    _, status = os.waitpid(child, 0)
    if status == 0:
        os.execv(sys.argv[2], sys.argv[2:])
    sys.exit(1)
signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
with open("/proc/self/comm", "w") as f:
    f.write("peercache-engine"[:15])
listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
if os.path.exists(sys.argv[1]):
    os.unlink(sys.argv[1])
listener.bind(sys.argv[1])
listener.listen()
print(os.getpid(), flush=True)
while True:
    client, _ = listener.accept()
    request = client.recv(32)
    if request:
        version = int.from_bytes(request[4:6], sys.byteorder) + 1
        reply = request[:4] + version.to_bytes(2, sys.byteorder) + request[6:12]
        client.send(reply.ljust(256, b"\\0"))
    client.close()
"""


class ClusterTest(unittest.TestCase):
    def start(self, nodes=2, pool_bytes=POOL, settings=(), **options):
        engines = cluster.Cluster(BUILD, nodes, pool_bytes, settings=patient(settings), **options)
        self.addCleanup(engines.stop)
        return engines.start()

    def stop_cleanly(self, engines):
        self.assertTrue(engines.stop(), "an engine did not end by itself with status 0")

    def replay(self, engines, *arguments, expect=0, seconds=300):
        """Runs the replay to its end; returns its summary."""
        process = tool("tools/peercache-bench", "replay", "--quiet", "--json", "-", *arguments,
                       sockets=engines.sockets)
        status, out, err = finish(process, seconds)
        self.assertEqual(status, expect, out + err)
        return json.loads(out[out.index("{"):])

    def cpu_share(self, engines):
        """The share of a core that the busiest of these engines uses, measured over 3 seconds."""
        def cpu(process):
            with open(f"/proc/{process.pid}/stat") as f:
                fields = f.read().rsplit(")", 1)[1].split()
            return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

        before, at = [cpu(p) for p in engines.process], time.monotonic()
        time.sleep(3)  # not a wait: CPU time is measured over this wall time
        spent = time.monotonic() - at
        return max((cpu(p) - b) / spent for p, b in zip(engines.process, before))

    def starved(self, engines):
        """Seconds that the threads of these engines and this process have waited for a processor:
        by the growth of this sum, what an engine does in time may be late on a busy machine."""
        waited = 0
        for process in (*filter(None, (p and p.pid for p in engines.process)), os.getpid()):
            for _, text in tasks(process, "schedstat"):  # none if the kernel does not tell
                waited += int(text.split()[1]) / 1e9
        return waited

    def assert_idle(self, engines):
        """Asserts that each engine uses less than 5 % of a core once its pending work is done."""
        shares = []
        while not shares or shares[-1] >= 0.05:
            self.assertLess(len(shares), 6, shares)
            shares.append(self.cpu_share(engines))

    def describe(self, *arguments):
        status, out, err = finish(tool("tools/peercache-bench", "replay", "--describe", *arguments))
        self.assertEqual(status, 0, err)
        return json.loads(out)


