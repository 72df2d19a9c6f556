# SPDX-License-Identifier: Apache-2.0
"""What ends a run early. Main thread."""

import contextlib
import os
import signal
from typing import Any


class Stop:
    """Ctrl-C and SIGTERM. The first one ends the measurement, a second one the program.

    Attributes:
        requested: a signal came while something was measured.
        measuring: if false, a signal raises KeyboardInterrupt, because nothing is there to report.
    """

    def __init__(self) -> None:
        self.requested = self.measuring = False
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._come)

    def _come(self, number: int, _frame: Any) -> None:
        if self.requested or not self.measuring:
            signal.signal(number, signal.SIG_DFL)
            raise KeyboardInterrupt
        self.requested = True
        # Without sys.stderr: the main thread may be inside a write to it.
        with contextlib.suppress(OSError):
            os.write(2, b"peercache-bench: ending with what it has; once more ends it at once\n")
