"""The rows of a run: each step's figures, fetched one step late so that the device never waits for
the host.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any

import jax

from mhsh.config.schema import Config
from mhsh.models.costs import PEAK_FLOPS, step_flops
from mhsh.run_folder import RunFolder
from mhsh.training.checksum import as_hex
from mhsh.training.progress import ProgressDisplay
from mhsh.training.recorder import Recorder
from mhsh.training.step import StepMetrics


class Clock:
    """Seconds spent training; what runs inside `paused` (evaluation, saving) does not count."""

    def __init__(self, seconds: float) -> None:
        self._start = time.monotonic() - seconds

    def seconds(self) -> float:
        """Training seconds so far, those before a resume included."""
        return time.monotonic() - self._start

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Stops the clock for a while."""
        begin = time.monotonic()
        yield
        self._start += time.monotonic() - begin


class Log:
    """Writes rows (process 0 alone does) and keeps count of what they accumulate."""

    def __init__(self, config: Config, folder: RunFolder, start: int) -> None:
        """Goes on after step `start`: rows after it are dropped, tokens and seconds up to it are
        taken over.
        """
        self._recorder = Recorder(folder, start) if jax.process_index() == 0 else None
        rows = [row for row in folder.read_metrics().rows if row["split"] == "train" and row["step"] <= start]
        last = rows[-1] if rows else {"tokens": 0, "flops": 0, "seconds": 0.0}
        self._config, self._interval = config, config.train.log_interval
        self._peak = PEAK_FLOPS.get(jax.devices()[0].device_kind)
        self._tokens: int = last["tokens"]
        self._flops: int = last["flops"]
        self._last = (self._flops, self._tokens, last["seconds"])
        self._pending: tuple[int, int, StepMetrics] | None = None
        self.clock = Clock(last["seconds"])
        self.skipped_in_a_row = 0

    def begin(self, step: int, length: int, report: StepMetrics) -> None:
        """Takes the report of a step, over rows of `length` tokens, that may still be running."""
        self._pending = (step, length, report)

    def finish_previous(self, display: ProgressDisplay, *, always: bool = False) -> None:
        """Waits for the pending step; writes its row where the interval, `always` or a skipped
        update says so.
        """
        if self._pending is None:
            return
        step, length, report = self._pending
        self._pending = None
        means, applied, batch = jax.device_get(tuple(report))
        values = {name: float(mean.sum) / float(mean.weight) for name, mean in means.items()}
        self._tokens += int(values.pop("tokens"))
        self._flops += step_flops(self._config, length)
        self.skipped_in_a_row = 0 if applied else self.skipped_in_a_row + 1
        if not (always or not applied or step % self._interval == 0):
            return
        row = self._row(step, "train", self.clock.seconds(), values) | {"batch": as_hex(batch)}
        if not applied:
            row["skipped"] = True
            display.note(f"step {step}: the loss or a gradient is not finite; the update is not applied (batch {row['batch']})")
        self._write(row | self._rates(row["seconds"]), display)

    def validation(self, step: int, values: dict[str, float], display: ProgressDisplay) -> None:
        """Writes a row of validation figures."""
        self._write(self._row(step, "validation", self._last[2], values), display)

    def flush(self) -> None:
        """Everything so far is where it belongs."""
        if self._recorder is not None:
            self._recorder.flush()

    def close(self) -> None:
        """Ends the files."""
        if self._recorder is not None:
            self._recorder.close()

    def _rates(self, seconds: float) -> dict[str, float]:
        """Tokens and FLOPs a second since the row before; the share of the devices' peak where that
        is known.
        """
        last_flops, last_tokens, last_seconds = self._last
        elapsed = max(seconds - last_seconds, 1e-9)
        flops_per_second = (self._flops - last_flops) / elapsed
        rates = {"tokens_per_second": (self._tokens - last_tokens) / elapsed, "flops_per_second": flops_per_second}
        if self._peak:
            rates["mfu"] = flops_per_second / (self._peak * jax.device_count())
        self._last = (self._flops, self._tokens, seconds)
        return rates

    def _row(self, step: int, split: str, seconds: float, values: dict[str, float]) -> dict[str, Any]:
        values = {name.removeprefix("target_"): value for name, value in values.items()}
        return {"step": step, "split": split, "tokens": self._tokens, "flops": self._flops, "seconds": seconds} | values

    def _write(self, row: dict[str, Any], display: ProgressDisplay) -> None:
        if self._recorder is not None:
            self._recorder.write(row)
            display.show(row)
