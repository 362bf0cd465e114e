"""The launchers as a user starts them, in real processes, with stand-ins for the tools of the
platforms.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

LAUNCH = Path(__file__).resolve().parents[2] / "launch"
HOSTILE_ARGUMENTS = [
    'a b; rm -rf $HOME "x"',
    "it's",
    "$(touch harm) `touch harm` ${HOME} $$ $(MHSH_PROCESS_ID)",
    "--config.data.source=text:a*/[b]?.txt",
    "back\\slash \\n \\",
    "line\nbreak\tand tab",
    "-- # & | > < ! ~ {a,b}",
    "ümläut ☃ 😀 \x7f\x85\u2028\ufeff",
    "yes",
    "",
]

Launch = Callable[..., "subprocess.CompletedProcess[str]"]
StandIn = Callable[[str, str], Path]


@pytest.fixture
def hostile() -> list[str]:
    """Arguments that go wrong where quoting does."""
    return list(HOSTILE_ARGUMENTS)


@pytest.fixture
def tools(tmp_path: Path) -> Path:
    """A folder at the front of the launchers' PATH."""
    folder = tmp_path / "tools"
    folder.mkdir()
    return folder


@pytest.fixture
def stand_in(tools: Path) -> StandIn:
    """stand_in("sbatch", SCRIPT): a bash script in place of a platform's tool."""

    def make(name: str, script: str) -> Path:
        path = tools / name
        path.write_text("#!/usr/bin/env bash\n" + script)
        path.chmod(0o755)
        return path

    return make


@pytest.fixture
def environment(tools: Path, tmp_path: Path) -> dict[str, str]:
    """What the launchers run under: this Python, without what is installed for it."""
    (tools / "python3").symlink_to(sys.executable)
    return {"PATH": f"{tools}:{os.environ['PATH']}", "HOME": str(tmp_path), "TMPDIR": str(tmp_path), "LC_ALL": "C.UTF-8"}


@pytest.fixture
def launch(environment: dict[str, str]) -> Launch:
    """launch("slurm", "--nodes=2", ..., MHSH_VENV="..."): runs a launcher to its end."""

    def run(name: str, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        command = [str(LAUNCH / name), *arguments]
        return subprocess.run(
            command, env=environment | variables, capture_output=True, text=True, encoding="utf-8", check=False, timeout=60
        )

    return run


@pytest.fixture
def shell_words() -> Callable[[str], list[str]]:
    """The words that a shell makes of a command."""

    def words(command: str, shell: str = "bash") -> list[str]:
        script = f"set -- {command}\nprintf '%s\\0' \"$@\""
        printed = subprocess.run([shell, "-c", script], capture_output=True, text=True, encoding="utf-8", check=True).stdout
        return printed.split("\0")[:-1]

    return words


@pytest.fixture(
    params=["HF_TOKEN=hush", "WANDB_API_KEY=hush", "--hf-token=hush", "--config.data.secret=hush", "gs://me:hush@host/x"]
)
def credential(request: pytest.FixtureRequest) -> str:
    """Arguments that must be refused, and never be repeated."""
    value = request.param
    assert isinstance(value, str)
    return value
