"""Tests of a worker: which cells it takes, and what it leaves. A cell here trains in a moment: it
is a function that writes what training writes last.
"""

from __future__ import annotations

import dataclasses
import errno
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from mhsh.config.entries import add_optimizer, recorded_entries
from mhsh.errors import FullDisk, Unavailable, UserError
from mhsh.storage import bucket, holder
from mhsh.storage.outcome import DIVERGED
from mhsh.storage.run_folder import RunFolder
from mhsh.storage.run_record import FINISHED, STOPPED
from mhsh.sweep import work as module
from mhsh.sweep.folder import FAILED, GAVE_UP, WAITING, SweepFolder
from mhsh.sweep.work import TRIES, Worker
from tests.conftest import ROOT
from tests.sweep.test_folder import planned

DEAD = 1.5
HOLDER = f"""
import sys
from mhsh.storage import holder
from mhsh.storage.run_folder import RunFolder
holder.REFRESH_SECONDS, holder.DEAD_SECONDS = 0.2, {DEAD}
with RunFolder.make(sys.argv[1]).hold(holder.Watch()):
    print("held", flush=True)
    sys.stdin.readline()
"""


@pytest.fixture(params=["disk", "bucket"])
def place(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """Where the sweep is, with locks that are dead after DEAD seconds."""
    monkeypatch.setattr(module, "_SECONDS_BETWEEN_LOOKS", {False: 0.02, True: 0.2})
    for name, seconds in {"REFRESH_SECONDS": 0.2, "DEAD_SECONDS": DEAD}.items():
        monkeypatch.setattr(holder, name, seconds)
    if request.param == "disk":
        return str(tmp_path / "s")
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", request.getfixturevalue("bucket"))
    monkeypatch.setenv("NO_GCE_CHECK", "true")
    return "gs://runs/s"


@pytest.fixture
def on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SweepFolder:
    monkeypatch.setattr(module, "_SECONDS_BETWEEN_LOOKS", {False: 0.02, True: 0.2})
    return swept(tmp_path / "s", "seed=0,1,2,3,4")


def swept(path: Any, *axes: str) -> SweepFolder:
    folder = SweepFolder(path)
    folder.open_for(planned(*axes))
    return folder


def every(plan: Any, ended: Any) -> list[str]:
    return [cell.name for cell in plan.cells]


def finish(config: Any, run: Any, note: str, stop: Any) -> None:
    run.write_run({"status": "finished"})


def worker(
    folder: SweepFolder, train: Callable[..., Any] = finish, together: int = 1, select: Callable[..., Any] = every
) -> Worker:
    def each_in_turn(runs: Any, stop: Any) -> Iterator[Any]:
        for held in runs:
            try:
                stopped_by = train(*held, stop)
            except (Unavailable, bucket.LostRun):
                raise
            except Exception as error:
                yield held, error
            else:
                stop.signal = stop.signal or stopped_by
                yield held, None

    return Worker(SweepFolder(folder.path), select, each_in_turn, together)


def kinds(folder: SweepFolder) -> list[str]:
    return [folder.state(cell.name).kind for cell in folder.read_plan().cells]


def test_workers_train_every_cell_once(place):
    folder = swept(place, "seed=0,1,2,3,4,5,6,7")
    trained: list[str] = []
    chance = random.Random(0)

    def train(config: Any, run: Any, note: str, stop: Any) -> None:
        trained.append(run.path.name)
        time.sleep(chance.uniform(0, 0.05))
        finish(config, run, note, stop)

    workers = [worker(folder, train) for _ in range(3)]
    threads = [threading.Thread(target=each.work) for each in workers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert Counter(trained) == Counter(cell.name for cell in folder.read_plan().cells)
    # Each of them has seen all ends, also those of the others.
    assert [[state.kind for state in each.ended.values()] for each in workers] == [[FINISHED] * 8] * 3


def test_the_cell_of_a_killed_worker_is_taken_and_that_of_a_living_one_is_waited_for(place, capsys):
    folder = swept(place, "seed=0,1")
    holders = []
    for name in ("seed-0", "seed-1"):
        arguments = [sys.executable, "-c", HOLDER, str(folder.run_folder(name).path)]
        holders.append(subprocess.Popen(arguments, cwd=ROOT, stdin=-1, stdout=-1, text=True, env=os.environ.copy()))
    assert [holder.stdout.readline() for holder in holders if holder.stdout] == ["held\n"] * 2
    killed, living = holders
    killed.kill()
    killed.communicate()
    thread = threading.Thread(target=worker(folder).work)
    thread.start()
    said = ""
    while f"1 cells are left, and others have them: seed-1: process {living.pid} on" not in said:
        assert thread.is_alive(), said
        said += capsys.readouterr().out
        time.sleep(0.05)
    assert [folder.outcome(cell.name).kind for cell in folder.read_plan().cells] == [FINISHED, WAITING]
    living.communicate("\n")  # it ends without having trained, as one that is preempted does
    thread.join(60)
    assert kinds(folder) == [FINISHED] * 2


def test_cells_that_fail_diverge_and_crash_stop_no_other(on_disk, capfd):
    def train(config: Any, run: Any, note: str, stop: Any) -> None:
        if config.train.seed == 1:
            raise UserError("no such text")
        if config.train.seed == 2:
            run.write_run({"status": "stopped", "outcome": DIVERGED})
            raise UserError("it diverged")
        if config.train.seed == 3:
            raise ValueError("a bug\nof two lines")
        finish(config, run, note, stop)

    assert worker(on_disk, train).work() is None
    assert kinds(on_disk) == [FINISHED, FAILED, GAVE_UP, FAILED, FINISHED]
    assert on_disk.state("seed-1").reason == "exit status 2: no such text"
    assert on_disk.state("seed-3").reason == "exit status 2: ValueError: a bug"
    assert "Traceback" in capfd.readouterr().err
    # Failed cells are tried again only when that is asked for.
    assert worker(on_disk).work() is None and kinds(on_disk).count(FAILED) == 2
    on_disk.forget_failures()
    assert worker(on_disk).work() is None
    assert kinds(on_disk) == [FINISHED, FINISHED, GAVE_UP, FINISHED, FINISHED]


def test_a_failed_cell_that_another_command_retries_is_trained_by_the_workers_that_are_there(on_disk):
    failing = [1]

    def train(config: Any, run: Any, note: str, stop: Any) -> None:
        if config.train.seed in failing:
            raise UserError("no such text")
        if config.train.seed == 4:
            on_disk.forget_failures()
            failing.pop()
        finish(config, run, note, stop)

    each = worker(on_disk, train)
    assert each.work() is None
    assert kinds(on_disk) == [FINISHED] * 5 == [state.kind for state in each.ended.values()]


def test_a_machine_on_which_nothing_trains_leaves_the_other_cells(on_disk):
    def train(*_: Any) -> None:
        raise UserError("no such text")

    with pytest.raises(UserError, match="the first 3 cells have failed here, the last one of: no such text"):
        worker(on_disk, train).work()
    assert kinds(on_disk) == [FAILED] * TRIES + [WAITING] * 2


@pytest.mark.parametrize("error", [FullDisk("the checkpoint could not be saved"), OSError(errno.ENOSPC, "No space left")])
def test_a_full_disk_ends_a_worker_and_is_no_fault_of_its_cell(on_disk, error):
    def train(config: Any, run: Any, note: str, stop: Any) -> None:
        if config.train.seed == 1:
            raise error
        finish(config, run, note, stop)

    for _ in range(TRIES + 1):
        with pytest.raises(type(error), match=r"could not be saved|No space left"):
            worker(on_disk, train).work()
    assert kinds(on_disk) == [FINISHED] + [WAITING] * 4
    assert worker(on_disk).work() is None and kinds(on_disk) == [FINISHED] * 5


def test_a_cell_that_workers_die_of_is_given_up(on_disk):
    for _ in range(TRIES):
        assert on_disk.begin("seed-0")  # and nothing more is heard of it
    assert worker(on_disk).work() is None
    assert kinds(on_disk) == [FAILED] + [FINISHED] * 4
    assert "3 workers have died of it at the same place" in on_disk.state("seed-0").reason


def test_a_cell_that_workers_are_stopped_in_before_its_first_step_is_not_given_up(on_disk):
    def stopped(*_: Any) -> None:
        each.note_stop(signal.SIGTERM)
        raise SystemExit  # as the process ends

    for _ in range(TRIES):
        each = worker(on_disk, stopped)
        with pytest.raises(SystemExit):
            each.work()
    assert worker(on_disk).work() is None
    assert kinds(on_disk) == [FINISHED] * 5


def test_a_signal_ends_the_worker_also_where_its_cell_had_just_ended(on_disk):
    def stopped(config: Any, run: Any, note: str, stop: Any) -> int:
        run.write_run({"status": "stopped"})
        return signal.SIGTERM

    def at_the_end(config: Any, run: Any, note: str, stop: Any) -> None:
        finish(config, run, note, stop)
        stop.signal = signal.SIGINT

    assert worker(on_disk, stopped).work() == signal.SIGTERM
    assert kinds(on_disk) == [STOPPED] + [WAITING] * 4
    assert worker(on_disk, at_the_end).work() == signal.SIGINT
    assert kinds(on_disk) == [FINISHED] + [WAITING] * 4


def test_a_worker_whose_run_was_taken_leaves_no_word_of_it(on_disk):
    """It writes nothing into what is another's, and ends with 75 for its launcher."""

    def train(*_: Any) -> None:
        raise bucket.LostRun("another process has taken this run")

    with pytest.raises(Unavailable, match="another process has taken this run"):
        worker(on_disk, train).work()
    assert kinds(on_disk) == [WAITING] * 5


def test_a_longer_run_is_trained_after_the_shorter_one(tmp_path):
    plan = planned("budget=4800,1200,2400", schedule="wsd", decay_steps=120)
    folder = SweepFolder(tmp_path / "s")
    folder.open_for(plan)
    trained = []

    def train(config: Any, run: Any, note: str, stop: Any) -> None:
        trained.append((run.path.name, config.train.start_from.rpartition("/")[2]))
        (run.checkpoints_path / str(config.train.num_steps * 9 // 10)).mkdir(parents=True)
        finish(config, run, note, stop)

    assert worker(folder, train).work() is None
    assert trained == [("budget-1200", ""), ("budget-2400", "budget-1200@1080"), ("budget-4800", "budget-2400@2160")]


def test_another_version_of_mhsh_trains_nothing(on_disk, monkeypatch):
    monkeypatch.setattr(module, "__version__", "9.9")
    with pytest.raises(UserError, match=r"was planned by mhsh .*, and this is mhsh 9\.9: install that one, or plan with"):
        worker(on_disk).work()
    assert kinds(on_disk) == [WAITING] * 5


@pytest.mark.usefixtures("forgotten")
def test_one_file_of_the_user_trains_all_cells(tmp_path):
    add_optimizer("mine")(lambda optimizer: None)
    folder = swept(tmp_path / "s", "seed=0,1", "optimizer.name=mine")
    cell = folder.read_plan().cells[0]
    run = RunFolder.open_for_training(folder.run_folder(cell.name).path, cell.config)
    [used] = recorded_entries(cell.config)
    run.write_run({"status": FINISHED, "entries": [used | {"sha256": "0" * 64}]})
    with pytest.raises(UserError, match=r"of test_work.py .sha256 000000000000.*one file trains all cells of a sweep"):
        worker(folder).work()
    assert kinds(folder) == [FINISHED, WAITING]
    run.write_run({"status": FINISHED, "entries": [used]})
    assert worker(folder).work() is None and kinds(folder) == [FINISHED] * 2


def test_a_plan_that_grows_is_trained_by_the_workers_that_are_there(on_disk):
    def train(config: Any, run: Any, note: str, stop: Any) -> None:
        if config.train.seed == 4:
            on_disk.open_for(dataclasses.replace(planned("seed=0,1,2,3,4,5,6")), "--add-seeds=2")
        finish(config, run, note, stop)

    assert worker(on_disk, train).work() is None
    assert kinds(on_disk) == [FINISHED] * 7
    assert [(each.command, each.values, each.cells) for each in on_disk.read_plan().history] == [
        ("", {"seed": [0, 1, 2, 3, 4]}, 5),
        ("--add-seeds=2", {"seed": [5, 6]}, 2),
    ]


def test_a_plan_that_grows_while_a_worker_looks_for_cells_is_trained(on_disk):
    def select(plan: Any, ended: Any) -> list[str]:
        """As where the runs that choose are read, and the new plan has more of them."""
        if len(ended) < 5:
            return every(plan, ended)
        on_disk.open_for(planned("seed=0,1,2,3,4,5"))
        return every(plan, ended) if len(plan.cells) > 5 else []

    assert worker(on_disk, select=select).work() is None
    assert kinds(on_disk) == [FINISHED] * 6


def test_cells_of_one_shape_that_stand_at_one_step_are_trained_together(tmp_path):
    folder = SweepFolder(tmp_path / "s")
    folder.open_for(planned("heads_per_layer=8,1", "lr=1e-3,2e-3,4e-3", "seed=0,1"))
    cells = folder.read_plan().cells
    names = [cell.name for cell in cells]
    begun, holder = (RunFolder.open_for_training(folder.run_folder(cell.name).path, cell.config) for cell in cells[1:3])
    (begun.checkpoints_path / "20").mkdir(parents=True)
    groups: list[list[int]] = []

    def train(runs: Any, stop: Any) -> Iterator[Any]:
        groups.append([names.index(held.folder.path.name) for held in runs])
        for held in reversed(runs):  # in any order
            finish(*held, stop)
            yield held, UserError("no room") if held.folder.path.name == names[4] else None
            assert (folder.path / "ends" / f"{held.folder.path.name}.json").exists()

    with holder.hold():
        thread = threading.Thread(target=Worker(folder, every, train, 4).work)
        thread.start()
        while sum(map(len, groups)) < 11:
            assert thread.is_alive(), groups
            time.sleep(0.05)
    thread.join(60)
    assert groups == [[0, 3, 4, 5], [1], [6, 7, 8, 9], [10, 11], [2]]
    assert kinds(folder) == [FINISHED] * 12
