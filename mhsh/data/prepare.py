"""Examples on disk: a source is read and split once, one vocabulary is made, and every chunk
becomes one shard.

data.source = arrayrecord:DIR reads the folder: prepare.json (what it was made of), the vocabulary,
and the examples of train/ and validation/ (see shards.py). A killed preparation resumes from its
finished shards and ends with the same bytes.

Until it is finished, staging/ holds the items, cleaned and split, so that workers can share them. A
chunk is a file such as train-00012.msgpack. `staged.json`, written last, names all chunks with
their hashes.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import shutil
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import tokenizers

from mhsh.data.corpus import Item, Log, StreamedTask
from mhsh.data.local_shards import verify
from mhsh.data.shards import (
    INDEX_FILE,
    Shard,
    clear_notes,
    digest_of,
    finished_shard,
    read_index,
    write_index,
    write_json,
    write_shard,
)
from mhsh.data.tables import SPLITS, TRAIN, VALIDATION, overlap
from mhsh.data.text_files import PREPARE_FILE
from mhsh.errors import UserError
from mhsh.storage.disk_lock import hold_lock
from mhsh.storage.files import MissingFile, clear_half_files, make_folder, read_object
from mhsh.storage.questions import exists, names_in

_STAGING, _STAGED_FILE = "staging", "staged.json"
_FORMAT = 2

# Calls a function with each number of a range, in one process or in several.
RunChunks = Callable[[Callable[[int], None], range], None]


def prepare(task: StreamedTask[Any], out: Path, per_shard: int, run: RunChunks, log: Log) -> dict[str, Any]:
    """Makes `out` hold the examples of a task, and keeps what is there already. Returns what was
    read and left out, and the counts of each split under its name.

    The bytes depend on `task`, its source and `per_shard` (items a shard) alone. Raises UserError
    where something is wrong with the source or the vocabulary; `out` cannot be made or belongs to
    another job, or its files are damaged.
    """
    if per_shard < task.min_items:
        raise UserError(f"--per-shard={per_shard} must be {task.min_items} or more")
    # What decides the bytes, except the source's items.
    job = {"format": _FORMAT, "tokenizers": tokenizers.__version__, f"{task.items}_per_shard": per_shard} | task.job()
    try:
        make_folder(out)
    except OSError as error:
        raise UserError(f"cannot make the folder {out}: {error.strerror}; choose another --out") from error
    with _claim(out, job):
        if all(exists(out / split / INDEX_FILE) for split in SPLITS):
            log(f"{out} is finished; comparing it with its source and its hashes")
            _check_source(out, task, read_index(out / TRAIN)["meta"]["source_fingerprint"])
            for split in SPLITS:
                verify(out / split)
            task.prepared_tokenizer(out, *(read_index(out / split)["meta"] for split in SPLITS))
        else:
            staged = _stage(out, task, per_shard, log)
            vocabulary = out / task.vocab_file
            if not exists(vocabulary):
                task.new_tokenizer(_TrainingTexts(out / _STAGING, staged.chunks), log).save(vocabulary)
            tokenizer = task.read_tokenizer(vocabulary)
            work = EncodeChunk(out, task, staged.chunks, digest_of({**job, "tokenizer": tokenizer.fingerprint}))
            log(f"encoding {len(staged.chunks)} chunks with {tokenizer.vocab_size} tokens")
            run(work, range(len(staged.chunks)))
            _write_indices(work, staged, tokenizer)
        # What only an unfinished preparation needs. After a kill the next start removes it.
        for split in SPLITS:
            clear_notes(out / split)
        shutil.rmtree(out / _STAGING, ignore_errors=True)
        return read_index(out / TRAIN)["meta"]["counts"]


def describe(counts: Mapping[str, Any]) -> Iterator[str]:
    """The result of `prepare` in words: a line for the source and one for each split."""
    for name, numbers in ({"source": counts} | {split: counts[split] for split in SPLITS}).items():
        words = [
            f"{key.replace('_', ' ')} {value:{',' if isinstance(value, int) else '.4f'}}"
            for key, value in numbers.items()
            if isinstance(value, int | float)
        ]
        yield f"{name}: {', '.join(words)}"


@contextlib.contextmanager
def _claim(out: Path, job: Mapping[str, Any]) -> Iterator[None]:
    """Claims `out` for this job inside the `with`: no other process prepares into it."""
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(hold_lock(out))
        except BlockingIOError:
            raise UserError(f"another mhsh prepare is running in {out}; wait for it, or choose another --out") from None
        clear_half_files(out)
        names = set(names_in(out))
        if names and PREPARE_FILE not in names:
            raise UserError(f"{out} is not empty and holds no prepared rows; choose another --out")
        # A job whose source could not be read has left nothing; another may take its place.
        if names <= {PREPARE_FILE, _STAGING} and not exists(out / _STAGING / _STAGED_FILE):
            write_json(out / PREPARE_FILE, job)
        old = read_object(out / PREPARE_FILE)
        differing = [f"{name} is {old.get(name)!r} there, {value!r} here" for name, value in job.items() if old.get(name) != value]
        if differing:
            raise UserError(f"{out} holds rows of another job ({'; '.join(differing)}); choose another --out, or that job's config")
        yield


def _check_source(out: Path, task: StreamedTask[Any], fingerprint: str) -> None:
    digest = hashlib.sha256()
    for stream in task.streams():
        deque(_hash_items(stream, digest), maxlen=0)
    if digest.hexdigest() != fingerprint:
        raise UserError(
            f"{out} was begun with other {task.items} than data.source = {task.data.source!r} holds now; choose another --out"
        )


def _hash_items(stream: Iterable[Item], digest: Any) -> Iterator[Item]:
    for item in stream:
        # A length before each text, as texts that are not cleaned yet may contain any separator.
        encoded = [text.encode() for text in item]
        digest.update(b"".join(b"%d " % len(text) for text in encoded) + b"".join(encoded))
        yield item


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
        return f"{self.split}-{self.number:05d}.msgpack"


@dataclasses.dataclass(frozen=True)
class StagedSource:
    """All chunks of a source, and what was read and left out."""

    source: str  # SHA-256, in hex, over every item as it is in the source
    chunks: tuple[Chunk, ...]  # of training, then of validation, each in order
    counts: dict[str, Any]


def _stage(out: Path, task: StreamedTask[Any], per_shard: int, log: Log) -> StagedSource:
    """The chunks that an earlier start of this job has staged, or else those of the source, which
    is staged now.
    """
    folder = out / _STAGING
    try:
        content = read_object(folder / _STAGED_FILE)
    except MissingFile:
        log(f"reading {task.data.source}")
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        staged = stage(task, folder, per_shard)
    else:
        log("resuming; comparing the source with what was read before")
        staged = msgspec.convert(content, StagedSource)
        _check_source(out, task, staged.source)
    for split in SPLITS:
        make_folder(out / split)
        clear_half_files(out / split)
    return staged


def stage(task: StreamedTask[Any], folder: Path, items_per_chunk: int) -> StagedSource:
    """Reads and splits the source, and writes the chunks into the empty `folder`.

    Memory holds one chunk of each split, and eight bytes of each item. The last chunk of a split
    may have up to `task.min_items` - 1 items more than the others.
    """
    digest = hashlib.sha256()
    counts = dict.fromkeys(task.count_names, 0)
    hashes = {split: array("q") for split in SPLITS}
    waiting: dict[str, list[Item]] = {split: [] for split in SPLITS}
    chunks: dict[str, list[Chunk]] = {split: [] for split in SPLITS}

    def write(split: str, count: int) -> None:
        content = msgspec.msgpack.encode(waiting[split][:count])
        chunk = Chunk(split, len(chunks[split]), count, hashlib.sha256(content).hexdigest())
        (folder / chunk.name).write_bytes(content)
        chunks[split].append(chunk)
        del waiting[split][:count]

    for split, item in task.split([_hash_items(stream, digest) for stream in task.streams()], counts):
        waiting[split].append(item)
        hashes[split].append(hash(item))
        # Written only once the remaining items are enough for a chunk of their own.
        if len(waiting[split]) == items_per_chunk + task.min_items:
            write(split, items_per_chunk)
    for split in SPLITS:
        write(split, len(waiting[split]))
    both = {"overlap": overlap(hashes[TRAIN], hashes[VALIDATION])}
    staged = StagedSource(digest.hexdigest(), (*chunks[TRAIN], *chunks[VALIDATION]), counts | both)
    write_json(folder / _STAGED_FILE, msgspec.to_builtins(staged))
    return staged


def read_chunk(folder: Path, chunk: Chunk) -> list[Item]:
    """The items of a chunk. Raises UserError where its file has changed."""
    path = folder / chunk.name
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UserError(f"cannot read {path} ({error.strerror}); delete {folder} and run the same command again") from error
    if hashlib.sha256(content).hexdigest() != chunk.sha256:
        raise UserError(f"{path} is damaged; delete {folder} and run the same command again")
    return msgspec.msgpack.decode(content, type=list[Item])


class _TrainingTexts:
    """The texts of the training chunks, one chunk in memory at a time; iterated over repeatedly."""

    def __init__(self, folder: Path, chunks: Sequence[Chunk]) -> None:
        self._folder, self._chunks = folder, [chunk for chunk in chunks if chunk.split == TRAIN]

    def __iter__(self) -> Iterator[str]:
        return (text for chunk in self._chunks for item in read_chunk(self._folder, chunk) for text in item)


@functools.lru_cache(maxsize=1)
def _cached_tokenizer(task: StreamedTask[Any], path: Path) -> Any:
    return task.read_tokenizer(path)


@dataclasses.dataclass(frozen=True)
class EncodeChunk:
    """Writes the shard of a chunk, unless it is finished. Called with the index of the chunk."""

    out: Path
    task: StreamedTask[Any]
    chunks: tuple[Chunk, ...]
    job: str

    def __call__(self, index: int) -> None:
        """Leaves the shard of a chunk in the folder of its split."""
        chunk = self.chunks[index]
        if self.find_shard(chunk) is not None:
            return
        tokenizer = _cached_tokenizer(self.task, self.out / self.task.vocab_file)
        items = read_chunk(self.out / _STAGING, chunk)
        examples, sums = self.task.encode(items, chunk.split, chunk.number, tokenizer)
        note = {name: np.asarray(value).tolist() for name, value in sums.items()}
        write_shard(self.out / chunk.split, chunk.number, examples, self.task.compression, self._job_of(chunk), note)

    def find_shard(self, chunk: Chunk) -> tuple[Shard, dict[str, Any]] | None:
        """The chunk's shard and note, where they are complete."""
        return finished_shard(self.out / chunk.split, chunk.number, self._job_of(chunk))

    def _job_of(self, chunk: Chunk) -> str:
        return digest_of({"job": self.job, "chunk": chunk.sha256})


def _write_indices(work: EncodeChunk, staged: StagedSource, tokenizer: Any) -> None:
    """Writes the indices of both splits, whose shards are complete."""
    out, task = work.out, work.task
    shards: dict[str, list[Shard]] = {split: [] for split in SPLITS}
    sums: dict[str, dict[str, Any]] = {split: {} for split in SPLITS}
    for chunk in staged.chunks:
        finished = work.find_shard(chunk)
        if finished is None:
            raise UserError(f"the shard of {chunk.name} is missing in {out / chunk.split}; run the same command again")
        shards[chunk.split].append(finished[0])
        for name, value in finished[1].items():
            sums[chunk.split][name] = sums[chunk.split].get(name, 0) + np.array(value)
    summaries = {split: task.summarize(total, split, tokenizer) for split, total in sums.items()}
    layout = {name.partition(".")[2]: value for name, value in task.layout().items()}
    meta = layout | {
        "vocab_size": tokenizer.vocab_size,
        "tokenizer_fingerprint": tokenizer.fingerprint,
        "source_fingerprint": staged.source,
        "counts": staged.counts | {split: plain for split, (plain, _) in summaries.items()},
    }
    # Training last: a folder with both indices is complete.
    for split in reversed(SPLITS):
        write_index(out / split, shards[split], meta | {"unigram_entropy": summaries[split][1]})
