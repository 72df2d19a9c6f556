# SPDX-License-Identifier: Apache-2.0
"""Installs SGLang's versions from PyPI under build/sglang, for the tests of this folder.

    environment.py [VERSION]...     makes what is missing and prints a line for each version; exit
                                    status 77 if PyPI or a package is not available

There is one virtual environment with CPU torch, and a folder for each version. VERSION may be
"newest": the newest release that PyPI has for this Python, looked up on every call. The
dependencies of that release are read from its metadata, so a release that this file does not know
is tested too. SGLang is installed without dependencies; requirements.txt lists those that its cache
modules import. pip compiles no bytecode, because tests import only a few thousand of about ten
thousand files.
"""

import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
FOLDER = os.path.join(os.path.dirname(os.path.dirname(HERE)), "build", "sglang")
PYTHON = os.path.join(FOLDER, "venv", "bin", "python")
REQUIREMENTS = os.path.join(HERE, "requirements.txt")
TORCH = "torch==2.13.0"
PIP = "pip==26.3"  # the pip of Python 3.11 needs more than twice the time for PyPI
# SGLang's version -> its version of transformers, and the matching hub client.
VERSIONS = {
    "0.5.6": ("transformers==4.57.1", "huggingface_hub==0.36.2"),
    "0.5.10": ("transformers==5.12.1", "huggingface_hub==1.33.0"),
    "0.5.18": ("transformers==5.12.1", "huggingface_hub==1.33.0"),
}
NEWEST = "newest"
FITTED_MAX = 16  # dependencies that a new release may import beyond requirements.txt


class Missing(Exception):
    """This machine or PyPI lacks a package or a program that the tests need."""


class Unfit(Exception):
    """A new release cannot be imported with the packages that its metadata names."""


def run(what, *command):
    """Runs a command and returns its output. Raises Missing with the command's last line."""
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL,
                          timeout=1500)
    if done.returncode:
        lines = [line for line in (done.stdout + done.stderr).splitlines()
                 if line.strip() and not line.startswith("WARNING")]
        raise Missing(f"{what}: {lines[-1] if lines else done.returncode}")
    return done.stdout


def pip(what, *arguments):
    """pip install in the virtual environment, without dependencies and bytecode."""
    return run(what, PYTHON, "-m", "pip", "install", "--quiet", "--disable-pip-version-check",
               "--no-deps", "--no-compile", *arguments)


def look_up(package):
    """Metadata of the package that pip would install, such as its version.

    Downloads no wheel if PyPI serves the metadata separately.
    """
    report = json.loads(pip("looking for " + package, "--dry-run", "--ignore-installed",
                            "--report", "-", package))
    return report["install"][0]["metadata"]


def requirements_of(metadata):
    """The requirements of a package as a dict by name, without the optional ones."""
    wanted = {}
    for line in metadata.get("requires_dist", []):
        requirement, _, marker = line.partition(";")
        name = re.match(r"[A-Za-z0-9._-]+", requirement.strip())
        if name and "extra" not in marker:
            wanted[normalized(name[0])] = re.sub(r"\[.*?\]", "", requirement).strip()
    return wanted


def normalized(name):
    """A package's name in the form in which names are compared."""
    return re.sub(r"[-_.]+", "-", name).lower()


def torch_is_for_cpu():
    """Raises Missing unless pip finds a CPU build of torch.

    PyPI's own file is for CUDA and has several gigabytes.
    """
    found = look_up(TORCH)["version"]
    if "+cpu" not in found:
        raise Missing(f"pip finds torch {found}, not a CPU build; name a folder or index that "
                      "has one in PIP_FIND_LINKS or PIP_EXTRA_INDEX_URL")


def stamp(*texts):
    """A hash of the texts that determine the content of a folder."""
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()


def complete(folder, mark):
    """True if finish() has marked the folder with this stamp."""
    try:
        with open(os.path.join(folder, ".complete"), encoding="ascii") as file:
            return file.read() == mark
    except OSError:
        return False


def finish(folder, mark):
    """Marks the folder as complete."""
    with open(os.path.join(folder, ".complete"), "w", encoding="ascii") as file:
        file.write(mark)


def make_venv():
    """Makes the virtual environment with torch and requirements.txt, unless it is complete."""
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
    """Makes a folder with these packages and no others. Returns its path."""
    folder = os.path.join(FOLDER, "+".join(packages))
    mark = stamp(*packages, sys.version)
    if not complete(folder, mark):
        shutil.rmtree(folder, ignore_errors=True)
        pip(" and ".join(packages), "--target", folder, *packages)
        finish(folder, mark)
    return folder


def module_missing(path):
    """Runs rank.py --import. Returns the name of the module that was not found, or None.

    Raises Unfit if the import fails for another reason.
    """
    done = subprocess.run([PYTHON, os.path.join(HERE, "rank.py"), "--import"],
                          env={**os.environ, "PYTHONPATH": path, "CUDA_VISIBLE_DEVICES": ""},
                          capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=600)
    if done.returncode == 0:
        return None
    found = re.search(r"ModuleNotFoundError: No module named '([^'.]+)", done.stderr)
    if not found or found[1] == "sglang":
        raise Unfit(done.stderr[-3000:])
    return found[1]


def make_newest():
    """Makes folders with the newest release, its transformers, and further packages it imports.

    Returns (version, PYTHONPATH). Raises Unfit if the release cannot be imported.
    """
    metadata = look_up("sglang")
    version, wanted = metadata["version"], requirements_of(metadata)
    if version in VERSIONS:
        return version, os.pathsep.join([make_folder(f"sglang=={version}"),
                                         make_folder(*VERSIONS[version])])
    transformers = look_up(wanted.get("transformers", "transformers"))
    beside = requirements_of(transformers)
    packages = [f"transformers=={transformers['version']}"] + [
        f"{name}=={look_up(beside[name])['version']}"
        for name in ("huggingface-hub", "tokenizers") if name in beside]
    folders = [make_folder(f"sglang=={version}"), make_folder(*packages)]
    fitted = os.path.join(FOLDER, f"sglang=={version}", ".fitted")
    if not complete(fitted, stamp(*packages)):
        for _ in range(FITTED_MAX):
            module = module_missing(os.pathsep.join(folders))
            if module is None:
                break
            if normalized(module) not in wanted:
                raise Unfit(f"SGLang {version} imports {module}, which its metadata does not name:"
                            " add it to requirements.txt, or to FOREIGN in foreign.py")
            pip(module, "--target", folders[1], wanted[normalized(module)])
        else:
            raise Unfit(f"SGLang {version} imports more than {FITTED_MAX} packages that "
                        "requirements.txt does not have")
        os.makedirs(fitted, exist_ok=True)
        finish(fitted, stamp(*packages))
    return version, os.pathsep.join(folders)


def prepare(version):
    """Returns (version, PYTHONPATH with it and its dependencies).

    Raises Missing if PyPI or a package is not available, and Unfit if a new release cannot be
    imported.
    """
    os.makedirs(FOLDER, exist_ok=True)
    with open(os.path.join(FOLDER, ".lock"), "w", encoding="ascii") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            make_venv()
            if version == NEWEST:
                return make_newest()
            return version, os.pathsep.join([make_folder(f"sglang=={version}"),
                                             make_folder(*VERSIONS[version])])
        except subprocess.TimeoutExpired as error:
            raise Missing(f"{error.cmd[0]} did not end in {error.timeout} s") from error


def main():
    missing = 0
    names = sys.argv[1:] or [*VERSIONS, NEWEST]
    for name in names:
        try:
            print(name, *prepare(name))
        except Missing as why:
            print(name, "missing:", why)
            missing += 1
        except Unfit as why:
            print(name, "does not import:", why)
            return 1
    return 77 if missing == len(names) else 0


if __name__ == "__main__":
    sys.exit(main())
