"""The sign on the curves of groups whose conditions differ from the baseline's."""

from __future__ import annotations

from mhsh.report.compare.comparison import Comparison
from mhsh.report.compare.fairness import PARAMETER_MARGIN, Condition, excess

SIGN = "\u2260"  # not equal


def unequal_conditions(comparison: Comparison) -> tuple[tuple[str, ...], ...]:
    """For every group, the conditions that matter and differ from the baseline's."""
    rows = [row for row in comparison.conditions if row.matters]
    baseline = comparison.results.baseline
    return tuple(tuple(row.name for row in rows if _differ(row, place, baseline)) for place in range(len(comparison.groups)))


def _differ(row: Condition, place: int, baseline: int) -> bool:
    if row.counts:
        return excess((row.counts[place], row.counts[baseline])) > PARAMETER_MARGIN
    return row.values[place] != row.values[baseline]
