"""Ctrl-C and SIGTERM, heard by every command from its first moment and at any time.

Python runs its signal handlers between two of its instructions, and a program may compile for
minutes in one. So a thread waits for the byte that the interpreter writes when a signal comes.

Training ends at once until it hears signals itself: before the first step a run only reads,
compiles, and replaces files as a whole, so nothing is lost. The other commands unwind, as by
KeyboardInterrupt, and remove what they have begun; where they do not within a second, the thread
removes it and ends the process.
"""

from __future__ import annotations

import _thread
import os
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import NoReturn

TRAINING = ("train", "work", "finetune", "quickstart")  # the commands that train
# Exit statuses. 75 is EX_TEMPFAIL: the launchers start the same command again.
STOPPED = {signal.SIGINT: 128 + signal.SIGINT, signal.SIGTERM: os.EX_TEMPFAIL}
_SECONDS_TO_UNWIND, _SECONDS_TO_TRY_AGAIN = 0.8, 0.02

_heard: int | None = None  # the signal that the handler of a command that unwinds was called with
_tell: Callable[[int], None] | None = None  # called with the signal that ends training at once


def end_at_once() -> None:
    """Lets these signals end the process, except while somebody else handles them."""
    _listen(_leave_to_the_thread)


def unwind() -> None:
    """Lets these signals raise KeyboardInterrupt, except while somebody else handles them."""
    sys.unraisablehook = _raise_again
    _listen(_interrupt)


def before_end(tell: Callable[[int], None]) -> None:
    """Has `tell` called with a signal that ends training at once, before it ends it."""
    global _tell  # noqa: PLW0603 (a process has one way to end)
    _tell = tell


def status() -> int | None:
    """The exit status of the signal that was heard; None: none was."""
    return None if _heard is None else STOPPED[signal.Signals(_heard)]


def report_stop(number: int) -> int:
    """Says that the state is saved. Returns the exit status of the signal."""
    print("Interrupted; state saved. Run the same command to resume.")
    return int(STOPPED[signal.Signals(number)])


def ignore() -> None:
    """Ignores these signals: the process ends anyway, and none may change its exit status."""
    for number in STOPPED:
        signal.signal(number, signal.SIG_IGN)


def _listen(handler: signal._HANDLER) -> None:
    read_end, write_end = os.pipe()
    os.set_blocking(write_end, False)
    for number in STOPPED:
        signal.signal(number, handler)
    signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
    threading.Thread(target=_wait, args=(read_end,), name="early stop", daemon=True).start()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPPED)


def _leave_to_the_thread(number: int, frame: FrameType | None) -> None:
    """A handler must be there for the interpreter to write its byte."""


def _interrupt(number: int, frame: FrameType | None) -> NoReturn:
    global _heard  # noqa: PLW0603 (handlers have no other way to say it)
    _heard = number
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            # Some libraries print what interrupts their import.
            _clear_and_end(signal.Signals(number))
        frame = frame.f_back
    raise KeyboardInterrupt


def _raise_again(unraisable: sys.UnraisableHookArgs) -> None:
    """Python drops what is raised while it collects garbage. An interrupt is raised again, a moment
    later.
    """
    if issubclass(unraisable.exc_type, KeyboardInterrupt):
        threading.Timer(_SECONDS_TO_TRY_AGAIN, _thread.interrupt_main, (signal.Signals(_heard or signal.SIGINT),)).start()
    else:
        sys.__unraisablehook__(unraisable)


def _wait(pipe: int) -> None:
    while data := os.read(pipe, 1):
        number = signal.Signals(data[0])
        if number not in STOPPED:
            continue
        if signal.getsignal(number) is _leave_to_the_thread:
            try:
                if _tell is not None:
                    _tell(number)
            finally:
                _end(number, b"Interrupted; nothing new was to be saved. Run the same command again.\n")
        elif signal.getsignal(number) is _interrupt:
            threading.Timer(_SECONDS_TO_UNWIND, _end_unless_heard, (number,)).start()


def _end_unless_heard(number: signal.Signals) -> None:
    if _heard is None:  # the main thread is in a long call of a library
        _clear_and_end(number)


def _clear_and_end(number: signal.Signals) -> NoReturn:
    if "mhsh.storage.files" in sys.modules:
        sys.modules["mhsh.storage.files"].remove_unfinished()
    _end(number, b"")


def _end(number: signal.Signals, message: bytes) -> NoReturn:
    os.write(2, message)
    os._exit(STOPPED[number])
