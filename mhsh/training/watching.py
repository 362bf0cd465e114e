"""The instruments that watch a run: the clock of its phases, the watchdog and the profiler. None of
them changes a number of the run.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TypeVar

import jax
from etils import epath

from mhsh.config.resolve import profiled_steps
from mhsh.config.schema import TrainConfig
from mhsh.storage.files import make_folder
from mhsh.storage.questions import is_file
from mhsh.storage.run_folder import PROFILE_FOLDER

# What a run does at a moment. While the host is `waiting` for data, the device may still be at the
# step before. Of runs that are trained together one after the other logs, validates and saves, and
# the others are `pausing`.
PHASES = ("training", "preparing", "compiling", "restoring", "saving", "evaluating", "waiting", "pausing")
_STANDARD_ERROR = 2  # the file descriptor: sys.stderr may have been replaced

Item = TypeVar("Item")


class Clock:
    """Seconds of a run by phase, and those of steps whose results were lost when a process died
    (`repeated`): the `wall_seconds` of run.json. A run begins in the phase `preparing`.
    """

    def __init__(self, *on_phase: Callable[[str], None]) -> None:
        """Each `on_phase` is told every phase that begins."""
        self._seconds = dict.fromkeys((*PHASES, "repeated"), 0.0)
        self._phase, self._since = "preparing", time.monotonic()
        self._paused = self._phase
        self._on_phase = on_phase

    @contextlib.contextmanager
    def phase(self, phase: str) -> Iterator[None]:
        """Counts the time inside the context to this phase, except for contexts inside it."""
        before = self._phase
        self._begin(phase)
        try:
            yield
        finally:
            self._begin(before)

    def pause(self) -> None:
        """Begins a pause, which `resume` ends."""
        self._paused = self._phase
        self._begin("pausing")

    def resume(self) -> None:
        """Ends a pause: the phase before it goes on."""
        self._begin(self._paused)

    def time_waits(self, items: Iterable[Item]) -> Iterator[Item]:
        """Yields the items, and counts the time until each is there to the phase `waiting`."""
        iterator = iter(items)
        while True:
            with self.phase("waiting"):
                try:
                    item = next(iterator)
                except StopIteration:
                    return
            yield item

    def add(self, seconds: Mapping[str, float]) -> None:
        """Adds seconds of an earlier process."""
        for kind in self._seconds:
            self._seconds[kind] += seconds.get(kind, 0.0)

    def seconds(self) -> dict[str, float]:
        """The seconds of each phase up to now."""
        self._count()
        return {kind: round(seconds, 3) for kind, seconds in self._seconds.items()}

    def training_seconds(self) -> float:
        """Seconds of training up to now, waiting for data included."""
        self._count()
        return self._seconds["training"] + self._seconds["waiting"]

    def _begin(self, phase: str) -> None:
        self._count()
        self._phase = phase
        for tell in self._on_phase:
            tell(phase)

    def _count(self) -> None:
        now = time.monotonic()
        self._seconds[self._phase] += now - self._since
        self._since = now


class Watchdog:
    """Ends a process that hangs, with status 75 and the stacks of its threads, so that the same
    command goes on from the last checkpoint. A collective hangs when another process does not take
    part in it.

    It watches the phases `training`, `waiting` and `evaluating`. The others may wait for storage,
    or for another process that compiles. Time in which the process is stopped (Ctrl-Z) does not
    count.
    """

    TIMES_LONGEST, LEAST_SECONDS = 20, 300.0

    def __init__(self, seconds: int) -> None:
        """The process ends if nothing is done within so many seconds; 0: TIMES_LONGEST times the
        longest step so far, and at least LEAST_SECONDS.
        """
        self._fixed = float(seconds)
        self._longest: float | None = None  # None: no step is done yet
        self._last: float | None = None  # None: it does not watch this phase
        self._ran = time.monotonic()  # when the process was last seen to run
        self._lock = threading.RLock()  # the watch and the run both move `_last`
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

    def on_phase(self, phase: str) -> None:
        """A phase begins, one of PHASES."""
        with self._lock:
            if phase not in ("training", "waiting", "evaluating"):
                self._last = None
            elif self._last is None:
                self._last = self._ran = time.monotonic()
                if self._thread is None:
                    self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)
                    self._thread.start()

    def on_progress(self) -> None:
        """A step, or a batch of an evaluation, is done."""
        with self._lock:
            now = self.on_wake()
            if self._last is not None:
                self._longest = max(self._longest or 0.0, now - self._last)
                self._last = now

    def on_wake(self) -> float:
        """The process runs. The watch calls this every `_interval` seconds: over a longer gap no
        thread ran, which does not count. Returns the time.
        """
        with self._lock:
            now = time.monotonic()
            stopped = now - self._ran - 2 * self._interval()
            if stopped > 0 and self._last is not None:
                self._last += stopped
            self._ran = now
            return now

    def close(self) -> None:
        """Ends the watch."""
        self._closed.set()
        if self._thread is not None:
            self._thread.join()

    def limit(self) -> float | None:
        """The seconds after which the process ends; None: not known yet."""
        if self._fixed:
            return self._fixed
        return None if self._longest is None else max(self.LEAST_SECONDS, self.TIMES_LONGEST * self._longest)

    def _interval(self) -> float:
        return min(1.0, (self.limit() or self.LEAST_SECONDS) / 10)

    def _watch(self) -> None:
        while not self._closed.wait(self._interval()):
            now = self.on_wake()
            last, limit = self._last, self.limit()
            if last is not None and limit is not None and now - last > limit:
                message = f"nothing was done for {limit:.0f} s: this process hangs; run the same command again (its stacks follow)"
                os.write(_STANDARD_ERROR, f"mhsh: {message}\n".encode())
                faulthandler.dump_traceback(_STANDARD_ERROR)
                os._exit(os.EX_TEMPFAIL)


class Profiler:
    """A trace of the steps that train.profile_steps names, by jax.profiler on every process, for
    xprof (`xprof --logdir=RUN/profile`) and Perfetto (the .trace.json.gz).
    """

    def __init__(self, train: TrainConfig, folder: epath.Path, clock: Clock, note: Callable[[str], None]) -> None:
        self._first, self._last = profiled_steps(train.profile_steps, train.num_steps) or (None, None)
        self._folder = folder / PROFILE_FOLDER
        self._clock, self._note = clock, note
        self._trace: Path | None = None

    def before_step(self, step: int, wait: Callable[[], None]) -> None:
        """`step` is about to be started; `wait` returns when all before it are done."""
        if step != self._first:
            return
        wait()
        self._trace = Path(tempfile.mkdtemp(prefix="mhsh-profile-"))
        options = jax.profiler.ProfileOptions()
        options.python_tracer_level = 0  # it would slow down what is measured
        jax.profiler.start_trace(str(self._trace), profiler_options=options)

    def after_step(self, step: int, wait: Callable[[], None]) -> None:
        """`step` has been started; `wait` returns when it is done."""
        if step != self._last:
            return
        if self._trace is None:
            self._note(f"no profile: the run was resumed after step {self._first}")
            return
        with self._clock.phase("saving"):
            wait()
            jax.profiler.stop_trace()
            # As xprof expects it: a folder a session, and in it the files of each host. An earlier
            # trace of the same steps is replaced.
            session = self._folder / "plugins" / "profile" / f"steps_{self._first}_to_{self._last}"
            make_folder(session)
            for file in self._trace.rglob("*.*"):
                if is_file(file):
                    (session / f"process_{jax.process_index()}.{file.name.split('.', 1)[1]}").write_bytes(file.read_bytes())
            shutil.rmtree(self._trace)
        steps = f"steps {self._first} to {self._last}"
        self._note(f"profile of {steps}: {self._folder} (xprof --logdir, or the .trace.json.gz in Perfetto)")
