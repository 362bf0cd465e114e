"""The configs of runs. base.py makes one of the schema's defaults and what differs; a file a task
says in what its configs differ. Here a config is found by its name, and its fields are changed.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from mhsh.config.fields import parse_value, section_names
from mhsh.config.registry import load_file, run_user_code
from mhsh.config.resolve import from_dict
from mhsh.config.schema import Config
from mhsh.errors import UserError, nearest

Changes = Sequence[tuple[str, str]]  # SECTION.FIELD and its value as text

CONFIG = "NAME:VARIANT"
LIST = "mhsh configs lists what there is"
# Where the task files are: configs/ at the top of a checkout, and beside this file in a wheel.
_HERE = Path(__file__).resolve().parent
SHIPPED = _HERE if (_HERE / "bert.py").is_file() else _HERE.parents[1] / "configs"
__path__ = [str(_HERE), str(SHIPPED)]  # so that mhsh.configs.bert is imported from either


def get(name: str, **sections: Any) -> Config:
    """The checked, frozen config `name`: NAME:VARIANT or FILE.py:VARIANT, with fields changed.

        get("bert:3l4h", train={"num_steps": 10}, model={"residual": "pre_ln"})

    Raises UserError where there is no such config or field, or a value is not allowed.
    """
    for section, values in sections.items():
        if not isinstance(values, Mapping):
            raise UserError(f"{section} = {values!r} is not a section; give its fields, as in {section}={{'FIELD': VALUE}}")
    changes = [(f"{section}.{field}", value) for section, values in sections.items() for field, value in values.items()]
    return from_dict(override(load_fields(name), changes, ""))


def load(name: str) -> ModuleType:
    """The module of the config file `name`, such as bert. Raises UserError where there is none."""
    if name not in shipped_names():
        names = ", ".join(shipped_names())
        raise UserError(f"unknown config {name!r}; there are {names}, and any FILE.py:VARIANT; mhsh configs lists all")
    return importlib.import_module(f"{__name__}.{name}")


def shipped_names() -> Sequence[str]:
    """The names that NAME:VARIANT can begin with."""
    return sorted(path.stem for path in SHIPPED.glob("*.py") if path.stem not in ("__init__", "base"))


def shipped_name(file: str) -> str | None:
    """The NAME of a file that mhsh ships, configs/NAME.py; None: `file` is a user's. Where the
    working folder has no such file, the shipped one is meant.
    """
    path = Path(file)
    shipped = path.resolve().parent == SHIPPED if path.exists() else path.parent == Path("configs")
    return path.stem if shipped and path.suffix == ".py" and path.stem in shipped_names() else None


def take_config(flag: str, config: str | None, arguments: Sequence[str]) -> tuple[Config | None, list[str]]:
    """The config of `--FLAG=config` with its overrides (None: not given); the arguments left."""
    changes, left = take_changes(flag, arguments)
    return parse_config(flag, config, changes), left


def take_changes(flag: str, arguments: Sequence[str]) -> tuple[Changes, list[str]]:
    """The overrides `--FLAG.SECTION.FIELD=VALUE`, also without the `=`, and the arguments left."""
    changes, left = [], []
    rest = iter(arguments)
    for argument in rest:
        if not argument.startswith(f"--{flag}."):
            left.append(argument)
            continue
        path, equals, text = argument.removeprefix(f"--{flag}.").partition("=")
        value = text if equals else next(rest, None)
        if value is None:
            raise UserError(f"{argument} needs a value: {argument}=VALUE")
        changes.append((path, value))
    return changes, left


def parse_config(flag: str, config: str | None, changes: Changes) -> Config | None:
    """The config of `--FLAG=config` with overrides; None: it is not given."""
    fields = parse_fields(flag, config, changes)
    return None if fields is None else from_dict(fields)


def parse_fields(flag: str, config: str | None, changes: Changes) -> dict[str, Any] | None:
    """The fields of that config, unchecked."""
    if config is None and changes:
        raise UserError(f"--{flag}.{changes[0][0]} changes a config, and none is given: add --{flag}={CONFIG}; {LIST}")
    if config is None:
        return None
    fields = load_fields(config)
    return override(fields, [(path, parse_value(path, text)) for path, text in changes], f"--{flag}.")


def load_fields(config: str) -> dict[str, Any]:
    """The unchecked result of `config`'s get_config: FILE.py:VARIANT or, of a shipped one,
    NAME:VARIANT, which is configs/NAME.py:VARIANT. Without a colon, get_config is called without an
    argument. Raises UserError where there is no such file or variant, the file fails, or it returns
    no config.
    """
    path, colon, variant = config.partition(":")
    # The name of a shipped config has neither a dot nor a slash.
    name = path if path.isidentifier() else shipped_name(path)
    module = load(name) if name else load_file(path, "config file", f"give NAME:VARIANT or FILE.py:VARIANT; {LIST}")
    get_config = getattr(module, "get_config", None)
    if not callable(get_config):
        raise UserError(f"{path} has no function get_config(variant), which returns the config; see configs/bert.py for one")
    if not colon and run_user_code(path, lambda: _needs_variant(get_config)):
        example = next(iter(getattr(module, "VARIANTS", ())), "VARIANT")
        raise UserError(f"{config} needs a variant, as in {config}:{example}; {LIST}")
    returned = run_user_code(path, lambda: get_config(variant) if colon else get_config())
    # A ConfigDict raises where a placeholder of it is not filled.
    fields = run_user_code(path, returned.to_dict) if hasattr(returned, "to_dict") else returned
    if not isinstance(fields, dict):
        raise UserError(f"get_config of {path} returns {type(returned).__name__}; it must return an ml_collections.ConfigDict")
    for name, values in fields.items():
        if not isinstance(values, Mapping):
            raise UserError(
                f"get_config of {path} returns {name} = {values!r}, which is no section; allowed: {', '.join(section_names())}"
            )
    return fields


def override(fields: Mapping[str, Any], changes: Iterable[tuple[str, Any]], flag: str) -> dict[str, Any]:
    """The fields with `changes`, (SECTION.FIELD, value) pairs, the values unchecked; `flag` is what
    they are given with, such as `--config.`. Raises UserError where there is no such section or
    field.
    """
    changed = {section: dict(values) if isinstance(values, Mapping) else values for section, values in fields.items()}
    for path, value in changes:
        section, dot, name = path.partition(".")
        if section in changed and not dot:
            field = next(iter(changed[path]), "FIELD")
            raise UserError(f"{flag}{path} is a section; change its fields, as in {flag}{path}.{field}=VALUE")
        if not isinstance(changed.get(section), dict):
            raise UserError(f"{flag}{path}: the config has no section {section!r}; {nearest(section, changed)}")
        if name not in changed[section]:
            hint = nearest(name, changed[section], prefix=f"{section}.")
            raise UserError(f"{flag}{path}: the config has no field {path!r}; {hint}")
        changed[section][name] = value
    return changed


def _needs_variant(get_config: Callable[..., Any]) -> bool:
    parameters = inspect.signature(get_config).parameters.values()
    return any(one.default is one.empty and one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD) for one in parameters)
