"""Chunks of work in one process and in several: all done, whatever goes wrong told, nobody left
behind.
"""

from __future__ import annotations

import errno
import functools
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from mhsh.data.pool import run_chunks
from mhsh.errors import UserError

# Not from conftest: the worker processes import this module, and are to be without jax.
ROOT = Path(__file__).parents[2]


def leave(folder: str, chunk: int) -> None:
    """A chunk's work: a file of its number, with what this process is."""
    Path(folder, str(chunk)).write_text(f"{os.getpid()} {os.environ.get('TOKENIZERS_PARALLELISM')} {'jax' in sys.modules}")


def fail(how: str, chunk: int) -> None:
    if chunk != 3:
        time.sleep(0.02)
        return
    if how == "user":
        raise UserError("the text of chunk 3 is not text; write it anew")
    if how == "disk":
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/somewhere/full")
    if how == "defect":
        raise ZeroDivisionError("a defect")
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("count", [1, 3])
def test_every_chunk_is_done_once_and_told(tmp_path, count):
    done: list[int] = []
    run_chunks(functools.partial(leave, str(tmp_path)), range(20), count, done.append)
    assert sorted(done) == list(range(20)) == sorted(int(path.name) for path in tmp_path.iterdir())
    found = {path.read_text() for path in tmp_path.iterdir()}
    if count == 1:
        assert {text.split()[0] for text in found} == {str(os.getpid())} and done == list(range(20))
    else:
        # Other processes, of which none has jax, whatever this one has.
        assert "jax" in sys.modules
        assert 1 <= len(found) <= 3 and all(text.split()[0] != str(os.getpid()) for text in found)
        assert all(text.split()[1:] == ["false", "False"] for text in found)


@pytest.mark.parametrize("count", [1, 2])
def test_errors_of_a_worker_are_the_user_s_and_the_system_s(count):
    with pytest.raises(UserError, match=r"^the text of chunk 3 is not text; write it anew$"):
        run_chunks(functools.partial(fail, "user"), range(9), count, lambda chunk: None)
    with pytest.raises(OSError, match="/somewhere/full") as error:
        run_chunks(functools.partial(fail, "disk"), range(9), count, lambda chunk: None)
    assert error.value.errno == errno.ENOSPC


def test_a_defect_shows_its_own_traceback():
    with pytest.raises(RuntimeError, match=r"(?s)chunk 3 failed in a worker process:.*in fail.*ZeroDivisionError: a defect"):
        run_chunks(functools.partial(fail, "defect"), range(9), 2, lambda chunk: None)


def test_a_killed_worker_is_an_error_and_not_a_hang():
    with pytest.raises(UserError, match=r"a worker process was killed, perhaps .*run the same command again"):
        run_chunks(functools.partial(fail, "kill"), range(9), 2, lambda chunk: None)


def running(process: int) -> bool:
    """Whether a process is there and no zombie."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def endless(folder: str, chunk: int) -> None:
    Path(folder, str(os.getpid())).touch()
    time.sleep(600)


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks at processes in /proc")
@pytest.mark.parametrize("by", [signal.SIGINT, signal.SIGKILL, signal.SIGTERM])
def test_nobody_outlives_the_parent(tmp_path, by):
    """Ctrl-C goes to all processes of the terminal's group; SIGKILL and SIGTERM to the parent
    alone.
    """
    script, seen = tmp_path / "script.py", tmp_path / "seen"
    module = Path(__file__).stem
    script.write_text(
        f"""
import functools, sys
sys.path[:0] = [{str(ROOT)!r}, {str(Path(__file__).parent)!r}]
from mhsh.data.pool import run_chunks
from {module} import endless
if __name__ == "__main__":
    run_chunks(functools.partial(endless, {str(seen)!r}), range(9), 3, print)
"""
    )
    seen.mkdir()
    parent = subprocess.Popen([sys.executable, script], start_new_session=True, stderr=subprocess.PIPE, text=True)
    while len(team := [int(path.name) for path in seen.iterdir()]) < 3:
        assert parent.poll() is None, parent.communicate()
        time.sleep(0.01)
    if by == signal.SIGINT:
        os.killpg(parent.pid, by)
    else:
        parent.send_signal(by)
    _, stderr = parent.communicate(timeout=60)
    assert parent.returncode == -by
    # One process speaks, or none.
    assert stderr.count("Traceback") == (by == signal.SIGINT)
    limit = time.monotonic() + 60
    while any(map(running, team)):
        assert time.monotonic() < limit, "workers are still there a minute later"
        time.sleep(0.01)
