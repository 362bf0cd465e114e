"""Where sentence pairs come from, and what is done to them before anything is learnt: `read_pairs`, `clean`, `is_held_out`."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import itertools
import unicodedata
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from mhsh.config import TranslationDataConfig
from mhsh.data import numbers
from mhsh.data.files import matching_files, unpacked
from mhsh.data.seeds import PAIR_SPLIT, derived_seed
from mhsh.errors import UserError

# Control characters (category Cc) that are not white space: they are no text. The others are blanks, and become one.
_CONTROLS = {code: None for code in (*range(0x20), *range(0x7F, 0xA0)) if not chr(code).isspace()}


class Pair(NamedTuple):
    """A sentence and its translation."""

    source: str
    target: str


@dataclasses.dataclass
class CleaningCounts:
    """What `clean` saw and left out, counted as it goes."""

    read: int = 0
    empty: int = 0  # pairs with nothing on either side
    duplicates: int = 0  # pairs equal to one before, on both sides


def read_pairs(source: str) -> Iterator[Pair]:
    """The pairs of a source as they stand there, in a fixed order, read as they are asked for.

    Sources:
      numbers, numbers:COUNT: COUNT (100,000) training pairs of English and German number words; see mhsh/data/numbers.py.
      text:SOURCE_GLOB,TARGET_GLOB: plain, .gz and .xz files, UTF-8, a sentence a line, lines ended by "\\n" only. The files of
        either glob are taken in sorted order, the first with the first, and so on; line n translates line n.
      tfds:NAME: a translation data set that TFDS has prepared, such as tfds:wmt14_translate/de-en.

    Raises:
      UserError: no such source, or files that do not exist, do not pair, are damaged or are not UTF-8. What is wrong in the
        middle of a file is found when the reading gets there.
    """
    kind, _, rest = source.partition(":")
    if kind == "numbers":
        return _number_pairs(source, rest)
    if kind == "text" and rest.count(",") == 1:
        return _text_pairs(source, *rest.split(","))
    if kind == "tfds" and rest:
        from mhsh.data import tfds_source  # the library behind it is an extra

        return iter(tfds_source.read_pairs(rest))
    if kind == "arrayrecord":
        raise UserError(f"{source!r} holds rows, not sentence pairs: it can only be data.source, with data.validation_source empty")
    raise UserError(
        f"{source!r} is not a source of sentence pairs; allowed: numbers, numbers:COUNT, text:SOURCE_GLOB,TARGET_GLOB (for example "
        "text:corpus/*.en.gz,corpus/*.de.gz), tfds:NAME, arrayrecord:DIR"
    )


def validation_pairs(data: TranslationDataConfig) -> Iterator[Pair] | None:
    """The pairs that validation has of its own: data.validation_source, or the held-out numbers of `numbers`.

    None: there are none, and those of data.source that `is_held_out` says are held out.
    """
    if data.validation_source:
        return read_pairs(data.validation_source)
    if data.source.partition(":")[0] == "numbers":
        return (Pair(*pair) for pair in numbers.held_out_pairs())
    return None


def clean(pairs: Iterable[Pair], counts: CleaningCounts) -> Iterator[Pair]:
    """The pairs with `clean_text` on both sides, without those that are empty on a side or were there before.

    Args:
      counts: is added to, pair by pair.
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
    """Without control characters, in Unicode's composed form (NFC), and with one space for every run of white space.

    What it gives it leaves as it is, and a tokenizer of mhsh gives it back exactly.
    """
    return " ".join(unicodedata.normalize("NFC", text.translate(_CONTROLS)).split())


def pair_digest(pair: Pair) -> bytes:
    """16 bytes that stand for the pair where equal pairs are looked for."""
    return hashlib.blake2b(f"{pair.source}\n{pair.target}".encode(), digest_size=16).digest()


def is_held_out(pair: Pair, data: TranslationDataConfig) -> bool:
    """Whether a cleaned pair is for validation, by a hash of its source sentence and data.seed.

    So translations of one sentence stay together, and no pair hangs on what other pairs there are: data.validation_fraction of
    them is held out by chance, not by count.
    """
    digest = hashlib.blake2b(pair.source.encode("utf-8"), key=_split_key(data.seed), digest_size=8).digest()
    return int.from_bytes(digest, "little") < data.validation_fraction * 2**64


@functools.cache
def _split_key(seed: int) -> bytes:
    return derived_seed(seed, PAIR_SPLIT).to_bytes(4, "little")


def _number_pairs(source: str, count: str) -> Iterator[Pair]:
    if source == "numbers":
        wanted = numbers.PAIRS_PER_EPOCH
    elif count.isdecimal() and int(count) > 0:
        wanted = int(count)
    else:
        raise UserError(f"{source!r}: {count!r} is no number of pairs; write numbers, or for example numbers:50000")
    return (Pair(*pair) for pair in numbers.training_pairs(wanted))


def _text_pairs(source: str, source_glob: str, target_glob: str) -> Iterator[Pair]:
    sources, targets = (matching_files(pattern, f"{pattern!r} in {source!r}") for pattern in (source_glob, target_glob))
    if len(sources) != len(targets):
        raise UserError(
            f"{source!r} matches {len(sources)} source files ({sources[0]} ...) and {len(targets)} target files "
            f"({targets[0]} ...); every file needs its translation"
        )
    for pair in zip(sources, targets, strict=True):
        yield from _file_pairs(*pair)


def _file_pairs(source: Path, target: Path) -> Iterator[Pair]:
    counts = [0, 0]
    for lines in itertools.zip_longest(_lines(source), _lines(target)):
        counts = [count + (line is not None) for count, line in zip(counts, lines, strict=True)]
        if None not in lines:
            yield Pair(*lines)
    source_count, target_count = counts
    if source_count != target_count:
        raise UserError(f"{source} has {source_count} lines, {target} {target_count}; line n must translate line n")


def _lines(path: Path) -> Iterator[str]:
    """The lines of a UTF-8 file without their ends; a byte order mark at its start is no part of the text."""
    with unpacked(path) as file:
        for number, line in enumerate(file, 1):
            try:
                text = line.decode("utf-8")
            except UnicodeDecodeError as error:
                raise UserError(
                    f"{path} is not UTF-8: {error.reason} at byte {error.start} of line {number}; convert it to UTF-8"
                ) from error
            yield (text.removeprefix("\ufeff") if number == 1 else text).removesuffix("\n")
