# SPDX-License-Identifier: Apache-2.0
"""The build backend of pyproject.toml: meson-python, with two additions.

A machine without the packages of `tools/install --build` learns their names in the first error. The
wheel's tag is that of the oldest Python that the extension runs on, not of the one that built it.
"""
import os
import subprocess
import sys
import sysconfig

from mesonpy import (build_editable as _build_editable, build_sdist, build_wheel as _build_wheel,
                     get_requires_for_build_editable, get_requires_for_build_sdist,
                     get_requires_for_build_wheel)

__all__ = ["build_editable", "build_sdist", "build_wheel", "get_requires_for_build_editable",
           "get_requires_for_build_sdist", "get_requires_for_build_wheel"]
PYTHON_TAG = "cp310"  # Py_LIMITED_API of engine/client/python/peercache/meson.build
# Not needed by the Python package: pip brings meson and ninja.
BROUGHT = ("meson", "ninja-build", "python3", "python3-dev")
RDMA = ("libibverbs-dev", "libibverbs1", "ibverbs-providers")


def without_rdma(config_settings):
    """Whether -Csetup-args=-Dverbs=disabled was given."""
    given = (config_settings or {}).get("setup-args", [])
    return "-Dverbs=disabled" in ([given] if isinstance(given, str) else given)


def check_packages(config_settings):
    """Ends with the names of missing Debian packages; does nothing where there is no dpkg."""
    listed = subprocess.run(["tools/install", "--build", "--list"], capture_output=True, text=True)
    needed = [name for name in listed.stdout.split()
              if name not in BROUGHT and not (name in RDMA and without_rdma(config_settings))]
    try:
        there = subprocess.run(["dpkg-query", "-W", "-f=${Package} ${db:Status-Status}\n", *needed],
                               capture_output=True, text=True).stdout
    except FileNotFoundError:
        return
    missing = [name for name in needed if f"{name} installed" not in there.splitlines()]
    if not os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h")):
        missing.append("python3-dev")
    if missing:
        sys.exit("peercache is compiled here, and these Debian packages are missing. As root:\n"
                 f"    apt-get install --no-install-recommends {' '.join(missing)}\n"
                 "or install a wheel of `tools/package wheel`, which needs no compiler. Without"
                 " RDMA: pip install -Csetup-args=-Dverbs=disabled")


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    check_packages(config_settings)
    name = _build_wheel(wheel_directory, config_settings, metadata_directory)
    done = subprocess.run([sys.executable, "-m", "wheel", "tags", "--remove", "--python-tag",
                           PYTHON_TAG, os.path.join(wheel_directory, name)],
                          capture_output=True, text=True)
    if done.returncode:
        sys.exit("wheel tags: " + done.stdout + done.stderr)
    return done.stdout.split()[-1]


def build_editable(wheel_directory, config_settings=None, metadata_directory=None):
    check_packages(config_settings)
    return _build_editable(wheel_directory, config_settings, metadata_directory)
