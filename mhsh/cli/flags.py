"""Parameters that several commands have."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any, NamedTuple

from cyclopts import Parameter

from mhsh.config.schema import Config
from mhsh.configs import CONFIG, Changes, parse_config, parse_fields


class Made(NamedTuple):
    """Marks a parameter that is made of `--FLAG=...` and of all the `--FLAG.SECTION.FIELD=VALUE`.

    `make` gets the flag, its value, and those overrides.
    """

    flag: str
    make: Callable[[str, Any, Changes], Any]


def make_configs(flag: str, names: Sequence[str], changes: Changes) -> list[tuple[str, Config]]:
    """The names and configs, each with all overrides."""
    return [(name, config) for name in names if (config := parse_config(flag, name, changes)) is not None]


def _as_written(type_: object, tokens: Sequence[Any]) -> str:
    return tokens[0].value


def _all_as_written(type_: object, tokens: Sequence[Any]) -> list[str]:
    return [token.value for token in tokens]


_HELP = "a config that comes with mhsh (`mhsh configs` lists them), or FILE.py:VARIANT"


def _config(flag: str, what: str = _HELP, converter: Callable[..., Any] = _as_written) -> Parameter:
    return Parameter(
        name=f"--{flag}",
        metavar=CONFIG,
        help=f"{what}; --{flag}.SECTION.FIELD=VALUE changes a field",
        converter=converter,
        n_tokens=1,
        accepts_keys=False,
        show_default=False,
    )


ConfigFlag = Annotated[Config, _config("config"), Made("config", parse_config)]
AgainstFlag = Annotated[Config, _config("against", "a second config, to compare with"), Made("against", parse_config)]
# Of these the unchecked fields, dict[str, Any]: alone they are no complete config.
FieldsFlag = Annotated[Any, _config("config"), Made("config", parse_fields)]
TaskFlag = Annotated[
    Any,
    _config("task", "glue:TASK or squad:VERSION over --config, for a checkpoint that was fine-tuned"),
    Made("task", parse_fields),
]
# Several of them, as a list of names and Configs.
ConfigsFlag = Annotated[
    list[Any],
    _config("config", f"{_HELP}; several are set side by side, and a change goes to each", _all_as_written),
    Made("config", make_configs),
]
RunFolderArgument = Annotated[str, Parameter(name="RUN", help="a run folder")]
StepFlag = Annotated[int | None, Parameter(help="which checkpoint; the newest by default")]
