"""How steadily runs train: spikes of the loss, the norm of the gradient, and the highest value of a
tuned field that trains.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from mhsh.storage.outcome import SPIKE_ROWS, SPIKE_RULE, is_spike
from mhsh.verdict.groups import Group
from mhsh.verdict.runs import Curve

QUANTILES = (0.5, 0.99, 1.0)
STABILITY_RULE = (
    f"{SPIKE_RULE} A step that spikes between two logged ones is logged, too. Spikes per 1,000 steps are those of all steps that "
    "were trained, by the runs that logged a loss; quantiles of the gradient's norm are of the logged steps after the first "
    f"{SPIKE_ROWS}. The highest value that trains is the highest of those tried at which all runs that ended have trained. "
    "None of it is tested."
)


@dataclasses.dataclass(frozen=True)
class Stability:
    """The stability of all runs of one group together, whether they trained or not."""

    spikes: float  # per 1,000 steps
    first_spike: tuple[str, float, float] | None  # the run with the highest: its name, the step, the loss there
    gradient_norm: tuple[float, ...]  # by QUANTILES; empty: not logged
    highest_trained: float | None  # of the tuned field, that trains; None: not tuned, or none does


def stability(group: Group) -> Stability | None:
    """The stability of a group by STABILITY_RULE; None where no run has logged a training loss."""
    runs = [run for run in group.runs if len(run.curves["train"])]
    if not runs:
        return None
    spikes = {run.name: spikes_of(run.curves["train"]) for run in runs}
    steps = sum(float(run.curves["train"].steps[-1]) for run in runs)
    count = sum(map(len, spikes.values()))
    highest = max(((loss, name, step) for name, found in spikes.items() for step, loss in found), default=None)
    norms = [run.curves["train"].metrics.get("grad_norm", np.empty(0))[SPIKE_ROWS:] for run in runs]
    known = np.concatenate(norms)
    known = known[np.isfinite(known)]
    return Stability(
        1000 * count / steps,
        (highest[1], highest[2], highest[0]) if highest else None,
        tuple(np.quantile(known, QUANTILES).tolist()) if len(known) else (),
        group.choice.highest_trained if group.choice else None,
    )


def spikes_of(curve: Curve) -> Sequence[tuple[float, float]]:
    """Step and loss of each spike of a training curve: where the run marked one as it trained, or
    where the logged losses have one by SPIKE_RULE.
    """
    marked = np.isfinite(curve.metrics.get("spike", np.full(len(curve), np.nan)))
    before = [curve.loss[max(0, row - SPIKE_ROWS) : row].tolist() for row in range(len(curve))]
    found = marked | np.array([is_spike(losses, loss) for losses, loss in zip(before, curve.loss.tolist(), strict=True)])
    return [(float(curve.steps[row]), float(curve.loss[row])) for row in np.flatnonzero(found)]
