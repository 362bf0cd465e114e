"""What to run: base.py has every field with a value, and a file a task says in what it differs."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from types import ModuleType
from typing import Any

from mhsh.config.loading import load_fields, override, shipped_names
from mhsh.config.resolve import from_dict
from mhsh.config.schema import Config
from mhsh.errors import UserError


def get(name: str, **sections: Any) -> Config:
    """The checked, frozen config `name`: NAME:VARIANT or FILE.py:VARIANT, with fields changed.

        get("bert:2l8h", train={"num_steps": 10}, model={"residual": "pre_ln"})

    Raises:
      UserError: there is no such config or field, or a value is not allowed.
    """
    for section, values in sections.items():
        if not isinstance(values, Mapping):
            raise UserError(f"{section} = {values!r} is not a section; give its fields, as in {section}={{'FIELD': VALUE}}")
    changes = [(f"{section}.{field}", value) for section, values in sections.items() for field, value in values.items()]
    return from_dict(override(load_fields(name), changes, ""))


def load(name: str) -> ModuleType:
    """The module of the config file `name`, such as bert.

    Raises:
      UserError: there is none.
    """
    if name not in shipped_names():
        raise UserError(f"there is no config {name!r}; there are {', '.join(shipped_names())}")
    return importlib.import_module(f"mhsh.configs.{name}")
