# SPDX-License-Identifier: Apache-2.0
"""counts() while another thread closes the session: no channel is read that is being freed."""

import ctypes
import importlib.machinery
import importlib.util
import os
import sys
import threading
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path[:0] = [os.path.join(ROOT, "tests", "cluster")]
import harness  # noqa: E402

MODULE = os.path.join(harness.BUILD, "tests", "python", "held_close.abi3.so")


def module():
    """The extension module whose closes can be held, and its variables."""
    loader = importlib.machinery.ExtensionFileLoader("_peercache", MODULE)
    loaded = importlib.util.module_from_spec(importlib.util.spec_from_loader("_peercache", loader))
    library = ctypes.CDLL(MODULE)
    return loaded, {name: ctypes.c_int.in_dll(library, "held_" + name)
                    for name in ("hold", "waits", "counted")}


class Close(harness.ClusterTest):
    def test_counts_reads_no_channel_that_is_being_closed(self):
        engines = self.start(1)
        peercache, held = module()
        session = peercache.Session(engines.sockets[0])
        self.assertEqual(session.exists("space", ["a", "b"], 20000), [False, False])
        byte = ctypes.c_char()
        self.assertEqual(session.set("space", ["c"], [ctypes.addressof(byte)], 1, 20000), [True])
        before = session.counts()
        self.assertEqual((before["channels"], before["miss"]), (2, 2))
        closer = threading.Thread(target=session.close)
        held["hold"].value = 1
        try:
            closer.start()
            harness.wait_for(lambda: held["waits"].value, 30, "a channel is being closed")
            self.assertEqual(session.counts(), before)
            self.assertEqual(held["counted"].value, 0)
        finally:
            held["hold"].value = 0
            closer.join()
        self.assertEqual(session.counts(), before)


if __name__ == "__main__":
    unittest.main()
