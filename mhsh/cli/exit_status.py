"""Exit statuses of the commands."""

from __future__ import annotations

import os
import signal

USAGE_ERROR = 2
# Of a process that a signal stopped. 75 is EX_TEMPFAIL: the launchers start the same command again.
STOPPED = {signal.SIGINT: 128 + signal.SIGINT, signal.SIGTERM: os.EX_TEMPFAIL}


def interrupted(signal_number: int) -> int:
    """Says that the state is saved. Returns the status in STOPPED."""
    print("Interrupted; state saved. Run the same command to resume.")
    return int(STOPPED[signal.Signals(signal_number)])
