"""What watches a run: its clock, profiles, and the watchdog in processes of its own."""

from __future__ import annotations

import functools
import os

import jax
import pytest
from etils import epath
from msgspec.structs import replace

from mhsh.storage.run_folder import RunFolder
from mhsh.training import watching
from mhsh.training.sharding import put_batch
from mhsh.training.watching import PHASES, Clock, Profiler, Watchdog
from tests.forks import Fork
from tests.training.batches import random_batch
from tests.training.states import ONE, fresh_state, mesh_of, train_step_of

NOTHING = dict.fromkeys((*PHASES, "repeated"), 0.0)


@pytest.fixture
def pass_time(monkeypatch):
    """pass_time(3.0): three seconds later."""
    now = [100.0]
    monkeypatch.setattr(watching.time, "monotonic", lambda: now[0])

    def later(seconds: float) -> None:
        now[0] += seconds

    return later


# Wall time: every second has one phase.


def test_a_second_counts_once_for_the_innermost_phase(pass_time):
    run = Clock()
    run.add({"training": 0.5, "repeated": 0.5})  # of an earlier process
    pass_time(1.0)
    with run.phase("training"):
        pass_time(10.0)
        with run.phase("evaluating"):
            pass_time(4.0)
            with run.phase("compiling"):
                pass_time(2.0)
            pass_time(1.0)
        with pytest.raises(RuntimeError), run.phase("saving"):
            pass_time(3.0)
            raise RuntimeError
        pass_time(9.5)
        seen = run.seconds()
    assert seen == NOTHING | {
        "preparing": 1.0,
        "training": 20.0,
        "evaluating": 5.0,
        "compiling": 2.0,
        "saving": 3.0,
        "repeated": 0.5,
    }


def test_waiting_is_the_time_until_an_item_is_there_and_part_of_training(pass_time):
    def items():
        pass_time(2.0)
        yield "a"
        pass_time(3.0)
        yield "b"
        pass_time(0.5)

    run = Clock()
    with run.phase("training"):
        for _ in run.time_waits(items()):
            pass_time(7.0)
            with run.phase("saving"):
                pass_time(100.0)
    assert (run.seconds()["waiting"], run.seconds()["training"], run.training_seconds()) == (5.5, 14.0, 19.5)


# Profiles.


def test_steps_are_traced_unless_the_run_is_resumed_amid_them(make_config, tmp_path, capsys):
    config = make_config("bert", "2l8h", **{"train.profile_steps": "2:3"})
    RunFolder.open_for_training(tmp_path / "run", config)
    step, state = train_step_of(replace(config, train=replace(config.train, profile_steps=""))), fresh_state(config)
    batch = put_batch(random_batch(config, config.train.batch_size), mesh_of(*ONE))
    session = tmp_path / "run" / "profile" / "plugins" / "profile" / "steps_2_to_3"
    for first in (3, 1):
        profiler = Profiler(config.train, epath.Path(tmp_path / "run"), Clock(), print)
        for number in range(first, 5):
            profiler.before_step(number, functools.partial(jax.block_until_ready, state))
            state, _ = step(state, batch)
            profiler.after_step(number, functools.partial(jax.block_until_ready, state))
        assert session.exists() == (first == 1)
    assert {file.name for file in session.iterdir()} == {"process_0.xplane.pb", "process_0.trace.json.gz"}
    resumed, traced = capsys.readouterr().out.splitlines()
    assert resumed == "no profile: the run was resumed after step 2"
    assert traced.startswith(f"profile of steps 2 to 3: {tmp_path / 'run'}/profile")


# The watchdog ends what hangs, and nothing else.


WATCHED = """
import contextlib
import os
import signal
import subprocess
import time
from mhsh.training.watching import Clock, Watchdog
def stop_for(seconds):
    subprocess.Popen(["sh", "-c", f"sleep {{seconds}}; kill -CONT {{os.getpid()}}"])
    os.kill(os.getpid(), signal.SIGSTOP)
Watchdog.LEAST_SECONDS = 1.0
dog = Watchdog({seconds})
run = Clock(dog.on_phase)
with contextlib.closing(dog):
{body}
time.sleep(2)
print("end")
"""
HANGS = {
    "longer than given": (1, "  with run.phase('training'): time.sleep(30)"),
    "longer than is measured": (0, "  with run.phase('training'):\n    dog.on_progress()\n    time.sleep(30)"),
    "in data": (1, "  with run.phase('training'), run.phase('waiting'): time.sleep(30)"),
    "after a save": (1, "  with run.phase('training'):\n    with run.phase('saving'): time.sleep(2)\n    time.sleep(30)"),
}
LIVES = {
    "first step": (0, "  with run.phase('training'): time.sleep(3)"),
    "works": (4, "  with run.phase('training'):\n    for _ in range(10):\n      time.sleep(0.5)\n      dog.on_progress()"),
    "saves": (1, "  with run.phase('training'), run.phase('saving'): time.sleep(3)"),
    "before and after": (1, "  time.sleep(2)\n  with run.phase('training'): pass"),
    "stopped": (3, "  with run.phase('training'):\n    stop_for(5)\n    time.sleep(0.5)\n    dog.on_progress()"),
    "stopped within the longest step": (
        0,
        "  with run.phase('training'):\n    stop_for(3)\n    dog.on_progress()\n    assert dog.limit() < 20",
    ),
}


def test_a_process_that_hangs_ends_with_its_stacks_and_one_that_works_goes_on():
    """All at once, for most of their time is waiting."""
    codes = {name: WATCHED.format(seconds=seconds, body=body) for name, (seconds, body) in (HANGS | LIVES).items()}
    processes = {name: Fork(["-c", code]) for name, code in codes.items()}
    for name, process in processes.items():
        out, err = process.communicate(timeout=60)
        if name in LIVES:
            assert (process.returncode, out, err) == (0, "end\n", ""), name
        else:
            assert (process.returncode, out) == (os.EX_TEMPFAIL, ""), name
            assert err.startswith("mhsh: nothing was done for 1 s: this process hangs; run the same command again"), name
            assert 'File "<string>", line' in err, name


def test_the_limit_is_a_multiple_of_the_longest_step(pass_time):
    dog = Watchdog(0)
    assert dog.limit() is None
    dog.on_phase("training")
    for seconds, limit in ((1, dog.LEAST_SECONDS), (40, 40 * dog.TIMES_LONGEST), (2, 40 * dog.TIMES_LONGEST)):
        for _ in range(seconds):
            pass_time(1.0)
            dog.on_wake()
        dog.on_progress()
        assert dog.limit() == limit
    dog.close()
    assert Watchdog(8).limit() == 8
