"""Commands of mhsh in forks of a process that has imported what training needs. Each is a process
of its own, with signals and an exit status, that starts within a tenth of a second. Where the start
of Python itself matters, tests start it (`tests.runs.command`).
"""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
_FORKS = multiprocessing.get_context("forkserver")
_IMPORTED = ["mhsh.training.loop", "mhsh.cli.main", "mhsh.cli.start", "mhsh.cli.train", "ml_collections", "gcsfs"]
_FORKS.set_forkserver_preload([*_IMPORTED, "tests.forks"])
gc.freeze()  # the server imports this module last: its forks need not copy what it has imported
gc.set_threshold(50_000, 20, 20)  # a run is too short for what it could free (4 % of its time)


class Fork:
    """A started command, with what the tests need of subprocess.Popen."""

    def __init__(self, arguments: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
        """`mhsh ARGUMENTS`, or with `-c` and a program that. No variable of jax's may differ from
        those here: it has read them.
        """
        self.args, variables = list(arguments), dict(environment or os.environ)
        assert {name for name, _ in variables.items() ^ os.environ.items() if name.startswith("JAX_")} == set()
        self._outputs = [tempfile.NamedTemporaryFile("r", encoding="utf-8") for _ in range(2)]  # noqa: SIM115 (they go with the Fork)
        names = [file.name for file in self._outputs]
        self._process = _FORKS.Process(target=_run, args=(self.args, variables, names))
        self._process.start()
        self.pid = self._process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def poll(self) -> int | None:
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if self.returncode is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
        return self.returncode

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        self.wait(timeout)
        out, err = (Path(file.name).read_text(encoding="utf-8") for file in self._outputs)
        for file in self._outputs:
            file.close()  # the traceback of a test that fails may keep it
        return out, err

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def _run(arguments: Sequence[str], variables: Mapping[str, str], outputs: Sequence[str]) -> None:
    """As `mhsh.cli.start` runs it; never returns."""
    status = 1
    with contextlib.suppress(BaseException):
        os.chdir(ROOT)
        os.environ.clear()
        os.environ.update(variables)
        for number, name in enumerate(outputs, 1):
            os.dup2(os.open(name, os.O_WRONLY | os.O_APPEND), number)
        sys.stdout.reconfigure(encoding="utf-8")
        from mhsh.cli import early_stop
        from mhsh.cli.main import main

        try:
            if arguments[0] == "-c":
                exec(compile(arguments[1], "<string>", "exec"), {"__name__": "__main__"})  # noqa: S102 (a program of the tests)
                status = 0
            else:
                early_stop.end_at_once() if arguments[0] in early_stop.TRAINING else early_stop.unwind()
                status = main(arguments)
        except BaseException:
            traceback.print_exc()
        early_stop.ignore()
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(status)
