"""A description of a `data.source` as mhsh reads it, in a few lines, before it is used."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterator, Sequence

from etils import epath

from mhsh.data.documents import document_rule, documents, files_of
from mhsh.data.text_files import PREPARE_FILE, first_bytes, text_field, text_lines
from mhsh.data.wordpiece import Tokenizer, check_known, count_unknown, unknown_fraction
from mhsh.encoding import marked_encoding, signature
from mhsh.errors import UserError
from mhsh.storage.files import expand_user
from mhsh.storage.questions import exists, is_dir
from mhsh.text import count, format_names

HEAD_CHARACTERS, SAMPLE_CHARACTERS = 1 << 21, 1 << 25  # read for the head of a command, and for `mhsh inspect`
_FILES_LOOKED_AT = _LINES_LOOKED_AT = 100
# A median document of fewer characters than this is a line or a title rather than a text.
_SHORT_DOCUMENT = 40

# How a document of a form that is not prose begins, and what to do.
_NO_PROSE = {
    "JSON": (r"\{\s*\"|\[\s*[\"{]", "write an object a line, and read a field of it with jsonl:"),
    "XML or HTML": (r"<[!?/\w][^<]*>", "take the tags out first"),
    "a table": (r"[^\n\t]*\t[^\n\t]*\t|\w+(,\w+)+(\n|$)", "write the column that is text to a file of its own"),
}


def describe_source(source: str, most: int, tokenizer: Tokenizer | None = None) -> Iterator[str]:
    """Lines about the files, the documents and, with a tokenizer, the unknown characters. Where
    something looks wrong, a line says what to change. About `most` characters are read. Raises
    UserError where nothing can be read, or most of it is unknown to the tokenizer.
    """
    paths = files_of(source)
    if paths:
        yield f"{source}: {_describe_files(paths)}"
    texts, num_empty, is_whole = _first_documents(source, most)
    start = "" if is_whole else "the first "
    empty = f", {count(num_empty)} without text" if num_empty else ""
    median = sorted(map(len, texts))[len(texts) // 2]
    yield (
        f"{start}{_number(texts, 'document')}, {count(sum(map(len, texts)))} characters in all, {count(median)} in the median "
        f"one{empty}; {document_rule(source)}"
    )
    if is_whole and len(texts) == 1:
        yield "this is one document in all, and a part of the documents is held out for validation: is that what a document is?"
    elif median < _SHORT_DOCUMENT:
        yield f"half of the documents have fewer than {_SHORT_DOCUMENT} characters: is that what a document is?"
    for form, (looks, remedy) in _NO_PROSE.items():
        if re.match(looks, texts[0]):
            yield f"the first document looks like {form}, which would be learnt with its marks: {remedy}"
    if tokenizer is not None:
        counted = count_unknown(texts, tokenizer.encode_batch(texts), tokenizer)
        check_known(counted, source, "take --config.data.tokenizer=bytes, which knows all, or name another vocabulary")
        yield f"{unknown_fraction(counted):.2%} of its characters are in words that the vocabulary has no pieces for"


def _first_documents(source: str, most: int) -> tuple[list[str], int, bool]:
    """The documents with text until they have `most` characters, at least one; the number of those
    without; and whether there are no more.
    """
    texts, num_empty, size = [], 0, 0
    for text in documents(source):
        if size >= most:
            return texts, num_empty, False
        size += len(text)
        if text:
            texts.append(text)
        else:
            num_empty += 1
    return texts, num_empty, True


def source_for(path: str) -> str:
    """The `data.source` for a file or a folder, by the first bytes of its first file. Raises
    UserError where there is none, or its files are no form of text.
    """
    where = expand_user(path)
    if exists(where / PREPARE_FILE):
        return f"arrayrecord:{path}"
    if exists(where / "state.json") or exists(where / "dataset_dict.json"):
        return f"arrow:{path}"
    first = files_of(f"text:{path}")[0]
    form = signature(first_bytes(first)[1])
    if form == "Parquet":
        return f"parquet:{path}"
    if form == "Arrow":
        raise UserError(f"{first} is a file of a data set in Arrow; name the folder that save_to_disk wrote: arrow:{first.parent}")
    if form:
        remedy = f"name the texts alone, such as 'text:{path}/**/*.txt'" if is_dir(where) else "unpack it, or write its text out"
        raise UserError(f"{first} is {form}, which no source reads; {remedy}")
    fields = [text_field(line) for line in itertools.islice(text_lines(first), _LINES_LOOKED_AT)]
    if not fields or fields[0] is None:
        return f"text:{path}"
    field = next(filter(None, fields), "text")
    return f"jsonl:{path}" if field == "text" else f"jsonl:{path}:{field}"


def _describe_files(paths: list[epath.Path]) -> str:
    """The number of files, their forms by the first bytes, and their endings."""
    looked_at = paths[:_FILES_LOOKED_AT]
    forms = Counter(" in ".join([_form(inner), *reversed(layers)]) for layers, inner in map(first_bytes, looked_at))
    endings = Counter(path.suffix or path.name for path in paths)
    words = [name if len(forms) == 1 else f"{number} {name}" for name, number in forms.most_common()]
    others = f" (of the first {_FILES_LOOKED_AT})" if len(paths) > _FILES_LOOKED_AT else ""
    names = f", named {format_names([name for name, _ in endings.most_common()])}" if len(endings) > 1 else ""
    return f"{_number(paths, 'file')}, {', '.join(words)}{others}{names}"


def _number(things: Sequence[object], name: str) -> str:
    return f"{count(len(things))} {name}{'s' * (len(things) != 1)}"


def _form(head: bytes) -> str:
    named = {"utf-8": "text in UTF-8", "utf-8-sig": "text in UTF-8 with a mark"}
    encoding = marked_encoding(head)
    return signature(head) or named.get(encoding, f"text in {encoding.upper()} by its mark")
