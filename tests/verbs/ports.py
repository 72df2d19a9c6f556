# SPDX-License-Identifier: Apache-2.0
"""Shared by the tests that run whole programs on emulated ConnectX ports."""

import os
import subprocess
import sys
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "tools"))
import cluster  # noqa: E402

BUILD = cluster.default_build()
SLOW = float(os.environ.get("PEERCACHE_SLOW", "1"))
BEFORE = [os.path.join(ROOT, "tools", "soft-connectx"), "--library",
          cluster.find_program(BUILD, "tests/connectx/libsoftconnectx.so")]


def need(*programs):
    """Exits with 77, which meson counts as skipped, when a program is missing."""
    missing = [p for p in programs if not any(
        os.access(os.path.join(d, p), os.X_OK) for d in os.environ["PATH"].split(":"))]
    if missing:
        print(f"skipped: {', '.join(missing)} not found; apt-get install ibverbs-utils perftest")
        sys.exit(77)


def command(options, *arguments):
    return [*BEFORE, *options, *map(str, arguments)]


def run(options, *arguments, seconds=120, **more):
    return subprocess.run(command(options, *arguments), capture_output=True, text=True,
                          timeout=seconds * SLOW, **more)


def listening(port):
    with open("/proc/net/tcp") as four, open("/proc/net/tcp6") as six:
        rows = [line.split() for line in [*four, *six]]
    return any(r[1].endswith(f":{port:04X}") and r[3] == "0A" for r in rows if len(r) > 3)


def pair(options, *arguments, seconds=120, env=None):
    """Runs a server and a client of one program; returns both exit statuses and their output."""
    port = cluster.free_port()
    line = command(options, *arguments, "-p", port)
    server = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              env=env)
    try:
        end = time.monotonic() + seconds * SLOW
        while not listening(port) and server.poll() is None and time.monotonic() < end:
            time.sleep(0.02)
        client = subprocess.run([*line, "localhost"], stdout=subprocess.PIPE, text=True,
                                stderr=subprocess.STDOUT, timeout=seconds * SLOW, env=env)
        out, _ = server.communicate(timeout=seconds * SLOW)
    finally:
        server.kill()
        server.wait()
    return client.returncode, server.returncode, client.stdout + "\n--- server\n" + out

