"""Ctrl-C and SIGTERM before training hears them itself: the process ends at once, whatever it does.

Until the first step a run only reads, compiles, and replaces files as a whole, so nothing is lost.
Python runs its signal handlers between two of its instructions, and a program may compile for
minutes in one. So a thread waits for the byte that the interpreter writes when a signal comes.
"""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType

from mhsh.cli.exit_status import STOPPED


def listen() -> None:
    """From now on these signals end the process, except while somebody else handles them."""
    here, there = os.pipe()
    os.set_blocking(there, False)
    for number in STOPPED:
        signal.signal(number, _leave_to_the_thread)
    signal.set_wakeup_fd(there, warn_on_full_buffer=False)
    threading.Thread(target=_wait, args=(here,), name="early stop", daemon=True).start()
    release()


def hold_back() -> None:
    """The signals wait until `release`, also in a program that this process starts in its place."""
    signal.pthread_sigmask(signal.SIG_BLOCK, STOPPED)


def release() -> None:
    """Lets signals come that `hold_back` made wait."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPPED)


def ignore() -> None:
    """The process ends anyway: a signal may not change its exit status any more."""
    for number in STOPPED:
        signal.signal(number, signal.SIG_IGN)


def _leave_to_the_thread(number: int, frame: FrameType | None) -> None:
    """A handler must be there for the interpreter to write its byte."""


def _wait(pipe: int) -> None:
    while data := os.read(pipe, 1):
        number = signal.Signals(data[0])
        if number in STOPPED and signal.getsignal(number) is _leave_to_the_thread:
            os.write(2, b"Interrupted; nothing new was to be saved. Run the same command again.\n")
            os._exit(STOPPED[number])
