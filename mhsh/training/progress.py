"""What a run says. While it trains, its figures: on a terminal one line that is written over again,
elsewhere a line every few seconds; evaluations, checkpoints and remarks are lines of their own on
both. At its end, whether it trained, by the rules of mhsh/storage/outcome.py.
"""

from __future__ import annotations

import math
import os
import statistics
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from mhsh.config.schema import TASKS, Config
from mhsh.storage.outcome import (
    ON_PLATEAU,
    SMOOTHED_SHARE,
    SPIKE_ROWS,
    is_spike,
    outcome_words,
    plateau_advice,
    plateau_deadline,
    plateau_outcome,
    plateau_words,
)
from mhsh.storage.run_folder import RunFolder
from mhsh.text import duration, format_loss, timing
from mhsh.training.trackers import Tracker

_SECONDS_BETWEEN_LINES = 10.0
_SECONDS_BETWEEN_PAINTS = 0.1
# The cursor stays at the start of the line: whoever prints next, or ends the process, prints over
# it. Clearing to the end of the screen also takes what a narrower window has wrapped.
_CLEAR = "\r\x1b[J"

_DOING = {
    "preparing": "preparing",
    "restoring": "restoring a checkpoint",
    "saving": "saving",
    "evaluating": "evaluating",
}  # by the clock's phase
_FIRST_LEFT_OUT = ("tokens", "mfu", "grad", "lr", "pace", "val", "loss")  # where the line is too long


def fit_line(words: Mapping[str, str], width: int) -> str:
    """The words on one line of at most `width` columns. What does not fit is left out,
    _FIRST_LEFT_OUT first.
    """
    shown = dict(words)
    for name in _FIRST_LEFT_OUT:
        if len("  ".join(shown.values())) > width:
            shown.pop(name, None)
    return "  ".join(shown.values())[:width]


class Display(Tracker):
    """Shows the newest figures of a run."""

    def __init__(self, name: str, num_steps: int, *, quiet: bool = False, alone: bool = True) -> None:
        """`quiet`: prints nothing. Only one of several processes prints. `alone`: no other run
        shows its figures on the same terminal.
        """
        self._name, self._num_steps, self._quiet = name, num_steps, quiet
        self._is_live = alone and not quiet and sys.stdout.isatty() and os.environ.get("TERM") != "dumb"
        self._row: Mapping[str, Any] | None = None
        self._validation: float | None = None
        self._step, self._began = 0, (0, 0.0)  # the first step of this process, and when it was done
        self._phase, self._doing = "", "preparing"
        self._last_line = self._last_paint = 0.0
        self._paint()

    def note(self, message: str) -> None:
        """Prints a line."""
        if self._quiet:
            return
        print(f"{_CLEAR if self._is_live else ''}{self._name}: {message}", flush=True)
        self._paint()

    def on_phase(self, phase: str) -> None:
        """A phase begins, one of the clock's PHASES."""
        before, self._phase = self._phase, phase
        doing = _DOING.get(phase, "")
        if phase == "compiling":
            doing = f"compiling the {'evaluation' if before == 'evaluating' else 'training step'}"
            if not self._is_live:
                self.note(doing)
        if doing != self._doing:
            self._doing = doing
            self._paint()

    def on_step(self, step: int) -> None:
        """A step is done."""
        now = time.monotonic()
        if not self._step:
            self._began = step, now
        self._step = step
        if self._is_live and now - self._last_paint > _SECONDS_BETWEEN_PAINTS:
            self._paint()

    def on_row(self, row: Mapping[str, Any]) -> None:
        if row["split"] == "validation":
            self._validation = row["loss"]
            self.note(f"step {row['step']}/{self._num_steps}  validation loss {format_loss(row['loss'])}")
            return
        self._row, is_last, now = row, row["step"] == self._num_steps, time.monotonic()
        if is_last or (not self._is_live and now - self._last_line > _SECONDS_BETWEEN_LINES):
            self._last_line = now
            self.note("step " + "  ".join(self._words(row["step"]).values()))
        else:
            self._paint()

    def close(self, *, failed: bool = False) -> None:
        """Takes the live line away; the lines stay."""
        if self._is_live:
            self._is_live = False
            print(_CLEAR, end="", flush=True)

    def _words(self, step: int) -> dict[str, str]:
        """The newest figures in words, by name."""
        words, row = {"step": f"{step}/{self._num_steps}"} if step else {}, self._row
        if row is None:
            return words
        words["loss"] = f"loss {format_loss(row['loss'])}"
        if self._validation is not None:
            words["val"] = f"val {format_loss(self._validation)}"
        words |= {"lr": f"lr {row['learning_rate']:.3g}", "grad": f"grad {row['grad_norm']:.2f}"}
        speed = row["tokens_per_second"]  # 0: the steps since the last row were of padding alone
        pace = row["tokens"] / row["step"] / speed if speed else 0.0
        words |= {"pace": f"{timing(pace)}/step", "tokens": f"{speed:,.0f} tokens/s"} if pace else {}
        if "mfu" in row:
            words["mfu"] = f"MFU {row['mfu']:.1%}"
        # Of all steps of this process, evaluations and checkpoints included.
        began, since = self._began
        seconds_left = (self._num_steps - step) * ((time.monotonic() - since) / (step - began) if step > began else pace)
        return words | ({"left": f"{duration(seconds_left)} left"} if seconds_left else {})

    def _paint(self) -> None:
        """Writes the live line, where there is one."""
        if not self._is_live:
            return
        self._last_paint = time.monotonic()
        words = self._words(self._step)
        if self._doing:
            words = {name: word for name, word in words.items() if name != "left"} | {"doing": self._doing}
        line = fit_line(words, (os.get_terminal_size(sys.stdout.fileno()).columns or 80) - 1)
        print(f"{_CLEAR}{line}\r", end="", flush=True)


class Remarks(Tracker):
    """Says that the loss of a run spikes, and that it seems stuck on the unigram plateau."""

    def __init__(self, config: Config, entropy: float, note: Callable[[str], None]) -> None:
        """`entropy` is the unigram entropy of the training text; `note` shows a line."""
        self._config, self._entropy, self._note = config, entropy, note
        rows = math.ceil(config.train.num_steps / config.train.log_interval * SMOOTHED_SHARE)
        self._last_tenth: deque[float] = deque(maxlen=rows)
        self._before: deque[float] = deque(maxlen=SPIKE_ROWS)
        self._is_spiking = self._is_told = False
        self._is_validated = 0 < config.train.eval_interval < config.train.num_steps and config.model.objective not in TASKS

    def on_row(self, row: Mapping[str, Any]) -> None:
        step, loss = row["step"], row["loss"]
        if row["split"] == "validation":
            if self._is_validated:
                self._look_for_plateau(step, loss, "validation")
            return
        was_spiking, self._is_spiking = self._is_spiking, "spike" in row or is_spike(self._before, loss)
        if self._is_spiking and not was_spiking:
            before = f"from {format_loss(self._before[-1])} " if self._before else ""  # a spike may be the first row
            self._note(f"step {step}: the training loss spikes {before}to {format_loss(loss)}")
        self._before.append(loss)
        self._last_tenth.append(loss)
        if not self._is_validated and len(self._last_tenth) == self._last_tenth.maxlen:
            self._look_for_plateau(step, statistics.fmean(self._last_tenth), "training")

    def _look_for_plateau(self, step: int, loss: float, split: str) -> None:
        is_due = plateau_deadline(self._config) <= step < self._config.train.num_steps
        if self._is_told or not is_due or plateau_outcome(self._config.model.objective, loss, None, self._entropy) != ON_PLATEAU:
            return
        self._is_told = True
        self._note(plateau_words(self._config, step, split, loss, self._entropy))


def last_lines(folder: RunFolder, config: Config) -> list[str]:
    """The last lines of a run that is finished or was stopped: how long it took in all its
    processes, its losses, whether it trained, and its newest checkpoint.
    """
    record, step, steps = folder.read_run("wall_seconds", "data"), folder.newest_checkpoint(), config.train.num_steps
    what = f"finished {steps} steps" if step == steps else f"stopped after step {step} of {steps}"
    lines = [f"{what}, in {duration(sum(record['wall_seconds'].values()))}"]
    at, losses = (column.tolist() for column in folder.read_metrics().series("validation", "step", "loss"))
    if losses:
        lowest = min(range(len(losses)), key=losses.__getitem__)
        other = f" (lowest: {format_loss(losses[lowest])} at step {at[lowest]:.0f})" if losses[lowest] < losses[-1] else ""
        lines.append(f"validation loss {format_loss(losses[-1])} at step {at[-1]:.0f}{other}")
    entropy, outcome = record["data"].get("unigram_entropy"), record.get("outcome")
    is_due = step == steps or (step or 0) >= plateau_deadline(config)  # before that the outcome says nothing yet
    if is_due and outcome is not None and entropy is not None:
        lines.append(outcome_words(outcome, config, entropy))
        if outcome == ON_PLATEAU and losses:
            lines.append(f"to try in another --workdir: {plateau_advice(config, losses[-1], entropy)}")
    return [*lines, f"checkpoint {folder.checkpoints_path / str(step)}"]
