# SPDX-License-Identifier: Apache-2.0
"""The trial of the other host, which ssh starts there. Main thread."""

import json
import os
import shlex
import signal
import subprocess
import sys
import threading

from peercache.trial.frame import Answer, Trial, Unknown

# env says if there is no ssh
SSH = ("env", "ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=5")
FILE = "peer.json"
SECONDS = 60.0  # from the end of this trial to that of the other one


def call(trial: Trial) -> Answer:
    """Starts the same trial there. Raises Unknown with the line to type if ssh does not work."""
    line, ssh = shlex.join(trial.options.there), [*SSH, trial.options.peer]
    status, out = trial.run([*ssh, "peercachectl --version"], "ssh.log", SECONDS)
    if status:
        raise Unknown(f"ssh ended with {status}: {trial.tail('ssh.log')}",
                      f"type this on {trial.options.peer}: {line}")
    with open(trial.path(FILE), "wb") as file:  # the trial there ends with its input: watch()
        trial.facts["peer"] = trial.start([*ssh, f"{line} --called --json --quiet"], "ssh.log",
                                          stdin=subprocess.PIPE, stdout=file)
    return Answer("yes", f"started there: {out.strip()}")


def watch() -> None:
    """In a trial that was called: it is stopped when the other one has gone."""
    def wait() -> None:
        sys.stdin.read()
        os.kill(os.getpid(), signal.SIGTERM)
    threading.Thread(target=wait, daemon=True).start()


def report(trial: Trial) -> Answer:
    """What the other trial has found: its JSON is part of this report."""
    child = trial.facts.get("peer")
    if not child:
        raise Unknown("it was not started over ssh", "look at the report there")
    try:
        child.wait(SECONDS)
        found = json.loads(trial.whole(FILE))
    except subprocess.TimeoutExpired:
        raise Unknown(f"the trial there did not end within {SECONDS:.0f} s", "look at the other "
                      "host") from None
    except ValueError:
        raise Unknown(f"the trial there ended with {child.wait()}: {trial.tail('ssh.log')}",
                      "look at the other host") from None
    return Answer("no" if child.wait() == 1 else "yes", found["verdict"][0],
                  f"read {FILE} of the report" if child.wait() else "")
