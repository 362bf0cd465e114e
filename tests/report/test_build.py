"""Tests of the step from findings to a report: what stands in its tables, figures and notes."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from mhsh.report import curves
from mhsh.report.build import build_report
from mhsh.report.files import to_json
from mhsh.report.report import GROUPS, RUNS, Report, Table
from mhsh.report.sentences import pooled_words
from mhsh.storage.run_folder import HOLDER_FILE
from mhsh.verdict.decision import PooledDifference
from mhsh.verdict.estimate import Estimate
from mhsh.verdict.experiment import load_experiment
from mhsh.verdict.findings import compare, judge_page
from mhsh.verdict.tuning import tune, tune_sections
from tests.conftest import ROOT, load_fields
from tests.judging import swept
from tests.planted import MakeRun

DEEP = {"num_layers": 16, "num_heads": 1, "mlp_dim": 32}
BY_LENGTH = {(8, 100): 2.4, (8, 400): 2.1, (1, 100): 2.5, (1, 400): 2.05}  # losses by heads a layer and steps


def report_of(paths: Sequence[str | Path], margin: float = 0.0, **options: Any) -> Report:
    sections = load_experiment(paths).sections()
    judged = judge_page([compare(section, section=words, **options) for words, section in sections.items()], margin)
    return build_report(judged, margin=margin)


def changes_in(report: Report) -> list[str]:
    return [line for line in report.summary if "changes the difference from" in line]


def cells(table: Table, row: int) -> dict[str, Any]:
    return dict(zip((column.name for column in table.columns), table.rows[row].full_cells, strict=True))


@pytest.fixture
def two_groups(make_run: MakeRun) -> Report:
    """Seeds 0 to 2 of a shallow shape, and seeds 1 to 3 of a deep one with another dropout."""
    paths = []
    for name, model, seeds, end in (("shallow", {}, range(3), 2.5), ("deep", DEEP | {"hidden_dropout": 0.0}, range(1, 4), 2.4)):
        for seed in seeds:
            loss = end + 0.01 * seed + 0.002 * (name == "deep") * seed
            paths.append(make_run(f"{name} {seed}", [4.0] * 30, [3.4, 2.8, loss], model=model, training={"seed": seed}))
    return report_of(paths)


def test_groups_their_pairs_and_what_is_unequal(two_groups: Report) -> None:
    curves = two_groups.curves
    assert curves is not None and curves.view == GROUPS and curves.baseline == "2x8 admin"
    shallow, deep = curves.groups
    assert (shallow.runs, deep.runs) == ((0, 1, 2), (3, 4, 5))
    names = [run.name for run in curves.runs]
    assert [(names[ours], names[theirs]) for ours, theirs in deep.pairs] == [("deep 1", "shallow 1"), ("deep 2", "shallow 2")]
    assert (shallow.unequal, deep.unequal) == ("", "dropout") and not shallow.pairs
    assert curves.fields["train.seed"] == ("0", "1", "2", "1", "2", "3")
    assert curves.fields["model.num_layers"] == ("2",) * 3 + ("16",) * 3 and "model.vocab_size" not in curves.fields


def test_the_conditions_are_those_that_differ(two_groups: Report) -> None:
    (conditions,) = two_groups.conditions
    shown = {row.full_cells[0].text: row.full_cells[1].text for row in conditions.rows}
    assert shown["dropout"] == "losses" and "tokens seen" not in shown
    assert conditions.note.endswith("other conditions are equal.")


def test_the_first_table_has_the_measure_and_the_difference(two_groups: Report) -> None:
    shallow, deep = (cells(two_groups.tables[0], row) for row in range(2))
    assert shallow["validation loss"].value == pytest.approx(2.51) and shallow["difference"].text == "baseline"
    assert deep["difference"].value == pytest.approx(-0.1 + 0.003) and deep["trained"].text == "3 of 3"
    assert deep["difference"].text.startswith("\u2212") and deep["difference"].mark == ""


def test_a_title_names_the_best_by_how_much_and_how_sure_in_25_words(tmp_path: Path) -> None:
    nine = report_of([ROOT / "website/sample_runs"])
    assert nine.title.startswith("No clear winner: 24x1 admin ends 0.022 below 6x4 post_ln (95 % interval \u2212")
    admin, stuck = (cells(nine.results[0], row) for row in (1, 2))
    assert admin["caution"].text == "several things differ: head grouping and residual scheme"
    assert (stuck["validation loss"].text, stuck["validation loss"].note) == ("not trained", "ends at 3.244")
    assert stuck["caution"].text.startswith("3 of 3 runs did not train; 7.8 loss spikes per 1,000 steps, to 8.775 at step")
    axes = ["heads_per_layer=8,4,1", "lr=1e-3,2e-3", "optimizer.warmup_steps=10,20", "seed=0,1"]
    for name in ("a long name of a sweep", "another"):
        swept(tmp_path / name, axes, lambda heads, rate, warmup, seed: 2.4 + (1 + 0.3 * seed) * (rate * warmup - heads / 800))
    report = report_of(sorted(tmp_path.iterdir()))
    assert "3x8 admin" in report.title and report.title.endswith("(one seed)")
    assert all(len(line.split()) <= 25 for line in (report.title, report.summary[0]))


def test_a_row_has_its_decision_its_ratio_of_tokens_and_its_spikes(make_run: MakeRun) -> None:
    """The deep shape reaches the shallow one's loss after a third more tokens, seed by seed."""
    spike = [*[4.0] * 20, 9.0, *[3.0] * 29]
    shapes = (("shallow", {}, [4.0] * 50, [2.9, 2.7, 2.5, 2.5, 2.5]), ("deep", DEEP, spike, [2.9, 2.8, 2.7, 2.5, 2.495]))
    paths = [
        make_run(
            f"{name} {seed}", train, [end + 0.001 * seed for end in ends], model=model, training={"seed": seed, "num_steps": 50}
        )
        for name, model, train, ends in shapes
        for seed in range(3)
    ]
    report = report_of(paths, margin=0.02)
    deep = cells(report.results[0], 1)
    assert deep["against the margin"].text in ("equivalent", "undecided") and report.margin == 0.02
    assert deep["tokens to equal loss"].value == pytest.approx(4 / 3, rel=2e-3)
    (others,) = (table for table in report.tables if table.title == "Other measures, not tested")
    assert cells(others, 1)["device time to equal loss"].value == pytest.approx(4 / 3, rel=2e-3)
    assert deep["tokens to equal loss"].words.startswith("1.33") and "\u00d7 to 1.33" in deep["tokens to equal loss"].note
    assert deep["caution"].text.endswith("loss spikes per 1,000 steps, to 9.000 at step 21 of deep 2")
    (stability,) = [table for table in report.tables if table.title == "Stability, not tested"]
    assert (
        cells(stability, 1)["spikes per 1,000 steps"].value == pytest.approx(20)
        and cells(stability, 0)["the highest spike"].text == ""
    )
    two = cells(report_of([*paths[:2], *paths[3:5]], margin=0.02).results[0], 1)
    assert two["against the margin"].text == "too few seeds" and "(1 test, Bonferroni)" in report.caption
    assert any("margin" in rule for rule in report.rules) and not any("margin" in rule for rule in report_of(paths).rules)
    assert "against the margin" not in [column.name for column in report_of(paths).results[0].columns]


def test_a_pooled_finding_says_how_many_seeds_agree_and_whether_it_was_planned() -> None:
    pooled = PooledDifference("1 head a layer", ("a", "b", "c"), (), Estimate(0.02, 0.009, 0.031, 3), 0.0, 32, 32, planned=False)
    assert pooled_words(pooled) == (
        "1 head a layer: over 3 sweeps (a, b and c) the difference is +0.020 (+0.009 to +0.031), random effects, post hoc; "
        "32 of 32 pairs of seeds have its sign."
    )


def test_what_has_no_bound_is_not_counted_as_pooled(tmp_path: Path) -> None:
    """Of four sweeps that are tuned the last has its best rate at an edge."""

    def loss(name: str) -> Callable[[float, int, int], float]:
        best = {"d": 0.008}.get(name, 0.002)
        noise = {"a": 1, "b": 2, "c": 3, "d": 4}[name]
        return lambda rate, heads, seed: (
            2.0
            + 0.05 * (heads == 1)
            + 0.1 * math.log2(rate / (best if heads == 1 else 0.002)) ** 2
            + 0.002 * math.sin(7 * seed + 999 * rate + heads + noise)
        )

    axes = ["lr=1e-3,2e-3,4e-3", "heads_per_layer=8,1", "seed=0,1,2,3"]
    sections = tune_sections(load_experiment([swept(tmp_path / name, axes, loss(name)) for name in "abcd"]), over="lr")
    (pooled,) = judge_page([compare(section, section=words) for words, section in sections.items()]).pooled
    assert (pooled.sections, pooled.left_out, pooled.estimate.seeds, pooled.pairs) == (("a", "b", "c"), ("d",), 3, 6)
    assert ": over 3 sweeps (a, b and c), without d, whose difference has no bound, the difference is +0.0" in pooled_words(pooled)


def test_a_length_is_drawn_at_the_tokens_of_the_runs_that_made_it(tmp_path: Path) -> None:
    axes = ["heads_per_layer=8,1", "budget=100,400", "seed=0,1,2"]
    sweep = swept(tmp_path, axes, lambda heads, length, seed: BY_LENGTH[heads, length] + 0.01 * seed + 0.001 * heads * seed)
    stopped = sweep / "runs" / "heads_per_layer-8_budget-400_seed-2"
    (stopped / "run.json").write_text((stopped / "run.json").read_text().replace('"finished"', '"stopped"'))
    rows = (stopped / "metrics.jsonl").read_text().splitlines(keepends=True)
    (stopped / "metrics.jsonl").write_text("".join(rows[:2]))
    for figure in report_of([sweep]).points:
        assert {round(point.x, 6) for series in figure.series for point in series.points} == {0.2, 0.8}  # tokens a parameter


def test_a_small_difference_is_no_zero(make_run: MakeRun) -> None:
    ends = {"a": [2.5, 2.51, 2.49], "b": [2.50031, 2.5103, 2.49032]}
    paths = [
        make_run(f"{name} {seed}", [4.0], [loss], model=DEEP if name == "b" else {}, training={"seed": seed})
        for name, losses in ends.items()
        for seed, loss in enumerate(losses)
    ]
    report = report_of(paths)
    shown = cells(report.results[0], 1)["difference"]
    assert shown.text == "+0.0003" and shown.note.startswith("+0.0003 to ") and " ends 0.0003 below " in report.title


def test_runs_that_train_are_shown_with_their_rate_and_no_problem(make_run: MakeRun) -> None:
    young = make_run("young", record={"status": "running"})
    busy = make_run("busy", [4.0] * 20, model=DEEP, training={"num_steps": 100}, record={"status": "running"})
    assert report_of([young, busy]).training is None
    for folder in (young, busy):
        (folder / HOLDER_FILE).write_text("{}")
    (young / "metrics.jsonl").unlink(missing_ok=True)
    report = report_of([young, busy])
    assert report.training is not None and report.problems == ()
    shown = {row.full_cells[0].text: [cell.text for cell in row.full_cells[1:]] for row in report.training.rows}
    assert shown["young"] == ["prepares or compiles", "", "not known yet"]
    assert shown["busy"][0] == "20 of 100" and float(shown["busy"][1]) > 0 and shown["busy"][2].endswith(("s", "min"))
    sorted_by = {row.full_cells[0].text: [cell.value for cell in row.full_cells[1:]] for row in report.training.rows}
    assert sorted_by["young"] == [0, None, None] and sorted_by["busy"] == [20, pytest.approx(10), pytest.approx(8)]


def test_two_kinds_of_run_are_no_mean(make_run: MakeRun) -> None:
    ends = {"a": [2.5, 2.51, 2.52], "b": [2.4, math.nan, 2.97]}
    report = report_of(
        [
            make_run(
                f"{name} {seed}",
                [4.0] * 28 + [loss] * 2,
                [3.4, 2.99, loss],
                model=DEEP if name == "b" else {},
                training={"seed": seed},
            )
            for name, losses in ends.items()
            for seed, loss in enumerate(losses)
        ]
    )
    assert report.curves is not None and "(1 test, Bonferroni)" in report.caption  # that of the ranks
    assert [group.averaged for group in report.curves.groups] == [True, False]
    assert cells(report.tables[0], 1)["trained"].text == "1 of 3" and cells(report.tables[0], 1)["difference"].mark == "\u2020"
    assert report.results[0].note.endswith(
        "\u2020 Not all runs trained, so the difference between those that did is not a verdict."
    )
    states = [cells(report.tables[-1], row)["state"].text for row in range(3, 6)]
    assert states == ["trained", "diverged", "on the unigram plateau"]
    assert [reference.label for reference in report.curves.references] == ["unigram entropy 3.000"]


def test_validation_is_shown_first_unless_a_run_has_training_rows_alone(make_run: MakeRun) -> None:
    with_validation = make_run("a", [4.0, 3.0, 2.0], [2.5], training={"num_steps": 10})
    training_alone = make_run("b", [4.0, 3.0, 2.0], model=DEEP)
    for paths, first, measure in (
        ([with_validation], "validation", "validation loss"),
        ([training_alone], "train", "training loss"),
        ([with_validation, training_alone], "validation", "training loss"),
    ):
        report = report_of(paths)
        assert report.curves is not None and next(iter(report.curves.splits)) == first and report.curves.view == RUNS
        assert measure in [column.name for column in report.tables[0].columns]


def test_fields_are_searched_as_they_are_typed(make_run: MakeRun) -> None:
    """The page's `batch_size>1500` compares numbers, and its `batch_size=2048` texts."""
    report = report_of([make_run(f"{size}", [4.0, 3.0], training={"batch_size": size}) for size in (1024, 2048)])
    assert report.curves is not None and report.curves.fields == {"train.batch_size": ("1024", "2048")}


def test_of_long_curves_a_part_is_drawn_and_that_is_said(make_run: MakeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(curves, "MOST_POINTS", 1500)
    report = report_of([make_run("a", [3 + math.sin(step) for step in range(2500)])])
    assert report.curves is not None
    rows = len(report.curves.runs[0].curves["train"].rows.y["loss"])
    assert rows < 2000 and any("the longest has 2,500" in note for note in report.curves.notes)


def test_sweeps_stand_beside_each_other(tmp_path: Path) -> None:
    for name, shift in (("one", 0.0), ("two", 0.2)):
        ends = {steps: 2.5 - steps / 1000 + shift for steps in (100, 200, 400)}
        swept(tmp_path / name, ["num_steps=100,200,400", "seed=0,1"], lambda steps, seed, ends=ends: ends[steps] + 0.01 * seed)
    report = report_of([tmp_path / "one", tmp_path / "two"])
    assert report.curves is not None and len({run.name for run in report.curves.runs}) == 12
    assert [group.name.split(":")[0] for group in report.curves.groups] == ["one"] * 3 + ["two"] * 3
    assert [row.group for row in report.tables[1].rows] == [3, 4, 5]
    assert report.title.startswith("one: ") and report.summary[0].startswith("two: ")
    assert [table.title for table in report.conditions] == ["one: Conditions", "two: Conditions"]


def test_a_map_of_rates_has_the_means_over_the_seeds_that_choose(tmp_path: Path) -> None:
    curve = {1e-3: 2.5, 2e-3: 2.4, 4e-3: 2.7}
    sweep = swept(
        tmp_path / "sweep",
        ["lr=1e-3,2e-3,4e-3", "seed=0,1,2,3,4"],
        lambda rate, seed: curve[rate] + 0.02 * seed if seed < 2 or rate == 2e-3 else None,
    )
    tuned = tune(load_experiment([sweep]), "lr", choosing=2)
    (rates,) = build_report(judge_page([compare(tuned)])).rates
    assert [column.name for column in rates.columns] == ["group", "0.001", "0.002", "0.004"]
    drawn = [(cell.value, cell.heat) for cell in rates.rows[0].full_cells[1:]]
    assert [cell.mark for cell in rates.rows[0].full_cells[1:]] == ["", "\u25c6", ""]
    assert drawn == [pytest.approx((loss + 0.01, ((loss - 2.4) / 0.3) ** 0.5)) for loss in curve.values()]


def test_each_budget_is_compared_by_itself_and_drawn_against_its_tokens(tmp_path: Path) -> None:
    axes = ["heads_per_layer=8,1", "budget=100,400", "seed=0,1,2"]
    report = report_of([swept(tmp_path / "sweep", axes, lambda heads, steps, seed: BY_LENGTH[heads, steps] + 0.01 * seed)])
    assert report.title.startswith("budget 400: ") and report.summary[0].startswith("budget 100: ")
    assert [table.title for table in report.conditions] == ["budget 400: Conditions", "budget 100: Conditions"]
    loss, difference, *others = report.points
    assert [[pytest.approx(point.y) for point in series.points] for series in loss.series] == [[2.41, 2.11], [2.51, 2.06]]
    assert [series.name for series in loss.series] == ["3x8 admin", "24x1 admin"]
    (series,) = difference.series
    assert [pytest.approx(point.y) for point in series.points] == [0.1, -0.05]
    assert [figure.title for figure in others if "budget" in figure.x_title] == []
    assert "budget 400" in " ".join(report.summary)


def test_budgets_of_two_sweeps_are_compared_length_by_length(tmp_path: Path) -> None:
    """The second sweep has one length so far. A change is between lengths of one sweep, or between
    the sweeps at one length.
    """
    for name, budgets, lower in (("adamw", "100,400", 0.0), ("muon", "400", 0.2)):
        ends = {key: loss - lower * (1 if key[0] == 8 else 0.5) for key, loss in BY_LENGTH.items()}
        axes = ["heads_per_layer=8,1", f"budget={budgets}", "seed=0,1,2"]
        swept(tmp_path / name, axes, lambda heads, steps, seed, ends=ends: ends[heads, steps] + 0.01 * seed)
    sections = load_experiment([tmp_path / "adamw", tmp_path / "muon"]).sections()
    assert list(sections) == [("adamw", "budget 100"), ("adamw", "budget 400"), ("muon", "budget 400")]
    report = report_of([tmp_path / "adamw", tmp_path / "muon"])
    changes = changes_in(report)
    assert [line.split(": ")[1].split(" the difference")[0] for line in changes] == [
        "adamw, budget 400 instead of adamw, budget 100 changes"
    ]
    loss, difference = report.points[:2]
    shapes = [(name, shape) for name in ("adamw", "muon") for shape in ("3x8 admin", "24x1 admin")]
    # A colour a shape, in every length and sweep.
    assert report.curves is not None
    assert {series.name.split(", ")[1]: series.color for series in loss.series} == {"3x8 admin": 0, "24x1 admin": 1}
    assert [group.color for group in report.curves.groups] == [0, 1] * 3
    assert len({(group.color, group.variant) for group in report.curves.groups}) == 6
    assert [series.name for series in loss.series] == [", ".join(words) for words in shapes]
    found = [[pytest.approx(point.y) for point in series.points] for series in difference.series]
    assert found == [[0.1, -0.05], [0.05]]
    report = report_of([tmp_path / "muon", tmp_path / "adamw"])
    changes = changes_in(report)
    assert [line.split(": ")[1].split(" the difference")[0] for line in changes] == [
        "adamw, budget 400 instead of muon, budget 400 changes"
    ]


@pytest.mark.parametrize(("lengths", "found"), [((100, 400), ["6x1", "24x4", "24x1"]), ((100,), ["24x1"])])
def test_a_change_with_length_is_that_of_one_shape(tmp_path: Path, lengths: tuple[int, ...], found: list[str]) -> None:
    """Two shapes have one head a layer. At 400 steps 6x1 has run or has not."""
    base = {(4, 4): 2.4, (4, 1): 2.3, (1, 4): 2.5, (1, 1): 2.45}

    def end(heads: int, width: int, steps: int, seed: int) -> float | None:
        return base[heads, width] - 0.001 * steps + 0.01 * seed if steps in lengths or heads == width else None

    axes = ["heads_per_layer=4,1", "heads_at_equal_width=4,1", "budget=100,400", "seed=0,1,2"]
    fields = load_fields("study", "decoder")
    fields["optimizer"]["warmup_steps"] = 20
    changes = changes_in(report_of([swept(tmp_path / "sweep", axes, end, fields)]))
    assert [re.findall(r"\((.*?) pre_ln\): budget", line) for line in changes] == [[shape] for shape in found]


def _write(path: Path, axis: str, budgets: Sequence[int], residual: str = "admin") -> Path:
    fields = load_fields("evidence", "heads")
    fields["model"]["residual"] = residual
    values = axis.split("=")[1].split(",")
    axes = [axis, f"budget={','.join(map(str, budgets))}", "seed=0,1,2"]
    return swept(path, axes, lambda value, steps, seed: 2.4 + 0.1 * values.index(str(value)) - 0.001 * steps + 0.01 * seed, fields)


def test_a_change_of_groups_whose_shapes_are_equal_is_that_of_a_namesake(tmp_path: Path) -> None:
    lamb, muon = changes_in(report_of([_write(tmp_path / "sweep", "name=adamw,lamb,muon", (100, 400))]))
    assert "(3x8 admin, name lamb): budget" in lamb and "(3x8 admin, name muon): budget" in muon


def test_a_change_over_one_seed_in_common_is_what_its_two_differences_are_apart(tmp_path: Path) -> None:
    for name, seeds, slope in (("a", "0,1,2", 0.01), ("b", "2,3,4", 0.05)):
        axes = ["heads_per_layer=8,1", f"seed={seeds}"]
        swept(tmp_path / name, axes, lambda heads, seed, slope=slope: 2.4 + 0.01 * seed + slope * seed * (heads == 1))
    (change,) = changes_in(report_of([tmp_path / "a", tmp_path / "b"]))
    assert "changes the difference from +0.020 to +0.100, by +0.080, which may be chance" in change


def test_a_change_between_sweeps_is_of_the_only_two_that_stand_alike(tmp_path: Path) -> None:
    """With three depths 4x8 and 8x8 have as many heads a layer."""
    for axis in ("num_layers=2,4", "num_layers=2,4,8"):
        for residual in ("admin", "pre_ln"):
            _write(tmp_path / axis / residual, axis, (100,), residual)
    (change,) = changes_in(report_of(sorted((tmp_path / "num_layers=2,4").iterdir())))
    assert "(4x8 admin and 4x8 pre_ln): pre_ln instead of admin" in change
    assert not changes_in(report_of(sorted((tmp_path / "num_layers=2,4,8").iterdir())))


def test_no_text_of_a_report_moves_the_cursor_or_turns_the_line(make_run: MakeRun) -> None:
    evil = make_run("a\x1b[31m\u202e", [4.0, 3.0, 2.0], record={"git_revision": "\x1b[31m\u202e", "data": {"fingerprint": "\x07"}})
    metrics = make_run("b", [3.0, 2.0], model=DEEP) / "metrics.jsonl"
    metrics.write_bytes(metrics.read_bytes()[:-9])
    report = report_of([evil, metrics.parent, evil.parent / "\x1b[31m"])
    texts: list[str] = []

    def collect(value: Any) -> None:
        for each in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
            texts.extend(part for part in each if isinstance(part, str))
            collect(each[1])

    collect(json.loads(to_json(report)))
    assert len(texts) > 100 and len(report.problems) >= 2
    assert not [text for text in texts if set(text) & set("\x1b\u202e\x07")]
