"""A failing question is not an absence: every question of a bucket or a disk that fails."""

from __future__ import annotations

import contextlib
import errno
import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fsspec
import pytest
from aiohttp import ClientTimeout
from etils import epath

from mhsh.cli.main import main
from mhsh.errors import Unavailable, UserError
from mhsh.storage import files, outage
from mhsh.storage.bucket import BucketRefusal
from mhsh.storage.files import make_folder, open_binary, read_object
from mhsh.storage.questions import exists, is_dir, is_file, names_in
from mhsh.storage.run_folder import COMMIT_MARK, RunFolder, committed_steps
from mhsh.sweep.folder import SweepFolder
from mhsh.training.checkpoints.checkpoint import StoredCheckpoints
from tests.faulty_bucket import FaultyBucket

FAULTS = (502, 503, 429, "reset", "cut")


@pytest.fixture
def run(faulty: FaultyBucket) -> str:
    """A run in the bucket with checkpoints of steps 300, 350 and 400, and one without its mark."""
    folder = epath.Path("gs://runs/run")
    for step in (300, 350, 400):
        (folder / "checkpoints" / str(step) / "params" / "d").write_text("values")
        (folder / "checkpoints" / str(step) / COMMIT_MARK).write_text("")
    (folder / "checkpoints" / "450" / "params" / "d").write_text("values")
    (folder / "run.json").write_text('{"checkpoint": 400}')
    return str(folder)


@pytest.mark.parametrize("fault", FAULTS)
def test_one_failing_request_hides_nothing(faulty: FaultyBucket, run: str, fault: int | str) -> None:
    """Each request of the question fails once, one after the other."""

    def answer() -> object:
        folder = RunFolder(run)
        orbax = [is_dir(f"{run}/checkpoints/400"), epath.Path(f"{run}/checkpoints/400").is_dir()]
        return committed_steps(folder.checkpoints_path), folder.newest_checkpoint(), folder.has_run_record(), orbax

    wanted = ([300, 350, 400], 400, True, [True, True])
    begin = len(faulty.requests)
    assert answer() == wanted
    count = len(faulty.requests) - begin
    assert count >= 4
    for k in range(count):
        begin = len(faulty.requests)
        faulty.decide = lambda number, method, path, at=begin + k: fault if number == at else None
        assert answer() == wanted, k


def test_an_outage_ends_with_75_and_one_line(faulty: FaultyBucket, run: str, capsys: pytest.CaptureFixture[str]) -> None:
    faulty.decide = lambda number, method, path: 503
    begin = time.monotonic()
    assert main(["compare", run, "--out=/nowhere/report.html"]) == os.EX_TEMPFAIL
    assert 2 <= time.monotonic() - begin < 30
    err = capsys.readouterr().err
    assert err.count("\n") == 1 and "has not answered for" in err and "run the same command again" in err, err
    for ask in (exists, is_dir, is_file, names_in, committed_steps):
        with pytest.raises(Unavailable):
            ask(f"{run}/checkpoints")
    assert outage.is_failing() and outage.is_over()
    faulty.decide = lambda number, method, path: None
    assert names_in(f"{run}/checkpoints") == ["300", "350", "400", "450"] and not outage.is_failing()


def test_a_request_that_nobody_answers_is_given_up_and_asked_again(
    faulty: FaultyBucket, run: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket = fsspec.filesystem("gs")
    assert bucket.requests_timeout.sock_read == int(os.environ["TENSORSTORE_CURL_LOW_SPEED_TIME_SECONDS"]) == 30
    monkeypatch.setattr(bucket, "requests_timeout", ClientTimeout(sock_read=0.3))
    first = len(faulty.requests)
    faulty.decide = lambda number, method, path: "silent" if number == first else None
    assert exists(f"{run}/run.json") and len(faulty.requests) > first + 1


def test_where_training_goes_on_nothing_is_tried_twice(faulty: FaultyBucket, run: str) -> None:
    faulty.decide = lambda number, method, path: 503
    begin, seconds = len(faulty.requests), time.monotonic()
    with outage.one_try(), pytest.raises(Unavailable):
        RunFolder(run).append_metrics([{"step": 1, "split": "train"}])
    assert len(faulty.requests) - begin <= 2 and time.monotonic() - seconds < 1.5


@pytest.mark.parametrize("status", [401, 403])
def test_a_refusal_is_one_line_at_once_that_names_the_login(faulty: FaultyBucket, run: str, status: int) -> None:
    faulty.decide = lambda number, method, path: status
    begin = time.monotonic()
    for ask in (exists, is_dir, names_in, committed_steps, read_object, lambda path: epath.Path(path).is_dir()):
        with pytest.raises(UserError, match=r"cannot use (gs://runs|Google).*gcloud auth application-default login"):
            ask(f"{run}/run.json")
    assert time.monotonic() - begin < 2


def test_a_refusal_while_a_file_is_read_is_said_once(faulty: FaultyBucket, run: str, capfd: pytest.CaptureFixture[str]) -> None:
    faulty.decide = lambda number, method, path: 401 if "alt=media" in path else None
    with pytest.raises(UserError, match="gcloud auth"), open_binary(f"{run}/run.json") as file:
        file.read()
    assert "Traceback" not in capfd.readouterr().err


def test_a_refusal_is_no_state_of_a_cell(faulty: FaultyBucket) -> None:
    folder = SweepFolder("gs://runs/s")
    faulty.decide = lambda number, method, path: 403
    with pytest.raises(BucketRefusal, match="gcloud auth"):
        folder.outcome("seed-0")


def test_a_commit_mark_whose_answer_is_lost_is_written(faulty: FaultyBucket, run: str) -> None:
    """As Orbax writes it: in parts, of which the last is sent again."""
    mark, lost = epath.Path(f"{run}/checkpoints/450/{COMMIT_MARK}"), []

    def decide(number: int, method: str, path: str) -> str | None:
        if "upload_id" in path and not lost:
            lost.append(path)
            return "cut"
        return None

    faulty.decide = decide
    mark.write_text("")
    assert lost and committed_steps(f"{run}/checkpoints")[-1] == 450


def test_no_such_bucket(faulty: FaultyBucket) -> None:
    with pytest.raises(BucketRefusal, match=r"^the bucket gs://nobody does not exist; make it, or correct the name$"):
        RunFolder("gs://nobody/run")


def test_a_disk_that_fails_for_a_while_and_one_that_stays_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outage._outage, "patience", 0.5)
    begin = time.monotonic()

    def answers_after(seconds: float, code: int) -> str:
        if time.monotonic() - begin < seconds:
            raise OSError(code, os.strerror(code), "disk")
        return "answer"

    for code in (errno.ESTALE, errno.EIO):
        begin = time.monotonic()
        assert outage.retry(lambda code=code: answers_after(0.2, code), "disk") == "answer" and not outage.is_failing()
        with pytest.raises(Unavailable, match=r"^disk has not answered for .*run the same command again"):
            outage.retry(lambda code=code: answers_after(9, code), "disk")
        assert outage.is_over()
        outage.note_answer()
    with pytest.raises(PermissionError):
        outage.retry(lambda: answers_after(9, errno.EACCES), "disk")


def test_a_file_that_another_machine_replaces_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    codes, opened = [errno.EIO, errno.ESTALE], files._open_regular

    def opens(path: Path) -> Any:
        return contextlib.nullcontext(SimpleNamespace(read=fails)) if codes else opened(path)

    def fails(size: int) -> bytes:
        raise OSError(code := codes.pop(), os.strerror(code), "object.json")

    (tmp_path / "object.json").write_text('{"a": 1}')
    monkeypatch.setattr(files, "_open_regular", opens)
    with pytest.raises(UserError, match=r"cannot read .*: Input/output error"):  # as of a disk that is broken
        read_object(tmp_path / "object.json")
    codes.append(errno.ESTALE)
    assert read_object(tmp_path / "object.json") == {"a": 1}


def test_a_folder_that_is_there_is_one_while_questions_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failing, stat = [True], os.stat

    def fails_once(path: object, **options: object) -> object:
        if str(path) == str(tmp_path / "a") and failing:
            raise OSError(failing.pop() and errno.ESTALE, "stale")
        return stat(path, **options)

    make_folder(tmp_path / "a" / "b")
    monkeypatch.setattr(os, "stat", fails_once)
    make_folder(tmp_path / "a")
    assert not failing and names_in(tmp_path / "a") == ["b"]
    (tmp_path / "file").write_text("")
    with pytest.raises(FileExistsError):
        make_folder(tmp_path / "file")


def test_absent_is_what_cannot_be_there(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    os.mkfifo(tmp_path / "pipe")
    for name in ("no", "file/below", "loop", "a" * 300, "zero\0"):
        assert not exists(tmp_path / name) and not is_dir(tmp_path / name) and names_in(str(tmp_path / "no")) == []
    assert exists(tmp_path / "pipe") and not is_file(tmp_path / "pipe") and is_file(tmp_path / "file")


def test_checkpoints_that_orbax_cannot_see_are_no_absent_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """epath's own questions to a disk take a failing one for an absence."""
    (tmp_path / "checkpoints" / "7").mkdir(parents=True)
    checkpoints = StoredCheckpoints(tmp_path / "checkpoints")
    assert checkpoints.steps() == [7]
    monkeypatch.setattr(type(checkpoints._manager), "all_steps", lambda self: [])
    with pytest.raises(Unavailable, match="checkpoints/7 cannot be read"):
        checkpoints.steps()
