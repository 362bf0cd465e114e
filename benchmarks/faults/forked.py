"""Commands of mhsh in forks of a process that has imported all they need: hundreds of runs take
minutes.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import sys
import threading
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

MODULES = ("mhsh.training.loop", "mhsh.cli.train", "gcsfs", "google.cloud.storage")
TOO_LONG = -9


class Ended(NamedTuple):
    """How a command ended: its exit status (TOO_LONG: it was killed), and what it said."""

    status: int
    output: str
    error: str


class Server:
    """A process that runs one command at a time. Make all before the first thread is started."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        asked, ask = os.pipe()
        answered, answer = os.pipe()
        self._process = os.fork()
        if not self._process:
            os.close(ask)
            os.close(answered)
            _serve(asked, answer, environment)
        os.close(asked)
        os.close(answer)
        self._ask, self._answers = os.fdopen(ask, "w"), os.fdopen(answered)

    def run(self, arguments: Sequence[str], environment: Mapping[str, str], log: Path, seconds: float) -> Ended:
        """The end of `mhsh ARGUMENTS`; `log` names its output, and the files of that stay."""
        self._ask.write(json.dumps([list(arguments), dict(environment), str(log)]) + "\n")
        self._ask.flush()
        process = int(self._answers.readline())
        late = threading.Timer(seconds, os.kill, (process, signal.SIGKILL))
        late.start()
        status = int(self._answers.readline())
        late.cancel()
        return Ended(status, log.with_suffix(".out").read_text(), log.with_suffix(".err").read_text())

    def close(self) -> None:
        self._ask.close()
        os.waitpid(self._process, 0)


def _serve(asked: int, answer: int, environment: Mapping[str, str]) -> None:
    try:
        os.environ.update(environment)
        for name in MODULES:
            importlib.import_module(name)
        for line in os.fdopen(asked):
            process = os.fork()
            if not process:
                _run(*json.loads(line))
            os.write(answer, f"{process}\n".encode())
            _, status = os.waitpid(process, 0)
            os.write(answer, f"{os.waitstatus_to_exitcode(status)}\n".encode())
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(0)


def _run(arguments: Sequence[str], environment: Mapping[str, str], log: str) -> None:
    """As `mhsh.cli.start` runs it, and never returns."""
    status = 1
    with contextlib.suppress(BaseException):
        os.environ.update(environment)
        for number, end in ((1, ".out"), (2, ".err")):
            os.dup2(os.open(log + end, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600), number)
        from mhsh.cli import early_stop
        from mhsh.cli.main import main

        early_stop.end_at_once()
        try:
            status = main(arguments)
        except BaseException:
            traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(status)
