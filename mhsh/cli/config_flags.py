"""The configs that `--NAME=FILE.py:VARIANT` and `--NAME.FIELD=VALUE` among a command's arguments
make.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from absl import flags
from ml_collections import config_flags

from mhsh.config.resolve import from_dict
from mhsh.config.schema import Config
from mhsh.errors import UserError

QUICKSTART_VARIANTS = ("6l8h_post_ln", "48l1h_post_ln", "48l1h_admin", "48l1h_pre_ln")


def take_config(name: str, arguments: list[str]) -> tuple[Config | None, list[str]]:
    """The config that `--NAME=...` and its overrides make (None: not given), and the arguments that
    are left.
    """
    fields, left = take_fields(name, arguments)
    return (None if fields is None else from_dict(fields)), left


def take_fields(name: str, arguments: list[str]) -> tuple[dict[str, Any] | None, list[str]]:
    """The fields of that config, unchecked."""
    flag_values = flags.FlagValues()
    argv = ["mhsh", *arguments]
    config_flags.DEFINE_config_file(name, flag_values=flag_values, sys_argv=argv)
    try:
        left = flag_values(argv, known_only=True)[1:]
        fields = flag_values[name].value
        return (None if fields is None else fields.to_dict()), left
    except (flags.Error, AttributeError, KeyError) as error:
        raise UserError(f"--{name}: {error.args[0] if error.args else error}") from error
    except OSError as error:
        raise UserError(f"--{name}: {str(error).split(chr(10))[-1].strip()}; give FILE.py:VARIANT") from error


def quickstart_configs(arguments: list[str]) -> tuple[dict[str, Config], list[str]]:
    """The configs of the quickstart's comparison by variant, and the arguments left; overrides go
    to all of them.
    """
    path = Path(__file__).resolve().parents[2] / "configs" / "quickstart.py"
    configs: dict[str, Config] = {}
    rest = arguments
    for variant in QUICKSTART_VARIANTS:
        config, rest = take_config("config", [f"--config={path}:{variant}", *arguments])
        assert config is not None
        configs[variant] = config
    return configs, rest
