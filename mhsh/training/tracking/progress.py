"""Progress of a run: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Mapping
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

SECONDS_BETWEEN_LINES = 10.0


class ProgressDisplay:
    """Shows the newest metrics of a run. Prints every validation, and training metrics every few
    seconds.
    """

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

    def __enter__(self) -> ProgressDisplay:
        self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._bar.stop()

    def begin(self, step: int) -> None:
        """Sets the step that the run starts from."""
        self._bar.update(self._task, completed=step)

    def note(self, message: str) -> None:
        """Prints a line that stays."""
        self._console.print(f"{self._name}: {message}", highlight=False, markup=False, soft_wrap=True)

    def show(self, row: Mapping[str, Any]) -> None:
        """Shows one row of metrics."""
        step, loss = row["step"], row["loss"]
        if row["split"] == "validation":
            self.note(f"step {step}/{self._num_steps}  validation loss {loss:.4f}")
            return
        figures = f"loss {loss:.4f}  {row['tokens_per_second']:,.0f} tokens/s"
        self._bar.update(self._task, completed=step, figures=figures)
        now = time.monotonic()
        if not self._has_bar and (now - self._last_line > SECONDS_BETWEEN_LINES or step == self._num_steps):
            self._last_line = now
            self.note(f"step {step}/{self._num_steps}  {figures}")
