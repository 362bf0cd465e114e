"""Real run folders for the tests of reports, written as training writes them."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from mhsh.config.schema import Config
from mhsh.report.compare.comparison import Comparison, compare
from mhsh.report.runs.loading import load_runs
from mhsh.run_folder import COUNTERS_FILE, Counters, RunFolder
from tests.report.sweeps import TRAINED_ALIKE, VALIDATED_ALIKE

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
        changed = {f"model.{field}": value for field, value in (model or {}).items()}
        changed |= {f"optimizer.{field}": value for field, value in (optimizer or {}).items()}
        changed |= {f"data.{field}": value for field, value in (data or {}).items()}
        changed |= {f"train.{field}": value for field, value in (training or {}).items()}
        # The heads are those named, not regrouped once more.
        config = make_config("bert", "2l8h", **{"model.heads_per_layer": 0}, **changed)
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


@pytest.fixture(scope="module")
def four_runs(make_shared_run: MakeRun) -> Comparison:
    """One good shallow run, a deep one on the plateau, one that diverges, and one whose metrics are
    cut short.
    """
    shallow = make_shared_run("shallow", [4 - 0.06 * i for i in range(30)], [3.4, 2.8, 2.25])
    deep = {"num_layers": 16, "num_heads": 1, "mlp_dim": 32}
    stuck = make_shared_run("stuck", [4, 3.2] + [2.98] * 28, [3.0, 2.99, 2.99], model=deep)
    nan = float("nan")
    diverged = make_shared_run("diverged", [3.5] * 15 + [nan] * 15, [3.4, nan, nan], model={"residual": "rezero"})
    cut = make_shared_run("cut", [4 - 0.05 * i for i in range(30)], [3.5, 2.9, 2.55], model={"residual": "pre_ln"})
    metrics = cut / "metrics.jsonl"
    metrics.write_bytes(metrics.read_bytes()[:-20])
    return compare(load_runs([shallow, stuck, diverged, cut]))


@pytest.fixture
def shapes(make_config: Callable[..., Config]) -> dict[str, Config]:
    """Of a bench file: the shallow config and the deep one."""
    fixed = {"model.heads_per_layer": 0}
    deep = fixed | {"model.num_layers": 16, "model.num_heads": 1, "model.mlp_dim": 32}
    return {"config": make_config("bert", "2l8h", **fixed), "against": make_config("bert", "2l8h", **deep)}


@pytest.fixture(scope="module")
def two_groups(make_shared_run: MakeRun) -> Comparison:
    """Three seeds of a shallow shape, and three of a deep one with another dropout; the deep one
    ends lower in each seed.
    """
    deep = {"num_layers": 16, "num_heads": 1, "mlp_dim": 32, "hidden_dropout": 0.0}
    paths = [
        make_shared_run(
            f"{name} seed {seed}",
            [4 - slope * i + 0.02 * seed for i in range(30)],
            [3.4, 2.8 + 0.01 * seed, 3 - 10 * slope + 0.01 * seed],
            model=model,
            training={"seed": seed},
        )
        for name, slope, model in (("shallow", 0.05, {}), ("deep", 0.06, deep))
        for seed in range(3)
    ]
    return compare(load_runs(paths))


@pytest.fixture(scope="module")
def fifty_runs(make_shared_run: MakeRun) -> Comparison:
    """Fifty rates, with names as a sweep gives them."""
    rates = [round(1e-3 + 1e-5 * place, 5) for place in range(50)]
    return compare(
        load_runs(
            [
                make_shared_run(
                    f"heads_per_layer-8_learning_rate-{rate:.5f}_scheme-admin",
                    [3.0, 2.5, 2.0 + 10 * rate],
                    [2.4 + rate],
                    optimizer={"learning_rate": rate},
                )
                for rate in rates
            ]
        )
    )
