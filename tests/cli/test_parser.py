"""Help pages: what stands in the usage line, and the examples at the end, which are right."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterator

import pytest

from mhsh.cli.parser import COMMANDS, build_parser

NEED_CONFIG = ("finetune", "import", "plan", "prepare", "sweep")


def pages() -> Iterator[argparse.ArgumentParser]:
    """The parser of every command, and of every kind of those that have kinds."""
    for name in COMMANDS:
        (commands,) = (action for action in build_parser(name)._actions if isinstance(action, argparse._SubParsersAction))
        command = commands.choices[name]
        yield command
        for action in command._actions:
            if isinstance(action, argparse._SubParsersAction):
                yield from action.choices.values()


PAGES = {page.prog.removeprefix("mhsh "): page for page in pages()}
EXAMPLES = [(name, line.strip()) for name, page in PAGES.items() for line in (page.epilog or "").split("\n")[1:]]


def test_every_page_ends_with_two_examples() -> None:
    for name, page in PAGES.items():
        assert [each for each, _ in EXAMPLES].count(name) == 2, name
        assert page.format_help().endswith(f"{page.epilog}\n")


def test_the_config_is_in_the_usage_line() -> None:
    for name, page in PAGES.items():
        needed = name in NEED_CONFIG or (name.startswith("bench ") and name != "bench suite")
        optional = name == "train" or name.startswith("probe ")
        usage = " ".join(page.format_usage().split())
        assert ("[--config NAME:VARIANT]" in usage) == optional, name
        assert ("--config NAME:VARIANT" in usage) == (needed or optional), name


@pytest.mark.parametrize(("name", "example"), EXAMPLES, ids=[example for _, example in EXAMPLES])
def test_an_example_is_a_command_of_its_page_with_valid_configs(name: str, example: str) -> None:
    assert len(example) <= 78, "it fits a terminal"
    program, *arguments = shlex.split(example.partition(" < ")[0])
    assert program == "mhsh" and arguments[0] == name.split()[0]
    options, rest = build_parser(arguments[0]).parse_known_args(arguments)
    for parameter, (take, flag) in vars(options).get("takers", {}).items():
        value, rest = take(flag, getattr(options, parameter), rest)
        assert value is not None or getattr(options, parameter) is None
    assert rest == []


def test_probe_lists_what_it_looks_at() -> None:
    text = PAGES["probe"].format_help()
    for kind in ("dependency", "amplification", "gradients", "coverage", "similarity"):
        assert f"\n    {kind}" in text
