"""The gap between the shapes of a sweep: how it changes while they train, and with their size."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Mapping, Sequence

from mhsh.config.shapes import shape_name
from mhsh.errors import UserError
from mhsh.report.compare.fairness import find_conditions, unequal, unrecorded
from mhsh.report.compare.groups import group_runs
from mhsh.report.estimate import Estimate, estimate, holm
from mhsh.report.sweep.cells import Sweep, SweptCell, fairness_of, treatment_of
from mhsh.report.sweep.quality import format_difference, format_number
from mhsh.report.sweep.tuning import tune_all
from mhsh.sweep.axes import Value
from mhsh.text import sanitize
from mhsh.verdict.runs import Run
from mhsh.verdict.words import format_list, format_names

GAP_RULE = (
    "A gap is the validation loss of a setting minus that of the first setting of its sweep, seed by seed over the seeds that "
    "finished in both, at the steps after which all of these runs were evaluated. Its change is that from the evaluation nearest "
    "to half of the steps to the last one. A change between sweeps is that of the last gap from the first sweep to another, seed "
    "by seed, of settings with the same words, or, where heads are grouped in fewer layers than those of the first, as many layers."
)

# Of a change, below and above 0: the setting's loss falls or rises against the first one's.
CHANGE_WORDS = ("in its favour", "against it")

Seeds = tuple[Value, ...]  # a value for each seed axis


@dataclasses.dataclass(frozen=True)
class GapPoint:
    """The gap after some steps."""

    step: int
    tokens: float
    gap: Estimate  # nats per predicted token


@dataclasses.dataclass(frozen=True)
class Gap:
    """One setting against the first of its sweep."""

    setting: str  # printable
    counterpart: str  # what it has in common with its likes in sweeps of other sizes, printable: `1 layer`, or the setting
    shape: str  # as shape_name writes it
    points: tuple[GapPoint, ...]  # by step; at least one; the last p-value is Holm's over the sweep, as is that of `change`
    by_seed: Mapping[Seeds, float]  # the last gap
    changed_from: int | None  # the step; None where there is one evaluation
    change: Estimate | None

    @property
    def last(self) -> Estimate:
        """The gap at the end."""
        return self.points[-1].gap

    @property
    def earlier(self) -> Estimate:
        """The gap that `change` counts from."""
        return next(point.gap for point in self.points if point.step == self.changed_from)


@dataclasses.dataclass(frozen=True)
class SweepGaps:
    """The gaps of one sweep, with the size of its first setting."""

    name: str  # printable
    baseline: str  # the first setting, printable
    baseline_shape: str
    embed_dim: int  # D
    heads: int  # of all layers
    gaps: tuple[Gap, ...]
    fairness: tuple[str, ...]  # whether the runs differ in more than the axes, in a sentence
    baseline_runs: tuple[Run, ...]
    treatment: tuple[str, ...]  # what is meant to differ, as `find_conditions` takes it

    @property
    def size(self) -> str:
        """`24 heads, D = 128`."""
        return f"{format_number(self.heads, 'head')}, D = {self.embed_dim}"


@dataclasses.dataclass(frozen=True)
class SweepChange:
    """How much larger the last gap of a setting's counterpart is than in the first sweep."""

    counterpart: str
    first: str  # the sweeps
    other: str
    change: Estimate


def sweep_gaps(name: str, sweep: Sweep, over: str | None, choose: int | None) -> SweepGaps:
    """The gaps of all settings but the first; with `over` each at its own best value of that axis,
    as `tune_all` chooses it on `choose` seeds.

    Raises:
      UserError: as `tune_all`; or there is no setting beside the first with a seed in common.
    """
    chosen, groups = _groups(sweep, over, choose)
    (baseline, first), *others = groups.items()
    gaps = [gap for label, cells in others if (gap := _gap(label, _counterpart(sweep, label, cells, first, chosen), cells, first))]
    if not gaps:
        raise UserError(f"{name}: no setting has a seed that finished in common with the first one; run `mhsh sweep` again")
    lasts, changes = holm([gap.last for gap in gaps]), holm([gap.change for gap in gaps])
    model = first[0].plan.config.model
    return SweepGaps(
        sanitize(name),
        baseline,
        shape_name(model),
        model.embed_dim,
        (model.num_layers + model.num_decoder_layers) * model.num_heads,
        tuple(_adjusted(gap, last, change) for gap, last, change in zip(gaps, lasts, changes, strict=True) if last is not None),
        tuple(fairness_of(sweep, itertools.chain.from_iterable(groups.values()))),
        tuple(cell.run for cell in first if cell.run is not None),
        treatment_of(sweep.axes),
    )


def sweep_changes(sweeps: Sequence[SweepGaps]) -> list[SweepChange]:
    """From the first sweep to each other one, for every setting that has a counterpart there."""
    changes = []
    first, *others = sweeps
    for gap in first.gaps:
        for sweep in others:
            there = next((each.by_seed for each in sweep.gaps if each.counterpart == gap.counterpart), {})
            apart = [there[seed] - loss for seed, loss in gap.by_seed.items() if seed in there]
            if apart:
                changes.append(SweepChange(gap.counterpart, first.name, sweep.name, estimate(apart)))
    adjusted = holm([each.change for each in changes])
    return [dataclasses.replace(each, change=change) for each, change in zip(changes, adjusted, strict=True) if change is not None]


def findings(sweeps: Sequence[SweepGaps], changes: Sequence[SweepChange]) -> list[str]:
    """Whether the runs are comparable, and a sentence for each gap and each change between sweeps:
    does a setting overtake the first?
    """
    said = [f"{sweep.name}: {sentence}" for sweep in sweeps for sentence in sweep.fairness]
    said += [_fairness_between(sweeps)] if changes else []
    said += [
        f"{sweep.name} ({sweep.size}), {gap.setting}: {_finding(gap, sweep.baseline)}." for sweep in sweeps for gap in sweep.gaps
    ]
    # A counterpart is another shape in each size, and so is the one that it is compared with.
    sizes = {
        (sweep.name, gap.counterpart): f"{sweep.name} ({sweep.size}; {gap.shape} against {sweep.baseline_shape})"
        for sweep in sweeps
        for gap in sweep.gaps
    }
    for each in changes:
        where = f"from {sizes[each.first, each.counterpart]} to {sizes[each.other, each.counterpart]}"
        said.append(f"{each.counterpart}: {where} the gap changes by {format_difference(each.change, CHANGE_WORDS)}.")
    return said


def _fairness_between(sweeps: Sequence[SweepGaps]) -> str:
    """Whether the first settings of the sweeps differ in more than their shape, size and rates."""
    runs = [run for sweep in sweeps for run in sweep.baseline_runs]
    treatment = tuple(dict.fromkeys(field for sweep in sweeps for field in sweep.treatment))
    rows = find_conditions(runs, group_runs(runs), treatment)
    if unfair := unequal(rows):
        return f"Between the sweeps: not comparable: different {format_names(unfair)}."
    unknown = unrecorded(rows)
    known = f", as far as recorded: not every run recorded {format_names(unknown)}" if unknown else ""
    return f"Between the sweeps: nothing that matters differs but size and the treatment ({format_list(treatment)}){known}."


def _finding(gap: Gap, baseline: str) -> str:
    last, change = gap.last, gap.change
    ends = f"against {baseline} {format_difference(last)}"
    if change is None:
        return ends
    ends += f"; since step {gap.changed_from} {format_difference(change, CHANGE_WORDS)}"
    if last.is_significant and last.mean < 0:
        behind = gap.earlier.is_significant and gap.earlier.mean > 0
        return f"{ends}: it has overtaken" if behind else ends
    if last.is_significant and change.is_significant and change.mean < 0:
        doublings = math.log2(gap.points[-1].step / gap.changed_from) if gap.changed_from else math.nan
        more = last.mean / -change.mean * doublings
        return f"{ends}: it does not overtake in this range; at this pace it would after {more:.1f} more doublings of the steps"
    if last.is_significant:
        return f"{ends}: it does not overtake in this range"
    return ends


def _groups(sweep: Sweep, over: str | None, choose: int | None) -> tuple[str, dict[str, list[SweptCell]]]:
    """The path of the axis `over` or "", and the cells of every setting, in the sweep's order."""
    if over is not None:
        tuning = tune_all(sweep, over, choose)
        cells = {cell.plan.name: cell for cell in sweep.cells}
        return tuning.over.path, {setting.label: [cells[name] for name in setting.runs] for setting in tuning.settings}
    groups: dict[str, list[SweptCell]] = {}
    for cell in sweep.cells:
        groups.setdefault(sweep.words(cell), []).append(cell)
    return "", groups


def _counterpart(sweep: Sweep, label: str, cells: Sequence[SweptCell], baseline: Sequence[SweptCell], chosen: str) -> str:
    """The number of layers of a setting that groups the same heads in fewer layers than the first,
    with its other words; else its label.

    All heads in one layer are 12 heads a layer in one size and 24 in the next; one head a layer is
    one head a layer in each.
    """
    ours, theirs = cells[0].plan.config.model, baseline[0].plan.config.model
    if ours.num_layers >= theirs.num_layers or ours.num_layers * ours.num_heads != theirs.num_layers * theirs.num_heads:
        return label
    others = sweep.words(cells[0], "model.heads_per_layer", chosen)
    return ", ".join(filter(None, [format_number(ours.num_layers, "layer"), others]))


def _gap(label: str, counterpart: str, cells: Sequence[SweptCell], baseline: Sequence[SweptCell]) -> Gap | None:
    ours, theirs = _losses(cells), _losses(baseline)
    seeds = [seed for seed in ours if seed in theirs]
    if not seeds:
        return None
    steps = sorted(set.intersection(*(set(losses[seed]) for losses in (ours, theirs) for seed in seeds)))
    apart = {seed: [ours[seed][step][0] - theirs[seed][step][0] for step in steps] for seed in seeds}
    points = tuple(
        GapPoint(step, ours[seeds[0]][step][1], estimate([apart[seed][place] for seed in seeds]))
        for place, step in enumerate(steps)
    )
    half = min(range(len(steps)), key=lambda place: abs(steps[place] - steps[-1] / 2))
    change = estimate([apart[seed][-1] - apart[seed][half] for seed in seeds]) if len(steps) > 1 else None
    shape = shape_name(cells[0].plan.config.model)
    last = {seed: apart[seed][-1] for seed in seeds}
    return Gap(label, counterpart, shape, points, last, steps[half] if change else None, change)


def _losses(cells: Sequence[SweptCell]) -> dict[Seeds, dict[int, tuple[float, float]]]:
    """By seed and step: validation loss and tokens, of cells that finished with a finite loss."""
    found = {}
    for cell in cells:
        if cell.run is None or cell.final_loss is None:
            continue
        curve = cell.run.curves["validation"]
        rows = zip(curve.x["step"], curve.loss, curve.x["tokens"], strict=True)
        found[cell.seeds] = {int(step): (float(loss), float(tokens)) for step, loss, tokens in rows if math.isfinite(loss)}
    return found


def _adjusted(gap: Gap, last: Estimate, change: Estimate | None) -> Gap:
    """With the p-values of `last` and `change`."""
    points = (*gap.points[:-1], dataclasses.replace(gap.points[-1], gap=last))
    return dataclasses.replace(gap, points=points, change=change)
