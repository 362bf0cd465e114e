"""Reads documents of text from `stdlib`, `text:GLOB`, `parquet:GLOB[:COLUMN]` or `tfds:NAME`."""

from __future__ import annotations

import ast
import importlib
import itertools
import re
import sysconfig
import warnings
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from etils import epath

from mhsh.data.text_files import matching_files, text_lines
from mhsh.data.tfds import open_split
from mhsh.errors import UserError
from mhsh.storage.files import opened

# Folders of the standard library with tests, other packages, or (pydoc_data) the manual itself.
_SKIPPED_FOLDERS = frozenset({"site-packages", "dist-packages", "test", "tests", "idlelib", "lib2to3", "pydoc_data", "ensurepip"})
# Lines that are never joined to the line before: list items, prompts, quoted output, directives.
_OWN_LINE = re.compile(r"(?:[-*+|>#@]|\.\. |\.\.\.|\d+[.)] |:\w+)")
_RULER = re.compile(r"[^\w\s]*")
# str.strip() without an argument would also strip U+0085 and its like, which are text to us: only
# "\n" ends a line.
_BLANKS = " \t\r\v\f"
_PARQUET_COLUMN = "text"
# Rows and bytes of Parquet that are in memory at a time. A row group may be as large as its file.
_ROWS_PER_READ = 256
_BUFFER_BYTES = 1 << 20


def documents(source: str) -> Iterator[str]:
    """The documents of a source, in a fixed order, read lazily.

    A document is a string with one paragraph per line; paragraphs are stripped and not empty.

    Sources:
      stdlib: the reference manual of the running Python and the docstrings of its standard library,
        about 2 MB of English. Files are parsed, never imported. Each Python version has its own
        text.
      text:GLOB: plain, .gz and .xz files in sorted order, UTF-8, lines ended by "\\n" only. A blank
        line ends a document.
      parquet:GLOB[:COLUMN]: a column of texts ("text") of Parquet files; each row is a document.
      tfds:NAME: the feature "text" of a data set that TFDS has prepared, such as
        tfds:wikipedia/20230601.en; each record is a document.

    Raises:
      UserError: whatever is wrong with the source. Errors inside a file are raised when the reading
        gets there.
    """
    kind, _, rest = source.partition(":")
    if source == "stdlib":
        return itertools.chain(_manual_topics(), _module_docstrings(Path(sysconfig.get_path("stdlib"))))
    if kind == "text" and rest:
        return _of_files(source, rest, lambda path: _documents_of_lines(text_lines(path)))
    if kind == "parquet" and rest:
        return _joined(_parquet_texts(source, rest))
    if kind == "tfds" and rest:
        return _joined(record["text"] for record in open_split(rest).records("text"))
    raise UserError(
        f"data.source = {source!r} is not a source; allowed: stdlib, text:GLOB (for example text:corpus/*.txt.xz), "
        "parquet:GLOB[:COLUMN], tfds:NAME, arrayrecord:DIR"
    )


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
    complaint = f"data.source = 'stdlib': there are no Python sources under {folder}; use another source"
    return _unless_empty((text for text in texts if text), complaint)


def _unless_empty(texts: Iterable[str], complaint: str) -> Iterator[str]:
    """The texts. Raises UserError at the end where all of them are empty."""
    empty = True
    for text in texts:
        empty = empty and not text.strip()
        yield text
    if empty:
        raise UserError(complaint)


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
                # A literal may hold half of a surrogate pair, which is no text.
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


def _of_files(source: str, pattern: str, read: Callable[[epath.Path], Iterator[str]]) -> Iterator[str]:
    paths = matching_files(pattern, f"data.source = {source!r}")
    complaint = f"data.source = {source!r}: the {len(paths)} files it matches hold no text; name files that do"
    yield from _unless_empty((text for path in paths for text in read(path)), complaint)


def _documents_of_lines(lines: Iterable[str]) -> Iterator[str]:
    """Documents out of lines: a blank line ends one, and blanks around a line are not text."""
    paragraphs: list[str] = []
    for line in (line.strip(_BLANKS) for line in lines):
        if line:
            paragraphs.append(line)
        elif paragraphs:
            yield "\n".join(paragraphs)
            paragraphs = []
    if paragraphs:
        yield "\n".join(paragraphs)


def _joined(texts: Iterable[str]) -> Iterator[str]:
    """A document of every text, its blank lines left out."""
    for text in texts:
        lines = (line.strip(_BLANKS) for line in text.split("\n"))
        yield "\n".join(line for line in lines if line)


def _parquet_texts(source: str, name: str) -> Iterator[str]:
    """The texts of GLOB[:COLUMN], file by file and row by row."""
    pattern, colon, column = name.rpartition(":")
    if not colon or "/" in column:  # the colon of gs:// or of a folder
        pattern, column = name, _PARQUET_COLUMN
    if not pattern or not column:
        raise UserError(f"data.source = {source!r} lacks a glob or a column; write parquet:GLOB or parquet:GLOB:COLUMN")
    return _of_files(source, pattern, lambda path: _parquet_column(path, column))


def _parquet_column(path: epath.Path, column: str) -> Iterator[str]:
    import pyarrow  # takes a third of a second
    from pyarrow import parquet

    at = str(path)
    try:
        with opened(path) as file:
            # By default all of a row group's column would be read before its first row.
            table = parquet.ParquetFile(file, pre_buffer=False, buffer_size=_BUFFER_BYTES, page_checksum_verification=True)
            _check_parquet_column(at, table.schema_arrow, column)
            for group in range(table.num_row_groups):
                at, row = f"{path}, row group {group}", 0
                # Threads would read ahead; the reading is quicker than what is done with the text.
                for batch in table.iter_batches(_ROWS_PER_READ, [group], [column], use_threads=False):
                    values = batch.column(0)
                    if values.null_count:
                        row += values.is_null().index(True).as_py()
                        raise UserError(f"{at}: row {row} has no value in the column {column!r}; leave such rows out of the file")
                    yield from values.to_pylist()
                    row += len(values)
    except UnicodeDecodeError as error:
        raise UserError(f"{at}: the column {column!r} is not UTF-8: {error.reason}; write the file again") from error
    except (OSError, pyarrow.ArrowException) as error:
        if isinstance(error, OSError) and error.strerror:
            raise UserError(f"cannot read {at}: {error.strerror}") from error
        raise UserError(f"{at} is damaged or no Parquet ({' '.join(str(error).split())}); fetch it again") from error


def _check_parquet_column(at: str, schema: Any, column: str) -> None:
    """Raises UserError where the file has no such column, or one that is not text."""
    from pyarrow import types

    if schema.names.count(column) != 1:
        raise UserError(f"{at} has the columns {', '.join(schema.names)}, but not one {column!r}; write parquet:GLOB:COLUMN")
    kind = schema.field(column).type
    kind = kind.value_type if types.is_dictionary(kind) else kind
    if not (types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind)):
        raise UserError(f"{at}: the column {column!r} is of type {kind}, which is not text; name a column of text")
