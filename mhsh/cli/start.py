"""The start of the command `mhsh` as a process of its own."""

from __future__ import annotations

import codecs
import io
import os
import signal
import sys
import traceback

from mhsh.cli import early_stop

VARIABLE = "GLIBC_TUNABLES"
SETTING = "glibc.malloc.hugetlb=1"  # glibc 2.35 and newer: malloc asks for transparent huge pages; elsewhere it says nothing
# These commands allocate a fresh gigabyte in every step.
COMPUTING = (*early_stop.TRAINING, "eval", "bench", "probe")

# As wide as what they stand for, so that columns stay in line; any other is a question mark.
_PLAIN = {"\u25b2": "^", "\u25bc": "v", "\u2020": "+", "\u2212": "-", "\u00d7": "x", "\u2026": "~", "\u2260": "#"}
_ERRORS = "mhsh.plain"


def start() -> int:
    """Runs the command of sys.argv; returns its exit status."""
    open_closed_streams()
    replace_missing_characters()
    command = sys.argv[1] if len(sys.argv) > 1 else ""
    status = _run(command)
    # Python gives handlers back at its end, and a signal would then change the status.
    early_stop.ignore()
    if status and (command in early_stop.TRAINING or early_stop.status() is not None):
        # Python's own end would wait for the other processes of a run, which are gone, and destroys
        # what threads of XLA still use.
        sys.stdout.flush()
        os._exit(status)
    return status


def _run(command: str) -> int:
    try:
        if command in early_stop.TRAINING:
            early_stop.end_at_once()
        else:
            early_stop.unwind()  # here, as a signal may have come already
        # Only here: it takes a while, and signals are heard by now.
        from mhsh.cli.main import main

        if command in COMPUTING:
            restart_with_huge_pages()
        return main()
    except BaseException as error:
        # A library may make another error of an interrupt, such as an ImportError.
        stopped = early_stop.status()
        if stopped is not None:
            return stopped
        if not isinstance(error, Exception):
            raise
        traceback.print_exc()
        return 1


def restart_with_huge_pages() -> None:
    """Starts this process again, with the same arguments and the same id, with malloc asking for
    pages of 2 MiB: in pages of 4 KiB training on a CPU takes a fifth longer.

    glibc reads its settings when a process starts, and XLA takes new memory in every step. Where
    the variable is set already, as it is after the restart, nothing happens: a user's own setting
    stands. Only Linux has such pages.
    """
    if sys.platform == "linux" and VARIABLE not in os.environ:
        sys.stdout.flush()
        # A new program hears no signal until it listens, which unblocks them.
        signal.pthread_sigmask(signal.SIG_BLOCK, early_stop.STOPPED)
        os.execve(sys.executable, sys.orig_argv, os.environ | {VARIABLE: SETTING})


def open_closed_streams() -> None:
    """Starts this process again with all standard streams open, where whoever started it had closed
    some. Else the next file would get the number of one, and a library would print into it.
    """
    if None in (sys.stdin, sys.stdout, sys.stderr):
        while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
            os.set_inheritable(number, True)
        os.execv(sys.executable, sys.orig_argv)


def replace_missing_characters() -> None:
    """Writes what an encoding lacks (Latin-1, ASCII; bytes of a name that are not UTF-8) with the
    characters that it has, where Python would raise UnicodeEncodeError.
    """
    codecs.register_error(_ERRORS, _replace_character)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=_ERRORS)


def _replace_character(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeEncodeError), "nothing is decoded with it"
    return "".join(_PLAIN.get(character, "?") for character in error.object[error.start : error.end]), error.end
