"""The generated page of all commands."""

from __future__ import annotations

import inspect
import re

import pytest

from mhsh.cli.parser import pages
from website import commands

SOME = ("train", "score", "compare")  # a cluster's flags, kinds, flags without values; quickly imported


def test_each_flag_of_a_command_is_on_the_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commands, "NAMES", SOME)
    sections = dict(re.findall(r"^## ([^\n]+)\n(.*?)(?=^## |\Z)", commands.markdown(), flags=re.M | re.S))
    shown = {page.command: page for name in SOME for page in pages(name).values()}
    assert list(sections) == list(shown)
    for name, page in shown.items():
        for parameter in inspect.signature(page.run).parameters.values():
            if parameter.kind is parameter.KEYWORD_ONLY and parameter.name != "as_json":
                assert f" --{parameter.name.replace('_', '-')}" in sections[name], f"{name} {parameter.name}"
