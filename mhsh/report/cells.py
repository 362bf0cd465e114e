"""The columns of the tables of runs and of groups, as the terminal and the page both show them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mhsh.report import wording
from mhsh.report.comparison import Comparison
from mhsh.report.estimate import Estimate
from mhsh.report.summary import Point, Summary
from mhsh.report.targets import Score


def outcome(item: Summary) -> str:
    """The outcome by the plateau rule, with what else must not be overlooked."""
    remarks = [item.outcome]
    if item.status in ("running", "stopped"):
        remarks.append(item.status)
    if item.has_problems:
        remarks.append("files damaged or missing")
    return "; ".join(remarks)


def _point(point: Point | None, with_step: bool = False) -> str:
    if point is None:
        return wording.NOT_RECORDED
    return f"{wording.loss(point.loss)} ({point.step:,})" if with_step else wording.loss(point.loss)


# Column heading, and what stands under it for a run. Losses are in nats per predicted token.
COLUMNS: tuple[tuple[str, Callable[[Summary], str]], ...] = (
    ("run", lambda item: item.name),
    ("shape", lambda item: item.shape),
    ("residual", lambda item: item.residual),
    ("validation loss, final", lambda item: _point(item.final_validation)),
    ("validation loss, best (at step)", lambda item: _point(item.best_validation, with_step=True)),
    ("training loss, final", lambda item: wording.loss(item.final_train)),
    ("outcome", outcome),
    ("parameters", lambda item: wording.count(item.parameters)),
    ("steps", lambda item: wording.count(item.last_step)),
    ("tokens", lambda item: wording.count(item.tokens)),
    ("FLOPs", lambda item: wording.count(item.flops)),
    ("device time", lambda item: wording.duration(item.seconds)),
)

_AXIS_NAMES = {"step": "steps", "tokens": "tokens", "flops": "FLOPs", "seconds": "device time"}


def group_columns(comparison: Comparison) -> list[tuple[str, list[str]]]:
    """A heading, and what stands under it for each group. Losses are in nats per predicted token; intervals are in brackets."""
    standing, groups = comparison.standing, comparison.groups
    target = "" if standing.target is None else f" {standing.target:.4g}"

    def column(heading: str, scores: Sequence[Score], show: Callable[[float], str]) -> tuple[str, list[str]]:
        return heading, [_score(score, show) for score in scores]

    against = [_against(item.final.against, place == standing.baseline) for place, item in enumerate(standing.scores)]
    return [
        ("group", [group.name for group in groups]),
        ("seeds", [", ".join(map(str, group.seeds)) for group in groups]),
        column(standing.measure, [item.final for item in standing.scores], wording.loss),
        (f"difference to {groups[standing.baseline].name}" if groups else "difference", against),
        column("best loss", [item.best for item in standing.scores], wording.loss),
        column("mean loss over steps", [item.mean_loss["step"] for item in standing.scores], wording.loss),
        *(
            column(
                f"{name} to loss{target}",
                [item.reach[axis] for item in standing.scores],
                wording.duration if axis == "seconds" else wording.count,
            )
            for axis, name in _AXIS_NAMES.items()
        ),
    ]


def _score(score: Score, show: Callable[[float], str]) -> str:
    if score.estimate is not None:
        return wording.estimate(score.estimate, show)
    return f"none of {len(score.each)}" if not score.known else f"only {score.known} of {len(score.each)} runs"


def _against(difference: Estimate | None, is_baseline: bool) -> str:
    if is_baseline:
        return "the baseline"
    if difference is None:
        return wording.NOT_RECORDED
    text = wording.estimate(difference, wording.loss_difference)
    if not difference.has_interval:
        return f"{text}, no error bar"
    return text if difference.excludes_zero else f"{text}, not told apart"
