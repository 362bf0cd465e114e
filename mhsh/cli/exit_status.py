"""Exit statuses of the commands."""

from __future__ import annotations

import os
import signal

USAGE_ERROR = 2


def interrupted(signal_number: int) -> int:
    """Says that the state is saved. The status: 75 (EX_TEMPFAIL, requeue) for SIGTERM, else
    128 + n.
    """
    print("Interrupted; state saved. Run the same command to resume.")
    return os.EX_TEMPFAIL if signal_number == signal.SIGTERM else 128 + signal_number
