"""A registry: what a field of the config may name, mhsh's own things of that kind and a user's.

An entry of mhsh is beside its code, in one of the registry's modules. They import jax, so they
are imported when an entry is first asked for: reports and run folders open without them. A user's
entry comes from a Python file that the user names, whose content a run records. Nothing else is
executed, and nothing from a run folder.
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib
import importlib.machinery
import importlib.util
import inspect
import os
import re
import shlex
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, Generic, NoReturn, TypeVar

from mhsh.errors import Unavailable, UserError, nearest

Entry = TypeVar("Entry")
Result = TypeVar("Result")

WITH = "--with=FILE.py"

_MHSH = str(Path(__file__).parents[1])
_EXECUTED: dict[str, ModuleType] = {}  # the user's files
_BESIDE: list[str] = []  # the folders of the user's files that are in sys.path for them, those of the last file first


@dataclasses.dataclass(frozen=True)
class Origin:
    """The file that a user's entry comes from."""

    file: str  # its name
    sha256: str  # of its content, in hex
    path: str = dataclasses.field(default="", compare=False)  # empty: of a run, which records none

    def __str__(self) -> str:
        return f"{self.file} (sha256 {self.sha256[:12]})"


class Registry(Generic[Entry]):
    """The entries of one kind by name."""

    def __init__(self, kind: str, field: str, homes: Iterable[str]) -> None:
        """`kind` is what an entry is, for people; `field` the path of the field that names one;
        `homes` are the modules that add mhsh's own.
        """
        self.kind, self.field = kind, field
        self._homes = tuple(homes)
        self._entries: dict[str, Entry] = {}
        self._origins: dict[str, Origin] = {}  # of users' entries

    def add(self, name: str, entry: Entry, code: Callable[..., Any]) -> None:
        """Adds an entry. `code` is the class or function that it is made of. A file that is
        executed once more adds nothing. Raises UserError where the name is not a name, or another
        entry has it.
        """
        if code.__module__.partition(".")[0] == "mhsh":
            self._entries[name] = entry
            return
        if not re.fullmatch(r"[a-z][a-z0-9_]*", name):
            raise UserError(f"{name!r} is not a name: that of your {self.kind} begins with a letter and has a-z, 0-9 and _ alone")
        origin = _origin(code, f"the {self.kind} {name!r}")
        if name not in self:
            self._entries[name], self._origins[name] = entry, origin
        elif self._origins.get(name) != origin:
            owner = self._origins.get(name, "mhsh itself")
            raise UserError(
                f"the {self.kind} {name!r} of {origin} already exists, of {owner}; choose another name, or restart Python"
            )

    def names(self) -> list[str]:
        """The names of all entries, mhsh's own first."""
        for home in self._homes:
            importlib.import_module(home)
        return sorted(self._entries, key=self._origins.__contains__)

    def entries(self) -> list[Entry]:
        """All entries, in the order of `names`."""
        return [self._entries[name] for name in self.names()]

    def __contains__(self, name: str) -> bool:
        return name in self._entries or name in self.names()

    def get(self, name: str) -> Entry | None:
        """The entry of that name; None where there is none."""
        return self._entries[name] if name in self else None

    def __getitem__(self, name: str) -> Entry:
        """Raises UserError where there is no such entry."""
        if name not in self:
            self.refuse(name, self.names())
        return self._entries[name]

    def files(self, name: str) -> list[str]:
        """The file of a user's entry; none of one of mhsh's own."""
        return [self._origins[name].path] if name in self._origins else []

    def refuse(self, name: str, names: Iterable[str]) -> NoReturn:
        """Raises the UserError of a name that is none of `names`."""
        hint = nearest(name, names)
        raise UserError(f"unknown {self.kind} {name!r}; {hint}{'' if hint[-1] == '?' else ';'} one of your own needs {WITH}")

    def check(self, name: str, recorded: Iterable[Mapping[str, Any]], folder: object) -> str:
        """Compares the entry with the one that a run recorded (`record`). Returns what differs;
        empty: nothing, or none is recorded. Raises UserError where one is recorded, and there is
        none of that name.
        """
        known = next((entry for entry in recorded if (entry["field"], entry["name"]) == (self.field, name)), None)
        here = self._origins.get(name)
        if known is None:
            return ""
        there = Origin(known["file"], known["sha256"])
        if name not in self:
            remedy = f"add {file_flag(there.file)}, that file (in Python, import it)"
            raise UserError(f"{folder} has the {self.kind} {name!r} of {there}, which is not loaded; {remedy}")
        if here is not None and here.sha256 == there.sha256:
            return ""
        return f"{folder} has the {self.kind} {name!r} of {there}, and {here or 'that of mhsh'} is another"

    def file_from_here(self, name: str, recorded: Iterable[Mapping[str, Any]]) -> str | None:
        """The file of a user's entry, for a command that is printed: its path or, where the entry
        is not loaded, the name that a run recorded; None: there is none.
        """
        origin = self._origins.get(name)
        if origin is None:
            names = (entry["file"] for entry in recorded if (entry["field"], entry["name"]) == (self.field, name))
            return next((file for file in names if name not in self), None)
        path, here = Path(origin.path), Path.cwd().resolve()
        return str(path.relative_to(here) if path.is_relative_to(here) else path)

    def record(self, name: str) -> list[dict[str, str]]:
        """A user's entry with its file, for run.json; empty for one of mhsh's own."""
        origin = self._origins.get(name)
        return [] if origin is None else [{"field": self.field, "name": name, "file": origin.file, "sha256": origin.sha256}]


def file_flag(path: str) -> str:
    """The flag that names a file of the user's, for a command that is printed."""
    return f"--with={shlex.quote(path)}"


def _origin(code: Callable[..., Any], what: str) -> Origin:
    try:
        path = Path(inspect.getsourcefile(code) or "")
        return Origin(path.name, hashlib.sha256(path.read_bytes()).hexdigest(), str(path.resolve()))
    except (OSError, TypeError) as error:
        raise UserError(f"{what} is of no file that a run could record ({error}); write it into one") from error


def load_file(path: str, kind: str, advice: str) -> ModuleType:
    """The module of the file, executed once as long as its content stays. Raises UserError, with
    the line, where it cannot be read or fails; `kind` of file and `advice` what to give instead are
    for that.
    """
    if not path.endswith(".py"):
        raise UserError(f"{path or 'an empty name'} is not a {kind}: {advice}")
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}; {advice}") from error
    absolute = str(Path(path).absolute())
    folder, name = Path(absolute).parent, f"{Path(path).stem}_{hashlib.sha256(absolute.encode() + content).hexdigest()[:16]}"
    while (folder / "__init__.py").is_file():  # of a package, whose modules it may import with a dot
        folder, name = folder.parent, f"{folder.name}.{name}"
    _look_beside([str(Path(absolute).parent), str(folder)])
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None and spec.loader is not None, "its name ends in .py"
        module, loader = importlib.util.module_from_spec(spec), spec.loader
        sys.modules[name] = module  # where Python looks up the file of a class
        _EXECUTED[absolute] = module
        try:
            run_user_code(path, lambda: loader.exec_module(module))
        except BaseException:
            del sys.modules[name]
            raise
    return sys.modules[name]


def _look_beside(folders: Sequence[str]) -> None:
    """Lets a file import what lies in its `folders`, beside it or in its package; after what is
    installed, and before what lies beside the user's other files. Of those a module that has the
    name of one in `folders` is forgotten, as this file would be given it.
    """
    own = dict.fromkeys(each for each in folders if each in _BESIDE or each not in sys.path)
    others = [each for each in _BESIDE if each not in own]
    sys.path[:] = [*(each for each in sys.path if each not in _BESIDE), *own, *others]
    _BESIDE[:] = [*own, *others]
    for name, module in [*sys.modules.items()] if others else ():
        top, file = name.partition(".")[0], getattr(module, "__file__", None)
        places = [place for each in others for place in (Path(each, top), Path(each, f"{top}.py"))]
        is_theirs = file is not None and any(Path(file).is_relative_to(place) for place in places)
        if is_theirs and importlib.machinery.PathFinder.find_spec(top, [*own]) is not None:
            del sys.modules[name]


def load_files(paths: Iterable[str]) -> None:
    """Executes the files of --with."""
    for path in paths:
        load_file(path, "Python file", "give --with=FILE.py, a file that adds entries (docs/add_your_own.md)")


def run_user_code(path: str, run: Callable[[], Result]) -> Result:
    """Runs a part of the user's file at `path` and returns its result. Whatever this program raises
    becomes a UserError that names the line.
    """
    try:
        return run()
    except UserError:
        raise
    except (Exception, SystemExit) as error:
        frames = traceback.extract_tb(error.__traceback__)
        lines = [frame.lineno for frame in frames if frame.filename == str(Path(path).absolute())]
        lines += [error.lineno] if isinstance(error, SyntaxError) and error.filename else []
        raise _error_of(path, lines[-1] if lines else None, error) from error


def run_with_entries(run: Callable[[], Result]) -> Result:
    """Runs what may call entries of the user's files, and returns its result. What fails in such a
    file, and in no line of mhsh that this calls, becomes a UserError as in `run_user_code`; so does
    a call of what takes other arguments.
    """
    try:
        return run()
    except (UserError, Unavailable):
        raise
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        last = [frame for frame in frames if frame.filename in _EXECUTED or frame.filename.startswith(_MHSH)][-1]
        if last.filename in _EXECUTED:
            raise _error_of(os.path.relpath(last.filename), last.lineno, error) from error
        # Such a call fails in a line of mhsh, and leaves no trace but the name in the message.
        called = re.match(r"(\w+)[\w.]*\(\) ", str(error)) if isinstance(error, TypeError) else None
        name = called[1] if called else ""
        for path, module in _EXECUTED.items():
            code = vars(module).get(name)
            if code is not None and getattr(code, "__module__", "") == module.__name__:
                raise _error_of(os.path.relpath(path), inspect.getsourcelines(code)[1], error) from error
        raise


def _error_of(path: str, line: int | None, error: BaseException) -> UserError:
    where = path if line is None else f"{path}, line {line}"
    message = error.msg if isinstance(error, SyntaxError) else str(error)
    return UserError(f"{where}: {type(error).__name__}: {message}; correct the file")
