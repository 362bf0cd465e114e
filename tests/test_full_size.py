"""The full-size models on real text: trained, saved, and resumed by another process. Slow: minutes
and 9 GB.
"""

from __future__ import annotations

import math
import shutil
import subprocess
from pathlib import Path

import jax
import pytest
from jax.sharding import AxisType

from mhsh.models.build import build_model
from mhsh.run_folder import RunFolder
from mhsh.training.optimizer import build_optimizer
from mhsh.training.sharding import MESH_AXES
from mhsh.training.state import abstract_state, example_batch
from mhsh.training.step import train_step
from tests.conftest import ROOT
from tests.runs import command, rows_without_timings


@pytest.mark.slow
@pytest.mark.realdata
@pytest.mark.parametrize("variant", ["24l16h", "384l1h"])
def test_a_full_size_model_trains_and_goes_on(real_data: Path, tmp_path: Path, variant: str):
    workdir = tmp_path / variant
    arguments = [
        "train",
        f"--config=bert:{variant}",
        f"--config.data.source=text:{real_data}/wikipedia-en/wiki.small.txt.xz",
        f"--config.data.vocab_path={real_data}/vocab/bert-base-uncased-vocab.txt",
        "--config.model.compute_dtype=float32",
        "--config.optimizer.warmup_steps=0",
        "--config.train.batch_size=2",
        "--config.train.num_steps=6",
        "--config.train.log_interval=1",
        "--config.train.eval_interval=0",
        "--config.train.eval_batches=1",
        "--config.train.checkpoint_interval=5",
        f"--workdir={workdir}",
    ]
    first = subprocess.run(command(*arguments), cwd=ROOT, capture_output=True, text=True, check=False)
    assert first.returncode == 0, first.stderr
    whole = rows_without_timings(workdir)
    losses = [row["loss"] for row in whole if row["split"] == "train"]
    assert all(math.isfinite(loss) for loss in losses)
    assert abs(losses[0] - math.log(30522)) < 0.5
    assert losses[4] < losses[0]

    # Another process takes the checkpoint of step 5, as if the first had been killed in its sixth
    # step.
    shutil.rmtree(RunFolder(workdir).checkpoints_path / "6")
    again = subprocess.run(command(*arguments), cwd=ROOT, capture_output=True, text=True, check=False)
    assert again.returncode == 0 and "checkpoint of step 5" in again.stdout, again.stderr
    assert rows_without_timings(workdir) == whole


def test_the_program_does_not_grow_with_depth(make_config):
    """384 layers lower to as many operations as 24: what is compiled is one layer, whatever their
    number.
    """
    sizes = {}
    for variant in ("24l16h", "384l1h"):
        config = make_config("bert", variant, **{"train.batch_size": 2})
        mesh = jax.make_mesh((1, 1, 1), MESH_AXES, axis_types=(AxisType.Auto,) * 3, devices=jax.devices()[:1])
        model, optimizer = build_model(config.model), build_optimizer(config)
        step = jax.jit(lambda s, b, c=config, m=model, o=optimizer: train_step(s, b, config=c, model=m, optimizer=o))
        text = step.lower(abstract_state(config, optimizer, mesh), example_batch(config, 2)).as_text()
        sizes[variant] = text.count(" = ")
    assert sizes["24l16h"] > 500
    assert abs(sizes["384l1h"] / sizes["24l16h"] - 1) < 0.01  # an axis of one head costs a reshape here and there
