# SPDX-License-Identifier: Apache-2.0
"""The log of a real engine, as text and as JSON."""

import datetime
import json
import os
import re
import socket
import subprocess

import harness

TIME = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}[-+]\d\d:\d\d"


class Log(harness.ClusterTest):
    def lines(self, *settings):
        """The lines that an engine logs from its start to its end."""
        engines = self.start(1, pool_bytes="16MiB", settings=[*settings, "log.level=debug"])
        engines.kill(0, how=15)
        return engines.log(0).splitlines()

    def check_time(self, text):
        at = datetime.datetime.strptime(text, "%Y-%m-%dT%H:%M:%S.%f%z")
        ago = datetime.datetime.now(datetime.timezone.utc) - at
        self.assertLess(abs(ago.total_seconds()), 600)

    def test_text_lines_begin_with_a_time_that_has_its_offset(self):
        lines = self.lines()
        ready = [line for line in lines if line.startswith("ready: ")]
        self.assertEqual(len(ready), 1, "scripts look for this line")
        for line in lines:
            if line not in ready:
                self.assertRegex(line, rf"^{TIME} (error|warn |info |debug) \S")
                self.check_time(line.split()[0])
        self.assertGreater(len(lines), 2)

    def test_json_lines_are_objects_with_time_level_and_message(self):
        messages = [json.loads(line) for line in self.lines("log.format=json")]
        for one in messages:
            self.assertEqual(list(one), ["time", "level", "message"])
            self.assertIn(one["level"], ("error", "warn", "info", "debug"))
            self.assertRegex(one["time"], f"^{TIME}$")
            self.check_time(one["time"])
        self.assertEqual([one["level"] for one in messages
                          if re.match("ready: .*, 1 rail, clients at ", one["message"])], ["info"])


    def test_lines_in_the_journal_have_a_priority_and_no_second_time(self):
        ours, journal = socket.socketpair()
        at = os.fstat(journal.fileno())
        run = subprocess.Popen(
            [harness.program("engine/peercache-engine"), "--set", "no.name=1"], stderr=journal,
            env={**os.environ, "JOURNAL_STREAM": f"{at.st_dev}:{at.st_ino}"})
        self.assertEqual(harness.ended(run), 2)
        self.assertRegex(ours.recv(4096), rb"^<3>no\.name = 1: unknown setting")
        run = subprocess.Popen(
            [harness.program("engine/peercache-engine"), "--set", "engine.pool_bytes=4MiB",
             "--set", f"cluster.port={harness.cluster.free_port()}", "--set", "metrics.port=0",
             "--set", "engine.socket=/nowhere/at/all/e.sock"], stderr=journal,
            env={**os.environ, "JOURNAL_STREAM": f"{at.st_dev}:{at.st_ino}"})
        self.assertEqual(harness.ended(run), 1)
        lines = ours.recv(65536).splitlines()
        self.assertIn(b"<3>error", [line[:8] for line in lines])
        for line in lines:
            self.assertRegex(line, rb"^<[3467]>(error|warn |info |debug) \S")
        ours.close()
        journal.close()


if __name__ == "__main__":
    harness.main()
