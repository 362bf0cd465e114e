"""A run in a bucket: an emulator of Google Cloud Storage on the loopback interface stands in for
Google's own.
"""

from __future__ import annotations

import json
import os
import subprocess
import threading
import time
import urllib.request

import pytest

from mhsh.files import check_bucket, read_object, write_atomically
from mhsh.run_folder import RunFolder
from tests.conftest import ROOT
from tests.runs import CONFIG, command, mhsh_here, rows_without_timings

BUCKET = "runs"


def environment(address: str) -> dict[str, str]:
    """Where gcsfs and TensorStore look for the bucket."""
    return os.environ | {"NO_GCE_CHECK": "true", "STORAGE_EMULATOR_HOST": address, "TENSORSTORE_GCS_HTTP_URL": address}


def use_here(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """This process uses that emulator, as a command would: `check_bucket` comes first."""
    for name, value in environment(address).items():
        monkeypatch.setenv(name, value)
    check_bucket(f"gs://{BUCKET}")


def objects(address: str, prefix: str) -> str:
    with urllib.request.urlopen(f"{address}/storage/v1/b/{BUCKET}/o?prefix={prefix}", timeout=30) as answer:
        return answer.read().decode()


@pytest.mark.slow  # by default: tests/test_bucket_lock.py, and tests/test_runs.py kills a run on disk
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


def test_another_kind_of_bucket_is_refused(corpus):
    done = mhsh_here("train", *CONFIG, corpus, "--workdir=s3://bucket/run")
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1 and "gs:// buckets" in done.stderr
