"""The columns of the table of runs, in the terminal and on pages."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mhsh import text
from mhsh.verdict.summary import LossAtStep, Summary
from mhsh.verdict.words import format_loss


def outcome(item: Summary) -> str:
    """The outcome by the plateau rule, and whether the run is unfinished or damaged."""
    remarks = [item.outcome]
    if item.status in ("running", "stopped"):
        remarks.append(item.status)
    if item.has_problems:
        remarks.append("files damaged or missing")
    return "; ".join(remarks)


def _point(point: LossAtStep | None, with_step: bool = False) -> str:
    if point is None:
        return text.NOT_RECORDED
    return f"{format_loss(point.loss)} ({point.step:,})" if with_step else format_loss(point.loss)


# Heading and cell. Losses are in nats per predicted token.
COLUMNS: tuple[tuple[str, Callable[[Summary], str]], ...] = (
    ("run", lambda item: item.name),
    ("shape", lambda item: item.shape),
    ("residual", lambda item: item.residual),
    ("validation loss, final", lambda item: _point(item.final_validation)),
    ("validation loss, best (at step)", lambda item: _point(item.best_validation, with_step=True)),
    ("training loss, final", lambda item: format_loss(item.final_train)),
    ("outcome", outcome),
    ("parameters", lambda item: text.count(item.parameters)),
    ("steps", lambda item: text.count(item.last_step)),
    ("tokens", lambda item: text.count(item.tokens)),
    ("FLOPs", lambda item: text.count(item.flops)),
    ("device time", lambda item: text.duration(item.seconds)),
    ("of wall time", lambda item: text.NOT_RECORDED if item.goodput is None else f"{item.goodput:.0%}"),
)


def columns_alike(items: Sequence[Summary]) -> tuple[tuple[str, Callable[[Summary], str]], ...]:
    """COLUMNS with one number format a column."""
    alike = {
        "parameters": (text.counts_alike, lambda item: item.parameters),
        "steps": (text.counts_alike, lambda item: item.last_step),
        "tokens": (text.counts_alike, lambda item: item.tokens),
        "FLOPs": (text.counts_alike, lambda item: item.flops),
        "device time": (text.durations_alike, lambda item: item.seconds),
    }

    def cell(heading: str, plain: Callable[[Summary], str]) -> Callable[[Summary], str]:
        if heading not in alike:
            return plain
        format_of, value = alike[heading]
        words = format_of(map(value, items))
        return lambda item: words(value(item))

    return tuple((heading, cell(heading, plain)) for heading, plain in COLUMNS)
