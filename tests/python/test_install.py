# SPDX-License-Identifier: Apache-2.0
"""Runs `pip install .` in a virtual environment, then makes a store, which starts an engine.

ccache compiles if it is installed. Exit status 77: python3-venv, or a package of PyPI that the
build needs, is not available.
"""

import os
import shutil
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BUILD_NEEDS = ["meson-python>=0.16", "meson>=1.0", "ninja"]
# Makes a store as SGLang does, with PeerCache 0.8.2's extra config. No engine runs, and the config
# does not name the engine's program.
SCRIPT = """
import importlib.metadata
import sys
from types import SimpleNamespace
import peercache
from peercache.store import PeerCacheStore
assert sys.prefix in peercache.__file__, peercache.__file__
assert peercache.__version__ == importlib.metadata.version("peercache")
store = PeerCacheStore(SimpleNamespace(tp_rank=0, tp_size=1, model_name="m", extra_config={
    "backend_name": "peercache", "module_path": "peercache.store", "interface_v1": 1,
    "class_name": "PeerCacheStore", "discovery_addr": "127.0.0.1:PORT", "protocol": "tcp",
    "global_segment_size": "64mb", "disk_enabled": False, "metrics_enabled": False,
    "engine_settings": {"engine.huge_pages": "no", "rail.polling": "adaptive"}}), {})
assert '"members"' in store._session.report()
store.close()
print("fine")
"""


def run(*command, **options):
    done = subprocess.run(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          stdin=subprocess.DEVNULL, **options)
    return done.returncode, done.stdout


def free_port():
    sys.path.insert(0, os.path.join(ROOT, "tools"))
    import cluster
    return cluster.free_port()


def main():
    with tempfile.TemporaryDirectory(prefix="peercache-") as folder:
        python = os.path.join(folder, "venv", "bin", "python")
        status, out = run(sys.executable, "-m", "venv", os.path.join(folder, "venv"))
        if status:
            print("skipped: python3 -m venv failed; install python3-venv:", out[-500:])
            return 77
        pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        status, out = run(*pip, *BUILD_NEEDS)
        if status:
            print("skipped: pip cannot get the build's packages from PyPI:", out[-500:])
            return 77
        path = os.path.dirname(python) + os.pathsep + os.environ["PATH"]
        env = {**os.environ, "PATH": path}
        if shutil.which("ccache"):
            env = {"CC": "ccache gcc", "CCACHE_NOHASHDIR": "1", **env}
        status, out = run(*pip, "--no-build-isolation", ROOT, env=env)
        if status:
            print("pip install . failed:", out[-4000:])
            return 1
        env = {key: value for key, value in os.environ.items() if not key.startswith("PEERCACHE")}
        env["PEERCACHE_SOCKET"] = os.path.join(folder, "engine.sock")
        status, out = run(python, "-c", SCRIPT.replace("PORT", str(free_port())), env=env,
                          cwd=folder)
        print(out)
        return 1 if status or "fine" not in out else 0


if __name__ == "__main__":
    sys.exit(main())
