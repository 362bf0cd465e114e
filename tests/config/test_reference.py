"""docs/config.md, which is generated."""

from __future__ import annotations

from pathlib import Path

from mhsh.config.fields import all_fields
from mhsh.config.reference import markdown, text
from mhsh.config.schema import OBJECTIVES

PAGE = Path(__file__).resolve().parents[2] / "docs" / "config.md"


def test_the_page_is_what_the_schema_says() -> None:
    assert PAGE.read_text(encoding="utf-8") == markdown(), "write it anew: mhsh configs --markdown > docs/config.md"


def test_every_field_is_on_the_page_and_in_the_terminal() -> None:
    for objective in OBJECTIVES:
        for field in all_fields(objective):
            assert f"| `{field.path}` |" in markdown()
            assert f"  {field.path} (" in text()


def test_lines_outside_of_tables_are_short() -> None:
    assert max(len(line) for line in markdown().split("\n") if not line.startswith("|")) <= 100
