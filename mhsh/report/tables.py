"""The tables of a report: groups, what else was measured, runs, conditions, rates, and what trains
now.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from mhsh import text
from mhsh.config.fields import SHAPING
from mhsh.report.report import CAUTION, Column, Row, Table, TableCell
from mhsh.report.sentences import cautions, unbounded, what_decides
from mhsh.sweep.axes import BUDGET, LEARNING_RATE
from mhsh.text import format_list, format_loss, format_range, format_signed
from mhsh.verdict.estimate import Estimate, estimate, known_estimate
from mhsh.verdict.fairness import Effect, find_conditions
from mhsh.verdict.findings import HIGHER, LOWER, TOO_FEW_SEEDS, UNTRAINED, Comparison, Finding
from mhsh.verdict.groups import TRAINED, Group, Member
from mhsh.verdict.outcomes import Measure, Values, final_value
from mhsh.verdict.stability import QUANTILES

_MARKS = {LOWER: "\u25bc", HIGHER: "\u25b2", UNTRAINED: "\u2020"}
_MARK_NOTE = "\u25bc significantly lower, \u25b2 significantly higher than the baseline."
_MOVED_NOTE = "Around: the difference with what values between those tried may hide; its interval holds the measured one, too."
_UNTRAINED_NOTE = "\u2020 Not all runs trained: a difference of those that did is no verdict."
_INTERVAL_NOTE = "95 % intervals follow the values."
_MAP_NOTE = "Means over the seeds that trained, of a tuned field over those that choose; \u25c6 is the best of its row."
_RATE_ROWS = 10  # the last ones, over which a rate is taken


@dataclasses.dataclass(frozen=True)
class ReportSection:
    """A comparison, and where its groups and runs stand among those of the curves."""

    comparison: Comparison
    prefix: str  # of what is said of it
    first_group: int
    first_run: int

    @property
    def groups(self) -> tuple[Group, ...]:
        return self.comparison.experiment.groups


def groups_tables(sections: Sequence[ReportSection]) -> list[Table]:
    """Of each section the primary measure of every group, its difference to the baseline, and what
    it cost; all with the columns that hold something in one of them.
    """
    tables = list(map(_groups_table, sections))
    kept = {column.name for table in tables for column in table.without_empty_columns().columns}
    note = f"{_MARK_NOTE} {differences_note(sections)}".rstrip()
    tables = [dataclasses.replace(table, note=note) for table in tables]
    return [table.with_columns([place for place, column in enumerate(table.columns) if column.name in kept]) for table in tables]


def differences_note(sections: Sequence[ReportSection]) -> str:
    """What is said where a grid has moved the interval of a difference, or not all runs trained."""
    found = [finding for section in sections for finding in section.comparison.findings if finding is not None]
    moved = any(each.difference is not None and each.difference.is_moved for each in found)
    untrained = any(each.verdict == UNTRAINED for each in found)
    return " ".join([_MOVED_NOTE] * moved + [_UNTRAINED_NOTE] * untrained)


def _groups_table(section: ReportSection) -> Table:
    comparison, measured = section.comparison, section.comparison.measured
    target = "target" if measured.target is None else format_loss(measured.target)
    columns = (
        Column("group"),
        *(Column(f"best {field}", numeric=True, rank=3) for field in tuned_fields(section)),
        Column("difference", numeric=True, rank=1, forest=True),
        Column("against the margin", rank=1),
        Column(measured.measure.name, numeric=True, rank=2),
        Column("tokens to equal loss", numeric=True, rank=4),
        Column("trained", numeric=True, rank=3),
        Column(f"steps to {target}", numeric=True, rank=5),
        Column(f"device time to {target}", numeric=True, rank=6),
        Column(CAUTION, rank=7),
    )
    rows = []
    for place, group in enumerate(section.groups):
        finding = comparison.findings[place]
        difference = TableCell("baseline")
        if finding is not None:
            difference = dataclasses.replace(
                _number(finding.difference, format_signed, unbounded(comparison, place)), mark=_MARKS.get(finding.verdict, "")
            )
        best = [
            TableCell(f"{choice.optimum.rate:g}", value=choice.optimum.rate) if choice.optimum else "none"
            for choice in [group.choice]
            if choice
        ]
        against, ratio = _beside(finding)
        cells = [group.name, *best, difference, against, _own(comparison, place), ratio, _trained(group)]
        cells += [_cost(measured.values[place], axis) for axis in ("step", "seconds")]
        cells += ["; ".join(cautions(comparison, place))]
        rows.append(Row(tuple(cells), group=section.first_group + place))
    title = f"{section.prefix}Results by group"
    return Table(title, columns, tuple(rows), intervals=_INTERVAL_NOTE, section=comparison.name)


def _beside(finding: Finding | None) -> list[str | TableCell]:
    """The decision against the margin, with what would decide, and the ratio of tokens."""
    decision, ratio = (finding.decision, finding.ratios.get("tokens")) if finding is not None else (None, None)
    found: list[str | TableCell] = [TableCell(decision.words, note=what_decides(decision)) if decision and decision.margin else ""]
    if found[0] and finding is not None and finding.verdict == TOO_FEW_SEEDS:
        found = [TOO_FEW_SEEDS]
    return [*found, _number(ratio, lambda value: f"{value:.3f}\u00d7") if ratio else ""]


def tuned_fields(section: ReportSection) -> list[str]:
    """The field of --over, if there is one."""
    return [choice.over.split(".")[1] for choice in section.comparison.experiment.choices[:1]]


def _own(comparison: Comparison, place: int) -> TableCell:
    """The measure of a group; of one of which no run trained, where its runs ended."""
    own, group, measure = comparison.estimates[place], comparison.experiment.groups[place], comparison.measured.measure
    if own is not None or not group.untrained:
        return _number(own, format_loss)
    ends = [final_value(member.run, measure.key, measure.split) for member in group.untrained if member.run is not None]
    finite = [value for value in ends if math.isfinite(value)]
    return TableCell("not trained", note=f"ends at {format_loss(statistics.fmean(finite))}" if finite else "diverged")


def _trained(group: Group) -> TableCell:
    missing = f"{len(group.missing)} missing" if group.missing else ""
    return TableCell(f"{len(group.trained)} of {len(group.members)}", note=missing, value=len(group.trained))


def _number(of: Estimate | None, words: Callable[[float], str], why: str = "") -> TableCell:
    """`why`: the reason why an interval has no bound."""
    if of is None:
        return TableCell("none")
    low, high = (value if math.isfinite(value) else None for value in (of.low, of.high))
    note = format_range(of.low, of.high, words) if of.has_interval else ""
    note += f", around {words(of.centre)}" if of.is_moved else ""
    return TableCell(words(of.mean), note=f"{note}: {why}" if why else note, value=of.mean, low=low, high=high)


def _cost(values: Values, axis: str) -> TableCell:
    costs = values.costs[axis].values()
    known = [value for value in costs if math.isfinite(value)]
    if not known or len(known) < len(costs):
        return TableCell("not reached", note=f"{len(known)} of {len(costs)} did" if known else "")
    cost = estimate(known)

    def words(value: float) -> str:
        rounded = float(f"{value:.3g}")  # it lies between two evaluations: three digits say enough
        return text.duration(rounded) if axis == "seconds" else text.count(round(rounded))

    note = format_range(max(0.0, cost.low), cost.high, words) if cost.has_interval else ""
    return TableCell(f"{'at most ' * bool(values.at_most)}{words(cost.mean)}", note=note, value=cost.mean)


def rates_tables(sections: Sequence[ReportSection]) -> list[Table]:
    """Maps of the mean loss, one a field: a row a shape, a column a value of the tuned field, or of
    each swept number.
    """
    maps: dict[str, dict[str, dict[float, list[float]]]] = {}
    for section in sections:
        tuned = tuned_fields(section)
        swept = [axis.path for axis in section.comparison.experiment.axes if "." in axis.path and axis.path not in SHAPING]
        axes = [path for path in swept if path == LEARNING_RATE] or swept
        for path in tuned or axes:
            rows = _chosen_from(section) if tuned else _by_value(section, path)
            maps.setdefault(path.split(".")[-1], {}).update((f"{section.prefix}{name}", grid) for name, grid in rows.items())
    measure = sections[0].comparison.measured.measure
    found = [(field, rows, sorted({value for grid in rows.values() for value in grid})) for field, rows in maps.items()]
    return [_map(measure, field, rows, values) for field, rows, values in found if len(values) > 1]


def _map(measure: Measure, field: str, rows: Mapping[str, Mapping[float, Sequence[float]]], values: Sequence[float]) -> Table:
    means = {name: {value: of.mean for value, each in grid.items() if (of := known_estimate(each))} for name, grid in rows.items()}
    best = {name: (min if measure.lower_is_better else max)(grid.values()) for name, grid in means.items() if grid}
    worst = max((abs(value - best[name]) for name, grid in means.items() for value in grid.values()), default=0.0) or 1.0

    def cell(name: str, value: float) -> TableCell:
        known = means[name].get(value)
        if known is None:
            return TableCell("not trained" if value in rows[name] else "")
        apart = abs(known - best[name])
        return TableCell(format_loss(known), "\u25c6" * (not apart), value=known, heat=math.sqrt(apart / worst))

    columns = (Column("group"), *(Column(f"{value:g}", numeric=True) for value in values))
    lines = tuple(Row((name, *(cell(name, value) for value in values))) for name in rows)
    return Table(f"{measure.name} by {field.replace('_', ' ')}", columns, lines, _MAP_NOTE)


def _chosen_from(section: ReportSection) -> dict[str, dict[float, list[float]]]:
    """Of every group what its choosing seeds measured, by the value tried."""
    groups = section.groups
    return {each.name: {value: [*of.values()] for value, of in each.choice.measured.items()} for each in groups if each.choice}


def _by_value(section: ReportSection, path: str) -> dict[str, dict[float, list[float]]]:
    """Of groups that are equal in all but a swept number, the final values by that number."""
    found: dict[str, dict[float, list[float]]] = {}
    for group, values in zip(section.groups, section.comparison.measured.values, strict=True):
        value = group.settings.get(path)
        if not isinstance(value, int | float) or isinstance(value, bool):
            return {}
        others = [f"{name.split('.')[-1]} {other}" for name, other in group.settings.items() if name not in (path, BUDGET)]
        found.setdefault(", ".join(others) or "all", {})[float(value)] = [*values.final.values()]
    return found


def training_table(sections: Sequence[ReportSection]) -> Table | None:
    """The runs that train now, with what they have done and what is left; None: none does."""
    rows = []
    for member in (member for section in sections for group in section.groups for member in group.members):
        run = member.run
        if run is None or not run.trains:
            continue
        last, step, rate = run.curves["train"], run.end or 0.0, math.nan
        if len(last) > 1:
            steps, seconds = (np.ptp(last.x[axis][-_RATE_ROWS:]) for axis in ("step", "seconds"))
            rate = float(steps / seconds) if seconds > 0 else math.nan
        total = run.config.train.num_steps
        left = text.duration((total - step) / rate) if rate > 0 else "not known yet"
        done = f"{step:,.0f} of {total:,}" if run.has_logged else "prepares or compiles"
        rows.append(Row((run.name, done, f"{rate:.3g}" if rate > 0 else "", left)))
    columns = (
        Column("run"),
        Column("step", numeric=True),
        Column("steps a second", numeric=True),
        Column("time left", numeric=True),
    )
    return Table("Training now", columns, tuple(rows)) if rows else None


def stability_table(section: ReportSection) -> Table | None:
    """How steadily the runs of every group train; None where nothing is known of it."""
    names = ("spikes per 1,000 steps", "median gradient norm", "its 99 % quantile", "its maximum", "highest value that trains")
    columns = (Column("group"), *(Column(name, numeric=True) for name in names), Column("the highest spike"))
    rows = []
    for place, known in enumerate(section.comparison.stabilities):
        if known is not None:
            run, step, loss = known.first_spike or ("", 0, 0)
            spike = f"{loss:.3f} at step {step:,.0f} of {run}" if run else ""
            norms = [*known.gradient_norm] or [None] * len(QUANTILES)
            numbers = [
                TableCell("" if value is None else _short(value), value=value) for value in (known.spikes, *norms, known.highest)
            ]
            rows.append(Row((section.groups[place].name, *numbers, spike), group=section.first_group + place))
    return Table(f"{section.prefix}Stability, not tested", columns, tuple(rows)).without_empty_columns() if rows else None


def measures_table(section: ReportSection) -> Table:
    """What is shown beside the primary measure, with intervals and without a test."""
    measured = section.comparison.measured
    names = list(dict.fromkeys(name for values in measured.values for name in values.metrics))
    columns = [Column("group"), *(Column(f"{measured.measure.split} {name}".replace("_", " "), numeric=True) for name in names)]
    columns += [Column(f"{what} to the target", numeric=True) for what in ("tokens", "FLOPs")]
    rows = []
    for place, values in enumerate(measured.values):
        shown = [values.metrics.get(name, {}) for name in names]
        cells = [_number(known_estimate(each.values()), _short) for each in shown]
        cells += [_cost(values, axis) for axis in ("tokens", "flops")]
        rows.append(Row((section.groups[place].name, *cells), group=section.first_group + place))
    return Table(f"{section.prefix}Other measures, not tested", tuple(columns), tuple(rows))


def _short(value: float) -> str:
    return f"{value:.4g}"


def runs_table(section: ReportSection) -> Table:
    """Every run with its state and its last numbers."""
    columns = [Column("run"), Column("group"), Column("seed"), Column("state")]
    names = ("validation loss", "training loss", "steps", "tokens", "device time")
    columns += [Column(name, numeric=True) for name in names]
    places = run_places(section)
    rows = [
        Row(tuple(_run_cells(group, member)), run=places.get(id(member.run)) if member.named else None)
        for group in section.groups
        for member in group.members
    ]
    return Table(f"{section.prefix}Every run", tuple(columns), tuple(rows)).without_empty_columns()


def run_places(section: ReportSection) -> dict[int, int]:
    """The place of each run among those of the curves, by identity."""
    return {id(run): section.first_run + place for place, run in enumerate(section.comparison.experiment.runs)}


def _run_cells(group: Group, member: Member) -> list[str | TableCell]:
    seeds = " and ".join(map(str, dict.fromkeys(member.replicate)))
    state = member.state if member.named or member.state != TRAINED else f"{member.state}, not named"
    run = member.run
    if run is None or not run.has_logged:
        return [f"seed {seeds}", group.name, seeds, state, *[""] * 5]
    losses = [TableCell(format_loss(loss), value=loss) for loss in (run.final_validation, run.final_train)]
    steps = run.spent("step")
    return [
        run.name,
        group.name,
        seeds,
        state,
        *losses,
        "" if steps is None else TableCell(f"{steps:,.0f}", value=steps),
        *(
            TableCell(words(run.spent(axis)), value=run.spent(axis))
            for axis, words in (("tokens", text.count), ("seconds", text.duration))
        ),
    ]


def conditions_table(section: ReportSection) -> Table | None:
    """What differs between the groups; None where there are no two."""
    groups = [group for group in section.groups if group.runs]
    if len(groups) < 2:
        return None
    words = {
        Effect.LOSS: "losses",
        Effect.SIZE: "losses, if the larger model wins",
        Effect.CLOCK: "device seconds",
        Effect.NONE: "nothing",
    }
    rows = find_conditions([group.runs for group in groups], section.comparison.treatment)
    differing = [[row.name, words[row.effect], _values(row.values, groups)] for row in rows if not row.equal]
    note = f"{len(rows) - len(differing)} other conditions are equal."
    headings = ["what differs", "makes incomparable", "values"]
    return Table.of_text(f"{section.prefix}Conditions", headings, differing, note)


def _values(values: Sequence[str], groups: Sequence[Group]) -> str:
    by_value: dict[str, list[str]] = {}
    for value, group in zip(values, groups, strict=True):
        by_value.setdefault(value, []).append(group.name)
    if len(by_value) == 1:
        return next(iter(by_value))
    return "; ".join(f"{value} ({format_list(names)})" for value, names in by_value.items())
