"""Which groups stand at other conditions than the baseline, in what matters: the sign that their
curves bear.
"""

from __future__ import annotations

from mhsh.report.compare.comparison import Comparison
from mhsh.report.compare.fairness import PARAMETER_MARGIN, LedgerRow, excess

SIGN = "\u2260"  # not equal


def unequal(comparison: Comparison) -> tuple[tuple[str, ...], ...]:
    """For every group, what matters and is not as in the baseline group; nothing for the baseline
    itself.
    """
    rows = [row for row in comparison.ledger if row.matters]
    baseline = comparison.standing.baseline
    return tuple(tuple(row.what for row in rows if _differ(row, place, baseline)) for place in range(len(comparison.groups)))


def _differ(row: LedgerRow, place: int, baseline: int) -> bool:
    if row.counts:
        return excess((row.counts[place], row.counts[baseline])) > PARAMETER_MARGIN
    return row.values[place] != row.values[baseline]
