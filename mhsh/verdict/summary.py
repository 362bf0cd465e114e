"""The numbers of one run: losses, cost, size, and whether it left the unigram plateau."""

from __future__ import annotations

import dataclasses

import numpy as np

from mhsh.outcome import DIVERGED, plateau_outcome, smoothed_final
from mhsh.verdict.curves import Curve
from mhsh.verdict.runs import Run


@dataclasses.dataclass(frozen=True)
class LossAtStep:
    """A loss (nats per predicted token) and the step it was measured at."""

    loss: float
    step: int


@dataclasses.dataclass(frozen=True)
class Summary:
    """The numbers of one run. None: not recorded. A nan loss: not finite."""

    name: str
    status: str | None  # running, finished or stopped, as training last wrote it
    final_validation: LossAtStep | None  # the last validation row
    final_train: float | None  # by SMOOTHING_RULE
    last_step: int | None
    tokens: float | None  # cumulative training tokens
    seconds: float | None  # cumulative device-side training seconds, compilation excluded
    goodput: float | None  # the share of the wall time that trained
    outcome: str  # LEFT, ON_PLATEAU, DIVERGED, NOT_KNOWN or NO_METRICS, by PLATEAU_RULE


def summarize(run: Run) -> Summary:
    """Computes the Summary of a loaded run."""
    train, validation = run.curves["train"], run.curves["validation"]
    final_train = smoothed_final(train.loss)
    final_validation = _point(validation, len(validation) - 1) if len(validation) else None
    entropy = run.recorded_number("data", "unigram_entropy")
    status = run.recorded("status")
    last_step = _last(run, "step")
    validated = final_validation.loss if final_validation and final_validation.step == last_step else None
    gave_up = run.recorded("outcome") == DIVERGED  # training ended the run, as its losses were not finite
    diverged = gave_up or (final_validation is not None and not np.isfinite(final_validation.loss))
    return Summary(
        name=run.name,
        status=status if status in ("running", "finished", "stopped") else None,
        final_validation=final_validation,
        final_train=final_train,
        last_step=None if last_step is None else int(last_step),
        tokens=_last(run, "tokens"),
        seconds=_last(run, "seconds"),
        goodput=_goodput(run),
        outcome=plateau_outcome(final_train, validated, entropy, diverged),
    )


def _goodput(run: Run) -> float | None:
    kinds = run.recorded("wall_seconds")
    seconds = [run.recorded_number("wall_seconds", kind) or 0.0 for kind in kinds] if isinstance(kinds, dict) else []
    training = run.recorded_number("wall_seconds", "training")
    return None if training is None or not sum(seconds) else training / sum(seconds)


def _point(curve: Curve, index: int) -> LossAtStep:
    return LossAtStep(float(curve.loss[index]), int(curve.x["step"][index]))


def _last(run: Run, axis: str) -> float | None:
    """The largest recorded value of a cumulative axis over both splits."""
    values = np.concatenate([curve.x[axis] for curve in run.curves.values()])
    values = values[np.isfinite(values)]
    return float(values.max()) if len(values) else None
