"""Sentence pairs before they are encoded: read, cleaned, and split into training and validation."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from etils import epath

from mhsh.config.schema import TranslationDataConfig
from mhsh.data import tfds
from mhsh.data.random_numbers import PAIR_SPLIT, is_held_out
from mhsh.data.tables import SPLITS, TRAIN, VALIDATION
from mhsh.data.text_files import matching_files, text_lines
from mhsh.data.translation import synthetic_pairs
from mhsh.errors import UserError

# Control characters (category Cc) that are not white space; they are removed. The others become a
# space.
_CONTROLS = {code: None for code in (*range(0x20), *range(0x7F, 0xA0)) if not chr(code).isspace()}


class Pair(NamedTuple):
    """A sentence and its translation."""

    source: str
    target: str


@dataclasses.dataclass
class CleaningCounts:
    """What `clean` and `split_pairs` read and left out of data.source."""

    read: int = 0
    empty: int = 0  # pairs with an empty side
    duplicates: int = 0  # pairs equal to an earlier one, on both sides
    in_both_splits: int = 0  # pairs of validation, left out of training


def read_pairs(source: str) -> Iterator[Pair]:
    """The pairs of a source, unchanged, in a fixed order, read on demand.

    Sources:
      numbers, numbers:COUNT: COUNT (100,000) training pairs of English and German number words; see
        synthetic_pairs.py.
      text:SOURCE_GLOB,TARGET_GLOB: plain, .gz and .xz files, UTF-8, one sentence a line, lines
        ended by "\\n" only. The files of both globs are sorted and paired in this order; line n
        translates line n.
      tfds:NAME: a translation data set that TFDS has prepared, such as tfds:wmt14_translate/de-en.

    Raises:
      UserError: no such source, or files that do not exist, do not pair, are damaged or are not
        UTF-8. An error inside a file is raised when the reading gets there.
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
    """The pairs of data.validation_source, or the held-out numbers of `numbers`.

    None: validation has no pairs of its own, and data.validation_fraction of data.source is held
    out.
    """
    if data.validation_source:
        return read_pairs(data.validation_source)
    if data.source.partition(":")[0] == "numbers":
        return (Pair(*pair) for pair in synthetic_pairs.held_out_pairs())
    return None


def clean(pairs: Iterable[Pair], counts: CleaningCounts) -> Iterator[Pair]:
    """The pairs with both sides cleaned, without those with an empty side and repeated ones.

    Args:
      counts: is added to with every pair.
    """
    seen: set[bytes] = set()
    for pair in pairs:
        counts.read += 1
        cleaned = Pair(clean_text(pair.source), clean_text(pair.target))
        if not (cleaned.source and cleaned.target):
            counts.empty += 1
            continue
        digest = pair_digest(cleaned)
        if digest in seen:
            counts.duplicates += 1
            continue
        seen.add(digest)
        yield cleaned


def clean_text(text: str) -> str:
    """The text without control characters, in Unicode's composed form (NFC), and with one space for
    every run of white space.

    Cleaning a clean text changes nothing. Encoding and decoding it with a tokenizer of mhsh gives
    it back exactly.
    """
    return " ".join(unicodedata.normalize("NFC", text.translate(_CONTROLS)).split())


def pair_digest(pair: Pair) -> bytes:
    """16 bytes that are equal for equal pairs."""
    return hashlib.blake2b(f"{pair.source}\n{pair.target}".encode(), digest_size=16).digest()


def split_pairs(
    pairs: Iterable[Pair], own: Iterable[Pair] | None, data: TranslationDataConfig, counts: CleaningCounts
) -> Iterator[tuple[str, Pair]]:
    """The split of every pair that is kept, and the cleaned pair.

    Where validation has pairs of its own, they come first and are left out of training. Otherwise
    pairs are held out by their source sentence (see `is_held_out`), so that translations of
    one sentence stay together.

    Args:
      pairs: those of data.source, from `read_pairs`.
      own: those of `validation_pairs`.
      counts: is added to with every pair of data.source.
    """
    held_out: set[bytes] = set()
    for pair in clean(own or (), CleaningCounts()):
        held_out.add(pair_digest(pair))
        yield VALIDATION, pair
    for pair in clean(pairs, counts):
        if own is None:
            chosen = is_held_out(pair.source, data.validation_fraction, data.seed, PAIR_SPLIT)
            yield VALIDATION if chosen else TRAIN, pair
        elif pair_digest(pair) in held_out:
            counts.in_both_splits += 1
        else:
            yield TRAIN, pair


def check_split(sizes: Mapping[str, int], data: TranslationDataConfig, counts: CleaningCounts) -> None:
    """Raises UserError where a split has no pairs; `sizes` has the number of each."""
    for split in SPLITS:
        if sizes[split]:
            continue
        if split == VALIDATION and data.validation_source:
            raise UserError(f"data.validation_source = {data.validation_source!r} holds no sentence pairs; name one that does")
        raise UserError(
            f"data.source = {data.source!r} leaves no pairs for {split} ({counts.read} read, {counts.empty} empty, "
            f"{counts.duplicates} duplicates); give more text, or change data.validation_fraction or data.validation_source"
        )


def _number_pairs(source: str, count: str) -> Iterator[Pair]:
    if source == "numbers":
        wanted = synthetic_pairs.PAIRS_PER_EPOCH
    elif count.isdecimal() and int(count) > 0:
        wanted = int(count)
    else:
        raise UserError(f"{source!r}: {count!r} is no number of pairs; write numbers, or for example numbers:50000")
    return (Pair(*pair) for pair in synthetic_pairs.training_pairs(wanted))


def _text_pairs(source: str, source_glob: str, target_glob: str) -> Iterator[Pair]:
    sources, targets = (matching_files(pattern, f"{pattern!r} in {source!r}") for pattern in (source_glob, target_glob))
    if len(sources) != len(targets):
        raise UserError(
            f"{source!r} matches {len(sources)} source files ({sources[0]} ...) and {len(targets)} target files "
            f"({targets[0]} ...); every file needs its translation"
        )
    for pair in zip(sources, targets, strict=True):
        yield from _file_pairs(*pair)


def _file_pairs(source: epath.Path, target: epath.Path) -> Iterator[Pair]:
    counts = [0, 0]
    for lines in itertools.zip_longest(text_lines(source), text_lines(target)):
        counts = [count + (line is not None) for count, line in zip(counts, lines, strict=True)]
        if None not in lines:
            yield Pair(*lines)
    source_count, target_count = counts
    if source_count != target_count:
        raise UserError(f"{source} has {source_count} lines, {target} {target_count}; line n must translate line n")
