"""What `mhsh tuned` writes beside its picture: tuned.html, tuned.md, tuned.json and tuned.csv."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from typing import Any

from mhsh.report.compare.fairness import FAIRNESS_RULE
from mhsh.report.estimate import DIFFERENCE_RULE, INTERVAL_RULE
from mhsh.report.render.csv_file import to_csv
from mhsh.report.render.figure_files import for_page
from mhsh.report.render.html import read_asset, render_page
from mhsh.report.render.markdown import to_markdown
from mhsh.report.render.outputs import MARK
from mhsh.report.render.table import Table
from mhsh.report.sweep.quality import QUALITY_RULE, format_difference
from mhsh.report.sweep.tables import finite
from mhsh.report.sweep.tuning import TUNING_RULE, Tuned, Tuning, format_budget, format_reported
from mhsh.text import sanitize
from mhsh.verdict.words import format_list, format_loss

_RULES = (TUNING_RULE, QUALITY_RULE, INTERVAL_RULE, DIFFERENCE_RULE, FAIRNESS_RULE)


def as_table(tuning: Tuning) -> Table:
    """A row a setting, for people."""
    columns = [
        "setting",
        f"best {sanitize(tuning.over.name)}",
        "final validation loss (nats per token), reporting seeds",
        f"against {tuning.settings[0].label}",
        "choosing seeds",
        "spent on choosing",
        "not in the mean",
    ]
    return Table(columns, [_texts(setting) for setting in tuning.settings]).without_empty_columns()


def as_page(tuning: Tuning, fair: Sequence[str], svg: bytes, problems: Sequence[str]) -> bytes:
    """The page as UTF-8. `fair`: what else differs between the reported runs."""
    compared = format_list([sanitize(axis.name) for axis in tuning.by] or ["config"])
    return render_page(
        "sweep/tuned.html",
        title=f"Each {compared} at its own {sanitize(tuning.over.name)}",
        author=MARK,
        styles=[read_asset("render/page.css"), read_asset("sweep/page.css")],
        claims=[tuning.verdict, *fair, *tuning.warnings],
        over=sanitize(tuning.over.name),
        picture=for_page(svg),
        tuned=as_table(tuning),
        curve=_curve_table(tuning),
        problems=problems,
        rules=_RULES,
    )


def as_markdown(tuning: Tuning, fair: Sequence[str], picture: str) -> bytes:
    """The claims, the file `picture` and the table."""
    words = f"Final validation loss against {sanitize(tuning.over.name)}"
    return to_markdown([tuning.verdict, *fair, *tuning.warnings], {picture: words}, [("", as_table(tuning))])


def as_json(tuning: Tuning, fair: Sequence[str], problems: Sequence[str]) -> bytes:
    """All that the page shows; null for what is missing."""
    fields = {
        "over": tuning.over.path,
        "by": [axis.path for axis in tuning.by],
        "choosing_seeds": [list(seed) for seed in tuning.choosing],
        "reporting_seeds": [list(seed) for seed in tuning.reporting],
        "verdict": tuning.verdict,
        "fairness": list(fair),
        "warnings": list(tuning.warnings),
        "settings": [dataclasses.asdict(setting) for setting in tuning.settings],
        "sensitivity": [dataclasses.asdict(line) for line in tuning.sensitivity.lines],
        "problems": list(problems),
        "rules": _RULES,
    }
    return (json.dumps(finite(fields), indent=1, allow_nan=False) + "\n").encode()


def as_csv(tuning: Tuning) -> bytes:
    """A row a setting, in full precision; empty where there is none."""
    rows = [_numbers(setting) for setting in tuning.settings]
    return to_csv(Table(list(rows[0]), [list(row.values()) for row in rows]))


def _numbers(setting: Tuned) -> dict[str, Any]:
    reported, apart = setting.reported, setting.against_first
    return {
        "setting": setting.label,
        "best_value": setting.value,
        "at_edge": setting.at_edge,
        "reported_loss": reported.mean if reported else None,
        "reported_low": reported.low if reported and reported.has_interval else None,
        "reported_high": reported.high if reported and reported.has_interval else None,
        "reporting_seeds": reported.seeds if reported else 0,
        "choosing_loss": setting.choosing_loss,
        "against_first": apart.mean if apart else None,
        "against_first_low": apart.low if apart and apart.has_interval else None,
        "against_first_high": apart.high if apart and apart.has_interval else None,
        **dataclasses.asdict(setting.budget),
    }


def _texts(setting: Tuned) -> list[str]:
    return [
        setting.label,
        "none" if setting.value is None else f"{setting.value}{' (edge)' if setting.at_edge else ''}",
        format_reported(setting),
        format_difference(setting.against_first) if setting.against_first else "",
        format_loss(setting.choosing_loss) if setting.choosing_loss is not None else "",
        format_budget(setting.budget),
        "; ".join(setting.missing),
    ]


def _curve_table(tuning: Tuning) -> Table:
    values = [str(point.value) for point in tuning.sensitivity.lines[0].points]
    rows = [
        [setting.label, *(format_loss(point.quality.mean) if point.quality else "" for point in line.points)]
        for setting, line in zip(tuning.settings, tuning.sensitivity.lines, strict=True)
    ]
    return Table(["setting", *values], rows)
