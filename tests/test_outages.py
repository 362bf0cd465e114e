"""Runs whose storage fails, and runs that have lost their checkpoints: nothing that was written is
emptied.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from mhsh.storage.run_folder import RunFolder
from tests.buckets import bucket_variables
from tests.conftest import ROOT
from tests.faulty_bucket import FaultyBucket
from tests.runs import CONFIG, command, cut_back, mhsh_here, rows_without_timings

RUN = "gs://runs/here/run"


@pytest.fixture
def faulty(bucket: str) -> Iterator[FaultyBucket]:
    with FaultyBucket(bucket).serving() as proxy:
        yield proxy


def train(faulty: FaultyBucket, *arguments: str) -> subprocess.Popen[str]:
    environment = os.environ | bucket_variables(faulty.address)
    arguments = ("train", *CONFIG, *arguments, f"--workdir={RUN}")
    return subprocess.Popen(command(*arguments), cwd=ROOT, env=environment, stdout=-1, stderr=-1, text=True)


def fetched(faulty: FaultyBucket, folder: Path) -> Path:
    folder.mkdir()
    for name in ("config.json", "run.json", "metrics.jsonl"):
        with urllib.request.urlopen(f"{faulty.address}/runs/here/run/{name}", timeout=30) as answer:
            (folder / name).write_bytes(answer.read())
    return folder


def wait_for(faulty: FaultyBucket, text: str, process: subprocess.Popen[str]) -> None:
    """Returns when a request named `text`."""
    while not any(text in path for _, path in faulty.requests):
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)


@pytest.mark.slow  # by default: tests/storage/test_outage.py, where each request of a question fails
def test_a_run_resumes_and_ends_as_the_unbroken_one_while_every_fifth_request_fails(faulty, unbroken, corpus, tmp_path):
    first = train(faulty, corpus)
    wait_for(faulty, "checkpoints%2F24%2Fcommit_success.txt", first)
    first.kill()
    first.communicate()
    faults = (502, "reset", 503, 429, "cut")
    faulty.decide = lambda number, method, path: faults[number // 5 % 5] if number % 5 == 0 else None
    for _ in range(9):  # the lock is asked for once: a start whose request fails ends with 75
        again = train(faulty, corpus)
        out, err = again.communicate()
        if again.returncode != 75:
            break
        assert len([line for line in err.splitlines() if line.startswith("mhsh: ")]) == 1 and "Traceback" not in err, err
    assert again.returncode == 0, err
    assert "resuming from the checkpoint of step" in out and "Traceback" not in err
    faulty.decide = lambda number, method, path: None
    assert rows_without_timings(fetched(faulty, tmp_path / "run")) == rows_without_timings(unbroken)


@pytest.mark.slow  # by default: tests/storage/test_outage.py
@pytest.mark.parametrize(("minutes", "seconds"), [(10, 120), (0.1, 20)])
def test_an_outage_in_mid_run_is_borne_or_ends_with_75_and_then_goes_on(faulty, unbroken, corpus, tmp_path, minutes, seconds):
    process = train(faulty, corpus, f"--config.train.storage_minutes={minutes}")
    wait_for(faulty, "checkpoints%2F12%2Fcommit_success.txt", process)
    faulty.decide = lambda number, method, path: 503
    time.sleep(seconds)
    faulty.decide = lambda number, method, path: None
    out, err = process.communicate()
    if minutes == 10:
        assert process.returncode == 0, err
    else:
        assert process.returncode == 75 and "Traceback" not in err, err
        assert len([line for line in err.splitlines() if line.startswith("mhsh: ")]) <= 2, err
        again = train(faulty, corpus, f"--config.train.storage_minutes={minutes}")
        out, err = again.communicate()
        assert again.returncode == 0 and "resuming from the checkpoint of step 12" in out, err
    assert rows_without_timings(fetched(faulty, tmp_path / "run")) == rows_without_timings(unbroken)


@pytest.mark.slow  # by default: tests/launch/test_local_cluster.py
def test_a_launcher_starts_the_run_again_until_an_outage_is_over(faulty, unbroken, corpus, tmp_path):
    arguments = ("train", *CONFIG, corpus, "--config.train.storage_minutes=0.1", f"--workdir={RUN}")
    launched = [str(ROOT / "launch/local_cluster"), "--processes=1", "--pause=5", "--", *arguments]
    environment = os.environ | bucket_variables(faulty.address) | {"MHSH_VENV": sys.prefix}
    cluster = subprocess.Popen(launched, cwd=ROOT, env=environment, stdout=-1, stderr=-1, text=True)
    wait_for(faulty, "checkpoints%2F12%2Fcommit_success.txt", cluster)
    faulty.decide = lambda number, method, path: 503
    time.sleep(120)
    faulty.decide = lambda number, method, path: None
    out, err = cluster.communicate()
    assert cluster.returncode == 0 and "resuming from the checkpoint of step" in out, err
    assert "Traceback" not in err and err.count("starting all") >= 2, err
    assert rows_without_timings(fetched(faulty, tmp_path / "run")) == rows_without_timings(unbroken)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_run_that_has_lost_its_checkpoints_is_refused_and_nothing_is_emptied(unbroken, corpus, tmp_path):
    run = shutil.copytree(unbroken, tmp_path / "run")
    shutil.rmtree(run / "checkpoints")
    for more in (["--accept-gap"], []):
        before = contents(run)
        done = mhsh_here("train", *CONFIG, corpus, *more, f"--workdir={run}")
        assert done.returncode == 2 and done.stderr.count("\n") == 1, done
        assert "has trained to step 36 or further, and its checkpoints are gone; put them back" in done.stderr
        assert "--fresh" in done.stderr and contents(run) == before
        (run / "damaged_checkpoints" / "24").mkdir(parents=True, exist_ok=True)
        (run / "damaged_checkpoints" / "24" / "files.json").write_text("{")
    before = contents(run)
    aside = RunFolder(run).set_rows_aside()
    assert aside == RunFolder(run).path / "earlier" / "1"
    assert contents(Path(aside)) == {
        name: content for name, content in before.items() if name.startswith(("metrics", "run.", "tens", "damaged"))
    }
    RunFolder(run).check_checkpoints()  # it may begin again
    assert RunFolder(run).set_rows_aside() is None


def test_a_run_without_its_newest_checkpoint_waits_for_it(unbroken, corpus, tmp_path):
    """A volume that shows another machine's files late: an older one is no reason to go back."""
    run = cut_back(unbroken, tmp_path / "run")
    record = RunFolder(run).read_run()
    RunFolder(run).write_run(record | {"checkpoint": 36})
    before = contents(run)
    done = mhsh_here("train", *CONFIG, corpus, f"--workdir={run}")
    assert done.returncode == 75 and "checkpoints up to step 24, and run.json names one of step 36" in done.stderr, done
    refused = mhsh_here("train", *CONFIG, corpus, f"--workdir={run}", "--fresh")
    assert refused.returncode == 2 and "has one of step 24; leave it out" in refused.stderr
    assert contents(run) == before


@pytest.mark.parametrize("name", ["metrics.jsonl", "config.json", "run.json"])
@pytest.mark.parametrize("make", [os.mkfifo, lambda path: Path(path).symlink_to("/dev/zero")], ids=["pipe", "zero"])
def test_a_file_that_never_ends_or_begins_is_one_line(unbroken, tmp_path, name, make):
    run = tmp_path / "run"
    run.mkdir()
    for kept in ("metrics.jsonl", "config.json", "run.json"):
        shutil.copy(unbroken / kept, run / kept)
    (run / name).unlink()
    make(str(run / name))
    begin = time.monotonic()
    done = mhsh_here("compare", str(run), str(unbroken), f"--out={tmp_path / 'report.html'}")
    assert "it is not a regular file" in done.stdout + done.stderr and time.monotonic() - begin < 30, done
    assert "Traceback" not in done.stderr and json.loads((unbroken / "run.json").read_text())["status"] == "finished"
