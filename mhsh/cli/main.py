"""Runs a command with the imports that it needs and no others. The only place where an error
becomes an exit status.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
from collections.abc import Sequence

from mhsh.cli import early_stop
from mhsh.cli.exit_status import USAGE_ERROR
from mhsh.cli.parser import COMMANDS, build_parser
from mhsh.errors import UserError, nearest

# What goes wrong with a file system at any moment of any command, and what to do.
_FILE_SYSTEM_ERRORS = {
    errno.ENOSPC: ("the disk is full", "free some space"),
    errno.EDQUOT: ("the disk quota is used up", "free some space"),
    errno.EROFS: ("the file system is read-only", "make it writable"),
    errno.EIO: ("the disk does not answer: input/output error", "repair it"),
    errno.EACCES: ("permission is denied", "change the permissions"),
    errno.EPERM: ("the operation is not permitted", "change the permissions"),
    errno.ESTALE: ("a file of the network file system has gone", "mount it again"),
    errno.EMFILE: ("too many files are open", "raise the limit (ulimit -n)"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit status: 0 success, 2 usage or input error, 75 stopped
    by SIGTERM with the state saved, 128 + n stopped by signal n.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    # A notebook names its own backend to the processes it starts, where that need not be installed.
    # mhsh draws into files alone.
    os.environ.pop("MPLBACKEND", None)
    try:
        status = _run(arguments)
        sys.stdout.flush()
        return status
    except UserError as error:
        # A library may make another error of an interrupt.
        return early_stop.status() or _fail(str(error))
    except (BrokenPipeError, SystemExit) as error:
        # rich makes a SystemExit of it.
        if isinstance(error, SystemExit) and not isinstance(error.__context__, BrokenPipeError):
            raise
        # The reader of our output has gone. What is still buffered must not fail again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    except (MemoryError, RuntimeError) as error:
        # jax says so of the memory of a device, as a RuntimeError.
        if isinstance(error, RuntimeError) and "RESOURCE_EXHAUSTED" not in str(error):
            raise
        return _fail(f"out of memory: {_first_line(error)}; lower train.batch_size or raise train.accumulation_steps")
    except OSError as error:
        if error.errno not in _FILE_SYSTEM_ERRORS:
            raise
        what, remedy = _FILE_SYSTEM_ERRORS[error.errno]
        return _fail(f"{what} ({error.filename or 'while reading or writing'}); {remedy} and run the same command again")
    except KeyboardInterrupt:
        return early_stop.status() or 128 + signal.SIGINT


def _run(arguments: list[str]) -> int:
    if arguments and not arguments[0].startswith("-") and arguments[0] not in COMMANDS:
        hint = nearest(arguments[0], COMMANDS)
        raise UserError(
            f"there is no command {arguments[0]!r}; {hint}{'' if hint[-1] == '?' else ';'} mhsh --help says what each does"
        )
    parser = build_parser(arguments[0] if arguments else None)
    options, rest = parser.parse_known_args(arguments)
    values = vars(options)
    command = values.pop("command")
    if not command and rest:
        raise UserError(f"{rest[0]} is not an argument of mhsh; see mhsh --help")
    if not command:
        parser.print_help()
        return USAGE_ERROR
    run = values.pop("run")
    for name, (take, flag) in values.pop("takers", {}).items():
        values[name], rest = take(flag, values[name], rest)
    if rest:
        raise UserError(f"{rest[0]} is not an argument of mhsh {command}; see mhsh {command} --help")
    return run(**values)


def _first_line(error: BaseException) -> str:
    return (str(error) or "the machine has none left").split("\n")[0].removeprefix("RESOURCE_EXHAUSTED: ").rstrip(".")


def _fail(message: str) -> int:
    print(f"mhsh: {message}", file=sys.stderr)
    return USAGE_ERROR
