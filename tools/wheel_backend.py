# SPDX-License-Identifier: Apache-2.0
"""The build backend of pyproject.toml: meson-python, with these additions.

A machine without the packages of `tools/install --build` learns their names in the first error.
PEERCACHE_NO_RDMA=ON, in the environment or as a setting of pip, is -Dverbs=disabled. The tag of the
wheel is that of the oldest Python that the extension runs on, not of the one that built it, and the
links of its description are absolute. An editable wheel names a build folder, in which the Python
files are links to the sources.
"""
import glob
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile

from mesonpy import (build_sdist, build_wheel as _build_wheel, get_requires_for_build_editable,
                     get_requires_for_build_sdist, get_requires_for_build_wheel)

import pages

__all__ = ["build_editable", "build_sdist", "build_wheel", "get_requires_for_build_editable",
           "get_requires_for_build_sdist", "get_requires_for_build_wheel"]
PYTHON_TAG = "cp310"  # Py_LIMITED_API of engine/client/python/peercache/meson.build
README = "engine/client/python/README.md"  # `readme` of pyproject.toml
# Not needed by the Python package: pip brings meson and ninja; RDMA is left out without libibverbs.
BROUGHT = ("meson", "ninja-build", "python3", "python3-dev")
RDMA = ("libibverbs-dev", "libibverbs1", "ibverbs-providers")
EDITABLE = os.path.join(pages.ROOT, "build", "editable")  # tests/conftest.py knows it
NO_RDMA = ("PEERCACHE_NO_RDMA", "cmake.define.PEERCACHE_NO_RDMA")  # also as PeerCache 0.8 has it


def settings_of(config_settings):
    """The settings of meson-python."""
    settings = dict(config_settings or {})
    values = [os.environ.get(NO_RDMA[0], ""), *(settings.pop(name, "") for name in NO_RDMA)]
    for value in filter(None, values):
        if value.lower() not in ("1", "on", "yes", "true", "0", "off", "no", "false"):
            sys.exit(f"{NO_RDMA[0]}={value}: write ON, or OFF")
    if any(value.lower() in ("1", "on", "yes", "true") for value in values):
        given = settings.get("setup-args", [])
        settings["setup-args"] = [*([given] if isinstance(given, str) else given),
                                  "-Dverbs=disabled"]
    return settings


def check_packages():
    """Ends with the names of missing Debian packages; does nothing where there is no dpkg."""
    said = subprocess.run(["tools/install", "--build", "--check"], capture_output=True,
                          text=True).stderr
    missing = [name for name in "".join(re.findall(r"install: missing: (.*)", said)).split()
               if name not in BROUGHT + RDMA]
    if not os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h")):
        missing.append("python3-dev")
    if missing:
        sys.exit("peercache is compiled here, and these Debian packages are missing. As root:\n"
                 f"    apt-get install --no-install-recommends {' '.join(missing)}\n"
                 f"With RDMA also {RDMA[0]}. Or install a wheel of `tools/package wheel`, which"
                 " needs no compiler.")


def repack(wheel, change):
    """Calls change() with the folder of the wheel's files, and its .dist-info. Returns the name of
    the wheel that it makes of them."""
    def run(*words):
        done = subprocess.run([sys.executable, "-m", "wheel", *words], capture_output=True,
                              text=True)
        if done.returncode:
            sys.exit(f"wheel {words[0]}: {done.stdout}{done.stderr}")

    with tempfile.TemporaryDirectory() as folder:
        run("unpack", "--dest", folder, wheel)
        os.remove(wheel)
        tree, = glob.glob(folder + "/*")
        change(tree, *glob.glob(glob.escape(tree) + "/*.dist-info"))
        run("pack", "--dest-dir", folder, tree)
        made, = glob.glob(folder + "/*.whl")
        shutil.copy(made, os.path.dirname(wheel))
        return os.path.basename(made)


def edit(path, change):
    with open(path, encoding="utf-8") as file:
        text = file.read()
    with open(path, "w", encoding="utf-8") as file:
        file.write(change(text))


def tag_and_links(_tree, info):
    edit(info + "/WHEEL", lambda text: re.sub(r"(?m)^Tag: cp\d+-", f"Tag: {PYTHON_TAG}-", text))
    edit(info + "/METADATA", lambda text: pages.absolute(
        text, README, re.search(r"(?m)^Project-URL: Source, (.*)$", text).group(1)))


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    settings = settings_of(config_settings)
    check_packages()
    name = _build_wheel(wheel_directory, settings, metadata_directory)
    return repack(os.path.join(wheel_directory, name), tag_and_links)


def build_editable(wheel_directory, config_settings=None, metadata_directory=None):
    name = build_wheel(wheel_directory, {**(config_settings or {}), "build-dir": EDITABLE},
                       metadata_directory)
    folder = os.path.join(EDITABLE, "engine", "client", "python")

    def name_folder(tree, _info):
        """The package is found in the build folder, with its programs, as elsewhere."""
        programs = os.path.join(folder, "peercache", "bin")
        shutil.rmtree(programs, ignore_errors=True)
        os.mkdir(programs)
        for program in os.listdir(tree + "/peercache/bin"):
            built, = [path for part in ("engine", "tools")
                      for path in glob.glob(os.path.join(glob.escape(EDITABLE), part, program))]
            os.symlink(built, os.path.join(programs, program))
        shutil.rmtree(tree + "/peercache")
        with open(tree + "/peercache.pth", "w", encoding="utf-8") as file:
            file.write(folder + "\n")

    return repack(os.path.join(wheel_directory, name), name_folder)
