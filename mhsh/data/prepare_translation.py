"""Translation rows on disk: a source read once, cleaned, one vocabulary, and every chunk of pairs packed into a shard of its own.

The folder that comes of it is what data.source = arrayrecord:DIR reads: prepare.json (of what it was made), tokenizer.json, and
the rows of train/ and validation/ (see shards.py). A killed preparation goes on from its whole shards; its end has the same bytes.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import functools
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers

from mhsh.config import Config, TranslationDataConfig
from mhsh.data.shards import (
    INDEX_FILE,
    Shard,
    clear_half_files,
    clear_notes,
    finished_shard,
    open_rows,
    replacing,
    write_index,
    write_json,
    write_shard,
)
from mhsh.data.staging import SPLITS, TRAIN, Chunk, Staged, read_chunk, read_staged, read_texts, source_fingerprint, stage
from mhsh.data.translation_rows import encode_pairs, rows_by_length
from mhsh.data.translation_tokenizer import TranslationTokenizer, fitting_tokenizer, load_tokenizer, train_tokenizer
from mhsh.data.unigram import entropy_of_counts
from mhsh.errors import UserError
from mhsh.run_folder import TOKENIZER_FILE

_JOB_FILE = "prepare.json"
_FORMAT = 1

Say = Callable[[str], None]  # a line about how far it is
# Runs a chunk's work for each of so many chunks, and says which are done: workers.run_chunks, or the same on Beam.
RunChunks = Callable[[Callable[[int], None], range], None]


def prepare(config: Config, out: Path, pairs_per_shard: int, run: RunChunks, say: Say) -> dict[str, Any]:
    """Makes `out` hold the rows of `config`, whatever part of it is there already; the bytes hang on config, source and
    `pairs_per_shard` alone.

    Returns:
      what was read and left out, and under the name of each split its pairs, tokens, rows and padding.

    Raises:
      UserError: whatever is wrong with the source or the vocabulary; `out` belongs to another job, or its files are damaged.
    """
    data = config.data
    if not isinstance(data, TranslationDataConfig):
        raise UserError(
            f"mhsh prepare makes rows for model.objective = 'translation'; the text of {config.model.objective!r} is packed when "
            "training starts"
        )
    if pairs_per_shard < 1:
        raise UserError(f"--pairs-per-shard={pairs_per_shard} must be 1 or more")
    job = _job(config, data, pairs_per_shard)
    with _claimed(out, job):
        if _is_complete(out):
            say(f"{out} is finished; comparing it with its source and its hashes")
            _check_source(out, data, open_rows(out / TRAIN).meta["source_fingerprint"])
            _clear(out)
            for split in SPLITS:
                open_rows(out / split).verify()
        else:
            staged = _stage(out, data, pairs_per_shard, say)
            tokenizer = _vocabulary(out, data, config.model.vocab_size, staged, say)
            work = EncodeChunk(out, data, staged.chunks, _digest(job | {"tokenizer": tokenizer.fingerprint}))
            say(f"encoding {len(staged.chunks)} chunks with {tokenizer.vocab_size} tokens")
            run(work, range(len(staged.chunks)))
            _close(out, work, staged, tokenizer)
            _clear(out)
        return open_rows(out / TRAIN).meta["counts"]


@dataclasses.dataclass(frozen=True)
class EncodeChunk:
    """The work on one chunk of pairs: its shard, unless it is there; called with the chunk's place among all."""

    out: Path
    data: TranslationDataConfig
    chunks: tuple[Chunk, ...]
    job: str

    def __call__(self, place: int) -> None:
        """Leaves the shard of chunk `place` in the folder of its split."""
        chunk = self.chunks[place]
        if self.finished(chunk) is not None:
            return
        tokenizer = _loaded(self.out / TOKENIZER_FILE)
        encoded, counts = encode_pairs(tokenizer, read_chunk(_staging(self.out), chunk), self.data)
        groups = [*rows_by_length(encoded, self.data).values()]
        note = {
            **dataclasses.asdict(counts),
            "rows": sum(len(rows["inputs"]) for rows in groups),
            "places": sum(rows["inputs"].size for rows in groups),
            "target_counts": np.bincount(encoded.target.tokens, minlength=tokenizer.vocab_size).tolist(),
        }
        write_shard(self.out / chunk.split, chunk.number, groups, self._job_of(chunk), note)

    def finished(self, chunk: Chunk) -> tuple[Shard, dict[str, Any]] | None:
        """The chunk's shard and note, where it is there whole."""
        return finished_shard(self.out / chunk.split, chunk.number, self._job_of(chunk))

    def _job_of(self, chunk: Chunk) -> str:
        return _digest({"job": self.job, "pairs": chunk.sha256})


@functools.lru_cache(maxsize=1)
def _loaded(path: Path) -> TranslationTokenizer:
    return load_tokenizer(path)


def _job(config: Config, data: TranslationDataConfig, pairs_per_shard: int) -> dict[str, Any]:
    """All that decides the bytes, but for what the source holds."""
    fields = dataclasses.asdict(data)
    if data.vocab_path:
        fields["vocab_path"] = load_tokenizer(Path(data.vocab_path).expanduser()).fingerprint
    return {
        "format": _FORMAT,
        "tokenizers": tokenizers.__version__,
        "pairs_per_shard": pairs_per_shard,
        "model.vocab_size": config.model.vocab_size,
        **{f"data.{name}": value for name, value in fields.items()},
    }


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
            _check_job(out, json.loads(path.read_text(encoding="utf-8")), job)
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


def _check_source(out: Path, data: TranslationDataConfig, there: str) -> None:
    if source_fingerprint(data) != there:
        raise UserError(
            f"{out} was begun with other sentence pairs than data.source = {data.source!r} holds now; choose another --out"
        )


def _staging(out: Path) -> Path:
    return out / "staging"


def _stage(out: Path, data: TranslationDataConfig, pairs_per_shard: int, say: Say) -> Staged:
    folder = _staging(out)
    staged = read_staged(folder)
    if staged is not None:
        say("going on; comparing the source with what was read before")
        _check_source(out, data, staged.source)
    else:
        say(f"reading {data.source}")
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        staged = stage(data, folder, pairs_per_shard)
    for split in SPLITS:
        (out / split).mkdir(exist_ok=True)
        clear_half_files(out / split)
    return staged


def _vocabulary(out: Path, data: TranslationDataConfig, vocab_size: int, staged: Staged, say: Say) -> TranslationTokenizer:
    path = out / TOKENIZER_FILE
    if not path.exists():
        if data.vocab_path:
            tokenizer = fitting_tokenizer(Path(data.vocab_path).expanduser(), data.tokenizer, vocab_size)
        else:
            say(f"learning a {data.tokenizer} vocabulary")
            chunks = [chunk for chunk in staged.chunks if chunk.split == TRAIN]
            tokenizer = train_tokenizer(data.tokenizer, read_texts(_staging(out), chunks), vocab_size)
        with replacing(path) as temporary:
            tokenizer.save(temporary)
    return load_tokenizer(path)


def _close(out: Path, work: EncodeChunk, staged: Staged, tokenizer: TranslationTokenizer) -> None:
    """Writes the indices of both splits, whose shards are all there."""
    shards: dict[str, list[Shard]] = {split: [] for split in SPLITS}
    totals: dict[str, dict[str, Any]] = {split: {} for split in SPLITS}
    for chunk in staged.chunks:
        finished = work.finished(chunk)
        if finished is None:
            raise UserError(f"the shard of {chunk.name} is missing in {out / chunk.split}; run the same command again")
        shards[chunk.split].append(finished[0])
        for name, value in finished[1].items():
            totals[chunk.split][name] = totals[chunk.split].get(name, 0) + np.array(value)
    entropy = {split: entropy_of_counts(total.pop("target_counts")) for split, total in totals.items()}
    meta = {
        "layout": work.data.layout,
        "sequence_length": work.data.sequence_length,
        "vocab_size": tokenizer.vocab_size,
        "tokenizer_fingerprint": tokenizer.fingerprint,
        "source_fingerprint": staged.source,
        "counts": staged.counts | {split: _split_counts(total, split, work.data) for split, total in totals.items()},
    }
    # Training last: a folder with both indices is complete.
    for split in reversed(SPLITS):
        write_index(out / split, shards[split], meta | {"unigram_entropy": entropy[split]})


def _split_counts(total: dict[str, Any], split: str, data: TranslationDataConfig) -> dict[str, Any]:
    if not total["pairs"]:
        raise UserError(
            f"data.source = {data.source!r} leaves no pair for {split}: {total['too_long']} are longer than data.sequence_length = "
            f"{data.sequence_length} and {total['unlike']} differ by more than data.max_length_ratio = {data.max_length_ratio}"
        )
    counts = {name: int(value) for name, value in total.items()}
    places = counts.pop("places")
    return counts | {f"{side}_padding_fraction": 1 - counts[f"{side}_tokens"] / places for side in ("source", "target")}


def _is_complete(out: Path) -> bool:
    return all((out / split / INDEX_FILE).exists() for split in SPLITS)


def _clear(out: Path) -> None:
    """Removes what only an unfinished preparation needs; a kill in the middle leaves it to the next one."""
    for split in SPLITS:
        clear_notes(out / split)
    shutil.rmtree(_staging(out), ignore_errors=True)


def _digest(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
