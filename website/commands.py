"""The page of all commands: what `mhsh COMMAND --help` prints."""

from __future__ import annotations

import io

from rich.console import Console

from mhsh.cli.main import NAMES
from mhsh.cli.parser import Page, pages

_INTRODUCTION = """# Commands

[Using mhsh](usage.md) shows the commands at work, and [the config reference](config.md) has the
fields that `--config.SECTION.FIELD=VALUE` sets.
"""


def markdown() -> str:
    """The page: a section for each command and kind, in the order of `mhsh --help`."""
    return "\n".join([_INTRODUCTION, *(_section(page) for name in NAMES for page in pages(name).values())])


def _section(page: Page) -> str:
    written = io.StringIO()
    page.app().help_print(console=Console(file=written, width=96, color_system=None))
    lines = "\n".join(line.rstrip() for line in written.getvalue().strip().split("\n"))
    return f"## {page.command}\n\n```text\n{lines}\n```\n"
