"""The remarks on a run by the rules of mhsh/storage/outcome.py: while it trains, that its loss
spikes, and that it seems stuck on the unigram plateau; at its end, whether it trained.
"""

from __future__ import annotations

import math
import statistics
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
from mhsh.text import duration, format_loss
from mhsh.training.trackers import Tracker


class Remarks(Tracker):
    """Remarks on the rows of a run."""

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
