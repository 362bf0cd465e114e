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
    meant = closest(name, known)
    return f"did you mean {prefix}{meant}?" if meant else f"allowed: {', '.join(known)}"


def closest(name: str, known: Iterable[str]) -> str | None:
    """The one of `known` that `name` is a misspelling of, or that one of the two begins with; None
    where none is near. Only what follows the last dot is compared: an equal section would make
    fields alike. Of equally named fields, the one in the section of `name` is taken.
    """
    section, _, field = name.rpartition(".")
    paths: dict[str, str] = {}
    for path in sorted(known, key=lambda path: path.rpartition(".")[0] != section):
        paths.setdefault(path.rpartition(".")[2], path)
    near = difflib.get_close_matches(field, paths, n=1, cutoff=0.7)
    if not near:
        near = [each for each in paths if min(len(each), len(field)) > 2 and (each.startswith(field) or field.startswith(each))]
    return paths[near[0]] if near else None


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
