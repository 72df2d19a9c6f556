# SPDX-License-Identifier: Apache-2.0
"""Runs `pip install .` in a virtual environment, then makes a store, which starts an engine. Checks
what the wheel has, that pip does not replace it by 0.8.4, and the error without build packages.

ccache compiles if it is installed. Exit status 77: python3-venv, or a package of PyPI that the
build needs, is not available.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import zipfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "tools"))
import pages  # noqa: E402

BUILD_NEEDS = ["meson-python>=0.16", "meson>=1.0", "ninja", "wheel"]
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


# Prints what is wrong with the installed files.
CONTENT = """
import importlib.metadata
import importlib.util
import os
import subprocess
import sys
wheel = importlib.metadata.distribution("peercache")
version = wheel.version
tag = wheel.read_text("WHEEL").split("Tag: ")[1].split()[0]
if not tag.startswith("cp310-abi3-linux_"):
    print("the tag is", tag)
for name in ("-engine", "-keeper", "ctl", "-bench"):
    program = "peercache" + name
    said = subprocess.run([os.path.join(sys.prefix, "bin", program), "--version"],
                          capture_output=True, text=True)
    if said.stdout != f"{program} {version}\\n":
        print(program, "says", said)
package = os.path.dirname(importlib.util.find_spec("peercache").origin)
for name in ("__init__", "store/__init__", "absent/engine"):
    if not os.path.exists(f"{package}/as_mooncake/mooncake/{name}.py"):
        print("mooncake has no", name)
for line, status, text in (("peercache-bench served --help", 0, "usage: peercache-bench served "),
                           ("peercache-meta --help", 0, "usage: peercache-meta"),
                           ("peercache-as-mooncake env", 0, "/peercache/as_mooncake\\n"),
                           ("peercache-storage-server --help", 0, "usage: peercache-storage-")):
    program, *words = line.split()
    done = subprocess.run([os.path.join(sys.prefix, "bin", program), *words],
                          capture_output=True, text=True)
    if done.returncode != status or text not in done.stdout + done.stderr:
        print(line, "says", done)
if subprocess.run([os.path.join(sys.prefix, "bin", "peercache-setup-host"), "--help"],
                  capture_output=True).returncode:
    print("peercache-setup-host does not run")
if not os.path.exists(package + "/bin/peercache-verbs.so"):
    print("peercache-verbs.so is missing")
said = subprocess.run([os.path.join(sys.prefix, "bin", "peercachectl"), "--help"],
                      capture_output=True, text=True).stdout
if f"\\n  {os.path.realpath(sys.prefix)}/share/doc/peercache-engine/\\n" not in said:
    print("peercachectl --help does not name the folder of the pages:", said)
"""


def check_content(python):
    wrong = run(python, "-c", CONTENT)[1]
    doc = os.path.dirname(os.path.dirname(python)) + "/share/doc/peercache-engine"
    return wrong + "".join(f"{doc}: no {path}\n" for path in pages.lacks(doc))


def check_replacing(pip, python, folder):
    """pip install -U leaves it, although there is a wheel of the former peercache, 0.8.4."""
    name = os.path.join(folder, "peercache-0.8.4-py3-none-any.whl")
    with zipfile.ZipFile(name, "w") as wheel:
        info = "peercache-0.8.4.dist-info"
        wheel.writestr(f"{info}/METADATA",
                       "Metadata-Version: 2.1\nName: peercache\nVersion: 0.8.4\n")
        wheel.writestr(f"{info}/WHEEL",
                       "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
    status, out = run(*pip, "--no-index", "--find-links", folder, "-U", "peercache")
    version = run(python, "-c", "import importlib.metadata as m; print(m.version('peercache'))")[1]
    kept = status == 0 and version.startswith("1.")
    return "" if kept else f"pip install -U leaves {version}: {out}"


def check_without_packages(pip, folder, env):
    """The first error names the packages, where dpkg-query knows none."""
    fake = os.path.join(folder, "dpkg-query")
    with open(fake, "w", encoding="ascii") as file:
        file.write("#!/bin/sh\n")
    os.chmod(fake, 0o755)
    status, out = run(*pip, "--no-build-isolation", "--force-reinstall", ROOT,
                      env={**env, "PATH": folder + os.pathsep + env["PATH"]})
    named = "apt-get install --no-install-recommends" in out and "libevent-dev" in out
    return "" if status and named else f"pip install without packages: {status}: {out[-2000:]}"


def run(*command, **options):
    done = subprocess.run(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          stdin=subprocess.DEVNULL, **options)
    return done.returncode, done.stdout


def free_port():
    import cluster
    return cluster.free_port()


def main():
    with tempfile.TemporaryDirectory(prefix="peercache-") as folder:
        venv = os.path.join(folder, "a venv")  # a blank, as Conda and users have
        python = os.path.join(venv, "bin", "python")
        status, out = run(sys.executable, "-m", "venv", venv)
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
        wrong = (check_content(python) + check_replacing(pip, python, folder) +
                 check_without_packages(pip, folder, env))
        if wrong:
            print(wrong)
            return 1
        env = {key: value for key, value in os.environ.items() if not key.startswith("PEERCACHE")}
        env["PEERCACHE_SOCKET"] = os.path.join(folder, "engine.sock")
        status, out = run(python, "-c", SCRIPT.replace("PORT", str(free_port())), env=env,
                          cwd=folder)
        print(out)
        return 1 if status or "fine" not in out else 0


if __name__ == "__main__":
    sys.exit(main())
