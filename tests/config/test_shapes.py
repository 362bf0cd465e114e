"""Regrouping heads in both directions, and as many parameters in more or fewer layers or heads."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from mhsh import configs
from mhsh.config.entries import add_residual
from mhsh.config.schema import ModelConfig
from mhsh.config.shapes import (
    attention_weights,
    feed_forward_weights,
    heads_at_equal_width,
    kv_heads_at_equal_size,
    layer_parameters,
    layers_at_equal_size,
    regroup,
    shape_in_words,
    shape_name,
)
from mhsh.errors import UserError
from mhsh.models.costs import parameter_counts
from mhsh.models.schemes import CompleteP, PreLN

BERT = configs.get("bert:2l8h")


# (L, N, F) of every grouping of BERT-large's and BERT-base's heads, from the most heads a layer to
# one.
GROUPINGS = {
    "24l16h": [(24, 16, 4096), (48, 8, 2048), (96, 4, 1024), (192, 2, 512), (384, 1, 256)],
    "12l12h": [(12, 12, 3072), (24, 6, 1536), (36, 4, 1024), (48, 3, 768), (72, 2, 512), (144, 1, 256)],
}


@pytest.mark.parametrize("base", GROUPINGS)
def test_regrouped_shapes(make_config, base):
    shallow = make_config("bert", base).model
    before = shallow
    for num_layers, num_heads, mlp_dim in GROUPINGS[base]:
        parts = num_layers // shallow.num_layers
        expected = replace(shallow, num_layers=num_layers, num_heads=num_heads, mlp_dim=mlp_dim, layers_per_group=parts)
        assert regroup(shallow, num_heads) == expected
        assert make_config("bert", f"{num_layers}l{num_heads}h").model == expected
        if before.num_heads % num_heads == 0:
            assert regroup(before, num_heads) == expected, "regrouping twice is regrouping once"
        before = expected


def test_a_loop_keeps_its_passes_and_names_them(make_config):
    model = make_config("gpt", "6l4h_x4").model
    assert (shape_name(model), shape_in_words(model)) == ("6x4_x4", "4 passes of 6 layers x 4 heads")
    assert shape_name(regroup(model, 1)) == "24x1_x4"
    assert parameter_counts(model) == parameter_counts(make_config("gpt", "6l4h").model)


def test_regroup_refuses_what_does_not_divide_the_heads(make_config):
    for n in (3, 32, 0, -8):
        said = f"heads_per_layer = {n} does not divide the 16 heads of all layers; allowed: 1, 2, 4, 8, 16$"
        with pytest.raises(UserError, match=said):
            regroup(BERT.model, n)
    model = replace(make_config("translation", "6l8h").model, num_decoder_layers=4)
    assert regroup(model, 16).num_decoder_layers == 2
    with pytest.raises(UserError, match=r"= 24 does not divide the 48 or 32 heads of all layers; allowed: 1, 2, 4, 8, 16$"):
        regroup(model, 24)


def test_regroup_keeps_the_depth_at_which_completep_was_tuned(make_config):
    model = make_config("bert", "24l16h", **{"model.residual": "completep"}).model
    assert [regroup(model, n).base_layers for n in (32, 16, 4, 1)] == [24, 24, 24, 24]
    assert regroup(regroup(model, 4), 1).base_layers == 24
    assert regroup(replace(model, base_layers=6), 1).base_layers == 6


@pytest.mark.usefixtures("forgotten")
def test_so_it_does_for_a_scheme_of_the_user_that_is_derived_of_it(make_config):
    class Derived(CompleteP):
        pass

    class Other(PreLN):
        pass

    add_residual("derived")(Derived)
    add_residual("other")(Other)
    models = [make_config("bert", "24l16h", **{"model.residual": name}).model for name in ("derived", "other")]
    assert [regroup(model, 1).base_layers for model in models] == [24, 0]


def test_regroup_refuses_a_feed_forward_width_that_cannot_be_shared_out():
    odd = replace(BERT.model, mlp_dim=100)
    assert regroup(odd, 2).mlp_dim == 25
    with pytest.raises(UserError, match=r"width 100 x 1 is not divisible by model.num_heads = 8; choose another model.mlp_dim"):
        regroup(odd, 1)


def test_regroup_keeps_the_heads_of_keys_and_values_too(make_config):
    """24 layers of 16 heads of queries, 4 to one of keys and values: always 384 and 96."""
    model = make_config("gpt", "24l16h_gqa").model
    for n, num_kv_heads in ((32, 8), (16, 4), (8, 2), (4, 1)):
        regrouped = regroup(model, n)
        assert (regrouped.num_heads, regrouped.num_kv_heads) == (n, num_kv_heads)
        assert regrouped.num_layers * regrouped.num_kv_heads == 96
        kernels = [parameter_counts(each)["encoder"] - (2 * each.num_layers + 1) * each.embed_dim for each in (model, regrouped)]
        assert kernels[0] == kernels[1]
        assert regroup(regrouped, 16) == model
    for n in (1, 2, 6):
        with pytest.raises(UserError, match=rf"^model.heads_per_layer = {n}: 4 heads of queries share one of keys and values"):
            regroup(model, n)
    assert regroup(make_config("gpt", "24l16h").model, 1).num_kv_heads == 0


SHAPES = st.tuples(st.integers(1, 64), st.integers(1, 48), st.integers(1, 512), st.integers(1, 48))


@settings(deadline=None, database=None)
@given(SHAPES)
def test_regroup_keeps_what_it_must_or_refuses(shape):
    num_layers, num_heads, mlp_dim, n = shape
    before = replace(BERT.model, num_layers=num_layers, num_heads=num_heads, mlp_dim=mlp_dim)
    assert regroup(before, num_heads) == before
    if (num_layers * num_heads) % n or (mlp_dim * n) % num_heads:
        with pytest.raises(UserError):
            regroup(before, n)
        return
    after = regroup(before, n)
    assert after.num_heads == n
    assert after.num_layers * after.num_heads == num_layers * num_heads
    assert after.num_layers * after.mlp_dim == num_layers * mlp_dim
    assert after.layers_per_group == num_heads / n
    unchanged = dict(num_layers=num_layers, num_heads=num_heads, mlp_dim=mlp_dim, layers_per_group=1)
    assert replace(after, **unchanged) == before
    assert regroup(after, n) == after


def counted(model: ModelConfig) -> int:
    """The parameters of the layers, without Admin's omega."""
    counts = parameter_counts(model)
    return counts["encoder"] + counts.get("decoder", 0)


@pytest.mark.parametrize("factor", [0.25, 0.5, 1, 2, 4])
@pytest.mark.parametrize("name", ["bert:24l16h", "gpt:24l16h", "gpt:24l16h_gqa", "gpt:6l4h", "translation:6l8h"])
def test_as_many_parameters_in_other_depths(name, factor):
    model = configs.get(name).model
    depth = round(factor * model.num_layers)
    other = configs.get(name, model={"layers_at_equal_size": depth}).model
    assert other == layers_at_equal_size(model, depth) and (factor != 1 or other == model)
    decoder = depth if model.num_decoder_layers else 0
    shape = (other.num_layers, other.num_decoder_layers, other.num_heads, other.num_kv_heads)
    assert shape == (depth, decoder, model.num_heads, model.num_kv_heads)
    narrower = (model.num_layers / depth) ** 0.5
    assert other.embed_dim == pytest.approx(model.embed_dim * narrower, abs=1)
    assert other.head_dim == pytest.approx(model.head_dim * narrower, abs=1)
    assert other.positions != "rotary" or other.head_dim % 2 == 0
    assert counted(other) == pytest.approx(counted(model), rel=0.01)


@pytest.mark.parametrize("name", ["bert:2l8h", "gpt:24l16h_gqa", "translation:6l8h"])
def test_the_counted_parameters_are_the_models(name):
    """But for the last norm of Pre-LN, which is outside of the layers."""
    model = configs.get(name).model
    final_norm = model.embed_dim if model.residual == "pre_ln" else 0
    assert layer_parameters(model) + final_norm == counted(model)
    if model.objective == "clm":  # no biases, and two norms
        kernels = attention_weights(model) + feed_forward_weights(model)
        assert layer_parameters(model) == model.num_layers * (kernels + 2 * model.embed_dim)


@pytest.mark.parametrize("streams", [2, 4])
def test_what_mixes_streams_is_counted(streams):
    """Else 24 narrow layers of four streams have 15 % more parameters than six of the same size."""
    model = configs.get("gpt:6l4h", model={"residual": "mhc_lite", "residual_streams": streams}).model
    assert layer_parameters(model) + model.embed_dim == counted(model), "with the last norm"
    assert counted(layers_at_equal_size(model, 24)) == pytest.approx(counted(model), rel=0.01)


def test_a_depth_without_a_width_is_refused(make_config):
    with pytest.raises(UserError, match=r"^model.layers_at_equal_size = 99999: no width has the .* parameters of 2 layers"):
        layers_at_equal_size(BERT.model, 99999)
    with pytest.raises(UserError, match=r"^model.layers_at_equal_size = -1: give 1 or more layers"):
        layers_at_equal_size(BERT.model, -1)
    uneven = replace(make_config("translation", "6l8h").model, num_decoder_layers=5)
    with pytest.raises(UserError, match=r"the decoder's 5 times 8 / 6 are whole$"):
        layers_at_equal_size(uneven, 8)


@pytest.mark.parametrize(("config", "variant"), [("bert", "2l8h"), ("translation", "6l8h"), ("gpt", "6l4h"), ("gpt", "24l16h_gqa")])
def test_wider_or_narrower_heads_leave_all_sizes_as_they_are(make_config, config, variant):
    model = make_config(config, variant).model
    for num_heads in (model.num_heads // 2, 2 * model.num_heads):
        other = make_config(config, variant, **{"model.heads_at_equal_width": num_heads}).model
        assert other == heads_at_equal_width(model, num_heads)
        assert (other.num_heads, other.head_dim) == (num_heads, model.num_heads * model.head_dim // num_heads)
        assert other.num_heads * model.kv_heads == model.num_heads * other.kv_heads
        assert parameter_counts(other) == parameter_counts(model)
        assert heads_at_equal_width(other, model.num_heads) == model


@pytest.mark.parametrize("variant", ["24l16h", "24l16h_gqa", "6l4h"])
def test_fewer_heads_of_keys_and_values_of_as_many_parameters(make_config, variant):
    model = make_config("gpt", variant).model
    for num_kv_heads in (1, 2, 4):
        other = make_config("gpt", variant, **{"model.kv_heads_at_equal_size": num_kv_heads}).model
        assert other == kv_heads_at_equal_size(model, num_kv_heads)
        assert other.kv_heads == num_kv_heads
        assert (other.mlp_dim > model.mlp_dim) == (num_kv_heads < model.kv_heads)
        assert parameter_counts(other)["encoder"] == pytest.approx(parameter_counts(model)["encoder"], rel=0.01)
    assert kv_heads_at_equal_size(model, model.kv_heads) == model


def test_heads_that_do_not_divide_are_refused(make_config):
    model = make_config("gpt", "6l4h_gqa").model
    for n in (0, -1, 3, 1):
        with pytest.raises(
            UserError, match=rf"^model.heads_at_equal_width = {n} .* heads of keys and values; allowed: 2, 4, 8, 16,"
        ):
            heads_at_equal_width(model, n)
        if n != 1:
            with pytest.raises(
                UserError, match=rf"^model.kv_heads_at_equal_size = {n} does not divide the 4 .*; allowed: 1, 2, 4$"
            ):
                kv_heads_at_equal_size(model, n)
    narrow = replace(model, mlp_dim=1, embed_dim=2, head_dim=2)
    with pytest.raises(UserError, match=r"^model.kv_heads_at_equal_size = 4: no model.mlp_dim gives the layers .* within 1%"):
        kv_heads_at_equal_size(narrow, 4)
    with pytest.raises(UserError, match=r"^model.kv_heads_at_equal_size = 2; allowed with model.objective = 'mlm': 0"):
        make_config("bert", "2l8h", **{"model.kv_heads_at_equal_size": 2})
