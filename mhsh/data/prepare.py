"""Examples on disk: a source is read and split once, one vocabulary is made, and every chunk
becomes one shard.

data.source = arrayrecord:DIR reads the folder: prepare.json (what it was made of), the vocabulary,
and the examples of train/ and validation/ (see shards.py). A killed preparation resumes from its
finished shards and ends with the same bytes.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import json
import os
import shutil
import socket
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
from etils import epath

from mhsh.bucket_lock import bucket_lock
from mhsh.data.bucket_copies import names_in, upload, verify
from mhsh.data.shards import (
    INDEX_FILE,
    Shard,
    StoredTable,
    clear_notes,
    finished_shard,
    read_index,
    write_index,
    write_json,
    write_shard,
)
from mhsh.data.splits import SPLITS, TRAIN
from mhsh.data.staging import Chunk, Staged, read_chunk, read_staged, source_fingerprint, stage
from mhsh.data.tasks import Log, Task, TaskTokenizer
from mhsh.errors import UserError
from mhsh.files import cache_folder, clear_half_files, locked, read_object, replacing

_JOB_FILE = "prepare.json"
_LOCK_FILE = ".prepare.lock"  # in a bucket
_FORMAT = 2
# Of the notes beside unfinished shards. Shards with notes of another format are written again.
_NOTE_FORMAT = 2

# Calls a function with each number of a range, anywhere: pool.run_chunks, or the same on Beam.
RunChunks = Callable[[Callable[[int], None], range], None]


def prepare(task: Task[Any], out: Path, per_shard: int, run: RunChunks, log: Log) -> dict[str, Any]:
    """Makes `out` hold the examples of a task, and keeps what is there already.

    The bytes depend on `task`, its source and `per_shard` (items a shard) alone.

    Returns:
      what was read and left out, and the counts of each split under its name.

    Raises:
      UserError: whatever is wrong with the source or the vocabulary; `out` belongs to another job,
        or its files are damaged.
    """
    job = _job(task, per_shard)
    with _claimed(out, job):
        if _is_complete(out):
            log(f"{out} is finished; comparing it with its source and its hashes")
            _check_source(out, task, StoredTable(out / TRAIN).meta["source_fingerprint"])
            _clear(out)
            for split in SPLITS:
                StoredTable(out / split).verify()
        else:
            staged = _stage(out, task, per_shard, log)
            tokenizer = _tokenizer(out, task, staged, log)
            work = EncodeChunk(
                out, task, staged.chunks, _digest(job | {"tokenizer": tokenizer.fingerprint, "note format": _NOTE_FORMAT})
            )
            log(f"encoding {len(staged.chunks)} chunks with {tokenizer.vocab_size} tokens")
            run(work, range(len(staged.chunks)))
            _write_indices(work, staged, tokenizer)
            _clear(out)
        return StoredTable(out / TRAIN).meta["counts"]


def prepare_into_bucket(task: Task[Any], out: epath.Path, per_shard: int, run: RunChunks, log: Log) -> dict[str, Any]:
    """As `prepare`, where `out` is in a bucket.

    The examples are made in a folder of the cache, which resumes after a kill. They are uploaded
    when they are complete, the indices last. Another machine begins anew and writes the same bytes.
    """
    job = _job(task, per_shard)
    work = cache_folder() / "prepare" / _digest(job | {"out": str(out)})
    with _claimed_in_bucket(out, job):
        if names_in(out).issuperset(f"{split}/{INDEX_FILE}" for split in SPLITS):
            log(f"{out} is finished; comparing it with its source and its hashes")
            _check_source(out, task, read_index(out / TRAIN)["meta"]["source_fingerprint"])
            for split in SPLITS:
                verify(out / split)
        else:
            prepare(task, work, per_shard, run, log)
            log(f"uploading the rows from {work}")
            upload(work, out)
        shutil.rmtree(work, ignore_errors=True)
        return read_index(out / TRAIN)["meta"]["counts"]


def _job(task: Task[Any], per_shard: int) -> dict[str, Any]:
    """What decides the bytes, except the source's items."""
    if per_shard < task.min_items:
        raise UserError(f"--per-shard={per_shard} must be {task.min_items} or more")
    return {"format": _FORMAT, "tokenizers": tokenizers.__version__, f"{task.items}_per_shard": per_shard} | task.job()


@dataclasses.dataclass(frozen=True)
class EncodeChunk:
    """Writes the shard of a chunk, unless it is finished. Called with the index of the chunk."""

    out: Path
    task: Task[Any]
    chunks: tuple[Chunk, ...]
    job: str

    def __call__(self, index: int) -> None:
        """Leaves the shard of a chunk in the folder of its split."""
        chunk = self.chunks[index]
        if self.finished(chunk) is not None:
            return
        tokenizer = _cached_tokenizer(self.task, self.out / self.task.vocab_file)
        items = read_chunk(self.task, _staging(self.out), chunk)
        groups, sums = self.task.encode(items, chunk.split, chunk.number, tokenizer)
        note = {name: np.asarray(value).tolist() for name, value in sums.items()}
        write_shard(self.out / chunk.split, chunk.number, [*groups.values()], self.task.compression, self._job_of(chunk), note)

    def finished(self, chunk: Chunk) -> tuple[Shard, dict[str, Any]] | None:
        """The chunk's shard and note, where they are complete."""
        return finished_shard(self.out / chunk.split, chunk.number, self._job_of(chunk))

    def _job_of(self, chunk: Chunk) -> str:
        return _digest({"job": self.job, "chunk": chunk.sha256})


@functools.lru_cache(maxsize=1)
def _cached_tokenizer(task: Task[Any], path: Path) -> Any:
    return task.read_tokenizer(path)


@dataclasses.dataclass(frozen=True)
class _TrainingTexts:
    """The texts of the training chunks, with one chunk in memory at a time. It can be iterated over
    again.
    """

    out: Path
    task: Task[Any]
    chunks: tuple[Chunk, ...]

    def __iter__(self) -> Iterator[str]:
        for chunk in self.chunks:
            if chunk.split == TRAIN:
                for item in read_chunk(self.task, _staging(self.out), chunk):
                    yield from item


@contextlib.contextmanager
def _claimed(out: Path, job: Mapping[str, Any]) -> Iterator[None]:
    """Inside the `with`, `out` belongs to this job, and no other process prepares into it."""
    path = out / _JOB_FILE
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot make the folder {out}: {error.strerror}; choose another --out") from error
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(locked(out))
        except BlockingIOError:
            raise UserError(f"another mhsh prepare is running in {out}; wait for it, or choose another --out") from None
        clear_half_files(out)
        # A job whose source could not be read has left nothing; another may take its place.
        begun = path.exists() and (read_staged(_staging(out)) is not None or any((out / split).exists() for split in SPLITS))
        if begun:
            _check_job(out, read_object(path), job)
        elif not path.exists() and any(out.iterdir()):
            raise UserError(f"{out} is not empty and holds no prepared rows; choose another --out")
        else:
            write_json(path, job)
        yield


@contextlib.contextmanager
def _claimed_in_bucket(out: epath.Path, job: Mapping[str, Any]) -> Iterator[None]:
    """As `_claimed`. A bucket has no locks of the kernel's: see bucket_lock.py."""

    def waiting() -> None:
        print(f"{out} is or was in use by another mhsh prepare; waiting up to a minute to see whether it still runs", flush=True)

    holder = {"host": socket.gethostname(), "process": os.getpid()}
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(bucket_lock(str(out / _LOCK_FILE), holder, waiting))
        except BlockingIOError:
            raise UserError(f"another mhsh prepare is running in {out}; wait for it, or choose another --out") from None
        names = names_in(out) - {_LOCK_FILE}
        if names > {_JOB_FILE}:
            _check_job(out, read_object(out / _JOB_FILE), job)
        elif names - {_JOB_FILE}:
            raise UserError(f"{out} is not empty and holds no prepared rows; choose another --out")
        else:
            write_json(out / _JOB_FILE, job)
        yield


def _check_job(out: Path | epath.Path, there: Mapping[str, Any], here: Mapping[str, Any]) -> None:
    differing = [f"{name} is {there.get(name)!r} there, {value!r} here" for name, value in here.items() if there.get(name) != value]
    if differing:
        raise UserError(f"{out} holds rows of another job ({'; '.join(differing)}); choose another --out, or that job's config")


def _check_source(out: Path | epath.Path, task: Task[Any], there: str) -> None:
    if source_fingerprint(task) != there:
        raise UserError(
            f"{out} was begun with other {task.items} than data.source = {task.data.source!r} holds now; choose another --out"
        )


def _staging(out: Path) -> Path:
    return out / "staging"


def _stage(out: Path, task: Task[Any], per_shard: int, log: Log) -> Staged:
    folder = _staging(out)
    staged = read_staged(folder)
    if staged is not None:
        log("resuming; comparing the source with what was read before")
        _check_source(out, task, staged.source)
    else:
        log(f"reading {task.data.source}")
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        staged = stage(task, folder, per_shard)
    for split in SPLITS:
        (out / split).mkdir(exist_ok=True)
        clear_half_files(out / split)
    return staged


def _tokenizer(out: Path, task: Task[TaskTokenizer], staged: Staged, log: Log) -> TaskTokenizer:
    path = out / task.vocab_file
    if not path.exists():
        tokenizer = task.new_tokenizer(_TrainingTexts(out, task, staged.chunks), log)
        with replacing(path) as temporary:
            tokenizer.save(temporary)
    return task.read_tokenizer(path)


def _write_indices(work: EncodeChunk, staged: Staged, tokenizer: Any) -> None:
    """Writes the indices of both splits, whose shards are complete."""
    out, task = work.out, work.task
    shards: dict[str, list[Shard]] = {split: [] for split in SPLITS}
    sums: dict[str, dict[str, Any]] = {split: {} for split in SPLITS}
    for chunk in staged.chunks:
        finished = work.finished(chunk)
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


def _is_complete(out: Path) -> bool:
    return all((out / split / INDEX_FILE).exists() for split in SPLITS)


def _clear(out: Path) -> None:
    """Removes what only an unfinished preparation needs. After a kill the next start does it."""
    for split in SPLITS:
        clear_notes(out / split)
    shutil.rmtree(_staging(out), ignore_errors=True)


def _digest(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
