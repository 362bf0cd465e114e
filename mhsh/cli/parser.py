"""The command line of one command, read from the signature and the docstring of its function; and
the parameters that several commands have.

A command is a module of `mhsh.cli` with a function `run`, or with several, named in `KINDS`. Its
parameters are the flags (positional-only ones the arguments), their types and defaults are those of
the signature, and their help is under `Args:` in the docstring. `EXAMPLES` end the help page.
"""

from __future__ import annotations

import functools
import importlib
import itertools
import math
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Annotated, Any, NamedTuple

from cyclopts import App, CycloptsError, MissingArgumentError, Parameter, RepeatArgumentError, UnusedCliTokensError
from cyclopts.validators import Number

from mhsh.config.fields import flatten, parse_value
from mhsh.config.registry import WITH, load_files
from mhsh.config.schema import Config
from mhsh.configs import CONFIG, Changes, parse_config, parse_fields, take_changes
from mhsh.errors import UserError, closest, nearest
from mhsh.storage.files import check_folder

Run = Callable[..., int]

_HELP_FLAGS = {"--help", "-h"}
_FILES = {"import": "import_checkpoint", "export": "export_checkpoint"}  # a keyword of Python is not a module


class ComposedFlag(NamedTuple):
    """Marks a parameter that is composed of `--FLAG=...` and all `--FLAG.SECTION.FIELD=VALUE`.

    `make` gets the flag, its value, and those overrides.
    """

    flag: str
    make: Callable[[str, Any, Changes], Any]


class ConfigFields(NamedTuple):
    """The unchecked fields of a config (alone they may be no complete one), and the overrides among
    them. A command that sets fields itself says with `check_overrides` which overrides it cannot
    keep.
    """

    flag: str
    fields: dict[str, Any]
    changes: Changes

    def check_overrides(self, made: Config | Mapping[str, Any], decided_by: str) -> None:
        """Checks that what came of the fields has every override. Raises UserError where
        `decided_by`, such as a checkpoint, gave a field another value.
        """
        values = flatten(made)
        for path, text in self.changes:
            if path in values and values[path] != parse_value(path, text):
                raise UserError(
                    f"--{self.flag}.{path}={text} has no effect: {decided_by} makes it {values[path]!r}; leave out that flag"
                )


class ConfigOrChanges(NamedTuple):
    """A config with all overrides; or none, and what changes in that of a run, by path."""

    config: Config | None
    changes: Sequence[tuple[str, Any]]


NO_CHANGES = ConfigOrChanges(None, ())


def make_config_or_changes(flag: str, name: str | None, changes: Changes) -> ConfigOrChanges:
    """The config of `--FLAG=name` with overrides, or the overrides alone as changes."""
    if name is not None:
        return ConfigOrChanges(parse_config(flag, name, changes), ())
    return ConfigOrChanges(None, [(path, parse_value(path, text)) for path, text in changes])


def make_fields(flag: str, name: str | None, changes: Changes) -> ConfigFields | None:
    """The fields of `--FLAG=name` with all overrides; None: it is not given."""
    fields = parse_fields(flag, name, changes)
    return None if fields is None else ConfigFields(flag, fields, changes)


def make_configs(flag: str, names: Sequence[str], changes: Changes) -> list[tuple[str, Config]]:
    """The names and configs, each with all overrides."""
    return [(name, config) for name in names if (config := parse_config(flag, name, changes)) is not None]


def _convert_tokens(type_: object, tokens: Sequence[Any]) -> str | list[str]:
    texts = [token.value for token in tokens]
    if typing.get_origin(type_) is list:
        return texts
    if len(texts) > 1:
        raise RepeatArgumentError(token=tokens[-1])
    return texts[0]


_WITH_HELP = f"{WITH}, on any command: first executes a file of yours, which adds a residual scheme, an optimizer or a source."
_HELP = "a config that comes with mhsh (`mhsh configs` lists them), or FILE.py:VARIANT"


def _config(flag: str, what: str = _HELP) -> Parameter:
    return Parameter(
        name=f"--{flag}",
        metavar=CONFIG,
        help=f"{what}; --{flag}.SECTION.FIELD=VALUE changes a field",
        converter=_convert_tokens,
        n_tokens=1,
        accepts_keys=False,
        show_default=False,
    )


ConfigFlag = Annotated[Config, _config("config"), ComposedFlag("config", parse_config)]
AgainstFlag = Annotated[Config, _config("against", "a second config, to compare with"), ComposedFlag("against", parse_config)]
ConfigFieldsFlag = Annotated[ConfigFields, _config("config"), ComposedFlag("config", make_fields)]
TaskFlag = Annotated[
    ConfigFields,
    _config("task", "glue:TASK or squad:VERSION over --config, for a checkpoint that was fine-tuned"),
    ComposedFlag("task", make_fields),
]
_OF_RUN = f"{_HELP}; or none, and a run's own"
ConfigOrChangesFlag = Annotated[ConfigOrChanges, _config("config", _OF_RUN), ComposedFlag("config", make_config_or_changes)]
RunChangesFlag = Annotated[
    ConfigOrChanges, Parameter(parse=False), ComposedFlag("config", make_config_or_changes)
]  # never with a config
# Several of them, as a list of names and Configs.
ConfigsFlag = Annotated[
    list[Any],
    _config("config", f"{_HELP}; several are set side by side, and a change goes to each"),
    ComposedFlag("config", make_configs),
]


def _folder(flag: str) -> Parameter:
    return Parameter(validator=lambda _, path: check_folder(flag, path))


WorkdirFlag = Annotated[str, _folder("--workdir")]
OutFolderFlag = Annotated[str, _folder("--out")]
Count = Annotated[int, Parameter(validator=Number(gte=1))]
Positive = Annotated[float, Parameter(validator=Number(gt=0, lt=math.inf))]
RunFolderArgument = Annotated[str, Parameter(name="RUN", help="a run folder")]
StepFlag = Annotated[int | None, Parameter(help="which checkpoint; the newest by default")]


class HelpPage(NamedTuple):
    """A help page: that of a command, or of one of its kinds."""

    command: str  # such as `train` or `bench train`
    run: Run
    examples: Sequence[str]

    def app(self) -> App:
        """The parser."""
        return App(
            name=f"mhsh {self.command}",
            default_command=self.run,
            default_parameter=Parameter(negative=(), show_default=_format_default),
            help_format="markdown",
            help_flags=(),
            help_epilogue="\n".join([_WITH_HELP, "", "Examples:", "", *(f"    {example}" for example in self.examples)]),
            version_flags=(),
            exit_on_error=False,
            print_error=False,
        )


def pages(command: str) -> dict[str, HelpPage]:
    """The pages of a command by kind; a command without kinds has one, under the empty string."""
    module = importlib.import_module(f"mhsh.cli.{_FILES.get(command, command)}")
    kinds: Mapping[str, Run] = module.KINDS if hasattr(module, "KINDS") else {"": module.run}
    return {
        kind: HelpPage(
            f"{command} {kind}".strip(), run, [line for line in module.EXAMPLES if not kind or f"mhsh {command} {kind} " in line]
        )
        for kind, run in kinds.items()
    }


def parse(command: str, arguments: Sequence[str]) -> functools.partial[int] | None:
    """The function of a command with these arguments; None: its help is printed.
    Raises UserError where an argument is missing, unknown or of another type.
    """
    page, rest = _choose_page(command, list(arguments))
    if page is None:
        return None
    files, rest = _take_files(rest)
    load_files(files)
    app = page.app()
    if not _HELP_FLAGS.isdisjoint(rest):
        app.help_print()
        return None
    made = dict(_composed_parameters(page.run))
    changes = {}
    for mark in made.values():
        changes[mark.flag], rest = take_changes(mark.flag, rest)
    _check_filled(page.command, rest)
    try:
        run, bound, unused, _ = app.parse_known_args(rest)
        if unused:
            raise UnusedCliTokensError(unused_tokens=unused)
    except CycloptsError as error:
        raise _refusal(error, app, page.command, rest) from error
    for name, mark in made.items():
        bound.arguments[name] = mark.make(mark.flag, bound.arguments.get(name), changes[mark.flag])
    return functools.partial(run, *bound.args, **bound.kwargs)


def _check_filled(command: str, arguments: Sequence[str]) -> None:
    """Raises UserError where an argument is empty, as that of an unset variable is: it would read
    as one that is not given, or as the folder here. A text may be empty.
    """
    for before, argument in itertools.pairwise(["", *arguments]):
        flag, equals, value = argument.partition("=") if argument.startswith("--") else ("", "", argument)
        if not value and (equals or not flag) and "--text" not in (before, flag):
            named = f"{flag}=" if equals else f"the argument after {before or command}"
            raise UserError(f"{named} is empty; give a value; see mhsh {command} --help")


def _take_files(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """The values of --with=FILE.py, also without the `=`, and the arguments left."""
    files, left = [], []
    rest = iter(arguments)
    for argument in rest:
        flag, equals, value = argument.partition("=")
        if flag == "--with":
            files.append(value if equals else next(rest, ""))
        else:
            left.append(argument)
    return files, left


def _choose_page(command: str, arguments: list[str]) -> tuple[HelpPage | None, list[str]]:
    """The page that the first argument names, where the command has kinds, and the other ones."""
    known = pages(command)
    if "" in known:
        return known[""], arguments
    kind = arguments[0] if arguments else ""
    if kind in known:
        return known[kind], arguments[1:]
    if kind in _HELP_FLAGS:
        for page in known.values():
            page.app().help_print()
        return None, []
    hint = f": unknown kind {kind!r}; {nearest(kind, known)}" if kind else f" needs one of {', '.join(known)}"
    raise UserError(f"mhsh {command}{hint}; see mhsh {command} --help")


def _composed_parameters(run: Run) -> Iterator[tuple[str, ComposedFlag]]:
    """The parameters that are made of several flags."""
    for name, hint in typing.get_type_hints(run, include_extras=True).items():
        for part in (hint, *typing.get_args(hint)):  # an optional one is a union
            yield from ((name, mark) for mark in getattr(part, "__metadata__", ()) if isinstance(mark, ComposedFlag))


def _refusal(error: CycloptsError, app: App, command: str, given: Sequence[str]) -> UserError:
    """What is wrong with the arguments `given`: a flag that the command lacks, with the one that
    was meant; else the `error`. It takes one to know: what looks like a flag may be a flag's value.
    """
    known = [name for argument in app.assemble_argument_collection() for name in argument.names]
    unknown = [text for text in given if text.startswith("--") and text.partition("=")[0] not in known]
    if unknown:
        near = closest(unknown[0].partition("=")[0], known)
        hint = f"did you mean {near}? " if near else ""
        return UserError(f"{unknown[0]} is not an argument of mhsh {command}; {hint}see mhsh {command} --help")
    argument = getattr(error, "argument", None)
    if isinstance(error, UnusedCliTokensError) and error.unused_tokens:
        words = f"{error.unused_tokens[0]} is not an argument of mhsh {command}"
    elif isinstance(error, MissingArgumentError) and argument is not None and not argument.tokens:
        words = f"mhsh {command} needs {argument.name}"
    else:
        error.verbose = False
        words = str(error).strip().rstrip(".")
    more = "; mhsh configs lists what --config takes" if argument is not None and argument.name == "--config" else ""
    return UserError(f"{words}; see mhsh {command} --help{more}")


def _format_default(value: object) -> str | None:
    """The text of a default in the help, where it says something; else None."""
    return None if value is None or value is False or value in ((), "") else str(value)
