"""Sentence pairs in numbered text files: what is left of a source once it is cleaned and split, so that workers can share it.

A chunk is a file of `source<TAB>target` lines, such as train-00012.tsv; `staged.json`, written last, names them all with their
hashes. Cleaned sentences have neither tabs nor line ends in them.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from mhsh.config import TranslationDataConfig
from mhsh.data.pairs import CleaningCounts, Pair, clean, is_held_out, pair_digest, read_pairs, validation_pairs
from mhsh.data.shards import write_json
from mhsh.errors import UserError

TRAIN, VALIDATION = SPLITS = ("train", "validation")
_STAGED_FILE = "staged.json"


@dataclasses.dataclass(frozen=True)
class Chunk:
    """One file of pairs."""

    split: str
    number: int  # in its split, from 0
    pairs: int
    sha256: str

    @property
    def name(self) -> str:
        """The file's name."""
        return f"{self.split}-{self.number:05d}.tsv"


@dataclasses.dataclass(frozen=True)
class Staged:
    """All chunks of a source, and what became of its pairs."""

    source: str  # its fingerprint
    chunks: tuple[Chunk, ...]  # of training, then of validation, each in order
    counts: dict[str, int]  # read and left out


def source_fingerprint(data: TranslationDataConfig) -> str:
    """SHA-256, in hex, over every pair of data.source and of the validation pairs it goes with, as they stand there."""
    digest = hashlib.sha256()
    for pairs in (validation_pairs(data), read_pairs(data.source)):
        for pair in pairs or ():
            _add(digest, pair)
    return digest.hexdigest()


def stage(data: TranslationDataConfig, folder: Path, pairs_per_chunk: int) -> Staged:
    """Reads, cleans and splits the source, and writes the chunks into the empty `folder`; the pairs are never in memory together.

    Deduplication remembers about 100 bytes a pair.

    Raises:
      UserError: whatever is wrong with the source, or a split without pairs.
    """
    digest = hashlib.sha256()
    counts, in_both_splits = CleaningCounts(), 0
    files = {split: _ChunkFiles(folder, split, pairs_per_chunk) for split in SPLITS}
    own = validation_pairs(data)
    held_out: set[bytes] = set()
    for pair in clean(_hashed(own or (), digest), CleaningCounts()):
        held_out.add(pair_digest(pair))
        files[VALIDATION].add(pair)
    for pair in clean(_hashed(read_pairs(data.source), digest), counts):
        if held_out and pair_digest(pair) in held_out:
            in_both_splits += 1
        elif own is None and is_held_out(pair, data):
            files[VALIDATION].add(pair)
        else:
            files[TRAIN].add(pair)
    for split in SPLITS:
        files[split].close()
    if not files[TRAIN].chunks or not files[VALIDATION].chunks:
        raise UserError(_without_pairs(data, TRAIN if not files[TRAIN].chunks else VALIDATION, counts))
    chunks = (*files[TRAIN].chunks, *files[VALIDATION].chunks)
    staged = Staged(digest.hexdigest(), chunks, dataclasses.asdict(counts) | {"in_both_splits": in_both_splits})
    write_json(folder / _STAGED_FILE, dataclasses.asdict(staged))
    return staged


def read_staged(folder: Path) -> Staged | None:
    """What `stage` left in `folder`; None where it did not get to its end."""
    path = folder / _STAGED_FILE
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    return Staged(content["source"], tuple(Chunk(**chunk) for chunk in content["chunks"]), content["counts"])


def read_chunk(folder: Path, chunk: Chunk) -> list[Pair]:
    """The pairs of a chunk. Raises UserError where it is not as it was written."""
    path = folder / chunk.name
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UserError(f"cannot read {path} ({error.strerror}); delete {folder} and run the same command again") from error
    if hashlib.sha256(content).hexdigest() != chunk.sha256:
        raise UserError(f"{path} is damaged; delete {folder} and run the same command again")
    return [Pair(*line.split("\t")) for line in content.decode("utf-8").split("\n")[:-1]]


def read_texts(folder: Path, chunks: Iterable[Chunk]) -> Iterator[str]:
    """The sentences of both languages, pair by pair, a chunk in memory at a time."""
    return itertools.chain.from_iterable(itertools.chain.from_iterable(read_chunk(folder, chunk)) for chunk in chunks)


class _ChunkFiles:
    """The chunks of one split, each written when its pairs are together."""

    def __init__(self, folder: Path, split: str, pairs_per_chunk: int) -> None:
        self.folder, self.split, self.pairs_per_chunk = folder, split, pairs_per_chunk
        self.chunks: list[Chunk] = []
        self._lines: list[str] = []

    def add(self, pair: Pair) -> None:
        self._lines.append(f"{pair.source}\t{pair.target}\n")
        if len(self._lines) == self.pairs_per_chunk:
            self._write()

    def close(self) -> None:
        """Writes the last chunk, which may be shorter."""
        if self._lines:
            self._write()

    def _write(self) -> None:
        content = "".join(self._lines).encode()
        chunk = Chunk(self.split, len(self.chunks), len(self._lines), hashlib.sha256(content).hexdigest())
        (self.folder / chunk.name).write_bytes(content)
        self.chunks.append(chunk)
        self._lines = []


def _hashed(pairs: Iterable[Pair], digest: Any) -> Iterator[Pair]:
    for pair in pairs:
        _add(digest, pair)
        yield pair


def _add(digest: Any, pair: Pair) -> None:
    # A length before each text, as texts that are not cleaned yet may hold any separator.
    source, target = pair.source.encode(), pair.target.encode()
    digest.update(b"%d %d " % (len(source), len(target)) + source + target)


def _without_pairs(data: TranslationDataConfig, split: str, counts: CleaningCounts) -> str:
    if split == VALIDATION and data.validation_source:
        return f"data.validation_source = {data.validation_source!r} holds no sentence pairs; name one that does"
    return (
        f"data.source = {data.source!r} leaves no pairs for {split} ({counts.read} read, {counts.empty} empty, {counts.duplicates} "
        "duplicates); give more text, or change data.validation_fraction or data.validation_source"
    )
