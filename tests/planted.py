"""Run folders planted as training writes them."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from mhsh.config.schema import Config
from mhsh.storage.run_folder import COUNTERS_FILE, Counters, RunFolder
from tests.sweeps import TRAINED_ALIKE, VALIDATED_ALIKE

MakeRun = Callable[..., Path]


@pytest.fixture
def make_run(tmp_path: Path, make_config: Callable[..., Config]) -> MakeRun:
    """Writes run folders: `train` and `validation` are the losses logged, one a step and one every
    tenth step.
    """
    return run_maker(tmp_path, make_config)


@pytest.fixture(scope="module")
def make_shared_run(tmp_path_factory: pytest.TempPathFactory, make_config: Callable[..., Config]) -> MakeRun:
    """As make_run, for runs that all tests of a module read and none changes."""
    return run_maker(tmp_path_factory.mktemp("shared"), make_config)


def lineage_of(parent: Path, step: int) -> list[dict[str, Any]]:
    """What a run inherits that starts from a made one, with the counters of a checkpoint there."""
    path = parent / "checkpoints" / str(step) / COUNTERS_FILE
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(Counters(512 * step, 10**9 * step, 0.1 * step, step)._asdict()))
    return RunFolder(parent).lineage(step)


def run_maker(parent: Path, make_config: Callable[..., Config]) -> MakeRun:
    """A function that writes runs into `parent`."""

    def make(
        name: str,
        train: Sequence[float] = (),
        validation: Sequence[float] = (),
        *,
        model: dict[str, Any] | None = None,
        optimizer: dict[str, Any] | None = None,
        data: dict[str, Any] | None = None,
        training: dict[str, Any] | None = None,
        record: dict[str, Any] | None = None,
        with_record: bool = True,
    ) -> Path:
        sections = {"model": model, "optimizer": optimizer, "data": data, "train": training}
        changed = {f"{name}.{field}": value for name, fields in sections.items() for field, value in (fields or {}).items()}
        end = max(len(train), 10 * len(validation))
        if end:  # as a finished run's rows end
            changed = {"train.num_steps": end, "optimizer.warmup_steps": 0, "optimizer.decay_steps": 0} | changed
        # The heads are those named, not regrouped once more.
        config = make_config("bert", "2l8h", **{"model.heads_per_layer": 0}, **changed)
        with mock.patch("os.fsync"):  # these files need not survive a power cut
            folder = RunFolder.open_for_training(parent / name, config)
        if with_record:
            full = {
                "status": "finished",
                "parameters": {"encoder": 100_000, "total": 150_000},
                "data": {"fingerprint": "f00d", "unigram_entropy": 3.0},
                "versions": {"jax": "0.10.0"},
                "git_revision": "abc",
                **TRAINED_ALIKE,
                "compile_seconds": 1.5,
                "xla_flags": {"step": {}, "XLA_FLAGS": ""},
                "wall_seconds": {"training": 4.0, "compiling": 1.0},
            }
            folder.write_run(full | (record or {}))
        rows = [(step, "train", loss) for step, loss in enumerate(train, 1)]
        rows += [(10 * number, "validation", loss) for number, loss in enumerate(validation, 1)]
        logged = [
            {"step": step, "split": split, "tokens": 512 * step, "flops": 1e9 * step, "seconds": 0.1 * step, "loss": loss}
            | (VALIDATED_ALIKE if split == "validation" else {})
            for step, split, loss in sorted(rows, key=lambda row: row[:2])
        ]
        if logged:
            folder.append_metrics(logged)
        return folder.path

    return make
