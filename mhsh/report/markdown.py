"""Tables and reports as Markdown: to be pasted into an issue or a page, with pictures beside it."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping, Sequence
from urllib.parse import quote

from mhsh.report.report import MARK, Report, Table
from mhsh.text import sanitize

_WIDTH = 100  # columns of prose
# An underscore within a word is only a character.
_SPECIAL = re.compile(r"[\\`*\[\]<>|&~$#]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])")


def report_to_markdown(report: Report, pictures: Mapping[str, str]) -> bytes:
    """The answer, the sentences below it and the problems, then pictures and all tables."""
    tables = [*report.tables, *report.rates, *report.conditions]
    problems = [f"Problem: {problem}" for problem in report.problems]
    return to_markdown([f"{report.title}.", *report.summary, *problems], pictures, tables)


def to_markdown(claims: Sequence[str], pictures: Mapping[str, str], tables: Sequence[Table], mark: str = MARK) -> bytes:
    """The claims as a list, then the pictures and the tables.

    Args:
      claims: a sentence or a few each. All text is escaped.
      pictures: descriptions, by file beside this one.
      tables: their titles may be empty.
      mark: what wrote it.
    """
    blocks = [f"<!-- {mark} -->", "\n".join(map(_item, claims))]
    blocks += [f"![{escape(words)}]({quote(file)})" for file, words in pictures.items()]
    for table in tables:
        blocks += [f"{escape(table.title)}:"] * bool(table.title) + [_table(table), escape(table.note)]
    return ("\n\n".join(filter(None, blocks)) + "\n").encode()


def escape(text: str) -> str:
    """The text on one line, with a backslash before each character that Markdown or HTML would
    interpret.
    """
    return _SPECIAL.sub(r"\\\g<0>", sanitize(text))


def _item(claim: str) -> str:
    return textwrap.fill(
        escape(claim), _WIDTH, initial_indent="- ", subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
    )


def _table(table: Table) -> str:
    rules = ["---:" if column.numeric else "---" for column in table.columns]
    rows = [[escape(column.name) for column in table.columns], rules]
    rows += [[escape(cell.words) for cell in row.full_cells] for row in table.rows]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)
