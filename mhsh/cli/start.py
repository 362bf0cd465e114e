"""The command `mhsh` as a process of its own, from its first line on."""

from __future__ import annotations

import os
import sys
import traceback

from mhsh.cli import early_stop

TRAINING = ("train", "finetune", "quickstart")
# These commands allocate a fresh gigabyte in every step.
COMPUTING = (*TRAINING, "eval", "bench", "probe")


def start() -> int:
    """Runs the command of sys.argv; returns its exit status."""
    command = sys.argv[1] if len(sys.argv) > 1 else ""
    if command in TRAINING:
        early_stop.listen()
    else:
        early_stop.release()  # held back where this process has started itself again
    # Only here: it takes a while, and signals are heard by now.
    from mhsh.cli.huge_pages import restart_with_huge_pages
    from mhsh.cli.main import main

    if command in COMPUTING:
        restart_with_huge_pages()
    try:
        status = main()
    except Exception:
        traceback.print_exc()
        status = 1
    if command in TRAINING:
        early_stop.ignore()
        if status:
            # Python's own end would wait for the other processes of the run, which are gone.
            sys.stdout.flush()
            os._exit(status)
    return status
