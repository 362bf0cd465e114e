"""Tests of a report's tables: their columns."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

from mhsh.report.build import build_report
from mhsh.report.tex import report_to_tex
from mhsh.sweep.folder import SweepFolder, Tuning
from mhsh.verdict.experiment import load_experiment
from mhsh.verdict.findings import compare, judge_page
from mhsh.verdict.tuning import tune_sections
from tests.judging import swept
from tests.planted import MakeRun


def test_sweeps_of_which_one_is_tuned_and_one_was_not_validated_have_the_same_columns(tmp_path: Path) -> None:
    axes = ["heads_per_layer=8,1", "seed=0,1,2,3,4"]
    tuned = swept(tmp_path / "tuned", [*axes, "lr=1e-3,2e-3"], lambda heads, seed, rate: 2.4 + 0.1 / heads + 9 * rate + 0.01 * seed)
    plan = SweepFolder(tuned).read_plan()
    SweepFolder(tuned).open_for(dataclasses.replace(plan, choosing=Tuning("lr", 2)))
    plain = swept(tmp_path / "plain", axes, lambda heads, seed: 2.6 + 0.1 / heads + 0.01 * seed)
    for rows in plain.glob("runs/*/metrics.jsonl"):
        rows.write_text("".join(line for line in rows.read_text().splitlines(True) if '"train"' in line))
    sections = tune_sections(load_experiment([plain, tuned]))
    report = build_report(judge_page([compare(section, section=words) for words, section in sections.items()]))
    names = [[column.name for column in table.columns] for table in report.results]
    assert names[0] == names[1] and {"best learning_rate", "training loss", "validation loss"} < {*names[0]}
    lines = report_to_tex(report, "mhsh").decode().splitlines()
    heading = next(line for line in lines if line.startswith("group & ")).removesuffix(r" \\").split(" & ")
    rows = [dict(zip(heading, line.removesuffix(r" \\").split(" & "), strict=True)) for line in lines if line.startswith("3x8")]
    assert [row[r"best learning\_rate"] for row in rows] == ["", "0.001"] and {row["difference"] for row in rows} == {"baseline"}
    assert [[row[f"{split} loss"] for split in ("training", "validation")] for row in rows] == [["2.633", ""], ["", "2.451"]]


def test_a_ratio_whose_interval_says_nothing_has_few_digits(make_run: MakeRun) -> None:
    """One shape is the faster one with the first seed, and the other with the second."""
    fast, slow = [3.0, 2.0, 2.0, 2.0, 2.0], [3.0, 2.9, 2.8, 2.5, 2.0]
    paths = [
        make_run(f"{layers} {seed}", [4.0], losses, model={"num_layers": layers}, training={"seed": seed, "num_steps": 50})
        for layers, each in ((2, (fast, slow)), (4, (slow, fast)))
        for seed, losses in enumerate(each)
    ]
    (table,) = build_report(judge_page([compare(load_experiment(paths))])).results
    (ratio,) = (cell.words for column, cell in zip(table.columns, table.rows[1].full_cells, strict=True) if "tokens" in column.name)
    assert re.fullmatch("1.000\u00d7 \\([0-9.]+e-[0-9]+\u00d7 to [0-9.]+e\\+[0-9]+\u00d7\\)", ratio)
