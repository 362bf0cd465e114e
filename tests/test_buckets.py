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
from pathlib import Path

import fsspec
import pyarrow
import pytest
from msgspec.structs import replace
from pyarrow import parquet

from mhsh.data.load import load_corpus
from mhsh.storage.bucket import check_bucket
from mhsh.storage.files import read_object, write_atomically
from mhsh.storage.run_folder import RunFolder
from tests.buckets import bucket_variables
from tests.clusters import finish, start
from tests.conftest import ROOT
from tests.data.preparing import pretraining_config
from tests.runs import CONFIG, command, mhsh, mhsh_here, rows_without_timings
from tests.test_clusters import assert_same_curve

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


@pytest.fixture
def rows(bucket, corpus, tmp_path, monkeypatch) -> str:
    """data.source of rows in the bucket, prepared from a Parquet file there."""
    for name, value in (environment(bucket) | {"MHSH_CACHE": str(tmp_path / "cache")}).items():
        monkeypatch.setenv(name, value)
    text = Path(corpus.partition("text:")[2]).read_text(encoding="utf-8")
    parquet.write_table(pyarrow.table({"text": text.split("\n\n")}), tmp_path / "corpus.parquet", row_group_size=9)
    fsspec.filesystem("gs").put_file(str(tmp_path / "corpus.parquet"), f"{BUCKET}/text/corpus.parquet")
    source = f"--config.data.source=parquet:gs://{BUCKET}/text/*.parquet"
    done = mhsh_here("prepare", *CONFIG, source, f"--out={tmp_path / 'copied'}", "--workers=1", "--per-shard=20")
    assert done.returncode == 0, done.stderr
    for path in filter(Path.is_file, (tmp_path / "copied").rglob("*")):
        fsspec.filesystem("gs").pipe_file(f"{BUCKET}/rows/{path.relative_to(tmp_path / 'copied')}", path.read_bytes())
    return f"arrayrecord:gs://{BUCKET}/rows"


@pytest.fixture
def rows_here(corpus, tmp_path) -> str:
    """data.source of the same rows on disk, prepared from text."""
    done = mhsh_here("prepare", *CONFIG, corpus, f"--out={tmp_path / 'rows'}", "--workers=1", "--per-shard=20")
    assert done.returncode == 0, done.stderr
    return f"arrayrecord:{tmp_path / 'rows'}"


def test_rows_in_a_bucket_are_those_on_a_disk(rows, rows_here):
    config = pretraining_config(vocab_size=512, sequence_length=64)
    corpora = [load_corpus(replace(config, data=replace(config.data, source=source)), None) for source in (rows, rows_here)]
    assert corpora[0].fingerprint == corpora[1].fingerprint


@pytest.mark.slow  # by default: the test before, and tests/data/test_buckets.py, where two processes copy
def test_two_processes_train_on_rows_in_a_bucket_as_one_on_a_disk(rows, rows_here, tmp_path):
    one = mhsh("train", *CONFIG, f"--config.data.source={rows_here}", f"--workdir={tmp_path / 'here'}")
    assert one.returncode == 0, one.stderr
    results = finish(start(2, ["train", *CONFIG, f"--config.data.source={rows}", f"--workdir={tmp_path / 'there'}"]))
    assert [status for status, _, _ in results] == [0, 0], results
    copies = [line.split(" of ")[1].split()[0] for _, out, _ in results for line in out.split("\n") if line.startswith("copying")]
    assert sorted(copies) == [f"gs://{BUCKET}/rows/train", f"gs://{BUCKET}/rows/validation"]  # once on a machine
    assert_same_curve(tmp_path / "there", tmp_path / "here")


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
