"""Tests of the run folder: who may write into it, what damage does to reading, and that nothing
written is lost.
"""

from __future__ import annotations

import errno
import fcntl
import math
import os
import re
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from mhsh.config.recorded import WRITER
from mhsh.config.schema import Config
from mhsh.errors import UserError
from mhsh.storage.disk_lock import unlocked_mount
from mhsh.storage.holder import HOLDER_FILE, is_held
from mhsh.storage.run_folder import COUNTERS_FILE, RunFolder
from tests.conftest import ROOT
from tests.storage.test_holder import hold


@pytest.fixture(scope="module")
def config(make_config: Callable[..., Config]) -> Config:
    """The config of configs/bert.py:2l8h."""
    return make_config("bert", "2l8h")


@pytest.fixture
def folder(tmp_path: Path, config: Config) -> RunFolder:
    """A run of five steps with a validation row after the fourth."""
    folder = RunFolder.open_for_training(tmp_path / "run", config)
    for step in range(1, 6):
        folder.append_metrics([{"step": step, "split": "train", "loss": 5.0 - step}])
        if step == 4:
            folder.append_metrics([{"step": step, "split": "validation", "loss": 1.5}])
    return folder


def contents(path: os.PathLike[str]) -> dict[str, bytes]:
    return {str(file.relative_to(Path(path))): file.read_bytes() for file in Path(path).rglob("*") if file.is_file()}


def metrics_path(folder: RunFolder) -> Path:
    return folder.path / "metrics.jsonl"


def steps(folder: RunFolder) -> list[int]:
    return [row["step"] for row in folder.rows()]


def test_a_held_run_is_refused_and_a_killed_holder_holds_nothing(folder):
    before = contents(folder.path)
    holder = hold(str(folder.path))
    said = rf"run is in use: process {holder.pid} on {re.escape(socket.gethostname())} has trained there since 20\d\d-.*; wait"
    with pytest.raises(UserError, match=said), folder.hold():
        pass
    holder.kill()
    holder.communicate()
    with folder.hold() as note:
        assert note == ""
    assert contents(folder.path) == before


def test_a_run_that_has_not_begun_may_be_given_another_config(tmp_path, config):
    """But not while its process runs."""
    folder = RunFolder.open_for_training(tmp_path / "run", config)
    other = replace(config, train=replace(config.train, seed=1))
    with folder.hold(), pytest.raises(UserError, match="is in use"):
        RunFolder.open_for_training(folder.path, other)
    assert folder.read_config() == config
    assert RunFolder.open_for_training(folder.path, other).read_config() == other


def test_more_steps_extend_a_run(tmp_path, config):
    shorter = replace(config, optimizer=replace(config.optimizer, schedule="constant"))
    longer = replace(shorter, train=replace(shorter.train, num_steps=shorter.train.num_steps + 1))
    folder = RunFolder.open_for_training(tmp_path / "run", shorter)
    folder.append_metrics([{"step": 1, "split": "train", "loss": 3.0}])
    assert RunFolder.open_for_training(folder.path, longer).read_config() == longer
    with pytest.raises(UserError, match=r"train.num_steps is 41 there, 40 here"):
        RunFolder.open_for_training(folder.path, shorter)
    assert folder.read_config() == longer


def test_a_file_system_without_locks_is_said(folder, monkeypatch):
    def unsupported(*_):
        raise OSError(errno.EOPNOTSUPP, "Operation not supported")

    monkeypatch.setattr(fcntl, "flock", unsupported)
    with folder.hold() as note:
        assert note.endswith("run has no locks (Operation not supported): nothing keeps a second process from this run")
    (folder.path / HOLDER_FILE).write_text("{}")  # of a machine that has locks
    assert is_held(folder.path)


MOUNTS = {
    "nfs4 rw,vers=4.2,local_lock=none": "",
    "nfs rw,vers=3,nolock,hard": "nfs mounted with nolock",
    "fuse.gcsfuse rw,user_id=0": "fuse.gcsfuse",
}


@pytest.mark.parametrize("mount", MOUNTS)
def test_a_mount_whose_locks_end_at_the_machine_is_said(tmp_path, mount):
    kind, options = mount.split()
    table, shared = tmp_path / "mountinfo", tmp_path / "a shared"
    shared.mkdir()
    point = str(shared).replace(" ", "\\040")
    lines = ["22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda rw", f"23 22 0:5 / {point} rw - {kind} host:/x {options}"]
    table.write_text("\n".join(lines) + "\n")
    assert unlocked_mount(shared / "runs", table) == MOUNTS[mount]
    assert unlocked_mount(tmp_path, table) == ""


def test_a_new_folder_holds_the_config_and_opens_again_for_it_alone(tmp_path, config):
    path = tmp_path / "some" / "run"
    folder = RunFolder.open_for_training(path, config)
    folder.append_metrics([{"step": 1, "split": "train", "loss": 3.0}])
    before = contents(path)
    assert RunFolder.open_for_training(path, config).read_config() == config
    other = replace(config, train=replace(config.train, batch_size=16))
    with pytest.raises(UserError, match=r"train\.batch_size is 8 there, 16 here"):
        RunFolder.open_for_training(path, other)
    assert contents(path) == before


def test_what_is_no_run_is_refused(tmp_path, config):
    (tmp_path / "thesis.tex").write_text("mine")
    for path, said in (
        (tmp_path, "is not empty and holds no run"),
        (tmp_path / "thesis.tex" / "run", "cannot make the run folder"),
    ):
        with pytest.raises(UserError, match=said):
            RunFolder.open_for_training(path, config)
    assert contents(tmp_path) == {"thesis.tex": b"mine"}


@pytest.mark.parametrize("text", ["{", "[]", '{"model": {}}'])
def test_a_damaged_config_is_an_error(folder, text):
    (folder.path / "config.json").write_text(text)
    with pytest.raises(UserError, match=r"config\.json"):
        folder.read_config()


def test_missing_files_are_errors_that_name_them(tmp_path):
    folder = RunFolder(tmp_path)
    with pytest.raises(UserError, match=r"config\.json is missing"):
        folder.read_config()
    with pytest.raises(UserError, match=r"run\.json is missing"):
        folder.read_run()
    assert not folder.has_run_record() and [*folder.rows()] == []
    assert folder.read_metrics().problem == f"{metrics_path(folder)} does not exist; the run has logged nothing"
    metrics_path(folder).write_text("")
    assert folder.read_metrics().problem == f"{metrics_path(folder)} is empty; the run has logged nothing"


def test_rows_come_back_as_they_were_appended(folder: RunFolder) -> None:
    """A number that is not finite is null in the file, and nan again."""
    folder.append_metrics([{"step": 6, "split": "train", "loss": math.nan, "grad_norm": -math.inf}])
    assert metrics_path(folder).read_text().endswith(' "loss": null, "grad_norm": null}\n')
    metrics = folder.read_metrics()
    assert metrics.problem is None
    for split, key, columns in [
        ("train", "loss", "[array([1., 2., 3., 4., 5., 6.]), array([ 4.,  3.,  2.,  1.,  0., nan])]"),
        ("validation", "loss", "[array([4.]), array([1.5])]"),
        ("train", "grad_norm", "[array([6.]), array([nan])]"),
        ("train", "nothing", "[array([], dtype=float64), array([], dtype=float64)]"),
    ]:
        assert str([*metrics.series(split, "step", key)]) == columns


def test_a_line_cut_short_hides_only_itself(folder: RunFolder) -> None:
    whole = metrics_path(folder).read_bytes()
    for length in range(len(whole) - len(whole.splitlines()[-1]), len(whole)):
        metrics_path(folder).write_bytes(whole[:length])
        metrics = folder.read_metrics()
        assert metrics.count == len(steps(folder)) == 5
        assert metrics.problem is not None
        assert "line 6 is cut short" in metrics.problem


@pytest.mark.parametrize("line", ["", "[]", '{"step": "2", "split": "train"}', "\ufffd", "[" * 100_000])
def test_reading_ends_before_a_damaged_line(folder: RunFolder, line: str) -> None:
    lines = metrics_path(folder).read_text().splitlines()
    lines[2] = line
    metrics_path(folder).write_text("\n".join(lines) + "\n")
    metrics = folder.read_metrics()
    assert steps(folder) == metrics.numbers("train", "step").tolist() == [1, 2]
    assert metrics.problem is not None
    assert "line 3 is damaged" in metrics.problem


def test_cutting_drops_later_rows_and_a_half_line(folder: RunFolder) -> None:
    with open(metrics_path(folder), "a", encoding="utf-8") as file:
        file.write('{"step": 6, "sp')
    assert folder.cut_metrics(4, 5, False)[:2] == (5, 0)
    assert steps(folder) == [1, 2, 3, 4, 4]
    assert folder.read_metrics().problem is None
    folder.append_metrics([{"step": 5, "split": "train", "loss": 0.5}])
    assert steps(folder) == [1, 2, 3, 4, 4, 5]


def test_cutting_where_nothing_is_to_cut_changes_nothing(folder: RunFolder) -> None:
    before = contents(folder.path)
    folder.cut_metrics(5, 6, False)
    folder.cut_metrics(9, 6, False)
    assert contents(folder.path) == before
    RunFolder(folder.path / "nowhere").cut_metrics(0, 0, False)
    (folder.path / "other" / "metrics.jsonl").mkdir(parents=True)
    with pytest.raises(UserError, match=r"cannot read .*metrics.jsonl: Is a directory"):
        RunFolder(folder.path / "other").cut_metrics(0, 0, False)


def test_the_seconds_of_dropped_rows_are_counted(tmp_path: Path, config: Config) -> None:
    folder = RunFolder.open_for_training(tmp_path / "timed", config)
    rows = [{"step": step, "split": split, "seconds": step / 2} for step in range(1, 11) for split in ("train", "validation")]
    for step, seconds in ((10, 0.0), (6, 2.0), (0, 3.0)):
        folder.append_metrics(rows if step == 10 else [])
        assert folder.cut_metrics(step, 2 * step, False) == (2 * step, 0, seconds)
    # Seconds that are no number are passed over.
    folder.append_metrics([{"step": 1, "split": "train", "seconds": 1.0}, {"step": 2, "split": "train", "seconds": "?"}])
    folder.append_metrics([{"step": 3, "split": "train", "seconds": math.nan}, {"step": 4, "split": "train", "seconds": 3.0}])
    assert folder.cut_metrics(3, 3, False) == (3, 0, 2.0)


LOSSES: dict[str, Callable[[list[bytes]], list[bytes]]] = {
    "damaged": lambda lines: [*lines[:2], b'{"step": 3, "spl\n', *lines[3:]],
    "left out": lambda lines: [*lines[:2], *lines[3:]],
    "cut at the end of a line": lambda lines: lines[:2],
    "all gone": lambda lines: [],
    "doubled": lambda lines: [lines[0], *lines],
}


@pytest.mark.parametrize("name", LOSSES)
def test_lost_rows_are_refused_and_nothing_changes(folder: RunFolder, name: str) -> None:
    metrics_path(folder).write_bytes(b"".join(LOSSES[name](metrics_path(folder).read_bytes().splitlines(keepends=True))))
    before = contents(folder.path)
    with pytest.raises(UserError, match=r"of 5 rows up to step 4.*--accept-gap"):
        folder.cut_metrics(4, 5, False)
    assert contents(folder.path) == before


def test_an_accepted_gap_is_counted(folder: RunFolder) -> None:
    metrics_path(folder).write_bytes(b"".join(LOSSES["damaged"](metrics_path(folder).read_bytes().splitlines(keepends=True))))
    assert folder.cut_metrics(4, 5, True)[:2] == (4, 1)
    assert steps(folder) == [1, 2, 4, 4]
    assert folder.cut_metrics(4, 4, False)[:2] == (4, 0)


@pytest.mark.parametrize("tokens", ["NaN", "-1", "1e308", "9" * 400, "true", "null", "[]", '"1"'])
def test_counters_that_no_run_has_are_damage(folder, tokens):
    path = folder.path / "checkpoints" / "3" / COUNTERS_FILE
    path.parent.mkdir(parents=True)
    path.write_text(f'{{"tokens": {tokens}, "flops": 2, "seconds": 0.5, "rows": 3}}')
    with pytest.raises(UserError, match=f"^{path} is damaged: it lacks the counters of a checkpoint"):
        folder.counters(3)


def test_a_record_is_replaced_as_a_whole_or_stays(folder):
    """Its files may not grow beyond 4 KiB: the disk is full in the middle of a write."""
    folder.write_run({"status": "running", "omega": None})
    folder.write_run({"status": "finished"})
    assert folder.has_run_record() and folder.read_run() == {**WRITER, "status": "finished"}
    before = contents(folder.path)
    with pytest.raises(ValueError, match="not JSON compliant"):
        folder.write_run({"loss": math.nan})
    code = (
        "import resource, signal, sys; from mhsh.storage.run_folder import RunFolder; "
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN); resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096)); "
        "RunFolder(sys.argv[1]).write_run({'omega': [1.0] * 10_000})"
    )
    done = subprocess.run([sys.executable, "-c", code, folder.path], cwd=ROOT, capture_output=True, text=True, check=False)
    assert "File too large" in done.stderr
    assert contents(folder.path) == before
