"""What `mhsh gap` shows: a table, gap.json, gap.md and a picture."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mhsh import text
from mhsh.report.compare.fairness import FAIRNESS_RULE
from mhsh.report.estimate import DIFFERENCE_RULE, INTERVAL_RULE, Estimate
from mhsh.report.render.figure_files import COLUMN, PAGE, add_legend, figure_bytes, figure_style
from mhsh.report.render.markdown import to_markdown
from mhsh.report.render.styles import curve_style
from mhsh.report.render.table import Table
from mhsh.report.sweep.gap import CHANGE_WORDS, GAP_RULE, Gap, SweepChange, SweepGaps
from mhsh.report.sweep.quality import format_difference
from mhsh.report.sweep.tables import finite

MARK = "written by mhsh gap"
_COLUMNS = 3  # panels side by side, at most


def as_table(sweeps: Sequence[SweepGaps]) -> Table:
    """A row a gap, for people."""
    columns = ["sweep", "size", "setting", "shape", "gap at the end (nats per token)", "change", "since step", "seeds"]
    return Table(columns, [_texts(sweep, gap) for sweep in sweeps for gap in sweep.gaps])


def as_json(sweeps: Sequence[SweepGaps], changes: Sequence[SweepChange], said: Sequence[str]) -> bytes:
    """All numbers; null for an interval that there is not."""
    fields = {
        "generator": MARK,
        "rules": [GAP_RULE, INTERVAL_RULE, DIFFERENCE_RULE, FAIRNESS_RULE],
        "findings": list(said),
        "sweeps": [
            {
                **{name: getattr(sweep, name) for name in ("name", "baseline", "baseline_shape", "embed_dim", "heads")},
                "gaps": [_fields(gap) for gap in sweep.gaps],
            }
            for sweep in sweeps
        ],
        "sweep_changes": [dataclasses.asdict(change) for change in changes],
    }
    return (json.dumps(finite(fields), indent=1, allow_nan=False) + "\n").encode()


def as_markdown(sweeps: Sequence[SweepGaps], said: Sequence[str], picture_file: str) -> bytes:
    """The findings, the picture and the table."""
    words = "Gap in validation loss to the first setting, against tokens"
    return to_markdown(said, {picture_file: words}, [("", as_table(sweeps))], MARK)


def picture(sweeps: Sequence[SweepGaps], kind: str) -> bytes:
    """A panel for every sweep: its gaps against tokens, with 95 % intervals; where there are
    several sweeps, one more: the last gaps against the number of heads, or by sweep where two have
    as many. A `png` or an `svg`.
    """
    lines = list(dict.fromkeys(gap.counterpart for sweep in sweeps for gap in sweep.gaps))
    count = len(sweeps) + (len(sweeps) > 1)
    columns = 2 if count == 4 else min(_COLUMNS, count)
    rows = -(-count // columns)
    with figure_style():
        figure = Figure(figsize=(COLUMN if count == 1 else PAGE, 2.0 * rows), layout="constrained")
        panels = figure.subplots(rows, columns, squeeze=False, sharey=True).reshape(-1)
        drawn: dict[str, Any] = {}
        for axes, sweep in zip(panels, sweeps, strict=False):
            axes.set_title(f"{sweep.name}: {sweep.size}", parse_math=False)
            axes.set_xlabel("tokens")
            axes.xaxis.set_major_formatter(lambda tokens, _: text.count(tokens))
            for gap in sweep.gaps:
                x = [point.tokens for point in gap.points]
                drawn[gap.counterpart] = _line(axes, lines.index(gap.counterpart), x, [point.gap for point in gap.points])
        if len(sweeps) > 1:
            _at_the_end(panels[len(sweeps)], sweeps, lines)
        for axes in panels[count:]:
            axes.set_axis_off()
        for axes in panels[::columns]:
            axes.set_ylabel("gap, nats per token")
        baselines = {sweep.baseline for sweep in sweeps}
        caption = f"against {baselines.pop() if len(baselines) == 1 else 'the first setting of each'}; bars: 95 % intervals"
        add_legend(figure, [drawn[line] for line in lines], lines, caption)
        return figure_bytes(figure, kind, MARK)


def _at_the_end(axes: Axes, sweeps: Sequence[SweepGaps], lines: Sequence[str]) -> None:
    axes.set_title("at the end")
    sizes = [sweep.heads for sweep in sweeps]
    differ = len(set(sizes)) == len(sizes)
    if differ:
        axes.set_xlabel("heads in all")
        axes.set_xscale("log", base=2)
        axes.set_xticks(sizes, [str(size) for size in sizes])
        axes.minorticks_off()
    else:
        sizes = list(range(len(sweeps)))
        axes.set_xticks(sizes, [sweep.name for sweep in sweeps], rotation=45, ha="right", parse_math=False)
    for index, line in enumerate(lines):
        found = [
            (size, gap.last) for size, sweep in zip(sizes, sweeps, strict=True) for gap in sweep.gaps if gap.counterpart == line
        ]
        found.sort(key=lambda each: each[0])
        drawn = _line(axes, index, [size for size, _ in found], [last for _, last in found])
        if not differ:  # nothing lies between two sweeps
            drawn.lines[0].set_linestyle("none")


def _line(axes: Axes, index: int, x: Sequence[int | float], gaps: Sequence[Estimate]) -> Any:
    style = curve_style(index)
    half = [gap.high - gap.mean if gap.has_interval else 0.0 for gap in gaps]
    axes.axhline(0, color="#7F7F7F", linewidth=0.6)
    return axes.errorbar(x, [gap.mean for gap in gaps], half, color=style.color, linestyle=style.linestyle, marker=style.marker)


def _fields(gap: Gap) -> dict[str, Any]:
    seeds = [{"seed": list(seed), "gap": loss} for seed, loss in gap.by_seed.items()]
    return dataclasses.asdict(dataclasses.replace(gap, by_seed={})) | {"by_seed": seeds}


def _texts(sweep: SweepGaps, gap: Gap) -> list[str]:
    change = format_difference(gap.change, CHANGE_WORDS) if gap.change else ""
    since = "" if gap.changed_from is None else str(gap.changed_from)
    return [sweep.name, sweep.size, gap.setting, gap.shape, format_difference(gap.last), change, since, str(len(gap.by_seed))]
