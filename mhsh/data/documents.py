"""Sources of documents: an entry a kind, for `data.source`, its errors, `mhsh configs` and docs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator

from etils import epath

from mhsh.config.entries import SOURCES
from mhsh.config.registry import WITH
from mhsh.data.columns import read_arrow, read_parquet
from mhsh.data.stdlib import read_stdlib
from mhsh.data.synthetic import copying, recall
from mhsh.data.text_files import BLANKS, matching_files, read_each_line, read_jsonl, read_text, read_whole_file, split_field
from mhsh.data.tfds import read_tfds
from mhsh.encoding import check_text
from mhsh.errors import UserError, closest

Documents = Callable[[str], Iterable[str]]


@dataclasses.dataclass(frozen=True)
class Source:
    """A kind of source: data.source = NAME:ARGUMENT, or NAME alone where it takes no argument."""

    name: str
    argument: str  # its form, such as GLOB[:COLUMN]; empty: it takes none
    reads: str  # what it reads, in a few words
    document: str  # what a document is
    # Called with the argument, or of files with each, and FIELD or else the glob. It returns the
    # documents in a fixed order, read lazily, the same in every process; "" stands for one without
    # text, which is counted. It raises UserError.
    read: Callable[..., Iterable[str]]
    # Which files of a folder it reads, where the argument is a glob or a folder; else empty.
    in_folder: str = ""

    @property
    def form(self) -> str:
        """The form of `data.source`."""
        return f"{self.name}:{self.argument}" if self.argument else self.name


def _refuse_rows(folder: str) -> Iterator[str]:
    raise UserError(f"data.source = {'arrayrecord:' + folder!r} holds rows, not documents; mhsh train reads them")


_COLUMN = "the column `text` of a row, or another (`a.b`: b in a)"
_FIELD = "the field `text` of a line, or another (`a.b`: b in a)"
_MANUAL = "the manual and the docstrings of the Python that runs, 2 MB of English"
_ANSWERS = "keys with their digits, then questions with answers"
for _source in (
    Source("text", "GLOB|DIR", "text files", "the lines up to a blank line", read_text, "*"),
    Source("lines", "GLOB|DIR", "text files", "a line", read_each_line, "*"),
    Source("files", "GLOB|DIR", "text files", "a file", read_whole_file, "*"),
    Source("jsonl", "GLOB|DIR[:FIELD]", "lines of JSON", _FIELD, read_jsonl, "*.json*"),
    Source("parquet", "GLOB|DIR[:COLUMN]", "Parquet files", _COLUMN, read_parquet, "*.parquet"),
    Source("arrow", "DIR[:COLUMN]", "a data set that `save_to_disk` of Hugging Face wrote", _COLUMN, read_arrow),
    Source("tfds", "NAME[:SPLIT]", "a data set that TensorFlow Datasets has prepared", "the feature `text` of a record", read_tfds),
    Source("arrayrecord", "DIR", "rows that `mhsh prepare` made", "what it was when they were made", _refuse_rows),
    Source("stdlib", "", _MANUAL, "a topic, or a module", lambda _: read_stdlib()),
    Source("recall", "KEYS", "nothing: it draws keys, and asks for so many at once", _ANSWERS, recall),
    Source("copying", "LETTERS", "nothing: it draws so many letters", "the letters, again and again", copying),
):
    SOURCES.add(_source.name, _source, _source.read)


def add_source(name: str, *, argument: str = "", reads: str, document: str) -> Callable[[Documents], Documents]:
    """Decorates a function from the argument of data.source = NAME:ARGUMENT to documents, as in
    `Source`: makes it the source `name`. Raises UserError where the name is taken or is none.
    """

    def add(read: Documents) -> Documents:
        SOURCES.add(name, Source(name, argument, reads, document, read), read)
        return read

    return add


def find_source(text: str) -> tuple[Source, str]:
    """The kind of a `data.source`, and its argument. Raises UserError where it is no source."""
    name, _, argument = text.partition(":")
    source = SOURCES.get(name)
    if source is None or bool(argument) != bool(source.argument):
        allowed = ", ".join(source.form for source in SOURCES.entries())
        is_path = "." in name or "://" in text or ("/" in text and ":" not in text)
        near = f"text:{text}" if is_path else closest(name, SOURCES.names()) if source is None else None
        hint = f"did you mean {near}? " if near else ""
        raise UserError(f"data.source = {text!r} is not a source; {hint}allowed: {allowed}, or your own ({WITH})")
    return source, argument


def files_of(text: str) -> list[epath.Path]:
    """The files of a `data.source`; none where it is not of files."""
    source, argument = find_source(text)
    return _files(source, argument)[0] if source.in_folder else []


def _files(source: Source, argument: str) -> tuple[list[epath.Path], str]:
    """The files of a source, and FIELD or COLUMN, or the glob where there is no such part."""
    part = source.argument.partition("[:")[2].rstrip("]")
    glob, field = split_field(source.name, argument, part) if part else (argument, argument)
    return matching_files(glob, f"data.source = {f'{source.name}:{argument}'!r}", source.in_folder), field


def document_rule(source: str) -> str:
    """The definition of a document of a `data.source`, and the kinds of source that define it
    otherwise for the same files.
    """
    kind, _ = find_source(source)
    others = [other for other in SOURCES.entries() if other.reads == kind.reads and other is not kind]
    words = ", ".join(f"{other.document} with {other.name}:" for other in others)
    return f"a document is {kind.document}" + (f" ({words})" if words else "")


def documents(source: str) -> Iterator[str]:
    """The documents of a `data.source`, in a fixed order, read lazily.

    A document is a string with one paragraph per line; paragraphs are stripped and not empty. It is
    empty where the source has a place without text. Raises UserError where something is wrong with
    the source. Errors inside a file are raised when the reading gets there; at the end, that all
    documents are empty.
    """
    kind, argument = find_source(source)
    if not kind.in_folder:
        return _clean_documents(kind.read(argument), source)
    paths, field = _files(kind, argument)
    return _clean_documents((text for path in paths for text in kind.read(path, field)), source)


def _clean_documents(texts: Iterable[str], source: str) -> Iterator[str]:
    empty = True
    if isinstance(texts, str) or not isinstance(texts, Iterable):  # of a user's source
        raise UserError(f"data.source = {source!r} returns a {type(texts).__name__}; yield documents, which are strings")
    for text in texts:
        if not isinstance(text, str):
            raise UserError(f"data.source = {source!r} gives a document of type {type(text).__name__}; give strings")
        if not text.isascii():
            check_text(text, f"a document of data.source = {source!r}")
        lines = (line.strip(BLANKS) for line in text.split("\n"))
        document = "\n".join(line for line in lines if line)
        empty = empty and not document
        yield document
    if empty:
        raise UserError(f"data.source = {source!r} holds no text; name one that does")
