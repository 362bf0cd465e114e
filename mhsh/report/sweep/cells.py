"""The cells of a sweep for its report: their numbers, and a verdict in one word."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Iterable, Mapping, Sequence

from mhsh.config.fields import SHAPING
from mhsh.files import absolute
from mhsh.outcome import DIVERGED, LEFT, ON_PLATEAU, PLATEAU_RULE, SMOOTHING_RULE
from mhsh.report.compare.fairness import SHAPE, find_conditions, verdict
from mhsh.report.compare.groups import group_runs
from mhsh.sweep.axes import SEEDS, Axis, Value, fields_of
from mhsh.sweep.folder import FAILED, FINISHED, GAVE_UP, WAITING, CellState, Plan, PlannedCell, SweepFolder
from mhsh.text import sanitize
from mhsh.verdict.runs import Run, load_runs
from mhsh.verdict.summary import Summary, summarize

# Verdicts, beside DIVERGED. A cell that has not ended has its state as verdict: failed, running,
# stopped, not run.
CONVERGED = "converged"
PLATEAUED = "plateaued"
UNKNOWN = "not known"

VERDICT_RULES = (
    "A cell has converged if it made all its steps and left the unigram plateau, plateaued if it made all its steps and did not, "
    "and diverged if its loss is not finite at the end, or if training gave up: train.max_skipped_steps updates in a row were not "
    "finite.",
    PLATEAU_RULE,
    SMOOTHING_RULE,
    "A cell that failed ended for another reason, which is shown; it says nothing about its setting. One that is running, stopped "
    "or not run has no verdict yet.",
)


@dataclasses.dataclass(frozen=True)
class SweptCell:
    """One cell: its plan, its state, and its numbers (None where it has logged nothing)."""

    plan: PlannedCell
    state: CellState
    summary: Summary | None
    run: Run | None = None  # None where it has logged nothing

    @property
    def verdict(self) -> str:
        """CONVERGED, PLATEAUED, DIVERGED or UNKNOWN by VERDICT_RULES; its state before its end."""
        if self.state.kind == GAVE_UP:
            return DIVERGED
        if self.state.kind != FINISHED:
            return self.state.kind
        outcome = self.summary.outcome if self.summary else None
        return {LEFT: CONVERGED, ON_PLATEAU: PLATEAUED, DIVERGED: DIVERGED}.get(outcome or "", UNKNOWN)

    @property
    def has_ended(self) -> bool:
        """Whether it is finished or has diverged."""
        return self.state.kind in (FINISHED, GAVE_UP)

    @property
    def final_loss(self) -> float | None:
        """The validation loss after the last step; None if not reached or not finite."""
        point = self.summary.final_validation if self.summary and self.state.kind == FINISHED else None
        return point.loss if point and math.isfinite(point.loss) else None

    @property
    def seeds(self) -> tuple[Value, ...]:
        """Its values on the seed axes."""
        return tuple(value for path, value in self.plan.settings.items() if path in SEEDS)

    def without(self, *paths: str) -> Mapping[str, Value]:
        """Its settings without the seeds and those axes."""
        return {path: value for path, value in self.plan.settings.items() if path not in (*SEEDS, *paths)}


@dataclasses.dataclass(frozen=True)
class Sweep:
    """A sweep with the results of its cells."""

    axes: tuple[Axis, ...]
    cells: tuple[SweptCell, ...]  # in the plan's order
    problems: tuple[str, ...]  # a line each: failed cells, and files that are damaged or missing

    def words(self, cell: SweptCell, *but: str) -> str:
        """The cell's settings on the axes of several values, without seeds and the axes `but`."""
        varied = [axis.path for axis in self.axes if len(axis.values) > 1]
        return setting_words({path: value for path, value in cell.without(*but).items() if path in varied})

    def count(self, verdict: str) -> int:
        """How many cells have that verdict."""
        return sum(cell.verdict == verdict for cell in self.cells)


def planned_sweep(plan: Plan) -> Sweep:
    """A sweep of which nothing has run."""
    return Sweep(plan.axes, tuple(SweptCell(cell, CellState(WAITING), None) for cell in plan.cells), ())


def load_sweep(path: str | os.PathLike[str]) -> Sweep:
    """Reads the plan and every run folder of the sweep in `path`.

    Raises:
      UserError: there is no sweep, or its plan is damaged.
    """
    folder = SweepFolder(path)
    plan = folder.read_plan()
    states = {cell.name: folder.state(cell.name) for cell in plan.cells}
    paths = {cell.name: absolute(folder.run_folder(cell.name).path) for cell in plan.cells}
    loaded = load_runs([path for path in paths.values() if (path / "config.json").exists()])
    runs = {str(run.path): run for run in loaded.runs}
    problems = [f"{cell.name} failed: {states[cell.name].reason}" for cell in plan.cells if states[cell.name].kind == FAILED]
    problems += [*loaded.refused, *(line for run in loaded.runs for line in run.problems)]
    cells = []
    for cell in plan.cells:
        run = runs.get(str(paths[cell.name]))
        drawn = run if run and run.drawable else None
        cells.append(SweptCell(cell, states[cell.name], summarize(drawn) if drawn else None, drawn))
    return Sweep(plan.axes, tuple(cells), tuple(sanitize(line) for line in problems))


def treatment_of(axes: Sequence[Axis]) -> tuple[str, ...]:
    """What is meant to differ between the runs of a sweep, as `compare` takes it: their shape, and
    the fields of the axes. What shapes the model is shape, and seeds make no difference.
    """
    others = (*SEEDS, *SHAPING)
    swept = (field for axis in axes if axis.path not in others for field in fields_of(axis.path))
    return tuple(dict.fromkeys([SHAPE, *swept]))


def fairness_of(sweep: Sweep, cells: Iterable[SweptCell]) -> list[str]:
    """Whether the runs of these cells differ in more than the axes: a sentence, if any ran."""
    runs = [cell.run for cell in cells if cell.run is not None]
    treatment = treatment_of(sweep.axes)
    return [verdict(find_conditions(runs, group_runs(runs), treatment), treatment)] if runs else []


def setting_words(settings: Mapping[str, Value]) -> str:
    """Settings as `scheme = admin, learning_rate = 0.001`, sanitized."""
    return ", ".join(f"{path.split('.')[-1]} = {sanitize(str(value))}" for path, value in settings.items())
