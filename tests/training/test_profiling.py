"""A trace of real steps, and its summary by phase and part."""

from __future__ import annotations

import json

import pytest
from etils import epath
from msgspec.structs import replace

from mhsh.cli.main import main
from mhsh.run_folder import RunFolder
from mhsh.training.sharding import put_batch
from mhsh.training.tracking.profiling import Profiler, scope_of
from tests.training.batches import random_batch
from tests.training.states import ONE, fresh_state, mesh_of, train_step_of

LAYER = "jit(train_step)/jvp(Bert)/encoder/while/body/closed_call/layers"
BACK = "jit(train_step)/shard_map/transpose(jvp(Bert))/encoder/while/body/closed_call/checkpoint"


@pytest.mark.parametrize(
    ("path", "scope"),
    [
        (f"{LAYER}/feed_forward_residual/feed_forward/BTD,DF->BTF/dot_general", ("forward", "feed_forward")),
        (f"{LAYER}/attention_residual/attention/attention.attend/attention._softmax/div", ("forward", "attention")),
        (f"{LAYER}/attention_residual/norm/mul", ("forward", "residual sums and LayerNorm")),
        (f"{BACK}/layers/cross_attention_residual/cross_attention/add", ("backward", "cross_attention")),
        (f"{BACK}/rematted_computation/layers/attention_residual/attention/add", ("recomputed", "attention")),
        ("jit(train_step)/transpose(jvp(Bert))/embeddings/norm/reduce_sum", ("backward", "embeddings")),
        ("jit(train_step)/shard_map/gather_weights/all_gather", ("other", "gather_weights")),
        ("jit(train_step)/jvp(loss)/reduce_sum", ("forward", "loss")),
        ("jit(train_step)/optimizer/mul", ("optimizer", "all")),
        ("jit(train_step)/jit(_threefry_fold_in)/xor", ("other", "other")),
    ],
)
def test_where_an_operation_belongs(path, scope):
    assert scope_of(path) == scope


def test_steps_are_traced_and_summed_up(make_config, tmp_path, capsys):
    config = make_config("bert", "2l8h", **{"train.profile_steps": "2:3"})
    RunFolder.open_for_training(tmp_path / "run", config)
    step, state = train_step_of(replace(config, train=replace(config.train, profile_steps=""))), fresh_state(config)
    batch = put_batch(random_batch(config, config.train.batch_size), mesh_of(*ONE))
    profiler = Profiler(config.train, epath.Path(tmp_path / "run"), lambda: step.as_text() or "")
    for number in range(1, 5):
        if number == profiler.first:
            profiler.start(state)
        state, _ = step(state, batch)
        if number == profiler.last:
            assert f"{tmp_path / 'run'}/profile" in profiler.finish(state)
    session = tmp_path / "run" / "profile" / "plugins" / "profile" / "steps_2_to_3"
    assert {file.name for file in session.iterdir()} == {"process_0.xplane.pb", "process_0.trace.json.gz"}

    assert main(["profile", str(tmp_path / "run"), "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    parts = {(row["phase"], row["part"]): row["milliseconds"] for row in found["milliseconds_per_step"]}
    expected = {(phase, part) for phase in ("forward", "backward") for part in ("attention", "feed_forward", "embeddings")}
    assert expected | {("optimizer", "all")} <= parts.keys() and min(parts.values()) > 0
    assert main(["profile", str(tmp_path / "run")]) == 0
    assert "steps 2 to 3 on" in capsys.readouterr().out
    (session / "process_0.xplane.pb").unlink()
    assert main(["profile", str(tmp_path / "run")]) == 2
    assert "process_0.xplane.pb: No such file or directory" in capsys.readouterr().err


def test_a_run_that_is_resumed_in_the_middle_has_no_profile(make_config, tmp_path):
    train = make_config("bert", "2l8h", **{"train.profile_steps": "2:3"}).train
    assert Profiler(train, epath.Path(tmp_path), str).finish(None) == "no profile: the run was resumed after step 2"
    assert not list(tmp_path.iterdir())
