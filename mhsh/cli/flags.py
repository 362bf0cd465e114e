"""Flags that several commands have: configs (`--NAME=CONFIG` and `--NAME.SECTION.FIELD=VALUE`) and
`--step`.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from mhsh.configs import CONFIG, take_config, take_fields

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


def _add(parser: argparse.ArgumentParser, name: str, parameter: str, take: Taker, required: bool) -> None:
    more = f"; --{name}.SECTION.FIELD=VALUE changes a field"
    parser.add_argument(f"--{name}", dest=parameter, metavar=CONFIG, required=required, help=_HELP[name] + more)
    parser.set_defaults(takers={**(parser.get_default("takers") or {}), parameter: (take, name)})
