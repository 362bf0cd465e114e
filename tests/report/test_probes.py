"""Tests of a probe's tables and pictures: who is a group and the means over seeds, formulas where
they are meant, and ticks where the points are.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from scipy import stats

from mhsh.report.probes import model_groups, picture, print_tables, tables
from mhsh.verdict.estimate import WIDENING
from tests.conftest import load_fields


def model(name: str, seed: int, heads: int = 8, step: int = 4, whole: float = 2.0) -> dict[str, Any]:
    """Two layers on two batches; without a layer the loss is 0.1 and 0.3 higher."""
    result = {
        "whole": [whole, whole + 0.2],
        "skipped": [[whole + 0.1, whole + 0.3], [whole + 0.3, whole + 0.5]],
        "swapped": [[whole + 0.5 * seed, whole + 0.2 + 0.5 * seed]],
        "without_last": {"1": [whole + 0.3, whole + 0.5], "2": [whole + 1.0, whole + 1.2]},
        "influence": [[0.5, 0.5], [0.5, 0.5]],
        "later": [0.4, 0.0],
    }
    config = load_fields("evidence", "heads")
    config["model"] |= {"num_layers": 2, "num_heads": heads}
    config["train"]["seed"] = config["data"]["seed"] = seed
    return {"name": name, "step": step, "config": config, "result": {"encoder": result}}


@pytest.mark.parametrize(
    ("models", "groups"),
    [
        ([model("a", 0), model("b", 0, heads=4), model("c", 1)], [[0, 2], [1]]),
        ([model("a", 0), model("b", 1, step=2)], [[0], [1]]),
        ([model("a", 0), model("again", 0), model("b", 1)], [[0, 2], [1]]),
    ],
)
def test_only_seeds_may_differ(models, groups):
    assert [indices for _, indices in model_groups(models)] == groups


def test_means_over_seeds_have_the_interval_of_the_seeds(capsys):
    losses = (2.0, 2.1, 2.5)
    models = [model(f"seed={seed}", seed, whole=loss) for seed, loss in enumerate(losses)]
    print_tables(tables({"kind": "ablation", "models": [*models, model("alone", 0, heads=4)]}))
    said = capsys.readouterr().out
    assert said.count("alone") == 1 and "2x8 admin, 3 seeds" in said
    means = said[said.index("over seeds") :]
    values = np.array(losses) + 0.1  # the mean of the two batches
    low, high = stats.t.interval(0.95, 2, values.mean(), WIDENING * stats.sem(values))
    assert re.search(rf"^ *loss +{values.mean():.4g} \({low:.4g} to {high:.4g}\)", means, re.MULTILINE)
    assert re.search(r"^ *\+ a layer skipped +0\.2 *$", means, re.MULTILINE)  # no spread, no interval
    low, high = stats.t.interval(0.95, 2, 0.5, WIDENING * stats.sem([0.0, 0.5, 1.0]))
    assert re.search(rf"^ *\+ two swapped +0\.5 \({low:.4g} to {high:.4g}\)", means, re.MULTILINE)
    assert re.search(r"^ *last left out +1 of 2", means, re.MULTILINE)


def test_groups_of_one_shape_are_named_by_what_they_differ_in():
    models = [model("a", seed) for seed in range(2)] + [model("b", seed) for seed in range(2)]
    for each in models[2:]:
        each["config"]["optimizer"] = each["config"]["optimizer"] | {"learning_rate": 0.5}
    names = [name for name, _ in model_groups(models)]
    assert names == ["2x8 admin, learning_rate 0.002, 2 seeds", "2x8 admin, learning_rate 0.5, 2 seeds"]


def test_runs_of_single_seeds_have_no_second_table(capsys):
    print_tables(tables({"kind": "ablation", "models": [model("a", 0), model("b", 0, heads=4)]}))
    assert "seeds" not in capsys.readouterr().out


ATTENTION = {"heads": [[3.0, 4.0], [2.0, 1.0]], "layers": [5.0, 2.0], "visible": 6.0, "rollout": [2.0, 5.0]}
ATTENTION |= {"rollout_without_residual": [2.0, 3.0], "argmax_layers": [1.8, 1.2], "argmax_stack": [1.8, 2.4]}
FIGURES: dict[str, dict[str, Any]] = {
    "ablation": model("", 0)["result"],
    "dependency": {"encoder": {"input": 0.1, "attention": [0.2, 0.3], "feed_forward": [0.1, 0.2], "biases": 0.1}},
    "gradients": {"loss": 2.0, "stacks": {"encoder": {"layer": [3.0, 2.0], "attention": [2.0, 1.0], "joins": [0.1, 0.1]}}},
    "coverage": {"encoder": {"attention": ATTENTION}},
    "similarity": {"encoder": {"cka": [0.9, 0.8], "cosine": [0.7, 0.6]}},
}


def test_coverage_has_the_share_of_positions_that_are_a_heads_argmax():
    (table,) = tables({"kind": "coverage", "models": [model("alone", 0) | {"result": FIGURES["coverage"]}]})
    shown = {column.name: cell.words for column, cell in zip(table.columns, table.rows[0].full_cells, strict=True)}
    assert (shown["argmax share, a layer"], shown["argmax share, whole stack"]) == ("0.25", "0.4")


def test_the_shares_of_each_stack_of_a_translation_model_sum_to_one():
    decoder = {"input": 0.1, "self_attention": [0.2], "cross_attention": [0.3], "feed_forward": [0.3], "biases": 0.1}
    result = FIGURES["dependency"] | {"decoder": decoder}
    (table,) = tables({"kind": "dependency", "models": [model("alone", 0) | {"result": result}]})
    names = [column.name for column in table.columns]
    assert names == ["model", "stack", "input", "attention", "cross-attention", "feed-forward", "biases", names[-1]]
    for row in table.rows:
        assert sum(float(cell.words or 0) for cell in row.full_cells[2:-1]) == pytest.approx(1)


@pytest.mark.parametrize("kind", FIGURES)
def test_the_picture_has_one_line_for_the_seeds(kind):
    models = [model(f"seed={seed}", seed) for seed in range(3)] + [model("alone", 0, heads=4)]
    drawn = picture({"kind": kind, "models": [each | {"result": FIGURES[kind]} for each in models]}, "svg").decode()
    shown = re.findall("<!-- (.*?) -->", drawn)
    assert "2x8 admin, 3 seeds" in shown and "alone" in shown
    assert not any(text.startswith("seed=") for text in shown)


DEPTHS = (6, 12, 24)


def scheme(label: str, theory: str, growth: float | None) -> dict[str, Any]:
    points = [{"sublayers": 2 * depth, "mean": 1e-6 * depth, "low": -1.0, "high": 2e-6 * depth} for depth in DEPTHS]
    fitted = None if growth is None else {"exponent": growth}
    return {"scheme": "name", "label": label, "theory": theory, "growth": fitted, "points": points}


def words(document: dict[str, Any]) -> list[str]:
    """matplotlib draws letters as shapes, and names each text in a comment."""
    return re.findall("<!-- (.*?) -->", picture(document, "svg").decode())


def test_amplification_has_mathematics_and_a_tick_at_every_depth() -> None:
    schemes = [
        scheme(r"Admin, closed form $O(\log n)$", "O(log n)", 0.25),
        scheme("DeepNorm", "O(1)", None),
        scheme("mine", "", None),
    ]
    shown = words({"kind": "amplification", "schemes": schemes})
    assert {str(2 * depth) for depth in DEPTHS} <= set(shown)
    assert r"Admin, closed form $O(\log n)$: $n^{0.25}$, theory $O(\log n)$" in shown
    assert "DeepNorm: theory $O(1)$" in shown and "mine: no theory" in shown


def test_names_of_runs_are_no_formulas() -> None:
    models = [model(name, 0, heads=heads) | {"result": FIGURES["similarity"]} for name, heads in (("_a", 8), (r"$\frac$", 4))]
    assert {"_a", r"$\frac$"} <= set(words({"kind": "similarity", "models": models}))


def test_one_draw_has_no_interval() -> None:
    several = scheme("keel", "O(1/n)", -1.0)
    one = several | {"points": [point | {"low": None, "high": None} for point in several["points"]]}
    bands = ["PolyCollection" in picture({"kind": "amplification", "schemes": [each]}, "svg").decode() for each in (several, one)]
    assert bands == [True, False]
