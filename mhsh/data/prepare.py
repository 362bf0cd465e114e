"""Rows on disk, of whatever task: a source read once, split, one vocabulary, and the rows of every
chunk in a shard of their own.

The folder that comes of it is what data.source = arrayrecord:DIR reads: prepare.json (of what it
was made), the vocabulary, and the rows of train/ and validation/ (see shards.py). A killed
preparation goes on from its whole shards; its end has the same bytes.
"""

from __future__ import annotations

import abc
import contextlib
import dataclasses
import fcntl
import functools
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Generic

import numpy as np
import tokenizers

from mhsh.config.schema import Config
from mhsh.data.prepared import AnyVocabulary
from mhsh.data.pretraining.packing import Rows
from mhsh.data.shards import (
    INDEX_FILE,
    Shard,
    clear_notes,
    finished_shard,
    open_rows,
    write_index,
    write_json,
    write_shard,
)
from mhsh.data.splits import SPLITS, TRAIN
from mhsh.data.staging import Chunk, Source, Staged, read_chunk, read_staged, source_fingerprint, stage
from mhsh.errors import UserError
from mhsh.files import clear_half_files, read_object, replacing

_JOB_FILE = "prepare.json"
_FORMAT = 1

Say = Callable[[str], None]  # a line about how far it is
# Runs a chunk's work for each of so many chunks, and says which are done: workers.run_chunks, or
# the same on Beam.
RunChunks = Callable[[Callable[[int], None], range], None]


@dataclasses.dataclass(frozen=True)
class Preparation(Source, Generic[AnyVocabulary]):
    """What is a task's own in making rows; it goes to other processes."""

    items: ClassVar[str]  # what a chunk has so many of: pairs, documents
    items_per_shard: ClassVar[int]  # where nobody says otherwise
    vocab_name: ClassVar[str]  # the vocabulary's file
    packing: ClassVar[str]  # of its shards: shards.ZSTD or shards.PLAIN

    config: Config

    @abc.abstractmethod
    def job(self) -> dict[str, Any]:
        """All that decides the bytes, but for what the source holds and the chunks: plain values by
        their names.
        """

    @abc.abstractmethod
    def new_vocabulary(self, texts: Iterable[str], say: Say) -> AnyVocabulary:
        """The vocabulary that the config names, or learnt from `texts`, those of training, which
        can be gone through twice.
        """

    @abc.abstractmethod
    def read_vocabulary(self, path: Path) -> AnyVocabulary:
        """The vocabulary of the prepared folder."""

    @abc.abstractmethod
    def texts(self, content: str) -> Iterator[str]:
        """The texts in the content of a chunk."""

    @abc.abstractmethod
    def encode(self, content: str, chunk: Chunk, tokenizer: AnyVocabulary) -> tuple[Sequence[Rows], dict[str, Any]]:
        """The rows of a chunk's content, in groups of equal shapes, and numbers or arrays that are
        summed over the chunks.
        """

    @abc.abstractmethod
    def meta(self) -> dict[str, Any]:
        """What the index says of what the rows were made with, for those that open it."""

    @abc.abstractmethod
    def counts(self, sums: Mapping[str, Any], split: str, tokenizer: AnyVocabulary) -> dict[str, Any]:
        """The sums of a split as plain numbers for people. Raises UserError where there are no
        rows.
        """

    @abc.abstractmethod
    def entropy(self, sums: Mapping[str, Any], tokenizer: AnyVocabulary) -> float:
        """See `unigram.unigram_entropy`."""

    @abc.abstractmethod
    def describe(self, counts: Mapping[str, Any]) -> Iterator[str]:
        """The counts of the whole in words, line by line."""


def prepare(task: Preparation[Any], out: Path, per_shard: int, run: RunChunks, say: Say) -> dict[str, Any]:
    """Makes `out` hold the rows of a task, whatever part of it is there already; the bytes hang on
    `task`, its source and `per_shard` (items a shard) alone.

    Returns:
      what was read and left out, and under the name of each split its counts.

    Raises:
      UserError: whatever is wrong with the source or the vocabulary; `out` belongs to another job,
        or its files are damaged.
    """
    if per_shard < task.least_items:
        raise UserError(f"--per-shard={per_shard} must be {task.least_items} or more")
    job = {"format": _FORMAT, "tokenizers": tokenizers.__version__, f"{task.items}_per_shard": per_shard} | task.job()
    with _claimed(out, job):
        if _is_complete(out):
            say(f"{out} is finished; comparing it with its source and its hashes")
            _check_source(out, task, open_rows(out / TRAIN).meta["source_fingerprint"])
            _clear(out)
            for split in SPLITS:
                open_rows(out / split).verify()
        else:
            staged = _stage(out, task, per_shard, say)
            tokenizer = _vocabulary(out, task, staged, say)
            work = EncodeChunk(out, task, staged.chunks, _digest(job | {"tokenizer": tokenizer.fingerprint}))
            say(f"encoding {len(staged.chunks)} chunks with {tokenizer.vocab_size} tokens")
            run(work, range(len(staged.chunks)))
            _close(out, work, staged, tokenizer)
            _clear(out)
        return open_rows(out / TRAIN).meta["counts"]


@dataclasses.dataclass(frozen=True)
class EncodeChunk:
    """The work on one chunk: its shard, unless it is there; called with the chunk's place among
    all.
    """

    out: Path
    task: Preparation[Any]
    chunks: tuple[Chunk, ...]
    job: str

    def __call__(self, place: int) -> None:
        """Leaves the shard of chunk `place` in the folder of its split."""
        chunk = self.chunks[place]
        if self.finished(chunk) is not None:
            return
        tokenizer = _loaded(self.task, self.out / self.task.vocab_name)
        groups, sums = self.task.encode(read_chunk(_staging(self.out), chunk), chunk, tokenizer)
        note = {name: np.asarray(value).tolist() for name, value in sums.items()}
        write_shard(self.out / chunk.split, chunk.number, groups, self.task.packing, self._job_of(chunk), note)

    def finished(self, chunk: Chunk) -> tuple[Shard, dict[str, Any]] | None:
        """The chunk's shard and note, where it is there whole."""
        return finished_shard(self.out / chunk.split, chunk.number, self._job_of(chunk))

    def _job_of(self, chunk: Chunk) -> str:
        return _digest({"job": self.job, "chunk": chunk.sha256})


@functools.lru_cache(maxsize=1)
def _loaded(task: Preparation[Any], path: Path) -> Any:
    return task.read_vocabulary(path)


@dataclasses.dataclass(frozen=True)
class _TrainingTexts:
    """The texts of the training chunks, a chunk in memory at a time; every iteration begins
    anew.
    """

    out: Path
    task: Preparation[Any]
    chunks: tuple[Chunk, ...]

    def __iter__(self) -> Iterator[str]:
        for chunk in self.chunks:
            if chunk.split == TRAIN:
                yield from self.task.texts(read_chunk(_staging(self.out), chunk))


@contextlib.contextmanager
def _claimed(out: Path, job: Mapping[str, Any]) -> Iterator[None]:
    """Inside the `with`, `out` is a folder of this job, and no other process prepares into it."""
    path = out / _JOB_FILE
    try:
        out.mkdir(parents=True, exist_ok=True)
        folder = os.open(out, os.O_RDONLY)
    except OSError as error:
        raise UserError(f"cannot make the folder {out}: {error.strerror}; choose another --out") from error
    try:
        try:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(f"another mhsh prepare is at work in {out}; wait for it, or choose another --out") from None
        clear_half_files(out)
        if path.exists():
            _check_job(out, read_object(path), job)
        elif any(out.iterdir()):
            raise UserError(f"{out} is not empty and holds no prepared rows; choose another --out")
        else:
            write_json(path, job)
        yield
    finally:
        os.close(folder)


def _check_job(out: Path, there: Mapping[str, Any], here: Mapping[str, Any]) -> None:
    differing = [f"{name} is {there.get(name)!r} there, {value!r} here" for name, value in here.items() if there.get(name) != value]
    if differing:
        raise UserError(f"{out} holds rows of another job ({'; '.join(differing)}); choose another --out, or that job's config")


def _check_source(out: Path, task: Preparation[Any], there: str) -> None:
    if source_fingerprint(task) != there:
        raise UserError(
            f"{out} was begun with other {task.items} than data.source = {task.config.data.source!r} holds now; choose another "
            "--out"
        )


def _staging(out: Path) -> Path:
    return out / "staging"


def _stage(out: Path, task: Preparation[Any], per_shard: int, say: Say) -> Staged:
    folder = _staging(out)
    staged = read_staged(folder)
    if staged is not None:
        say("going on; comparing the source with what was read before")
        _check_source(out, task, staged.source)
    else:
        say(f"reading {task.config.data.source}")
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        staged = stage(task, folder, per_shard)
    for split in SPLITS:
        (out / split).mkdir(exist_ok=True)
        clear_half_files(out / split)
    return staged


def _vocabulary(out: Path, task: Preparation[AnyVocabulary], staged: Staged, say: Say) -> AnyVocabulary:
    path = out / task.vocab_name
    if not path.exists():
        tokenizer = task.new_vocabulary(_TrainingTexts(out, task, staged.chunks), say)
        with replacing(path) as temporary:
            tokenizer.save(temporary)
    return task.read_vocabulary(path)


def _close(out: Path, work: EncodeChunk, staged: Staged, tokenizer: Any) -> None:
    """Writes the indices of both splits, whose shards are all there."""
    task = work.task
    shards: dict[str, list[Shard]] = {split: [] for split in SPLITS}
    sums: dict[str, dict[str, Any]] = {split: {} for split in SPLITS}
    for chunk in staged.chunks:
        finished = work.finished(chunk)
        if finished is None:
            raise UserError(f"the shard of {chunk.name} is missing in {out / chunk.split}; run the same command again")
        shards[chunk.split].append(finished[0])
        for name, value in finished[1].items():
            sums[chunk.split][name] = sums[chunk.split].get(name, 0) + np.array(value)
    meta = task.meta() | {
        "vocab_size": tokenizer.vocab_size,
        "tokenizer_fingerprint": tokenizer.fingerprint,
        "source_fingerprint": staged.source,
        "counts": staged.counts | {split: task.counts(total, split, tokenizer) for split, total in sums.items()},
    }
    # Training last: a folder with both indices is complete.
    for split in reversed(SPLITS):
        write_index(out / split, shards[split], meta | {"unigram_entropy": task.entropy(sums[split], tokenizer)})


def _is_complete(out: Path) -> bool:
    return all((out / split / INDEX_FILE).exists() for split in SPLITS)


def _clear(out: Path) -> None:
    """Removes what only an unfinished preparation needs; a kill in the middle leaves it to the next
    one.
    """
    for split in SPLITS:
        clear_notes(out / split)
    shutil.rmtree(_staging(out), ignore_errors=True)


def _digest(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
