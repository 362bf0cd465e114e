"""Tests of the cells of a sweep: what an axis may be called, what its values become, and which
cells are refused.
"""

from __future__ import annotations

import itertools
import re
from typing import Any

import pytest

from mhsh.config.entries import variants
from mhsh.errors import UserError
from mhsh.sweep.axes import cells_of, families, parents, parse_axes
from tests.conftest import load_fields


@pytest.fixture
def fields() -> dict[str, Any]:
    return load_fields("evidence", "heads")


def cells(fields: dict[str, Any], *texts: str) -> Any:
    return cells_of(parse_axes(texts, fields), fields, lambda config: {})


def test_every_combination_in_order_the_last_axis_fastest(fields):
    made = cells(fields, "heads_per_layer=8,2,1", "seed=0,1", "lr=1e-3,0.003")
    models = [cell.config.model for cell in made]
    got = [
        (model.num_layers, model.num_heads, model.mlp_dim, cell.config.train.seed, cell.config.optimizer.learning_rate)
        for model, cell in zip(models, made, strict=True)
    ]
    shapes = [(3, 8, 512), (12, 2, 128), (24, 1, 64)]  # by hand: L N / n layers, n heads, F n / N wide
    assert got == [(*shape, seed, lr) for shape, seed, lr in itertools.product(shapes, (0, 1), (0.001, 0.003))]
    assert all(cell.config.data.seed == cell.config.train.seed for cell in made)
    assert made[3].name == "heads_per_layer-8_seed-1_learning_rate-0.003"
    assert made[3].settings == {"model.heads_per_layer": 8, "seed": 1, "optimizer.learning_rate": 0.003}


def test_everything_else_is_the_config(fields):
    (one,) = cells(fields, "weight_decay=0.5")
    fields["optimizer"]["weight_decay"] = 0.5
    (plain,) = cells(fields, "seed=0")
    assert one.config == plain.config


@pytest.mark.parametrize(
    ("text", "path", "values"),
    [
        ("heads_per_layer=1", "model.heads_per_layer", (1,)),
        ("model.heads_per_layer=1", "model.heads_per_layer", (1,)),
        ("data.seed=4", "data.seed", (4,)),
        ("train_seed=4", "train.seed", (4,)),
        ("seed=4", "seed", (4,)),
        ("depth=12,24", "model.num_layers", (12, 24)),
        ("learning_rate=1,2e-3", "optimizer.learning_rate", (1.0, 0.002)),
        ("lowercase=true,False", "data.lowercase", (True, False)),
        ("source=text:/a/b=c.txt", "data.source", ("text:/a/b=c.txt",)),
    ],
)
def test_names_and_values(fields, text, path, values):
    (axis,) = parse_axes([text], fields)
    assert (axis.path, axis.values) == (path, values)
    assert [type(value) for value in axis.values] == [type(value) for value in values]


def test_a_config_without_heads_per_layer_takes_it_as_an_axis(fields):
    del fields["model"]["heads_per_layer"]
    assert [c.config.model.num_layers for c in cells(fields, "heads_per_layer=8,4")] == [3, 6]


def test_schemes_are_the_residual_and_how_omega_starts(fields):
    made = cells(fields, f"scheme={','.join(variants())}")
    got = {c.settings["scheme"]: (c.config.model.residual, c.config.model.admin_omega) for c in made}
    assert got["admin"] == ("admin", "profiled")
    assert got["admin_closed_log"] == ("admin", "closed_log")
    assert got["admin_closed_one"] == ("admin", "closed_one")
    assert got["deepnorm"][0] == "deepnorm" and got["post_ln"][0] == "post_ln"


def test_a_longer_run_begins_where_the_decay_of_the_next_shorter_one_does(fields):
    fields["optimizer"] |= {"schedule": "wsd", "decay_steps": 120}  # of 1,200 steps
    made = cells(fields, "budget=300,4000,1200", "heads_per_layer=8,1")
    lengths = [(each.config.train.num_steps, each.config.optimizer.decay_steps) for each in made[::2]]
    assert lengths == [(300, 30), (4000, 400), (1200, 120)]
    steps = [[cell.config.train.num_steps for cell in family] for family in families(made)]
    assert steps == [[300, 1200, 4000]] * 2
    assert {name: parent.name for name, parent in parents(made).items()} == {
        f"budget-{budget}_heads_per_layer-{heads}": f"budget-{shorter}_heads_per_layer-{heads}"
        for budget, shorter in ((1200, 300), (4000, 1200))
        for heads in (8, 1)
    }


def test_other_schedules_share_no_steps(fields):
    made = cells(fields, "budget=300,1200")
    assert parents(made) == {} and len(families(made)) == 1
    assert parents(cells(fields, "num_steps=300,1200")) == {}


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ([], "needs --axes"),
        (["budget=300", "num_steps=100"], "train.num_steps is set by budget"),
        (["budget=0"], "cell budget-0: train.num_steps = 0"),
        (["seed"], "is not NAME=VALUE"),
        (["hads_per_layer=8"], "did you mean"),
        (["seed=0,1,0"], "0 appears twice"),
        (["seed=one"], "train.seed = 'one'; allowed: a whole number"),
        (["lowercase=yes"], "data.lowercase = 'yes'; allowed: true or false"),
        (["scheme=sandwich"], "--axes: unknown residual scheme 'sandwich'; allowed: post_ln, pre_ln"),
        (["seed=0", "train.seed=1"], "train.seed is set by"),
        (["scheme=admin", "residual=post_ln"], "model.residual is set by scheme"),
        (["heads_per_layer=8,5"], "cell heads_per_layer-5: model.heads_per_layer = 5 does not divide"),
        (["lr=1e-3,-1", "seed=0"], "cell learning_rate--1.0_seed-0: optimizer.learning_rate = -1.0"),
        (["heads_per_layer=8,0"], "are the same run"),
    ],
)
def test_mistakes(fields, texts, message):
    with pytest.raises(UserError, match=re.escape(message)):
        cells(fields, *texts)


def test_a_name_that_two_sections_have_is_asked_for_in_full(fields):
    fields["data"]["epsilon"] = 1.0
    with pytest.raises(UserError, match=r"data.epsilon and optimizer.epsilon are both called so"):
        parse_axes(["epsilon=1"], fields)


def test_names_of_cells_are_plain_folder_names_and_stay_apart(fields):
    long = "x" * 300
    sources = [f"text:{path}" for path in ("../../etc", "..-..-etc", "a b", "<script>alert(1)</script>", long, long + "y")]
    names = [c.name for c in cells(fields, f"source={','.join(sources)}")]
    assert len(set(names)) == len(sources)
    assert all(len(name) < 100 and not set(name) & set("/ <>()") for name in names)
