"""The one exception for users: an error that they can correct. And what its message may suggest."""

from __future__ import annotations

import difflib
import shlex
import shutil
import sys
from collections.abc import Iterable
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[1]  # of a checkout, or the folder of all installed packages


class UserError(Exception):
    """Says in one line what is wrong, where, and what to do.

    `mhsh` prints it without a traceback and exits with status 2.
    """

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(message.split()))


def nearest(name: str, known: Iterable[str], prefix: str = "") -> str:
    """A hint where `name` is none of the `known` names: the one that was meant, or all."""
    known = list(known)
    close = difflib.get_close_matches(name, known, n=1)
    return f"did you mean {prefix}{close[0]}?" if close else f"allowed: {', '.join(known)}"


def install_command(extra: str) -> str:
    """The command that installs what `extra` of pyproject.toml asks for. In a checkout it names the
    extra; an installed copy has no index to take it from, so it names the packages.
    """
    # Only here: they take a while, and few need them.
    from importlib.metadata import requires

    from packaging.requirements import Requirement

    own_pip = Path(shutil.which("pip") or "").parent == Path(sys.executable).parent
    pip = "pip install" if own_pip else f"{shlex.quote(sys.executable)} -m pip install"
    if (_ROOT / "pyproject.toml").exists():
        return f"{pip} -e " + shlex.quote(f"{'.' if _ROOT.samefile('.') else _ROOT}[{extra}]")
    needed = [Requirement(text) for text in requires("mhsh") or ()]
    packages = [
        f"{each.name}{each.specifier}"
        for each in needed
        if each.marker and not each.marker.evaluate({"extra": ""}) and each.marker.evaluate({"extra": extra})
    ]
    return f"{pip} {shlex.join(packages)}"
