# SPDX-License-Identifier: Apache-2.0
"""Hosts that serve a model: a network namespace each, with a server of SGLang and its engine.

serve.py forks the servers; a server's store starts the engine under its keeper, as the launch line
of the README says. The socket of each host's engine is in $PEERCACHE_SOCKET, because all hosts
share a file system.
"""

import ctypes
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
TESTS = os.path.dirname(HERE)
sys.path[:0] = [os.path.join(TESTS, "cluster"), os.path.join(TESTS, "sglang"), HERE]
import environment  # noqa: E402
import harness  # noqa: E402
import lines  # noqa: E402

PACKAGE = os.path.join(harness.BUILD, "engine/client/python")
sys.path.append(PACKAGE)
PORT = 30000
KEY = "served"  # for what only an administrator of the server may do
LIMIT = 600  # seconds of clock() after which a server hangs
LIBC = ctypes.CDLL(None, use_errno=True)
# Instructions with which oneDNN, which multiplies matrices for torch, sums the products of a row in
# an order that does not depend on the number of rows. With AMX, and with AVX-512 without bfloat16,
# a token computed alone differs in its last bits from the same token computed with its prompt.
EXACT = ("avx512_bf16", "AVX512_CORE_BF16"), ("", "AVX2")  # flag of the processor, oneDNN's name


def exact():
    """The best of EXACT that this processor has."""
    with open("/proc/cpuinfo", encoding="ascii") as file:
        info = file.read()
    return next(name for flag, name in EXACT if flag in info)


class Connection(http.client.HTTPConnection):
    """HTTP to a server in another network namespace: a socket belongs to the namespace in which it
    is made, so only the calling thread goes there, and comes back."""

    def __init__(self, namespace, address, seconds):
        super().__init__(address, PORT, timeout=seconds)
        self.namespace = namespace

    def connect(self):
        with open("/proc/thread-self/ns/net", "rb") as home, open(self.namespace, "rb") as there:
            enter(there)
            try:
                self.sock = socket.socket(socket.AF_INET)
            finally:
                enter(home)
        self.sock.settimeout(self.timeout)
        self.sock.connect((self.host, self.port))


def enter(namespace):
    """Moves this thread to a network namespace."""
    if LIBC.setns(namespace.fileno(), 0):
        raise OSError(ctypes.get_errno(), "setns", namespace.name)


class Host:
    """A server and its engine. `start` takes the words of its launch line."""

    def __init__(self, site, i):
        self.site, self.i = site, i
        self.address = site.network.addresses[i]
        self.url = f"http://{self.address}:{PORT}"
        self.namespace = os.path.join("/run/netns", site.network.names[i])
        self.folder = os.path.join(site.folder.name, str(i))
        os.mkdir(self.folder, mode=0o700)
        self.socket = os.path.join(self.folder, "engine.sock")
        self.log = os.path.join(self.folder, "server.log")
        self.pid = None

    def launch(self, words, packages=(PACKAGE,), **env):
        """Starts the server; ready() waits for it. packages: folders, one of which has peercache.
        env: more variables."""
        self.pid = self.site.fork({
            "line": [*words, "--host", self.address, "--port", str(PORT)],
            "env": {"PEERCACHE_SOCKET": self.socket, **env}, "path": list(packages),
            "namespace": self.namespace, "log": self.log})

    def text(self, path=None):
        """The end of the server's log, or of another file."""
        try:
            with open(path or self.log, encoding="utf-8", errors="replace") as file:
                return file.read()[-6000:]
        except OSError as error:
            return str(error)

    def alive(self):
        try:
            os.kill(self.pid, 0)
            return True
        except OSError:
            return False

    def ready(self):
        """Returns when the server answers. AssertionError with its log when it ends instead."""
        def serves():
            if not self.alive():
                raise AssertionError(f"the server of host {self.i} ended; its log ends:\n"
                                     f"{self.text()}\n{self.text(self.socket + '.log')}")
            try:
                return self.call("GET", "/health")[0] == 200
            except OSError:
                return False

        try:
            harness.wait_for(serves, LIMIT, "the server serves")
        except AssertionError as error:
            raise AssertionError(f"{error}; its log ends:\n{self.text()}") from error

    def connection(self, seconds):
        """A connection for one HTTP request, which waits at most `seconds`."""
        return Connection(self.namespace, self.address, seconds)

    def call(self, method, path, body=None, seconds=3600):
        """One HTTP request; returns the status and the answer, as an object if it is JSON.

        The limit is for hangs of this process: `seconds` of wall time.
        """
        connection = self.connection(seconds)
        try:
            connection.request(method, path, json.dumps(body) if body is not None else None,
                               {"Content-Type": "application/json",
                                "Authorization": f"Bearer {KEY}"})
            answer = connection.getresponse()
            text = answer.read().decode()
        finally:
            connection.close()
        try:
            return answer.status, json.loads(text)
        except ValueError:
            return answer.status, text

    def generate(self, prompt, tokens=8, **more):
        """Sends a prompt of token ids; returns the Answer."""
        status, got = self.call("POST", "/generate", {
            "input_ids": prompt, "return_logprob": True, **more,
            "sampling_params": {"temperature": 0, "max_new_tokens": tokens, "ignore_eos": True}})
        if status != 200:
            raise AssertionError(f"/generate: {status} {got}; the log ends:\n{self.text()}")
        return Answer(got)

    def flush(self):
        """Empties L1 and L2, as /flush_cache does once no request runs."""
        harness.wait_for(lambda: self.call("POST", "/flush_cache")[0] == 200, LIMIT, "flushed")

    def status(self):
        """The report of the host's engine. None: it gives none, and stderr says why unless none
        runs."""
        done = harness.run([harness.program("tools/peercachectl"), "--socket", self.socket,
                            "--json", "status"], capture_output=True, text=True)
        if done.returncode == 0:
            return json.loads(done.stdout)
        if "No such file" not in done.stderr and "refused" not in done.stderr:
            print(f"host {self.i}: no report:", done.stderr, file=sys.stderr, flush=True)
        return None

    def status_now(self):
        """The report of the host's engine, with figures of after this call: those of status() may
        be a second old."""
        begun = time.monotonic()

        def fresh():
            age = time.monotonic() - begun
            report = self.status()
            return report if report and report["age_ms"] + 1 < age * 1000 else None
        return harness.wait_for(fresh, LIMIT, "figures of now")

    def engine(self):
        """The process id of the engine; None while none runs."""
        status = self.status()
        return status and status["pid"]

    def stop(self):
        """Ends the server with its processes; its engine ends with it."""
        if self.pid is None:
            return
        if self.alive():
            os.kill(self.pid, signal.SIGTERM)
        try:
            harness.wait_for(lambda: not self.alive(), 60, "the server ends after SIGTERM")
            harness.wait_for(lambda: self.status() is None, 60, "the engine ends with its client")
        finally:
            if self.alive():
                os.killpg(self.pid, signal.SIGKILL)
            self.pid = None


class Answer:
    """What /generate has answered.

    Attributes: tokens and logprobs of the output; device, host, storage: tokens of the prompt from
    L1, L2 and L3; cached: their sum; backend: name of the storage backend.
    """

    def __init__(self, got):
        meta = got["meta_info"]
        self.tokens = got["output_ids"]
        self.logprobs = [row[0] for row in meta["output_token_logprobs"]]
        self.cached = meta["cached_tokens"]
        details = meta.get("cached_tokens_details") or {}
        self.device = details.get("device", 0)
        self.host = details.get("host", 0)
        self.storage = details.get("storage", 0)
        self.backend = details.get("storage_backend")

    def __repr__(self):
        return (f"Answer({self.tokens}, {self.logprobs}, device={self.device}, host={self.host}, "
                f"storage={self.storage})")


class Site:
    """Hosts on one switch, and the process that forks their servers."""

    def __init__(self, sglang, hosts=2):
        self.folder = tempfile.TemporaryDirectory(prefix="peercache-")
        self.network = harness.cluster.Namespaces(hosts)
        self.hosts, self.process = [], None
        env = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1",
               "OMP_NUM_THREADS": "1", "ONEDNN_MAX_CPU_ISA": exact(), "PYTHONPATH": sglang,
               "PEERCACHE_ENGINE": harness.program("engine/peercache-engine"),
               "PEERCACHE_KEEPER": harness.program("engine/peercache-keeper")}
        env.pop("PYTHONDONTWRITEBYTECODE", None)
        try:
            self.process = subprocess.Popen(
                [environment.PYTHON, os.path.join(HERE, "serve.py")], env=env, text=True,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            self.hosts = [Host(self, i) for i in range(hosts)]
        except BaseException:
            self.stop()
            raise

    def fork(self, request):
        """Has serve.py fork a server; returns its process id."""
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if not answer:
            raise AssertionError(f"serve.py ended with {self.process.wait()}")
        return json.loads(answer)["pid"]

    def model(self, kind, seed):
        """Makes a model; returns its folder."""
        folder = os.path.join(self.folder.name, f"{kind}-{seed}")
        if not os.path.exists(folder):
            harness.run([environment.PYTHON, os.path.join(HERE, "model.py"), folder, kind,
                         str(seed)], 300, check=True)
        return folder

    def stop(self):
        """Ends servers and engines. AssertionError if one of them does not end by itself."""
        try:
            for host in self.hosts:
                host.stop()
        finally:
            if self.process:
                self.process.stdin.close()
                self.process.kill()
                self.process.wait()
                self.process.stdout.close()
            self.network.close()
            self.folder.cleanup()
