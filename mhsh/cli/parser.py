"""The parser of `mhsh`: one line of help for every command, and the flags of the one that is
run.
"""

from __future__ import annotations

import argparse
import importlib
from types import ModuleType
from typing import Any, NoReturn

from mhsh import __version__
from mhsh.errors import UserError

# By the folder that their files are in, in the order of `mhsh --help`, which prints them without
# importing a command.
_FOLDERS = {
    "runs": {
        "train": "train a config into a run folder, or resume the run that is there",
        "eval": "score a run's checkpoint on its validation rows",
        "prepare": "make a config's sentence pairs or documents into packed rows on disk",
        "finetune": "train a pre-trained run's model on a task, with several seeds",
        "predict": "answer a task's examples with a fine-tuned run, in the task's own form",
        "translate": "translate lines with a run's checkpoint, one line in, one line out",
        "generate": "let a causal run write on from a text",
        "fill": "the likeliest words in the place of each [MASK] of a text, by a masked run",
        "import": "make a run folder of a Hugging Face BERT checkpoint",
        "export": "write a run's checkpoint as a BERT that transformers loads",
        "quickstart": "train the small comparison and write its report",
    },
    "plans": {
        "plan": "what a run will be and cost: parameters, FLOPs, memory; on a TPU slice, and its time on many chips",
        "configs": "list config files, variants and fields, or print one config",
    },
    "reports": {
        "compare": "set runs and sweeps against a baseline, or files of mhsh bench side by side: a table and report.html",
        "sweep": "train a config at every combination of some fields' values, and report",
        "probe": "look into a model: what its layers do on one batch",
    },
    "scores": {"score": "score predictions of any system against references"},
    "benches": {"bench": "time mhsh beside other configs, its peers and the device's limits, in turns"},
}
COMMANDS = {name: help_text for commands in _FOLDERS.values() for name, help_text in commands.items()}


class Parser(argparse.ArgumentParser):
    """Says what is wrong in one line. Help is printed as it is written."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options, allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter)

    def error(self, message: str) -> NoReturn:
        """Raises UserError with the message of argparse."""
        missing = message.removeprefix("the following arguments are required: ")
        said = message if missing == message else f"{self.prog} needs {missing}"
        configs = "; mhsh configs lists what --config takes" if "--config" in missing else ""
        raise UserError(f"{said}; see {self.prog} --help{configs}")


def build_parser(chosen: str | None) -> argparse.ArgumentParser:
    """All commands; only `chosen` has its flags, as `run` and `takers` among the parsed options."""
    parser = Parser(
        prog="mhsh",
        description="Train shallow multi-head Transformers against their deep twins.",
        epilog=examples("mhsh quickstart", "mhsh train --help"),
    )
    parser.add_argument("--version", action="version", version=f"mhsh {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    for name, help_text in COMMANDS.items():
        command = add_command(commands, name, help_text)
        if name == chosen:
            module = command_module(name)
            command.set_defaults(run=module.run)
            module.add_arguments(command)
    return parser


def add_command(commands: Any, name: str, help_text: str) -> argparse.ArgumentParser:
    """One more parser among the `commands` of another."""
    return commands.add_parser(name, help=help_text, description=help_text)


def examples(*commands: str) -> str:
    """The end of a help page: commands to try."""
    return "\n  ".join(["examples:", *commands])


def command_module(name: str) -> ModuleType:
    """The file of a command, mhsh/cli/FOLDER/NAME.py; a keyword of Python cannot be one."""
    folder = next(folder for folder, commands in _FOLDERS.items() if name in commands)
    file = {"import": "import_checkpoint", "export": "export_checkpoint"}.get(name, name.replace("-", "_"))
    return importlib.import_module(f"mhsh.cli.{folder}.{file}")
