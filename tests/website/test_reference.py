"""The generated reference: every flag of the commands, every field of a config."""

from __future__ import annotations

import inspect
import re

import pytest

from mhsh.cli.parser import pages
from mhsh.config.fields import all_fields
from mhsh.config.schema import OBJECTIVES, ROLES
from website import reference
from website.pages import DOCS

SOME = ("train", "score", "compare")  # a cluster's flags, several files, flags without values; quickly imported


def test_each_flag_of_a_command_is_on_the_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reference, "NAMES", SOME)
    sections = dict(re.findall(r"^## ([^\n]+)\n(.*?)(?=^## |\Z)", reference.commands(), flags=re.M | re.S))
    shown = {page.command: page for name in SOME for page in pages(name).values()}
    assert list(sections) == list(shown)
    for name, page in shown.items():
        for parameter in inspect.signature(page.run).parameters.values():
            if parameter.kind is parameter.KEYWORD_ONLY and parameter.name != "as_json":
                flag = {"given": "config", "processes": "process-id"}.get(parameter.name, parameter.name.replace("_", "-"))
                assert f" --{flag}" in sections[name], f"{name} {parameter.name}"


def test_each_field_is_in_a_table_below_the_roles() -> None:
    text = reference.fields()
    for field in (field for objective in OBJECTIVES for field in all_fields(objective)):
        assert f"| `{field.path}` |" in text
    page = (DOCS / "config.md").read_text(encoding="utf-8")
    assert page.endswith("".join(f"- `{role}`: {meaning}\n" for role, meaning in ROLES.items()))
