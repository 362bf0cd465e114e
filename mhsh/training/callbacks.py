"""What watches a run: one interface, and the watchers that every run has. Trackers are in
trackers.py. A callback changes no number of the run.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import jax
from etils import epath
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from mhsh.config.resolve import profiled_steps
from mhsh.config.schema import TrainConfig
from mhsh.run_folder import PROFILE_FOLDER

# What a run does at a moment. While the host is `waiting` for data, the device may still be at the
# step before.
PHASES = ("training", "preparing", "compiling", "restoring", "saving", "evaluating", "waiting")
_STANDARD_ERROR = 2  # the file descriptor: sys.stderr may have been replaced

Item = TypeVar("Item")


class Callback:
    """Is told what a run does. By default it does nothing."""

    def on_phase(self, phase: str) -> None:
        """From now on the run does this, one of PHASES."""

    def on_progress(self) -> None:
        """A step, or a batch of an evaluation, is done."""

    def before_step(self, step: int, state: Any) -> None:
        """`step` is about to be started from `state`."""

    def after_step(self, step: int, state: Any) -> None:
        """`step` has been started; the device may still be computing `state`."""

    def on_row(self, row: Mapping[str, Any]) -> None:
        """Takes the row of one step and split, in the order of the steps."""

    def flush(self) -> None:
        """Writes all rows so far."""

    def close(self, *, failed: bool) -> None:
        """Writes all rows and ends; `failed`: an error has ended the run."""


class Callbacks(Callback):
    """The callbacks of a run, told in order. A run begins in the phase `preparing`. A context, at
    whose end they are closed.
    """

    def __init__(self, *callbacks: Callback) -> None:
        self._callbacks = list(callbacks)
        self._phase = "preparing"

    def __enter__(self) -> Callbacks:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close(failed=error is not None)

    def add(self, *callbacks: Callback) -> None:
        """They are told what comes from now on."""
        self._callbacks += callbacks

    @contextlib.contextmanager
    def phase(self, phase: str) -> Iterator[None]:
        """What runs inside the context is of this phase, except for contexts inside it."""
        before = self._phase
        self.on_phase(phase)
        try:
            yield
        finally:
            self.on_phase(before)

    def waiting(self, items: Iterable[Item]) -> Iterator[Item]:
        """The items; the time until the next one is there is of the phase `waiting`."""
        iterator = iter(items)
        while True:
            with self.phase("waiting"):
                try:
                    item = next(iterator)
                except StopIteration:
                    return
            yield item

    def on_phase(self, phase: str) -> None:
        self._phase = phase
        for callback in self._callbacks:
            callback.on_phase(phase)

    def on_progress(self) -> None:
        for callback in self._callbacks:
            callback.on_progress()

    def before_step(self, step: int, state: Any) -> None:
        for callback in self._callbacks:
            callback.before_step(step, state)

    def after_step(self, step: int, state: Any) -> None:
        for callback in self._callbacks:
            callback.after_step(step, state)

    def on_row(self, row: Mapping[str, Any]) -> None:
        for callback in self._callbacks:
            callback.on_row(row)

    def flush(self) -> None:
        for callback in self._callbacks:
            callback.flush()

    def close(self, *, failed: bool) -> None:
        for callback in self._callbacks:
            callback.close(failed=failed)


class WallTime(Callback):
    """Seconds of a run by phase, and those of steps whose results were lost when a process died
    (`repeated`). All of it is the `wall_seconds` of run.json.
    """

    def __init__(self) -> None:
        self._seconds = dict.fromkeys((*PHASES, "repeated"), 0.0)
        self._phase, self._since = "preparing", time.monotonic()

    def on_phase(self, phase: str) -> None:
        now = time.monotonic()
        self._seconds[self._phase] += now - self._since
        self._phase, self._since = phase, now

    def add(self, before: Mapping[str, float]) -> None:
        """Adds seconds of an earlier process."""
        for kind in self._seconds:
            self._seconds[kind] += before.get(kind, 0.0)

    def seconds(self) -> dict[str, float]:
        """Up to now."""
        self.on_phase(self._phase)
        return {kind: round(seconds, 3) for kind, seconds in self._seconds.items()}

    def trained(self) -> float:
        """Seconds of training up to now, waiting for data included."""
        self.on_phase(self._phase)
        return self._seconds["training"] + self._seconds["waiting"]


def format_wall_time(seconds: Mapping[str, float]) -> str:
    """93 % of the wall time was training; compiling 3 %, ..., the largest first."""
    total = sum(seconds.values()) or 1.0
    others = sorted((kind for kind in seconds if kind != "training"), key=lambda kind: -seconds[kind])
    named = [f"{kind} {seconds[kind] / total:.0%}" for kind in others if seconds[kind] >= 0.005 * total]
    return f"{seconds['training'] / total:.0%} of the wall time was training" + (f"; {', '.join(named)}" if named else "")


class ProgressDisplay(Callback):
    """The newest metrics of a run: a bar on a terminal, elsewhere a line every few seconds. Every
    validation is a line that stays.
    """

    SECONDS_BETWEEN_LINES = 10.0

    def __init__(self, name: str, num_steps: int, *, quiet: bool = False) -> None:
        """`quiet`: prints nothing. Only one of several processes prints."""
        self._console = Console(quiet=quiet)
        # FORCE_COLOR, which notebooks set, asks for colours; to rich any file is a terminal then.
        self._has_bar = self._console.is_terminal and self._console.file.isatty()
        self._name, self._num_steps = name, num_steps
        self._last_line = 0.0
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=20),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[figures]}"),
            console=self._console,
            disable=not self._has_bar,
        )
        self._task = self._bar.add_task(name, total=num_steps, figures="")

    def begin(self, step: int) -> None:
        """Shows the bar, from the step on that the run starts from."""
        self._bar.update(self._task, completed=step)
        self._bar.start()

    def note(self, message: str) -> None:
        """Prints a line that stays."""
        self._console.print(f"{self._name}: {message}", highlight=False, markup=False, soft_wrap=True)

    def on_row(self, row: Mapping[str, Any]) -> None:
        step, loss = row["step"], row["loss"]
        if row["split"] == "validation":
            self.note(f"step {step}/{self._num_steps}  validation loss {loss:.4f}")
            return
        figures = f"loss {loss:.4f}  {row['tokens_per_second']:,.0f} tokens/s"
        self._bar.update(self._task, completed=step, figures=figures)
        now = time.monotonic()
        if not self._has_bar and (now - self._last_line > self.SECONDS_BETWEEN_LINES or step == self._num_steps):
            self._last_line = now
            self.note(f"step {step}/{self._num_steps}  {figures}")

    def close(self, *, failed: bool) -> None:
        self._bar.stop()


class Watchdog(Callback):
    """Ends a process that hangs, with status 75 and the stacks of its threads, so that the same
    command goes on from the last checkpoint. A collective hangs when another process does not take
    part in it.

    It watches the phases `training`, `waiting` and `evaluating`. The others may wait for storage,
    or for another process that compiles.
    """

    TIMES_LONGEST, LEAST_SECONDS = 20, 300.0
    # After the limit, a thread that keeps Python from running is ended by a timer of C, with
    # status 1.
    GRACE_SECONDS = 30

    def __init__(self, seconds: int) -> None:
        """The process ends if nothing is done within so many seconds; 0: TIMES_LONGEST times the
        longest step so far, and at least LEAST_SECONDS.
        """
        self._fixed = float(seconds)
        self._longest: float | None = None  # None: no step is done yet
        self._last: float | None = None  # None: it does not watch this phase
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

    def on_phase(self, phase: str) -> None:
        if phase not in ("training", "waiting", "evaluating"):
            self._last = None
            faulthandler.cancel_dump_traceback_later()
        elif self._last is None:
            self._last = time.monotonic()
            if self._thread is None:
                self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)
                self._thread.start()

    def on_progress(self) -> None:
        now = time.monotonic()
        if self._last is not None:
            self._longest = max(self._longest or 0.0, now - self._last)
            self._last = now

    def close(self, *, failed: bool) -> None:
        self._closed.set()
        if self._thread is not None:
            self._thread.join()
        self._last = None
        faulthandler.cancel_dump_traceback_later()

    def limit(self) -> float | None:
        """Seconds; None: not known yet."""
        if self._fixed:
            return self._fixed
        return None if self._longest is None else max(self.LEAST_SECONDS, self.TIMES_LONGEST * self._longest)

    def _watch(self) -> None:
        while not self._closed.wait(min(1.0, (self.limit() or self.LEAST_SECONDS) / 10)):
            last, limit = self._last, self.limit()
            if last is None or limit is None:
                faulthandler.cancel_dump_traceback_later()
                continue
            # Here and not at every step: setting the timer starts a thread.
            faulthandler.dump_traceback_later(limit + self.GRACE_SECONDS, exit=True, file=_STANDARD_ERROR)
            if time.monotonic() - last > limit:
                said = f"nothing was done for {limit:.0f} s: this process hangs; run the same command again (its stacks follow)"
                os.write(_STANDARD_ERROR, f"mhsh: {said}\n".encode())
                faulthandler.dump_traceback(_STANDARD_ERROR)
                os._exit(os.EX_TEMPFAIL)


class Profiler(Callback):
    """A trace of the steps that train.profile_steps names, by jax.profiler on every process, for
    xprof (`xprof --logdir=RUN/profile`) and Perfetto (the .trace.json.gz).
    """

    def __init__(self, train: TrainConfig, folder: epath.Path, callbacks: Callbacks, display: ProgressDisplay) -> None:
        self._first, self._last = profiled_steps(train.profile_steps, train.num_steps) or (None, None)
        self._folder = folder / PROFILE_FOLDER
        self._callbacks, self._display = callbacks, display
        self._trace: Path | None = None

    def before_step(self, step: int, state: Any) -> None:
        if step != self._first:
            return
        jax.block_until_ready(state)  # the device has made the steps before
        self._trace = Path(tempfile.mkdtemp(prefix="mhsh-profile-"))
        options = jax.profiler.ProfileOptions()
        options.python_tracer_level = 0  # it would slow down what is measured
        jax.profiler.start_trace(str(self._trace), profiler_options=options)

    def after_step(self, step: int, state: Any) -> None:
        if step != self._last:
            return
        if self._trace is None:
            self._display.note(f"no profile: the run was resumed after step {self._first}")
            return
        with self._callbacks.phase("saving"):
            jax.block_until_ready(state)
            jax.profiler.stop_trace()
            # As xprof expects it: a folder a session, and in it the files of each host. An earlier
            # trace of the same steps is replaced.
            session = self._folder / "plugins" / "profile" / f"steps_{self._first}_to_{self._last}"
            session.mkdir(parents=True, exist_ok=True)
            for file in self._trace.rglob("*.*"):
                if file.is_file():
                    (session / f"process_{jax.process_index()}.{file.name.split('.', 1)[1]}").write_bytes(file.read_bytes())
            shutil.rmtree(self._trace)
        steps = f"steps {self._first} to {self._last}"
        self._display.note(f"profile of {steps}: {self._folder} (xprof --logdir, or the .trace.json.gz in Perfetto)")
