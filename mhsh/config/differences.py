"""How two configs differ: of Configs, or of the plain dictionaries that files hold."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mhsh.config.schema import Config, to_dict

Fields = Mapping[str, Any]


def flatten(config: Config | Fields) -> dict[str, Any]:
    """The values of a config by path, such as model.num_layers."""
    sections = to_dict(config) if isinstance(config, Config) else config
    return {
        f"{section}.{name}": value
        for section, values in sections.items()
        if isinstance(values, Mapping)
        for name, value in values.items()
    }


def differences(there: Config | Fields, here: Config | Fields) -> dict[str, tuple[Any, Any]]:
    """By path, the two values of every field in which two configs differ; None for one that a
    config does not have.
    """
    one, other = flatten(there), flatten(here)
    return {path: (one.get(path), other.get(path)) for path in one | other if one.get(path) != other.get(path)}


def format_differences(there: Config | Fields, here: Config | Fields) -> str:
    """`model.num_layers is 2 there, 4 here; ...`, and an empty string for equal configs."""
    return "; ".join(f"{path} is {old!r} there, {new!r} here" for path, (old, new) in differences(there, here).items())
