"""The folder of a run: config.json, run.json, metrics.jsonl, vocabulary, tensorboard/ and
checkpoints/.

Nothing here imports jax: reports read run folders on machines without it.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from etils import epath
from msgspec.structs import replace

from mhsh.config.fields import format_differences, free_fields
from mhsh.config.recorded import WRITER, check_version, current_values, from_record, to_record
from mhsh.config.resolve import from_dict, whole_run_as_start
from mhsh.config.schema import Config, TranslationDataConfig, to_dict
from mhsh.configs import override
from mhsh.encoding import check_text
from mhsh.errors import Unavailable, UserError
from mhsh.storage.bucket import GuardedObject, is_remote
from mhsh.storage.files import (
    MissingFile,
    absolute,
    check_checkpoints_path,
    expand_user,
    is_half_file,
    make_durable,
    make_folder,
    read_object,
    read_small_file,
    write_atomically,
)
from mhsh.storage.holder import HOLDER_FILE, Watch, hold_run
from mhsh.storage.imported import imported_checkpoint
from mhsh.storage.questions import exists, is_dir, marked_folders, names_in, paths_in
from mhsh.storage.rows import CutRows, Metrics, RowsFile, read_chunks, read_metrics
from mhsh.storage.run_record import FINISHED, check_record

CONFIG_FILE, RUN_FILE, METRICS_FILE = "config.json", "run.json", "metrics.jsonl"
COUNTERS_FILE = "counters.json"  # of a checkpoint
COMMIT_MARK = "commit_success.txt"  # Orbax's
PROFILE_FOLDER = "profile"
WORDPIECE_FILE = "vocab.txt"  # a token a line
TOKENIZER_FILE = "tokenizer.json"  # the tokenizers library's own
_MOST_COUNTED = 1e40  # more FLOPs than any run has


class Counters(NamedTuple):
    """The counters of a run up to a step. They are in its checkpoint: no lost row changes them."""

    tokens: int = 0
    flops: int = 0
    seconds: float = 0.0  # of training, without evaluation and saving
    rows: int = 0  # of metrics.jsonl


class RunFolder:
    """The folder of one run, local or in a bucket (gs://). Files are replaced atomically, or whole
    lines are appended.
    """

    def __init__(self, path: epath.PathLike) -> None:
        """Raises UserError where `path` is not text, or in a bucket that cannot be reached."""
        check_text(str(path), "the run folder's path", "rename it, or the folder that it is in, or choose another")
        self.path = expand_user(path)
        self.is_remote = is_remote(path)  # in a bucket
        self.checkpoints_path = self.path / "checkpoints"  # Orbax's, with a folder for each saved step
        self.damaged_path = self.path / "damaged_checkpoints"  # set aside: STEP, or STEP.NUMBER from the second time on
        self.tensorboard_path = self.path / "tensorboard"  # of the event files
        self._rows, self._record = RowsFile(self.path / METRICS_FILE), GuardedObject(str(self.path / RUN_FILE))

    @property
    def name(self) -> str:
        """The folder's own name, also where it was given as `.` or `..`."""
        return absolute(self.path).name

    @classmethod
    def open_for_training(cls, path: epath.PathLike, config: Config) -> RunFolder:
        """Creates the folder for `config`, or opens it if it holds a run that goes on with it: of
        the same config but for `free_fields`, or with fewer steps under a schedule that does not
        depend on their number. Raises UserError where the folder holds a run of another config or
        something else, or cannot be written.
        """
        folder = cls.make(path)
        if folder._config_to_write(config) is not None:
            with folder.hold():
                folder.begin(config)
        return folder

    @classmethod
    def make(cls, path: epath.PathLike) -> RunFolder:
        """Makes the folder unless it exists. Raises UserError where it cannot be made, or cannot
        hold checkpoints.
        """
        folder = cls(path)
        check_checkpoints_path(folder.path, saves=True)
        try:
            make_folder(folder.path)
        except OSError as error:
            raise UserError(f"cannot make the run folder {path}: {error.strerror}; choose another --workdir") from error
        return folder

    def begin(self, config: Config) -> None:
        """Does what `open_for_training` does, inside `hold`."""
        written = self._config_to_write(config)
        if written is not None:
            write_atomically(self.path / CONFIG_FILE, _dump(to_record(written)))

    def _config_to_write(self, config: Config) -> Config | None:
        """The new config.json for `config`; None: it stays. Raises as `open_for_training`."""
        if self.check_takes(config):
            begun_with, steps = self.initial_config(), config.train.num_steps
            longer = replace(begun_with, train=replace(begun_with.train, num_steps=steps))
            return None if longer == begun_with else longer
        names = [name for name in names_in(self.path) if name != HOLDER_FILE and not is_half_file(name)]  # of no killed start
        if names and CONFIG_FILE not in names:
            raise UserError(f"{self.path} is not empty and holds no run; choose another --workdir")
        return config

    def check_takes(self, config: Config) -> bool:
        """Whether the folder holds a run. Raises UserError where it cannot go on with `config`."""
        has_begun = self.has_begun()
        if has_begun:
            check_goes_on(self.read_config(), config, self.path)
        return has_begun

    def hold(self, watch: Watch | None = None) -> contextlib.AbstractContextManager[str]:
        """Keeps other processes from the run; see `mhsh.storage.holder`."""
        return hold_run(self.path, watch)

    def initial_config(self) -> Config:
        """The config that the run began with: config.json. Raises UserError as `read_config`."""
        return from_record(self._read_json(CONFIG_FILE), str(self.path / CONFIG_FILE))

    def read_config(self, changes: Sequence[tuple[str, Any]] = ()) -> Config:
        """The config of the run as it went on last, with `changes` of `free_fields`, by path.
        Raises UserError where it is missing, unreadable or invalid, or a change is of another field
        or not allowed.
        """
        config = self.config_at(None)
        changed = from_dict(override(to_dict(config), changes, "--config."))
        refused = format_differences(config, changed, without=free_fields(config.model.objective))
        if refused:
            raise UserError(
                f"{self.path} is a run of another config ({refused}); leave out that flag: of a run only fields of the roles "
                "clock and bookkeeping change, such as data.source"
            )
        return changed

    def config_at(self, step: int | None) -> Config:
        """The config that trained `step` (None: with which the run went on last)."""
        config = self.initial_config()
        for values in self.changes(step).values():
            changes = current_values(values).items()
            config = from_dict(override(to_dict(config), changes, f"{self.path / 'run.json'}, changed: "))
        return config

    def changes(self, step: int | None) -> dict[str, dict[str, Any]]:
        """The values that changed when the run went on, by path, by the step after which they hold:
        those that hold before `step` (None: all).
        """
        changed = self.run_record().get("changed", {})
        return {at: changed[at] for at in sorted(changed, key=int) if step is None or int(at) < step}

    def read_run(self, *required: str) -> dict[str, Any]:
        """run.json: versions, devices, mesh, parameter counts, data fingerprint, omega, status.
        Raises UserError where it is missing or damaged, or has not all that is needed.
        """
        record = self._read_json(RUN_FILE)
        check_record(record, self.path / RUN_FILE, required)
        return record

    def run_record(self, *required: str) -> dict[str, Any]:
        """The record of `read_run`; empty where there is no run.json, as before the first step."""
        return self.read_run(*required) if self.has_run_record() else {}

    def lineage(self, step: int) -> list[dict[str, Any]]:
        """This run up to `step`, then the run that it started from, and so on: what a run that
        starts from it inherits.

        Each entry is {folder, step, tokens, flops, seconds, fingerprint, code, numerics, entries,
        imported, config}. `code` and `numerics` are what trained it, by the step after which that
        began, `entries` the user's schemes and optimizers with their files, `imported` names the
        checkpoint that it was made of. An imported checkpoint has None for all but folder, step,
        imported and config.
        """
        record = self.run_record("data", "code", "numerics")
        used = self.counters(step)
        own: dict[str, Any] = {"folder": str(self.path), "step": step}
        own |= {name: getattr(used, name, None) for name in ("tokens", "flops", "seconds")}
        own["fingerprint"] = record["data"].get("fingerprint") if record else None
        own["entries"] = record.get("entries", [])
        own["imported"] = imported_checkpoint(self.path, record)
        for name in ("code", "numerics"):
            own[name] = {begin: value for begin, value in record[name].items() if int(begin) < step} if record else None
        return [own | {"config": to_record(self.initial_config())}, *recorded_lineage(record)]

    def has_begun(self) -> bool:
        """Whether the folder holds more than a config: a run that failed before its first step has
        not begun.
        """
        names = names_in(self.path)
        traces = RUN_FILE in names or METRICS_FILE in names or ("checkpoints" in names and names_in(self.checkpoints_path))
        return CONFIG_FILE in names and bool(traces)

    def newest_checkpoint(self) -> int | None:
        """The newest committed step, or None."""
        return max(committed_steps(self.checkpoints_path), default=None)

    def check_checkpoints(self, accept_gap: bool = False) -> None:
        """Raises UserError where run.json names a newer checkpoint than there is: what was written
        since would be cut away and trained again. An older one will do to `accept_gap`, none not:
        all rows would be cut away.
        """
        record = self.run_record()
        # Before `checkpoint` was recorded, a finished run had that of its last step.
        finished = self.read_config().train.num_steps if record.get("status") == FINISHED else None
        wanted, newest = record.get("checkpoint", finished), self.newest_checkpoint()
        aside = [name.partition(".")[0] for name in names_in(self.damaged_path)]
        if not isinstance(wanted, int) or max([newest or 0, *(int(step) for step in aside if step.isdecimal())]) >= wanted:
            return
        if newest is None:
            raise UserError(
                f"{self.path} has trained to step {wanted} or further, and its checkpoints are gone; put them back from a copy, "
                "train in another --workdir, or begin again with --fresh, which moves its rows and run.json aside"
            )
        if accept_gap:
            return
        raise Unavailable(
            f"{self.checkpoints_path} has checkpoints up to step {newest}, and run.json names one of step {wanted}; wait until it "
            f"is there, or put it back from a copy; --accept-gap goes on from step {newest}"
        )

    def set_rows_aside(self) -> epath.Path | None:
        """Moves metrics.jsonl, run.json, the event files and the damaged checkpoints of a run
        without others into a folder of their own, so that it begins again. Returns that folder;
        None: there is nothing.
        Raises UserError where it has checkpoints, from which it goes on.
        """
        newest = self.newest_checkpoint()
        if newest is not None:
            raise UserError(
                f"--fresh is for a run whose checkpoints are gone, and {self.path} has one of step {newest}; leave it out, or "
                "choose another --workdir"
            )
        names = [name for name in names_in(self.path) if name in (METRICS_FILE, RUN_FILE, "tensorboard", self.damaged_path.name)]
        if not names:
            return None
        aside = self.path / "earlier" / str(len(names_in(self.path / "earlier")) + 1)
        aside.mkdir(parents=True)
        for name in names:
            (self.path / name).rename(aside / name)
        return aside

    def counters(self, step: int) -> Counters | None:
        """The counters of the checkpoint of `step`; None for an imported one.
        Raises UserError where the file is damaged.
        """
        path = self.checkpoints_path / str(step) / COUNTERS_FILE
        try:
            fields = read_object(path)
        except MissingFile:
            return None
        sound = all(type(value) in (int, float) and 0 <= value < _MOST_COUNTED for value in fields.values())
        if set(fields) != set(Counters._fields) or not sound:
            raise UserError(f"{path} is damaged: it lacks the counters of a checkpoint; put it back from a copy")
        return Counters(**fields)

    def has_run_record(self) -> bool:
        """Whether run.json exists. Training writes it before its first step."""
        return exists(self.path / RUN_FILE)

    def has_vocabulary(self) -> bool:
        """Whether the folder's vocabulary is the run's, recorded or imported, and not what a failed
        start left.
        """
        return self.has_run_record() or self.newest_checkpoint() is not None

    def vocabulary_hash(self, config: Config) -> str | None:
        """The SHA-256, in hex, of the vocabulary's file; None if it does not exist."""
        path = self.path / vocab_file(config)
        return hashlib.sha256(read_small_file(path)).hexdigest() if exists(path) else None

    def vocabulary(self, config: Config) -> epath.Path | None:
        """The vocabulary's file; None if there is none yet (see `has_vocabulary`). Raises UserError
        where it is not the one that run.json records.
        """
        if self.has_run_record() and self.read_run().get("vocabulary") != self.vocabulary_hash(config):
            raise UserError(
                f"{self.path / vocab_file(config)} is missing, or is not the vocabulary that the run began with; put it back from "
                "a copy, or train again in another --workdir"
            )
        return self.path / vocab_file(config) if self.has_vocabulary() else None

    def write_run(self, record: Mapping[str, Any]) -> None:
        """Replaces run.json. In a bucket, raises LostRun where another process has taken it."""
        content = _dump({**WRITER, **record, **WRITER})
        if not self.is_remote:
            write_atomically(self.path / RUN_FILE, content)
            return
        with self._record.acquire() as record_object:
            record_object.write(content.encode())

    def append_metrics(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Appends rows, which need `step` and `split`; see `RowsFile.append`."""
        self._rows.append(rows)

    def read_metrics(self) -> Metrics:
        """All rows up to the first damaged line. `problem` names that line, or a missing file."""
        return read_metrics(self.path / METRICS_FILE)

    def rows(self) -> Iterator[dict[str, Any]]:
        """The rows of `read_metrics`, one after the other; none if the file does not exist."""
        with contextlib.suppress(FileNotFoundError):
            for _, rows in read_chunks(self.path / METRICS_FILE):
                yield from itertools.takewhile(lambda row: row is not None, rows)
                if None in rows:
                    return

    def sync_metrics(self) -> None:
        """Flushes metrics.jsonl to the disk."""
        make_durable(self.path / METRICS_FILE)

    def cut_metrics(self, step: int, expected: int, accept_gap: bool) -> CutRows:
        """Drops the rows after `step`, which a resumed run logs again; see `RowsFile.cut`."""
        return self._rows.cut(step, expected, accept_gap)

    def _read_json(self, name: str) -> dict[str, Any]:
        try:
            fields = read_object(self.path / name)
        except MissingFile:
            below = None if is_remote(self.path) else next(_runs_below(self.path), None)
            remedy = f"give one of the runs below it, as {below}" if below else "give the folder that --workdir named"
            raise UserError(f"{self.path} holds no run: {name} is missing; {remedy}") from None
        check_version(fields, str(self.path / name))
        return fields


def _runs_below(folder: epath.Path, levels: int = 2) -> Iterator[epath.Path]:
    """The runs in a folder that holds several: those of a fine-tuning, of its rates, of a sweep."""
    for path in filter(is_dir, paths_in(folder)):
        if RunFolder(path).has_begun():
            yield path
        elif levels > 1:
            yield from _runs_below(path, levels - 1)


def check_goes_on(before: Config, config: Config, path: epath.PathLike) -> None:
    """Raises UserError unless the run in `path` may go on with `config`: with other values of
    `free_fields`, and more steps under a schedule that does not depend on their number.
    """
    steps, more = before.train.num_steps, config.train.num_steps
    free = [*free_fields(before.model.objective), *(["train.num_steps"] if more >= steps else [])]
    refused = format_differences(before, config, without=free)
    if refused:
        raise UserError(
            f"{path} holds a run of another config ({refused}); choose another --workdir, or keep what decides its losses: "
            "fields of the roles clock and bookkeeping may change"
        )
    if more > steps and (config.optimizer.schedule in ("linear", "cosine") or config.optimizer.decay_steps):
        raise UserError(
            f"{path} cannot be extended from {steps} to {more} steps: its learning rate (optimizer.schedule = "
            f"{config.optimizer.schedule!r}) ends with them; start another run from it with "
            f"--config.train.start_from={shlex.quote(whole_run_as_start(str(path)))}"
        )


def committed_steps(checkpoints: epath.PathLike) -> list[int]:
    """The steps whose checkpoints are whole, ascending, in a folder of checkpoints. A commit gives
    one its name on a disk, and a mark in a bucket.
    """
    if is_remote(checkpoints):
        names = marked_folders(checkpoints, COMMIT_MARK)
    else:
        names = [name for name in names_in(checkpoints) if name.isdecimal() and is_dir(Path(checkpoints) / name)]
    return sorted(int(name) for name in names if name.isdecimal())


def recorded_lineage(record: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The runs that a run started from, nearest first, by its run.json; see `RunFolder.lineage`."""
    start = record.get("started_from")
    return start["lineage"] if start else []


def vocab_file(config: Config) -> str:
    """The file of a run folder that holds the vocabulary."""
    return TOKENIZER_FILE if isinstance(config.data, TranslationDataConfig) else WORDPIECE_FILE


def _dump(value: Mapping[str, Any]) -> str:
    return json.dumps(value, indent=2, allow_nan=False) + "\n"
