"""The reference manual of the running Python and the docstrings of its standard library: about 2 MB
of English that needs no download. Files are parsed, never imported.
"""

from __future__ import annotations

import ast
import importlib
import itertools
import re
import sysconfig
import warnings
from collections.abc import Iterator
from pathlib import Path

from mhsh.errors import UserError

# Folders of the standard library with tests, other packages, or (pydoc_data) the manual itself.
_SKIPPED_FOLDERS = frozenset({"site-packages", "dist-packages", "test", "tests", "idlelib", "lib2to3", "pydoc_data", "ensurepip"})
# Lines that are never joined to the line before: list items, prompts, quoted output, directives.
_OWN_LINE = re.compile(r"(?:[-*+|>#@]|\.\. |\.\.\.|\d+[.)] |:\w+)")
_RULER = re.compile(r"[^\w\s]*")


def read_stdlib() -> Iterator[str]:
    """A document for every topic of the manual, as `help()` shows it, and for every module."""
    return itertools.chain(_manual_topics(), _module_docstrings(Path(sysconfig.get_path("stdlib"))))


def _manual_topics() -> Iterator[str]:
    """The reference manual as `help()` shows it; each topic is a document."""
    try:
        topics = importlib.import_module("pydoc_data.topics").topics  # a module of one literal dictionary
    except ImportError as error:
        raise UserError(f"data.source = 'stdlib': this Python lacks its reference manual ({error}); use another source") from error
    for name in sorted(topics):
        yield "\n".join(_paragraphs(topics[name]))


def _module_docstrings(folder: Path) -> Iterator[str]:
    """A document for every module below `folder` that has docstrings, in the order of the file."""
    paths = sorted(folder.rglob("*.py"), key=lambda path: path.relative_to(folder).as_posix())
    read = (path for path in paths if _SKIPPED_FOLDERS.isdisjoint(path.relative_to(folder).parts[:-1]))
    texts = ("\n".join(line for docstring in _docstrings(path) for line in _paragraphs(docstring)) for path in read)
    empty = True
    for text in filter(None, texts):
        empty = False
        yield text
    if empty:
        raise UserError(f"data.source = 'stdlib': there are no Python sources under {folder}; use another source")


def _docstrings(path: Path) -> Iterator[str]:
    try:
        with warnings.catch_warnings():  # odd escapes in old modules are not ours to report
            warnings.simplefilter("ignore")
            tree = ast.parse(path.read_bytes(), filename=str(path))
    except (OSError, SyntaxError, ValueError) as error:
        raise UserError(
            f"data.source = 'stdlib': cannot parse {path}: {error}; repair this Python or use another source"
        ) from error
    # In the order of the file: a reader (and a language model) wants a class's methods right after
    # the class.
    pending: list[ast.AST] = [tree]
    while pending:
        node = pending.pop()
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            docstring = ast.get_docstring(node, clean=True)
            if docstring:
                # A literal may hold half of a surrogate pair, which is not text.
                yield docstring.encode("utf-8", errors="replace").decode("utf-8")
        # Only statements hold definitions; walking the expressions too takes four times as long.
        for block in ("cases", "finalbody", "orelse", "handlers", "body"):
            pending.extend(reversed(getattr(node, block, ())))


def _paragraphs(text: str) -> list[str]:
    """Text wrapped at some column as paragraphs, one a line: the wrapped lines of a paragraph are
    joined by a space.

    A line is taken as the continuation of the one before where it is indented like it (or the one
    before is a list item) and does not itself start like a list item, a prompt or a directive.
    Rulers (lines of punctuation) are left out.
    """
    lines: list[str] = []
    previous_indent: int | None = None
    for raw in text.split("\n"):
        line = raw.strip()
        if _RULER.fullmatch(line):  # blank lines too
            previous_indent = None
            continue
        indent = len(raw) - len(raw.lstrip())
        own_line = _OWN_LINE.match(line) is not None
        if previous_indent is not None and not own_line and indent == previous_indent:
            lines[-1] += " " + line
        else:
            lines.append(line)
        # The text of a list item goes on under its first word, not under its bullet.
        bullet = re.match(r"(?:[-*+]|\d+[.)]) +", line)
        previous_indent = indent + (len(bullet[0]) if bullet else 0)
    return lines
