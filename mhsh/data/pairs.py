"""Sentence pairs before they are encoded: read and cleaned."""

from __future__ import annotations

import itertools
import re
import unicodedata
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from etils import epath

from mhsh.config.schema import TranslationDataConfig
from mhsh.data import synthetic, tfds
from mhsh.data.text_files import matching_files, text_lines
from mhsh.errors import UserError
from mhsh.storage.files import expand_user

# Control characters (category Cc) that are not white space; they are removed. The others become a
# space.
_CONTROLS = {code: None for code in (*range(0x20), *range(0x7F, 0xA0)) if not chr(code).isspace()}
# The wildcards of a glob as regular expressions; any other stands for a character.
_WILDCARDS = {"**/": "(.*/|)", "**": "(.*)", "*": "([^/]*)"}


class Pair(NamedTuple):
    """A sentence and its translation."""

    source: str
    target: str


def read_pairs(source: str) -> Iterator[Pair]:
    """The pairs of a source, unchanged, in a fixed order, read on demand.

    Sources:
      numbers, numbers:COUNT: COUNT (100,000) training pairs of number words; see synthetic.py.
      text:SOURCE_GLOB,TARGET_GLOB: files, paired by what the wildcards stand for, or else in sorted
        order; line n translates line n.
      tfds:NAME: a translation data set that TFDS has prepared, such as tfds:wmt14_translate/de-en.

    Raises UserError where something is wrong; inside a file, when the reading gets there.
    """
    kind, _, rest = source.partition(":")
    if kind == "numbers":
        return _number_pairs(source, rest)
    if kind == "text" and rest.count(",") == 1:
        return _text_pairs(source, *rest.split(","))
    if kind == "tfds" and rest:
        return (Pair(*pair) for pair in tfds.read_pairs(rest))
    if kind == "arrayrecord":
        raise UserError(f"{source!r} holds rows, not sentence pairs: it can only be data.source, with data.validation_source empty")
    raise UserError(
        f"{source!r} is not a source of sentence pairs; allowed: numbers, numbers:COUNT, text:SOURCE_GLOB,TARGET_GLOB (for example "
        "text:corpus/*.en.gz,corpus/*.de.gz), tfds:NAME, arrayrecord:DIR"
    )


def validation_pairs(data: TranslationDataConfig) -> Iterator[Pair] | None:
    """The pairs that validation has of its own, of data.validation_source or held-out numbers."""
    if data.validation_source:
        return read_pairs(data.validation_source)
    if data.source.partition(":")[0] == "numbers":
        return (Pair(*pair) for pair in synthetic.held_out_pairs())
    return None


def clean_text(text: str) -> str:
    """The text without control characters, in Unicode's composed form (NFC), and with one space for
    every run of white space. A tokenizer of mhsh gives it back exactly.
    """
    return " ".join(unicodedata.normalize("NFC", text.translate(_CONTROLS)).split())


def _number_pairs(source: str, count: str) -> Iterator[Pair]:
    if source == "numbers":
        wanted = synthetic.PAIRS_PER_EPOCH
    elif count.isdecimal() and int(count) > 0:
        wanted = int(count)
    else:
        raise UserError(f"{source!r}: {count!r} is not a number of pairs; write numbers, or for example numbers:50000")
    return (Pair(*pair) for pair in synthetic.training_pairs(wanted))


def _text_pairs(source: str, source_glob: str, target_glob: str) -> Iterator[Pair]:
    sources, targets = (matching_files(pattern, f"{pattern!r} in {source!r}") for pattern in (source_glob, target_glob))
    if len(sources) != len(targets):
        raise UserError(
            f"{source!r} matches {len(sources)} source files ({sources[0]} ...) and {len(targets)} target files "
            f"({targets[0]} ...); every file needs its translation"
        )
    # Whole names may sort differently in two languages: news.dev.en, news.en; news.de, news.dev.de.
    names, target_names = _matched_parts(source_glob, sources), _matched_parts(target_glob, targets)
    if sorted(names) == sorted(target_names):
        by_name = dict(zip(target_names, targets, strict=True))
        targets = [by_name[name] for name in names]
    for pair in zip(sources, targets, strict=True):
        yield from _file_pairs(*pair)


def _matched_parts(pattern: str, paths: Sequence[epath.Path]) -> list[tuple[str, ...]]:
    """What the wildcards of a glob stand for in each of its files."""
    parts = re.split(r"(\*\*/|\*\*|\*|\?|\[[^\]]+\])", str(epath.Path(expand_user(pattern))))
    expression = "".join(_WILDCARDS.get(part, "(.)") if number % 2 else re.escape(part) for number, part in enumerate(parts))
    matches = [re.fullmatch(expression, str(path), re.DOTALL) for path in paths]
    return [match.groups() if match else (str(path),) for match, path in zip(matches, paths, strict=True)]


def _file_pairs(source: epath.Path, target: epath.Path) -> Iterator[Pair]:
    counts = [0, 0]
    for lines in itertools.zip_longest(text_lines(source), text_lines(target)):
        counts = [count + (line is not None) for count, line in zip(counts, lines, strict=True)]
        if None not in lines:
            yield Pair(*lines)
    source_count, target_count = counts
    if source_count != target_count:
        raise UserError(f"{source} has {source_count} lines, {target} {target_count}; line n must translate line n")
