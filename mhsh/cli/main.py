"""Runs a command: the imports that it takes and no others, and the only place where an error
becomes an exit status.
"""

from __future__ import annotations

import errno
import importlib
import os
import signal
import sys
from collections.abc import Sequence
from typing import Any

from mhsh.cli.huge_pages import restart_with_huge_pages
from mhsh.cli.parser import build_parser
from mhsh.errors import UserError

USAGE_ERROR = 2

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
    """Runs one command; the exit status: 0 well, 2 a mistake named in one line, 128 + n stopped by
    signal n.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        status = _run(arguments)
        sys.stdout.flush()
        return status
    except UserError as error:
        return _fail(str(error))
    except BrokenPipeError:
        # Whoever read our output has gone; what is still buffered must not fail once more on the
        # way out.
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
    partial_flags = values.pop("partial_flags", {})
    if partial_flags or options.config_flags or options.command == "quickstart":
        # Not for all: what reads configs takes a tenth of a second to import.
        from mhsh.cli.config_flags import quickstart_configs, take_config, take_fields

        if options.command == "quickstart":
            values["configs"], rest = quickstart_configs(rest)
        for name, parameter in partial_flags.items():
            values[parameter], rest = take_fields(name, rest)
        for name in options.config_flags:
            values[name], rest = take_config(name, rest)
    if options.needs_config and "config" in options.config_flags and values["config"] is None:
        raise UserError(f"mhsh {options.command} needs --config=FILE.py:VARIANT, for example --config=configs/bert.py:2l8h")
    if rest:
        raise UserError(f"{rest[0]} is not an argument of mhsh {options.command}; see mhsh {options.command} --help")
    # One import a command: `mhsh compare` must not wait for jax.
    module = "_".join([values.pop("module", options.command), values.pop("task", "")]).rstrip("_")
    return importlib.import_module(f"mhsh.cli.{module}").run(**values)


def _fail(message: str) -> int:
    print(f"mhsh: {message}", file=sys.stderr)
    return USAGE_ERROR


if __name__ == "__main__":
    sys.exit(start())
