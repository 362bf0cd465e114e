"""A user's own Python file: a config file, or one that adds entries (`mhsh.config.entries`). Only a
file that the user names is executed.
"""

from __future__ import annotations

import hashlib
import importlib.util
import sys
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path
from types import ModuleType
from typing import TypeVar

from mhsh.errors import UserError

Result = TypeVar("Result")


def load_file(path: str, kind: str, advice: str) -> ModuleType:
    """The module of the file, executed once as long as its content stays.

    Args:
      kind: of file, for an error; `advice` is what to give instead.

    Raises UserError, with the line, where it cannot be read or fails.
    """
    if not path.endswith(".py"):
        raise UserError(f"{path or 'an empty name'} is not a {kind}: {advice}")
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}; {advice}") from error
    absolute = str(Path(path).absolute())
    name = f"{Path(path).stem}_{hashlib.sha256(absolute.encode() + content).hexdigest()[:16]}"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None and spec.loader is not None, "its name ends in .py"
        module, loader = importlib.util.module_from_spec(spec), spec.loader
        sys.modules[name] = module  # where Python looks up the file of a class
        try:
            run_named(path, lambda: loader.exec_module(module))
        except BaseException:
            del sys.modules[name]
            raise
    return sys.modules[name]


def load_with(paths: Iterable[str]) -> None:
    """Executes the files of --with."""
    for path in paths:
        load_file(path, "Python file", "give --with=FILE.py, a file that adds entries (docs/add_your_own.md)")


def run_named(path: str, run: Callable[[], Result]) -> Result:
    """The result of a part of the file. It is a user's program: whatever it raises becomes a
    UserError that names the line.
    """
    try:
        return run()
    except UserError:
        raise
    except (Exception, SystemExit) as error:
        frames = traceback.extract_tb(error.__traceback__)
        lines = [frame.lineno for frame in frames if frame.filename == str(Path(path).absolute())]
        lines += [error.lineno] if isinstance(error, SyntaxError) and error.filename else []
        where = f"{path}, line {lines[-1]}" if lines else path
        message = error.msg if isinstance(error, SyntaxError) else str(error)
        raise UserError(f"{where}: {type(error).__name__}: {message}; correct the file") from error
