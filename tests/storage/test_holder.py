"""The lock of a run in a bucket, against an emulator of Google Cloud Storage."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from mhsh.errors import Unavailable, UserError
from mhsh.storage import holder as module
from mhsh.storage import outage
from mhsh.storage.bucket import GuardedObject
from mhsh.storage.holder import Watch, _wait_until_dead, bucket_lock
from mhsh.storage.run_folder import HOLDER_FILE, RunFolder
from tests.clusters import free_port
from tests.conftest import ROOT

DEAD = 1.5
HOLDER = f"""
import sys, time
from mhsh.storage import holder
from mhsh.storage.run_folder import RunFolder
holder.REFRESH_SECONDS, holder.DEAD_SECONDS = 0.2, {DEAD}
with RunFolder(sys.argv[1]).hold():
    print("held", flush=True)
    sys.stdin.readline()
"""


@pytest.fixture
def run(bucket, monkeypatch) -> str:
    """A run in the emulator's bucket, with locks that are dead after DEAD seconds."""
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", bucket)
    monkeypatch.setenv("NO_GCE_CHECK", "true")  # no machine of Google's is asked for a login
    for name, seconds in {"REFRESH_SECONDS": 0.2, "DEAD_SECONDS": DEAD, "_POLL_SECONDS": 0.1}.items():
        monkeypatch.setattr(module, name, seconds)
    return "gs://runs/run"


def hold(run: str) -> subprocess.Popen[str]:
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, run], cwd=ROOT, stdin=-1, stdout=-1, stderr=-1, text=True, env=os.environ.copy()
    )
    assert holder.stdout is not None
    while (line := holder.stdout.readline()) != "held\n":
        assert "waiting" in line, holder.communicate()
    return holder


def test_one_process_holds_a_run_in_a_bucket(run):
    holder = hold(run)
    with pytest.raises(UserError, match=rf"gs://runs/run is in use: process {holder.pid} on .* since 20"), RunFolder(run).hold():
        pass
    with (
        pytest.raises(BlockingIOError, match="is refreshed by another process"),
        bucket_lock(f"{run}/{HOLDER_FILE}", {}, lambda: None),
    ):
        pass
    _, err = holder.communicate("\n")
    assert holder.returncode == 0, err
    begin = time.monotonic()
    with RunFolder(run).hold() as note:
        assert note == "" and time.monotonic() - begin < DEAD  # the lock was released
    assert not (RunFolder(run).path / HOLDER_FILE).exists()


def test_a_dead_holder_loses_the_lock_and_a_frozen_one_ends_when_it_wakes(run, capsys):
    killed = hold(run)
    killed.kill()
    killed.communicate()
    frozen = hold(run)  # waits until the first is dead
    os.kill(frozen.pid, signal.SIGSTOP)
    with RunFolder(run).hold():
        assert f"process {frozen.pid}" in capsys.readouterr().out
        os.kill(frozen.pid, signal.SIGCONT)
        out, err = frozen.communicate(timeout=30)  # its input ends: it may also find out at its release
        assert frozen.returncode == 2 and "mhsh: gs://runs/run/.holder.json was taken by another process" in err, (out, err)
        holder = json.loads((RunFolder(run).path / HOLDER_FILE).read_text())
        assert holder["process"] == os.getpid()


def test_a_lock_outlives_any_failing_request(faulty, monkeypatch):
    """Each request fails once: taking, refreshing, releasing; `cut`: it has been done."""
    monkeypatch.setattr(module, "REFRESH_SECONDS", 0.1)
    for fault in (503, "cut"):
        for k in range(4):
            begin = len(faulty.requests)
            faulty.decide = lambda number, method, path, at=begin + k, fault=fault: fault if number == at else None
            with bucket_lock(f"gs://runs/{fault}{k}", {}, on_wait=lambda: pytest.fail("nobody else holds it")):
                time.sleep(0.15)
            assert len(faulty.requests) - begin > k


def test_an_outage_of_the_bucket_is_no_death_of_a_holder(faulty, monkeypatch):
    """In it a living one could not refresh its lock; a dead one does not do so afterwards."""
    monkeypatch.setattr(module, "DEAD_SECONDS", 1.0)
    monkeypatch.setattr(module, "_POLL_SECONDS", 0.05)
    monkeypatch.setattr(outage, "_REPORT_AFTER", 0.3)
    path, watch = "gs://runs/outage", Watch()
    lock = GuardedObject(path)
    lock.write(b"{}", 0)

    def fail_for(seconds: float) -> float:
        ended = time.monotonic() + seconds
        faulty.decide = lambda number, method, path: 503 if time.monotonic() < ended else None
        return ended

    with pytest.raises(BlockingIOError):  # seen for the first time
        watch.replaceable_generation(path)
    ended = fail_for(1.5)
    with pytest.raises(BlockingIOError):
        watch.replaceable_generation(path)
    assert time.monotonic() >= ended
    time.sleep(1.2)
    assert watch.replaceable_generation(path) == lock.generation()

    def begin_outage() -> None:
        nonlocal ended
        ended = fail_for(1.2)

    assert _wait_until_dead(lock, path, on_wait=begin_outage)
    assert time.monotonic() >= ended + 0.9


def test_a_bucket_that_does_not_answer_is_one_line(monkeypatch):
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", f"http://127.0.0.1:{free_port()}")
    with pytest.raises(Unavailable, match=r"^cannot reach gs://runs: .*"), bucket_lock("gs://runs/x", {}, lambda: None):
        pass
