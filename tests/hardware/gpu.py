#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Proves on a machine with a GPU that pages go to and come from its memory, and how fast.

Two engines ($PEERCACHE_SOCKETS, or it starts some of this build with the devices of --device).
1,000 pages are set from GPU memory at the first one and read into it at both, every byte is
compared, and the rates stand beside those of cudaMemcpy (pageable memory). Prints JSON. `way`:
direct: NICs write into GPU memory; staged: they cannot, and `why`. Without a GPU the status is 77.

    PEERCACHE_BUILD=$PWD/build/release tests/hardware/gpu.py --device mlx5_0
"""

import argparse
import ctypes
import json
import os
import sys
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BUILD = os.environ.get("PEERCACHE_BUILD", os.path.join(ROOT, "build", "release"))
sys.path[:0] = [os.path.join(BUILD, "engine/client/python"), os.path.join(ROOT, "tests/cluster")]
BATCH, MS = 64, 30000


class Gpu:
    """The first GPU, by the CUDA driver alone."""

    def __init__(self):
        self.cuda = ctypes.CDLL("libcuda.so.1")
        device, context = ctypes.c_int(), ctypes.c_void_p()
        self.call("cuInit", 0)
        self.call("cuDeviceGet", ctypes.byref(device), 0)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self.call("cuCtxPushCurrent_v2", context)
        name = ctypes.create_string_buffer(128)
        self.call("cuDeviceGetName", name, 128, device)
        self.name = name.value.decode()

    def call(self, name, *args):
        status = getattr(self.cuda, name)(*args)
        if status:
            raise OSError(f"{name}: CUDA error {status}")

    def alloc(self, nbytes):
        at = ctypes.c_uint64()
        self.call("cuMemAlloc_v2", ctypes.byref(at), ctypes.c_size_t(nbytes))
        return at.value

    def copy(self, to, source, nbytes):
        self.call("cuMemcpy", ctypes.c_uint64(to), ctypes.c_uint64(source),
                  ctypes.c_size_t(nbytes))


def rate(nbytes, work):
    began = time.monotonic()
    work()
    return round(nbytes / (time.monotonic() - began) / 1e9, 2)


class Proof:
    def __init__(self, gpu, sockets, pages, nbytes, offset):
        from peercache import Session  # of the build
        self.gpu, self.pages, self.nbytes, self.all = gpu, pages, nbytes, pages * nbytes
        self.memory = gpu.alloc(self.all + 2 * offset) + offset
        self.host = ctypes.create_string_buffer(self.all)
        self.at = ctypes.addressof(self.host)
        self.data = os.urandom(self.all)
        self.keys = [f"gpu-{os.getpid()}-{n}" for n in range(pages)]
        self.sessions = [Session(socket, "sample", 10) for socket in sockets]
        self.why = [session.register(self.memory, self.all, -1) for session in self.sessions]

    def pages_at(self, base):
        """Two segments for each page, as keys and values have."""
        half = self.nbytes // 2
        return [base + n * half for n in range(2 * self.pages)], half

    def calls(self, verb, base):
        """Calls get or set for all pages, BATCH at a time. Returns the number of hits."""
        ptrs, half = self.pages_at(base)
        return sum(sum(verb("gpu", self.keys[i:i + BATCH], ptrs[2 * i:2 * (i + BATCH)], half, MS))
                   for i in range(0, self.pages, BATCH))

    def read(self, session, base):
        """Reads all pages to `base`. Returns hits, wrong pages and the rate."""
        self.fill(bytes(self.all))
        hits = []
        speed = rate(self.all, lambda: hits.append(self.calls(session.get, base)))
        if base != self.at:
            self.gpu.copy(self.at, base, self.all)
        got = self.host.raw
        wrong = sum(got[i:i + self.nbytes] != self.data[i:i + self.nbytes]
                    for i in range(0, self.all, self.nbytes))
        return {"hit": hits[0], "wrong": wrong, "GB/s": speed}

    def fill(self, data):
        ctypes.memmove(self.at, data, self.all)
        self.gpu.copy(self.memory, self.at, self.all)

    def refused(self, session):
        """The texts of calls that a CPU would have to copy: staged, and a part of a range."""
        texts = []
        for at, staged in ((self.memory, True), (self.memory + self.all - self.nbytes + 1, False)):
            for verb in (session.get, session.set):
                hits = verb("gpu", self.keys[:1], [at], self.nbytes, MS, staged)
                texts.append("hit" if any(hits) else session.failures()["invalid"][2])
        return texts

    def run(self):
        first, second = self.sessions
        self.fill(self.data)
        report = {"gpu": self.gpu.name, "pages": self.pages, "page_bytes": self.nbytes,
                  "way": "staged" if self.why[1] else "direct", "why": self.why[1] or "",
                  "cudaMemcpy to GPU, GB/s": rate(
                      self.all, lambda: self.gpu.copy(self.memory, self.at, self.all)),
                  "cudaMemcpy from GPU, GB/s": rate(
                      self.all, lambda: self.gpu.copy(self.at, self.memory, self.all))}
        hits = []
        speed = rate(self.all, lambda: hits.append(self.calls(first.set, self.memory)))
        report["set"] = {"hit": hits[0], "GB/s": speed}
        report["get into host memory"] = self.read(second, self.at)
        before = second.counts()["bytes_staged"]
        for name in ("get", "get again"):
            report[name] = self.read(second, self.memory)
        report["bytes_staged"] = second.counts()["bytes_staged"] - before
        report["get at home"] = self.read(first, self.memory)
        report["failures"] = [session.failures() for session in self.sessions]
        report["refused"] = self.refused(second)
        for session in self.sessions:
            session.release(self.memory)
            session.close()
        return report


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--device", default="soft", help="of the engines that are started")
    parser.add_argument("--pages", type=int, default=1000)
    parser.add_argument("--page-bytes", type=int, default=131072)
    parser.add_argument("--offset", type=int, default=0, help="of the pages in a GPU's memory")
    options = parser.parse_args()
    try:
        gpu = Gpu()
    except (OSError, AttributeError) as error:
        print(f"no GPU here: {error}", file=sys.stderr)
        return 77
    sockets, engines = os.environ.get("PEERCACHE_SOCKETS"), None
    if not sockets:
        import harness
        pool = f"{4 * options.pages * options.page_bytes >> 20}MiB"
        engines = harness.cluster.Cluster(BUILD, 2, pool, device=options.device).start()
        sockets = ",".join(engines.sockets)
    try:
        report = Proof(gpu, sockets.split(","), options.pages, options.page_bytes,
                       options.offset).run()
    finally:
        if engines:
            engines.stop()
    if hasattr(gpu.cuda, "standInFlushes"):
        report["flushes"], report["pins"] = gpu.cuda.standInFlushes(), gpu.cuda.standInPins()
    print(json.dumps(report, indent=2))
    reads = [report[name] for name in ("get into host memory", "get", "get again", "get at home")]
    good = all(read["hit"] == options.pages and not read["wrong"] for read in reads)
    return 0 if good and report["set"]["hit"] == options.pages else 1


if __name__ == "__main__":
    sys.exit(main())
