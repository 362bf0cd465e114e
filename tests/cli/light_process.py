"""mhsh in a process of its own, for the commands that must not wait for the libraries of
training.
"""

from __future__ import annotations

import subprocess
import sys

from tests.conftest import ROOT

_MAIN = """
import sys
from mhsh.cli.main import main
status = main(sys.argv[1:])
heavy = {"jax", "jaxlib", "flax", "optax", "orbax", "grain", "torch", "tensorflow"} & set(sys.modules)
sys.exit(f"it imports {heavy}" if heavy else status)
"""


def mhsh_without_jax(*arguments: str) -> subprocess.CompletedProcess[str]:
    """The command's end; its exit status is 1, and standard error says why, where it imported one
    of those libraries.
    """
    return subprocess.run([sys.executable, "-c", _MAIN, *arguments], capture_output=True, text=True, cwd=ROOT, check=False)
