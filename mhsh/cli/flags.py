"""Flags that several commands have: configs (`--NAME=CONFIG` and `--NAME.SECTION.FIELD=VALUE`) and
`--step`.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import Any

from mhsh.config.fields import parse_value
from mhsh.config.loading import LIST, load_fields, override
from mhsh.config.resolve import from_dict
from mhsh.config.schema import Config
from mhsh.errors import UserError

CONFIG = "NAME:VARIANT"
_HELP = {
    "config": "a config that comes with mhsh (`mhsh configs` lists them), or FILE.py:VARIANT",
    "against": "a second config, to compare with",
    "task": "glue:TASK or squad:VERSION over --config, for a checkpoint that was fine-tuned",
}

# What a flag's value, and the arguments that the parser does not know, make of a parameter of
# `run`: the parameter, and the arguments that are left.
Taker = Callable[[str, str | None, list[str]], tuple[Any, list[str]]]


def add_configs(parser: argparse.ArgumentParser, *names: str, required: bool = True) -> None:
    """`run` gets, for each name, the Config of `--NAME=...` and its overrides (None: not given).

    The first is `config`, without which the command ends unless `required` is False.
    """
    for name in names:
        _add(parser, name, name, take_config, required and name == "config")


def add_config_fields(parser: argparse.ArgumentParser, required: bool = True, **parameters: str) -> None:
    """`run` gets the unchecked fields of a config: `add_config_fields(parser, fields="config")`
    gives those of `--config=...` to the parameter `fields` (None: not given).
    """
    for parameter, name in parameters.items():
        _add(parser, name, parameter, take_fields, required and name == "config")


def add_step(parser: argparse.ArgumentParser) -> None:
    """`--step`, of a run's checkpoints."""
    parser.add_argument("--step", type=int, help="which checkpoint (default: the newest)")


def add_checkpoint(parser: argparse.ArgumentParser) -> None:
    """`--step` and `--average`, of a run's checkpoints."""
    add_step(parser)
    parser.add_argument("--average", type=int, default=1, metavar="N", help="the mean of the last N checkpoints (default: 1)")


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


def _add(parser: argparse.ArgumentParser, name: str, parameter: str, take: Taker, required: bool) -> None:
    more = f"; --{name}.SECTION.FIELD=VALUE changes a field"
    parser.add_argument(f"--{name}", dest=parameter, metavar=CONFIG, required=required, help=_HELP[name] + more)
    parser.set_defaults(takers={**(parser.get_default("takers") or {}), parameter: (take, name)})
