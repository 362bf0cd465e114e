"""The reference: what `mhsh COMMAND --help` prints, and the tables of all fields of a config."""

from __future__ import annotations

import io

from rich.console import Console

from mhsh.cli.main import NAMES
from mhsh.cli.parser import HelpPage, pages
from mhsh.config.entries import SOURCES
from mhsh.config.fields import sections

_COMMANDS = """# Commands

[Using mhsh](usage.md) shows the commands at work, and [the config reference](config.md) has the
fields that `--config.SECTION.FIELD=VALUE` sets.
"""


def commands() -> str:
    """The page of all commands: a section for each one and each kind."""
    return "\n".join([_COMMANDS, *(_section(page) for name in NAMES for page in pages(name).values())])


def fields() -> str:
    """The text below docs/config.md: a table for each section, as `mhsh configs` lists them."""
    parts = ["\n## Sources of documents\n\n| data.source | reads | a document is |\n|---|---|---|\n"]
    for source in SOURCES.entries():
        form = source.form.replace("|", r"\|")
        parts.append(f"| `{form}` | {source.reads} | {source.document} |\n")
    for heading, doc, members in sections():
        parts += [f"\n## {heading}\n\n{doc}\n\n", "| field | values | default | role | meaning |\n|---|---|---|---|---|\n"]
        for field in members:
            cells = (f"`{field.path}`", field.values, str(field.default), field.role, field.doc)
            parts.append(f"| {' | '.join(cells)} |\n".replace("*", r"\*"))
    return "".join(parts)


def _section(page: HelpPage) -> str:
    written = io.StringIO()
    page.app().help_print(console=Console(file=written, width=96, color_system=None))
    lines = "\n".join(line.rstrip() for line in written.getvalue().strip().split("\n"))
    return f"## {page.command}\n\n```text\n{lines}\n```\n"
