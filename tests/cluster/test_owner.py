# SPDX-License-Identifier: Apache-2.0
"""Ownership of page slots and buffers when a session ends during a copy; PID namespaces."""

import json
import os

import harness


class SessionEndsInTheMiddleOfACopy(harness.ClusterTest):
    def attack(self, how):
        engines = self.start(2, pool_bytes="64MiB")
        process = harness.tool("tests/cluster/late_copy", how, *engines.sockets[:2])
        status, out, err = harness.finish(process)
        self.assertEqual(status, 0, out + err)
        got = json.loads(out[out.index("{"):])
        self.assertGreater(got["hits"], 100, "the pages that refilled the pool are found")
        self.assertEqual(got["wrong"], 0, got)
        return got, engines

    def test_the_slot_is_not_given_to_others_until_the_copy_has_ended(self):
        got, engines = self.attack("socket")
        self.assertEqual(got["set"], "gone")
        self.assertIn("while it was storing a page", engines.log(0))
        harness.wait_for(lambda: "has left the slot" in engines.log(0), 10, "the slot's release")
        self.stop_cleanly(engines)

    def test_a_reply_that_finds_no_descriptor_free_does_not_end_the_session(self):
        got, engines = self.attack("descriptors")
        self.assertEqual(got["open"], -24, "EMFILE")
        self.assertEqual((got["attached"], got["set"], got["open_again"]), (1, "hit", 0))
        self.stop_cleanly(engines)


class ClientsOfAnotherPidNamespace(harness.ClusterTest):
    """Neither side knows the other's process number, so each needs the other's pidfd."""

    def test_read_directly_into_their_memory_and_store(self):
        if os.geteuid():
            self.skipTest("only root makes a PID namespace")
        engines = self.start(2, pool_bytes="256MiB")
        command = ["unshare", "--pid", "--fork", "--kill-child",
                   harness.program("tools/peercache-bench"), "replay", "--quiet", "--json", "-",
                   "--requests", "300"]
        done = harness.run(command, capture_output=True, text=True, seconds=100,
                           env={**os.environ, "PEERCACHE_SOCKETS": ",".join(engines.sockets)})
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        got = json.loads(done.stdout[done.stdout.index("{"):])
        self.assertGreater(got["hits_remote"], 0, "stored pages are found")
        self.assertEqual(got["get_bytes_staged"], 0, "the engine has the client's pidfd")
        self.stop_cleanly(engines)


if __name__ == "__main__":
    harness.main()
