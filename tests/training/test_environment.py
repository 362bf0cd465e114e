"""The hash of the sources: comments and docstrings do not count, and all else does."""

from __future__ import annotations

import ast

import pytest

from mhsh.training.environment import CODE_THAT_DECIDES, strip_comments
from tests.conftest import ROOT

SOURCE = '''"""A module."""
RATE = 3  # not "two"


class Model:
    """A model.

    # no comment
    """

    name = "#fff"  # a colour
    text = """
# a line of text
"""

    def double(self):
        \'\'\'Twice.\'\'\'
        return "a \\"#" + self.name
'''


def tree(source: str) -> str:
    """The syntax tree, with empty docstrings."""
    parsed = ast.parse(source)
    for node in ast.walk(parsed):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node) is not None:
            node.body[0] = ast.Expr(ast.Constant(""))
    return ast.dump(parsed)


def test_only_comments_and_docstrings_go():
    for package in CODE_THAT_DECIDES:
        sources = [path.read_text(encoding="utf-8") for path in (ROOT / "mhsh" / package).rglob("*.py")]
        assert sources and [tree(strip_comments(source)) for source in sources] == [tree(source) for source in sources]


@pytest.mark.parametrize(
    ("before", "after", "counts"),
    [
        ("A module.", "The module.", False),
        ("  # a colour", "", False),
        ("RATE = 3", "# The rate.\n\nRATE = 3", False),
        ("Twice.", "Two times.", False),
        ("# no comment", "# none", False),
        ("RATE = 3", "RATE = 9", True),
        ("#fff", "#000", True),
        ("a line of text", "another line", True),
        ('\\"#"', '\\"##"', True),
    ],
)
def test_what_counts(before, after, counts):
    assert SOURCE.count(before) == 1
    assert (strip_comments(SOURCE) != strip_comments(SOURCE.replace(before, after))) == counts
