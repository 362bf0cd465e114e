"""A source in numbered text files: what is left of it once it is cleaned and split, so that workers
can share it.

A chunk is a file such as train-00012.txt with so many items (sentence pairs, documents) as text;
`staged.json`, written last, names them all with their hashes.
"""

from __future__ import annotations

import abc
import dataclasses
import hashlib
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from mhsh.data.shards import write_json
from mhsh.data.splits import SPLITS
from mhsh.errors import UserError
from mhsh.files import MissingFile, read_object

_STAGED_FILE = "staged.json"

Texts = tuple[str, ...]  # an item as it stands in the source: the sides of a pair, or a document


class Source(abc.ABC):
    """What there is to stage, of one task."""

    @property
    @abc.abstractmethod
    def least_items(self) -> int:
        """The items that a chunk must have at least; fewer at the end of a split go to the chunk
        before.
        """

    @abc.abstractmethod
    def streams(self) -> Sequence[Iterable[Texts]]:
        """All items, in a fixed order, read as they are asked for. Raises UserError for whatever is
        wrong with the source.
        """

    @abc.abstractmethod
    def new_counts(self) -> Any:
        """A dataclass of numbers for `split` to count in."""

    @abc.abstractmethod
    def split(self, streams: Sequence[Iterable[Texts]], counts: Any) -> Iterator[tuple[str, str]]:
        """The split of every item that is left, and its text in a chunk, which `staging` only puts
        together.
        """

    @abc.abstractmethod
    def check(self, sizes: Mapping[str, int], counts: Any) -> None:
        """Raises UserError where a split has too few items; `sizes` has those of each."""


@dataclasses.dataclass(frozen=True)
class Chunk:
    """One file of items."""

    split: str
    number: int  # in its split, from 0
    items: int
    sha256: str

    @property
    def name(self) -> str:
        """The file's name."""
        return f"{self.split}-{self.number:05d}.txt"


@dataclasses.dataclass(frozen=True)
class Staged:
    """All chunks of a source, and what became of its items."""

    source: str  # its fingerprint
    chunks: tuple[Chunk, ...]  # of training, then of validation, each in order
    counts: dict[str, int]  # read and left out


def source_fingerprint(source: Source) -> str:
    """SHA-256, in hex, over every item as it stands in the source."""
    digest = hashlib.sha256()
    for stream in source.streams():
        deque(_hashed(stream, digest), maxlen=0)
    return digest.hexdigest()


def stage(source: Source, folder: Path, items_per_chunk: int) -> Staged:
    """Reads and splits the source, and writes the chunks into the empty `folder`; no more than a
    chunk of each split is in memory.

    Raises:
      UserError: whatever is wrong with the source, or a split with too few items.
    """
    digest = hashlib.sha256()
    counts = source.new_counts()
    files = {split: _ChunkFiles(folder, split, items_per_chunk, source.least_items) for split in SPLITS}
    for split, text in source.split([_hashed(stream, digest) for stream in source.streams()], counts):
        files[split].add(text)
    for split in SPLITS:
        files[split].close()
    source.check({split: sum(chunk.items for chunk in files[split].chunks) for split in SPLITS}, counts)
    chunks = tuple(chunk for split in SPLITS for chunk in files[split].chunks)
    staged = Staged(digest.hexdigest(), chunks, dataclasses.asdict(counts))
    write_json(folder / _STAGED_FILE, dataclasses.asdict(staged))
    return staged


def read_staged(folder: Path) -> Staged | None:
    """What `stage` left in `folder`; None where it did not get to its end."""
    path = folder / _STAGED_FILE
    try:
        content = read_object(path)
    except MissingFile:
        return None
    return Staged(content["source"], tuple(Chunk(**chunk) for chunk in content["chunks"]), content["counts"])


def read_chunk(folder: Path, chunk: Chunk) -> str:
    """The texts of a chunk's items, one after the other. Raises UserError where it is not as it was
    written.
    """
    path = folder / chunk.name
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UserError(f"cannot read {path} ({error.strerror}); delete {folder} and run the same command again") from error
    if hashlib.sha256(content).hexdigest() != chunk.sha256:
        raise UserError(f"{path} is damaged; delete {folder} and run the same command again")
    return content.decode("utf-8")


class _ChunkFiles:
    """The chunks of one split, each written when its items are together."""

    def __init__(self, folder: Path, split: str, items_per_chunk: int, least_items: int) -> None:
        self.folder, self.split, self.items_per_chunk, self.least_items = folder, split, items_per_chunk, least_items
        self.chunks: list[Chunk] = []
        self._texts: list[str] = []

    def add(self, text: str) -> None:
        self._texts.append(text)
        # Written once it is sure that those left are enough for a chunk of their own.
        if len(self._texts) == self.items_per_chunk + self.least_items:
            self._write(self.items_per_chunk)

    def close(self) -> None:
        """Writes the last chunk, of `least_items` at least, and fewer than that more than the
        others.
        """
        if self._texts:
            self._write(len(self._texts))

    def _write(self, count: int) -> None:
        content = "".join(self._texts[:count]).encode()
        chunk = Chunk(self.split, len(self.chunks), count, hashlib.sha256(content).hexdigest())
        (self.folder / chunk.name).write_bytes(content)
        self.chunks.append(chunk)
        del self._texts[:count]


def _hashed(stream: Iterable[Texts], digest: Any) -> Iterator[Texts]:
    for item in stream:
        # A length before each text, as texts that are not cleaned yet may hold any separator.
        encoded = [text.encode() for text in item]
        digest.update(b"".join(b"%d " % len(text) for text in encoded) + b"".join(encoded))
        yield item
