"""Examples on disk: a source is read and split once, one vocabulary is made, and every chunk
becomes one shard.

data.source = arrayrecord:DIR reads the folder: prepare.json (what it was made of), the vocabulary,
and the examples of train/ and validation/ (see shards.py). A killed preparation resumes from its
finished shards and ends with the same bytes.
"""

from __future__ import annotations

import base64
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
from mhsh.data.corpus import Log, StreamedTask
from mhsh.data.local_shards import in_threads, reason, verify
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
from mhsh.data.staging import Chunk, Staged, read_chunk, read_staged, source_fingerprint, stage
from mhsh.data.tables import SPLITS, TRAIN
from mhsh.errors import UserError
from mhsh.files import bucket_objects, cache_folder, clear_half_files, is_remote, locked, read_object, replacing

_JOB_FILE = "prepare.json"
_LOCK_FILE = ".prepare.lock"  # in a bucket
_FORMAT = 2
# Of the notes beside unfinished shards. Shards with notes of another format are written again.
_NOTE_FORMAT = 2
_UPLOAD_BYTES = 4 << 20  # in memory for each thread

# Calls a function with each number of a range, anywhere: pool.run_chunks, or the same on Beam.
RunChunks = Callable[[Callable[[int], None], range], None]


def prepare(task: StreamedTask[Any], out: epath.PathLike, per_shard: int, run: RunChunks, log: Log) -> dict[str, Any]:
    """Makes `out` hold the examples of a task, and keeps what is there already.

    The bytes depend on `task`, its source and `per_shard` (items a shard) alone. Where `out` is in
    a bucket, the examples are made in a folder of the cache, which resumes after a kill, and
    uploaded when they are complete. Another machine begins anew and writes the same bytes.

    Returns:
      what was read and left out, and the counts of each split under its name.

    Raises:
      UserError: whatever is wrong with the source, the vocabulary or the bucket; `out` belongs to
        another job, or its files are damaged.
    """
    if per_shard < task.min_items:
        raise UserError(f"--per-shard={per_shard} must be {task.min_items} or more")
    # What decides the bytes, except the source's items.
    job = {"format": _FORMAT, "tokenizers": tokenizers.__version__, f"{task.items}_per_shard": per_shard} | task.job()
    if not is_remote(out):
        return _prepare_folder(task, Path(out), job, per_shard, run, log)
    target = epath.Path(out)
    work = cache_folder() / "prepare" / _digest(job | {"out": str(target)})
    with _claimed_in_bucket(target, job):
        if _names_in(target).issuperset(f"{split}/{INDEX_FILE}" for split in SPLITS):
            _check_finished(target, task, log)
        else:
            _prepare_folder(task, work, job, per_shard, run, log)
            log(f"uploading the rows from {work}")
            upload(work, target)
        shutil.rmtree(work, ignore_errors=True)
        return read_index(target / TRAIN)["meta"]["counts"]


def _prepare_folder(
    task: StreamedTask[Any], out: Path, job: Mapping[str, Any], per_shard: int, run: RunChunks, log: Log
) -> dict[str, Any]:
    with _claimed(out, job):
        if all((out / split / INDEX_FILE).exists() for split in SPLITS):
            _check_finished(out, task, log)
            _clear(out)
        else:
            staged = _stage(out, task, per_shard, log)
            tokenizer = _tokenizer(out, task, staged, log)
            digest = _digest({**job, "tokenizer": tokenizer.fingerprint, "note format": _NOTE_FORMAT})
            work = EncodeChunk(out, task, staged.chunks, digest)
            log(f"encoding {len(staged.chunks)} chunks with {tokenizer.vocab_size} tokens")
            run(work, range(len(staged.chunks)))
            _write_indices(work, staged, tokenizer)
            _clear(out)
        return StoredTable(out / TRAIN).meta["counts"]


def describe(counts: Mapping[str, Any]) -> Iterator[str]:
    """What `prepare` returned in words: a line for the source and one for each split."""
    for name, numbers in ({"source": counts} | {split: counts[split] for split in SPLITS}).items():
        words = [
            f"{key.replace('_', ' ')} {value:{',' if isinstance(value, int) else '.4f'}}"
            for key, value in numbers.items()
            if isinstance(value, int | float)
        ]
        yield f"{name}: {', '.join(words)}"


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
def _cached_tokenizer(task: StreamedTask[Any], path: Path) -> Any:
    return task.read_tokenizer(path)


@contextlib.contextmanager
def _claimed(out: Path, job: Mapping[str, Any]) -> Iterator[None]:
    """Inside the `with`, `out` belongs to this job, and no other process prepares into it."""
    path = out / _JOB_FILE
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot make the folder {out}: {error.strerror}; choose another --out") from error
    with _unless_in_use(out, lambda: locked(out)):
        clear_half_files(out)
        # A job whose source could not be read has left nothing; another may take its place.
        begun = path.exists() and (read_staged(_staging(out)) is not None or any((out / split).exists() for split in SPLITS))
        _take(out, job, begun, strange=not path.exists() and any(out.iterdir()))
        yield


@contextlib.contextmanager
def _claimed_in_bucket(out: epath.Path, job: Mapping[str, Any]) -> Iterator[None]:
    """`_claimed` in a bucket, which has no locks of the kernel's: see bucket_lock.py."""

    def waiting() -> None:
        print(f"{out} is or was in use by another mhsh prepare; waiting up to a minute to see whether it still runs", flush=True)

    holder = {"host": socket.gethostname(), "process": os.getpid()}
    with _unless_in_use(out, lambda: bucket_lock(str(out / _LOCK_FILE), holder, waiting)):
        names = _names_in(out) - {_LOCK_FILE}
        begun = names > {_JOB_FILE}
        _take(out, job, begun, strange=not begun and bool(names - {_JOB_FILE}))
        yield


@contextlib.contextmanager
def _unless_in_use(out: Path | epath.Path, lock: Callable[[], contextlib.AbstractContextManager[Any]]) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(lock())
        except BlockingIOError:
            raise UserError(f"another mhsh prepare is running in {out}; wait for it, or choose another --out") from None
        yield


def _take(out: Path | epath.Path, job: Mapping[str, Any], begun: bool, strange: bool) -> None:
    """Writes the job into a folder that is not `begun`. One that is must be of this job."""
    if strange:
        raise UserError(f"{out} is not empty and holds no prepared rows; choose another --out")
    if not begun:
        write_json(out / _JOB_FILE, job)
        return
    old = read_object(out / _JOB_FILE)
    differing = [f"{name} is {old.get(name)!r} there, {value!r} here" for name, value in job.items() if old.get(name) != value]
    if differing:
        raise UserError(f"{out} holds rows of another job ({'; '.join(differing)}); choose another --out, or that job's config")


def _check_finished(out: Path | epath.Path, task: StreamedTask[Any], log: Log) -> None:
    log(f"{out} is finished; comparing it with its source and its hashes")
    _check_source(out, task, read_index(out / TRAIN)["meta"]["source_fingerprint"])
    for split in SPLITS:
        verify(out / split)


def _check_source(out: Path | epath.Path, task: StreamedTask[Any], fingerprint: str) -> None:
    if source_fingerprint(task) != fingerprint:
        raise UserError(
            f"{out} was begun with other {task.items} than data.source = {task.data.source!r} holds now; choose another --out"
        )


def _staging(out: Path) -> Path:
    return out / "staging"


def _stage(out: Path, task: StreamedTask[Any], per_shard: int, log: Log) -> Staged:
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


@dataclasses.dataclass(frozen=True)
class _TrainingTexts:
    """The texts of the training chunks, with one chunk in memory at a time. It can be iterated over
    again.
    """

    out: Path
    task: StreamedTask[Any]
    chunks: tuple[Chunk, ...]

    def __iter__(self) -> Iterator[str]:
        for chunk in self.chunks:
            if chunk.split == TRAIN:
                for item in read_chunk(self.task, _staging(self.out), chunk):
                    yield from item


def _tokenizer(out: Path, task: StreamedTask[Any], staged: Staged, log: Log) -> Any:
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


def _clear(out: Path) -> None:
    """Removes what only an unfinished preparation needs. After a kill the next start does it."""
    for split in SPLITS:
        clear_notes(out / split)
    shutil.rmtree(_staging(out), ignore_errors=True)


def _names_in(folder: epath.Path) -> set[str]:
    """The names of all objects in a folder of a bucket."""
    try:
        with bucket_objects(folder) as objects:
            return {name.removeprefix(str(folder).removeprefix("gs://")).lstrip("/") for name in objects.find(str(folder))}
    except OSError as error:
        raise UserError(f"cannot read {folder}: {reason(error)}; check the bucket") from error


def upload(folder: Path, out: epath.Path) -> None:
    """Copies a finished prepared folder to a bucket, the indices last: training's after all else.

    Objects that are there with the same bytes are left as they are.

    Raises:
      UserError: the bucket cannot be written to, or has other bytes afterwards.
    """
    last = [folder / split / INDEX_FILE for split in reversed(SPLITS)]
    try:
        with bucket_objects(out) as objects:
            put = functools.partial(_upload_file, objects, folder, out)
            in_threads(put, [path for path in folder.rglob("*") if path.is_file() and path not in last])
            for path in last:
                put(path)
    except OSError as error:
        raise UserError(f"cannot write {out}: {reason(error)}; check the bucket, and run the same command again") from error


def _upload_file(objects: Any, folder: Path, out: epath.Path, path: Path) -> None:
    target = str(out / path.relative_to(folder).as_posix())
    with open(path, "rb") as file:
        digest = base64.b64encode(hashlib.file_digest(file, "md5").digest()).decode()
    if objects.exists(target) and objects.info(target).get("md5Hash") == digest:
        return
    # Not put_file: its request for small files loses a carriage return at their end.
    with open(path, "rb") as file, objects.open(target, "wb", block_size=_UPLOAD_BYTES) as stored:
        shutil.copyfileobj(file, stored)
    if objects.info(target).get("md5Hash") != digest:
        raise UserError(f"{target} has other bytes than {path}, from which it was written; run the same command again")


def _digest(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
