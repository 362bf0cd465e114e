"""A run that named its mesh goes on with other devices."""

from __future__ import annotations

import json
import os

import pytest

from mhsh.storage.run_folder import RunFolder
from mhsh.verdict.fairness import find_conditions
from mhsh.verdict.runs import load_runs
from tests.runs import CONFIG, cut_back, mhsh, rows_without_timings

CUT = [f"--config.{each}" for each in ("train.num_steps=6", "train.checkpoint_interval=3", "optimizer.warmup_steps=2")]
NO_DROPOUT = [f"--config.model.{name}_dropout=0" for name in ("hidden", "attention", "embedding")]
# Of the role clock.
CHANGES = {"mesh.fsdp": 1, "model.remat_policy": "full", "model.scan_unroll": 2, "train.accumulation_steps": 2}


def test_a_sharded_run_goes_on_on_one_device(corpus, tmp_path):
    """With micro-batches and another remat policy, up to rounding. A comparison says that its
    device seconds are those of two meshes.
    """
    sharded = tmp_path / "sharded"
    arguments = ("train", *CONFIG, *CUT, *NO_DROPOUT, "--config.mesh.data=1", "--config.mesh.fsdp=4", corpus)
    four = os.environ | {"XLA_FLAGS": "--xla_force_host_platform_device_count=4"}
    done = mhsh(*arguments, f"--workdir={sharded}", environment=four)
    assert done.returncode == 0, done.stderr
    resumed = cut_back(sharded, tmp_path / "resumed", step=3)
    config = (resumed / "config.json").read_bytes()
    done = mhsh("train", f"--workdir={resumed}", *(f"--config.{path}={value}" for path, value in CHANGES.items()))
    assert done.returncode == 0, done.stderr
    assert "resumed: after step 3: model.remat_policy = 'full' (before: 'none'), model.scan_unroll = 2 (before: 0), " in done.stdout
    for row, expected in zip(rows_without_timings(resumed), rows_without_timings(sharded), strict=True):
        for name, value in expected.items():
            rounds = row["step"] > 3 and name not in ("split", "batch")
            assert row[name] == (pytest.approx(value, rel=1e-5) if rounds else value), (row["step"], name)
    record = RunFolder(resumed).read_run()
    assert record["changed"] == {"3": CHANGES} and (resumed / "config.json").read_bytes() == config
    assert [(step, ran["mesh"]["fsdp"], ran["accumulation_steps"]) for step, ran in record["clock"].items()] == [
        ("0", 4, 1),
        ("3", 1, 2),
    ]
    runs = load_runs([sharded, resumed]).runs
    assert runs[0].config == runs[1].config
    unequal = {row.name: row for row in find_conditions([[run] for run in runs]) if not row.equal}
    first, second = unequal["changes in mid-run"].values
    assert first == "none" and "mesh.fsdp 4, after step 3 1" in second and "accumulation_steps 1, after step 3 2" in second
    assert json.loads((resumed / "config.json").read_text())["mesh"]["fsdp"] == 4
