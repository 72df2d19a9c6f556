# SPDX-License-Identifier: Apache-2.0
"""What --plan says beside what an engine takes: bytes, resident memory, huge pages, ports.

Huge pages are those of the whole machine, so this test does not run beside others. If another
program takes some of them meanwhile, the attempt does not count.
"""

import os
import re
import stat
import tempfile
import unittest
from unittest import mock

import harness
from test_refusals import engine

HUGE_BYTES = 2 << 20
TOTAL = "/proc/sys/vm/nr_hugepages"
PARTS = ("peercache-pool", "peercache-heads", "peercache-slots", "peercache-shard")


def plan(*values):
    """(memory, that of the process alone, huge pages, {setting: [first port, last port]}) of the
    output of --plan."""
    done = engine("--plan", *[word for value in values for word in ("--set", value)])
    if done.returncode:
        raise AssertionError(done.stderr)
    memory, pages = re.search(r"^sum +(\d+) +[\d.]+ +(\d+)$", done.stdout, re.M).groups()
    process, = re.findall(r"^process +(\d+) +[\d.]+ +0$", done.stdout, re.M)
    ports = {}
    for first, last, setting in re.findall(r"^(\d+|any)(?:-(\d+))? +([a-z.]+\.port|-) ",
                                           done.stdout, re.M):
        ports[setting] = [0, 0] if first == "any" else [int(first), int(last or first)]
    return int(memory), int(process), int(pages), ports


def resident(pid):
    """Bytes of the process that are in memory: all, and those of its files of memory."""
    with open(f"/proc/{pid}/status", encoding="ascii") as f:
        kib = dict(re.findall(r"^(\w+):\s+(\d+) kB$", f.read(), re.M))
    return int(kib["VmRSS"]) << 10, int(kib["RssShmem"]) << 10


def memory(pid):
    """{(inode of a file of memory, its name): (bytes, on huge pages)} of an engine."""
    found = {}
    for name in os.listdir(f"/proc/{pid}/fd"):
        path = f"/proc/{pid}/fd/{name}"
        try:
            target, status = os.readlink(path), os.stat(path)
        except OSError:
            continue
        if target.startswith("/memfd:peercache-") and stat.S_ISREG(status.st_mode):
            found[status.st_ino, target[len("/memfd:"):]] = (
                status.st_size, status.st_blksize == HUGE_BYTES)
    return found


def huge_used():
    """Huge pages of this machine that some program has, or that are reserved for one."""
    with open("/proc/meminfo", encoding="ascii") as f:
        n = {line.split(":")[0]: int(line.split()[1]) for line in f if line.startswith("HugePages")}
    return n["HugePages_Total"] - n["HugePages_Free"] + n["HugePages_Rsvd"]


def listening(pid):
    """The TCP ports on which a process listens."""
    inodes, ports = set(), set()
    for name in os.listdir(f"/proc/{pid}/fd"):
        try:
            inodes.add(os.readlink(f"/proc/{pid}/fd/{name}"))
        except OSError:
            pass
    for file in ("tcp", "tcp6"):
        with open(f"/proc/{pid}/net/{file}", encoding="ascii") as f:
            for row in [line.split() for line in f][1:]:
                if row[3] == "0A" and f"socket:[{row[9]}]" in inodes:
                    ports.add(int(row[1].rsplit(":", 1)[1], 16))
    return ports


class Plan(harness.ClusterTest):
    def test_the_planned_bytes_are_what_the_engine_takes(self):
        with tempfile.TemporaryDirectory() as disk:
            values = ["rail.devices=soft,soft,soft", "engine.huge_pages=no", "disk.bytes=64MiB",
                      f"disk.paths={disk}", "disk.segment_bytes=8MiB", "engine.pool_bytes=37MiB"]
            planned, process, pages, _ = plan(*values)
            engines = self.start(1, pool_bytes="37MiB", settings=values, keeper=True)
            files = {key: size for key, (size, _) in memory(engines.engine_pid(0)).items()
                     if key[1].startswith(PARTS)}
            self.assertEqual(len(files), 3 * 3 + 2, files)
            self.assertEqual(sum(files.values()), planned - process)
            self.assertEqual(pages, 0, "huge pages were not wanted")
            self.stop_cleanly(engines)

    @unittest.skipIf(harness.SLOW > 1, "sanitizers need memory of their own")
    def test_the_planned_sum_is_resident_when_the_pools_are_full_of_small_pages(self):
        rails, pool = 2, 128 << 20
        values = ["rail.devices=soft,soft", "engine.huge_pages=no"]
        with mock.patch.dict(os.environ):
            os.environ.pop("MALLOC_PERTURB_", None)  # it writes to memory that the engine leaves
            engines = self.start(1, pool_bytes=str(pool), settings=values)
        planned, process, _, _ = plan(f"engine.pool_bytes={pool}", *values, *engines.security(0),
                                      f"cluster.port={engines.port[0]}")

        def full():
            harness.finish(harness.tool(
                "tools/peercache-bench", "get", "--page-bytes", "4096", "--batch", "128",
                "--no-baseline", "--keep-pages", "--seconds", "1", "--seed", "1", "--working-set",
                str(rails * pool * 7 // 8), sockets=engines.sockets))
            pages = sum(rail["figures"]["rail_pages"] for rail in engines.status(0)["rails"])
            return pages > rails * pool // 4096 * 3 // 4

        harness.wait_for(full, 120, "the pools are full")
        pid = engines.process[0].pid
        # pools are populated in the background, also where no page is
        harness.wait_for(lambda: resident(pid)[1] >= planned - process, 60, "populated")
        self.assertAlmostEqual(resident(pid)[0] / planned, 1, delta=0.01)
        self.stop_cleanly(engines)

    def test_pages_on_disk_are_planned_with_32_bytes_each(self):
        """If they have 16 KiB, for which the directory has entries, too."""
        small, large = (plan("disk.paths=/a,/b", f"disk.bytes={size}")[1]
                        for size in ("2GiB", "4GiB"))
        self.assertEqual(large - small, 2 * (2 << 30) // (16 << 10) * 32)

    def test_every_port_on_which_an_engine_listens_is_planned(self):
        soft = harness.cluster.free_ports(2)
        metrics = harness.cluster.free_port()
        values = ["rail.devices=soft,soft", "soft.link=tcp", f"soft.port={soft[0]}",
                  f"metrics.port={metrics}"]
        engines = self.start(1, settings=values, link="tcp")
        _, _, _, ports = plan(f"cluster.port={engines.port[0]}", *values)
        planned = {port for first, last in ports.values() for port in range(first, last + 1)}
        self.assertEqual(ports["soft.port"], soft)
        self.assertEqual(listening(engines.process[0].pid), planned)
        self.stop_cleanly(engines)

    def test_a_data_port_in_use_is_named_with_its_setting(self):
        ports = [harness.cluster.free_port() for _ in range(2)]
        engines = self.start(1, link="tcp", settings=[f"soft.port={ports[0]}"])
        taken = engine("--set", "soft.link=tcp", "--set", f"soft.port={ports[0]}", "--set",
                       "engine.pool_bytes=16MiB", "--set", "metrics.port=0", "--set",
                       f"cluster.port={ports[1]}", "--set",
                       f"engine.socket={engines.directory}/b.sock")
        self.assertEqual(taken.returncode, 1)
        self.assertIn("soft.port", taken.stderr)
        self.assertIn(str(ports[0]), taken.stderr)
        self.assertIn("in use", taken.stderr)
        self.stop_cleanly(engines)

    def test_the_memory_of_the_example_is_that_of_the_plan(self):
        example = os.path.join(harness.ROOT, "config", "examples", "eight-rails.conf")
        with open(example, encoding="utf-8") as f:
            text = f.read()
        written, = re.findall(r"(\d+) huge pages of 2 MiB", text)
        process, = re.findall(r"([\d.]+) GiB of other memory", text)
        done = engine("--config", example, "--set", "rail.devices=" + ",".join(["soft"] * 8),
                      "--plan")
        self.assertRegex(done.stdout, rf"(?m)^sum +\d+ +[\d.]+ +{written}$")
        other = sum(int(size) for size in re.findall(r"^(?:any|\d+|process) +(\d+) ", done.stdout,
                                                     re.M)) - int(written) * HUGE_BYTES
        self.assertEqual(process, f"{other / (1 << 30):.1f}")


class HugePages(harness.ClusterTest):
    """An engine with exactly the planned pages, and with one less."""

    values = ["engine.huge_pages=yes", "rail.devices=soft,soft"]

    def setUp(self):
        with open(TOTAL, encoding="ascii") as f:
            self.before = int(f.read())
        self.addCleanup(self.reserve, self.before, give_back=True)

    def reserve(self, pages, give_back=False):
        try:
            with open(TOTAL, "w", encoding="ascii") as f:
                f.write(f"{pages}\n")
            with open(TOTAL, encoding="ascii") as f:
                got = int(f.read())
        except OSError as error:
            raise unittest.SkipTest(f"{TOTAL}: {error}") from error
        if got < pages and not give_back:
            raise unittest.SkipTest(f"the kernel reserves {got} huge pages, {pages} are needed")

    def attempt(self, missing):
        """(what the engine has on huge pages, its log); None: another program took pages, too."""
        _, _, pages, _ = plan("engine.pool_bytes=64MiB", *self.values)
        self.reserve(huge_used() + pages - missing)
        engines = self.start(1, pool_bytes="64MiB", settings=self.values)
        files = memory(engines.process[0].pid)
        mine = sum(size for size, huge in files.values() if huge) // HUGE_BYTES
        alone = huge_used() == mine
        log = engines.log(0)
        self.stop_cleanly(engines)
        return (pages, mine, log) if alone else None

    def judged(self, missing):
        for _ in range(5):
            found = self.attempt(missing)
            if found:
                return found
        raise unittest.SkipTest("another program of this machine uses huge pages")

    def test_exactly_the_planned_pages_suffice(self):
        pages, mine, log = self.judged(0)
        self.assertNotIn("small pages", log)
        self.assertEqual(mine, pages)

    def test_one_page_less_is_named(self):
        pages, mine, log = self.judged(1)
        self.assertRegex(log, r"memory peercache-shard: 1 huge pages? of 2 MiB needed, 0 free; "
                              r"using small pages")
        self.assertEqual(mine, pages - 1)


if __name__ == "__main__":
    unittest.main()
