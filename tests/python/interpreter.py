# SPDX-License-Identifier: Apache-2.0
"""Runs a test with another version of Python: one on PATH, or one that pyenv has made.

    interpreter.py VERSION TEST

Exit status 77: this machine does not have that Python.
"""

import glob
import os
import subprocess
import sys


def works(python, version):
    code = "import sys; print('%d.%d' % sys.version_info[:2])"
    try:
        done = subprocess.run([python, "-c", code], capture_output=True, text=True)
    except OSError:
        return False
    return done.stdout.strip() == version


def main():
    version, *test = sys.argv[1:]
    name = "python" + version
    pyenv = os.environ.get("PYENV_ROOT", os.path.expanduser("~/.pyenv"))
    made = sorted(glob.glob(f"{glob.escape(pyenv)}/versions/{version}.*/bin/{name}"))
    for python in [name, *made]:
        if works(python, version):
            os.execvp(python, [python, *test])
    print(f"skipped: no {name} on PATH or below {pyenv}/versions")
    return 77


if __name__ == "__main__":
    sys.exit(main())
