"""A Report of a page's findings: its sentences, tables and figures."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from mhsh.config.fields import flatten
from mhsh.config.shapes import shape_name
from mhsh.report.curves import describe_metrics, drawn_curve, most_points
from mhsh.report.report import GROUPS, RUNS, CurveGroup, CurveRun, Curves, DrawnCurve, Point, Points, Reference, Report, Series
from mhsh.report.sentences import change_words, pooled_words, sentences, title
from mhsh.report.tables import (
    ReportSection,
    conditions_table,
    differences_note,
    groups_tables,
    measures_table,
    rates_tables,
    run_places,
    runs_table,
    stability_table,
    training_table,
)
from mhsh.sweep.axes import BUDGET
from mhsh.text import format_list, format_values, number_duplicates
from mhsh.verdict import decision, fairness, findings, outcomes, tuning
from mhsh.verdict.estimate import DIFFERENCE_RULE, INTERVAL_RULE, Estimate, half_width_factor
from mhsh.verdict.findings import Comparison, Page
from mhsh.verdict.groups import GROUP_RULE, OUTCOME_RULE, Group
from mhsh.verdict.runs import Curve, RecordedRun
from mhsh.verdict.stability import STABILITY_RULE

PER_PARAMETER = "tokens_per_parameter"
AXIS_TITLES = {
    "step": "training steps",
    "tokens": "training tokens",
    PER_PARAMETER: "training tokens a parameter",
    "flops": "training FLOPs",
    "seconds": "device seconds of training (compilation excluded)",
}
_MOST_ENTROPIES = 3  # lines; data seeds of one text differ by little


def build_report(page: Page, margin: float = 0.0) -> Report:
    """The report of a page that was judged against that margin; of a sweep over lengths of training
    the longest answers, and comes first.
    """
    comparisons, changes, pooled, tests = page
    sections = _sections(_sort_by_budget(comparisons))
    titles = [title(section.comparison, section.prefix) for section in sections]
    statements = [f"{section.prefix}{sentence}" for section in sections for sentence in sentences(section.comparison)]
    others = [build(section) for build in (measures_table, stability_table, runs_table) for section in sections]
    return Report(
        title=titles[0],
        summary=(*(f"{line}." for line in titles[1:]), *map(pooled_words, pooled), *map(change_words, changes), *statements),
        tables=(*groups_tables(sections), *(table for table in others if table is not None)),
        curves=_curves(sections),
        training=training_table(sections),
        points=tuple(_budgets(sections)),
        rates=tuple(rates_tables(sections)),
        conditions=tuple(table for section in sections if (table := conditions_table(section)) is not None),
        problems=tuple(dict.fromkeys(line for each in comparisons for line in each.experiment.problems)),
        margin=margin or None,
        rules=_rules(page, margin),
        caption=_caption(sections, tests),
    )


def _caption(sections: Sequence[ReportSection], tests: int) -> str:
    """The caption of the table of results in a paper: it says how its numbers were made."""
    groups = [group for section in sections for group in section.groups]
    seeds = sorted({len(group.trained_members) for group in groups if group.trained_members})
    words = " to ".join(map(str, dict.fromkeys([seeds[0], seeds[-1]]))) if seeds else "no"
    return (
        f"Values are means over {words} seeds with their 95 % intervals, and so are the bands of the figures. Differences are to "
        f"{_baseline_words(sections)}, seed by seed where both have it; the intervals of those tested hold together with 95 % "
        f"({tests} test{'s' * (tests != 1)}, Bonferroni). \u25bc (lower) and \u25b2 (higher) leave out zero. "
        f"{differences_note(sections)}"
    ).rstrip()


def _sort_by_budget(comparisons: Sequence[Comparison]) -> list[Comparison]:
    """Sections that differ in their budget alone, by falling budgets; the others as they came."""
    settings = [each.experiment.groups[0].settings if each.experiment.groups else {} for each in comparisons]
    kinds = [tuple(words for words in each.section if not words.startswith("budget ")) for each in comparisons]
    places = sorted(range(len(kinds)), key=lambda place: (kinds.index(kinds[place]), -float(settings[place].get(BUDGET, 0))))
    return [comparisons[place] for place in places]


def _sections(comparisons: Sequence[Comparison]) -> list[ReportSection]:
    sections, groups, runs = [], 0, 0
    for each in comparisons:
        sections.append(ReportSection(each, f"{each.name}: " if len(comparisons) > 1 else "", groups, runs))
        groups, runs = groups + len(each.experiment.groups), runs + len(each.experiment.runs)
    return sections


def _rules(page: Page, margin: float) -> tuple[str, ...]:
    tuned = any(each.experiment.choices for each in page.comparisons)
    return (
        GROUP_RULE,
        OUTCOME_RULE,
        findings.FINDING_RULE,
        outcomes.MEASURE_RULE,
        outcomes.RATIO_RULE,
        INTERVAL_RULE,
        DIFFERENCE_RULE,
        fairness.CONDITION_RULE,
        STABILITY_RULE,
        *([tuning.TUNING_RULE, tuning.OPTIMUM_RULE] if tuned else []),
        *([findings.TREND_RULE] if page.changes else []),
        *([decision.MARGIN_RULE] if margin else []),
        *([decision.POOLED_RULE] if page.pooled else []),
    )


def _curves(sections: Sequence[ReportSection]) -> Curves | None:
    runs = [run for section in sections for run in section.comparison.experiment.runs]
    if not runs:
        return None
    looks = _looks(sections)
    groups = [
        dataclasses.replace(group, color=looks[each][0], variant=looks[each][1])
        for each, group in enumerate(group for section in sections for group in _curve_groups(section))
    ]
    most = most_points(sum(bool(len(curve)) for run in runs for curve in run.curves.values()))
    keys = dict.fromkeys(key for run in runs for curve in run.curves.values() for key in curve.metrics)
    values = {field: [flatten(run.config).get(field) for run in runs] for field in flatten(runs[0].config)}
    axes = [axis for axis in AXIS_TITLES if axis != PER_PARAMETER or all(map(_parameters, runs))]
    splits = {"validation": "validation", "train": "training"}
    if not any(len(run.curves["validation"]) for run in runs):
        splits = dict(reversed(splits.items()))
    return Curves(
        runs=tuple(
            CurveRun(name, _drawn_curves(run, axes, most))
            for name, run in zip(number_duplicates(run.name for run in runs), runs, strict=True)
        ),
        groups=tuple(groups),
        baseline=_baseline_words(sections) if any(group.pairs for group in groups) else "",
        axes={axis: AXIS_TITLES[axis] for axis in axes},
        metrics=describe_metrics(list(keys)),
        splits=splits,
        half_intervals=tuple(half_width_factor(count) for count in range(len(runs) + 1)),
        references=_entropies(runs),
        fields={field: _search_texts(each) for field, each in values.items() if len(set(map(str, each))) > 1},
        view=GROUPS if any(len(group.runs) > 1 for group in groups) else RUNS,
        notes=_notes(runs, most),
    )


def _search_texts(values: Sequence[Any]) -> tuple[str, ...]:
    """The values of a field as a reader of the page types them: numbers have no commas."""
    texts = format_values(values)
    return tuple(
        text.replace(",", "") if isinstance(value, int | float) else text for value, text in zip(values, texts, strict=True)
    )


def _shape(group: Group) -> str:
    return f"{shape_name(group.config.model)} {group.config.model.residual}"


def _looks(sections: Sequence[ReportSection]) -> list[tuple[int, int]]:
    """The colour and the variant of every group: a colour a shape (where there is one shape, a
    group), and in each section variants of its own.
    """
    groups = [group for section in sections for group in section.groups]
    several = len(set(map(_shape, groups))) > 1
    shapes = [[_shape(group) if several else group.name for group in section.groups] for section in sections]
    colors = {shape: color for color, shape in enumerate(dict.fromkeys(shape for each in shapes for shape in each))}
    most = max((each.count(shape) for each in shapes for shape in each), default=0)
    return [
        (colors[shape], most * place + each[:index].count(shape))
        for place, each in enumerate(shapes)
        for index, shape in enumerate(each)
    ]


def _baseline_words(sections: Sequence[ReportSection]) -> str:
    names = {section.groups[section.comparison.baseline].name for section in sections if section.groups}
    return f"{names.pop() if len(names) == 1 else 'the baseline'}{' in the same section' * (len(sections) > 1)}"


def _curve_groups(section: ReportSection) -> list[CurveGroup]:
    places, groups = run_places(section), []
    theirs = section.groups[section.comparison.baseline].runs_by_replicate
    for place, group in enumerate(section.groups):
        finding, averaged = section.comparison.findings[place], not (group.trained_members and group.untrained_members)
        ours = group.runs_by_replicate if averaged and finding is not None else {}
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


def _drawn_curves(run: RecordedRun, axes: Sequence[str], most: int) -> dict[str, DrawnCurve]:
    def places(curve: Curve, axis: str) -> np.ndarray:
        return curve.x["tokens"] / (_parameters(run) or math.nan) if axis == PER_PARAMETER else curve.x[axis]

    return {
        split: drawn_curve({axis: places(curve, axis) for axis in axes}, {"loss": curve.loss, **curve.metrics}, most)
        for split, curve in run.curves.items()
        if len(curve)
    }


def _parameters(run: RecordedRun) -> float | None:
    return run.recorded_number("parameters", "total")


def _entropies(runs: Sequence[RecordedRun]) -> tuple[Reference, ...]:
    known = {round(value, 4) for run in runs if (value := run.recorded_number("data", "unigram_entropy")) is not None}
    return tuple(Reference(value, f"unigram entropy {value:.3f}") for value in sorted(known)[:_MOST_ENTROPIES])


def _notes(runs: Sequence[RecordedRun], most: int) -> tuple[str, ...]:
    longest = max(len(curve) for run in runs for curve in run.curves.values())
    thinned = f"Long curves are thinned to about {most:,} points that keep their peaks (the longest has {longest:,})."
    return (thinned,) if longest > most else ()


def _budgets(sections: Sequence[ReportSection]) -> list[Points]:
    """The primary measure, and the difference to each length's baseline, against the tokens a
    parameter (or where the parameters are not known, the tokens) of runs that differ in their
    length; none where no lengths were swept.
    """
    lines: dict[bool, dict[str, list[Point]]] = {False: {}, True: {}}  # of the differences?
    looks: dict[str, tuple[int, int]] = {}
    several = len({group.sweep for section in sections for group in section.groups}) > 1
    entries = [(section, place) for section in sections for place in range(len(section.groups))]
    per_parameter = all(_parameters(run) for section, _ in entries for run in section.comparison.experiment.runs)
    for (color, _), (section, place) in zip(_looks(sections), entries, strict=True):
        comparison, group = section.comparison, section.groups[place]
        runs = group.trained_runs.values()
        sizes = [(_parameters(run) or 1.0) if per_parameter else 1.0 for run in runs]
        spent = [tokens / size for run, size in zip(runs, sizes, strict=True) if (tokens := run.total("tokens"))]
        if BUDGET not in group.settings or not spent:
            continue
        name = ", ".join([*comparison.section[:1] * several, group.name])
        looks.setdefault(name, (color, len([each for each, _ in looks.values() if each == color])))
        finding = comparison.findings[place]
        for of_difference, estimate in ((False, comparison.estimates[place]), (True, finding.difference if finding else None)):
            if estimate is not None:
                lines[of_difference].setdefault(name, []).append(_estimate_point(math.fsum(spent) / len(spent), estimate))
    measure = sections[0].comparison.measure.name
    found = []
    for of_difference, words in ((False, measure), (True, f"difference in {measure}")):
        if any(len(points) > 1 for points in lines[of_difference].values()):
            series = tuple(
                Series(name, tuple(sorted(points, key=lambda point: point.x)), *looks[name])
                for name, points in lines[of_difference].items()
            )
            zero = (Reference(0.0, "the baseline of each length"),) * of_difference
            x_title = AXIS_TITLES[PER_PARAMETER if per_parameter else "tokens"]
            found.append(Points(f"{words} at the end of each length", x_title, words, series, zero))
    return found


def _estimate_point(x: float, estimate: Estimate) -> Point:
    low, high = (value if math.isfinite(value) else None for value in (estimate.low, estimate.high))
    label = f"{estimate.seeds} seed{'s' * (estimate.seeds != 1)}"
    return Point(x, estimate.mean, low, high, label, estimate.has_interval and None in (low, high))
