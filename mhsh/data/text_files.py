"""Text files, plain or compressed, local or in a bucket: found by a glob, read line by line, and
their documents: up to a blank line, a line, a file, or a field of a line of JSON.
"""

from __future__ import annotations

import bz2
import contextlib
import functools
import glob
import gzip
import io
import itertools
import json
import lzma
import os
import sys
import zlib
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec
from etils import epath

from mhsh.encoding import HEAD_BYTES, check_head, check_text, compression, decode, decode_line, marked_encoding
from mhsh.errors import UserError
from mhsh.storage.bucket import bucket_objects, is_remote
from mhsh.storage.files import expand_user, open_binary, read_small_file
from mhsh.storage.questions import is_dir, is_file
from mhsh.storage.run_folder import CONFIG_FILE

_MOST_LAYERS = 2  # of compression, one in another
_BUFFER_BYTES = 1 << 16
_LONGEST = 1 << 28  # bytes of a line, or characters of lines that are kept together
# str.strip() without an argument would also strip U+0085 and its like, which are text to us: only
# "\n" ends a line.
BLANKS = " \t\r\v\f"
PREPARE_FILE = "prepare.json"  # that prepared rows have beside them
# A file that each folder of mhsh's own has, of a run, a sweep or prepared rows, and what its first
# bytes hold.
_MARKS = {CONFIG_FILE: b'"mhsh": ', "plan.json": b'"mhsh": ', PREPARE_FILE: b'"tokenizers": '}


def split_field(name: str, argument: str, what: str) -> tuple[str, str]:
    """Splits GLOB[:FIELD] into the glob and the field, which is `text` if none is named. What has a
    colon in its name, as of a time, is found by that name, but for a bucket.
    """
    pattern, colon, field = argument.rpartition(":")
    is_name = colon and not is_remote(argument) and os.path.lexists(expand_user(argument))
    if not colon or "/" in field or is_name:  # the colon of gs:// or of a folder
        pattern, field = argument, "text"
    if not pattern or not field:
        raise UserError(f"data.source = {f'{name}:{argument}'!r} lacks a glob or a {what.lower()}; write {name}:GLOB:{what}")
    return pattern, field


def matching_files(pattern: str, whose: str, in_folder: str | None = None) -> list[epath.Path]:
    """The files that a glob matches, sorted, on a disk as in a bucket. `**` goes into folders of
    any depth, but for those of runs, sweeps and prepared rows (see `_leave_out_results`).

    A folder stands for the files named `in_folder` at any depth (None: for none). Raises UserError,
    in which the glob is that of the setting `whose`, where there are none, or the bucket cannot be
    read.
    """
    try:
        paths = _matches(pattern, whose)
        if not paths and in_folder is not None:
            folder = pattern.rstrip("/") or "/"
            if not is_remote(folder) and is_dir(expand_user(folder)):  # its name may have a mark of a glob
                folder = glob.escape(folder)
            paths = _matches(f"{folder}/**/{in_folder}", whose)
    except (OSError, ValueError) as error:
        raise UserError(f"{whose} cannot be read: {getattr(error, 'strerror', None) or error}") from error
    if not paths and in_folder is not None and not is_remote(pattern) and is_dir(expand_user(pattern)):
        named = "" if in_folder == "*" else f" named {in_folder}"
        raise UserError(f"{whose} is a folder without files{named} (hidden ones do not count); name one that has some")
    if not paths:
        hint = "correct the bucket or the glob" if is_remote(pattern) else f"correct the glob (relative to {Path.cwd()})"
        if pattern.count(",") == 1:
            hint += "; two globs hold sentence pairs (text:A,B), for model.objective = 'translation' alone"
        raise UserError(f"{whose} matches no file; {hint}; --config.data.source=PLACE names files that have moved, of a run too")
    return sorted(paths)


def _matches(pattern: str, whose: str) -> list[epath.Path]:
    if not is_remote(pattern):
        path = str(expand_user(pattern))  # Path.glob would refuse absolute patterns
        matches = [path] if is_file(path) else glob.glob(path, recursive=True)  # noqa: PTH207
        return _leave_out_results(path, [epath.Path(path) for path in matches if is_file(path)], whose)
    base, recursive, _ = pattern.partition("/**")
    try:
        with bucket_objects(pattern) as objects:
            found = objects.glob(pattern, detail=True)
            listed = objects.glob(f"{base}/**/*.json") if found and recursive else []  # rather than ask for each folder's
    except FileNotFoundError:
        return []
    # A name that ends with a slash stands for a folder. Globs of buckets find hidden files too.
    names = [name for name, info in found.items() if info["type"] == "file" and not name.endswith("/")]
    paths = [epath.Path(f"gs://{name}") for name in names if "/." not in name or "/." in pattern]
    return _leave_out_results(pattern, paths, whose, {epath.Path(f"gs://{name}") for name in listed})


def _leave_out_results(
    pattern: str, paths: list[epath.Path], whose: str, listed: Collection[epath.Path] | None = None
) -> list[epath.Path]:
    """The files without those of runs, sweeps and prepared rows that `**` has found. Else what mhsh
    writes below the texts would be among them when the same command goes on, and in the next run.
    `listed` are the files that may mark such folders; None: the disk is asked.
    """
    parts = epath.Path(pattern).parts
    if "**" not in parts:
        return paths
    start = parts.index("**")  # folders of more parts are found, others named

    @functools.cache
    def is_result(folder: epath.Path) -> bool:
        return len(folder.parts) > start and (_has_mark(folder, listed) or is_result(folder.parent))

    kept = [path for path in paths if not is_result(path.parent)]
    if paths and not kept:
        raise UserError(f"{whose} matches only files in folders of runs or prepared rows, which ** leaves out; name such a folder")
    return kept


def _has_mark(folder: epath.Path, listed: Collection[epath.Path] | None) -> bool:
    for name, mark in _MARKS.items():
        path = folder / name
        if is_file(path) if listed is None else path in listed:
            with open_binary(path) as file:
                if mark in file.read(HEAD_BYTES):
                    return True
    return False


@contextlib.contextmanager
def open_unpacked(path: epath.PathLike | None) -> Iterator[tuple[list[str], io.BufferedReader]]:
    """Opens a file (None: standard input). Yields how it is packed, from outside in, and its bytes,
    unpacked.

    gzip, xz, zstd and bz2 are unpacked by the first bytes, and never more at once than is asked
    for. Raises UserError where the file is missing, unreadable, damaged or packed too often.
    """
    name = file_name(path)
    layers: list[str] = []
    try:
        with contextlib.ExitStack() as stack:
            file: Any = sys.stdin.buffer if path is None else stack.enter_context(open_binary(path))
            while kind := compression(file.peek(HEAD_BYTES)):
                layers.append(kind)
                if len(layers) > _MOST_LAYERS:
                    raise UserError(f"{name} is compressed more than {_MOST_LAYERS} times; unpack it first")
                file = stack.enter_context(_unpacking(kind, file))
            yield layers, file
    except (OSError, EOFError, zlib.error, lzma.LZMAError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise UserError(f"cannot read {name}: {error.strerror or error}") from error
        raise UserError(f"{name} is damaged and cannot be unpacked ({error}); fetch it again") from error


def first_bytes(path: epath.PathLike) -> tuple[list[str], bytes]:
    """The layers in which a file is packed, from outside in, and the first bytes of its content."""
    with open_unpacked(path) as (layers, file):
        return layers, file.peek(HEAD_BYTES)[:HEAD_BYTES]


def file_name(path: epath.PathLike | None) -> str:
    """The path as errors name it; None is standard input."""
    return "standard input" if path is None else str(path)


def _unpacking(kind: str, file: Any) -> io.BufferedReader:
    """The unpacked bytes of a stream of packed ones."""
    if kind == "zstd":
        # pyarrow is there for Parquet; Python itself has zstd from 3.14 on.
        import pyarrow

        return io.BufferedReader(pyarrow.CompressedInputStream(pyarrow.PythonFile(file, "r"), "zstd"), _BUFFER_BYTES)
    opens: dict[str, Any] = {"gzip": gzip.open, "xz": lzma.open, "bz2": bz2.open}
    return io.BufferedReader(opens[kind](file), _BUFFER_BYTES)


def text_lines(path: epath.PathLike | None) -> Iterator[str]:
    """The lines of a file, plain or compressed (None: of standard input), read lazily.

    Only "\n" ends a line. Line ends and a byte order mark at the start are left out. A file with
    the mark of UTF-16 or UTF-32 is read as such, any other as UTF-8. Raises UserError where it
    cannot be read, or a line, which is named, is not text or too long for memory.
    """
    name = file_name(path)
    with open_unpacked(path) as (_, file):
        head = file.peek(HEAD_BYTES)[:HEAD_BYTES]
        check_head(head, name)
        encoding = marked_encoding(head)
        yield from _lines(file, name) if encoding.startswith("utf-8") else _wide_lines(file, encoding, name)


def _lines(file: io.BufferedReader, name: str) -> Iterator[str]:
    for number, line in enumerate(iter(functools.partial(file.readline, _LONGEST), b""), 1):
        if len(line) == _LONGEST:
            raise UserError(f"{name} line {number} is longer than {_LONGEST >> 20} MiB; end its lines with a newline")
        text = decode_line(line, number, name)
        yield (text.removeprefix("\ufeff") if number == 1 else text).removesuffix("\n")


def _wide_lines(file: io.BufferedReader, encoding: str, name: str) -> Iterator[str]:
    """The lines of UTF-16 or UTF-32."""
    text, number = io.TextIOWrapper(file, encoding, newline="\n"), 0
    try:
        for number, line in enumerate(iter(functools.partial(text.readline, _LONGEST), ""), 1):  # noqa: B007
            yield line.removesuffix("\n")
    except UnicodeDecodeError as error:
        raise UserError(f"{name} is {encoding.upper()}, but after line {number} {error.reason}; write the file again") from error
    finally:
        text.detach()


def read_lines(path: epath.PathLike | None) -> list[str]:
    """All of `text_lines`, without a carriage return at the end of a line. Raises UserError also
    where they are too long together.
    """
    return [line.removesuffix("\r") for line in limit_size(text_lines(path), file_name(path))]


def limit_size(lines: Iterable[str], what: str) -> Iterator[str]:
    """Yields the lines, for a reader that keeps them all. Raises UserError where they are too long
    for that.
    """
    size = 0
    for line in lines:
        size += len(line) + 1
        if size > _LONGEST:
            raise UserError(f"{what} is longer than {_LONGEST >> 20} million characters, too long to be read at once; split it")
        yield line


def read_vocabulary(path: epath.PathLike, form: str) -> str:
    """The text of a vocabulary in a `form` such as vocab.txt. Raises UserError where it cannot be
    read, or is not text.
    """
    try:
        return decode(read_small_file(path), f"the vocabulary {path}")
    except FileNotFoundError:
        raise UserError(
            f"the vocabulary {path} does not exist; name a {form} that exists, or empty data.vocab_path to train one"
        ) from None
    except OSError as error:
        raise UserError(f"cannot read the vocabulary {path}: {error.strerror or error}") from error


def read_text(path: epath.Path, glob: str) -> Iterator[str]:
    """The lines of a file of `glob` up to a blank line."""
    for has_text, group in itertools.groupby((line.strip(BLANKS) for line in read_each_line(path, glob)), bool):
        if has_text:
            yield "\n".join(limit_size(group, f"a document of {path}"))


def read_each_line(path: epath.Path, glob: str) -> Iterator[str]:
    """The lines of a file of `glob`. Raises UserError where the first one is JSON: braces and keys
    are no prose.
    """
    lines = text_lines(path)
    for line in itertools.islice(lines, 1):
        field = text_field(line)
        if field is not None:
            raise UserError(
                f"{path} holds lines of JSON, whose braces and keys would be learnt as text; to read a field of each line, set "
                f"data.source to jsonl:{glob}:{field or 'FIELD'}; to learn the JSON itself, set it to files:{glob}; or "
                "leave that file out"
            )
        yield line
    yield from lines


def read_whole_file(path: epath.Path, glob: str) -> Iterator[str]:
    """A file in one piece."""
    yield "\n".join(limit_size(text_lines(path), str(path)))


def read_jsonl(path: epath.Path, field: str) -> Iterator[str]:
    """The field of every line that is not blank; "" where it is null or missing. Raises UserError
    where a line is not an object of JSON, the field is not text, or no line has it.
    """
    lacking: dict[str, Any] | None = None
    found = False
    for number, line in enumerate(text_lines(path), 1):
        if not line.strip(BLANKS):
            continue
        try:
            record = _decode_object(line)
        except (ValueError, RecursionError) as error:
            raise UserError(f"{path} line {number} is not an object of JSON ({error}); jsonl: has one in every line") from error
        text = _field_value(record, field)
        if text is None:
            lacking = record
        elif not isinstance(text, str):
            raise UserError(
                f"{path} line {number}: {field!r} is of type {type(text).__name__}, which is not text; name another field"
            )
        found = found or text is not None
        if text and not text.isascii():
            check_text(text, f"{path} line {number}: {field!r}")
        yield text or ""
    if lacking is not None and not found:
        raise UserError(f"{path} has no text in {field!r}, but the fields {', '.join(lacking)}; write jsonl:GLOB:FIELD")


def _decode_object(line: str) -> dict[str, Any]:
    """The object in a line of JSON. Python's own json writes NaN, Infinity and half of a surrogate
    pair, so they may be in it. Raises ValueError where it is none.
    """
    try:
        return msgspec.json.decode(line, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeEncodeError) as error:
        try:
            value = json.loads(line)
        except ValueError:
            value = None
        if not isinstance(value, dict):
            raise ValueError(str(error)) from error
        return value


def text_field(line: str) -> str | None:
    """The path of the longest text in a line that is an object of JSON, with dots ("" without a
    text); None for any other line.
    """
    try:
        value = _decode_object(line) if line.lstrip()[:1] == "{" else None
    except (ValueError, RecursionError):
        return None
    if value is None:
        return None
    return max(_paths(value), key=lambda found: len(found[1]), default=("", ""))[0]


def _paths(value: dict[str, Any]) -> Iterator[tuple[str, str]]:
    for name, inner in value.items():
        if isinstance(inner, dict):
            yield from ((f"{name}.{path}", text) for path, text in _paths(inner))
        elif isinstance(inner, str):
            yield name, inner


def _field_value(record: Any, field: str) -> Any:
    """The value of a field, or with dots of one inside; None where it is missing."""
    if not isinstance(record, dict):
        return None
    if field in record:
        return record[field]
    name, dot, rest = field.partition(".")
    return _field_value(record.get(name), rest) if dot else None
