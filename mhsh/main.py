"""Runs a command: config flags, the one import that it takes, and the only place where an error becomes an exit status."""

from __future__ import annotations

import errno
import importlib
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from absl import flags
from ml_collections import config_flags

from mhsh.command_line import build_parser
from mhsh.config import Config
from mhsh.config_reading import from_dict
from mhsh.errors import UserError
from mhsh.huge_pages import restart_with_huge_pages

USAGE_ERROR = 2
QUICKSTART_VARIANTS = ("6l8h_post_ln", "48l1h_post_ln", "48l1h_admin", "48l1h_pre_ln")

# What the parser sets for this module and not for the command.
_OURS = ("command", "config_flags", "needs_config")

# What takes a fresh gigabyte in every step.
COMPUTING = ("train", "finetune", "quickstart", "eval", "bench", "probe")


def start() -> int:
    """`main` as a process of its own."""
    if sys.argv[1:2] and sys.argv[1] in COMPUTING:
        restart_with_huge_pages()
    return main()


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command; the exit status: 0 well, 2 a mistake named in one line, 128 + n stopped by signal n."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        status = _run(arguments)
        sys.stdout.flush()
        return status
    except UserError as error:
        return _fail(str(error))
    except BrokenPipeError:
        # Whoever read our output has gone; what is still buffered must not fail once more on the way out.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        return _fail(f"the disk is full ({error.filename or 'while writing'}); free some space and run the same command again")
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


def _run(arguments: list[str]) -> int:
    parser = build_parser()
    options, rest = parser.parse_known_args(arguments)
    if not options.command:
        parser.print_help()
        return USAGE_ERROR
    values: dict[str, Any] = {key: value for key, value in vars(options).items() if key not in _OURS}
    if options.command == "quickstart":
        values["configs"], rest = _quickstart_configs(rest)
    for name, parameter in values.pop("partial_flags", {}).items():
        values[parameter], rest = take_fields(name, rest)
    for name in options.config_flags:
        values[name], rest = take_config(name, rest)
    if options.needs_config and "config" in options.config_flags and values["config"] is None:
        raise UserError(f"mhsh {options.command} needs --config=FILE.py:VARIANT, for example --config=configs/bert.py:2l8h")
    if rest:
        raise UserError(f"{rest[0]} is not an argument of mhsh {options.command}; see mhsh {options.command} --help")
    # One import a command: `mhsh compare` must not wait for jax.
    module = "_".join([values.pop("module", options.command), values.pop("task", "")]).rstrip("_")
    return importlib.import_module(f"mhsh.commands.{module}").run(**values)


def take_config(name: str, arguments: list[str]) -> tuple[Config | None, list[str]]:
    """The config that `--NAME=...` and its overrides make (None: not given), and the arguments that are left."""
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


def _quickstart_configs(arguments: list[str]) -> tuple[dict[str, Config], list[str]]:
    """The configs of the comparison by variant; overrides on the command line go to all of them."""
    path = Path(__file__).resolve().parent.parent / "configs" / "quickstart.py"
    configs: dict[str, Config] = {}
    rest = arguments
    for variant in QUICKSTART_VARIANTS:
        config, rest = take_config("config", [f"--config={path}:{variant}", *arguments])
        assert config is not None
        configs[variant] = config
    return configs, rest


def _fail(message: str) -> int:
    print(f"mhsh: {message}", file=sys.stderr)
    return USAGE_ERROR


if __name__ == "__main__":
    sys.exit(start())
