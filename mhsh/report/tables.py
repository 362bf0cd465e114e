"""The tables of a report: groups, other measures, stability, runs, conditions, rates, and the runs
that train now.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from mhsh import text
from mhsh.report.report import CAUTION, Column, Row, Table, TableCell
from mhsh.report.sentences import cautions, deciding_words, difference_words, unbounded_reason
from mhsh.text import format_list, format_loss, format_range
from mhsh.verdict.estimate import Estimate, Replicate, estimate_finite
from mhsh.verdict.fairness import find_conditions
from mhsh.verdict.findings import HIGHER, LOWER, TOO_FEW_SEEDS, UNTRAINED, Comparison, Finding
from mhsh.verdict.groups import TRAINED, Group, Member
from mhsh.verdict.outcomes import Measure, final_value
from mhsh.verdict.stability import QUANTILES

_MARKS = {LOWER: "\u25bc", HIGHER: "\u25b2", UNTRAINED: "\u2020"}
_MARK_NOTE = "\u25bc significantly lower, \u25b2 significantly higher than the baseline."
_MOVED_NOTE = "Around: the difference with what values between those tried may hide; its interval holds the measured one, too."
_UNTRAINED_NOTE = "\u2020 Not all runs trained, so the difference between those that did is not a verdict."
_INTERVAL_NOTE = "95 % intervals follow the values."
_MAP_NOTE = "Means over the seeds that choose; \u25c6 is the best of its row."
_Grid = Mapping[float, Mapping[Replicate, float]]  # losses by the value of a tuned field
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
    """The table of each section: the primary measure of every group, its difference to the
    baseline, and the tokens that it took. All have the columns that hold something in one of them.
    """
    tuned = dict.fromkeys(choice.over for section in sections for choice in section.comparison.experiment.choices)
    fields = [path.split(".")[1] for path in tuned]
    measures = list(dict.fromkeys(section.comparison.measure.name for section in sections))
    tables = [_groups_table(section, fields, measures) for section in sections]
    headings = {column.name for table in tables for column in table.drop_empty_columns().columns}
    note = f"{_MARK_NOTE} {differences_note(sections)}".rstrip()
    tables = [dataclasses.replace(table, note=note) for table in tables]
    return [
        table.select_columns([place for place, column in enumerate(table.columns) if column.name in headings]) for table in tables
    ]


def differences_note(sections: Sequence[ReportSection]) -> str:
    """The notes on differences: that a grid has moved an interval, or that not all runs trained."""
    found = [finding for section in sections for finding in section.comparison.findings if finding is not None]
    moved = any(each.difference is not None and each.difference.is_moved for each in found)
    untrained = any(each.verdict == UNTRAINED for each in found)
    return " ".join([_MOVED_NOTE] * moved + [_UNTRAINED_NOTE] * untrained)


def _groups_table(section: ReportSection, fields: Sequence[str], measures: Sequence[str]) -> Table:
    """`fields` and `measures` are those of all sections, of which this one has some."""
    comparison = section.comparison
    columns = (
        Column("group"),
        *(Column(f"best {field}", numeric=True, rank=3) for field in fields),
        Column("difference", numeric=True, rank=1, forest=True),
        Column("against the margin", rank=1),
        *(Column(name, numeric=True, rank=2) for name in measures),
        Column("tokens to equal loss", numeric=True, rank=4),
        Column("trained", numeric=True, rank=3),
        Column(CAUTION, rank=5),
    )
    rows = []
    for place, group in enumerate(section.groups):
        finding = comparison.findings[place]
        difference = TableCell("baseline")
        if finding is not None:
            words = difference_words(finding.difference)
            difference = _estimate_cell(finding.difference, words, unbounded_reason(comparison, place))
            difference = dataclasses.replace(difference, mark=_MARKS.get(finding.verdict, ""))
        cells = [
            group.name,
            *(_best_cell(group, field) for field in fields),
            difference,
            _decision_cell(finding),
            *(_measure_cell(comparison, place) if name == comparison.measure.name else "" for name in measures),
            _ratio_cell(finding, "tokens"),
        ]
        cells += [_trained_cell(group), "; ".join(cautions(comparison, place))]
        rows.append(Row(tuple(cells), group=section.first_group + place))
    title = f"{section.prefix}Results by group"
    return Table(title, columns, tuple(rows), intervals=_INTERVAL_NOTE, section=comparison.name)


def _decision_cell(finding: Finding | None) -> str | TableCell:
    """The decision against the margin, with what would decide."""
    if finding is None or finding.decision is None or not finding.decision.margin:
        return ""
    if finding.verdict == TOO_FEW_SEEDS:
        return TOO_FEW_SEEDS
    return TableCell(finding.decision.words, note=deciding_words(finding.decision))


def _ratio_cell(finding: Finding | None, axis: str) -> str | TableCell:
    """How many times as much of an axis as the baseline it took to equal loss."""
    ratio = finding.ratios.get(axis) if finding is not None else None
    return _estimate_cell(ratio, lambda value: f"{format_loss(value)}\u00d7") if ratio else ""  # of two seeds it may be huge


def _best_cell(group: Group, field: str) -> str | TableCell:
    """The best value of a tuned field."""
    if group.choice is None or group.choice.over.split(".")[1] != field:
        return ""
    return TableCell(f"{group.choice.optimum.rate:g}", value=group.choice.optimum.rate) if group.choice.optimum else "none"


def _measure_cell(comparison: Comparison, place: int) -> TableCell:
    """The measure of a group; of one of which no run trained, where its runs ended."""
    mean, group, measure = comparison.estimates[place], comparison.experiment.groups[place], comparison.measure
    if mean is not None or not group.untrained_members:
        return _estimate_cell(mean, format_loss)
    ends = [final_value(member.run, measure.key, measure.split) for member in group.untrained_members if member.run is not None]
    finite = [value for value in ends if math.isfinite(value)]
    states = ", ".join(dict.fromkeys(member.state for member in group.untrained_members))
    return TableCell("not trained", note=f"ends at {format_loss(statistics.fmean(finite))}" if finite else states)


def _trained_cell(group: Group) -> TableCell:
    missing = f"{len(group.missing_members)} missing" if group.missing_members else ""
    return TableCell(f"{len(group.trained_members)} of {len(group.members)}", note=missing, value=len(group.trained_members))


def _estimate_cell(estimate: Estimate | None, words: Callable[[float], str], why: str = "") -> TableCell:
    """`why`: the reason why an interval has no bound."""
    if estimate is None:
        return TableCell("none")
    low, high = (value if math.isfinite(value) else None for value in (estimate.low, estimate.high))
    note = format_range(estimate.low, estimate.high, words) if estimate.has_interval else ""
    note += f", around {words(estimate.centre)}" if estimate.is_moved else ""
    return TableCell(words(estimate.mean), note=f"{note}: {why}" if why else note, value=estimate.mean, low=low, high=high)


def rates_tables(sections: Sequence[ReportSection]) -> list[Table]:
    """Maps of the mean loss of the choosing seeds, one a tuned field: a row a shape, a column a
    value.
    """
    maps: dict[str, dict[str, _Grid]] = {}
    for section in sections:
        for group, choice in ((group, group.choice) for group in section.groups if group.choice):
            maps.setdefault(choice.over.split(".")[-1], {})[f"{section.prefix}{group.name}"] = choice.measured
    measure = sections[0].comparison.measure
    found = [(field, rows, sorted({value for grid in rows.values() for value in grid})) for field, rows in maps.items()]
    return [_rate_map(measure, field, rows, values) for field, rows, values in found if len(values) > 1]


def _rate_map(measure: Measure, field: str, rows: Mapping[str, _Grid], values: Sequence[float]) -> Table:
    # The mean of those that trained alone would be that of the luckier seeds.
    means = {
        name: {value: statistics.fmean(each.values()) for value, each in grid.items() if all(map(math.isfinite, each.values()))}
        for name, grid in rows.items()
    }
    best = {name: (min if measure.lower_is_better else max)(grid.values()) for name, grid in means.items() if grid}
    worst = max((abs(value - best[name]) for name, grid in means.items() for value in grid.values()), default=0.0) or 1.0

    def cell(name: str, value: float) -> TableCell:
        mean = means[name].get(value)
        if mean is None:
            trained = [math.isfinite(each) for each in rows[name].get(value, {}).values()]
            return TableCell("" if not trained else f"{sum(trained)} of {len(trained)} trained" if any(trained) else "not trained")
        distance = abs(mean - best[name])
        return TableCell(format_loss(mean), "\u25c6" * (not distance), value=mean, heat=math.sqrt(distance / worst))

    columns = (Column("group"), *(Column(f"{value:g}", numeric=True) for value in values))
    lines = tuple(Row((name, *(cell(name, value) for value in values))) for name in rows)
    return Table(f"{measure.name} by {field.replace('_', ' ')}", columns, lines, _MAP_NOTE)


def training_table(sections: Sequence[ReportSection]) -> Table | None:
    """The runs that train now, with what they have done and what is left; None: none does."""
    rows = []
    for member in (member for section in sections for group in section.groups for member in group.members):
        run = member.run
        if run is None or not run.is_training:
            continue
        last, step, rate = run.curves["train"], run.end or 0.0, math.nan
        if len(last) > 1:
            steps, seconds = (np.ptp(last.x[axis][-_RATE_ROWS:]) for axis in ("step", "seconds"))
            rate = float(steps / seconds) if seconds > 0 else math.nan
        total = run.config.train.num_steps
        done = TableCell(f"{step:,.0f} of {total:,}" if run.has_logged else "prepares or compiles", value=step)
        speed, time_left = TableCell(""), TableCell("not known yet")
        if rate > 0:
            seconds = (total - step) / rate
            speed, time_left = TableCell(f"{rate:.3g}", value=rate), TableCell(text.duration(seconds), value=seconds)
        rows.append(Row((run.name, done, speed, time_left)))
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
    for place, stability in enumerate(section.comparison.stabilities):
        if stability is not None:
            run, step, loss = stability.first_spike or ("", 0, 0)
            spike = f"{format_loss(loss)} at step {step:,.0f} of {run}" if run else ""
            norms = [*stability.gradient_norm] or [None] * len(QUANTILES)
            numbers = [
                TableCell("" if value is None else _format_short(value), value=value)
                for value in (stability.spikes, *norms, stability.highest_trained)
            ]
            rows.append(Row((section.groups[place].name, *numbers, spike), group=section.first_group + place))
    return Table(f"{section.prefix}Stability, not tested", columns, tuple(rows)).drop_empty_columns() if rows else None


def measures_table(section: ReportSection) -> Table | None:
    """The measures beside the primary one, with intervals and without a test; None: there are
    none.
    """
    comparison = section.comparison
    names = list(dict.fromkeys(name for values in comparison.values for name in values.metrics))
    columns = [Column("group"), *(Column(f"{comparison.measure.split} {name}".replace("_", " "), numeric=True) for name in names)]
    columns += [Column(f"{what} to equal loss", numeric=True) for what in ("FLOPs", "device time")]
    rows = []
    for place, values in enumerate(comparison.values):
        metrics = [values.metrics.get(name, {}) for name in names]
        cells = [_estimate_cell(estimate_finite(each.values()), _format_short) for each in metrics]
        cells += [_ratio_cell(comparison.findings[place], axis) for axis in ("flops", "seconds")]
        rows.append(Row((section.groups[place].name, *cells), group=section.first_group + place))
    table = Table(f"{section.prefix}Other measures, not tested", tuple(columns), tuple(rows)).drop_empty_columns()
    return table if len(table.columns) > 1 else None


def _format_short(value: float) -> str:
    return f"{value:.4g}"


def runs_table(section: ReportSection) -> Table:
    """Every run with its state and its last numbers."""
    columns = [Column("run"), Column("group"), Column("seed"), Column("state")]
    names = ("validation loss", "training loss", "steps", "tokens", "device time")
    columns += [Column(name, numeric=True) for name in names]
    places = run_places(section)
    rows = [
        Row(tuple(_run_cells(group, member)), run=places.get(id(member.run)) if member.is_named else None)
        for group in section.groups
        for member in group.members
    ]
    return Table(f"{section.prefix}Every run", tuple(columns), tuple(rows)).drop_empty_columns()


def run_places(section: ReportSection) -> dict[int, int]:
    """The place of each run among those of the curves, by identity."""
    return {id(run): section.first_run + place for place, run in enumerate(section.comparison.experiment.runs)}


def _run_cells(group: Group, member: Member) -> list[str | TableCell]:
    seeds = " and ".join(map(str, dict.fromkeys(member.replicate)))
    state = member.state if member.is_named or member.state != TRAINED else f"{member.state}, not named"
    run = member.run
    if run is None or not run.has_logged:
        return [f"seed {seeds}", group.name, seeds, state, *[""] * 5]
    numbers = [(loss, format_loss) for loss in (run.final_validation, run.final_train)]
    numbers += [(run.total("step"), _format_whole), (run.total("tokens"), text.count), (run.total("seconds"), text.duration)]
    return [run.name, group.name, seeds, state, *(TableCell(words(value), value=value) for value, words in numbers)]


def _format_whole(value: float | None) -> str:
    return "" if value is None else f"{value:,.0f}"


def conditions_table(section: ReportSection) -> Table | None:
    """The conditions that differ between the groups; None where there are no two groups."""
    groups = [group for group in section.groups if group.runs]
    if len(groups) < 2:
        return None
    rows = find_conditions([group.runs for group in groups], section.comparison.treatment)
    differing = [[row.name, row.effect.value, _condition_values(row.values, groups)] for row in rows if not row.equal]
    note = f"{len(rows) - len(differing)} other conditions are equal."
    headings = ["what differs", "makes incomparable", "values"]
    return Table.from_text(f"{section.prefix}Conditions", headings, differing, note)


def _condition_values(values: Sequence[str], groups: Sequence[Group]) -> str:
    by_value: dict[str, list[str]] = {}
    for value, group in zip(values, groups, strict=True):
        by_value.setdefault(value, []).append(group.name)
    if len(by_value) == 1:
        return next(iter(by_value))
    return "; ".join(f"{value} ({format_list(names)})" for value, names in by_value.items())
