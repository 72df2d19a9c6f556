# SPDX-License-Identifier: Apache-2.0
"""The container and the Kubernetes objects of config/container, without a container runtime.
kubernetes-validate checks the objects. The image is made from the Dockerfile's last stage on a
bare Debian. Two nodes, which are network namespaces, have a pod each with the engine: namespaces,
capabilities, read-only root, limits of memory and refused system calls like those of a runtime.
Pods with a Python client share the socket. Prints what it measured.

    test_container.py [ROOT]      ROOT: a folder of debootstrap, used for the image as it is

Exit status 77: not root, or the tools, the archive, PyPI, namespaces or control groups are missing.
"""

import glob
import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time

from bare import (HERE, LIMIT, SLOW, TREE, Groups, Missing, expect, harness, main, packages_make,
                  run, run_outside, wait_for)

CONTAINER = os.path.join(TREE, "config", "container")
VALIDATE = "kubernetes-validate==1.37.0"
GROUPS = "memory"
POOL_MIB, CLIENT_MIB = 128, 48
PAGES = 16384  # of 4 KiB: more than the limit of the client's memory
# What each capability of the manifest permits of the system calls that are refused otherwise.
PERMITS = {"SYS_NICE": "mbind set_mempolicy get_mempolicy move_pages"}
CAPABILITIES = {"IPC_LOCK": 14, "SYS_NICE": 23}
SOCKETS = "/run/peercache"
# $1: the root, $2: a folder of the node for the socket, $3: ro or rw, $4: the configuration,
# the rest: the command. The pod sees its own processes and devices only.
INSIDE = """
set -e
root=$1 node=$2 mode=$3 config=$4
shift 4
mount --make-rprivate /
mount -t proc proc "$root/proc"
mount -t sysfs -o ro sysfs "$root/sys"
if [ "$GROUPS_OF" = cgroup2 ]; then
    mount -t cgroup2 -o ro cgroup2 "$root/sys/fs/cgroup"
else
    mount -t tmpfs tmpfs "$root/sys/fs/cgroup"
    mkdir "$root/sys/fs/cgroup/memory"
    mount -t cgroup -o ro,memory memory "$root/sys/fs/cgroup/memory"
fi
mount -t tmpfs -o mode=755 tmpfs "$root/dev"
mkdir "$root/dev/shm"
mount -t tmpfs tmpfs "$root/dev/shm"
for name in null zero full random urandom; do
    touch "$root/dev/$name"
    mount --bind "/dev/$name" "$root/dev/$name"
done
ln -s /proc/self/fd "$root/dev/fd"
mount --bind "$node" "$root/run/peercache"
mount --bind "$config" "$root/etc/peercache.conf"
cd "$root"
pivot_root . mnt
umount -l mnt
mount -o remount,bind,"$mode" /
exec env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/tmp PEERCACHE_TEST_MAY="$MAY" "$@"
"""


def objects():
    """The objects of the manifest by kind."""
    import yaml  # of kubernetes-validate
    with open(os.path.join(CONTAINER, "kubernetes.yaml"), encoding="utf-8") as file:
        return {found["kind"]: found for found in yaml.safe_load_all(file)}


class Limits(Groups):
    """Control groups of pods for memory."""

    def __init__(self, folder):
        super().__init__(folder, GROUPS)
        self.names = ("memory.max", "memory.current") if self.version == "cgroup2" else \
            ("memory.limit_in_bytes", "memory.usage_in_bytes")

    def make_limited(self, name, mib):
        path = self.make(name)
        self.write(os.path.join(path, self.names[0]), str(mib << 20))
        return path

    def used_mib(self, path):
        with open(os.path.join(path, self.names[1]), encoding="ascii") as file:
            return int(file.read()) >> 20


class Node:
    """A network namespace, with a folder for the socket as a host has it."""

    def __init__(self, folder, number):
        self.address = f"10.9.0.{number}"
        self.sockets = os.path.join(folder, f"node{number}")
        os.mkdir(self.sockets, 0o755)
        self.process = subprocess.Popen(["unshare", "--net", "sleep", "infinity"])
        own = os.readlink("/proc/self/ns/net")
        wait_for(lambda: os.readlink(f"/proc/{self.process.pid}/ns/net") != own, 60,
                 "a node's network")

    def run(self, *command, **options):
        return run("nsenter", "-t", str(self.process.pid), "--net", *command, **options)

    def get(self, probe):
        """The status of a probe of the manifest; 0: no answer."""
        at = probe["httpGet"]
        out = self.run(sys.executable, "-c", "import sys, urllib.request as r\n"
                       "try: print(r.urlopen(sys.argv[1], timeout=5).status)\n"
                       "except r.HTTPError as e: print(e.code)\n"
                       "except OSError: print(0)",
                       f"http://{self.address}:{at['port']}{at['path']}")
        return int(out)


def nodes_connect(nodes):
    run("ip", "link", "add", "peer1", "type", "veth", "peer", "name", "peer2")
    for node, name in zip(nodes, ("peer1", "peer2")):
        run("ip", "link", "set", name, "netns", str(node.process.pid))
        for words in (["link", "set", "lo", "up"], ["link", "set", name, "up"],
                      ["addr", "add", node.address + "/24", "dev", name]):
            node.run("ip", *words)


class Pod:
    """A container of its own. `group`: its control group, of the version of Limits; `user`: its
    root is that user of the host; `network`: a node."""

    def __init__(self, image, node, group, version, command, config, network=None, user=None,
                 caps=(), mode="rw", name="", **options):
        net = ["nsenter", "-t", str(network.process.pid), "--net"] if network else []
        alone = ["unshare", "--mount", "--pid", "--ipc", "--uts", "--cgroup", "--fork",
                 "--kill-child", *([] if network else ["--net"])]
        bounds = ",".join(["-all", *(f"+{cap.lower()}" for cap in caps)])
        become = ["setpriv", "--bounding-set", bounds, "--inh-caps", "-all", "--no-new-privs"]
        if user:
            become = ["setpriv", "--reuid", user, "--regid", user, "--clear-groups",
                      "unshare", "--user", "--map-root-user", *become]
        self.root = image + "-" + (name or os.path.basename(group))
        upper, work = self.root + ".upper", self.root + ".work"
        for path in (self.root, upper, work):
            os.mkdir(path)
        run("mount", "-t", "overlay", "overlay", "-o",
            f"lowerdir={image},upperdir={upper},workdir={work}", self.root)
        self.outer = subprocess.Popen(
            ["bash", "-c", 'echo $$ >"$0/cgroup.procs"; exec "$@"', group, *net, *alone, "bash",
             "-c", INSIDE, "bash", self.root, node.sockets, mode, config, *become, "python3",
             "/mnt-test/pod_start.py", *command],
            stdin=subprocess.DEVNULL, text=True,
            env={**os.environ, "MAY": " ".join(PERMITS.get(cap, "") for cap in caps),
                 "GROUPS_OF": version}, **options)

    def first(self):
        return int(run("pgrep", "-P", str(self.outer.pid)).split()[0])

    def result(self):
        status, out, _ = harness.finish(self.outer, LIMIT)
        expect(status == 0, f"a client ended with {status}:\n{out}")
        return out


class Cluster:
    """Two nodes with the engine's pod of the manifest on each."""

    def __init__(self, folder, image, client):
        self.folder, self.image, self.client_image = folder, image, client
        self.limits = Limits(folder)
        found = objects()
        pod = found["DaemonSet"]["spec"]["template"]["spec"]
        self.engine, self.grace = pod["containers"][0], pod["terminationGracePeriodSeconds"]
        self.config = os.path.join(folder, "peercache.conf")
        text = found["ConfigMap"]["data"]["peercache.conf"]
        text = re.sub("pool_bytes = .*", f"pool_bytes = {POOL_MIB}MiB\nhuge_pages = no", text)
        text = re.sub("# allowed_users", "allowed_users", text)
        with open(self.config, "w", encoding="utf-8") as file:
            file.write(text)
        self.nodes = [Node(folder, number) for number in (1, 2)]
        nodes_connect(self.nodes)
        with open(os.path.join(image, "etc", "hosts"), "a", encoding="ascii") as file:
            file.write("".join(f"{node.address} peercache\n" for node in self.nodes))
        run("chroot", image, "sh", "-c",  # what the volume of the Secret has
            "mkdir -p /etc/peercache && peercachectl keygen /etc/peercache/key")
        self.groups = [self.limits.make_limited(f"engine{i}", 4 * POOL_MIB) for i in (1, 2)]
        self.logs = [os.path.join(folder, f"engine{i}.log") for i in (1, 2)]
        self.pods = [self.start(i, image, f"engine{i}") for i in (0, 1)]
        self.clients = 0

    def start(self, i, image, name):
        security = self.engine["securityContext"]
        mode = "ro" if security["readOnlyRootFilesystem"] else "rw"
        return Pod(image, self.nodes[i], self.groups[i], self.limits.version, entrypoint(),
                   self.config, network=self.nodes[i], caps=security["capabilities"]["add"],
                   mode=mode, name=name, stdout=open(self.logs[i], "w", encoding="utf-8"),
                   stderr=subprocess.STDOUT)

    def log(self, i):
        with open(self.logs[i], encoding="utf-8") as file:
            return file.read()

    def client(self, i, *command, **options):
        """Runs a client in a pod of its own beside engine i. Returns its output."""
        self.clients += 1
        group = self.limits.make_limited(f"client{self.clients}", CLIENT_MIB)
        pod = Pod(self.client_image, self.nodes[i], group, self.limits.version, command,
                  self.config, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                  **options)
        return pod.result()

    def pages(self, i, *words, **options):
        out = self.client(i, "python3", "/mnt-test/deb_pages.py", *words, **options)
        return json.loads(out.splitlines()[-1])


def entrypoint():
    with open(os.path.join(CONTAINER, "Dockerfile"), encoding="utf-8") as file:
        words = re.search(r"(?s)\nENTRYPOINT (\[.*?\])", file.read()).group(1)
    return json.loads(words.replace("\\\n", ""))


def pods_serve(cluster):
    for i, node in enumerate(cluster.nodes):
        for name in ("startupProbe", "livenessProbe", "readinessProbe"):
            wait_for(lambda: node.get(cluster.engine[name]) == 200,
                     60, f"{name} of node {i + 1} succeeds")
    used = [cluster.limits.used_mib(group) for group in cluster.groups]
    print(f"two pods are ready; the engines use {used} MiB with pools of {POOL_MIB} MiB")
    expect(min(used) >= POOL_MIB, "the engine's limit does not count its pool")


def pods_are_confined(cluster):
    """By what the kernel says about the first process of a pod."""
    first = cluster.pods[0].first()
    with open(f"/proc/{first}/status", encoding="ascii") as file:
        status = dict(re.findall(r"(?m)^(\w+):\s*(.*)$", file.read()))
    bits = sum(1 << CAPABILITIES[name]
               for name in cluster.engine["securityContext"]["capabilities"]["add"])
    for name, value in (("CapBnd", f"{bits:016x}"), ("NoNewPrivs", "1"), ("Seccomp", "2")):
        expect(status[name] == value, f"{name} is {status[name]}, not {value}")
    with open(f"/proc/{first}/mounts", encoding="ascii") as file:
        expect(re.search(r"(?m)^\S+ / \S+ ro\b", file.read()), "the root can be written")


def clients_hit(cluster):
    """The client of the first node is in a user namespace; it may attach by its number outside."""
    stored = cluster.pages(0, "set", str(PAGES), user="100000")
    read = cluster.pages(1, "read", str(PAGES))
    print(f"{stored['asked']} pages stored with a limit of {CLIENT_MIB} MiB for the client,"
          f" {read['hits']} read on the other node, {read['wrong']} wrong")
    expect(read["hits"] == PAGES and not read["wrong"], "pages are missing or wrong")
    out = cluster.client(0, "python3", "-m", "peercache.bench", "get", "--sockets",
                         SOCKETS + "/engine.sock", "--seconds", "0.5", "--working-set",
                         str(8 << 20), "--page-bytes", "65536", "--batch", "8", "--json", "-")
    got = json.loads(out.splitlines()[-1])
    print(f"SGLang's store in a pod: {got['pages_per_second']:.0f} pages/s of 64 KiB, "
          f"{got['misses']} misses, {got['wrong']} wrong")
    expect(got["hits_local"] > 0 and not got["misses"] and not got["wrong"], out)
    said = cluster.client(0, "sh", "-c", "peercachectl status && exit 1; true", user="100001")
    expect("user 100001, group" in said, said)


def engine_is_restarted(cluster):
    """With its pages, in the same container."""
    first = cluster.pods[0].first()
    children = run("pgrep", "-P", str(first)).split()
    for child in children:
        os.kill(int(child), signal.SIGKILL)
    wait_for(lambda: cluster.log(0).count("ready: ") == 2, 60, "the next engine serves")
    wait_for(lambda: cluster.pages(1, "read", str(PAGES))["hits"] == PAGES,
             60, "all pages are read again")
    expect(cluster.pods[0].first() == first, "the container has ended")
    print("a killed engine came back in its container with all pages")


def pod_stops(cluster):
    begun, start = harness.clock(), time.monotonic()
    os.kill(cluster.pods[0].first(), signal.SIGTERM)
    status = harness.ended(cluster.pods[0].outer, LIMIT)
    print(f"SIGTERM ended the pod after {time.monotonic() - start:.1f} s with {status}")
    expect(status == 0 and harness.clock() - begun < cluster.grace * SLOW, cluster.log(0))
    # and again with a limit that is too low: the engine sees it and names it
    cluster.limits.write(os.path.join(cluster.groups[0], cluster.limits.names[0]),
                         str(POOL_MIB // 2 << 20))
    low = cluster.start(0, cluster.image, "low")
    cluster.pods.append(low)
    expect(harness.ended(low.outer, LIMIT) and cluster.limits.names[0] in cluster.log(0),
           cluster.log(0))
    left = set(os.listdir(cluster.nodes[0].sockets)) - {"engine.sock.keeper", "engine.sock.clients"}
    expect(not left, f"files stay on the node: {left}")


def limits_are_right(image):
    """The limit of huge pages is what the engine plans for the pool of the ConfigMap."""
    import kubernetes_validate
    found = objects()
    for one in found.values():
        kubernetes_validate.validate(one, "1.30", strict=True)
    pod = found["DaemonSet"]["spec"]["template"]["spec"]
    text = found["ConfigMap"]["data"]["peercache.conf"]
    pool = re.search(r"(?m)^pool_bytes = (.*)$", text).group(1)
    plan = run("chroot", image, "peercache-engine", "--plan", "--set", f"engine.pool_bytes={pool}")
    pages = int(re.search(r"(?m)^sum .* (\d+)$", plan).group(1))
    limit = pod["containers"][0]["resources"]["limits"]["hugepages-2Mi"]
    expect(limit == f"{2 * pages}Mi", f"hugepages-2Mi is {limit}, the plan has {pages} pages")
    print(f"the manifest is valid; its {limit} of huge pages are the plan's")


def inside(folder, image, client):
    """In namespaces of its own: all mounts and processes end with this process."""
    run("mount", "--make-rprivate", "/")
    os.chdir(folder)
    limits_are_right(image)
    cluster = Cluster(folder, image, client)
    try:
        pods_serve(cluster)
        pods_are_confined(cluster)
        clients_hit(cluster)
        engine_is_restarted(cluster)
        pod_stops(cluster)
    except BaseException:
        print(*(cluster.log(i)[-2000:] for i in (0, 1)), sep="\n---\n")
        raise


def image_make(root, packages):
    """Executes the last stage of the Dockerfile on a bare Debian. The archive has answered
    before: what fails then is the Dockerfile or a package."""
    run_outside("chroot", root, "apt-get", "-q", "update")
    with open(os.path.join(CONTAINER, "Dockerfile"), encoding="utf-8") as file:
        stage = file.read().split("\nFROM ")[-1].replace("\\\n", "")
    for word, rest in re.findall(r"(?m)^(COPY|RUN) (.*)$", stage):
        if word == "COPY":
            target = root + rest.split()[-1]
            os.makedirs(target, exist_ok=True)
            for path in packages:
                shutil.copy(path, target)
        else:
            run("chroot", root, "env", "DEBIAN_FRONTEND=noninteractive", "sh", "-ec", rest)
    for folder in ("mnt-test", "run/peercache"):
        os.makedirs(os.path.join(root, folder), exist_ok=True)
    for name in ("pod_start.py", "deb_pages.py"):
        shutil.copy(os.path.join(HERE, name), os.path.join(root, "mnt-test"))
    open(os.path.join(root, "etc/peercache.conf"), "a").close()


def prepare(folder, root):
    """Makes the image, and the client's, which has the Python package. Returns a Python that has
    kubernetes-validate, and both."""
    if importlib.util.find_spec("ensurepip") is None:
        raise Missing("needs python3-venv")
    packages = packages_make()
    image, client = os.path.join(folder, "image"), os.path.join(folder, "client")
    if root:
        run("cp", "-a", root, image)
    else:
        run_outside("debootstrap", "--variant=minbase", "bookworm", image)
    image_make(image, packages)
    venv = os.path.join(folder, "venv")
    run(sys.executable, "-m", "venv", venv)
    run_outside(os.path.join(venv, "bin/pip"), "install", "--quiet", VALIDATE)
    found = [name for name in ("gcc", "cc", "meson", "make", "dpkg-buildpackage")
             if shutil.which(name, path=image + "/usr/bin")]
    expect(not found, f"the image has {found}")
    print("the image has", run("du", "-sm", "--apparent-size", image).split()[0], "MB")
    run("cp", "-a", image, client)
    for path in glob.glob(os.path.dirname(packages[0]) + "/python3-peercache_*.deb"):
        shutil.copy(path, client + "/mnt-test")
    run("chroot", client, "sh", "-ec", "dpkg -i /mnt-test/*.deb")
    return os.path.join(venv, "bin/python3"), image, client


if __name__ == "__main__":
    sys.exit(main("pods", GROUPS, prepare, inside))
