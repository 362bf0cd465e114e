"""The parts of report.html: what each template of `parts/` prints."""

from __future__ import annotations

from collections import Counter
from typing import Any

from mhsh import outcome
from mhsh.report import estimate
from mhsh.report.compare import fairness, groups, results
from mhsh.report.compare.chart import SPLIT_NAMES, Chart
from mhsh.report.compare.comparison import Comparison
from mhsh.report.compare.measures import AXIS_NAMES, HIGHER, LEVEL, LOWER, measure_rows
from mhsh.report.compare.run_columns import columns_alike
from mhsh.report.compare.unequal_marks import SIGN, unequal_conditions
from mhsh.report.render.html import render
from mhsh.report.render.styles import curve_style, run_styles
from mhsh.report.render.table import Table
from mhsh.report.runs import downsample
from mhsh.verdict.seed_groups import GROUP_RULE
from mhsh.verdict.words import format_list

PARTS = ("claim", "controls", "more", "notes", "problems", "groups", "runs", "fairness", "rules")


def render_parts(comparison: Comparison, chart: Chart) -> dict[str, str]:
    """The HTML of each part around the chart, by the id of its element and in the page's order."""
    values = _values(comparison, chart)
    return {part: render(f"compare/parts/{part}.html", **values).strip() for part in PARTS}


def _values(comparison: Comparison, chart: Chart) -> dict[str, Any]:
    return {
        "SIGN": SIGN,
        "LOWER": LOWER,
        "HIGHER": HIGHER,
        "LEVEL": LEVEL,
        "comparison": comparison,
        "headline": comparison.headline,
        "chart": chart,
        "is_unfair": any(condition.matters for condition in comparison.conditions),
        "is_grouped": any(len(group.runs) > 1 for group in comparison.groups),
        "baseline": comparison.results.baseline,
        "differing": [format_list(conditions) if conditions else "" for conditions in unequal_conditions(comparison)],
        "group_styles": [curve_style(index) for index in range(len(comparison.groups))],
        "run_styles": run_styles(group.runs for group in comparison.groups),
        "axis_names": AXIS_NAMES,
        "split_names": SPLIT_NAMES,
        "field_choices": [(field, field) for field in chart.fields],
        "smoothing": f"{downsample.SMOOTHING_SHARE:.0%} of the run's rows, at most {downsample.SMOOTHING_MOST}",
        "measure_rows": measure_rows(comparison),
        "runs_table": Table.of(columns_alike(comparison.summaries), comparison.summaries),
        "outcomes": ", ".join(f"{count} {what}" for what, count in Counter(item.outcome for item in comparison.summaries).items()),
        "rules": _RULES,
    }


_RULES = (
    outcome.SMOOTHING_RULE,
    outcome.PLATEAU_RULE,
    results.MEASURE_RULE,
    results.TARGET_RULE,
    results.AREA_RULE,
    GROUP_RULE,
    groups.BAND_RULE,
    estimate.INTERVAL_RULE,
    estimate.DIFFERENCE_RULE,
    fairness.FAIRNESS_RULE,
    f"Curves of more than {downsample.MOST_POINTS:,} rows, and shorter ones where there are many curves, are thinned for drawing "
    "and never for the numbers. Spikes and gaps stay.",
)
