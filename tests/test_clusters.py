"""Runs of several processes: they equal a run of one, are compared before they start, and stop
together.
"""

from __future__ import annotations

import resource
import shutil
import signal
import time
from pathlib import Path

import numpy as np
import pytest

from mhsh.storage.run_folder import RunFolder
from tests.clusters import finish, free_port, place, start
from tests.forks import Fork
from tests.runs import CONFIG, cut_back, final_state, mhsh, rows_without_timings, wait_for_step

TOLERANCE = 1e-5


def assert_same_curve(folder: Path, reference: Path) -> None:
    rows, expected = rows_without_timings(folder), rows_without_timings(reference)
    assert [(row["step"], row["split"], row.get("batch")) for row in rows] == [
        (row["step"], row["split"], row.get("batch")) for row in expected
    ]
    for row, wanted in zip(rows, expected, strict=True):
        assert row["loss"] == pytest.approx(wanted["loss"], rel=TOLERANCE)
        assert row["tokens"] == wanted["tokens"]


def assert_same_run(folder: Path, reference: Path) -> None:
    assert_same_curve(folder, reference)
    for a, b in zip(final_state(folder), final_state(reference), strict=True):
        assert np.abs(a - b).max() <= 1e-4 * max(np.abs(b).max(), 1e-3)


def kill_one(arguments: list[str], victim: int, step: int) -> None:
    """Kills one of two processes at a step; the other says so."""
    processes = start(2, arguments)
    wait_for_step(Path(arguments[-1].removeprefix("--workdir=")), step, processes[0])
    processes[victim].kill()
    begin = time.monotonic()
    processes[1 - victim].wait(timeout=60)
    assert time.monotonic() - begin < 10
    results = finish(processes)
    status, _, err = results[1 - victim]
    lines = [line for line in err.splitlines() if "Gloo" not in line]
    assert (status, len(lines)) == (75, 1), results
    assert lines[0].startswith(f"mhsh: process {victim} of this run is lost; run the same command again")


GATHERED = ["--config.mesh.data=1", "--config.model.remat_policy=gathered_groups"]


@pytest.mark.slow  # by default: the next test, which goes on with another number
@pytest.mark.parametrize(("count", "more"), [(2, []), (4, []), (4, GATHERED)])
def test_several_processes_equal_one(unbroken, corpus, tmp_path, count, more):
    results = finish(start(count, ["train", *CONFIG, corpus, *more, f"--workdir={tmp_path / 'run'}"]))
    assert [status for status, _, _ in results] == [0] * count, results
    assert_same_run(tmp_path / "run", unbroken)


@pytest.mark.parametrize(
    ("count", "back", "mesh"),
    [
        (2, 1, "fsdp=1"),
        *(pytest.param(*more, marks=pytest.mark.slow) for more in ((2, 1, "data=1"), (4, 2, "fsdp=1"), (4, 2, "data=1"))),
    ],
)
def test_stopped_and_killed_on_several_gone_on_with_fewer(unbroken, corpus, tmp_path, count, back, mesh):
    """Over `data`, and over `fsdp`: the other axis takes the devices. Then one of two is killed."""
    arguments = ["train", *CONFIG, corpus, f"--config.mesh.{mesh}", f"--workdir={tmp_path / 'run'}"]
    processes = start(count, arguments)
    wait_for_step(tmp_path / "run", 4, processes[0])
    processes[-1].send_signal(signal.SIGTERM)  # one is asked, all stop
    results = finish(processes)
    assert [status for status, _, _ in results] == [75] * count, results
    assert rows_without_timings(tmp_path / "run")[-1]["step"] < 36
    if count == 2:
        kill_one(arguments, victim=0, step=13)
    if back == 1:
        again = mhsh(*arguments)
        assert again.returncode == 0, again.stderr
    else:
        assert [status for status, _, _ in finish(start(back, arguments))] == [0] * back
    assert_same_run(tmp_path / "run", unbroken)


def test_a_process_that_differs_is_named_by_all(corpus, tmp_path):
    arguments = ["train", *CONFIG, corpus, f"--workdir={tmp_path / 'run'}"]
    results = finish(start(2, arguments, extra={1: ["--config.train.seed=1"]}))
    for status, _, err in results:
        assert status == 2
        assert "process 1 has config" in err
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


@pytest.mark.slow
def test_when_one_freezes_the_other_ends_with_its_stacks(corpus, tmp_path):
    processes = start(2, ["train", *CONFIG, corpus, f"--workdir={tmp_path / 'run'}", "--config.train.hang_seconds=8"])
    wait_for_step(tmp_path / "run", 2, processes[0])
    processes[1].send_signal(signal.SIGSTOP)
    out, err = processes[0].communicate(timeout=120)
    processes[1].kill()
    processes[1].communicate()
    assert processes[0].returncode == 75, out
    assert "nothing was done for 8 s: this process hangs" in err and "loop.py" in err
    assert RunFolder(tmp_path / "run").read_metrics().count


@pytest.mark.slow
def test_one_that_is_stopped_for_minutes_and_one_that_comes_late_lose_nothing(unbroken, corpus, tmp_path):
    """Process 0, where the others meet, starts last. jax alone would abort it when the other was
    silent for 100 s. The one that wakes may take its own connections for dead.
    """
    arguments = ["train", *CONFIG, corpus, f"--workdir={tmp_path / 'run'}"]
    late, first = [[*arguments, *joins] for joins in place(2)]
    processes = [Fork(first)]
    time.sleep(20)
    processes.append(Fork(late))
    wait_for_step(tmp_path / "run", 2, processes[1])
    processes[0].send_signal(signal.SIGSTOP)
    time.sleep(120)
    assert processes[1].poll() is None
    processes[0].send_signal(signal.SIGCONT)
    _, (status, _, err) = finish(processes)
    if status:
        assert status == 75 and "mhsh: process 1 of this run is lost; run the same command again" in err, err
        assert mhsh(*arguments).returncode == 0
    assert_same_curve(tmp_path / "run", unbroken)


@pytest.mark.slow  # by default: the test of a run that is stopped, which kills one too
def test_when_one_is_killed_the_other_says_so_and_can_go_on(unbroken, corpus, tmp_path):
    arguments = ["train", *CONFIG, corpus, f"--workdir={tmp_path / 'run'}"]
    for victim, step in ((1, 7), (0, 13), (1, 25)):
        kill_one(arguments, victim, step)
    again = mhsh(*arguments)
    assert again.returncode == 0, again.stderr
    assert_same_curve(tmp_path / "run", unbroken)


def test_processes_that_see_other_checkpoints_do_not_train(unbroken, corpus, tmp_path):
    """As on a network file system that shows one of them an old folder. Each would go on from the
    newest that it sees.
    """
    cut_back(unbroken, tmp_path / "here")
    shutil.rmtree(cut_back(unbroken, tmp_path / "late") / "checkpoints" / "24")
    before = rows_without_timings(tmp_path / "here")
    program = "import os; from mhsh.training import loop; loop._LOOKS = 1; from mhsh.cli.main import main; os._exit(main({}))"
    arguments = [
        ["train", *CONFIG, corpus, f"--workdir={tmp_path / name}", *joins]
        for name, joins in zip(("here", "late"), place(2), strict=True)
    ]
    results = finish([Fork(["-c", program.format(each)]) for each in arguments])
    assert [status for status, _, _ in results] == [75, 75], results
    assert "see other checkpoints in" in results[0][2] and "(process 0: 12, 24)" in results[0][2], results
    assert rows_without_timings(tmp_path / "here") == before


def test_when_one_fails_the_other_ends_as_it_does(corpus, tmp_path):
    """Process 0 finds the folder taken."""
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "mine").write_text("not a run")
    results = finish(start(2, ["train", *CONFIG, corpus, f"--workdir={tmp_path / 'run'}"]))
    assert [status for status, _, _ in results] == [2, 2], results


@pytest.mark.slow
def test_when_the_save_of_one_fails_all_end_soon_and_the_checkpoint_before_is_whole(unbroken, corpus, tmp_path):
    """Alone in one process no file may grow, as on a disk of its own that is full."""
    arguments = ["train", *CONFIG, corpus, "--config.mesh.data=1", f"--workdir={tmp_path / 'run'}"]
    processes = start(2, arguments)
    wait_for_step(tmp_path / "run", 14, processes[0])
    resource.prlimit(processes[1].pid, resource.RLIMIT_FSIZE, (64, 64))
    begin = time.monotonic()
    (first, _, heard), (second, _, said) = finish(processes)
    assert time.monotonic() - begin < 60
    assert (first, second) == (2, 2)
    assert "mhsh: the checkpoint of step 24" in said and "could not be saved" in said and "Traceback" not in said
    assert "mhsh: process 1 of this run has ended with an error" in heard
    assert RunFolder(tmp_path / "run").newest_checkpoint() == 12
    assert mhsh(*arguments).returncode == 0
    assert_same_run(tmp_path / "run", unbroken)


@pytest.mark.slow
def test_ten_deaths_of_random_processes_leave_the_unbroken_curve(corpus, tmp_path):
    more = ["--config.train.num_steps=400", "--config.train.checkpoint_interval=7", "--config.train.log_interval=1"]
    arguments = ["train", *CONFIG, corpus, *more]
    assert [status for status, _, _ in finish(start(4, [*arguments, f"--workdir={tmp_path / 'unbroken'}"]))] == [0] * 4
    generator = np.random.default_rng(0)
    folder, deaths, reached = tmp_path / "run", 0, 0
    while deaths < 10:
        processes = start(4, [*arguments, f"--workdir={folder}"])
        reached = min(reached + int(generator.integers(8, 38)), 390)
        wait_for_step(folder, reached, processes[0])
        victim = int(generator.integers(4))
        processes[victim].kill()
        results = finish(processes)
        assert [status for status, _, _ in results] == [-signal.SIGKILL if index == victim else 75 for index in range(4)], results
        deaths += 1
    assert [status for status, _, _ in finish(start(4, [*arguments, f"--workdir={folder}"]))] == [0] * 4
    assert rows_without_timings(folder) == rows_without_timings(tmp_path / "unbroken")


def test_a_process_that_never_joins_ends_the_others_in_one_line():
    join = (
        "from mhsh.cluster import peers; peers.JOIN_SECONDS = 1; "
        f"peers.join(coordinator='127.0.0.1:{free_port()}', num_processes=2, process_id=0)"
    )
    [(status, _, err)] = finish([Fork(["-c", join])])
    assert status == 75, err
    assert err.splitlines()[-1] == (
        "mhsh: not all processes of this run have joined within 1 s; look at their logs, and run the same command again on all"
    )
    assert "Traceback" not in err
