"""The rows of metrics.jsonl. A step's metrics are fetched one step late, so that the device never
waits for the host.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from types import TracebackType
from typing import Any

import jax

from mhsh.config.schema import Config
from mhsh.models.costs import PEAK_FLOPS, step_flops
from mhsh.run_folder import Counters, RunFolder
from mhsh.training.checkpoints.verify import as_hex
from mhsh.training.step import StepMetrics
from mhsh.training.tracking.progress import ProgressDisplay
from mhsh.training.tracking.tensorboard import TensorBoard
from mhsh.training.tracking.tracker import Tracker
from mhsh.training.tracking.wandb_run import WandbRun

_UPLOAD_SECONDS = 30.0


class Clock:
    """Seconds of training. Evaluation and saving run inside `paused` and do not count."""

    def __init__(self, seconds: float) -> None:
        self._start = time.monotonic() - seconds

    def seconds(self) -> float:
        """Seconds so far, including those before a resume."""
        return time.monotonic() - self._start

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Stops the clock inside the context."""
        begin = time.monotonic()
        yield
        self._start += time.monotonic() - begin


class Log:
    """Writes the rows of a run (only process 0 does), shows them, and counts tokens and FLOPs."""

    def __init__(self, config: Config, folder: RunFolder, start: int, used: Counters, display: ProgressDisplay) -> None:
        """Continues after step `start`, whose checkpoint counted `used`."""
        self._writer = MetricsWriter(config, folder, start, used.rows, display.note) if jax.process_index() == 0 else None
        self._display = display
        self._config, self._interval = config, config.train.log_interval
        self._peak = PEAK_FLOPS.get(jax.devices()[0].device_kind)
        self._tokens, self._flops = used.tokens, used.flops
        self._last = (used.flops, used.tokens, used.seconds)
        self._pending: tuple[int, int, StepMetrics] | None = None
        self.clock = Clock(used.seconds)
        self.skipped_in_a_row = 0

    def __enter__(self) -> Log:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._writer is not None:
            self._writer.close(failed=error is not None)

    def begin(self, step: int, length: int, metrics: StepMetrics) -> None:
        """Takes the metrics of a step that may still be running; its rows have `length` tokens."""
        self._pending = (step, length, metrics)

    def finish_previous(self, *, always: bool = False) -> None:
        """Waits for the pending step. Writes its row if log_interval says so, if its update was
        skipped, or `always`.
        """
        if self._pending is None:
            return
        step, length, metrics = self._pending
        self._pending = None
        sums, is_finite, batch = jax.device_get(tuple(metrics))
        values = {name: float(each.sum) / float(each.weight) for name, each in sums.items()}
        self._tokens += int(values.pop("tokens"))
        self._flops += step_flops(self._config, length)
        self.skipped_in_a_row = 0 if is_finite else self.skipped_in_a_row + 1
        if not (always or not is_finite or step % self._interval == 0):
            return
        row = self._row(step, "train", self.clock.seconds(), values) | {"batch": as_hex(batch)}
        if not is_finite:
            row["skipped"] = True
            self._display.note(f"step {step}: the loss or a gradient is not finite; the update is skipped (batch {row['batch']})")
        self._write(row | self._rates(row["seconds"]))

    def validation(self, step: int, values: dict[str, float], batches: str) -> None:
        """Writes a validation row; `batches` is the checksum of all its batches."""
        self._write(self._row(step, "validation", self._last[2], values) | {"batch": batches})

    def note(self, message: str) -> None:
        """Shows a line beside the rows."""
        self._display.note(message)

    def counters(self) -> Counters:
        """What has been used up to the last row. All rows are on the disk then: a checkpoint must
        not be newer than they are.
        """
        if self._writer is not None:
            self._writer.flush()
            self._writer.sync()
        flops, tokens, seconds = self._last
        return Counters(tokens, flops, seconds, self._writer.rows if self._writer is not None else 0)

    def _rates(self, seconds: float) -> dict[str, float]:
        """Tokens and FLOPs a second since the last row, and the share of the devices' peak if that
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

    def _write(self, row: dict[str, Any]) -> None:
        if self._writer is not None:
            self._writer.write(row)
            self._display.show(row)


class MetricsWriter:
    """Appends rows to metrics.jsonl, which ends with `step`, and to the tracker.

    Files in a bucket can only be replaced: there, rows are collected and uploaded every
    _UPLOAD_SECONDS and at `flush`.
    """

    def __init__(self, config: Config, folder: RunFolder, step: int, rows: int, note: Callable[[str], None]) -> None:
        """`rows`: how many there are."""
        self.rows = rows
        self._folder = folder
        self._rows: list[Mapping[str, Any]] = []
        self._uploaded = time.monotonic()
        self._tracker = _open_tracker(config, folder, step, note)

    def write(self, row: Mapping[str, Any]) -> None:
        """Adds the row of one step and split."""
        self._rows.append(row)
        self.rows += 1
        self._tracker.write(row)
        if not self._folder.is_remote or time.monotonic() - self._uploaded > _UPLOAD_SECONDS:
            self.flush()

    def flush(self) -> None:
        """Writes all rows so far."""
        self._folder.append_metrics(self._rows)
        self._rows = []
        self._tracker.flush()
        self._uploaded = time.monotonic()

    def sync(self) -> None:
        """Flushes the rows that are written to the disk."""
        self._folder.sync_metrics()

    def close(self, *, failed: bool) -> None:
        """Writes all rows and closes the tracker; `failed`: an error has ended the run."""
        self.flush()
        self._tracker.close(failed=failed)


def _open_tracker(config: Config, folder: RunFolder, step: int, note: Callable[[str], None]) -> Tracker:
    if config.train.tracker == "tensorboard":
        return TensorBoard(folder, step)
    return WandbRun(folder, note)
