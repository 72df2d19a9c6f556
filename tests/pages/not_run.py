# SPDX-License-Identifier: Apache-2.0
"""The command lines of the READMEs and of the pages that test_commands.py and test_demo.py do not
run, and why.

A pattern of Python's re, which matches from the first character of a command. One that matches no
command is an error.
"""

import re

NOT_RUN = {
    r"tools/install ": "apt installs packages; .ci/run runs it",
    r"tools/package wheel": "python_wheel runs it",
    r"python3 -m sglang\.launch_server ": "served runs the same lines, from the backend's README",
    r"apt install \./peercache-engine_": "python_deb installs the packages on a bare Debian",
    r"python3 -m venv (/opt/)?peercache && ": "python_wheel installs the wheel on a bare Debian",
    r"pip install (\./|build/package/)?peercache[-=]":
        "python_wheel, python_install and python_migration do that",
    r"python3 -m peercache\.migration ": "python_migration runs it",
    r"conf=\$VIRTUAL_ENV": "python_wheel runs this block of README.md after installing the wheel",
    r"peercache-engine --config \$conf": "python_wheel",
    r"until peercachectl --socket /tmp/peercache-node-": "python_wheel",
    r"/usr/bin/meson setup build/release": "pages_demo builds it; tools_installed installs one",
    r"tools/test": "this test is a part of it",
    r"perf/run": "it measures for minutes on a quiet machine; unit/perf tests it",
    r"tools/demo --trace": "needs Mooncake's public trace beside the tree",
    r"ls /sys/class/infiniband": "no NIC is here",
    r"peercache-setup-host .*--apply": "writes to the kernel of this machine; tools_setup_host",
    r"peercachectl keys ": "it records for minutes; cluster/test_ctl.py runs it, and the next line",
    r"peercache-bench policy trace\.jsonl": "of the recorded trace, which is not there",
    r"(systemd-sysusers|systemctl|journalctl)": "no systemd runs here; cluster/test_systemd.py",
}


def why_not(command):
    """Why a command is not run, or None."""
    return next((why for pattern, why in NOT_RUN.items() if re.match(pattern, command)), None)
