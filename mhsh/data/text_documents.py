"""Documents of text files: up to a blank line, a line, a file, or a field of a line of JSON."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import msgspec
from etils import epath

from mhsh.data.text_files import bounded, matching_files, text_lines, with_field
from mhsh.errors import UserError

# str.strip() without an argument would also strip U+0085 and its like, which are text to us: only
# "\n" ends a line.
BLANKS = " \t\r\v\f"


def read_text(argument: str) -> Iterator[str]:
    """The lines of files up to a blank line."""
    return _of_files("text", argument, _up_to_blank_lines)


def read_lines(argument: str) -> Iterator[str]:
    """Each line of files."""
    return _of_files("lines", argument, lambda lines, what: iter(lines))


def read_whole_files(argument: str) -> Iterator[str]:
    """Each file."""
    return (_whole(path) for path in matching_files(argument, f"data.source = {'files:' + argument!r}", "*"))


def read_jsonl(argument: str) -> Iterator[str]:
    """A field of each line of JSON: GLOB[:FIELD]."""
    pattern, field = with_field("jsonl", argument, "FIELD")
    paths = matching_files(pattern, f"data.source = {'jsonl:' + argument!r}", "*.json*")
    return (text for path in paths for text in _fields(path, field))


def text_field(line: str) -> str | None:
    """The path of the longest text in a line that is an object of JSON, with dots ("" without a
    text); None for any other line.
    """
    try:
        value = msgspec.json.decode(line) if line.lstrip()[:1] == "{" else None
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return None
    if not isinstance(value, dict):
        return None
    return max(_paths(value), key=lambda found: len(found[1]), default=("", ""))[0]


def _paths(value: dict[str, Any]) -> Iterator[tuple[str, str]]:
    for name, inner in value.items():
        if isinstance(inner, dict):
            yield from ((f"{name}.{path}", text) for path, text in _paths(inner))
        elif isinstance(inner, str):
            yield name, inner


def _of_files(name: str, argument: str, read: Callable[[Iterable[str], str], Iterator[str]]) -> Iterator[str]:
    """The documents that `read` makes of the lines of each file."""
    paths = matching_files(argument, f"data.source = {f'{name}:{argument}'!r}", "*")
    return (text for path in paths for text in read(_prose(path, argument), f"a document of {path}"))


def _prose(path: epath.Path, argument: str) -> Iterator[str]:
    """The lines of a file of `argument`. Raises UserError where the first one is JSON: braces and
    keys are no prose.
    """
    lines = text_lines(path)
    for line in itertools.islice(lines, 1):
        field = text_field(line)
        if field is not None:
            raise UserError(
                f"{path} holds lines of JSON, whose braces and keys would be learnt as text; to read a field of each line, set "
                f"data.source to jsonl:{argument}:{field or 'FIELD'}; to learn the JSON itself, set it to files:{argument}; or "
                "leave that file out"
            )
        yield line
    yield from lines


def _whole(path: epath.Path) -> str:
    return "\n".join(bounded(text_lines(path), str(path)))


def _up_to_blank_lines(lines: Iterable[str], what: str) -> Iterator[str]:
    """Documents out of lines: a blank line ends one. Errors name one by `what`."""
    for has_text, group in itertools.groupby((line.strip(BLANKS) for line in lines), bool):
        if has_text:
            yield "\n".join(bounded(group, what))


def _fields(path: epath.Path, field: str) -> Iterator[str]:
    """The field of every line that is not blank; "" where it is null or missing. Raises UserError
    where a line is not an object of JSON, the field is not text, or no line has it.
    """
    lacking: dict[str, Any] | None = None
    found = False
    for number, line in enumerate(text_lines(path), 1):
        if not line.strip(BLANKS):
            continue
        try:
            record = msgspec.json.decode(line, type=dict[str, Any])
        except (msgspec.DecodeError, UnicodeEncodeError, RecursionError) as error:
            raise UserError(f"{path} line {number} is not an object of JSON ({error}); jsonl: has one in every line") from error
        text = _at(record, field)
        if text is None:
            lacking = record
        elif not isinstance(text, str):
            raise UserError(
                f"{path} line {number}: {field!r} is of type {type(text).__name__}, which is not text; name another field"
            )
        found = found or text is not None
        yield text or ""
    if lacking is not None and not found:
        raise UserError(f"{path} has no text in {field!r}, but the fields {', '.join(lacking)}; write jsonl:GLOB:FIELD")


def _at(record: Any, field: str) -> Any:
    """The value of a field, or with dots of one inside; None where it is missing."""
    if not isinstance(record, dict):
        return None
    if field in record:
        return record[field]
    name, dot, rest = field.partition(".")
    return _at(record.get(name), rest) if dot else None
