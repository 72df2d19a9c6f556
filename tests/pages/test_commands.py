# SPDX-License-Identifier: Apache-2.0
"""Runs the command lines of the pages, in their order, on two hosts (hosts.py).

A command ends with 0, or as STATUSES says. The list of what is not run, and why: not_run.py.
"""

import os
import re
import sys
import unittest

from commands import README, README_TOOLS, bare, commands, names, page, shell
from hosts import Hosts, NAMES, ROOT, missing
from not_run import NOT_RUN, why_not

sys.path.insert(0, os.path.join(ROOT, "tools"))
import cluster  # noqa: E402

# What a newcomer's host has to mend is found: this machine's values are its own.
STATUSES = {r"peercachectl doctor": (0, 1), r"peercache-setup-host .*--dry-run": (0, 1)}
# What is to be in the output of a command.
OUTPUTS = {r"peercachectl get hello$": "world", r"peercachectl explain hello": "found: ",
           r"peercachectl get before": "stored before the restart",
           r"peercachectl explain probe": "found: ", r"peercachectl top": "health   ",
           r"(until )?peercachectl health": ": 10.0.0.", r"peercachectl members": " up, version ",
           r"peercachectl clear --cluster": "2 host(s)", r"peercachectl put": "stored"}
SETTLED = "until peercachectl health && peercachectl directory; do sleep 0.2; done"
START = ("2. Write the settings", "3. Look before you start", "4. Start")


def first_of(table, command, otherwise):
    return next((value for pattern, value in table.items() if re.match(pattern, command)),
                otherwise)


@unittest.skipIf(missing(), f"skipped: no hosts can be made here: {missing()}")
class Pages(unittest.TestCase):
    def hosts(self, **options):
        hosts = Hosts(**options)
        self.addCleanup(hosts.close)
        return hosts

    def execute(self, hosts, blocks):
        for block in blocks:
            for command in commands(block):
                if not why_not(command):
                    self.execute_one(hosts, block, command)

    def execute_one(self, hosts, block, command):
        for host, (status, output) in hosts.run(block.hosts, command).items():
            said = f"{block.heading}, {host}: {command}\n{output}"
            self.assertIsNotNone(status, "it does not end: " + said)
            self.assertIn(status, first_of(STATUSES, command, (0,)), said)
            if first_of(OUTPUTS, command, "") not in output:
                self.fail("not in the output: " + first_of(OUTPUTS, command, "") + ": " + said)

    def started(self, hosts, headings=START):
        self.execute(hosts, [block for block in shell(page("getting-started"))
                             if block.heading in headings])
        if headings == START:  # hosts that have run for a while, as the other pages take them
            for host, (status, output) in hosts.run(NAMES, SETTLED).items():
                self.assertEqual(status, 0, f"the directory is not whole: {host}: {output}")

    def test_getting_started_without_nics(self):
        hosts = self.hosts()
        self.execute(hosts, [block for block in shell(page("getting-started"))
                             if re.match(r"\d\. ", block.heading)])

    def test_getting_started_with_nics(self):
        hosts = self.hosts(same_network=True)
        library = cluster.find_program(cluster.default_build(),
                                       "tests/connectx/libsoftconnectx.so")
        hosts.run(hosts.host, f"export LD_PRELOAD={library}")
        self.started(hosts, START[:1])
        self.execute(hosts, [block for block in shell(page("getting-started"))
                             if block.heading == "With NICs"])

    def test_deployment(self):
        hosts = self.hosts()
        self.started(hosts, START[:1])
        self.execute(hosts, shell(page("deployment")))

    def test_operations(self):
        hosts = self.hosts()
        self.started(hosts)
        self.execute(hosts, shell(page("operations")))

    def test_the_other_pages(self):
        hosts = self.hosts()
        self.started(hosts)
        for name in names():
            if name not in ("getting-started", "deployment", "operations"):
                self.execute(hosts, shell(page(name)))


class List(unittest.TestCase):
    def test_each_reason_belongs_to_a_command(self):
        paths = [README, README_TOOLS, *map(page, names())]
        found = [command for path in paths for block in shell(path) for command in commands(block)]
        for pattern in NOT_RUN:
            self.assertTrue(any(re.match(pattern, command) for command in found), pattern)

    def test_the_blocks_of_getting_started_all_belong_to_a_test(self):
        headings = {block.heading for block in shell(page("getting-started"))}
        self.assertEqual({heading for heading in headings if not re.match(r"\d\. ", heading)},
                         {"With NICs"})

    def test_the_readmes_have_no_command_that_needs_hosts(self):
        """test_demo.py runs all that not_run.py does not name."""
        for block in shell(README) + shell(README_TOOLS):
            for command in commands(block):
                if not why_not(bare(command)):
                    self.assertRegex(command, "^tools/")


if __name__ == "__main__":
    unittest.main(verbosity=2)
