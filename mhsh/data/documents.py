"""Sources of documents: an entry a kind, for `data.source`, its errors, `mhsh configs` and docs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator

from etils import epath

from mhsh.config.entries import SOURCES
from mhsh.config.registry import WITH
from mhsh.data.columns import read_arrow, read_parquet
from mhsh.data.stdlib import read_stdlib
from mhsh.data.synthetic_documents import copying, recall
from mhsh.data.text_documents import BLANKS, read_jsonl, read_lines, read_text, read_whole_files
from mhsh.data.text_files import matching_files, with_field
from mhsh.data.tfds import open_split
from mhsh.errors import UserError, closest

Documents = Callable[[str], Iterable[str]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Source:
    """A kind of source: data.source = NAME:ARGUMENT, or NAME alone where it takes no argument."""

    name: str
    argument: str = ""  # its form, such as GLOB[:COLUMN]; empty: it takes none
    reads: str  # what it reads, in a few words
    document: str  # what a document is
    # Called with the argument. It returns the documents in a fixed order, read lazily, the same in
    # every process; "" stands for one without text, which is counted. It raises UserError.
    documents: Documents
    # Which files of a folder it reads, where the argument is a glob or a folder; else empty.
    in_folder: str = ""

    @property
    def form(self) -> str:
        """The form of `data.source`."""
        return f"{self.name}:{self.argument}" if self.argument else self.name


def _refuse_rows(folder: str) -> Iterator[str]:
    raise UserError(f"data.source = {'arrayrecord:' + folder!r} holds rows, not documents; mhsh train reads them")


_SHIPPED = (
    Source(
        name="text",
        argument="GLOB|DIR",
        reads="text files",
        document="the lines up to a blank line",
        documents=read_text,
        in_folder="*",
    ),
    Source(name="lines", argument="GLOB|DIR", reads="text files", document="a line", documents=read_lines, in_folder="*"),
    Source(name="files", argument="GLOB|DIR", reads="text files", document="a file", documents=read_whole_files, in_folder="*"),
    Source(
        name="jsonl",
        argument="GLOB|DIR[:FIELD]",
        reads="lines of JSON",
        document="the field `text` of a line, or another (`a.b`: b in a)",
        documents=read_jsonl,
        in_folder="*.json*",
    ),
    Source(
        name="parquet",
        argument="GLOB|DIR[:COLUMN]",
        reads="Parquet files",
        document="the column `text` of a row, or another (`a.b`: b in a)",
        documents=read_parquet,
        in_folder="*.parquet",
    ),
    Source(
        name="arrow",
        argument="DIR[:COLUMN]",
        reads="a data set that `save_to_disk` of Hugging Face wrote",
        document="the column `text` of a row, or another (`a.b`: b in a)",
        documents=read_arrow,
    ),
    Source(
        name="tfds",
        argument="NAME[:SPLIT]",
        reads="a data set that TensorFlow Datasets has prepared",
        document="the feature `text` of a record",
        documents=lambda name: (record["text"] for record in open_split(name).records("text")),
    ),
    Source(
        name="arrayrecord",
        argument="DIR",
        reads="rows that `mhsh prepare` made",
        document="what it was when they were made",
        documents=_refuse_rows,
    ),
    Source(
        name="stdlib",
        reads="the manual and the docstrings of the Python that runs, 2 MB of English",
        document="a topic, or a module",
        documents=lambda _: read_stdlib(),
    ),
    Source(
        name="recall",
        argument="KEYS",
        reads="nothing: it draws keys, and asks for so many at once",
        document="keys with their digits, then questions with answers",
        documents=recall,
    ),
    Source(
        name="copying",
        argument="LETTERS",
        reads="nothing: it draws so many letters",
        document="the letters, again and again",
        documents=copying,
    ),
)
for _source in _SHIPPED:
    SOURCES.add(_source.name, _source, _source.documents)


def add_source(name: str, *, argument: str = "", reads: str, document: str) -> Callable[[Documents], Documents]:
    """Decorates a function from the argument of data.source = NAME:ARGUMENT to documents, as in
    `Source`: makes it the source `name`. Raises UserError where the name is taken or is none.
    """

    def add(read: Documents) -> Documents:
        SOURCES.add(name, Source(name=name, argument=argument, reads=reads, document=document, documents=read), read)
        return read

    return add


def find_source(text: str) -> tuple[Source, str]:
    """The kind of a `data.source`, and its argument. Raises UserError where it is none."""
    name, _, argument = text.partition(":")
    source = SOURCES.get(name)
    if source is None or bool(argument) != bool(source.argument):
        allowed = ", ".join(source.form for source in SOURCES.entries())
        near = f"text:{text}" if "/" in text or "." in name else closest(name, SOURCES.names()) if source is None else None
        hint = f"did you mean {near}? " if near else ""
        raise UserError(f"data.source = {text!r} is not a source; {hint}allowed: {allowed}, or your own ({WITH})")
    return source, argument


def files_of(text: str) -> list[epath.Path]:
    """The files of a `data.source`; none where it is not of files."""
    source, argument = find_source(text)
    if not source.in_folder:
        return []
    part = source.argument.partition("[:")[2].rstrip("]")  # FIELD, COLUMN, or none
    pattern = with_field(source.name, argument, part)[0] if part else argument
    return matching_files(pattern, f"data.source = {text!r}", source.in_folder)


def document_rule(source: str) -> str:
    """What a document of a `data.source` is, and what makes it another of the same files."""
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
    return _cleaned(kind.documents(argument), source)


def _cleaned(texts: Iterable[str], source: str) -> Iterator[str]:
    empty = True
    for text in texts:
        lines = (line.strip(BLANKS) for line in text.split("\n"))
        document = "\n".join(line for line in lines if line)
        empty = empty and not document
        yield document
    if empty:
        raise UserError(f"data.source = {source!r} holds no text; name one that does")
