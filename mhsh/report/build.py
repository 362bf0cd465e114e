"""From findings to a Report: its sentences, tables and figures."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Callable, Iterable, Sequence

from mhsh import text
from mhsh.config.fields import flatten
from mhsh.config.schema import TASKS
from mhsh.report.curves import describe_metrics, drawn_curve, gap_starts, most_points
from mhsh.report.report import (
    GROUPS,
    RUNS,
    Cell,
    Column,
    Curve,
    CurveGroup,
    CurveRun,
    Curves,
    Point,
    Points,
    Reference,
    Report,
    Row,
    Series,
    Table,
)
from mhsh.report.sentences import change_words, sentences, title
from mhsh.sweep.axes import BUDGET
from mhsh.text import format_list, format_loss, format_range, format_recorded, format_signed, numbered
from mhsh.verdict import experiment, fairness, findings, outcomes, tuning
from mhsh.verdict.estimate import DIFFERENCE_RULE, INTERVAL_RULE, Estimate, estimate, half_interval, known_estimate
from mhsh.verdict.experiment import TRAINED, Group, Member
from mhsh.verdict.fairness import Effect, find_conditions
from mhsh.verdict.findings import HIGHER, LOWER, Change, Comparison
from mhsh.verdict.outcomes import Values
from mhsh.verdict.runs import AXES, Run

AXIS_TITLES = {
    "step": "training steps",
    "tokens": "training tokens",
    "flops": "training FLOPs",
    "seconds": "device seconds of training (compilation excluded)",
}
_MOST_ENTROPIES = 3  # lines; data seeds of one text differ by little
_MARKS = {LOWER: "\u25bc", HIGHER: "\u25b2"}
_MARK_NOTE = "\u25bc lower and \u25b2 higher than the baseline by the test; behind a number stands its 95 % interval"


def build_report(comparisons: Sequence[Comparison], changes: Sequence[Change] = (), pretraining: bool = False) -> Report:
    """The report of the comparisons of one page, of which there is at least one; of a sweep over
    lengths of training the longest answers, and stands first.
    """
    sections = _sections(_longest_first(comparisons))
    titles = [f"{section.prefix}{title(section.comparison)}" for section in sections]
    said = [f"{section.prefix}{sentence}" for section in sections for sentence in sentences(section.comparison)]
    builders = (_groups_table, _measures_table, _runs_table)
    return Report(
        title=titles[0],
        summary=(*(f"{line}." for line in titles[1:]), *map(change_words, changes), *said),
        tables=tuple(build(section) for build in builders for section in sections),
        curves=_curves(sections, pretraining),
        points=(*_budgets(sections), *(figure for section in sections for figure in _points(section))),
        conditions=tuple(table for section in sections if (table := _conditions_table(section)) is not None),
        problems=tuple(dict.fromkeys(line for each in comparisons for line in each.experiment.problems)),
        rules=_rules(comparisons, bool(changes)),
    )


@dataclasses.dataclass(frozen=True)
class _Section:
    """A comparison, and where its groups and runs stand among those of the curves."""

    comparison: Comparison
    prefix: str  # of what is said of it
    first_group: int
    first_run: int

    @property
    def groups(self) -> tuple[Group, ...]:
        return self.comparison.experiment.groups


def _longest_first(comparisons: Sequence[Comparison]) -> list[Comparison]:
    """Sections that differ in their budget alone, by falling budgets; the others as they came."""
    settings = [each.experiment.groups[0].settings if each.experiment.groups else {} for each in comparisons]
    kinds = [tuple(words for words in each.section if not words.startswith("budget ")) for each in comparisons]
    places = sorted(range(len(kinds)), key=lambda place: (kinds.index(kinds[place]), -float(settings[place].get(BUDGET, 0))))
    return [comparisons[place] for place in places]


def _sections(comparisons: Sequence[Comparison]) -> list[_Section]:
    sections, groups, runs = [], 0, 0
    for each in comparisons:
        sections.append(_Section(each, f"{each.name}: " if len(comparisons) > 1 else "", groups, runs))
        groups, runs = groups + len(each.experiment.groups), runs + len(each.experiment.runs)
    return sections


def _rules(comparisons: Sequence[Comparison], has_changes: bool) -> tuple[str, ...]:
    tuned = [tuning.TUNING_RULE, tuning.OPTIMUM_RULE] if any(each.experiment.choices for each in comparisons) else []
    return (
        experiment.GROUP_RULE,
        experiment.OUTCOME_RULE,
        findings.FINDING_RULE,
        outcomes.MEASURE_RULE,
        outcomes.TARGET_RULE,
        INTERVAL_RULE,
        DIFFERENCE_RULE,
        fairness.CONDITION_RULE,
        *tuned,
        *([findings.TREND_RULE] if has_changes else []),
    )


def _groups_table(section: _Section) -> Table:
    comparison, measured = section.comparison, section.comparison.measured
    target = "target" if measured.target is None else format_loss(measured.target)
    columns = (
        Column("group"),
        *(Column(f"best {field}", numeric=True, rank=3) for field in _tuned_fields(section)),
        Column(measured.measure.name, numeric=True, rank=1),
        Column("difference", numeric=True, rank=2),
        Column("trained", numeric=True, rank=3),
        Column(f"steps to {target}", numeric=True, rank=5),
        Column(f"device time to {target}", numeric=True, rank=6),
    )
    rows = []
    for place, group in enumerate(section.groups):
        finding = comparison.findings[place]
        difference = Cell("baseline")
        if finding is not None:
            difference = dataclasses.replace(_number(finding.difference, format_signed), mark=_MARKS.get(finding.verdict, ""))
        best = [f"{choice.optimum.rate:g}" if choice.optimum else "none" for choice in [group.choice] if choice]
        cells = [group.name, *best, _number(comparison.estimates[place], format_loss), difference, _trained(group)]
        cells += [_cost(measured.values[place], axis) for axis in ("step", "seconds")]
        rows.append(Row(tuple(cells), group=section.first_group + place))
    return Table(f"{section.prefix}Results by group", columns, tuple(rows), f"{_MARK_NOTE}.")


def _tuned_fields(section: _Section) -> list[str]:
    """The field of --over, if there is one."""
    return [choice.over.split(".")[1] for choice in section.comparison.experiment.choices[:1]]


def _trained(group: Group) -> Cell:
    missing = f"{len(group.missing)} missing" if group.missing else ""
    return Cell(f"{len(group.trained)} of {len(group.members)}", note=missing, value=len(group.trained))


def _number(of: Estimate | None, words: Callable[[float], str]) -> Cell:
    if of is None:
        return Cell("none")
    low, high = (value if math.isfinite(value) else None for value in (of.low, of.high))
    return Cell(
        words(of.mean), note=format_range(of.low, of.high, words) if of.has_interval else "", value=of.mean, low=low, high=high
    )


def _cost(values: Values, axis: str) -> Cell:
    costs = values.costs[axis].values()
    known = [value for value in costs if math.isfinite(value)]
    if not known or len(known) < len(costs):
        return Cell("not reached", note=f"{len(known)} of {len(costs)}" if known else "")
    cost = estimate(known)

    def words(value: float) -> str:
        rounded = float(f"{value:.3g}")  # it lies between two evaluations: three digits say enough
        return text.duration(rounded) if axis == "seconds" else text.count(round(rounded))

    note = format_range(max(0.0, cost.low), cost.high, words) if cost.has_interval else ""
    return Cell(f"{'at most ' * bool(values.at_most)}{words(cost.mean)}", note=note, value=cost.mean)


def _measures_table(section: _Section) -> Table:
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


def _runs_table(section: _Section) -> Table:
    columns = [Column("run"), Column("group"), Column("seed"), Column("state")]
    names = ("validation loss", "training loss", "steps", "tokens", "device time")
    columns += [Column(name, numeric=True) for name in names]
    places = _places(section)
    rows = [
        Row(tuple(_run_cells(group, member)), run=places.get(id(member.run)) if member.named else None)
        for group in section.groups
        for member in group.members
    ]
    return Table(f"{section.prefix}Every run", tuple(columns), tuple(rows)).without_empty_columns()


def _places(section: _Section) -> dict[int, int]:
    """The place of each run among those of the curves, by identity."""
    return {id(run): section.first_run + place for place, run in enumerate(section.comparison.experiment.runs)}


def _run_cells(group: Group, member: Member) -> list[str | Cell]:
    seeds = " and ".join(map(str, dict.fromkeys(member.replicate)))
    state = member.state if member.named or member.state != TRAINED else f"{member.state}, not named"
    run = member.run
    if run is None or not run.has_logged:
        return [f"seed {seeds}", group.name, seeds, state, *[""] * 5]
    losses = [Cell(format_loss(loss), value=loss) for loss in (run.final_validation, run.final_train)]
    steps = run.spent("step")
    return [
        run.name,
        group.name,
        seeds,
        state,
        *losses,
        "" if steps is None else f"{steps:,.0f}",
        text.count(run.spent("tokens")),
        text.duration(run.spent("seconds")),
    ]


def _conditions_table(section: _Section) -> Table | None:
    groups = [group for group in section.groups if group.runs]
    if len(groups) < 2:
        return None
    words = {
        Effect.LOSS: "losses",
        Effect.SIZE: "losses, if the larger ends better",
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


def _curves(sections: Sequence[_Section], pretraining: bool) -> Curves | None:
    runs = [run for section in sections for run in section.comparison.experiment.runs]
    if not runs:
        return None
    groups = [group for section in sections for group in _curve_groups(section)]
    most = most_points(sum(bool(len(curve)) for run in runs for curve in run.curves.values()))
    keys = dict.fromkeys(key for run in runs for curve in run.curves.values() for key in curve.metrics)
    values = {field: [flatten(run.config).get(field) for run in runs] for field in flatten(runs[0].config)}
    suffix = ", with pre-training" if pretraining else ""
    splits = {"validation": "validation", "train": "training"}
    if not any(len(run.curves["validation"]) for run in runs):
        splits = dict(reversed(splits.items()))
    return Curves(
        runs=tuple(CurveRun(name, _drawn(run, most)) for name, run in zip(numbered(run.name for run in runs), runs, strict=True)),
        groups=tuple(groups),
        baseline=sections[0].comparison.baseline,
        axes={axis: AXIS_TITLES[axis] + suffix for axis in AXES},
        metrics=describe_metrics(list(keys), _entropy_key(runs), _tokens_per_byte(runs)),
        splits=splits,
        half_intervals=tuple(half_interval(count) for count in range(len(runs) + 1)),
        references=_entropies(runs),
        fields={field: tuple(format_recorded(each)) for field, each in values.items() if len(set(map(str, each))) > 1},
        view=GROUPS if any(len(group.runs) > 1 for group in groups) else RUNS,
        notes=_notes(runs, most),
    )


def _curve_groups(section: _Section) -> list[CurveGroup]:
    places, groups = _places(section), []
    theirs = section.groups[section.comparison.baseline].by_replicate
    for place, group in enumerate(section.groups):
        finding, averaged = section.comparison.findings[place], not (group.trained and group.untrained)
        ours = group.by_replicate if averaged and finding is not None else {}
        pairs = [(places[id(run)], places[id(theirs[replicate])]) for replicate, run in ours.items() if replicate in theirs]
        groups.append(
            CurveGroup(
                f"{section.prefix}{group.name}",
                tuple(places[id(run)] for run in group.runs),
                format_list(finding.fairness.unequal) if finding is not None else "",
                tuple(pairs),
                averaged,
            )
        )
    return groups


def _drawn(run: Run, most: int) -> dict[str, Curve]:
    curves = {split: curve for split, curve in run.curves.items() if len(curve)}
    return {
        split: drawn_curve({axis: curve.x[axis] for axis in AXES}, {"loss": curve.loss, **curve.metrics}, most)
        for split, curve in curves.items()
    }


def _entropy_key(runs: Sequence[Run]) -> str:
    """The logged number that is a cross-entropy per token, of which perplexity is the exponential;
    empty for none. With next-sentence prediction the loss is a sum of two.
    """
    models = [run.config.model for run in runs]
    if any(model.objective in TASKS or model.next_sentence for model in models):
        return ""
    return "loss"


def _tokens_per_byte(runs: Sequence[Run]) -> float | None:
    return 1.0 if all(run.config.data.tokenizer == "bytes" for run in runs) else None


def _entropies(runs: Sequence[Run]) -> tuple[Reference, ...]:
    known = {round(value, 4) for run in runs if (value := run.recorded_number("data", "unigram_entropy")) is not None}
    return tuple(Reference(value, f"unigram entropy {value:.3f}") for value in sorted(known)[:_MOST_ENTROPIES])


def _notes(runs: Sequence[Run], most: int) -> tuple[str, ...]:
    longest = max(len(curve) for run in runs for curve in run.curves.values())
    notes = []
    if longest > most:
        notes.append(
            f"Of each longer curve about {most:,} rows are drawn (the longest has {longest:,}), the highest and lowest among them."
        )
    for run in runs:
        for split, curve in run.curves.items():
            gaps = gap_starts(curve.loss)
            if len(gaps):
                steps = ", ".join(f"{step:,.0f}" for step in curve.x["step"][gaps][:5])
                notes.append(f"{run.name}: the {split} loss is not finite from step {steps} on.")
    return tuple(notes)


def _points(section: _Section) -> list[Points]:
    if fields := _tuned_fields(section):
        return [_sensitivity(section, *fields)]
    paths = [axis.path for axis in section.comparison.experiment.axes if axis.path != BUDGET]
    return [figure for path in paths if (figure := _against(section, path)) is not None]


def _budgets(sections: Sequence[_Section]) -> list[Points]:
    """The primary measure, and the difference to each budget's baseline, against the tokens of runs
    that differ in their length; none where no lengths were swept.
    """
    losses: dict[str, list[Point]] = {}
    differences: dict[str, list[Point]] = {}
    several = len({group.sweep for section in sections for group in section.groups}) > 1
    for section in sections:
        comparison = section.comparison
        for group, loss, finding in zip(section.groups, comparison.estimates, comparison.findings, strict=True):
            spent = [tokens for run in group.runs if (tokens := run.spent("tokens")) is not None]
            if BUDGET not in group.settings or not spent:
                continue
            tuned = group.choice.over if group.choice else ""
            settings = {path: value for path, value in group.settings.items() if path not in (BUDGET, tuned)}
            words = [comparison.section[0]] if several else []
            name = ", ".join([*words, *(f"{path.split('.')[-1]} {value}" for path, value in settings.items())]) or "all"
            for lines, of in ((losses, loss), (differences, finding.difference if finding else None)):
                if of is not None:
                    lines.setdefault(name, []).append(_estimated(math.fsum(spent) / len(spent), of, group.name))
    measure = sections[0].comparison.measured.measure.name
    figures = []
    for lines, words in ((losses, measure), (differences, f"difference in {measure}")):
        if any(len(points) > 1 for points in lines.values()):
            series = tuple(Series(name, tuple(sorted(points, key=lambda point: point.x))) for name, points in lines.items())
            zero = () if lines is losses else (Reference(0.0, "the baseline"),)
            ticks = {text.count(round(point.x)): point.x for points in lines.values() for point in points}
            of_ticks = tuple((x, words) for words, x in ticks.items())
            title = f"{words} at the end of each length"
            figures.append(Points(title, "training tokens", words, series, log_x=True, ticks=of_ticks, references=zero))
    return figures


def _sensitivity(section: _Section, field: str) -> Points:
    grids = [group.choice.measured if group.choice else {} for group in section.groups]
    series = []
    for place, (grid, group) in enumerate(zip(grids, section.groups, strict=True)):
        points = [_spanned(value, list(losses.values())) for value, losses in sorted(grid.items()) if losses]
        series.append(Series(group.name, tuple(points), group=section.first_group + place))
    note = "Mean over the choosing seeds that trained, with the lowest and the highest of them."
    ticks = _ticks(value for grid in grids for value in grid)
    measure = section.comparison.measured.measure.name
    title = f"{section.prefix}{'Loss' if measure == 'validation loss' else measure} against {field}"
    return Points(title, field, measure, tuple(series), log_x=True, ticks=ticks, note=note)


def _against(section: _Section, path: str) -> Points | None:
    """The primary measure against a swept number; None where it is none, or has one value."""
    groups, measured = section.groups, section.comparison.measured
    measure = measured.measure.name
    settings = [group.settings.get(path) for group in groups]
    numbers = [value for value in settings if isinstance(value, int | float) and not isinstance(value, bool)]
    if len(numbers) < len(settings) or len(set(numbers)) < 2:
        return None
    series: dict[str, list[Point]] = {}
    for number, group, values in zip(numbers, groups, measured.values, strict=True):
        others = ", ".join(f"{name.split('.')[-1]} {value}" for name, value in group.settings.items() if name != path)
        losses = [value for value in values.final.values() if math.isfinite(value)]
        if losses:
            series.setdefault(others, []).append(_estimated(float(number), estimate(losses), group.name, bool(group.untrained)))
    field = path.split(".")[-1]
    lines = [Series(name or measure, tuple(sorted(points, key=lambda point: point.x))) for name, points in series.items()]
    log = min(numbers) > 0 and max(numbers) / min(numbers) >= 4
    hollow = any(group.untrained for group in groups)
    note = "Hollow: not all runs trained; the mean is over those that did, and too good." if hollow else ""
    ticks = _ticks(numbers)
    return Points(f"{section.prefix}{measure} against {field}", field, measure, tuple(lines), log_x=log, ticks=ticks, note=note)


def _ticks(values: Iterable[int | float]) -> tuple[tuple[float, str], ...]:
    return tuple((float(value), f"{value:g}") for value in sorted(set(values)))


def _spanned(x: float, values: Sequence[float]) -> Point:
    """With the lowest and the highest: intervals of the few seeds that choose are so wide that they
    hide all curves.
    """
    low, high = (min(values), max(values)) if len(values) > 1 else (None, None)
    return Point(x, statistics.fmean(values), low, high)


def _estimated(x: float, of: Estimate, label: str, hollow: bool = False) -> Point:
    low, high = (value if math.isfinite(value) else None for value in (of.low, of.high))
    return Point(x, of.mean, low, high, hollow, label)
