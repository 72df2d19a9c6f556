# SPDX-License-Identifier: Apache-2.0
"""A virtual environment under build/ with CPU torch, and SGLang's versions beside it, from PyPI.

    environment.py [VERSION]...     makes what is missing; prints a line for each version; exit 77
                                    when there is none

SGLang comes without its dependencies; requirements.txt has those its cache modules import. Nothing
is compiled to bytecode ahead: of some ten thousand files a few thousand are ever imported.
"""

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
FOLDER = os.path.join(os.path.dirname(os.path.dirname(HERE)), "build", "sglang")
PYTHON = os.path.join(FOLDER, "venv", "bin", "python")
REQUIREMENTS = os.path.join(HERE, "requirements.txt")
TORCH = "torch==2.13.0"
PIP = "pip==26.3"  # that of Python 3.11 takes more than twice as long to look through PyPI
# SGLang's version -> the transformers it was made for, and the hub client that goes with it.
VERSIONS = {
    "0.5.6": ("transformers==4.57.1", "huggingface_hub==0.36.2"),
    "0.5.10": ("transformers==5.12.1", "huggingface_hub==1.33.0"),
    "0.5.14": ("transformers==5.12.1", "huggingface_hub==1.33.0"),
    "0.5.18": ("transformers==5.12.1", "huggingface_hub==1.33.0"),
}


class Missing(Exception):
    """What this machine, or PyPI from here, lacks."""


def run(what, *command):
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL,
                          timeout=1500)
    if done.returncode:
        lines = [line for line in (done.stdout + done.stderr).splitlines()
                 if line.strip() and not line.startswith("WARNING")]
        raise Missing(f"{what}: {lines[-1] if lines else done.returncode}")
    return done.stdout


def pip(what, *arguments):
    return run(what, PYTHON, "-m", "pip", "install", "--quiet", "--disable-pip-version-check",
               "--no-deps", "--no-compile", *arguments)


def torch_is_for_cpu():
    """PyPI's own file is for CUDA, gigabytes, and of no use here."""
    report = json.loads(pip("looking for torch", "--dry-run", "--ignore-installed", "--report",
                            "-", TORCH))
    found = report["install"][0]["metadata"]["version"]
    if "+cpu" not in found:
        raise Missing(f"pip finds torch {found}, not a CPU build; name a place that has one in "
                      "PIP_FIND_LINKS or PIP_EXTRA_INDEX_URL")


def stamp(*texts):
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()


def complete(folder, mark):
    try:
        with open(os.path.join(folder, ".complete"), encoding="ascii") as file:
            return file.read() == mark
    except OSError:
        return False


def finish(folder, mark):
    with open(os.path.join(folder, ".complete"), "w", encoding="ascii") as file:
        file.write(mark)


def make_venv():
    folder = os.path.join(FOLDER, "venv")
    with open(REQUIREMENTS, encoding="utf-8") as file:
        mark = stamp(PIP, TORCH, file.read(), sys.version)
    if complete(folder, mark):
        return
    shutil.rmtree(folder, ignore_errors=True)
    run("making a virtual environment (python3-venv)", sys.executable, "-m", "venv", folder)
    pip("pip", PIP)
    torch_is_for_cpu()
    pip("torch", TORCH)
    pip("SGLang's dependencies", "-r", REQUIREMENTS)
    finish(folder, mark)


def make_folder(*packages):
    """A folder with these packages and no others."""
    folder = os.path.join(FOLDER, "+".join(packages))
    mark = stamp(*packages, sys.version)
    if not complete(folder, mark):
        shutil.rmtree(folder, ignore_errors=True)
        pip(" and ".join(packages), "--target", folder, *packages)
        finish(folder, mark)
    return folder


def prepare(version):
    """SGLang's version and what goes with it, for PYTHONPATH; Missing says why there is none."""
    os.makedirs(FOLDER, exist_ok=True)
    with open(os.path.join(FOLDER, ".lock"), "w", encoding="ascii") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            make_venv()
            return os.pathsep.join([make_folder(f"sglang=={version}"),
                                    make_folder(*VERSIONS[version])])
        except subprocess.TimeoutExpired as error:
            raise Missing(f"{error.cmd[0]} did not end in {error.timeout} s") from error


def main():
    missing = 0
    for name in sys.argv[1:] or VERSIONS:
        try:
            print(name, prepare(name))
        except Missing as why:
            print(name, "missing:", why)
            missing += 1
    return 77 if missing == len(sys.argv[1:] or VERSIONS) else 0


if __name__ == "__main__":
    sys.exit(main())
