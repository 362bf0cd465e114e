"""`UserError`, for what a user can correct, and the hints in its messages."""

from __future__ import annotations

import difflib
import shlex
import sys
from collections.abc import Iterable


class UserError(Exception):
    """Says in one line what is wrong, where, and what to do.

    `mhsh` prints it without a traceback and exits with status 2.
    """

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(message.split()))


class Unavailable(Exception):
    """Storage does not answer, which may pass: a line, as that of a UserError. `mhsh` exits with
    status 75, after which launchers start the same command again. No UserError, so that nobody who
    expects one, of a bad or a missing file, takes it for an answer.
    """

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(message.split()))


class FullDisk(UserError):
    """The disk is full, which is no fault of the run that found it so."""


class NotFinite(UserError):
    """A model's outputs are not finite, so nothing can be chosen by them. `where` is a line, a
    prompt or an example.
    """

    def __init__(self, where: str) -> None:
        super().__init__(f"the model's probabilities are not finite at {where}: its run diverged; try an earlier --step")


def nearest(name: str, known: Iterable[str], prefix: str = "", otherwise: str | None = None) -> str:
    """The hint where `name` is none of the `known` names: the nearest; else `otherwise`, or all."""
    known = list(known)
    near = closest(name, known)
    return f"did you mean {prefix}{near}?" if near else otherwise or f"allowed: {', '.join(known)}"


def closest(name: str, known: Iterable[str]) -> str | None:
    """The known name that `name` misspells, abbreviates or extends; None where none is near. Only
    what follows the last dot is compared: an equal section would make fields
    alike. Of equally named fields, the one in the section of `name` is taken.
    """
    section, _, field = name.rpartition(".")
    paths: dict[str, str] = {}
    for path in sorted(known, key=lambda path: path.rpartition(".")[0] != section):
        paths.setdefault(path.rpartition(".")[2], path)
    near = difflib.get_close_matches(field, paths, n=1, cutoff=0.7)
    if not near:
        near = [last for last in paths if min(len(last), len(field)) > 2 and (last.startswith(field) or field.startswith(last))]
    return paths[near[0]] if near else None


def install_command(extra: str) -> str:
    """The command that installs the packages of an extra in pyproject.toml, by their names: the
    extra's own name says nothing to pip where mhsh was installed from a wheel.
    """
    # Imported here because they are slow and rarely needed.
    from importlib.metadata import requires

    from packaging.requirements import Requirement

    packages = [
        f"{required.name}[{','.join(required.extras)}]{required.specifier}".replace("[]", "")
        for required in map(Requirement, requires("mhsh") or ())
        if required.marker and not required.marker.evaluate({"extra": ""}) and required.marker.evaluate({"extra": extra})
    ]
    return f"{shlex.quote(sys.executable)} -m pip install {shlex.join(packages)}"
