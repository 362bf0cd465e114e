"""A source as numbered text files: its items, cleaned and split, so that workers can share them.

A chunk is a file such as train-00012.txt with some items (sentence pairs, documents) as text.
`staged.json`, written last, names all chunks with their hashes.
"""

from __future__ import annotations

import dataclasses
import hashlib
from array import array
from collections import deque
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from mhsh.data.corpus import Item, StreamedTask
from mhsh.data.shards import write_json
from mhsh.data.tables import SPLITS, TRAIN, VALIDATION, overlap
from mhsh.errors import UserError
from mhsh.files import MissingFile, read_object

_STAGED_FILE = "staged.json"
_SEPARATOR = "\t"  # between the texts of an item


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
    """All chunks of a source, and what was read and left out."""

    source: str  # its fingerprint
    chunks: tuple[Chunk, ...]  # of training, then of validation, each in order
    counts: dict[str, Any]


def source_fingerprint(task: StreamedTask[Any]) -> str:
    """SHA-256, in hex, over every item as it is in the source."""
    digest = hashlib.sha256()
    for stream in task.streams():
        deque(_hashed(stream, digest), maxlen=0)
    return digest.hexdigest()


def stage(task: StreamedTask[Any], folder: Path, items_per_chunk: int) -> Staged:
    """Reads and splits the source, and writes the chunks into the empty `folder`.

    Memory holds one chunk of each split at a time, and eight bytes of each item.

    Raises:
      UserError: whatever is wrong with the source, or a split with too few items.
    """
    digest = hashlib.sha256()
    counts = dict.fromkeys(task.counted, 0)
    hashes = {split: array("q") for split in SPLITS}
    files = {split: _ChunkFiles(folder, split, items_per_chunk, task.min_items) for split in SPLITS}
    for split, item in task.split([_hashed(stream, digest) for stream in task.streams()], counts):
        files[split].add(item_text(task, item))
        hashes[split].append(hash(item))
    for split in SPLITS:
        files[split].close()
    chunks = tuple(chunk for split in SPLITS for chunk in files[split].chunks)
    both = {"overlap": overlap(hashes[TRAIN], hashes[VALIDATION])}
    staged = Staged(digest.hexdigest(), chunks, counts | both)
    write_json(folder / _STAGED_FILE, dataclasses.asdict(staged))
    return staged


def read_staged(folder: Path) -> Staged | None:
    """What `stage` left in `folder`; None where it did not finish."""
    path = folder / _STAGED_FILE
    try:
        content = read_object(path)
    except MissingFile:
        return None
    return Staged(content["source"], tuple(Chunk(**chunk) for chunk in content["chunks"]), content["counts"])


def read_chunk(task: StreamedTask[Any], folder: Path, chunk: Chunk) -> list[Item]:
    """The items of a chunk. Raises UserError where its file has changed."""
    path = folder / chunk.name
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UserError(f"cannot read {path} ({error.strerror}); delete {folder} and run the same command again") from error
    if hashlib.sha256(content).hexdigest() != chunk.sha256:
        raise UserError(f"{path} is damaged; delete {folder} and run the same command again")
    return items_in(task, content.decode("utf-8"))


def item_text(task: StreamedTask[Any], item: Item) -> str:
    """An item as text in a chunk's file."""
    return _SEPARATOR.join(item) + task.item_end


def items_in(task: StreamedTask[Any], content: str) -> list[Item]:
    """The items in the text of a chunk's file."""
    return [tuple(text.split(_SEPARATOR, task.item_size - 1)) for text in content.split(task.item_end)[:-1]]


class _ChunkFiles:
    """The chunks of one split. Each is written as soon as its items are complete."""

    def __init__(self, folder: Path, split: str, items_per_chunk: int, min_items: int) -> None:
        self.folder, self.split, self.items_per_chunk, self.min_items = folder, split, items_per_chunk, min_items
        self.chunks: list[Chunk] = []
        self._texts: list[str] = []

    def add(self, text: str) -> None:
        self._texts.append(text)
        # Written only once the remaining items are enough for a chunk of their own.
        if len(self._texts) == self.items_per_chunk + self.min_items:
            self._write(self.items_per_chunk)

    def close(self) -> None:
        """Writes the last chunk. It may have up to `min_items` - 1 items more than the others."""
        if self._texts:
            self._write(len(self._texts))

    def _write(self, count: int) -> None:
        content = "".join(self._texts[:count]).encode()
        chunk = Chunk(self.split, len(self.chunks), count, hashlib.sha256(content).hexdigest())
        (self.folder / chunk.name).write_bytes(content)
        self.chunks.append(chunk)
        del self._texts[:count]


def _hashed(stream: Iterable[Item], digest: Any) -> Iterator[Item]:
    for item in stream:
        # A length before each text, as texts that are not cleaned yet may contain any separator.
        encoded = [text.encode() for text in item]
        digest.update(b"".join(b"%d " % len(text) for text in encoded) + b"".join(encoded))
        yield item
