"""Reports for tests: of planted numbers, and of run folders by a stop-gap that judges nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mhsh.report.compare.chart import AXIS_TITLES
from mhsh.report.compare.comparison import Comparison
from mhsh.report.compare.measures import measure_rows
from mhsh.report.compare.run_columns import COLUMNS
from scipy.special import stdtrit

from mhsh.outcome import LEFT
from mhsh.report.lines import describe_metrics, drawn_curve
from mhsh.report.report import (
    Cell,
    Column,
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
from mhsh.verdict.words import format_distinct, format_loss, format_signed


def half_intervals(count: int) -> tuple[float | None, ...]:
    """Student's, by the number of runs."""
    return tuple(None if n < 2 else float(stdtrit(n - 1, 0.975)) / n**0.5 for n in range(count + 1))


def report_of(comparison: Comparison) -> Report:
    """What today's comparison holds, as a Report."""
    return Report(
        title=comparison.headline.title,
        summary=comparison.headline.sentences,
        tables=(_groups(comparison), _measures(comparison), _runs(comparison)),
        curves=_curves(comparison),
        conditions=Table.of_text(
            "Conditions",
            ["condition", "values"],
            [[row.name, "; ".join(row.values)] for row in comparison.conditions if not row.equal],
        ),
        problems=comparison.problems,
        rules=("A group is the runs of one config.", "An interval is by Student's t."),
    )


def _groups(comparison: Comparison) -> Table:
    columns = (
        Column("group"),
        Column("final validation loss", numeric=True, rank=1),
        Column("difference to the baseline", numeric=True, rank=2),
        Column("trained", numeric=True, rank=3),
        Column("steps to target", numeric=True, rank=4),
        Column("device time", numeric=True, rank=5),
    )
    rows = []
    for place, (group, scores) in enumerate(zip(comparison.groups, comparison.results.scores, strict=True)):
        final, change, cost = scores.final.estimate, scores.final.difference, scores.cost_to_target["step"].estimate
        trained = sum(comparison.summaries[run].outcome == LEFT for run in group.runs)
        cells = (
            group.name,
            _number(final, format_loss),
            "baseline"
            if place == comparison.results.baseline
            else _number(change, lambda value: format_signed(value, format_loss), True),
            f"{trained} of {len(group.runs)}",
            "not reached" if cost is None else f"{cost.mean:,.0f}",
            f"{comparison.summaries[group.runs[0]].seconds or 0:.1f} s",
        )
        rows.append(Row(cells, group=place))
    return Table("Results by group", columns, tuple(rows), "Behind each number stands its 95 % interval. * significant by Holm.")


def _number(of: Any, words: Any, marked: bool = False) -> Cell:
    if of is None:
        return Cell("not known")
    note = f"{words(of.low)} to {words(of.high)}" if of.has_interval else ""
    bounds = (of.low, of.high) if of.has_interval else (None, None)
    return Cell(words(of.mean), "*" if marked and of.is_significant else "", note, value=of.mean, low=bounds[0], high=bounds[1])


def _measures(comparison: Comparison) -> Table:
    rows = measure_rows(comparison)
    cells = [
        Row((group.name, *(Cell(row.cells[place].number, note=row.cells[place].spread) for row in rows)), group=place)
        for place, group in enumerate(comparison.groups)
    ]
    return Table("Every measure", (Column("group"), *(Column(row.name, numeric=True) for row in rows)), tuple(cells))


def _runs(comparison: Comparison) -> Table:
    rows = tuple(Row(tuple(cell(item) for _, cell in COLUMNS), run=place) for place, item in enumerate(comparison.summaries))
    return Table("Every run", tuple(Column(name, numeric="loss" in name) for name, _ in COLUMNS), rows)


def _curves(comparison: Comparison) -> Curves:
    runs = comparison.runs
    keys = dict.fromkeys(key for run in runs for curve in run.curves.values() for key in curve.metrics)
    values = {
        row.name: tuple(
            format_distinct([getattr(getattr(run.config, row.name.split(".")[0]), row.name.split(".")[1], None) for run in runs])
        )
        for row in comparison.config_fields
    }
    baseline = comparison.results.baseline
    by_seed = {runs[run].config.train.seed: run for run in comparison.groups[baseline].runs}
    groups = []
    for place, group in enumerate(comparison.groups):
        pairs = tuple((run, by_seed[runs[run].config.train.seed]) for run in group.runs if runs[run].config.train.seed in by_seed)
        groups.append(CurveGroup(group.name, group.runs, pairs=pairs if place != baseline else ()))
    most = comparison.drawn_points
    return Curves(
        runs=tuple(
            CurveRun(
                run.name,
                {
                    split: drawn_curve(curve.x, {"loss": curve.loss, **curve.metrics}, most)
                    for split, curve in run.curves.items()
                    if len(curve)
                },
            )
            for run in runs
        ),
        groups=tuple(groups),
        baseline=baseline,
        axes=AXIS_TITLES,
        metrics=describe_metrics(list(keys), tokens_per_byte=0.25),
        splits={"validation": "validation", "train": "training"},
        half_intervals=half_intervals(len(runs)),
        references=tuple(Reference(value, label) for value, label in comparison.entropies),
        fields={name: each for name, each in values.items() if len(set(each)) > 1},
        view="groups" if any(len(group.runs) > 1 for group in comparison.groups) else "runs",
    )


def rates_figure(names: Sequence[str] = ("6x4 post_ln", "24x1 admin")) -> Points:
    """Loss against learning rate for a few shapes, with a value that is at the grid's edge."""
    rates = [2.0**power for power in range(-13, -8)]
    series = []
    for shift, name in enumerate(names):
        offsets = [0.1 * (power - 1 - shift) ** 2 for power in range(len(rates))]
        points = [
            Point(rate, 2 + offset, 1.95 + 0.9 * offset, 2.1 + 1.2 * offset, hollow=rate == rates[0], label="3 seeds")
            for rate, offset in zip(rates, offsets, strict=True)
        ]
        series.append(Series(name, tuple(points), group=shift))
    return Points(
        "Loss against the learning rate",
        "learning rate",
        "final validation loss, nats per token",
        tuple(series),
        log_x=True,
        ticks=tuple((rate, f"{rate:.2g}") for rate in rates),
        references=(Reference(2.5, "unigram entropy 2.500"),),
        note="Bars: 95 % intervals. Hollow: the edge of the grid.",
    )
