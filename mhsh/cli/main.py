"""Runs a command with the imports that it needs and no others. The only place where an error
becomes an exit status.
"""

from __future__ import annotations

import errno
import os
import re
import signal
import sys
import traceback
from collections.abc import Sequence

from mhsh import __version__
from mhsh.cli import early_stop
from mhsh.encoding import check_text
from mhsh.errors import Unavailable, UserError, install_command, nearest
from mhsh.text import sanitize

USAGE_ERROR = 2

# What `mhsh --help` prints without importing a command.
COMMANDS = {
    "train": {
        "quickstart": "train a small comparison and write its report",
        "train": "train a config into a run folder, or resume the run in it",
        "sweep": "train a config at every combination of some fields' values",
        "work": "train a sweep's cells, beside workers on any machines",
        "finetune": "train a pre-trained run's model on a task, with several seeds",
        "prepare": "turn sentence pairs or documents into packed rows on disk",
    },
    "look": {
        "inspect": "how mhsh reads a corpus, a checkpoint, a run or a sweep",
        "compare": "runs and sweeps side by side: a table and report.html",
        "eval": "a checkpoint's metrics on the validation rows of its run",
        "probe": "what the layers of a model do on one batch",
        "plan": "parameters, memory and time of configs before they run",
        "configs": "list config files, variants and fields, or print one config",
    },
    "use": {
        "predict": "labels, answers, translations or text from a trained run",
        "import": "make a run folder of a Hugging Face BERT, Llama or Qwen3",
        "export": "write a checkpoint as a BERT, Llama or Qwen3 for transformers",
    },
    "measure": {
        "bench": "time training, inference and decoding of configs in turns",
        "score": "BLEU and chrF of the translations of any system",
    },
}
NAMES = [name for commands in COMMANDS.values() for name in commands]

_COMPILING = (*early_stop.TRAINING, "eval", "bench")  # commands that compile what they run beforehand, as jax does not without jit
_TRUE = ("y", "yes", "t", "true", "on", "1")  # for jax, of a variable

# What goes wrong with a file system at any moment of any command, and what to do.
_FILE_SYSTEM_ERRORS = {
    errno.ENOSPC: ("the disk is full", "free some space"),
    errno.EDQUOT: ("the disk quota is used up", "free some space"),
    errno.EFBIG: ("a file is larger than this process may write", "raise the limit (ulimit -f)"),
    errno.EROFS: ("the file system is read-only", "make it writable"),
    errno.EIO: ("the disk does not answer: input/output error", "repair it"),
    errno.EACCES: ("permission is denied", "change the permissions"),
    errno.EPERM: ("the operation is not permitted", "change the permissions"),
    errno.ESTALE: ("a file of the network file system has gone", "mount it again"),
    errno.ENOLCK: ("the file system has no locks", "mount it with locks, or choose a folder on another one,"),
    errno.EMFILE: ("too many files are open", "raise the limit (ulimit -n)"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit status: 0 success, 2 usage or input error, 75 stopped
    by SIGTERM with the state saved, 128 + n stopped by signal n.
    """
    arguments = [_expand_home(argument) for argument in (sys.argv[1:] if argv is None else argv)]
    # A notebook names its own backend to the processes it starts, where that need not be installed.
    # mhsh draws into files alone.
    os.environ.pop("MPLBACKEND", None)
    try:
        status = _run(arguments)
        sys.stdout.flush()
        return status
    except (UserError, Unavailable) as error:
        # A library may make another error of an interrupt.
        status = early_stop.status() or _fail(str(error))
        return os.EX_TEMPFAIL if status == USAGE_ERROR and isinstance(error, Unavailable) else status
    except (BrokenPipeError, SystemExit) as error:
        # rich makes a SystemExit of it.
        if isinstance(error, SystemExit) and not isinstance(error.__context__, BrokenPipeError):
            raise
        # The reader of our output has gone. What is still buffered must not fail again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    except (AssertionError, MemoryError, RuntimeError, ValueError) as error:
        said = _environment_mistake(error)
        if said:
            return _fail(said)
        # jax says so of the memory of a device, as a RuntimeError.
        if not isinstance(error, MemoryError) and not (isinstance(error, RuntimeError) and "RESOURCE_EXHAUSTED" in str(error)):
            raise
        if arguments[0] in early_stop.TRAINING or arguments[:2] == ["bench", "train"]:
            remedy = "raise train.accumulation_steps (of a begun run, too) or lower train.batch_size"
        else:
            remedy = f"ask for less at once (mhsh {arguments[0]} --help), or take a device with more memory"
        return _fail(f"out of memory: {_first_line(error)}; {remedy}")
    except OSError as error:
        if error.errno not in _FILE_SYSTEM_ERRORS:
            raise
        what, remedy = _FILE_SYSTEM_ERRORS[error.errno]
        return _fail(f"{what} ({error.filename or 'while reading or writing'}); {remedy} and run the same command again")
    except KeyboardInterrupt:
        return early_stop.status() or 128 + signal.SIGINT


def _expand_home(argument: str) -> str:
    """Puts the user's home for `~` into `--FLAG=~/FOLDER`, which no shell does."""
    flag, equals, value = argument.partition("=")
    is_path = flag.startswith("--") and flag != "--text" and value.startswith("~/")
    return f"{flag}{equals}{os.path.expanduser(value)}" if is_path else argument  # noqa: PTH111 (a folder in a bucket is no Path)


def _run(arguments: list[str]) -> int:
    for number, argument in enumerate(arguments, 1):
        flag, _, value = argument.partition("=") if argument.startswith("--") else ("", "", argument)
        check_text(flag, f"argument {number}")
        check_text(value, flag or f"argument {number}")
    command, *rest = arguments or [""]
    if command in ("", "--help", "-h"):
        print(_help())
        return 0 if command else USAGE_ERROR
    if command == "--version":
        print(f"mhsh {__version__}")
        return 0
    if command.startswith("-"):
        raise UserError(f"{command} is not an argument of mhsh; see mhsh --help")
    if command not in NAMES:
        hint = nearest(command, NAMES)
        raise UserError(f"unknown command {command!r}; {hint}{'' if hint[-1] == '?' else ';'} mhsh --help lists all")
    from mhsh.cli.parser import parse
    from mhsh.config.registry import run_with_entries

    run = parse(command, rest)
    if run is not None and command in _COMPILING and os.environ.get("JAX_DISABLE_JIT", "").lower() in _TRUE:
        raise UserError(f"JAX_DISABLE_JIT is set, and mhsh {command} runs compiled programs alone; unset it")
    return 0 if run is None else run_with_entries(run)


def _help() -> str:
    lines = ["Usage: mhsh COMMAND ...", "", "Train shallow multi-head Transformers and their deep twins, and compare them."]
    for group, commands in COMMANDS.items():
        lines += ["", f"{group}:", *(f"  {name:<11} {text}" for name, text in commands.items())]
    return "\n".join([*lines, "", "mhsh COMMAND --help shows the flags of a command; begin with mhsh quickstart."])


def _environment_mistake(error: Exception) -> str:
    """What is wrong where jax cannot start as the environment has it: a device that it does not
    find, or a variable that it does not understand; empty: the error is another one.
    """
    place, named = traceback.extract_tb(error.__traceback__)[-1].filename, os.environ.get("JAX_PLATFORMS")
    if isinstance(error, RuntimeError) and str(error).startswith("Unable to initialize backend "):
        return str(error)
    if isinstance(error, AssertionError) and named and place.endswith("jax/_src/xla_bridge.py"):  # without a word
        extra = "tpu" if "tpu" in named else "cuda"
        return f"jax finds no device of JAX_PLATFORMS={named}; unset it, or install what finds one: {install_command(extra)}"
    match = re.search(r"(?:JAX flag |environment ')(\w+)", str(error)) if place.endswith("jax/_src/config.py") else None
    variable = match[1].upper() if match else ""
    if variable in os.environ:
        return f"{variable}={os.environ[variable]}: jax does not take that value; correct the variable, or unset it"
    return ""


def _first_line(error: BaseException) -> str:
    return (str(error) or "the machine has none left").split("\n")[0].removeprefix("RESOURCE_EXHAUSTED: ").rstrip(".")


def _fail(message: str) -> int:
    print(f"mhsh: {sanitize(message)}", file=sys.stderr)  # it may name what a foreign folder holds
    return USAGE_ERROR
