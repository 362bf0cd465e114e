"""A report as Markdown: to be pasted into an issue or a page, with its pictures beside it."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping, Sequence

from mhsh.report.outputs import MARK
from mhsh.report.render.table import Table

_WIDTH = 100  # columns of prose
# An underscore within a word is only a character.
_SPECIAL = re.compile(r"[\\`*\[\]<>|&~$#]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])")


def to_markdown(
    claims: Sequence[str], pictures: Mapping[str, str] | None = None, tables: Sequence[tuple[str, Table]] = (), mark: str = MARK
) -> bytes:
    """The claims as a list, then the pictures and the tables.

    Args:
      claims: a sentence or a few each. All text is escaped.
      pictures: descriptions, by file beside this one.
      tables: with a title each; it may be empty.
      mark: what wrote it, as `check_replaceable` looks for it.
    """
    blocks = [f"<!-- {mark} -->", "\n".join(map(_item, claims))]
    blocks += [f"![{escape(words)}]({file})" for file, words in (pictures or {}).items()]
    for title, table in tables:
        blocks += [f"{escape(title)}:"] * bool(title) + [_table(table)]
    return ("\n\n".join(filter(None, blocks)) + "\n").encode()


def escape(text: str) -> str:
    """The text with a backslash before each character that Markdown or HTML would interpret."""
    return _SPECIAL.sub(r"\\\g<0>", text)


def _item(claim: str) -> str:
    return textwrap.fill(
        escape(claim), _WIDTH, initial_indent="- ", subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
    )


def _table(table: Table) -> str:
    rows = [list(table.columns), ["---"] * len(table.columns), *([escape(cell) for cell in row] for row in table.rows)]
    rows[0] = list(map(escape, rows[0]))
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)
