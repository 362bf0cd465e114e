"""What is measured of the runs that trained: final losses, and what it took to reach a target."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence
from decimal import Decimal

import numpy as np

from mhsh.errors import UserError, closest
from mhsh.storage.outcome import smoothed_final
from mhsh.verdict.estimate import Estimate, Replicate, as_normal, estimate
from mhsh.verdict.experiment import Experiment
from mhsh.verdict.groups import Group
from mhsh.verdict.runs import AXES, Curve, RecordedRun

LOSS = "loss"

MEASURE_RULE = (
    "The primary measure is the validation loss after the last step, or what --measure names; it alone is tested. If a run that "
    "trained has no validation rows, all losses are the final training loss."
)
TARGET_RULE = (
    "A run reaches the target between the last evaluation above it and the first at or below it, interpolated linearly, of those "
    "that all runs that trained have in common. Where none above it comes before, or only one of its own is at or below it, the "
    "run took at most that long. Unless --target is given, the target is the highest final loss of the baseline's runs."
)


@dataclasses.dataclass(frozen=True)
class Measure:
    """A number of a run."""

    key: str  # `loss`, or a metric of the validation rows such as bleu
    split: str
    resolution: float  # half a unit of the last digit that is logged: a smaller difference is none

    @property
    def name(self) -> str:
        """As in `validation loss`."""
        what = self.key.replace("_", " ")
        return f"{'validation' if self.split == 'validation' else 'training'} {what}"

    @property
    def lower_is_better(self) -> bool:
        """Of losses and perplexities."""
        return self.key == LOSS or self.key.endswith(("loss", "perplexity"))

    def of(self, run: RecordedRun) -> float:
        """Its value where the run ended; nan if there is none."""
        return final_value(run, self.key, self.split)


@dataclasses.dataclass(frozen=True)
class Values:
    """What was measured of one group, by replicate; of the runs that trained alone."""

    final: Mapping[Replicate, float]  # the primary measure
    loss_parts: Mapping[Replicate, np.ndarray]  # RecordedRun.loss_parts; none of another primary measure
    metrics: Mapping[str, Mapping[Replicate, float]]  # every other number of the last validation row
    costs: Mapping[str, Mapping[Replicate, float]]  # by axis, to reach the target; nan: not reached
    at_most: frozenset[Replicate]  # whose costs are upper bounds: no evaluation above the target came before


@dataclasses.dataclass(frozen=True)
class Measured:
    """All groups, measured alike."""

    measure: Measure
    target: float | None  # nats per predicted token; None: no run trained
    values: tuple[Values, ...]  # one a group


def measure_all(experiment: Experiment, key: str = LOSS, target: float | None = None, baseline: int = 0) -> Measured:
    """Measures every run that trained; `baseline` is the place of the group that gives the target.

    Raises:
      UserError: no run that trained logged `key`, or the target is no finite loss.
    """
    if target is not None and not math.isfinite(target):
        raise UserError(f"--target {target} is not a finite loss; give nats per predicted token, such as 2.5")
    measure, runs = find_measure(experiment, key), _trained_runs(experiment)
    split, known = measure.split, _metrics(runs, measure.split)
    if target is None:
        of_baseline = [member.run for group in experiment.groups[baseline : baseline + 1] for member in group.trained if member.run]
        losses = [final_value(run, LOSS, split) for run in of_baseline or runs]
        target = max((loss for loss in losses if math.isfinite(loss)), default=None)
    evaluated = [run.curves[split].own_steps for run in runs]
    steps = functools.reduce(np.intersect1d, evaluated) if evaluated else np.array([])
    values = tuple(_values(group, measure, target, steps, known) for group in experiment.groups)
    return Measured(measure, target, values)


def find_measure(experiment: Experiment, key: str = LOSS) -> Measure:
    """The measure that is called so, of the runs that trained.

    Raises:
      UserError: none of them logged it.
    """
    runs = _trained_runs(experiment)
    split = "validation" if all(len(run.curves["validation"]) for run in runs) else "train"
    known = _metrics(runs, split)
    if key != LOSS and runs and key not in known:
        meant = closest(key, [LOSS, *known])
        hint = f"did you mean {meant}?" if meant else f"allowed: {', '.join([LOSS, *known])}"
        raise UserError(f"--measure={key} is not a number of the {split} rows of these runs; {hint}")
    return Measure(key, split, _resolution([final_value(run, key, split) for run in runs]))


def _trained_runs(experiment: Experiment) -> list[RecordedRun]:
    return [member.run for group in experiment.groups for member in group.trained if member.run is not None]


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
    final = smoothed_final(values)
    return math.nan if final is None else final


def crossing(curve: Curve, target: float, axis: str = "step") -> tuple[float, bool]:
    """Where a curve first reaches `target`, by TARGET_RULE, and whether that is only an upper
    bound; nan if it never does.
    """
    x, loss = curve.x[axis], curve.loss
    below = np.flatnonzero(loss <= target)
    if not len(below):
        return math.nan, False
    row = int(below[0])
    if row == 0 or not math.isfinite(loss[row - 1]):
        return float(x[row]), True
    share = (loss[row - 1] - target) / (loss[row - 1] - loss[row])
    return float(x[row - 1] + share * (x[row] - x[row - 1])), False


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
    return as_normal(float(parts.std(ddof=1)) / math.sqrt(len(parts)), len(parts) - 1)


def cost_ratios(group: Group, baseline: Group, split: str) -> dict[str, Estimate]:
    """By axis, how many times as much one group takes as another to equal loss, the highest final
    loss of both: the geometric mean over the seeds in common, with its interval by INTERVAL_RULE of
    the logarithm. Empty where fewer than two seeds are in common, or one of them has no evaluation
    above that loss.
    """
    ours, theirs = ({each.replicate: each.run for each in of.trained if each.run} for of in (group, baseline))
    runs = [*ours.values(), *theirs.values()]
    common = [key for key in ours if key in theirs]
    if len(common) < 2:
        return {}
    steps = functools.reduce(np.intersect1d, [run.curves[split].own_steps for run in runs])
    target = max(final_value(run, LOSS, split) for run in runs)
    costs = {id(run): _crossings(run.curves[split], steps, target) for run in runs}
    found = {}
    for axis in AXES:
        pairs = [(costs[id(ours[key])][axis], costs[id(theirs[key])][axis]) for key in common]
        if not any(is_bound or not cost > 0 for pair in pairs for cost, is_bound in pair):
            logs = estimate([math.log(one / other) for (one, _), (other, _) in pairs])
            ends = [math.exp(end) for end in (logs.mean, logs.low, logs.high)]
            found[axis] = Estimate(ends[0], ends[1], ends[2], len(common), paired=True)
    return found


def _values(group: Group, measure: Measure, target: float | None, steps: np.ndarray, metrics: Sequence[str]) -> Values:
    runs = {member.replicate: member.run for member in group.trained if member.run is not None}
    level = -math.inf if target is None else target
    crossings = {replicate: _crossings(run.curves[measure.split], steps, level) for replicate, run in runs.items()}
    others = [name for name in (LOSS, *metrics) if name != measure.key]
    in_parts = (measure.key, measure.split) == (LOSS, "validation")
    return Values(
        {replicate: measure.of(run) for replicate, run in runs.items()},
        {replicate: run.loss_parts if in_parts else np.zeros(0) for replicate, run in runs.items()},
        {name: {replicate: final_value(run, name, measure.split) for replicate, run in runs.items()} for name in others},
        {axis: {replicate: found[axis][0] for replicate, found in crossings.items()} for axis in AXES},
        frozenset(replicate for replicate, found in crossings.items() if found["step"][1]),
    )


def _crossings(curve: Curve, steps: np.ndarray, target: float) -> dict[str, tuple[float, bool]]:
    """By axis, `crossing` at these own steps of the run; where there is none there, its own first
    evaluation at or below the target as an upper bound.
    """
    kept = np.isin(curve.own_steps, steps)
    if not (curve.loss[kept] <= target).any():
        kept = curve.loss <= target
    at = Curve({axis: values[kept] for axis, values in curve.x.items()}, curve.loss[kept])
    return {axis: crossing(at, target, axis) for axis in AXES}


def _resolution(values: Sequence[float]) -> float:
    """Half a unit of the last digit in which these numbers were logged, at least of float32."""
    finite = [abs(value) for value in values if math.isfinite(value)]
    if not finite:
        return 0.0
    unit = min(Decimal(repr(value)).as_tuple().exponent for value in finite)
    return max(0.5 * 10.0 ** int(unit), float(np.finfo(np.float32).eps) * max(finite))
