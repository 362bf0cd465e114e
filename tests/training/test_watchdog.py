"""The watchdog, in processes of its own: it ends what hangs, and nothing else."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from mhsh.training.tracking import watchdog
from mhsh.training.tracking.watchdog import LEAST_SECONDS, TIMES_LONGEST, Watchdog


def run(body: str) -> subprocess.CompletedProcess[str]:
    script = f"""
import time
from mhsh.training.tracking import watchdog
from mhsh.training.tracking.watchdog import Watchdog
watchdog.LEAST_SECONDS = 1.0
{body}
print("end")
"""
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=60)


HANGS = {
    "longer than given": "dog = Watchdog(1)\nwith dog.watching():\n    time.sleep(30)",
    "longer than is measured": "dog = Watchdog(0)\nwith dog.watching():\n    dog.heartbeat()\n    time.sleep(30)",
    "after a pause": "dog = Watchdog(1)\nwith dog.watching():\n    with dog.paused():\n        time.sleep(2)\n    time.sleep(30)",
}


@pytest.mark.parametrize("name", HANGS)
def test_a_process_that_hangs_ends_with_its_stacks(name: str) -> None:
    done = run(HANGS[name])
    assert (done.returncode, done.stdout) == (os.EX_TEMPFAIL, "")
    assert done.stderr.startswith("mhsh: nothing was done for 1 s: this process hangs; run the same command again")
    assert 'File "<string>", line' in done.stderr


LIVES = {
    "first step": "dog = Watchdog(0)\nwith dog.watching():\n    time.sleep(3)",
    "beats": "dog = Watchdog(4)\nwith dog.watching():\n    for _ in range(10):\n        time.sleep(0.5)\n        dog.heartbeat()",
    "paused": "dog = Watchdog(1)\nwith dog.watching(), dog.paused():\n    time.sleep(3)",
    "before and after": "dog = Watchdog(1)\nwith dog.watching():\n    pass\ntime.sleep(3)",
}


@pytest.mark.parametrize("name", LIVES)
def test_a_process_that_works_goes_on(name: str) -> None:
    done = run(LIVES[name])
    assert (done.returncode, done.stdout, done.stderr) == (0, "end\n", "")


def test_the_limit_is_a_multiple_of_the_longest_step(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(watchdog.time, "monotonic", lambda: now)
    dog = Watchdog(0)
    assert dog.limit() is None
    dog._start()
    for seconds, limit in ((1.0, LEAST_SECONDS), (40.0, 40 * TIMES_LONGEST), (2.0, 40 * TIMES_LONGEST)):
        now += seconds
        dog.heartbeat()
        assert dog.limit() == limit
    dog._stop()
    assert Watchdog(8).limit() == 8
