"""From the name of a config, and the changes of its fields, to its plain fields."""

from __future__ import annotations

import importlib.util
import inspect
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from mhsh.config.fields import parse_value
from mhsh.config.resolve import from_dict
from mhsh.config.schema import Config
from mhsh.errors import UserError, nearest

Fields = Mapping[str, Mapping[str, Any]]  # section: {field: value}

CONFIG = "NAME:VARIANT"
LIST = "mhsh configs lists what there is"
SHIPPED = Path(__file__).resolve().parents[1] / "configs"


def shipped_names() -> Sequence[str]:
    """What can stand before the colon of NAME:VARIANT."""
    return sorted(path.stem for path in SHIPPED.glob("*.py") if path.stem not in ("__init__", "base"))


def take_config(name: str, config: str | None, arguments: Sequence[str]) -> tuple[Config | None, list[str]]:
    """The config of `--NAME=config` with its overrides (None: not given), and what is left."""
    fields, left = take_fields(name, config, arguments)
    return (None if fields is None else from_dict(fields)), left


def take_fields(name: str, config: str | None, arguments: Sequence[str]) -> tuple[dict[str, Any] | None, list[str]]:
    """The fields of that config, unchecked, and the arguments left."""
    changes: list[tuple[str, str]] = []
    left: list[str] = []
    rest = iter(arguments)
    for argument in rest:
        if not argument.startswith(f"--{name}."):
            left.append(argument)
            continue
        path, equals, text = argument.removeprefix(f"--{name}.").partition("=")
        value = text if equals else next(rest, None)
        if value is None:
            raise UserError(f"{argument} needs a value: {argument}=VALUE")
        changes.append((path, value))
    if config is None:
        if changes:
            raise UserError(f"--{name}.{changes[0][0]} changes a config, and none is given: add --{name}={CONFIG}; {LIST}")
        return None, left
    fields = load_fields(config)
    return override(fields, [(path, parse_value(path, text)) for path, text in changes], f"--{name}."), left


def load_fields(config: str) -> dict[str, Any]:
    """What get_config of `config` returns, unchecked: FILE.py:VARIANT or, of a shipped one,
    NAME:VARIANT. Without a colon, get_config is called without an argument.

    Raises:
      UserError: there is no such file or variant, the file fails, or it returns no config.
    """
    name, colon, variant = config.partition(":")
    path = _file(name)
    module = _outcome(path, lambda: _module(path))
    get_config = getattr(module, "get_config", None)
    if not callable(get_config):
        raise UserError(f"{path} has no function get_config(variant), which returns the config; see mhsh/configs/base.py for one")
    if not colon and _needs_variant(get_config):
        raise UserError(f"{config} needs a variant, as in {config}:{_a_variant(module)}; {LIST}")
    found = _outcome(path, lambda: get_config(variant) if colon else get_config())
    fields = found.to_dict() if hasattr(found, "to_dict") else found
    if not isinstance(fields, dict):
        raise UserError(f"get_config of {path} returns {type(found).__name__}; it must return an ml_collections.ConfigDict")
    return fields


def override(fields: Mapping[str, Any], changes: Iterable[tuple[str, Any]], flag: str) -> dict[str, Any]:
    """The fields with `changes`, (SECTION.FIELD, value) each, the values unchecked; `flag` is what
    they are given with, such as `--config.`.

    Raises:
      UserError: there is no such section or field.
    """
    changed = {section: dict(values) if isinstance(values, Mapping) else values for section, values in fields.items()}
    for path, value in changes:
        section, dot, name = path.partition(".")
        if section in changed and not dot:
            raise UserError(f"{flag}{path} is a section; change its fields, as in {flag}{path}.{next(iter(changed[path]))}=VALUE")
        if not isinstance(changed.get(section), dict):
            raise UserError(f"{flag}{path}: the config has no section {section!r}; {nearest(section, changed)}")
        if name not in changed[section]:
            hint = nearest(name, changed[section], prefix=f"{section}.")
            raise UserError(f"{flag}{path}: the config has no field {path!r}; {hint}")
        changed[section][name] = value
    return changed


def _file(name: str) -> str:
    """The path of a config file: that of a shipped one, or `name` itself where it is a path."""
    if not name.isidentifier():  # it has a dot or a slash
        return name
    if name not in shipped_names():
        raise UserError(
            f"there is no config {name!r}; there are {', '.join(shipped_names())}, and any FILE.py:VARIANT; mhsh configs lists all"
        )
    return str(SHIPPED / f"{name}.py")


def _module(path: str) -> ModuleType:
    """The module of a config file, run anew."""
    if not path.endswith(".py"):
        raise UserError(f"{path or 'an empty name'} is no config file: give NAME:VARIANT or FILE.py:VARIANT; {LIST}")
    spec = importlib.util.spec_from_file_location("config_file", path)
    assert spec is not None and spec.loader is not None, "its name ends in .py"
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _outcome(path: str, run: Callable[[], Any]) -> Any:
    """What a part of the config file returns. The file is a user's program: whatever it raises is
    named with the line.
    """
    try:
        return run()
    except UserError:
        raise
    except OSError as error:
        if error.filename != str(Path(path).absolute()):
            raise _failed(path, error) from error
        raise UserError(f"cannot read {path}: {error.strerror}; give NAME:VARIANT or FILE.py:VARIANT; {LIST}") from error
    except (Exception, SystemExit) as error:
        raise _failed(path, error) from error


def _failed(path: str, error: BaseException) -> UserError:
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(Path(path).absolute())]
    lines += [error.lineno] if isinstance(error, SyntaxError) and error.filename else []
    where = f"{path}, line {lines[-1]}" if lines else path
    message = error.msg if isinstance(error, SyntaxError) else str(error)
    return UserError(f"{where}: {type(error).__name__}: {message}; correct the config file")


def _needs_variant(get_config: Callable[..., Any]) -> bool:
    parameters = inspect.signature(get_config).parameters.values()
    return any(each.default is each.empty and each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD) for each in parameters)


def _a_variant(module: ModuleType) -> str:
    return next(iter(getattr(module, "VARIANTS", ())), "VARIANT")
