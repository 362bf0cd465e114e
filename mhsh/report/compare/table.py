"""The comparison in the terminal and as Markdown: the headline, a line a run or group, and how sure
it is.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from mhsh import outcome, text
from mhsh.report.compare.chart import GROUPS, first_view
from mhsh.report.compare.comparison import Comparison
from mhsh.report.compare.measures import MeasureCell, metric_rows
from mhsh.report.compare.results import Cost, Score
from mhsh.report.compare.unequal_marks import SIGN, unequal_conditions
from mhsh.report.render.markdown import to_markdown
from mhsh.report.render.table import Table
from mhsh.report.render.terminal import print_fitted_table, print_line
from mhsh.verdict.summary import Summary
from mhsh.verdict.words import format_loss, format_loss_difference, format_signed

_LINES = 36  # at most, where the sentences are short: a screen holds 40 with the names of the files below
_LEAST_ROWS = 10
_OUTCOMES = {outcome.LEFT: "trained", outcome.ON_PLATEAU: "on plateau"}
# Which columns a narrow terminal keeps: the first ones of these.
_KEPT = ("run", "loss", "difference", "outcome", "target", "time", "shape", "seeds")


def print_comparison(comparison: Comparison, console: Console) -> None:
    """Prints the headline, a line a group (a run where no group has several seeds), lowest loss
    first, and the headline's limits.

    Everything is text: no colour carries meaning.
    """
    headline = comparison.headline
    below = [_legend(comparison), *(f"- {sentence}" for sentence in headline.sentences[:2] if headline.measure)]
    said = [headline.title, *below]
    free = _LINES - 4 - sum(len(Text(line).wrap(console, console.width)) for line in said)
    places = _places(comparison)
    shown = places[: max(_LEAST_ROWS, free)] if len(places) > free + 1 else places
    print_line(headline.title, console, style="bold")
    console.print()
    print_fitted_table(_table(comparison, shown), console, [_KEPT.index(name) for name in _ORDER])
    if len(shown) < len(places):
        print_line(f"... and {len(places) - len(shown)} more, in the report", console)
    for line in below:
        print_line(line, console)


def as_markdown(comparison: Comparison, picture: str) -> bytes:
    """The headline with all of its limits, the file `picture`, and a row a group (or run): its loss
    and so on, and the other metrics of its last validation.
    """
    headline = comparison.headline
    claims = [headline.title, *headline.sentences, _legend(comparison)]
    places = _places(comparison)
    tables = [("", _table(comparison, places))]
    metrics = metric_rows(comparison)
    if metrics:
        rows = [[_name(comparison, place), *(_metric(row.cells[place]) for row in metrics)] for place in places]
        title = f"After the last step, and the difference to {comparison.groups[comparison.results.baseline].name}"
        tables.append((title, Table(["group", *(row.name for row in metrics)], rows)))
    return to_markdown(claims, {picture: "Loss curves"}, tables)


def _places(comparison: Comparison) -> list[int]:
    """The groups, the lowest loss first, those without one last."""
    return list(dict.fromkeys([*comparison.results.ranked, *range(len(comparison.groups))]))


_ORDER = ("run", "shape", "seeds", "loss", "difference", "target", "time", "outcome")  # from left to right


def _table(comparison: Comparison, places: Sequence[int]) -> Table:
    """The columns of `_ORDER`."""
    results = comparison.results
    is_grouped = first_view(comparison) == GROUPS
    target = f"steps to {format_loss(results.target)}" if results.target is not None else "steps to target"
    columns = ["group" if is_grouped else "run", "shape", "seeds", "loss", "difference", target, "device time", "outcome"]
    rows = []
    for place in places:
        scores = results.scores[place]
        summaries = [comparison.summaries[index] for index in comparison.groups[place].runs]
        times = [item.seconds for item in summaries if item.seconds is not None]
        rows.append(
            [
                _name(comparison, place),
                f"{summaries[0].shape} {summaries[0].residual}",
                str(len(summaries)),
                _loss(scores.final),
                "baseline" if place == results.baseline else _difference(scores.final),
                _steps(scores.cost_to_target["step"]),
                text.duration(statistics.fmean(times)) if times else text.NOT_RECORDED,
                _outcome(summaries),
            ]
        )
    return Table(columns, rows)


def _name(comparison: Comparison, place: int) -> str:
    return f"{comparison.groups[place].name}{f' {SIGN}' if unequal_conditions(comparison)[place] else ''}"


def _loss(score: Score) -> str:
    if score.estimate is None:
        return "not finite" if score.known == 0 else f"{score.known} of {len(score.each)} seeds"
    of = score.estimate
    return format_loss(of.mean) + (f" \u00b1 {format_loss_difference(of.high - of.mean)}" if of.has_interval else "")


def _metric(cell: MeasureCell) -> str:
    """`31.2 (29.8 to 32.6); +1.1 (-0.3 to +2.5) ≈`."""
    value = f"{cell.number} ({cell.spread})" if cell.spread else cell.number
    return f"{value}; {cell.change} {cell.sign}".rstrip() if cell.change else value


def _difference(score: Score) -> str:
    if score.difference is None:
        return ""
    return format_signed(score.difference.mean, format_loss_difference) + " *" * score.difference.is_significant


def _steps(cost: Cost) -> str:
    if cost.estimate is None:
        return "not reached" if cost.known == 0 else f"{cost.known} of {len(cost.each)} seeds"
    at_most = all(crossing is not None and crossing.at_most for crossing in cost.crossings.values())
    return f"{'at most ' * at_most}{text.count(cost.estimate.mean)}"


def _outcome(summaries: Sequence[Summary]) -> str:
    """`trained`, or `2 trained, 1 diverged`, and whether any is unfinished or damaged."""
    found = Counter(_OUTCOMES.get(item.outcome, item.outcome) for item in summaries)
    words = [word if len(found) == 1 else f"{number} {word}" for word, number in found.items()]
    words += [status for status in ("running", "stopped") if any(item.status == status for item in summaries)]
    words += ["files damaged"] * any(item.has_problems for item in summaries)
    return ", ".join(words)


def _legend(comparison: Comparison) -> str:
    finals = [scores.final for scores in comparison.results.scores]
    parts = [f"loss: {comparison.results.measure}, nats per predicted token"]
    if any(final.estimate is not None and final.estimate.has_interval for final in finals):
        parts.append("\u00b1: 95 % interval over seeds")
    if any(final.difference is not None and final.difference.is_significant for final in finals):
        parts.append("*: significant")
    if comparison.marks:
        parts.append(f"{SIGN}: not comparable with the baseline")
    return "; ".join(parts)
