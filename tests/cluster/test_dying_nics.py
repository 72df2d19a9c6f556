# SPDX-License-Identifier: Apache-2.0
"""NICs that die while READs are posted: the client's call returns, but not before the NIC can no
longer write to the buffer; a rail that is lost stays lost; an engine that cannot get the buffer
back aborts, and so does an engine whose loop has stopped.

The test is the client (libpeercache by ctypes): it reads pages of the second engine into memory
that is registered with the first one, whose software NIC dies by test.fault_file.
"""

import ctypes
import os
import signal
import subprocess
import tempfile
import threading
import time
import unittest

import harness

HIT = 0
PAGES, PAGE = 32, 65536
DEADLINE = 10.0  # s: a busy machine must bring the fault in before it is over
PATIENT = 30.0   # s: for calls of which all pages are hits, also on a machine that pauses
DESTROYED = 2.0  # s after the deadline: by then the queue pairs are destroyed
ABORTED = 7.0    # s after the deadline: by then the engine has aborted
SLACK = 10.0     # s more for a busy machine and for processes that start and end


class Options(ctypes.Structure):
    _fields_ = [("socket", ctypes.c_char_p), ("name_space", ctypes.c_char_p),
                ("no_reattach", ctypes.c_bool)]


class Segment(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("bytes", ctypes.c_size_t)]


class Page(ctypes.Structure):
    _fields_ = [("key", ctypes.c_char_p), ("key_bytes", ctypes.c_size_t),
                ("segments", ctypes.POINTER(Segment)), ("segment_count", ctypes.c_uint)]


class Client:
    """One session, one channel, memory for PAGES pages."""

    def __init__(self, socket):
        self.lib = ctypes.CDLL(harness.program("engine/client/libpeercache.so"))
        self.session, self.channel, memory = (ctypes.c_void_p() for _ in range(3))
        options = Options(socket=socket.encode(), no_reattach=True)
        self.good(self.lib.pc_open(ctypes.byref(options), ctypes.byref(self.session)))
        self.good(self.lib.pc_channel_open(self.session, ctypes.byref(self.channel)))
        self.good(self.lib.pc_memory_alloc(self.session, ctypes.c_size_t(PAGES * PAGE),
                                           ctypes.byref(memory)))
        self.memory = (ctypes.c_char * (PAGES * PAGE)).from_address(memory.value)
        self.segments = [Segment(memory.value + i * PAGE, PAGE) for i in range(PAGES)]
        self.keys = [b"page %d" % i for i in range(PAGES)]
        self.pages = (Page * PAGES)(*[
            Page(self.keys[i], len(self.keys[i]), ctypes.pointer(self.segments[i]), 1)
            for i in range(PAGES)])

    def good(self, status):
        assert status == 0, status

    def call(self, which, timeout):
        """Calls `which` for all pages; returns (results, seconds it took)."""
        results = (ctypes.c_int * PAGES)()
        begun = time.monotonic()
        self.good(which(self.channel, self.pages, PAGES, int(timeout * 1000), results))
        return list(results), time.monotonic() - begun

    def set(self):
        for i in range(PAGES):
            self.memory[i * PAGE:(i + 1) * PAGE] = bytes([i + 1]) * PAGE
        return self.call(self.lib.pc_set, PATIENT)[0]

    def get(self, timeout=DEADLINE):
        ctypes.memset(self.memory, 0, PAGES * PAGE)
        return self.call(self.lib.pc_get, timeout)

    def right(self):
        return all(self.memory[i * PAGE:(i + 1) * PAGE] == bytes([i + 1]) * PAGE
                   for i in range(PAGES))

    def close(self):
        self.lib.pc_channel_close(self.channel)
        self.lib.pc_close(self.session)


class FirstDies(harness.cluster.Cluster):
    """Two engines; only the first one has test.fault_file."""

    def __init__(self, faults, **options):
        super().__init__(harness.BUILD, 2, **options)
        self.faults = faults

    def command(self, i):
        more = [] if i else ["--set", "test.fault_file=" + self.faults]
        return super().command(i) + more


@unittest.skipIf(harness.SLOW > 1, "a library built for a sanitizer cannot be loaded by Python")
class NicsDie(harness.ClusterTest):
    def setUp(self):
        handle, self.faults = tempfile.mkstemp(prefix="peercache-faults-")
        os.close(handle)
        self.addCleanup(os.unlink, self.faults)

    def begin(self, rails=1):
        """Starts two engines, of which the second has all pages, and a client of the first one that
        has read them all; returns that client."""
        self.engines = FirstDies(self.faults, pool_bytes="64MiB", settings=[
            "rail.devices=" + ",".join(["soft"] * rails)])
        self.addCleanup(self.engines.stop)
        self.engines.start()
        writer = Client(self.engines.sockets[1])
        self.addCleanup(writer.close)
        self.assertEqual(writer.set(), [HIT] * PAGES, self.engines.log(1))
        reader = Client(self.engines.sockets[0])
        self.addCleanup(reader.close)
        harness.wait_for(lambda: reader.get()[0] == [HIT] * PAGES, 30, "all pages are read")
        self.assertTrue(reader.right())
        return reader

    def fault(self, text):
        with open(self.faults + ".new", "w") as f:
            f.write(text)
        os.rename(self.faults + ".new", self.faults)
        said = f"test.fault_file: {text or 'nothing is wrong any more'}"
        harness.wait_for(lambda: said in self.engines.log(0), 30, said)

    def state(self, rail=0):
        return self.engines.status(0)["rails"][rail]["state"]

    def dies(self, fault, deadline, within):
        """Lets the NIC die while READs are posted: the call must return in time, without a page."""
        reader, got = self.begin(), []
        self.fault("0:mute")
        call = threading.Thread(target=lambda: got.append(reader.get(deadline)), daemon=True)
        call.start()
        rail = "rail_in_flight_operations"
        harness.wait_for(lambda: self.engines.status(0)["rails"][0]["figures"][rail], 30, "posted")
        self.fault(f"0:{fault}")
        harness.wait_for(lambda: not call.is_alive(), within + 60, "pc_get() returns")
        results, seconds = got[0]
        self.assertNotIn(HIT, results)
        self.assertLess(seconds, within + SLACK * harness.SLOW)
        return reader

    def comes_back(self, reader):
        self.fault("")
        harness.wait_for(lambda: reader.get()[0] == [HIT] * PAGES, 30, "all pages are read again")
        self.assertTrue(reader.right())

    def test_flushed_work_requests_do_not_complete(self):
        reader = self.dies("numb", DEADLINE, DEADLINE + DESTROYED)
        self.assertIn("is not flushed; its queue pairs are destroyed", self.engines.log(0))
        self.comes_back(reader)

    def test_a_device_that_cannot_be_closed_aborts_the_engine(self):
        self.dies("dead", DEADLINE, DEADLINE + ABORTED)
        self.assertEqual(harness.ended(self.engines.process[0], 30), -signal.SIGABRT)
        self.assertIn("the engine aborts: rail 0: the NIC can neither be used nor closed",
                      self.engines.log(0))

    def test_one_lost_request_costs_one_retransmission_and_no_connection(self):
        reader = self.begin(rails=2)
        good = rounds = 0
        while good < 20:
            # A pause of the whole machine takes paths out of use, too, but not in each round.
            self.assertLess(rounds - good, 20)
            rounds += 1
            before = self.counters("paths_out"), self.counters("qps_broken")
            self.fault("0:lose 1:lose")
            results, _ = reader.get(PATIENT)
            self.assertEqual(results, [HIT] * PAGES, self.engines.log(0))
            self.fault("")
            good += (self.counters("paths_out"), self.counters("qps_broken")) == before

    def counters(self, name):
        return self.engines.status(0)["counters"][name]


class EnginesStand(harness.ClusterTest):
    def test_a_loop_that_hangs_aborts_the_engine_but_a_stopped_process_does_not(self):
        handle, faults = tempfile.mkstemp(prefix="peercache-faults-")
        os.close(handle)
        self.addCleanup(os.unlink, faults)
        stopped = self.start(1, pool_bytes="16MiB")
        hangs = self.start(1, pool_bytes="16MiB", settings=["test.fault_file=" + faults])
        harness.freeze(stopped.process[0])
        begun = time.monotonic()
        with open(faults, "w") as f:
            f.write("0:hang")
        self.assertEqual(harness.ended(hangs.process[0], 60), -signal.SIGABRT)
        self.assertGreater(time.monotonic() - begun, 9)
        self.assertIn("the engine aborts: control loop 0 has not turned for 10 s", hangs.log(0))
        stopped.process[0].send_signal(signal.SIGCONT)
        # Wait as long as the watchdog would need if it counted the time of the stopped process.
        for _ in range(4):
            self.assertIsNone(stopped.process[0].poll())
            stopped.status(0)
            try:
                stopped.process[0].wait(0.5)
            except subprocess.TimeoutExpired:
                pass
        self.stop_cleanly(stopped)


if __name__ == "__main__":
    harness.main()
