"""Which groups stand at other conditions than the baseline, in what matters: the sign that their curves bear."""

from __future__ import annotations

from mhsh.report.comparison import Comparison

SIGN = "\u2260"  # not equal


def unequal(comparison: Comparison) -> tuple[tuple[str, ...], ...]:
    """For every group, what matters and is not as in the baseline group; nothing for the baseline itself."""
    rows = [row for row in comparison.ledger if row.matters]
    baseline = comparison.standing.baseline
    return tuple(
        tuple(row.what for row in rows if row.values[place] != row.values[baseline]) for place in range(len(comparison.groups))
    )
