"""A trace of real steps."""

from __future__ import annotations

from etils import epath
from msgspec.structs import replace

from mhsh.run_folder import RunFolder
from mhsh.training.sharding import put_batch
from mhsh.training.tracking.profiling import Profiler
from tests.training.batches import random_batch
from tests.training.states import ONE, fresh_state, mesh_of, train_step_of


def test_steps_are_traced(make_config, tmp_path):
    config = make_config("bert", "2l8h", **{"train.profile_steps": "2:3"})
    RunFolder.open_for_training(tmp_path / "run", config)
    step, state = train_step_of(replace(config, train=replace(config.train, profile_steps=""))), fresh_state(config)
    batch = put_batch(random_batch(config, config.train.batch_size), mesh_of(*ONE))
    profiler = Profiler(config.train, epath.Path(tmp_path / "run"))
    for number in range(1, 5):
        if number == profiler.first:
            profiler.start(state)
        state, _ = step(state, batch)
        if number == profiler.last:
            assert f"{tmp_path / 'run'}/profile" in profiler.finish(state)
    session = tmp_path / "run" / "profile" / "plugins" / "profile" / "steps_2_to_3"
    assert {file.name for file in session.iterdir()} == {"process_0.xplane.pb", "process_0.trace.json.gz"}


def test_a_run_that_is_resumed_in_the_middle_has_no_profile(make_config, tmp_path):
    train = make_config("bert", "2l8h", **{"train.profile_steps": "2:3"}).train
    assert Profiler(train, epath.Path(tmp_path)).finish(None) == "no profile: the run was resumed after step 2"
    assert not list(tmp_path.iterdir())
