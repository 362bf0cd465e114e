"""What a run remarks on while it trains: spikes of the loss, and that it seems stuck on the unigram
plateau. The rules are those of mhsh/storage/outcome.py.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from mhsh.config.schema import Config
from mhsh.storage.outcome import (
    ON_PLATEAU,
    SMOOTHED_SHARE,
    SPIKE_ROWS,
    is_spike,
    plateau_due,
    plateau_outcome,
    plateau_words,
)
from mhsh.text import format_loss
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
        self._is_validated = 0 < config.train.eval_interval < config.train.num_steps

    def on_row(self, row: Mapping[str, Any]) -> None:
        step, loss = row["step"], row["loss"]
        if row["split"] == "validation":
            self._look_for_plateau(step, loss, "validation")
            return
        was_spiking, self._is_spiking = self._is_spiking, "spike" in row or is_spike(self._before, loss)
        if self._is_spiking and not was_spiking:
            self._note(f"step {step}: the training loss spikes from {format_loss(self._before[-1])} to {format_loss(loss)}")
        self._before.append(loss)
        self._last_tenth.append(loss)
        if not self._is_validated and len(self._last_tenth) == self._last_tenth.maxlen:
            self._look_for_plateau(step, statistics.fmean(self._last_tenth), "training")

    def _look_for_plateau(self, step: int, loss: float, split: str) -> None:
        is_due = plateau_due(self._config) <= step < self._config.train.num_steps
        if self._is_told or not is_due or plateau_outcome(None, loss, self._entropy) != ON_PLATEAU:
            return
        self._is_told = True
        self._note(plateau_words(self._config, step, split, loss, self._entropy))
