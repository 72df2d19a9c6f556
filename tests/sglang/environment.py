# SPDX-License-Identifier: Apache-2.0
"""Installs SGLang's versions from PyPI for the tests of this folder, and keeps them.

    environment.py [VERSION]...     makes what is missing and prints a line for each version; exit
                                    status 77 if PyPI or a package is not available

There is one virtual environment with CPU torch, and a folder for each version. VERSION may be
"newest": the newest release that PyPI has for this Python, looked up on every call; if PyPI does
not answer, the release that it had when it last did. The dependencies of that release are read from
its metadata, so a release that this file does not know is tested too. SGLang is installed without
dependencies; requirements.txt lists those that its cache modules and its server import. pip
compiles no bytecode, because tests import only a few thousand of about ten thousand files; the
tests write it.

All clones share the folders, which are in $PEERCACHE_TEST_CACHE/sglang; the default of that
variable is peercache-tests in $XDG_CACHE_HOME or ~/.cache. A folder's name has a hash of what
determines its content, so that clones that want other packages do not replace each other's. A
process that uses a folder holds a shared lock on its lock file. A folder that this file does not
list and that no process has used for KEPT_DAYS is removed.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
FOLDER = os.path.join(
    os.environ.get("PEERCACHE_TEST_CACHE") or
    os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"),
                 "peercache-tests"), "sglang")
KEPT_DAYS = 7
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
NEWEST_FILE = os.path.join(FOLDER, "newest.json")  # the release that PyPI had when it last answered
FITTED_MAX = 16  # dependencies that a new release may import beyond requirements.txt
used = {}  # folder -> its open lock file, for as long as this process runs


class Missing(Exception):
    """This machine or PyPI lacks a package or a program that the tests need."""


class Unfit(Exception):
    """A new release cannot be imported with the packages that its metadata names."""


def stamp(*texts):
    """A hash of the texts that determine the content of a folder."""
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()


def folder_of(name, *texts):
    """The path of the folder with this name whose content these texts determine."""
    return os.path.join(FOLDER, f"{name}-{stamp(*texts, sys.version)[:12]}")


def venv_folder():
    """The path of the virtual environment."""
    with open(REQUIREMENTS, encoding="utf-8") as file:
        return folder_of("venv", PIP, TORCH, file.read())


PYTHON = os.path.join(venv_folder(), "bin", "python")


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
                            "--retries", "1", "--timeout", "30", "--report", "-", package))
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


def use(folder):
    """Takes the folder's lock, so that no other process removes the folder while this one runs."""
    if folder not in used:
        used[folder] = open(folder + ".lock", "ab")  # pylint: disable=consider-using-with
        fcntl.flock(used[folder], fcntl.LOCK_SH)
    os.utime(folder + ".lock")


def complete(folder):
    """True if finish() has marked the folder."""
    return os.path.exists(os.path.join(folder, ".complete"))


def finish(folder):
    """Marks the folder as complete."""
    with open(os.path.join(folder, ".complete"), "w", encoding="ascii"):
        pass


def make_venv():
    """Makes the virtual environment with torch and requirements.txt, unless it is complete."""
    folder = venv_folder()
    use(folder)
    if complete(folder):
        return
    shutil.rmtree(folder, ignore_errors=True)
    run("making a virtual environment (python3-venv)", sys.executable, "-m", "venv", folder)
    pip("pip", PIP)
    torch_is_for_cpu()
    pip("torch", TORCH)
    pip("SGLang's dependencies", "-r", REQUIREMENTS)
    finish(folder)


def packages_folder(*packages):
    """The path of the folder with these packages and no others."""
    return folder_of("+".join(packages), *packages)


def make_folder(*packages):
    """Makes a folder with these packages, unless it is complete. Returns its path."""
    folder = packages_folder(*packages)
    use(folder)
    if not complete(folder):
        shutil.rmtree(folder, ignore_errors=True)
        pip(" and ".join(packages), "--target", folder, *packages)
        finish(folder)
    return folder


def make_other(name, *packages, alone=(), without=()):
    """Makes a virtual environment with these packages and what they need, unless it is complete.

    alone: further ones, without what they need. without: those that are needed only where there is
    a GPU. Returns its Python.
    """
    os.makedirs(FOLDER, exist_ok=True)
    folder = folder_of(name, PIP, *packages, *alone, *without)
    use(folder)
    other = os.path.join(folder, "bin", "python")
    if not complete(folder):
        shutil.rmtree(folder, ignore_errors=True)
        run("making a virtual environment (python3-venv)", sys.executable, "-m", "venv", folder)
        pip_ = (other, "-m", "pip", "--quiet", "--disable-pip-version-check")
        run("pip", *pip_, "install", PIP)
        run(" and ".join(packages), *pip_, "install", "--no-compile", *packages)
        if alone:
            run(alone[0], *pip_, "install", "--no-compile", "--no-deps", *alone)
        if without:
            run("pip", *pip_, "uninstall", "--yes", *without)
        finish(folder)
    return other


def remove_unused():
    """Removes folders that are not listed here and that no process has used for KEPT_DAYS."""
    listed = {venv_folder()}
    for version, beside in VERSIONS.items():
        listed |= {packages_folder(f"sglang=={version}"), packages_folder(*beside)}
    listed |= set(newest_kept().get("folders", []))
    for name in os.listdir(FOLDER):
        folder, suffix = os.path.splitext(os.path.join(FOLDER, name))
        if suffix != ".lock" or not name[:-5] or folder in listed or folder in used:
            continue
        with open(folder + ".lock", "ab") as lock:
            if time.time() - os.stat(folder + ".lock").st_mtime < KEPT_DAYS * 24 * 3600:
                continue
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                continue
            shutil.rmtree(folder, ignore_errors=True)
            os.unlink(folder + ".lock")


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


def newest_kept():
    """The release that PyPI had when it last answered, for this Python; {} if there is none.

    A dict with the version, the day, the folders of PYTHONPATH, and the virtual environment in
    which it was imported.
    """
    try:
        with open(NEWEST_FILE, encoding="utf-8") as file:
            kept = json.load(file)
        fits = kept["python"] == sys.version and all(map(complete, kept["folders"]))
    except (OSError, ValueError, KeyError):
        return {}
    return kept if fits else {}


def keep_newest(version, folders):
    """Keeps what newest_kept() returns."""
    with open(NEWEST_FILE + ".new", "w", encoding="utf-8") as file:
        json.dump({"version": version, "day": time.strftime("%Y-%m-%d"), "folders": folders,
                   "venv": venv_folder(), "python": sys.version}, file)
    os.replace(NEWEST_FILE + ".new", NEWEST_FILE)


def make_newest():
    """Makes folders with the newest release, its transformers, and further packages it imports.

    Returns (version, PYTHONPATH). Raises Unfit if the release cannot be imported.
    """
    kept = newest_kept()
    try:
        metadata = look_up("sglang")
    except Missing as why:
        if not kept:
            raise
        print(f"PyPI does not answer ({why}): the newest release of {kept['day']} is tested")
        metadata = {"version": kept["version"]}
    version = metadata["version"]
    if version == kept.get("version") and kept["venv"] == venv_folder():
        folders = kept["folders"]
        for folder in folders:
            use(folder)
    elif version in VERSIONS:
        folders = [make_folder(f"sglang=={version}"), make_folder(*VERSIONS[version])]
    elif "name" in metadata:
        folders = make_unknown(version, requirements_of(metadata))
    else:
        raise Missing(f"PyPI does not answer, and SGLang {version} was never imported with these "
                      "dependencies")
    if "name" in metadata:
        keep_newest(version, folders)
    return version, os.pathsep.join(folders)


def make_unknown(version, wanted):
    """Makes folders with a release that this file does not list. Returns their paths.

    wanted: the requirements of the release. Raises Unfit if it cannot be imported.
    """
    transformers = look_up(wanted.get("transformers", "transformers"))
    beside = requirements_of(transformers)
    packages = [f"transformers=={transformers['version']}"] + [
        f"{name}=={look_up(beside[name])['version']}"
        for name in ("huggingface-hub", "tokenizers") if name in beside]
    folders = [make_folder(f"sglang=={version}"), make_folder(*packages)]
    for _ in range(FITTED_MAX):
        module = module_missing(os.pathsep.join(folders))
        if module is None:
            return folders
        if normalized(module) not in wanted:
            raise Unfit(f"SGLang {version} imports {module}, which its metadata does not name:"
                        " add it to requirements.txt, or to FOREIGN in foreign.py")
        pip(module, "--target", folders[1], wanted[normalized(module)])
    raise Unfit(f"SGLang {version} imports more than {FITTED_MAX} packages that "
                "requirements.txt does not have")


def prepare(version):
    """Returns (version, PYTHONPATH with it and its dependencies).

    Raises Missing if PyPI or a package is not available, and Unfit if a new release cannot be
    imported.
    """
    with alone():
        make_venv()
        if version == NEWEST:
            made = make_newest()
        else:
            made = version, os.pathsep.join([make_folder(f"sglang=={version}"),
                                             make_folder(*VERSIONS[version])])
        remove_unused()
        return made


def prepare_packages(*packages):
    """Returns a folder with these packages and no others, once prepare() has returned.

    Raises Missing if one of them is not available.
    """
    with alone():
        return make_folder(*packages)


@contextlib.contextmanager
def alone():
    """No other process changes FOLDER meanwhile. A program that does not end is Missing."""
    os.makedirs(FOLDER, exist_ok=True)
    with open(os.path.join(FOLDER, ".lock"), "w", encoding="ascii") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            yield
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
