"""Measures of the runs that trained: final losses, and the costs of reaching equal loss."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence
from decimal import Decimal

import numpy as np

from mhsh.errors import UserError, nearest
from mhsh.storage.outcome import smoothed_final_loss
from mhsh.verdict.estimate import Estimate, Replicate, estimate, normal_error
from mhsh.verdict.experiment import Experiment
from mhsh.verdict.groups import Group
from mhsh.verdict.runs import AXES, RecordedRun

LOSS = "loss"

MEASURE_RULE = (
    "The primary measure is the validation loss after the last step, or what --measure names; it alone is tested. If a run that "
    "trained has no validation rows, all losses are the final training loss."
)
RATIO_RULE = (
    "The ratio to equal loss is how many times as much one group takes as the other to the highest final loss of both: the "
    "geometric mean over the seeds in common, with the interval of its logarithm. A run reaches that loss between the last "
    "evaluation above it and the first at or below it, interpolated linearly, of those that all these runs have in common."
)


@dataclasses.dataclass(frozen=True)
class Measure:
    """A number of a run."""

    key: str  # `loss`, or a metric of the validation rows such as bleu
    split: str
    resolution: float  # half a unit of the last digit that is logged: a smaller difference is none

    @property
    def name(self) -> str:
        """The name in words, as in `validation loss`."""
        what = self.key.replace("_", " ")
        return f"{'validation' if self.split == 'validation' else 'training'} {what}"

    @property
    def lower_is_better(self) -> bool:
        """Whether it is a loss or a perplexity, of which the lower value is better."""
        return self.key == LOSS or self.key.endswith(("loss", "perplexity"))

    def value_of(self, run: RecordedRun) -> float:
        """Its value where the run ended; nan if there is none."""
        return final_value(run, self.key, self.split)


@dataclasses.dataclass(frozen=True)
class Values:
    """The measured values of one group, by replicate, of those of its runs that trained."""

    final: Mapping[Replicate, float]  # the primary measure
    loss_parts: Mapping[Replicate, np.ndarray]  # RecordedRun.loss_parts; none of another primary measure
    metrics: Mapping[str, Mapping[Replicate, float]]  # every other number of the last validation row

    @property
    def finite_values(self) -> dict[Replicate, float]:
        """The primary measure of the runs that have it after their last step."""
        return {replicate: value for replicate, value in self.final.items() if math.isfinite(value)}


def measure_all(experiment: Experiment, key: str = LOSS) -> tuple[Measure, tuple[Values, ...]]:
    """The measure that is called so, and what it and all others are of every group. Raises
    UserError where no run that trained logged `key`.
    """
    measure, runs = find_measure(experiment, key), _trained_runs(experiment)
    others = [name for name in (LOSS, *_metrics(runs, measure.split)) if name != key]
    return measure, tuple(_values(group, measure, others) for group in experiment.groups)


def _values(group: Group, measure: Measure, others: Sequence[str]) -> Values:
    runs, in_parts = group.trained_runs, (measure.key, measure.split) == (LOSS, "validation")
    return Values(
        {replicate: measure.value_of(run) for replicate, run in runs.items()},
        {replicate: run.loss_parts if in_parts else np.zeros(0) for replicate, run in runs.items()},
        {name: {replicate: final_value(run, name, measure.split) for replicate, run in runs.items()} for name in others},
    )


def find_measure(experiment: Experiment, key: str = LOSS) -> Measure:
    """The measure that is called so, of the runs that trained. Raises UserError where none of them
    logged it; or, where none trained, none of the others did.
    """
    runs = _trained_runs(experiment)
    split = "validation" if all(len(run.curves["validation"]) for run in runs) else "train"
    others = [member.run for group in experiment.groups for member in group.untrained_members if member.run is not None]
    logged = runs or [run for run in others if len(run.curves[split])]
    known = _metrics(logged, split)
    if key != LOSS and logged and key not in known:
        hint = nearest(key, [LOSS, *known])
        raise UserError(f"--measure={key} is not a number of the {split} rows of these runs; {hint}")
    return Measure(key, split, _resolution([final_value(run, key, split) for run in runs]))


def _trained_runs(experiment: Experiment) -> list[RecordedRun]:
    return [run for group in experiment.groups for run in group.trained_runs.values()]


def _metrics(runs: Sequence[RecordedRun], split: str) -> list[str]:
    return list(dict.fromkeys(name for run in runs for name in run.curves[split].metrics))


def final_value(run: RecordedRun, key: str, split: str) -> float:
    """The validation value where the run ended, or the mean of the last training rows; nan if there
    is none.
    """
    curve = run.curves[split]
    values = curve.loss if key == LOSS else curve.metrics.get(key, np.array([]))
    if not len(values) or not run.ends_in(split):
        return math.nan
    if split == "validation":
        return float(values[-1])
    final = smoothed_final_loss(values)
    return math.nan if final is None else final


def crossing(x: np.ndarray, loss: np.ndarray, target: float) -> float:
    """The x at which a curve first reaches `target`, by RATIO_RULE; nan if it never does, or no
    evaluation above it comes before.
    """
    row = next(iter(np.flatnonzero(loss <= target)), 0)
    if row == 0 or not math.isfinite(loss[row - 1]):
        return math.nan
    share = (loss[row - 1] - target) / (loss[row - 1] - loss[row])
    return float(x[row - 1] + share * (x[row] - x[row - 1]))


def sampling_error(values: Values, baseline: Values) -> float:
    """How far the difference of two groups may be off because the validation rows are a sample: its
    standard error over the parts of these rows. 0 where no run has more than one part, as with one
    batch, or where a group has no run, and hence no difference; infinite where some runs have parts
    and the others have none, or others.
    """
    common = values.final.keys() & baseline.final.keys()
    groups = [{key: group.loss_parts[key] for key in group.final} for group in (values, baseline)]
    ours, theirs = ([parts[key] for key in (common if len(common) > 1 else parts)] for parts in groups)
    counts = {len(parts) for parts in (*ours, *theirs)}
    if not ours or not theirs or max(counts) <= 1:
        return 0.0
    if len(counts) > 1:
        return math.inf
    parts = np.mean(ours, axis=0) - np.mean(theirs, axis=0)
    return normal_error(float(parts.std(ddof=1)) / math.sqrt(len(parts)), len(parts) - 1)


def cost_ratios(group: Group, baseline: Group, split: str) -> dict[str, Estimate]:
    """The ratio to equal loss by axis, by RATIO_RULE. Empty where fewer than two seeds are in
    common, or one of the runs has no evaluation above that loss.
    """
    ours, theirs = group.trained_runs, baseline.trained_runs
    runs = [*ours.values(), *theirs.values()]
    common = [key for key in ours if key in theirs]
    if len(common) < 2:
        return {}
    steps = functools.reduce(np.intersect1d, [run.curves[split].steps for run in runs])
    target = max(final_value(run, LOSS, split) for run in runs)

    def cost(run: RecordedRun, axis: str) -> float:
        curve = run.curves[split]
        rows = np.isin(curve.steps, steps)
        return crossing(curve.x[axis][rows], curve.loss[rows], target)

    found = {}
    for axis in AXES:
        pairs = [(cost(ours[key], axis), cost(theirs[key], axis)) for key in common]
        if all(one > 0 and other > 0 for one, other in pairs):
            logs = estimate([math.log(one / other) for one, other in pairs])
            ends = [math.exp(end) for end in (logs.mean, logs.low, logs.high)]
            found[axis] = Estimate(ends[0], ends[1], ends[2], len(common), paired=True)
    return found


def _resolution(values: Sequence[float]) -> float:
    """Half a unit of the last digit in which these numbers were logged, at least of float32."""
    finite = [abs(value) for value in values if math.isfinite(value)]
    if not finite:
        return 0.0
    unit = min(Decimal(repr(value)).as_tuple().exponent for value in finite)
    return max(0.5 * 10.0 ** int(unit), float(np.finfo(np.float32).eps) * max(finite))
