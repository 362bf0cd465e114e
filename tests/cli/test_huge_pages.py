"""The restart with huge pages: once, with the same arguments and the same process id, and never
over a user's own setting.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from mhsh.cli.start import SETTING, VARIABLE

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has transparent huge pages")

PROGRAM = """
import os, sys
from mhsh.cli.start import restart_with_huge_pages
print(os.getpid(), sys.argv[1:], flush=True)
restart_with_huge_pages()
print(os.getpid(), sys.argv[1:], os.environ["GLIBC_TUNABLES"])
held = bytearray(64 << 20)
held[::4096] = b"x" * (len(held) // 4096)
pages = [line for line in open("/proc/self/smaps_rollup") if line.startswith("AnonHugePages")]
print(int(pages[0].split()[1]) >> 10)
"""


def lines(**environment: str) -> list[str]:
    bare = {name: value for name, value in os.environ.items() if name != VARIABLE}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, "a b", "--c=d"], capture_output=True, text=True, check=True, env=bare | environment
    )
    return done.stdout.splitlines()


def test_restarts_once_as_the_same_process():
    first, again, last, huge = lines()
    assert first == again and first.endswith("['a b', '--c=d']")
    assert last == f"{first} {SETTING}"
    if "[never]" not in Path("/sys/kernel/mm/transparent_hugepage/enabled").read_text():
        assert int(huge) >= 60  # MiB of the 64


def test_leaves_a_setting_of_the_users_alone():
    first, last, _ = lines(**{VARIABLE: "glibc.malloc.hugetlb=0"})
    assert last == f"{first} glibc.malloc.hugetlb=0"
