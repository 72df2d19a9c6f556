# SPDX-License-Identifier: Apache-2.0
"""Simulated hosts: each has the scheduler processes (ranks) of one SGLang, which share an engine.
"""

import json
import os
import socket
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(os.path.dirname(HERE), "cluster")]
import environment  # noqa: E402
import harness  # noqa: E402

# Two pretended ConnectX for each engine: pools of ordinary memory are registered with them.
NICS = bool(os.environ.get("PEERCACHE_SGLANG_NICS"))
PACKAGE = os.path.join(harness.BUILD, "engine/client/python")


class Host:
    """The ranks of one host, which rank.py runs.

    Attributes:
        ranks: a stream of JSON lines to and from each rank.
        theirs: the ranks' ends of the sockets, until start() has passed them on.
        plans: what rank.py needs to know about each rank.
        errors: file with the ranks' output.
    """

    def __init__(self, folder, name, engine_socket, ranks=2):
        self.engine_socket, self.ranks, self.plans = engine_socket, [], []
        self.errors = os.path.join(folder, name + ".err")
        self.theirs = []
        for rank in range(ranks):
            ours, theirs = socket.socketpair()
            self.ranks.append(ours.makefile("rw"))
            ours.close()
            self.theirs.append(theirs)
            self.plans.append({"tp_rank": rank, "tp_size": ranks, "socket": theirs.fileno(),
                               "rendezvous": os.path.join(folder, name + ".rendezvous"),
                               "errors": self.errors})

    def answer(self, rank):
        """Reads one answer. Raises AssertionError with the log if the rank failed or ended."""
        line = rank.readline()
        log = ""
        if os.path.exists(self.errors):
            with open(self.errors, encoding="utf-8", errors="replace") as file:
                log = file.read()[-3000:]
        if not line:
            raise AssertionError(f"a rank ended; its log ends:\n{log}")
        got = json.loads(line)
        if "failed" in got:
            raise AssertionError(got["failed"] + log)
        return got

    def ready(self):
        """Waits until all ranks have started."""
        for rank in self.ranks:
            self.answer(rank)

    def ask(self, what, **request):
        """Sends a request to all ranks. what: name of a method of the driver's class Rank."""
        for rank in self.ranks:
            rank.write(json.dumps({"do": what, **request}) + "\n")
            rank.flush()

    def answers(self):
        """Reads one answer of each rank."""
        return [self.answer(rank) for rank in self.ranks]

    def do(self, what, **request):
        """Sends a request to all ranks and returns their answers.

        All ranks get the request before the first answer is read, because they run collective
        operations together.
        """
        self.ask(what, **request)
        return self.answers()

    def close(self):
        for rank in self.ranks:
            rank.close()


def start(hosts, driver, sglang, before=()):
    """Starts rank.py, which forks the ranks of all hosts. Returns when all ranks are ready.

    driver: "controller" or "tree". sglang: folders for PYTHONPATH.
    """
    env = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1",
           # torch's lock on a library that it compiles is for one version of its source
           "TORCH_EXTENSIONS_DIR": os.path.join(environment.venv_folder(), "extensions",
                                                os.path.basename(sglang.split(os.pathsep)[0])),
           "OMP_NUM_THREADS": "1",  # threads of five ranks would spin for two processors
           "PYTHONPATH": os.pathsep.join([sglang, PACKAGE])}
    env.pop("PYTHONDONTWRITEBYTECODE", None)  # versions share most of their imports
    sockets = [theirs for host in hosts for theirs in host.theirs]
    process = subprocess.Popen(
        [*before, environment.PYTHON, os.path.join(HERE, "rank.py"), driver,
         json.dumps([plan for host in hosts for plan in host.plans])],
        env=env, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno() for theirs in sockets])
    for theirs in sockets:
        theirs.close()
    for host in hosts:
        host.ready()
    return process


class Running:
    """Two engines, and hosts with ranks of one driver. sizes: number of ranks of each host.

    Many tests share one object, because importing SGLang takes long.
    """

    def __init__(self, driver, sizes, sglang):
        self.driver = driver
        self.folder = tempfile.TemporaryDirectory(prefix="peercache-")
        nics = ["rail.devices=mlx5_0,mlx5_1"] if NICS else []
        self.engines = harness.cluster.Cluster(
            harness.BUILD, 2, pool_bytes="512MiB", device="mlx5" if NICS else "soft",
            settings=harness.patient(["engine.unsealed_memory=yes", *nics]))
        if NICS:
            self.engines.before += ["--devices", "2"]
        self.engines.start()
        try:
            self.hosts = [Host(self.folder.name, f"host{i}", self.engines.sockets[i % 2], ranks)
                          for i, ranks in enumerate(sizes)]
            self.process = start(self.hosts, driver, sglang, self.engines.before)
        except Exception:
            self.engines.stop()
            raise

    def stop(self):
        """Ends ranks and engines. AssertionError unless all of them end with status 0."""
        for host in self.hosts:
            host.close()
        status = self.process.wait(300)
        stopped = self.engines.stop()
        self.folder.cleanup()
        assert stopped and status == 0, (stopped, status)
