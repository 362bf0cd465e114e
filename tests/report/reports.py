"""Reports of planted numbers, for tests."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy.special import stdtrit

from mhsh.report.curves import describe_metrics, drawn_curve
from mhsh.report.report import (
    Column,
    CurveGroup,
    CurveRun,
    Curves,
    DrawnCurve,
    Point,
    Points,
    Reference,
    Report,
    Row,
    Series,
    Table,
    TableCell,
)

# Names that mean something to HTML, to templates, to JSON in a script, and to a reader's eye.
EVIL = (
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "$x$ %{y} {{z}} </script>",
    "a' onload='alert(2)\" \u202eb\x1b[31m",
)


def half_intervals(count: int) -> tuple[float | None, ...]:
    """Student's, by the number of runs."""
    return tuple(None if n < 2 else float(stdtrit(n - 1, 0.975)) / n**0.5 for n in range(count + 1))


def _rates_figure(names: Sequence[str]) -> Points:
    """Loss against learning rate for a few shapes."""
    rates = [2.0**power for power in range(-13, -8)]
    series = []
    for shift, name in enumerate(names):
        offsets = [0.1 * (power - 1 - shift) ** 2 for power in range(len(rates))]
        points = [
            Point(rate, 2 + offset, 1.95 + 0.9 * offset, 2.1 + 1.2 * offset, "3 seeds")
            for rate, offset in zip(rates, offsets, strict=True)
        ]
        series.append(Series(name, tuple(points), shift))
    return Points(
        f"Loss of {names[0]}",
        "learning rate",
        "final validation loss, nats per token",
        tuple(series),
        (Reference(2.5, "unigram entropy 2.500"),),
    )


def planted_report(names: Sequence[str] = ("6x4 post_ln", "24x1 admin"), seeds: int = 3, rows: int = 30) -> Report:
    """Groups of seeds, each of which ends 0.1 above the one before it; every text is one of `names`
    or holds one.
    """
    runs, groups = [], []
    for place, name in enumerate(names):
        for seed in range(seeds):
            step = np.arange(1.0, rows + 1)
            loss = 2 + 0.1 * place + 3 / step + 0.01 * seed * (place + 1)
            train = {"loss": loss - 0.1 + 0.05 * np.sin(9 * step), "grad_norm": 1 / step}
            curves = {"train": _planted_curve(step, train), "validation": _planted_curve(step[9::10], {"loss": loss[9::10]})}
            runs.append(CurveRun(f"{name} seed {seed}", curves))
        members = tuple(range(place * seeds, (place + 1) * seeds))
        pairs = tuple((run, run % seeds) for run in members) if place else ()
        groups.append(CurveGroup(name, members, unequal="dropout" * (place == 1), pairs=pairs))
    curves = Curves(
        runs=tuple(runs),
        groups=tuple(groups),
        baseline=names[0],
        axes={"step": "training steps", "tokens": "training tokens", "seconds": "device seconds"},
        metrics=describe_metrics(["grad_norm"]),
        splits={"validation": "validation", "train": "training"},
        half_intervals=half_intervals(len(runs)),
        references=(Reference(2.3, f"unigram entropy 2.300 ({names[0]})"),),
        fields={"model.num_layers": tuple(str(6 * (1 + run // seeds)) for run in range(len(runs)))},
        notes=(f"a note on {names[0]}",),
    )
    loss = [
        TableCell("2.103", "*" * min(1, place), "2.010 to 2.196", value=2.103, low=2.01, high=2.196) for place in range(len(names))
    ]
    columns = (
        Column("group"),
        Column("final loss", numeric=True, rank=1, forest=True),
        Column(f"a long heading about {names[0]}", rank=2),
    )
    table = Table(
        "Results",
        columns,
        tuple(Row((name, loss[n], name), group=n) for n, name in enumerate(names)),
        f"* {names[0]}",
        "Intervals follow.",
    )
    rates = tuple(Row((name, TableCell("2.103", value=2.103, heat=place / len(names)))) for place, name in enumerate(names))
    every_run = tuple(Row((run.name, "trained"), run=place) for place, run in enumerate(runs))
    return Report(
        title=f"{names[0]} ended lowest",
        summary=(f"How sure: {names[0]} by 0.1.", "Comparable.", f"Third: {names[-1]}.", "Fourth.", "Fifth."),
        tables=(table, Table("Every run", (Column("run"), Column("outcome")), every_run)),
        margin=0.5,
        rates=(Table("Loss by rate", (Column("group"), Column("0.001", numeric=True)), rates, names[0]),),
        caption=f"About {names[0]}.",
        curves=curves,
        points=(_rates_figure(names),),
        conditions=(Table.from_text("Conditions", ["condition", "role", "values"], [["dropout", "loss", names[0]]]),),
        problems=(f"{names[0]}: is cut short",),
        rules=(f"A rule of {names[0]}.",),
    )


def _planted_curve(step: np.ndarray, metrics: Mapping[str, np.ndarray]) -> DrawnCurve:
    return drawn_curve({"step": step, "tokens": 512 * step, "seconds": 0.1 * step + 0.01 * np.sqrt(step)}, metrics, most=5000)


def content_of(page: str) -> Any:
    """What the scripts of a page read."""
    (found,) = re.findall(r'<script type="application/json" id="content">(.*?)</script>', page)
    return json.loads(found)
