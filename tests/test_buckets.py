"""Runs and their data in a bucket: an emulator of Google Cloud Storage on the loopback interface
stands in for Google's own.
"""

from __future__ import annotations

import json
import os
import subprocess
import threading
import time
import urllib.request

import pytest

from mhsh.storage.bucket import check_bucket
from mhsh.storage.files import read_object, write_atomically
from mhsh.storage.run_folder import RunFolder
from tests.buckets import bucket_variables
from tests.conftest import ROOT
from tests.runs import CONFIG, command, rows_without_timings

BUCKET = "runs"


def environment(address: str) -> dict[str, str]:
    return os.environ | bucket_variables(address)


def use_here(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """This process uses that emulator, as a command would: `check_bucket` comes first."""
    for name, value in environment(address).items():
        monkeypatch.setenv(name, value)
    check_bucket(f"gs://{BUCKET}")


def objects(address: str, prefix: str) -> str:
    with urllib.request.urlopen(f"{address}/storage/v1/b/{BUCKET}/o?prefix={prefix}", timeout=30) as answer:
        return answer.read().decode()


@pytest.mark.slow  # by default: tests/storage/test_holder.py, and tests/test_runs.py kills a run on disk
def test_a_run_in_a_bucket_is_killed_and_goes_on_as_one_on_disk(bucket, unbroken, corpus, tmp_path):
    arguments = command("train", *CONFIG, corpus, f"--workdir=gs://{BUCKET}/here/run")
    process = subprocess.Popen(
        arguments, cwd=ROOT, env=environment(bucket), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    while "checkpoints/12/commit_success.txt" not in objects(bucket, "here/run/checkpoints/12/commit"):
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    process.kill()
    process.communicate()
    again = subprocess.run(arguments, cwd=ROOT, env=environment(bucket), capture_output=True, text=True, check=False)
    assert again.returncode == 0, again.stderr
    assert "resuming from the checkpoint of step" in again.stdout
    local = tmp_path / "run"
    local.mkdir()
    for name in ("config.json", "run.json", "metrics.jsonl"):
        with urllib.request.urlopen(f"{bucket}/{BUCKET}/here/run/{name}", timeout=30) as answer:
            (local / name).write_bytes(answer.read())
    assert rows_without_timings(local) == rows_without_timings(unbroken)
    assert "tensorboard/events" in objects(bucket, "here/run/tensorboard")


@pytest.mark.slow  # by default: tests/test_branches.py
def test_a_run_in_a_bucket_begins_at_a_step_of_another(bucket, corpus, tmp_path):
    """The mark that makes a checkpoint of the copy is written last. No branch leaves the bucket."""
    trunk, branch = f"gs://{BUCKET}/branches/trunk", f"gs://{BUCKET}/branches/branch"
    wsd = [*CONFIG, corpus, "--config.optimizer.schedule=wsd"]
    shorter = [*wsd, "--config.train.num_steps=14", f"--config.train.start_from={trunk}@12"]

    def train(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command("train", *arguments), cwd=ROOT, env=environment(bucket), capture_output=True, text=True, check=False
        )

    assert train(*wsd, f"--workdir={trunk}").returncode == 0
    done = train(*shorter, f"--workdir={branch}")
    assert done.returncode == 0, done.stderr
    assert "resuming from the checkpoint of step 12" in done.stdout
    written = {
        each["name"]: each["timeCreated"] for each in json.loads(objects(bucket, "branches/branch/checkpoints/12/"))["items"]
    }
    assert max(written, key=written.__getitem__).endswith("commit_success.txt")
    refused = train(*shorter, f"--workdir={tmp_path / 'run'}")
    assert refused.returncode == 2 and "one is in a bucket and one on a disk" in refused.stderr


def test_a_file_that_is_replaced_meanwhile_is_read_as_a_whole(bucket, monkeypatch):
    use_here(bucket, monkeypatch)
    path = f"gs://{BUCKET}/file.json"
    replacing = threading.Event()

    def replace() -> None:
        for length in range(60):
            write_atomically(path, json.dumps({"a": "b" * (length % 2 * 99)}))
            replacing.set()
        replacing.clear()

    thread = threading.Thread(target=replace)
    thread.start()
    replacing.wait()
    while replacing.is_set():
        assert set(read_object(path)) == {"a"}
    thread.join()


def test_what_another_process_has_written_is_there(bucket, monkeypatch):
    """Orbax waits on one process for a file of another: gcsfs's cache of listings would hide it."""
    use_here(bucket, monkeypatch)
    folder = RunFolder(f"gs://{BUCKET}/run").path
    (folder / "one").write_text("of this process")
    assert [path.name for path in folder.iterdir()] == ["one"]
    upload = f"{bucket}/upload/storage/v1/b/{BUCKET}/o?uploadType=media&name=run/two"
    with urllib.request.urlopen(urllib.request.Request(upload, data=b"of another", method="POST"), timeout=30):
        assert (folder / "two").exists()
