"""Memory in pages of 2 MiB for processes that compute: in pages of 4 KiB training on a CPU takes a
fifth longer.
"""

from __future__ import annotations

import os
import sys

from mhsh.cli import early_stop

VARIABLE = "GLIBC_TUNABLES"
SETTING = "glibc.malloc.hugetlb=1"  # glibc 2.35 and newer: malloc asks for transparent huge pages; elsewhere it says nothing


def restart_with_huge_pages() -> None:
    """Starts this process again, with the same arguments and the same id, with malloc asking for
    huge pages.

    glibc reads its settings when a process starts, and XLA takes new memory in every step. Where
    the variable is set already, as it is after the restart, nothing happens: a user's own setting
    stands. Only Linux has such pages.
    """
    if sys.platform == "linux" and VARIABLE not in os.environ:
        sys.stdout.flush()
        early_stop.hold_back()  # a new program hears no signal until it listens
        os.execve(sys.executable, sys.orig_argv, os.environ | {VARIABLE: SETTING})
