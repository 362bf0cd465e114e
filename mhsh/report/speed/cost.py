"""Device-hours to a target loss: a run's steps to it, times the step time of a bench file."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

from mhsh.bench.intervals import Interval
from mhsh.config.differences import differences
from mhsh.config.fields import all_fields
from mhsh.config.resolve import with_added_fields
from mhsh.config.roles import Step
from mhsh.config.schema import Config
from mhsh.report.speed.comparison import Measurement
from mhsh.text import sanitize
from mhsh.verdict.measures import crossing
from mhsh.verdict.runs import Run


@dataclasses.dataclass(frozen=True)
class Cost:
    """Device-hours of one run to the target on one benched device, or why they are not known."""

    run: str
    shape: str | None
    device: str | None
    steps: float | None
    at_most: bool  # whether `steps` is an upper bound: the target was reached before the first validation
    step: Interval | None  # seconds
    hours: Interval | None  # device-hours; the interval is that of the step's time alone
    remark: str | None  # fields in which run and bench differ
    refusal: str | None


def steps_to_target(steps: np.ndarray, losses: np.ndarray, target: float) -> tuple[float, bool] | None:
    """The step at which the validation loss reaches `target`, by results.TARGET_RULE, or None.

    The flag is True where no finite loss comes before it: the step is then an upper bound.
    """
    found = crossing(steps, losses, target)
    return None if found is None else (found.interpolated, not found.is_interpolated)


def costs(runs: Sequence[Run], rows: Sequence[Measurement], target: float) -> list[Cost]:
    """A Cost for every run and device with its shape and batch; a refusal for every other run."""
    benches = [row for row in rows if row.kind == "train" and row.result.implementation == "mhsh"]
    return [cost for run in runs for cost in _costs_of(run, benches, target)]


def _costs_of(run: Run, benches: Sequence[Measurement], target: float) -> list[Cost]:
    curve = run.curves["validation"]
    reached = steps_to_target(curve.x["step"], curve.loss, target)
    if reached is None:
        finite = [loss for loss in curve.loss.tolist() if math.isfinite(loss)]
        lowest = f"its lowest validation loss is {min(finite):.3f}" if finite else "it has no finite validation loss"
        return [_refused(run, f"did not reach {target:g}: {lowest}")]
    compared = [(row, _differences(run.config, row, "changes")) for row in benches]
    matching = [row for row, differing in compared if not differing]
    if not matching:
        if not compared:
            return [_refused(run, "no file of mhsh bench train is named")]
        row, differing = min(compared, key=lambda each: len(each[1]))
        shown = "; ".join(differing[:4]) + ("; ..." if len(differing) > 4 else "")
        return [_refused(run, f"no bench has its shape and batch; the nearest, {row.shape} in {row.file}, differs: {shown}")]
    steps, at_most = reached
    first: dict[str, Measurement] = {}
    for row in matching:
        first.setdefault(row.device, row)
    return [_cost(run, row, steps, at_most) for row in first.values()]


def _refused(run: Run, reason: str) -> Cost:
    return Cost(run.name, None, None, None, False, None, None, None, sanitize(reason))


def _cost(run: Run, row: Measurement, steps: float, at_most: bool) -> Cost:
    seconds = row.result.seconds
    remark = "; ".join(_differences(run.config, row, "named"))
    return Cost(
        run=run.name,
        shape=row.shape,
        device=row.device,
        steps=steps,
        at_most=at_most,
        step=seconds,
        hours=seconds.scaled(steps * row.result.devices / 3600) if steps > 0 else None,
        remark=sanitize(remark) or None,
        refusal=None if steps > 0 else "had reached the target before its first step",
    )


def _differences(config: Config, row: Measurement, step: Step) -> list[str]:
    """The fields in which a run and a bench differ, of those that do this to the time of a step."""
    found = differences(config, with_added_fields(row.config))
    fields = [field for field in all_fields(config.model.objective) if field.step == step and field.path in found]
    return ["{} is {!r} in the run and {!r} in the bench".format(field.path, *found[field.path]) for field in fields]
