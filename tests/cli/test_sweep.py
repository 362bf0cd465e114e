"""Tests of `mhsh sweep`: the plan, and cells in processes that finish, diverge, fail or stop."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from rich.console import Console

from mhsh.cli.main import main
from mhsh.cli.sweep import make_plan, print_plan
from mhsh.report.report import Report
from mhsh.storage.run_folder import RunFolder
from mhsh.storage.run_record import FINISHED, RUNNING, STOPPED
from mhsh.sweep.axes import parse_axes
from mhsh.sweep.folder import FAILED, GAVE_UP, WAITING, SweepFolder, Tuning
from tests.conftest import ROOT, load_fields

CONFIG = [
    "--config=configs/evidence.py:heads",
    "--config.model.num_layers=1",
    "--config.model.embed_dim=8",
    "--config.model.mlp_dim=8",
    "--config.model.max_positions=16",
    "--config.model.remat_policy=none",  # each cell would trace to choose it
    "--config.data.sequence_length=16",
    "--config.data.validation_fraction=0.2",
    "--config.optimizer.warmup_steps=0",
    "--config.train.num_steps=6",
    "--config.train.batch_size=2",
    "--config.train.log_interval=1",
    "--config.train.eval_interval=0",
    "--config.train.eval_batches=1",
    "--config.train.checkpoint_interval=0",
    "--config.train.max_skipped_steps=2",
]


@pytest.fixture
def learnable(tmp_path: Path) -> list[str]:
    """Flags for text of which each letter tells the next one, and for steps enough to see that."""
    path = tmp_path / "learnable.txt"
    path.write_text("\n\n".join("abcdefghijklmnop" * length for length in range(3, 63)) + "\n", encoding="utf-8")
    return [f"--config.data.source=text:{path}", "--config.train.num_steps=40", "--config.train.batch_size=8"]


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "mhsh", "sweep", *CONFIG, *arguments]


def states(folder: Path) -> list[str]:
    there = SweepFolder(folder)
    return [there.state(cell.name).kind for cell in there.read_plan().cells]


def test_a_plan_adds_up():
    fields = load_fields("evidence", "heads")
    plan = make_plan(parse_axes(["heads_per_layer=8,1", "num_steps=100,200"], fields), fields)
    tokens = [cell.cost["tokens"] for cell in plan.cells]
    assert tokens == [100 * 8 * 128, 200 * 8 * 128] * 2
    flops = [cell.cost["flops"] for cell in plan.cells]
    assert flops[1] == 2 * flops[0] and flops[:2] == flops[2:]  # regrouping costs nothing in FLOPs
    assert [cell.cost["parameters"] for cell in plan.cells] == [663_048, 663_048, 684_552, 684_552]


def test_a_dry_run_prints_the_plan_and_touches_nothing(capsys, tmp_path):
    arguments = ["sweep", *CONFIG, "--axes", "heads_per_layer=8,1", "--axes", "seed=0,1,2", f"--workdir={tmp_path / 's'}"]
    assert main([*arguments, "--dry-run"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1].split()[:4] == ["in", "all", "6", "1,152"]  # 6 runs of 6 steps of 2 rows of 16 tokens
    # A row for each setting, with the runs and the tokens of its three seeds.
    rows = [line.split() for line in lines[-3:-1]]
    assert [(row[0], row[-4], row[-2]) for row in rows] == [("8", "3", "576"), ("1", "3", "576")]
    assert not (tmp_path / "s").exists()


def test_a_dry_run_counts_what_a_choice_leaves_out(capsys, tmp_path):
    axes = ["heads_per_layer=8,1", "lr=1e-3,2e-3", "seed=0,1,2,3,4,5", "--over=lr"]
    assert main(["sweep", *CONFIG, "--axes", *axes, f"--workdir={tmp_path / 's'}", "--dry-run"]) == 0
    # Three seeds choose at both rates of both shapes, three report at one: 18 runs of 6 x 2 x 16.
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith("12 of them choose lr; ") and "at least 18 runs, 3,456 tokens, " in last


@pytest.mark.parametrize("width", [68, 80, 200])
def test_a_plan_of_several_axes_fits_a_narrow_terminal(capsys, width):
    fields = load_fields("evidence", "heads")
    print_plan(make_plan(parse_axes(["heads_per_layer=8,1", "lr=1e-3,2e-3", "seed=0,1,2"], fields), fields), Console(width=width))
    lines = [line.split() for line in capsys.readouterr().out.splitlines()[-5:]]
    assert [line[:2] for line in lines] == [["8", "0.001"], ["8", "0.002"], ["1", "0.001"], ["1", "0.002"], ["in", "all"]]
    assert all(line[-1].endswith("T") for line in lines)


def test_cells_finish_diverge_and_fail_and_all_of_it_is_seen(corpus, tmp_path, capsys):
    """The sweep runs in this process, its cells in theirs."""
    folder, missing = tmp_path / "s", tmp_path / "missing.txt"
    source = corpus.partition("=")[2]
    axes = ["sweep", *CONFIG, "--axes", f"source={source},text:{missing}", "lr=1e-3,1e38", f"--workdir={folder}"]
    assert main([*axes, "--parallel=0"]) == 0  # a sweep that only plans may lack the file
    assert main([*axes, "--together=2"]) == 2
    assert states(folder) == [FINISHED, GAVE_UP, FAILED, FAILED]
    said = capsys.readouterr().out
    assert "2 cells have failed; --retry tries them again" in said
    there = SweepFolder(folder)
    names = [cell.name for cell in there.read_plan().cells]
    assert re.search(rf"\[\d/4\] {re.escape(names[2])}: failed, exit status 2: ", said)
    assert str(missing) in there.state(names[2]).reason
    html = (folder / "report.html").read_text(encoding="utf-8")
    assert "have no finished run yet." in html and f"{names[2]} failed: exit status 2: " in html
    # Meanwhile the missing file is written.
    missing.write_bytes(Path(source.removeprefix("text:")).read_bytes())
    assert [RunFolder(there.run_folder(name).path).read_run()["cells_together"] for name in names[:2]] == [2, 2]
    metrics = there.run_folder(names[0]).path / "metrics.jsonl"
    before = metrics.read_bytes()
    assert main([*axes, "--dry-run", "--retry"]) == 0  # changes nothing
    assert main(["sweep", f"--workdir={folder}"]) == 2  # a failed cell is only tried again with --retry
    assert main(["sweep", f"--workdir={folder}", "--retry"]) == 0
    assert states(folder) == [FINISHED, GAVE_UP, FINISHED, GAVE_UP]
    assert metrics.read_bytes() == before
    report = msgspec.convert(json.loads((folder / "report.json").read_bytes())["report"], Report)
    states_shown = [row.full_cells[3].text for row in report.tables[-1].rows]
    assert states_shown == ["on the unigram plateau", "diverged"] * 2  # six steps do not leave it
    shape = RunFolder(there.run_folder(names[0]).path).read_run()["parameters"]["total"]
    assert shape == there.read_plan().cells[0].cost["parameters"]


GROWN = ["sweep", *CONFIG, "--axes", "heads_per_layer=8,1", "seed=0,1", "--parallel=0"]


def test_a_plan_grows_in_place_and_says_what_was_added_when(tmp_path, capsys):
    folder = SweepFolder(tmp_path / "s")
    assert main([*GROWN, f"--workdir={folder.path}"]) == 0
    assert capsys.readouterr().out.endswith(f"next: mhsh work {folder.path}, on as many machines as you like\n")
    more = ["sweep", f"--workdir={folder.path}", "--add-seeds=2", "--parallel=0"]
    for _ in range(2):  # the same command goes on: nothing of what it has added has been trained
        assert main(more) == 0
    assert main(["sweep", f"--workdir={folder.path}", "--axes", "seed=9", "heads_per_layer=2", "--parallel=0"]) == 0
    assert main([*GROWN, f"--workdir={folder.path}"]) == 0  # as does the first one
    plan = folder.read_plan()
    assert [(axis.path, axis.values) for axis in plan.axes] == [("model.heads_per_layer", (8, 1, 2)), ("seed", (0, 1, 2, 3, 9))]
    assert len(plan.cells) == 15
    assert [(each.command, each.values, each.cells) for each in plan.history] == [
        ("the plan", {"model.heads_per_layer": [8, 1], "seed": [0, 1]}, 4),
        ("--add-seeds=2", {"seed": [2, 3]}, 4),
        ("the plan", {"model.heads_per_layer": [2], "seed": [9]}, 7),
    ]
    assert main(["sweep", f"--workdir={folder.path}", "--axes", "seed=10", "--parallel=0"]) == 0  # a part of its axes
    assert len(folder.read_plan().cells) == 18 and folder.read_plan().history[-1].values == {"seed": [10]}
    assert main([*GROWN[:-3], "seed=0,1", "lr=1e-3", f"--workdir={folder.path}"]) == 2  # other axes are another sweep
    assert "holds another sweep" in capsys.readouterr().err
    assert (
        main(["sweep", *CONFIG, "--config.model.num_heads=6", "--axes", "heads_per_layer=3", "seed=0", f"--workdir={folder.path}"])
        == 2
    )
    assert "holds a sweep of another config, whose values do not fit this one: cell heads_per_layer-8" in capsys.readouterr().err


def test_seeds_that_are_added_do_not_choose(tmp_path):
    folder = SweepFolder(tmp_path / "s")
    axes = ["--axes", "lr=1e-3..1e-2", "seed=0,1,2,3", "--sample=4", "--over=lr"]
    assert main(["sweep", *CONFIG, *axes, "--parallel=0", f"--workdir={folder.path}"]) == 0
    assert folder.read_plan().choosing == Tuning("lr", 2)
    assert folder.read_plan().axes[0].values == (0.001, 0.00178, 0.00316, 0.00562)
    assert main(["sweep", f"--workdir={folder.path}", "--add-seeds=4", "--parallel=0"]) == 0
    assert folder.read_plan().choosing == Tuning("lr", 2)
    # More of the sample are the same values and others between.
    assert main(["sweep", f"--workdir={folder.path}", "--axes", "lr=1e-3..1e-2", "seed=0", "--sample=5", "--parallel=0"]) == 0
    assert folder.read_plan().axes[0].values == (0.001, 0.00178, 0.00237, 0.00316, 0.00562)


def test_a_disk_without_locks_is_one_line(tmp_path, capsys, monkeypatch):
    """Workers there could not tell whose a cell is."""

    def unsupported(*_: Any) -> None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(fcntl, "flock", unsupported)
    assert main(["sweep", *CONFIG, "--axes", "seed=0,1", f"--workdir={tmp_path / 's'}", "--parallel=0"]) == 2
    assert capsys.readouterr().err.startswith(f"mhsh: the file system has no locks ({tmp_path / 's'}); mount it with locks, or ")


@pytest.fixture
def lengths(learnable: list[str], tmp_path: Path) -> list[str]:
    decays = ["--config.optimizer.schedule=wsd", "--config.optimizer.decay_steps=8"]  # of 40 steps
    return ["sweep", *CONFIG, *learnable, *decays, "--axes", "budget=20,40", f"--workdir={tmp_path / 's'}", "--parallel=2"]


@pytest.mark.slow  # by default test_branches.py
def test_a_longer_run_of_a_sweep_goes_on_from_the_shorter_one(lengths, tmp_path, capsys):
    folder = tmp_path / "s"
    assert main(lengths) == 0
    said = capsys.readouterr().out
    assert said.index("budget-20: finished") < said.index("budget-40 ...")  # it waits
    assert re.search(r"\n  \[1/2\] budget-20: finished, validation loss \d\.\d+ \(.+; about .+ left\)\n", said)
    assert re.search(r"\n  \[2/2\] budget-40: finished, validation loss \d\.\d+ \([^;]+\)\n", said)
    assert f"\nnext: mhsh compare {folder} --baseline=GROUP" in said
    short, long = (SweepFolder(folder).run_folder(f"budget-{steps}") for steps in (20, 40))
    assert long.read_run()["branched_from"] == {"folder": str(short.path), "step": 16}
    rows = [{row["step"]: row["loss"] for row in each.rows() if row["split"] == "train"} for each in (short, long)]
    assert list(rows[1]) == list(range(1, 41)) and rows[0] != {step: rows[1][step] for step in rows[0]}
    assert all(rows[0][step] == rows[1][step] for step in range(1, 17))
    costs = [cell.cost for cell in SweepFolder(folder).read_plan().cells]
    assert costs[1]["tokens"] * 20 == costs[0]["tokens"] * (40 - 16)
    assert main(lengths) == 0 and "0 of 2 cells to run" in capsys.readouterr().out


@pytest.mark.slow
def test_a_longer_run_trains_all_its_steps_where_the_shorter_ones_checkpoint_is_gone(lengths, tmp_path):
    folder = tmp_path / "s"
    assert main(lengths) == 0
    long = SweepFolder(folder).run_folder("budget-40")
    shutil.rmtree(long.path / "checkpoints" / "32")  # to make room, say
    assert main([argument.replace("=20,40", "=20,40,60") for argument in lengths]) == 0
    said = "".join(log.read_text() for log in (folder / "logs").iterdir())  # either worker may have it
    assert "budget-60 trains all its steps: budget-40 has no checkpoint from before its decay" in said
    longest = SweepFolder(folder).run_folder("budget-60")
    assert longest.read_run()["branched_from"] is None
    losses = {row["step"]: row["loss"] for row in longest.rows() if row["split"] == "train"}
    before = {row["step"]: row["loss"] for row in long.rows() if row["split"] == "train"}
    assert all(losses[step] == before[step] for step in range(1, 33))


@pytest.mark.slow  # tests/verdict/test_tuning.py says which values are added
def test_a_refined_grid_ends_half_an_octave_around_the_best_value(learnable, tmp_path, capsys):
    folder = tmp_path / "s"
    axes = ["--axes", "lr=2e-2,4e-2,8e-2", "seed=0,1", "--over=lr", "--refine"]
    refined = ["sweep", *CONFIG, *learnable, *axes, f"--workdir={folder}", "--parallel=2"]
    assert main(refined) == 0
    assert "\nRefining lr: " in capsys.readouterr().out
    rates = [float(value) for value in SweepFolder(folder).read_plan().axes[0].values]
    assert len(rates) >= 5 and rates == sorted(rates)
    report = msgspec.convert(json.loads((folder / "report.json").read_bytes())["report"], Report)
    best = float(report.tables[0].rows[0].full_cells[1].text)
    place = rates.index(best)
    assert rates[place + 1] / best < 1.5 and best / rates[place - 1] < 1.5
    assert report.rates[0].title.endswith(" by learning rate")
    assert [column.name for column in report.rates[0].columns[1:]] == [f"{rate:g}" for rate in rates]
    # The same command has nothing left to run: the values that were added stay.
    assert main(refined) == 0
    said = capsys.readouterr().out
    assert f"0 of {len(rates) + 1} cells to run" in said


def _children(process: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{process}/task/{process}/children").read_text().split()]


def _until(happened: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    """Waits while the process runs."""
    while not happened():
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)


@pytest.mark.slow  # tests/sweep/test_folder.py kills without training
def test_a_killed_sweep_and_a_stopped_one_resume(corpus, tmp_path):
    folder = tmp_path / "s"
    long = ["--config.train.num_steps=3000", "--config.train.checkpoint_interval=20"]
    arguments = [*long, corpus, "--axes", "seed=0,1", f"--workdir={folder}"]
    started: dict[str, Any] = dict(cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    killed = subprocess.Popen(command(*arguments), **started)
    run = SweepFolder(folder).run_folder("seed-0")
    _until(lambda: run.newest_checkpoint() is not None, killed)
    (child,) = _children(killed.pid)
    killed.kill()
    killed.communicate()
    # Its worker goes on, and no other one touches the cell.
    assert states(folder) == [RUNNING, WAITING]
    os.kill(child, signal.SIGKILL)
    while states(folder)[0] == RUNNING:
        time.sleep(0.05)
    assert states(folder) == [STOPPED, WAITING]

    stopped = subprocess.Popen(command(*arguments), **started)
    (log,) = (folder / "logs").glob("*-0.log")
    _until(lambda: "resuming from the checkpoint of step" in log.read_text(encoding="utf-8"), stopped)
    steps = run.read_metrics().count
    _until(lambda: run.read_metrics().count >= steps + 3, stopped)  # it trains, and no longer prepares
    stopped.send_signal(signal.SIGINT)
    out, err = stopped.communicate()
    assert stopped.returncode == 130, err
    assert "Interrupted; state saved" in out and (folder / "report.html").exists()
    assert states(folder) == [STOPPED, WAITING]
    assert run.read_run()["status"] == "stopped"
    saved = run.newest_checkpoint()
    assert saved == [*run.rows()][-1]["step"]

    # Who presses Ctrl-C twice ends the sweep, and leaves no cell behind.
    hasty = subprocess.Popen(command(*arguments), **started)
    _until(lambda: run.read_metrics().count >= saved + 3, hasty)
    hasty.send_signal(signal.SIGINT)
    while hasty.poll() is None:
        hasty.send_signal(signal.SIGINT)
    hasty.communicate()
    assert hasty.returncode in (-signal.SIGINT, 130)
    while states(folder)[0] == RUNNING:
        time.sleep(0.05)
    assert states(folder) == [STOPPED, WAITING] and run.newest_checkpoint() > saved
