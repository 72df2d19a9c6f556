#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Starts several engines on this machine, runs a command with them, and stops them.

    tools/cluster.py --nodes 2 -- build/release/tools/peercache-bench get

The command gets the engines' sockets, comma separated, in $PEERCACHE_SOCKETS. Each engine has its
own pool and software NIC. With --netns each engine also has its own network namespace and address;
a bridge connects them; this needs root. At the end everything is removed: sockets are in a
temporary directory, memory is in memfds, and namespaces are deleted. The next run deletes the
namespaces of a run that was killed.

As a module: Cluster(build, nodes=2, ...) with start(), kill(i), restart(i), sockets, stop().
"""

import argparse
import atexit
import os
import random
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
START_SECONDS = 60
PORTS = []  # sockets that reserve the ports of free_ports() until this process ends
STARVED = 1 / 8  # what a second counts in which a task of this machine waited for a processor


def clock():
    """The time in seconds by which waits give up. It is the wall time, but a second in which some
    task waited for a processor counts an eighth: beside other work, what is healthy gets the time
    that it needs, and what hangs still ends after eight times the limit at most. All seconds count
    an eighth where the kernel does not tell. Only differences have a meaning."""
    now = time.monotonic()
    try:
        with open("/proc/pressure/cpu", encoding="ascii") as file:
            starved = int(re.search(r"some .*total=(\d+)", file.read())[1]) / 1e6
    except OSError:
        starved = now
    return now - (1 - STARVED) * starved


def pause(begun):
    """Sleeps between two looks at a condition that has been waited for since `begun`, of
    time.monotonic(). A look costs milliseconds of a processor, so a long wait has fewer."""
    time.sleep(min(0.1, max(0.01, (time.monotonic() - begun) / 20)))


def communicate(process, seconds, data=None):
    """process.communicate() for at most `seconds` of clock(); raises TimeoutExpired."""
    end = clock() + seconds
    while True:
        try:
            return process.communicate(data, timeout=1)
        except subprocess.TimeoutExpired:
            if clock() > end:
                raise
            data = None  # it is kept from the first call


def wait_end(process, seconds):
    """process.wait() for at most `seconds` of clock(); raises TimeoutExpired."""
    end = clock() + seconds
    while True:
        try:
            return process.wait(timeout=1)
        except subprocess.TimeoutExpired:
            if clock() > end:
                raise


def run_limited(command, seconds=60, data=None, capture_output=False, check=False, **options):
    """subprocess.run() for at most `seconds` of clock(); `data` is its input."""
    if capture_output:
        options.update(stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    if data is not None:
        options["stdin"] = subprocess.PIPE
    with subprocess.Popen(command, **options) as process:
        try:
            out, err = communicate(process, seconds, data)
        except BaseException:
            process.kill()
            raise
    done = subprocess.CompletedProcess(command, process.returncode, out, err)
    if check:
        done.check_returncode()
    return done


def reserve(port):
    """Takes the port for this process, if no socket uses it; False: it is taken. The name of a
    socket is that of one process only, so no other test takes the port before the engine does."""
    taken = socket.socket(socket.AF_UNIX)
    try:
        taken.bind(f"\0peercache-port-{port}")  # first: no test probes a port that is taken
        with socket.socket() as s:
            s.bind(("127.0.0.1", port))
    except OSError:
        taken.close()
        return False
    PORTS.append(taken)
    return True


def free_ports(count):
    """Returns TCP ports, one after the other, that no socket uses, each to one process only. They
    are below the range of ephemeral ports, because an outgoing connection of the first engine could
    otherwise take the port of a later engine, and none is a default of the engine."""
    try:
        with open("/proc/sys/net/ipv4/ip_local_port_range") as file:
            below = int(file.read().split()[0])
    except OSError:
        below = 32768
    first, last = (10000, below - count) if below > 12000 else (below, 65535 - count)
    for _ in range(1000):
        port = random.randrange(first, last)
        ports = list(range(port, port + count))
        if not {31997, 31998} & set(ports) and all(map(reserve, ports)):
            return ports
    raise RuntimeError(f"no {count} free TCP ports on 127.0.0.1")


def free_port():
    return free_ports(1)[0]


def run(*command):
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


class Namespaces:
    """N network namespaces on a bridge in another namespace; the host's network is unchanged.

    network: the first three numbers of their addresses."""

    def __init__(self, count, network="10.77.0"):
        self.reclaim()
        self.prefix = f"pc{os.getpid()}"
        self.made = []
        self.addresses = [f"{network}.{i + 1}" for i in range(count)]
        self.names = [f"{self.prefix}n{i}" for i in range(count)]
        switch = f"{self.prefix}sw"
        self.add(switch)
        run("ip", "-n", switch, "link", "add", "br0", "type", "bridge")
        run("ip", "-n", switch, "link", "set", "br0", "up")
        for i, name in enumerate(self.names):
            self.add(name)
            run("ip", "-n", name, "link", "add", "eth0", "type", "veth", "peer", "name", f"p{i}",
                "netns", switch)
            run("ip", "-n", switch, "link", "set", f"p{i}", "master", "br0", "up")
            run("ip", "-n", name, "addr", "add", f"{self.addresses[i]}/24", "dev", "eth0")
            run("ip", "-n", name, "link", "set", "eth0", "up")
            run("ip", "-n", name, "link", "set", "lo", "up")

    def add(self, name):
        run("ip", "netns", "add", name)
        self.made.append(name)

    def cut(self, a, b, one_way=False):
        """Drops all packets between a and b from now on, by wrong neighbour entries.

        With one_way, only those from a to b."""
        for here, there in ((a, b),) if one_way else ((a, b), (b, a)):
            run("ip", "-n", self.names[here], "neigh", "replace", self.addresses[there],
                "lladdr", "02:00:00:00:00:01", "nud", "permanent", "dev", "eth0")

    def mend(self, a, b, one_way=False):
        """Ends cut(a, b, one_way)."""
        for here, there in ((a, b),) if one_way else ((a, b), (b, a)):
            run("ip", "-n", self.names[here], "neigh", "del", self.addresses[there], "dev", "eth0")

    def port(self, i, *setting):
        """Changes the switch's port of host i, e.g. "down", "up", or "mtu", "200"."""
        run("ip", "-n", f"{self.prefix}sw", "link", "set", f"p{i}", *setting)

    def swallow_large(self, i, mtu):
        """From now on packets longer than `mtu` from and to host i vanish without a message."""
        for name in self.names:  # else the kernel passes segments of one connection in one piece
            run("ip", "-n", name, "link", "set", "eth0", "gso_max_segs", "1")
        self.port(i, "mtu", str(mtu))

    @staticmethod
    def reclaim():
        """Deletes the namespaces of runs whose process does not exist any more."""
        listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True).stdout
        for name in re.findall(r"^(pc\d+(?:sw|n\d+))\b", listed, re.M):
            if not os.path.exists(f"/proc/{re.match(r'pc([0-9]+)', name)[1]}"):
                subprocess.run(["ip", "netns", "del", name], stderr=subprocess.DEVNULL)

    def close(self):
        for name in reversed(self.made):
            subprocess.run(["ip", "netns", "del", name], stderr=subprocess.DEVNULL)
        self.made = []


class Cluster:
    populated = False  # start() waits until the engines' memory is populated

    def __init__(self, build, nodes=2, pool_bytes="1GiB", link="shm", netns=False, settings=(),
                 quiet=True, device="soft", disk=None, keeper=False):
        self.engine = find_program(build, "engine/peercache-engine")
        # With a keeper, process[i] is the keeper; the engine is its child, see engine_pid().
        self.keeper = find_program(build, "engine/peercache-keeper") if keeper else None
        self.before = []  # first words of an engine's command line: tools/soft-connectx
        if device == "mlx5":
            self.before = [os.path.join(ROOT, "tools", "soft-connectx"), "--library",
                           find_program(build, "tests/connectx/libsoftconnectx.so")]
            settings = ["rail.devices=mlx5_0", *settings]
        self.nodes, self.pool_bytes, self.link = nodes, str(pool_bytes), link
        self.settings, self.quiet = list(settings), quiet
        self.netns_wanted, self.netns = netns, None
        # Directory on a disk. Each engine gets a new one in it, which stop() removes.
        self.disk, self.disks = disk, []
        self.own = [[] for _ in range(nodes)]  # settings of each engine
        self.directory = None
        self.process = [None] * nodes
        self.ready = [None] * nodes  # read ends of the --ready-fd pipes of engines that start
        self.sockets, self.logs, self.address, self.port = [], [], [], []

    def start(self):
        atexit.register(self.stop)
        self.directory = tempfile.mkdtemp(prefix="peercache-")
        if self.netns_wanted:
            self.netns = Namespaces(self.nodes)
        for i in range(self.nodes):
            self.sockets.append(f"{self.directory}/{i}.sock")
            self.logs.append(f"{self.directory}/{i}.log")
            self.address.append(self.netns.addresses[i] if self.netns else "127.0.0.1")
            self.port.append(31998 if self.netns else free_port())
        if self.disk:
            self.disks = [tempfile.mkdtemp(prefix="peercache-disk-", dir=self.disk)
                          for _ in range(self.nodes)]
        self.settings += self.secured()
        for i in range(self.nodes):
            self.launch(i)
        for i in range(self.nodes):
            self.wait_ready(i)
        self.wait_members(self.nodes)
        if self.disk:
            self.wait("open the disk", lambda: all(
                path["state"] != "opening" for i in range(self.nodes)
                for path in self.status(i)["disk"]["paths"]))
        if self.populated:
            self.wait("populate their memory", lambda: all(
                figures["memory_populated_bytes"] == figures["memory_bytes"]
                for figures in (self.status(i)["figures"] for i in range(self.nodes))), seconds=600)
        return self

    def secured(self):
        """The settings of links with TLS, as $PEERCACHE_SECURE says: "psk", "tls": certificates,
        or empty: clear text, which is no finding."""
        how = os.environ.get("PEERCACHE_SECURE")
        if any(value.startswith(("cluster.psk_file=", "cluster.tls_dir=", "cluster.security="))
               for value in self.settings):
            return []
        if how not in ("psk", "tls"):
            return ["cluster.security=none"]
        made, cluster_id = f"{self.directory}/{how}", "default"
        for value in self.settings:
            cluster_id = value.removeprefix("cluster.id=") if "cluster.id=" in value else cluster_id
        run_limited([os.path.join(os.path.dirname(os.path.dirname(self.engine)),
                                  "tools/peercachectl"),
                     *(["keygen", made] if how == "psk" else
                       ["tls-example", made, cluster_id, *self.names()])],
                    30, capture_output=True, check=True)
        if how == "psk":
            return [f"cluster.psk_file={made}"]
        self.own = [own + [f"cluster.tls_dir={made}/{name}"]
                    for own, name in zip(self.own, self.names())]
        return []

    def security(self, i):
        """The settings of links with TLS of engine i."""
        return [value for value in self.values(i) if value.startswith(
            ("cluster.psk_file=", "cluster.tls_dir=", "cluster.security="))]

    def names(self):
        """Those of the engines, as their settings say."""
        def name(i):
            of = dict(value.split("=", 1) for value in self.values(i))
            host = of["cluster.address"]
            return of.get("engine.name") or \
                f"{f'[{host}]' if ':' in host else host}:{of['cluster.port']}"
        return [name(i) for i in range(self.nodes)]

    def values(self, i):
        seeds = ",".join(f"{a}:{p}" for a, p in zip(self.address[:2], self.port[:2]))
        values = [f"engine.socket={self.sockets[i]}", f"engine.pool_bytes={self.pool_bytes}",
                  f"cluster.address={self.address[i]}", f"cluster.port={self.port[i]}",
                  f"cluster.seeds={seeds}", f"soft.link={self.link}",
                  "metrics.port=0"] + self.settings
        if self.disk:
            values.append(f"disk.paths={self.disks[i]}")
        return values + self.own[i]

    def command(self, i):
        command = self.before + [self.engine]
        for value in self.values(i):
            command += ["--set", value]
        return (["ip", "netns", "exec", self.netns.names[i]] if self.netns else []) + command

    def launch(self, i):
        with open(self.logs[i], "ab") as log:
            self.spawn(i, log)

    def spawn(self, i, log):
        """Starts engine i with its output to `log`. The engine writes a byte to ready[i] when it
        serves; the pipe ends without a byte when the engine exits first."""
        self.close_ready(i)
        self.ready[i], write_end = os.pipe()
        command, ready = self.command(i), ["--ready-fd", str(write_end)]
        if self.keeper:
            command = [self.keeper, "--socket", self.sockets[i], *ready, *command]
        else:
            command += ready
        try:
            self.process[i] = subprocess.Popen(
                command, stdin=subprocess.DEVNULL,
                stdout=log, stderr=log, start_new_session=True, pass_fds=[write_end])
        finally:
            os.close(write_end)

    def close_ready(self, i):
        if self.ready[i] is not None:
            os.close(self.ready[i])
            self.ready[i] = None

    def log(self, i):
        with open(self.logs[i], errors="replace") as f:
            return f.read()

    def wait(self, what, condition, i=None, seconds=START_SECONDS):
        """Polls a condition. Raises an error with the engine's log when the engine ends or the time
        is over."""
        begun, end = time.monotonic(), clock() + seconds
        while not condition():
            dead = [n for n, p in enumerate(self.process) if p and p.poll() is not None
                    and (i is None or n == i)]
            if dead or clock() > end:
                n = dead[0] if dead else (i or 0)
                why = f"ended with {self.process[n].returncode}" if dead else "timed out"
                raise RuntimeError(f"engine {n}: {what}: {why}; its log:\n{self.log(n)[-4000:]}")
            pause(begun)

    def wait_ready(self, i):
        """Returns when engine i serves; raises RuntimeError with its log when it does not."""
        end, readable = clock() + START_SECONDS, []
        while not readable and clock() < end:
            readable, _, _ = select.select([self.ready[i]], [], [], 1)
        served = readable and os.read(self.ready[i], 1)
        self.close_ready(i)
        if served:
            return
        why = f"did not serve within {START_SECONDS} s"
        if readable:  # the end of the pipe: the engine has exited or is about to
            try:
                status = wait_end(self.process[i], max(0, end - clock()))
                why = f"ended with {status}"
            except subprocess.TimeoutExpired:
                why = "closed its --ready-fd without a byte"
        raise RuntimeError(f"engine {i}: start: {why}; its log:\n{self.log(i)[-4000:]}")

    def status(self, i):
        import json
        ctl = os.path.join(os.path.dirname(os.path.dirname(self.engine)), "tools/peercachectl")
        out = run_limited([ctl, "--socket", self.sockets[i], "--json", "status"], 30,
                          capture_output=True, text=True)
        return json.loads(out.stdout) if out.returncode == 0 else None

    def figure(self, i, name):
        """One of engine/METRICS.md, without the prefix peercache_."""
        return self.status(i)["figures"][name]

    def wait_members(self, count, among=None):
        """Waits until every engine, or those in `among`, sees exactly `count` members."""
        def agreed():
            for i in among if among is not None else range(self.nodes):
                status = self.status(i)
                if status is None or len(status["members"]) != count:
                    return False
            return True
        self.wait(f"see {count} members", agreed)

    def kill(self, i, how=signal.SIGKILL):
        self.process[i].send_signal(how)
        self.process[i].wait()
        self.process[i] = None

    def engine_pid(self, i):
        """The process id of engine i, also under a keeper; None if it does not run."""
        try:
            with open(self.sockets[i] + ".pid", encoding="ascii") as file:
                pid = int(file.read())
            os.kill(pid, 0)
            return pid
        except (OSError, ValueError):
            return None

    def crash(self, i, how=signal.SIGKILL):
        """Kills engine i, whose keeper restarts it. Returns when the next engine serves."""
        before = self.engine_pid(i)
        os.kill(before, how)
        self.wait("serve again", lambda: (self.status(i) or {"pid": before})["pid"] != before, i)

    def restart(self, i):
        self.launch(i)
        self.wait_ready(i)

    def stop(self):
        """Sends SIGTERM to all engines; kills and reports those that do not end within 15 s."""
        failed = []
        for p in self.process:
            if p and p.poll() is None:
                p.send_signal(signal.SIGTERM)
        for i, p in enumerate(self.process):
            self.close_ready(i)
            if not p:
                continue
            try:
                if wait_end(p, 15) != 0:
                    failed.append((i, f"ended with {p.returncode}"))
            except subprocess.TimeoutExpired:
                p.kill()
                p.wait()
                failed.append((i, "did not stop within 15 s of SIGTERM: killed"))
            self.process[i] = None
        for i, why in failed:
            print(f"engine {i} {why}; its log:\n{self.log(i)[-4000:]}", file=sys.stderr)
        if self.netns:
            self.netns.close()
            self.netns = None
        for disk in self.disks:
            shutil.rmtree(disk, ignore_errors=True)
        self.disks = []
        if self.directory:
            if not self.quiet:
                for i in range(self.nodes):
                    sys.stderr.write(self.log(i))
            shutil.rmtree(self.directory, ignore_errors=True)
            self.directory = None
        return not failed


def find_program(build, name):
    path = os.path.join(build, name)
    if not os.access(path, os.X_OK):
        raise SystemExit(f"{path} does not exist; run tools/demo or meson compile -C {build}")
    return os.path.abspath(path)


def default_build():
    """$PEERCACHE_BUILD, else the build folder of tools/demo."""
    return os.environ.get("PEERCACHE_BUILD", os.path.join(ROOT, "build", "release"))


def make_build(no_install=False, part="--build", options=(), targets=()):
    """Installs missing packages and compiles; returns the build folder. part: of the packages of
    tools/install. `options` of meson are for a folder that is not configured yet. targets: of
    ninja; without them everything."""
    folder = default_build()
    install = [os.path.join(ROOT, "tools", "install"), part] + ["--check"] * no_install
    if subprocess.run(install).returncode:
        raise SystemExit("packages that the build needs are missing; see above")
    meson = "/usr/bin/meson" if os.path.exists("/usr/bin/meson") else "meson"
    if not os.path.exists(os.path.join(folder, "build.ninja")):
        print(f"configuring {folder}", file=sys.stderr)
        subprocess.run([meson, "setup", folder, ROOT, "--buildtype=release", *options], check=True,
                       stdout=subprocess.DEVNULL)
    print("building", file=sys.stderr)
    ninja = "/usr/bin/ninja" if os.path.exists("/usr/bin/ninja") else "ninja"
    done = subprocess.run([ninja, "-C", folder, *targets], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stdout[-6000:] + done.stderr)
    return folder


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default=default_build(), help="build folder (build/release)")
    parser.add_argument("--nodes", type=int, default=2)
    parser.add_argument("--pool-bytes", default="1GiB", help="each engine's pool (1GiB)")
    parser.add_argument("--link", choices=["shm", "tcp"], default="shm")
    parser.add_argument("--device", choices=["soft", "mlx5"], default="soft",
                        help="mlx5: use libmlx5, see tools/soft-connectx (soft)")
    parser.add_argument("--netns", action="store_true",
                        help="give each engine a network namespace; TCP only")
    parser.add_argument("--set", dest="settings", action="append", default=[],
                        metavar="SECTION.KEY=VALUE", help="a setting for every engine")
    parser.add_argument("--keeper", action="store_true",
                        help="run each engine under peercache-keeper")
    parser.add_argument("--logs", action="store_true", help="show the engines' logs at the end")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="-- COMMAND [ARG]...")
    options = parser.parse_args()
    command = options.command[1:] if options.command[:1] == ["--"] else options.command
    if not command:
        parser.error("no command; give one after --")
    if not 1 <= options.nodes <= 64:
        parser.error("--nodes: 1 to 64")
    link = "tcp" if options.netns else options.link
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    cluster = Cluster(options.build, options.nodes, options.pool_bytes, link, options.netns,
                      options.settings, quiet=not options.logs,
                      device=options.device, keeper=options.keeper)
    try:
        cluster.start()
        path = os.path.join(os.path.abspath(options.build), "tools")
        status = subprocess.run(command, env={
            **os.environ, "PEERCACHE_SOCKETS": ",".join(cluster.sockets),
            "PATH": path + ":" + os.environ["PATH"]}).returncode
    except (RuntimeError, subprocess.CalledProcessError) as error:
        print(error, file=sys.stderr)
        status = 2
    finally:
        clean = cluster.stop()
    return status or (0 if clean else 3)


if __name__ == "__main__":
    sys.exit(main())
