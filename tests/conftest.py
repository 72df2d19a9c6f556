# SPDX-License-Identifier: Apache-2.0
"""pytest runs a short suite, which pyproject.toml names, against an editable installation."""

import os

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
BUILD = os.environ.setdefault("PEERCACHE_BUILD", os.path.join(ROOT, "build", "editable"))


def pytest_configure(config):
    if not os.path.isdir(BUILD):
        import pytest
        pytest.exit(f"there is no build in {BUILD}: pip install -e '.[test]', or name another "
                    "build folder in $PEERCACHE_BUILD", returncode=2)


def pytest_terminal_summary(terminalreporter):
    terminalreporter.write_line(f"programs of {BUILD}; all other suites: tools/test "
                                "(tests/README.md)")
