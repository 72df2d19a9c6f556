# SPDX-License-Identifier: Apache-2.0
"""config/MIGRATION.md has every name of PeerCache 0.8.4, and what this tree says of each.

peercache-0.8.4.json has the names: programs, flags, keys, metrics, paths, methods. They are
compared with the wheel of PyPI, which is read and whose programs are run for that. What each key
with a meaning, program, path and method is here, the page alone says. Names, defaults and all other
columns are made: `test_migration.py --print` prints the page with the words that it has now.
"""

import ast
import ctypes
import glob
import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import unittest
import zipfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BUILD = os.environ.get("PEERCACHE_BUILD", os.path.join(ROOT, "build", "gcc"))
sys.path[:0] = [os.path.join(ROOT, "tests", "cluster"),
                os.path.join(BUILD, "engine/client/python")]
import harness  # noqa: E402
from peercache import Session, config, migration  # noqa: E402
from peercache.store import PeerCacheStore  # noqa: E402

LIST = os.path.join(ROOT, "tests", "python", "peercache-0.8.4.json")
PAGE = os.path.join(ROOT, "config", "MIGRATION.md")
COMPAT = os.path.join(ROOT, "engine", "control", "observe", "metrics_compat.def")
with open(LIST, encoding="utf-8") as source:
    OLD = json.load(source)
BENCH = "peercache-bench"
NODE = """
import json, sys
from peercache.store import PeerCacheStore
store = PeerCacheStore(None, json.loads(sys.argv[1]))
store._ensure_published_pool()
print("up")
for line in sys.stdin:
    word, _, key = line.strip().partition(" ")
    if word == "set":
        print("set", store.set(key, key.encode() * 4096))
    elif word == "get":
        print("get", store.get(key, bytearray(4096)) is not None)
    else:
        break
store.close()
"""
# What pip says when PyPI is not reached.
OFFLINE = re.compile("ConnectionError|NewConnectionError|Temporary failure|timed out|unreachable|"
                     "ProxyError|Read-only file system|No module named pip", re.I)
HEAD = """\
# PeerCache 0.8.4, name by name

What each program, flag, key, path, method and metric of PeerCache 0.8.4 is here.
[Migration](pages/migration.md) says in which order to change over. *Named*: one line of the log, at
the start, has the key, its value and what to do.
"""


# ---- the names of 0.8.4, from its files ---------------------------------------------------------


def parsed(folder, name):
    with open(os.path.join(folder, "peercache", name), encoding="utf-8") as file:
        return ast.parse(file.read())


def class_of(tree, name):
    return next(node for node in tree.body
                if isinstance(node, ast.ClassDef) and node.name == name)


def keys_of(folder):
    """{key: default} of the extra config: the keys that from_extra_config() takes."""
    tree = class_of(parsed(folder, "config.py"), "PeerCacheConfig")
    defaults = {node.target.id: None if node.value is None else eval(  # pylint: disable=eval-used
        compile(ast.Expression(node.value), "config.py", "eval"), {"__builtins__": {}})
        for node in tree.body if isinstance(node, ast.AnnAssign)}
    known = next(node.value for node in ast.walk(tree) if isinstance(node, ast.Assign)
                 and getattr(node.targets[0], "id", "") == "known")
    taken = set(ast.literal_eval(known))
    assert taken == set(defaults), taken ^ set(defaults)
    return defaults


def metrics_of(folder):
    """Names of metrics: counters, gauges that any module registers, and what the text adds."""
    tree = parsed(folder, "metrics.py")
    counters = next(ast.literal_eval(node.value) for node in tree.body
                    if isinstance(node, ast.Assign) and node.targets[0].id == "_COUNTERS")
    found = {f"peercache_{name}_total" for name in counters}
    for name in sorted(os.listdir(os.path.join(folder, "peercache"))):
        for node in ast.walk(parsed(folder, name)) if name.endswith(".py") else ():
            if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == \
                    "set_gauge_provider":
                found.add("peercache_" + ast.literal_eval(node.args[0]))
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "emit" and \
                    isinstance(node.args[0], ast.Constant):
                found.add("peercache_" + node.args[0].value)
    with open(os.path.join(folder, "peercache", "metrics.py"), encoding="utf-8") as file:
        found |= set(re.findall(r'append\(f"(peercache_[a-z_]+)\{[a-z]', file.read()))
    return sorted(found)


def paths_of(folder):
    """Paths of the HTTP server."""
    handler = next(node for node in ast.walk(parsed(folder, "metrics.py"))
                   if getattr(node, "name", "") == "do_GET")
    return sorted({node.value for node in ast.walk(handler) if isinstance(node, ast.Constant)
                   and isinstance(node.value, str) and re.fullmatch(r"/[a-z.]*", node.value)})


def methods_of(folder):
    """Public methods of the store."""
    return sorted(node.name for node in class_of(parsed(folder, "store.py"), "PeerCacheStore").body
                  if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"))


def help_of(folder, target, *words):
    """Flags in the help of a console script that `target`, module:function, is."""
    module, function = target.split(":")
    code = f"import sys\nfrom {module} import {function}\nsys.argv[0] = 'x'\n{function}()"
    done = subprocess.run([sys.executable, "-c", code, *words, "--help"], text=True, check=False,
                          capture_output=True, env={**os.environ, "PYTHONPATH": folder},
                          timeout=300)
    assert done.returncode == 0, done.stderr
    return [flag for flag in re.findall(r"^  (--[a-z][a-z0-9-]*)", done.stdout, re.M)
            if flag != "--help"]


def commands_of(folder, target):
    """Commands of peercache-bench, in the sources: each add_parser("name")."""
    package = os.path.join(folder, *target.split(":")[0].split(".")[:-1])
    found = set()
    for name in os.listdir(package):
        if not name.endswith(".py"):
            continue
        with open(os.path.join(package, name), encoding="utf-8") as file:
            for node in ast.walk(ast.parse(file.read())):
                if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "add_parser":
                    found |= {one.value for one in node.args if isinstance(one, ast.Constant)}
    return sorted(found)


def modules_of(folder):
    """Modules that `python -m` starts."""
    found = []
    for path in glob.glob(os.path.join(folder, "peercache", "**", "*.py"), recursive=True):
        with open(path, encoding="utf-8") as file:
            if 'if __name__ == "__main__":' in file.read():
                found.append(os.path.relpath(path, folder)[:-3].replace(os.sep, "."))
    return sorted(found)


def names_of(folder):
    """All names of the package in this folder."""
    with open(os.path.join(folder, "peercache-0.8.4.dist-info", "entry_points.txt"),
              encoding="utf-8") as file:
        scripts = dict(re.findall(r"^(\S+) = (\S+)$", file.read(), re.M))
    return {
        "console_scripts": {name: [] if name == BENCH else help_of(folder, target)
                            for name, target in scripts.items()},
        "modules": modules_of(folder),
        "commands": commands_of(folder, scripts[BENCH]),
        "keys": keys_of(folder), "metrics": metrics_of(folder), "paths": paths_of(folder),
        "methods": methods_of(folder)}


def listed():
    """The same of peercache-0.8.4.json."""
    return {name: OLD[name] for name in ("console_scripts", "modules", "commands", "keys",
                                         "metrics", "paths", "methods")}


def download(folder):
    """Unpacks the wheel of PyPI. Returns "" or why it cannot be had."""
    done = subprocess.run(
        [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:",
         "--python-version=311", "--platform=manylinux_2_28_x86_64", "--dest", folder,
         "--retries=1", "--disable-pip-version-check", "peercache==0.8.4"],
        capture_output=True, text=True, check=False)
    if done.returncode and OFFLINE.search(done.stderr):
        why = next(line for line in done.stderr.splitlines() if OFFLINE.search(line))
        return f"PyPI is not reached: {why[:300]}"
    assert done.returncode == 0, done.stderr
    wheel, = [name for name in os.listdir(folder) if name.endswith(".whl")]
    with open(os.path.join(folder, wheel), "rb") as file:
        digest = hashlib.sha256(file.read()).hexdigest()
    assert digest == OLD["sha256"], f"{wheel} has the SHA-256 {digest}"
    zipfile.ZipFile(os.path.join(folder, wheel)).extractall(folder)
    return ""


# ---- the page -----------------------------------------------------------------------------------


def written():
    """{first cell: last cell} of each line of the page's tables, without the marks of code."""
    with open(PAGE, encoding="utf-8") as file:
        rows = re.findall(r"^\| `([^|`]+)` \|(?:.*\|)? (.+?) \|$", file.read(), re.M)
    return dict(reversed(rows))  # of a name that two tables have, the first one


WRITTEN = written()


def table(head, rows):
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows])


def shown(default):
    """A default as JSON writes it."""
    return "" if default in (None, "") else f"`{json.dumps(default)}`"


def own_words(name):
    """What the page alone says of a name. "Without effect" and "as the key" come from the lists."""
    words = WRITTEN[name]
    if words.startswith(("named, without effect", "as the key")):
        raise AssertionError(f"{PAGE}: `{name}`: the lists do not say: {words}")
    return words


def key_rows():
    for key, default in OLD["keys"].items():
        why = migration.WITHOUT_EFFECT.get(key)
        if config.READERS.get(key) is config.size:
            default = f"{default >> 30}gb"
        here = f"named, without effect: {why}" if why else own_words(key)
        yield f"`{key}`", "required" if key == "discovery_addr" else shown(default), here


def program_rows():
    for name in list(OLD["console_scripts"]) + [f"python -m {name}" for name in OLD["modules"]]:
        yield f"`{name}`", WRITTEN[name]


def storage_rows():
    for flag in OLD["console_scripts"]["peercache-storage-server"]:
        key = flag[2:].replace("-", "_")
        yield f"`{flag}`", f"as the key `{key}`" if key in OLD["keys"] else own_words(flag)


def metric_rows():
    with open(COMPAT, encoding="utf-8") as file:
        rows = re.findall(r'^ROW\(\w+, (\w+), "((?:[^"\\]|\\.)*)",', file.read(), re.M)
    here = {"peercache_" + name: text.replace("\\", "") for name, text in rows}
    for name in ("", "_avg", "_count"):
        here["peercache_op_latency_seconds" + name] = "peercache_call_seconds"
    for name in OLD["metrics"]:
        yield f"`{name}`", f"`{here[name]}`" if here[name] else "always 0"


def page():
    flags = ", ".join(f"`{flag}`" for flag in OLD["console_scripts"]["peercache-meta"])
    return "\n".join([
        HEAD, "## Keys of the extra config", "", table(("Key", "Default", "Here"), key_rows()), "",
        "Values without effect are named, too:", "", table(("Key", "Value", "Named with"), [
            (f"`{key}`", f"`{value}`", why) for key, values in migration.VALUES.items()
            for value, why in values.items()]), "",
        "## Programs", "", table(("Program", "Here"), program_rows()), "",
        f"`peercache-meta --help` says what its flags {flags} mean here.", "",
        table(("Flag of `peercache-storage-server`", "Here"), storage_rows()), "",
        "## Commands of peercache-bench", "", "Engines run already, the flags are those of "
        "`peercache-bench --help`, and the rate of a call is\nmeasured in one way.", "",
        table(("Command", "Here"), [(f"`{name}`", WRITTEN[name]) for name in OLD["commands"]]), "",
        "## HTTP", "", table(("Path", "Here"), [(f"`{path}`", WRITTEN[path])
                                                for path in OLD["paths"]]), "",
        "## Methods of PeerCacheStore", "", table(("Method", "Here"), [
            (f"`{name}`", WRITTEN[name]) for name in OLD["methods"]]), "",
        "## Metrics", "", "`metrics.compat = 0.8` exports these names, too, with the label `node`. "
        "A rail's metric is summed over the\nrails; [all metrics](../engine/METRICS.md).", "",
        table(("Metric", "Without `metrics.compat`"), metric_rows())]) + "\n"


# ---- tests --------------------------------------------------------------------------------------


class Page(unittest.TestCase):
    maxDiff = None

    def test_names_defaults_and_reasons_of_the_page_are_those_of_the_lists(self):
        with open(PAGE, encoding="utf-8") as file:
            self.assertEqual(file.read(), page(), "test_migration.py --print > config/MIGRATION.md")

    def test_every_name_of_0_8_4_is_on_the_page(self):
        with open(PAGE, encoding="utf-8") as file:
            text = file.read()
        names = {*OLD["console_scripts"], *OLD["keys"], *OLD["metrics"], *OLD["paths"],
                 *OLD["methods"], *OLD["commands"],
                 *("python -m " + name for name in OLD["modules"]),
                 *(flag for flags in OLD["console_scripts"].values() for flag in flags)}
        self.assertGreater(len(names), 120)
        self.assertEqual([name for name in sorted(names) if f"`{name}`" not in text], [])

    def test_every_key_is_read_or_named_and_every_method_is_there(self):
        without = set(migration.WITHOUT_EFFECT)
        self.assertEqual(set(OLD["keys"]) - without, set(OLD["keys"]) & set(config.READERS))
        self.assertEqual(without - set(OLD["keys"]), set())
        self.assertLessEqual(set(migration.VALUES), set(config.READERS))
        self.assertEqual(config.OURS & set(OLD["keys"]), set())
        # with them a config of PeerCache 0.8 is still one
        stays = {"namespace_secret_file", "psk_file", "tls_dir", "quota", "ttl_s"}
        self.assertEqual(config.OURS | stays,
                         set(config.READERS) - set(OLD["keys"]) - config.SGLANG)
        for name in OLD["methods"]:
            self.assertTrue(callable(getattr(PeerCacheStore, name)), name)


class Program(unittest.TestCase):
    """python3 -m peercache.migration."""

    def run_it(self, text, *words):
        done = subprocess.run(
            [sys.executable, "-m", "peercache.migration", *(words or ["-"])], input=text, text=True,
            capture_output=True, check=False, timeout=300,
            env={**os.environ, "PYTHONPATH": os.path.join(BUILD, "engine/client/python")})
        return done.returncode, done.stdout, done.stderr

    def test_it_prints_a_settings_file_that_the_engine_takes_and_names_keys(self):
        with tempfile.TemporaryDirectory() as folder:
            extra = {"discovery_addr": "127.0.0.1:31998", "protocol": "tcp", "disk_path": folder,
                     "disk_size": "64mb", "global_segment_size": "64mb", "vnodes": 160,
                     "metrics_dashboard": False, "member_ttl": 6, "local_hostname": "127.0.0.1"}
            status, said, wrong = self.run_it(json.dumps(extra))
            self.assertEqual((status, wrong), (0, ""))
            self.assertRegex(said, r"^# vnodes=160 \(an engine's part")
            for section, line in (("engine", "pool_bytes = 67108864"), ("metrics", "compat = 0.8"),
                                  ("metrics", "dashboard = no"), ("disk", "bytes = 67108864"),
                                  ("cluster", "dead_after_ms = 6000")):
                self.assertRegex(said, rf"\[{section}\]\n([^\[]+\n)?{re.escape(line)}\n")
            self.assertNotIn("socket", said)
            done = self.checked(folder, said)
            self.assertEqual(done.returncode, 0, done.stderr)

    def checked(self, folder, text):
        """Runs the engine with --check and this settings file."""
        path = os.path.join(folder, "peercache.conf")
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        return subprocess.run(
            [os.path.join(BUILD, "engine/peercache-engine"), "--config", path, "--check",
             "--set", f"engine.socket={folder}/e.sock", "--set", "metrics.port=0"],
            capture_output=True, text=True, check=False, timeout=300)

    def test_long_lists_continue_on_lines_that_the_engine_takes(self):
        longest = 0
        for begin in ("127.0.0.1:", "127.0.0.100:", "127.0.100.100:"):
            for digits in range(1, 6):  # so that lines of each length end
                seeds = [begin + "31998"[:digits], *(f"127.0.0.1:{i % 9 + 1}" for i in range(15))]
                text = migration.conf_of({
                    "engine.pool_bytes": "64M", "rail.devices": "soft", "soft.link": "tcp",
                    "cluster.address": "127.0.0.1", "cluster.seeds": ",".join(seeds)})
                self.assertIn("seeds = " + ",".join(seeds), re.sub(",\n +", ",", text))
                longest = max(longest, *map(len, text.split("\n")))
                with tempfile.TemporaryDirectory() as folder:
                    done = self.checked(folder, text)
                self.assertEqual(done.returncode, 0, done.stderr + text)
        self.assertEqual(longest, 189, "no line of the longest length was tried")

    def test_devices_that_are_those_of_this_machine_have_a_comment(self):
        seed = {"discovery_addr": "127.0.0.1:31998"}
        for extra, named in (
                (seed, True), ({**seed, "protocol": "RDMA"}, True), ({}, True),
                ({**seed, "protocol": "TCP "}, False), ({**seed, "device_name": "soft"}, False),
                ({**seed, "device_names": "mlx5_0"}, False),
                ({"engine_settings": {"rail.devices": "mlx5_0"}}, False)):
            status, said, wrong = self.run_it(json.dumps(extra))
            self.assertEqual((status, wrong), (0, ""), extra)
            self.assertEqual("# rail.devices is that of this machine" in said, named, extra)

    def test_an_engine_for_the_shm_allocator_takes_its_memory(self):
        own = {"engine_settings": {"engine.unsealed_memory": "no"}}
        for extra, line in (({}, None), ({"allocator": "default"}, None),
                            ({"allocator": "shm"}, "yes"), ({"allocator": "shm", **own}, "no")):
            _, said, _ = self.run_it(json.dumps({"protocol": "tcp", **extra}))
            self.assertEqual(re.findall(r"\nunsealed_memory = (\w+)\n", said),
                             [line] if line else [], extra)

    def test_wrong_input_ends_it_with_2_and_the_reason(self):
        for text, words, said in (("{", (), "Expecting property name"), ("[1]", (), "an object"),
                                  ('{"ib_port": 7, "device_name": "mlx5_0"}', (), '"ib_port": 7'),
                                  ("", ("/nonexistent",), "No such file"), ("", ("--x",), "FILE")):
            status, _, wrong = self.run_it(text, *words)
            self.assertEqual(status, 2)
            self.assertIn(said, wrong)


class Wheel(unittest.TestCase):
    """0.8.4 itself."""

    maxDiff = None

    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory(prefix="peercache-0.8.4-")
        cls.addClassCleanup(folder.cleanup)
        cls.folder = folder.name
        why = download(cls.folder)
        if why:
            raise unittest.SkipTest(why)

    def test_the_names_are_those_of_the_wheel_of_pypi(self):
        self.assertEqual(names_of(self.folder), listed())

    def node(self, host, port, seeds):
        """A store of 0.8.4 at that address, in a process that obeys lines of its input."""
        extra = {"discovery_addr": ",".join(f"{seed}:{port}" for seed in seeds), "protocol": "tcp",
                 "local_hostname": host, "meta_bind_host": host, "rdma_bind_host": host,
                 "control_bind_host": host, "metrics_enabled": False, "disk_enabled": False,
                 "heartbeat_interval": 0.2, "member_ttl": 30.0, "global_segment_size": "8mb"}
        process = subprocess.Popen(
            [sys.executable, "-u", "-c", NODE, json.dumps(extra)], text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            env={**os.environ, "PYTHONPATH": self.folder})
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        self.addCleanup(process.stdout.close)
        self.addCleanup(process.stdin.close)
        return process

    def answer(self, process, wanted, line=""):
        """Writes a line and reads up to an answer that matches. Returns what was read."""
        if line:
            process.stdin.write(line + "\n")
            process.stdin.flush()
        said = ""
        late = threading.Timer(60, process.kill)
        late.start()
        try:
            for text in process.stdout:
                said += text
                if re.search(wanted, text):
                    return said
        finally:
            late.cancel()
        raise AssertionError(f"no {wanted!r} in:\n{said}")

    def found(self, process, name):
        """0.8.4 answers a set before all its hosts know of the page."""
        harness.wait_for(lambda: "get True" in self.answer(process, "^get ", f"get {name}"), 60,
                         f"{name} is found")

    def test_hosts_of_both_versions_go_on_beside_each_other(self):
        """As the page says: the seed's host is changed first, the others go on among themselves,
        and one that is restarted meanwhile waits."""
        port = harness.cluster.free_port()
        seed = self.node("127.0.0.1", port, ["127.0.0.1"])
        self.answer(seed, "^up")
        others = [self.node(host, port, ["127.0.0.1"]) for host in ("127.0.0.2", "127.0.0.3")]
        for process in others:
            self.answer(process, "^up")
        self.answer(others[0], "^set True", "set a")
        self.found(others[1], "a")
        seed.stdin.write("end\n")
        seed.stdin.flush()
        self.assertEqual(harness.ended(seed), 0)
        cluster = harness.cluster.Cluster(
            harness.BUILD, 1, pool_bytes="64MiB", settings=[f"cluster.port={port}"])
        cluster.start()
        self.addCleanup(cluster.stop)
        session = Session(cluster.sockets[0], "always", 1)
        self.addCleanup(session.close)
        page_ = bytearray(4096)
        at = ctypes.addressof((ctypes.c_char * 4096).from_buffer(page_))
        self.assertEqual(session.set("n", ["a"], [at], [4096], 20000), [True])
        harness.wait_for(lambda: "bytes that are no message" in cluster.log(0), 60,
                         "0.8.4 dials the engine")
        for name in ("b", "c"):
            self.answer(others[0], "^set True", f"set {name}")
            self.found(others[1], name)
        late = self.node("127.0.0.4", port, ["127.0.0.1"])
        self.answer(late, "waiting for a discovery master")
        self.assertEqual(session.get("n", ["a"], [at], [4096], 20000), [True])


if __name__ == "__main__":
    if sys.argv[1:] == ["--print"]:
        print(page(), end="")
    else:
        unittest.main()
