"""Help pages: every flag is explained, and the examples at the end are right."""

from __future__ import annotations

import inspect
import re
import shlex

import pytest

from mhsh.cli.main import NAMES, main
from mhsh.cli.parser import HelpPage, pages, parse

PAGES: dict[str, HelpPage] = {page.command: page for name in NAMES for page in pages(name).values()}
EXAMPLES = [(name, example) for name, page in PAGES.items() for example in page.examples]


@pytest.mark.parametrize("name", PAGES)
def test_a_page_explains_every_flag_and_has_examples(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*name.split(), "--help"]) == 0
    text = capsys.readouterr().out
    assert f"Usage: mhsh {name}" in text and len(PAGES[name].examples) >= 2
    assert re.findall(r"^│ [* ]{0,3}--\S+(?: \S+)? +│$", text, flags=re.M) == [], "a flag without a word"
    assert main([*name.split(), "-h"]) == 0
    assert capsys.readouterr().out == text
    arguments = (inspect.getdoc(PAGES[name].run) or "").partition("\nArgs:\n")[2].partition("\n\n")[0]
    explained = set(re.findall(r"^  (\w+): ", arguments, flags=re.M))
    # Explained once, or by their own class.
    shared = {"config", "given", "configs", "against", "task", "step", "folder", "turns", "processes", "options"}
    parameters = set(inspect.signature(PAGES[name].run).parameters)
    assert explained <= parameters and parameters - explained <= shared


@pytest.mark.parametrize(("name", "example"), EXAMPLES, ids=[example for _, example in EXAMPLES])
def test_an_example_is_a_command_of_its_page_with_valid_configs(name: str, example: str) -> None:
    assert len(example) <= 78, "it fits a terminal"
    program, *arguments = shlex.split(example)
    assert program == "mhsh" and arguments[: len(name.split())] == name.split()
    assert parse(arguments[0], arguments[1:]) is not None


def test_the_list_of_commands_fits_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    lines = capsys.readouterr().out.split("\n")
    assert max(map(len, lines)) <= 80 and [line.split()[0] for line in lines if line.startswith("  ")] == list(NAMES)
    assert len(NAMES) <= 17
