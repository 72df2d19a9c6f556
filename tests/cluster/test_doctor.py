# SPDX-License-Identifier: Apache-2.0
"""peercachectl doctor on hosts that are broken on purpose: each is named, with its fix.

Trees are the sys and proc of another host, in a folder. The other hosts are this one in namespaces
of its own, with files bound over those of the kernel, with low limits, or with a cgroup.
"""

import json
import os
import re
import resource
import shutil
import signal
import socket
import subprocess
import tempfile
import textwrap
import unittest

import harness
from test_limits import Group

CPU = "sys/devices/system/cpu"
NODE = "sys/devices/system/node/node{}"
HUGE = NODE + "/hugepages/hugepages-2048kB"
CLOCK = "sys/devices/system/clocksource/clocksource0"
NIC = "sys/class/infiniband/mlx5_{}"
PORT = NIC + "/ports/1"
GID = "0000:0000:0000:0000:0000:ffff:0a00:000{}"
GROUP = "sys/fs/cgroup/pod/engine"
LIMITS = ("Limit                     Soft Limit           Hard Limit           Units\n"
          "Max file size             unlimited            unlimited            bytes\n"
          "Max processes             65536                65536                processes\n"
          "Max open files            1024                 65536                files\n"
          "Max locked memory         8388608              unlimited            bytes\n"
          "Max address space         unlimited            unlimited            bytes")



def healthy_tree():
    """Two nodes with four cores and one ConnectX each; the plan takes the cores 1 and 4."""
    files = {
        f"{CPU}/online": "0-7", f"{CPU}/possible": "0-7", f"{CPU}/present": "0-7",
        f"{CPU}/isolated": "1,4", f"{CPU}/nohz_full": "1,4", "proc/cpuinfo": "",
        "sys/devices/system/node/online": "0-1",
        "proc/irq/0/smp_affinity_list": "0", "proc/irq/40/smp_affinity_list": "0-7",
        "proc/irq/40/effective_affinity_list": "6",
        "proc/1/comm": "systemd",
        "proc/meminfo": "MemTotal:       134217728 kB\nMemAvailable:  120000000 kB",
        "proc/self/limits": LIMITS, "proc/self/cgroup": "0::/pod/engine",
        "proc/self/mountinfo": "30 20 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw",
        f"{GROUP}/cpu.max": "max 100000", f"{GROUP}/pids.max": "max",
        f"{GROUP}/hugetlb.2MB.max": "max", f"{GROUP}/hugetlb.2MB.current": "0",
        f"{GROUP}/pids.current": "5", "sys/fs/cgroup/pod/cpu.max": "max 100000",
        "proc/sys/kernel/numa_balancing": "0", "proc/sys/vm/swappiness": "1",
        "sys/kernel/mm/transparent_hugepage/enabled": "always [madvise] never",
        f"{CLOCK}/current_clocksource": "tsc", f"{CLOCK}/available_clocksource": "tsc hpet",
    }
    for i in range(8):
        mask, near = f"{1 << i:08x}", f"{15 << 4 * (i // 4):08x}"
        files.update({f"{CPU}/cpu{i}/{name}": value for name, value in (
            ("topology/core_id", i), ("topology/physical_package_id", i // 4),
            ("topology/core_cpus", mask), ("topology/package_cpus", near),
            ("topology/thread_siblings", mask), ("topology/core_siblings", near),
            ("cpufreq/scaling_governor", "performance"), ("cpuidle/state2/name", "C6"),
            ("cpuidle/state2/latency", 133), ("cpuidle/state2/disable", 1))})
    for n in range(2):
        files.update({f"{NODE.format(n)}/{name}": value for name, value in (
            ("cpumap", f"{15 << 4 * n:08x}"), ("distance", "10 20" if n == 0 else "20 10"),
            ("meminfo", f"Node {n} MemTotal:       67108864 kB"))})
        files.update({f"{HUGE.format(n)}/nr_hugepages": 600,
                      f"{HUGE.format(n)}/free_hugepages": 600})
        files.update({f"{NIC.format(n)}/{name}": value for name, value in (
            ("device/numa_node", n), (f"device/net/eth{n}/address", "x"),
            ("tc/1/traffic_class", "Global tclass=106"),
            ("ports/1/link_layer", "Ethernet"), ("ports/1/state", "4: ACTIVE"),
            ("ports/1/rate", "400 Gb/sec (4X NDR)"), ("ports/1/gids/0", GID.format(n)),
            ("ports/1/gid_attrs/types/0", "RoCE v2"))})
        files.update({f"sys/class/net/eth{n}/{name}": value for name, value in (
            ("mtu", 9000), ("ecn/roce_rp/enable/3", 1))})
    return files


DEVICES = ("rail.devices=mlx5_0,mlx5_1",)
# name of the host: (files that are different, settings, check, part of "where", pattern of the fix)
TREES = {
    "a node has too few huge pages": (
        {f"{HUGE.format(1)}/nr_hugepages": 600, f"{HUGE.format(1)}/free_hugepages": 500}, DEVICES,
        "huge pages", "node1", r"echo 616 \| tee /" + HUGE.format(1) + "/nr_hugepages"),
    "heads and directory find no huge pages": (
        {f"{HUGE.format(0)}/{name}": 512 for name in ("nr_hugepages", "free_hugepages")}, DEVICES,
        "huge pages", "node0", r"echo 532 \| tee /" + HUGE.format(0) + "/nr_hugepages"),
    "a poll core is not isolated": (
        {f"{CPU}/isolated": "1"}, DEVICES, "isolation", "isolated",
        r"isolcpus=managed_irq,domain,1,4 nohz_full=1,4"),
    "an interrupt goes to a poll core": (
        {"proc/irq/40/effective_affinity_list": "4"}, DEVICES, "interrupts", "/proc/irq",
        r"echo 0,2-3,5-7 \| tee /proc/irq/40/smp_affinity_list"),
    "the clock of a poll core is low": (
        {f"{CPU}/cpu4/cpufreq/scaling_governor": "powersave"}, DEVICES, "governor", "cpu4",
        r"echo performance \| tee /.*cpu4/"),
    "a poll core sleeps deeply": (
        {f"{CPU}/cpu1/cpuidle/state2/disable": "0"}, DEVICES, "C-states", "cpu1/cpuidle/state2",
        r"echo 1 \| tee /.*cpu1/cpuidle/state2/disable"),
    "khugepaged moves everything": (
        {"sys/kernel/mm/transparent_hugepage/enabled": "[always] madvise never"}, DEVICES, "THP",
        "transparent_hugepage", r"echo madvise \| tee "),
    "NUMA balancing is on": (
        {"proc/sys/kernel/numa_balancing": "1"}, DEVICES, "kernel.numa_balancing",
        "numa_balancing", r"echo 0 \| tee "),
    "memory is swapped early": (
        {"proc/sys/vm/swappiness": "60"}, DEVICES, "vm.swappiness", "swappiness",
        r"echo 1 \| tee "),
    "the clock is read by a system call": (
        {f"{CLOCK}/current_clocksource": "hpet"}, DEVICES, "clock source", "current_clocksource",
        r"echo tsc \| tee "),
    "memory cannot be locked": (
        {"proc/self/limits": LIMITS.replace("8388608              unlimited",
                                            "8388608              8388608  ")}, DEVICES,
        "limits", "/proc/self/limits", r"LimitMEMLOCK=infinity"),
    "memory can be locked for one of two NICs": (
        {"proc/self/limits": LIMITS.replace("8388608              unlimited",
                                            f"8388608              {3 << 30}")}, DEVICES,
        "limits", "/proc/self/limits", r"LimitMEMLOCK=infinity"),
    "the container has a CPU limit": (
        {"sys/fs/cgroup/pod/cpu.max": "200000 100000"}, DEVICES, "cgroup", "cpu.max of cgroup /pod",
        r"CPUQuota="),
    "the container has no huge pages": (
        {f"{GROUP}/hugetlb.2MB.max": "1048576"}, DEVICES, "cgroup", "hugetlb.2MB.max",
        r"hugepages-2Mi"),
    "the container may not start threads": (
        {f"{GROUP}/pids.max": "20"}, DEVICES, "cgroup", "pids.max", r"TasksMax="),
    "a NIC has no link": (
        {f"{PORT.format(1)}/state": "1: DOWN"}, DEVICES, "link", "mlx5_1",
        r"ip link set eth1 up"),
    "a NIC has no address": (
        {f"{PORT.format(0)}/gid_attrs/types/0": "IB/RoCE v1"}, DEVICES, "GID", "mlx5_0",
        r"ip address add ADDRESS/PREFIX dev eth0"),
    "a NIC has a link-local address only": (
        {f"{PORT.format(0)}/gids/0": "fe80:0000:0000:0000:0000:0000:0000:0001"}, DEVICES, "GID",
        "mlx5_0", r"ip address add"),
    "packets are short": (
        {"sys/class/net/eth1/mtu": "1500"}, DEVICES, "MTU", "eth1/mtu",
        r"ip link set eth1 mtu 9000"),
    "packets have no traffic class": (
        {f"{NIC.format(0)}/tc/1/traffic_class": ""}, DEVICES, "traffic class", "mlx5_0",
        r"rail.traffic_class = 106"),
    "the software NIC is used by mistake": (
        {}, ("rail.devices=soft,soft", "rail.cores=1,4"), "software NIC", "rail.devices",
        r"rail.devices = mlx5_0,mlx5_1"),
    "a NIC of the settings is not there": (
        {}, ("rail.devices=mlx5_0,mlx5_7", "rail.cores=1,4"), "link", "mlx5_7",
        r"ls /sys/class/infiniband"),
    "memory does not suffice": (
        {"proc/meminfo": "MemTotal: 1024 kB\nMemAvailable: 1024 kB"}, DEVICES, "memory",
        "MemAvailable", r"lower engine.pool_bytes"),
    "a node is smaller than its pool": (
        {f"{NODE.format(1)}/meminfo": "Node 1 MemTotal:       1048576 kB"}, DEVICES, "plan",
        "engine.pool_bytes", r"lower engine.pool_bytes"),
}


def doctor(*words, expect=None, before=(), **options):
    """The findings as (list, whole document); `before`: a command that becomes the doctor."""
    done = harness.run([*before, harness.program("tools/peercachectl"), "--json", *words],
                       capture_output=True, text=True, **options)
    if expect is not None and done.returncode != expect:
        raise AssertionError(f"status {done.returncode}: {done.stdout}{done.stderr}")
    found = json.loads(done.stdout)
    return found.get("findings"), found


def settings(*values):
    return [word for value in values for word in ("--set", value)]


def small(*values, port=None):
    """Settings of a small engine that needs nothing of the host, on a port that no other test has;
    later values count more."""
    return settings("engine.huge_pages=no", "engine.pool_bytes=16MiB", "metrics.port=0",
                    f"cluster.port={port or harness.cluster.free_port()}", *values)


class Cases(unittest.TestCase):
    def named(self, findings, check, where, fix, state="found"):
        """There is a finding of that check, with a fix that matches."""
        same = [f for f in findings if f["check"] == check and f["state"] == state
                and where in f["where"]]
        self.assertTrue(same, [f for f in findings if f["check"] == check])
        self.assertTrue(any(re.search(fix, f["fix"]) for f in same), same)

    def folder(self):
        folder = tempfile.TemporaryDirectory(prefix="peercache-")
        self.addCleanup(folder.cleanup)
        return folder.name


class Trees(Cases):
    def tree(self, files):
        root = self.folder()
        for name, text in files.items():
            path = os.path.join(root, name)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "w", encoding="utf-8") as f:
                f.write(f"{text}\n")
        return root

    def test_a_healthy_host_has_no_finding_and_what_was_read_is_known(self):
        findings, whole = doctor("doctor", "--root", self.tree(healthy_tree()),
                                 *settings(*DEVICES), expect=0)
        self.assertEqual(whole["found"], 0)
        self.assertEqual(whole["json_version"], 3)
        self.assertEqual(whole["huge_pages"], 532 + 516)
        unknown = {f["check"] for f in findings if f["state"] == "unknown"}
        self.assertEqual(unknown, {"settings", "engine", "versions", "settings in use", "address",
                                   "keys", "seeds", "ports", "time", "disk", "peer"})

    def test_each_broken_host_is_named_with_its_fix(self):
        for name, (files, values, check, where, fix) in TREES.items():
            with self.subTest(name):
                root = self.tree({**healthy_tree(), **files})
                findings, _ = doctor("doctor", "--root", root, *settings(*values), expect=1)
                self.named(findings, check, where, fix)
                for other in findings:
                    self.assertFalse(
                        other["state"] == "found" and other["check"] != check
                        and (check, other["check"]) not in (("link", "plan"),), other)

    def test_pages_of_any_node_and_of_one_are_written_once_and_suffice(self):
        """One NIC has no node: its pages may be on both. The other one's node lacks its own."""
        machine = "sys/kernel/mm/hugepages/hugepages-2048kB"
        pages = {HUGE.format(0): [600, 300], HUGE.format(1): [600, 100]}

        def look():
            files = {**healthy_tree(), f"{NIC.format(0)}/device/numa_node": -1}
            for folder, (reserved, free) in (*pages.items(), (machine, map(sum, zip(
                    *pages.values())))):
                files.update({f"{folder}/nr_hugepages": reserved,
                              f"{folder}/free_hugepages": free})
            return [f for f in doctor("doctor", "--root", self.tree(files), *settings(*DEVICES))[0]
                    if f["check"] == "huge pages"]

        findings = look()
        self.assertEqual([f["state"] for f in findings], ["found", "found"], findings)
        writes = [w for f in findings for w in f["writes"]]
        files = [w["file"] for w in writes]
        self.assertEqual(len(files), len(set(files)), writes)
        for write in writes:
            place = pages[os.path.dirname(write["file"]).lstrip("/")]
            more = int(write["value"]) - place[0]
            place[0], place[1] = place[0] + more, place[1] + more
        self.assertEqual({f["state"] for f in look()}, {"ok"}, (writes, pages))

    def test_the_limit_of_the_manifest_gives_its_settings_enough_processors(self):
        with open(os.path.join(harness.ROOT, "config/container/kubernetes.yaml"),
                  encoding="utf-8") as f:
            manifest = f.read()
        cpus = int(re.search(r'cpu: "(\d+)"', manifest)[1])
        config = os.path.join(self.folder(), "peercache.conf")
        with open(config, "w", encoding="ascii") as f:
            f.write(textwrap.dedent(re.search(r"peercache.conf: \|\n(.*?)---", manifest, re.S)[1]))
        for limit, state, fix in ((cpus, "ok", ""), (2, "found", "at least 3 CPUs")):
            tree = {**healthy_tree(), f"{GROUP}/cpu.max": f"{limit * 100000} 100000"}
            findings, _ = doctor("doctor", "--root", self.tree(tree), "--config", config)
            found, = (f for f in findings if f["where"] == "cpu.max of cgroup /pod/engine")
            self.assertEqual((found["state"], fix in (found["fix"] or "")), (state, True), found)

    def test_what_cannot_be_read_is_unknown_and_never_ok(self):
        for text in ("\x00 5-2,, banana \x01 [", "5 bananas"):
            tree = {name: value if "topology" in name or name.startswith((
                f"{CPU}/online", f"{CPU}/possible", f"{CPU}/present", "sys/devices/system/node/on"))
                or name.endswith(("cpumap", "link_layer", "scaling_governor")) else text
                for name, value in healthy_tree().items()}
            findings, _ = doctor("doctor", "--root", self.tree(tree), *settings(*DEVICES))
            for check in ("huge pages", "memory", "limits", "cgroup", "isolation", "C-states",
                          "THP", "kernel.numa_balancing", "vm.swappiness", "MTU", "interrupts"):
                states = {f["state"] for f in findings if f["check"] == check}
                self.assertEqual(states, {"unknown"}, (text, check, states))

    def test_an_empty_tree_is_unknown(self):
        for values in DEVICES, ("rail.devices=soft",):
            findings, _ = doctor("doctor", "--root", self.folder(), *settings(*values))
            states = {f["check"]: f["state"] for f in findings}
            # these are known from the settings
            known = set() if "soft" in values[0] else {"software NIC"}
            if "soft" in values[0]:
                known |= {"link", "GID", "MTU", "traffic class", "PFC and ECN"}
            self.assertEqual({c: s for c, s in states.items() if c not in known
                              and s not in ("unknown", "found")}, {})
            self.assertLessEqual({c for c, s in states.items() if s == "found"},
                                 {"link"}, states)


class Usage(Cases):
    def test_wrong_usage_and_settings_end_with_2(self):
        for words in (["doctor", "--set", "rail.poling=busy"], ["doctor", "x"],
                      ["doctor", "--config", "/nowhere/x.conf"],
                      ["doctor", "--set", "cluster.dead_after_ms=50"]):
            with self.subTest(words):
                done = harness.run([harness.program("tools/peercachectl"), *words],
                                   capture_output=True, text=True)
                self.assertEqual(done.returncode, 2, done.stdout)
                self.assertIn("peercachectl: ", done.stderr)

    def test_the_text_has_each_finding_with_its_fix(self):
        tree = Trees.tree(self, {**healthy_tree(), "proc/sys/vm/swappiness": "60"})
        done = harness.run([harness.program("tools/peercachectl"), "doctor", "--root", tree,
                            *settings(*DEVICES)], capture_output=True, text=True)
        self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
        self.assertRegex(done.stdout, r"found +vm.swappiness: /proc/sys/vm/swappiness: 60: .*\n"
                                      r" +fix: echo 1 \| tee /proc/sys/vm/swappiness\n"
                                      r"1 to mend, 11 not known\n$")

    def test_an_ignored_sigchld_of_the_caller_changes_nothing(self):
        words = ["doctor", *small(f"engine.socket={self.folder()}/e.sock")]
        found, _ = doctor(*words)
        again, whole = doctor(*words, before=["env", "--ignore-signal=CHLD"])
        self.assertIsNotNone(again, whole)
        self.assertEqual([(f["check"], f["state"]) for f in again],
                         [(f["check"], f["state"]) for f in found])


class Host(Cases):
    """This host, with a software NIC, on two processors, so that nothing is pinned."""

    def setUp(self):
        self.base = small(f"engine.socket={self.folder()}/e.sock")

    def two_cores(self):
        os.sched_setaffinity(0, set(sorted(os.sched_getaffinity(0))[:2]))

    def look(self, *values, words=(), **options):
        return doctor("doctor", *self.base, *settings(*values), *words,
                      preexec_fn=options.pop("preexec_fn", self.two_cores), **options)[0]

    def namespaces(self, script, *kinds):
        """A command that becomes what follows it, after the script, in namespaces of its own."""
        before = ["unshare", *kinds, "sh", "-c", f"{script} && exec \"$@\"", "sh"]
        if subprocess.run([*before, "true"], capture_output=True, check=False).returncode:
            self.skipTest(f"no namespaces here: {' '.join(kinds)}")
        return before

    def test_the_fixes_of_this_host_mend_it(self):
        """Each value that a fix writes is bound over the file of the kernel."""
        script, folder = "ip link set lo up", self.folder()
        for i, write in enumerate(w for f in self.look() for w in f["writes"]):
            path = os.path.join(folder, str(i))
            with open(path, "w", encoding="ascii") as f:
                f.write(write["value"])
            script += f" && mount --bind {path} {write['file']}"
        before = self.namespaces(script, "--mount", "--net")
        findings = self.look(before=before, expect=0)
        self.assertIn(("settings", "ok"), {(f["check"], f["state"]) for f in findings})

    def test_a_file_of_the_kernel_that_is_bad_is_found(self):
        with open(os.path.join(self.folder(), "bad"), "w", encoding="ascii") as f:
            f.write("[always] madvise never")
        path = "/sys/kernel/mm/transparent_hugepage/enabled"
        before = self.namespaces(f"mount --bind {f.name} {path}", "--mount")
        self.named(self.look(before=before), "THP", path, r"echo madvise \| tee " + path)

    def test_a_name_with_loopback_addresses_is_found(self):
        hosts = os.path.join(self.folder(), "hosts")
        with open(hosts, "w", encoding="ascii") as f:
            f.write("127.0.0.1 localhost\n127.0.1.1 node-a\n127.0.1.1 node-b\n")
        before = self.namespaces(f"ip link set lo up && mount --bind {hosts} /etc/hosts",
                                 "--mount", "--net")
        findings = self.look("cluster.address=node-a", "cluster.seeds=node-b:31998",
                             before=before)
        self.named(findings, "address", "cluster.address", r"cluster\.address = auto")
        self.named(findings, "seeds", "node-b:31998", r"/etc/hosts")
        findings = self.look("cluster.address=node-c", before=before)
        self.named(findings, "address", "cluster.address", r"/etc/hosts")

    def network(self):
        return self.namespaces(
            "ip link set lo up && ip link add d0 type veth peer name d1 && ip link set d1 up && "
            "ip address add 10.9.0.1/24 dev d0 && ip address add fd09::1/64 dev d0 nodad && "
            "ip link set d0 up && ip neigh add 10.9.0.2 lladdr 02:00:00:00:00:01 dev d0", "--net")

    def test_addresses_that_others_do_not_reach_are_found(self):
        network = self.network()
        findings = self.look("cluster.address=10.9.0.7", before=network)
        self.named(findings, "address", "cluster.address", r"ip address")
        self.named(findings, "settings", "settings", r"--check")
        findings = self.look("cluster.seeds=10.9.0.2:31998", before=network,
                             words=("--timeout-ms", "100"))
        self.named(findings, "address", "cluster.address", r"cluster\.address = auto")
        findings = self.look("cluster.address=10.9.0.1", "cluster.seeds=10.9.0.1",
                             before=network)
        self.named(findings, "software NIC", "soft.link", r"soft.link = tcp")

    def test_seeds_of_the_other_family_and_behind_a_firewall_are_found(self):
        network = self.network()
        findings = self.look("cluster.address=10.9.0.1", "soft.link=tcp",
                             "cluster.seeds=10.9.0.2:31998,[fd09::2]:31998,10.9.0.1:1,10.8.0.1:5",
                             before=network, words=("--timeout-ms", "200"))
        self.named(findings, "seeds", "10.9.0.2:31998", r"open that port")
        self.named(findings, "seeds", "[fd09::2]:31998", r"one family")
        self.named(findings, "seeds", "10.8.0.1:5", r"ip route get")
        self.named(findings, "seeds", "10.9.0.1:1", r"start the engine", state="unknown")

    def test_seeds_that_are_not_examined_are_unknown(self):
        for values, expected in (
                (["cluster.etcd=http://127.0.0.1:1"], [("cluster.etcd", "unknown")]),
                ([], [("cluster.seeds", "none")])):
            findings = [f for f in self.look(*values) if f["check"] == "seeds"]
            self.assertEqual([(f["where"], f["state"]) for f in findings], expected)

    def test_seeds_of_a_file_are_examined(self):
        path = os.path.join(self.folder(), "seeds")

        def look(text):
            with open(path, "w", encoding="ascii") as file:
                file.write(text)
            return [f for f in self.look(f"cluster.seeds_file={path}") if f["check"] == "seeds"]

        self.assertEqual(len(look("# none\n")), 1)
        self.named(look("# none\n"), "seeds", path, r"write addresses")
        findings = look("127.0.0.1:1\n[fd00::1, b:c:\n")
        self.named(findings, "seeds", "127.0.0.1:1", r"start the engine", "unknown")
        self.named(findings, "seeds", path, r"name:31998")
        self.assertIn('line 2: "[fd00::1" is not address:port; 2 words',
                      " ".join(f["text"] for f in findings))
        findings = look("127.0.0.1:1\n" * 40)
        self.named(findings, "seeds", path, r"peercachectl members", "unknown")
        self.assertEqual(len(findings), 33)
        os.remove(path)
        self.named(self.look(f"cluster.seeds_file={path}"), "seeds", path, r"correct cluster.seeds")

    def test_what_the_plan_refuses_is_no_accepted_setting(self):
        findings = self.look("rail.cores=8191")
        self.assertEqual([f["state"] for f in findings if f["check"] == "plan"], ["found"])
        said = [(f["state"], f["text"]) for f in findings if f["check"] == "settings"]
        self.assertEqual(said, [("none", "peercache-engine --check refuses them: see plan")])

    def test_ports_that_others_have_or_may_take_are_found(self):
        with socket.socket() as other:
            other.bind(("127.0.0.1", 0))
            other.listen()
            port = other.getsockname()[1]
            self.named(self.look(f"cluster.port={port}"), "ports", f"cluster.port {port}",
                       rf"ss -tlnp 'sport = :{port}'")
        with open("/proc/sys/net/ipv4/ip_local_port_range", encoding="ascii") as f:
            low = int(f.read().split()[0])
        findings = self.look("soft.link=tcp", f"soft.port={low}", "rail.devices=soft,soft",
                             before=self.namespaces("ip link set lo up", "--net"))
        self.named(findings, "ports", f"soft.port {low + 1}",
                   rf"ip_local_reserved_ports={low},{low + 1}, or")

    def test_ports_that_are_reserved_are_free_and_stay_reserved(self):
        with open("/proc/sys/net/ipv4/ip_local_port_range", encoding="ascii") as f:
            low = int(f.read().split()[0])
        reserved = os.path.join(self.folder(), "reserved")
        with open(reserved, "w", encoding="ascii") as f:
            f.write(f"7,{low + 1}-{low + 2}\n")
        findings = self.look(
            "soft.link=tcp", f"soft.port={low}", "rail.devices=soft,soft,soft",
            before=self.namespaces(f"ip link set lo up && mount --bind {reserved} "
                                   "/proc/sys/net/ipv4/ip_local_reserved_ports",
                                   "--mount", "--net"))
        ports = {f["where"]: f for f in findings if f["where"].startswith("soft.port")}
        self.assertEqual([ports[f"soft.port {low + n}"]["state"] for n in range(3)],
                         ["found", "ok", "ok"])
        self.assertIn(f"ip_local_reserved_ports=7,{low + 1}-{low + 2},{low}, or",
                      ports[f"soft.port {low}"]["fix"])

    def test_the_address_that_is_chosen_is_told(self):
        findings = self.look("cluster.address=auto", before=self.network())
        self.assertIn(("ok", "auto: 10.9.0.1"), {(f["state"], f["text"]) for f in findings
                                                 if f["check"] == "address"})
        self.assertEqual({f["state"] for f in findings if f["check"] in ("settings", "ports")},
                         {"ok"}, findings)
        findings = self.look("cluster.address=auto",
                             before=self.namespaces("ip link set lo up", "--net"))
        self.named(findings, "address", "cluster.address", "address of this host")
        self.named(findings, "settings", "settings", "--check")
        self.assertNotIn("ok", {f["state"] for f in findings if f["check"] == "ports"})

    def test_disks_that_do_not_fit_are_found(self):
        disk = self.folder()
        few = ("disk.bytes=64MiB", "disk.segment_bytes=8MiB")
        before = self.namespaces(f"mount -t tmpfs none {disk}", "--mount")
        self.named(self.look(f"disk.paths={disk}", *few, before=before), "disk", disk,
                   r"local SSD")
        room = os.statvfs(disk)
        used = (room.f_blocks - room.f_bavail) * room.f_frsize
        if used > 1 << 30:
            wanted = room.f_blocks * room.f_frsize - (used >> 1) >> 20
            findings = self.look(f"disk.paths={disk}", f"disk.bytes={wanted}MiB")
            self.named(findings, "disk", disk, r"lower disk\.bytes")
        findings = self.look(f"disk.paths={disk}/nowhere", *few)
        self.named(findings, "settings", "settings", r"--check")
        said, = [f["text"] for f in findings if f["check"] == "settings"]
        self.assertIn(f"disk.paths: {disk}/nowhere: No such file", said)

    def test_paths_of_one_file_system_share_its_room(self):
        folders = [self.folder(), self.folder()]
        room = os.statvfs(folders[0])
        wanted = room.f_bavail * room.f_frsize * 6 // 10 >> 20
        values = [f"disk.bytes={wanted}MiB", "disk.segment_bytes=8MiB"]
        found = [f["text"] for f in self.look(f"disk.paths={folders[0]}", *values)
                 if f["check"] == "disk" and f["where"] in folders and f["state"] == "found"]
        if found and found[0].startswith("the file system is "):
            self.skipTest(f"the temporary folder is on no disk: {found[0]}")
        self.assertEqual(found, [])
        findings = self.look(f"disk.paths={','.join(folders)}", *values)
        for folder in folders:
            self.named(findings, "disk", folder, r"lower disk\.bytes")
        self.assertIn("disk.bytes for 2 of disk.paths",
                      " ".join(f["text"] for f in findings if f["check"] == "disk"))

    def test_a_disk_of_another_user_is_found_in_a_user_namespace(self):
        disk = self.folder()
        os.chmod(disk, 0o500)
        before = self.namespaces(f"test ! -w {disk}", "--user")
        self.named(self.look(f"disk.paths={disk}", "disk.bytes=64MiB", "disk.segment_bytes=8MiB",
                             before=before), "settings", "settings", r"--check")

    def test_low_limits_of_the_process_are_found(self):
        for which, value, fix in (
                (resource.RLIMIT_NOFILE, 1000, "LimitNOFILE="),
                (resource.RLIMIT_FSIZE, 1 << 20, "LimitFSIZE="),
                (resource.RLIMIT_NPROC, 10, "LimitNPROC="),
                (resource.RLIMIT_AS, 1 << 30, "LimitAS=")):
            def lower():
                self.two_cores()
                resource.setrlimit(which, (value, value))  # pylint: disable=W0640
            if which == resource.RLIMIT_AS and harness.SLOW > 1:
                continue  # sanitizers reserve far more
            with self.subTest(fix):
                self.named(self.look(preexec_fn=lower), "limits", "/proc/self/limits", fix)

    def test_a_cgroup_with_few_threads_is_found(self):
        group = Group("pids", 20)
        self.addCleanup(harness.wait_for, group.close, 20, "the group is empty")
        self.named(self.look(before=group.inside("env")), "cgroup", "pids.max", r"TasksMax=")

    def test_a_cgroup_with_a_quota_of_processor_time_is_found(self):
        group = Group("cpu", 50000)
        self.addCleanup(harness.wait_for, group.close, 20, "the group is empty")
        self.named(self.look(before=group.inside("env")), "cgroup", group.limit, r"CPUQuota=")

    def look_beside(self, script):
        """What a doctor finds whose engine and keeper are this script."""
        folder = self.folder()
        for name in ("peercache-engine", "peercache-keeper"):
            path = os.path.join(folder, name)
            with open(path, "w", encoding="ascii") as f:
                f.write(f"#!/bin/sh\n{script}\n")
            os.chmod(path, 0o755)
        copy = shutil.copy(harness.program("tools/peercachectl"), folder)
        library = os.path.join(harness.BUILD, "engine", "client")
        done = harness.run([copy, "--json", "doctor", *self.base],
                           capture_output=True, text=True,
                           env={**os.environ, "LD_LIBRARY_PATH": library})
        return json.loads(done.stdout)["findings"]

    def test_programs_of_another_version_are_found(self):
        findings = self.look_beside("echo $(basename $0) 9.9.9")
        for name in ("peercache-engine", "peercache-keeper"):
            self.named(findings, "versions", name, "one version")

    def test_programs_that_crash_are_not_called_missing(self):
        for script, said in (("kill -SEGV $$", "a signal ended it"),
                             ("echo libx.so: too old; exit 127",
                              "cannot be started: libx.so: too old"),
                             ("echo no room; exit 1", "it ended with status 1: no room")):
            findings = [f for f in self.look_beside(script)
                        if f["check"] == "versions" and f["where"].startswith("peercache-")]
            for one in findings:
                self.assertEqual((one["state"], said in one["text"], "install" in one["fix"]),
                                 ("unknown", True, "127" in script), one)
            self.assertEqual(len(findings), 2)
        self.named(self.look_beside("kill -SEGV $$"), "settings", "peercache-engine",
                   "run peercache-engine --check", "unknown")


class Kept(Cases, harness.ClusterTest):
    def test_a_keeper_whose_file_was_replaced_is_found(self):
        engines = harness.cluster.Cluster(harness.BUILD, 1, "16MiB", keeper=True,
                                          settings=["engine.huge_pages=no"])
        self.addCleanup(engines.stop)
        engines.keeper = shutil.copy(engines.keeper, os.path.join(self.folder(),
                                                                  "peercache-keeper"))
        engines.start()

        def versions():
            findings, _ = doctor("doctor", "--socket", engines.sockets[0])
            return [f for f in findings if f["check"] == "versions" and f["where"] ==
                    f"/proc/{engines.process[0].pid}/exe"]

        self.assertEqual([f["state"] for f in versions()], ["ok"])
        os.unlink(engines.keeper)
        self.named(versions(), "versions", "/exe", r"start the keeper again")
        self.stop_cleanly(engines)


class Running(Cases, harness.ClusterTest):
    def test_the_ports_of_another_host_are_tried(self):
        engines = harness.cluster.Cluster(
            harness.BUILD, 2, "16MiB", netns=True, link="tcp",
            settings=["engine.huge_pages=no", "metrics.port=31997"])
        self.addCleanup(engines.stop)
        if os.geteuid():
            self.skipTest("network namespaces need root")
        engines.command_of, engines.command = engines.command, lambda i: [
            w.replace("metrics.port=0", "metrics.port=31997") for w in engines.command_of(i)]
        engines.start()
        names, addresses = engines.netns.names, engines.netns.addresses

        def look(*words, peer=addresses[1]):
            done = harness.run(
                ["ip", "netns", "exec", names[0], harness.program("tools/peercachectl"),
                 "--json", "--socket", engines.sockets[0], "doctor", "--peer", peer, *words],
                capture_output=True, text=True)
            return [f for f in json.loads(done.stdout)["findings"] if f["check"] == "peer"]

        found = look()
        self.assertEqual([(f["where"], f["state"]) for f in found],
                         [(f"{addresses[1]} port {port} ({name})", "ok") for port, name in (
                             (31998, "cluster.port"), (31997, "metrics.port"))])
        found = look(*settings("metrics.port=0"), peer=addresses[1] + ":9")
        self.named(found, "peer", f"{addresses[1]} port 9 (cluster.port)",
                   r"start the engine there", "unknown")
        engines.netns.cut(1, 0, one_way=True)  # as by a firewall
        for f in look("--timeout-ms", "500"):
            self.assertIn("no answer: a firewall drops", f["text"])
            self.assertEqual(f["state"], "found")

    def memory(self, *words):
        """What is said of the memory; what is not known is not "ok"."""
        one, = [f for f in doctor("doctor", *words)[0] if f["check"] == "memory"]
        self.assertEqual(one["state"], "unknown" if "another value" in one["text"] else "ok")
        return one["text"]

    def test_an_engine_that_hangs_is_unknown_and_the_rest_is_examined(self):
        engines = self.start(1, settings=["engine.huge_pages=no"])
        words = small(f"engine.socket={engines.sockets[0]}", "engine.huge_pages=yes",
                      port=engines.port[0])
        engines.process[0].send_signal(signal.SIGSTOP)
        try:
            findings, _ = doctor("doctor", "--timeout-ms", "300", *words)
        finally:
            engines.process[0].send_signal(signal.SIGCONT)
        said, = [f["text"] for f in findings if f["check"] == "engine"]
        self.assertIn("no answer within 300 ms", said)
        for check in "engine", "settings in use", "huge pages", "memory", "limits", "cgroup":
            self.assertEqual({f["state"] for f in findings if f["check"] == check}, {"unknown"},
                             check)
        self.named(findings, "ports", f"cluster.port {engines.port[0]}", "", "unknown")
        self.assertIn("versions", {f["check"] for f in findings if f["state"] == "ok"})
        self.stop_cleanly(engines)

    def test_settings_that_the_running_engine_has_not_are_found(self):
        engines = self.start(1, settings=["engine.huge_pages=no"])
        words = small(f"engine.socket={engines.sockets[0]}", "engine.pool_bytes=64MiB",
                      "cluster.dead_after_ms=30000", *engines.security(0),
                      f"cluster.seeds=127.0.0.1:{engines.port[0]}", port=engines.port[0])
        findings, _ = doctor("doctor", *words)
        states = {f["check"]: f["state"] for f in findings}
        self.assertEqual((states["settings in use"], states["engine"], states["ports"]),
                         ("ok", "ok", "ok"))
        findings, _ = doctor("doctor", *words, "--set", "rail.spin_us=7")
        self.named(findings, "settings in use", "rail.spin_us", "peercachectl restart")
        self.assertIn("the engine has its", self.memory(*words))
        self.assertIn("the engine that runs has another value",
                      self.memory(*words, "--set", "engine.pool_bytes=128MiB"))
        findings, whole = doctor("doctor", "--socket", engines.sockets[0])
        self.assertEqual(whole["huge_pages"], 0, "the settings are those of the engine")
        states = {f["check"]: f["state"] for f in findings}
        self.assertEqual((states["settings"], states["ports"]), ("ok", "ok"), findings)
        self.stop_cleanly(engines)


if __name__ == "__main__":
    harness.main()
