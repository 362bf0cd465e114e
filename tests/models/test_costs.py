"""Parameter counts as golden figures and by another formula; FLOPs against the products of the
program itself.
"""

from __future__ import annotations

import math

import jax
import pytest
from jax.extend.core import jaxprs_in_params
from jax.interpreters.partial_eval import dce_jaxpr
from msgspec.structs import replace

from mhsh.config.entries import SCHEMES
from mhsh.config.shapes import regroup
from mhsh.models.build import build_model, forward
from mhsh.models.costs import forward_flops, parameter_counts, parameter_shapes, row_flops, run_cost, step_flops
from mhsh.training.optimizer import build_optimizer
from mhsh.training.state import example_batch

# Of the encoders; the deep twins are 0.73 % and 0.72 % larger.
GOLDEN = {"24l16h": 302_309_376, "384l1h": 304_521_216, "12l12h": 85_054_464, "144l1h": 85_662_720}


def layer_parameters(model):
    """One layer: query, key, value and output with biases, two feed-forward matrices with biases,
    two LayerNorms.
    """
    d, heads_width, f = model.embed_dim, model.num_heads * model.head_dim, model.mlp_dim
    inward = 3 * (d + 1) * heads_width
    outward = (heads_width + 1) * d
    return inward + outward + (d + 1) * f + (f + 1) * d + 2 * 2 * d


@pytest.mark.parametrize(("variant", "golden"), GOLDEN.items())
def test_parameters_by_part(make_config, variant, golden):
    model = make_config("bert", variant).model
    d, v = model.embed_dim, model.vocab_size
    counts = parameter_counts(model)
    assert counts["encoder"] == golden
    assert counts == {
        "encoder": model.num_layers * layer_parameters(model),
        "decoder": 0,
        "omega": model.num_layers * 2 * d,
        "embeddings": (v + model.max_positions + 2) * d + 2 * d,
        # The prediction's dense layer, LayerNorm and output bias; the pooler and its two-way
        # classifier.
        "heads": (d + 1) * d + 2 * d + v + (d + 1) * d + (d + 1) * 2,
        "total": sum(counts.values()) - counts["total"],
    }


@pytest.mark.parametrize("variant", ["24l16h", "384l1h", "96l4h_gqa"])
def test_parameters_of_a_standard_decoder(make_config, variant):
    """Kernels and gains alone: four of attention, three of the feed-forward part, two norms and the
    last.
    """
    model = make_config("gpt", variant, **{"model.head": "untied", "model.qk_norm": True}).model
    d, heads, kv_heads = model.embed_dim, model.num_heads * model.head_dim, model.kv_heads * model.head_dim
    layer = 2 * d * heads + 2 * d * kv_heads + 3 * d * model.mlp_dim + 2 * d + 2 * model.head_dim
    counts = parameter_counts(model)
    assert counts["encoder"] == model.num_layers * layer + d
    assert (counts["embeddings"], counts["heads"]) == (model.vocab_size * d, model.vocab_size * d)


def product_flops(jaxpr):
    """Two for every multiply-and-add of every dot_general, also inside scans (as often as they
    turn) and calls.
    """
    flops = 0
    for equation in jaxpr.eqns:
        if equation.primitive.name == "dot_general":
            (contracted, _), _ = equation.params["dimension_numbers"]
            inner = math.prod(equation.invars[0].aval.shape[axis] for axis in contracted)
            flops += 2 * math.prod(equation.outvars[0].aval.shape) * inner
        times = equation.params["length"] if equation.primitive.name == "scan" else 1
        assert equation.primitive.name not in ("while", "cond", "conv_general_dilated"), "not counted here"
        flops += times * sum(product_flops(inner) for inner in jaxprs_in_params(equation.params))
    return flops


def counted_flops(config, rows=1):
    """Forward FLOPs of that many rows, read off the program."""
    model, batch = build_model(config.model), example_batch(config, rows)
    jaxpr = jax.make_jaxpr(lambda params: forward(model, params, batch, None))(parameter_shapes(config.model))
    return product_flops(jaxpr.jaxpr)


@pytest.mark.parametrize(
    ("task", "variant", "overrides"),
    [
        ("bert", "2l8h", {}),
        ("bert", "4l4h", {"model.next_sentence": False, "data.sequence_length": 32, "data.max_predictions": 5}),
        ("bert", "8l2h", {"model.head_dim": 5, "model.residual": "pre_ln", "model.scan_unroll": 4}),
        ("bert", "384l1h", {}),
        ("quickstart", "24l1h_admin", {"data.sequence_length": 100}),
        ("gpt", "6l4h", {"model.head": "untied"}),
        ("gpt", "12l2h_gqa", {"model.head_dim": 6, "model.qk_norm": True}),
        ("gpt", "6l4h", {"model.loops": 3}),
        ("gpt", "6l4h", {"model.residual": "mhc_lite"}),
        ("gpt", "24l1h", {"model.mlp": "plain", "model.head": "bert", "model.bias": True}),
    ],
)
def test_forward_flops_are_those_of_the_program(make_config, task, variant, overrides):
    config = make_config(task, variant, **overrides)
    assert row_flops(config).total == counted_flops(config)
    assert 3 * row_flops(config).total == counted_flops(config, rows=3)


def test_a_step_is_three_forward_passes_of_the_batch(make_config):
    config = make_config("bert", "2l8h", **{"train.batch_size": 6, "train.accumulation_steps": 2})
    assert step_flops(config) == 3 * 6 * counted_flops(config)


def transformer_base(make_config, **fields):
    """Vaswani et al. 2017, table 3, base: 6 and 6 layers of 8 heads, D = 512, F = 2048; a
    vocabulary of 32,768.
    """
    base = make_config("bert", "2l8h").model
    shape = dict(num_layers=6, num_decoder_layers=6, num_heads=8, head_dim=64, embed_dim=512, mlp_dim=2048, vocab_size=32_768)
    task = dict(objective="translation", positions="sinusoidal", num_token_types=0, next_sentence=False, residual="post_ln")
    return replace(base, **(shape | task | fields))


@pytest.mark.parametrize("residual", SCHEMES.names())
def test_parameters_of_an_encoder_and_a_decoder(make_config, residual):
    model = regroup(transformer_base(make_config, residual=residual, positions="learned"), 2)
    layers, d = 6 * 8 // 2, 512
    assert (model.num_layers, model.num_decoder_layers) == (layers, layers)
    counts = parameter_counts(model)
    attention = 4 * d * 64 * 2 + 3 * 64 * 2 + d
    # Of four streams: a norm of all; a kernel and biases for 4 + 4 + 24 weights, and 3 factors.
    streams = 4 * d + 4 * d * 32 + 32 + 3
    norm = {"rezero": 1, "keel": 4 * d, "peri_ln": 4 * d, "block_attn_res": 4 * d, "mhc_lite": 2 * d + streams}.get(residual, 2 * d)
    final = {"block_attn_res": 4 * d, **dict.fromkeys(("post_ln", "admin", "deepnorm", "rezero", "keel"), 0)}.get(residual, 2 * d)
    norms = {"encoder": 2 * norm, "decoder": 3 * norm}
    if residual == "hybrid_norm":  # the feed-forward's, and three gains an attention
        norms = {"encoder": norm + 3 * 64, "decoder": norm + 2 * 3 * 64}
    assert counts["encoder"] == layers * (layer_parameters(model) - 4 * d + norms["encoder"]) + final
    assert counts["decoder"] == layers * (layer_parameters(model) - 4 * d + attention + norms["decoder"]) + final
    assert counts["omega"] == (layers * 5 * d if residual == "admin" else 0)
    assert counts["embeddings"] == (model.vocab_size + 2 * model.max_positions) * d


def seq2seq_program_flops(model, source, target):
    """Forward FLOPs of one row of so many source and target tokens, read off the program."""
    lengths = {"inputs": source, "inputs_position": source, "inputs_segmentation": source}
    lengths |= {"decoder_inputs": target, "targets_position": target, "targets_segmentation": target}
    batch = {key: jax.ShapeDtypeStruct((1, length), "int32") for key, length in lengths.items()}
    module = build_model(model)
    jaxpr = jax.make_jaxpr(lambda params, batch: forward(module, params, batch, None))(parameter_shapes(model), batch).jaxpr
    # flax's scan traces what no pass changes once more than it is used: here the sources' keys.
    used, _ = dce_jaxpr(jaxpr, [True] * len(jaxpr.outvars))
    return product_flops(used)


@pytest.mark.parametrize(
    ("heads_per_layer", "fields"),
    [(8, {}), (1, {"num_layers": 2, "head_dim": 5, "residual": "block_attn_res", "loops": 2})],
    ids=str,
)
def test_forward_flops_of_an_encoder_and_a_decoder_are_those_of_the_program(make_config, heads_per_layer, fields):
    model = regroup(transformer_base(make_config, **fields), heads_per_layer)
    assert forward_flops(model, 7, 11).total == seq2seq_program_flops(model, 7, 11)


@pytest.mark.parametrize(("task", "variant", "sides"), [("quickstart", "24l1h_admin", 1), ("translation", "tiny", 2)])
def test_a_run_costs_its_steps(make_config, task, variant, sides):
    """Its tokens are of both sides, as those that a run logs."""
    config = make_config(task, variant, **{"train.num_steps": 7, "train.batch_size": 3, "optimizer.warmup_steps": 0})
    tokens = 7 * 3 * sides * config.data.sequence_length
    assert run_cost(config) == (parameter_counts(config.model)["total"], tokens, 7 * step_flops(config))


@pytest.mark.parametrize("heads", ["joined", "each"])
@pytest.mark.parametrize(("task", "variant"), [("bert", "2l8h"), ("bert", "16l1h"), ("translation", "tiny"), ("gpt", "6l4h_gqa")])
def test_an_update_of_muon_is_its_products(make_config, task, variant, heads):
    """Without clipping, whose norm is a product too."""
    config = make_config(task, variant, **{"optimizer.name": "muon", "optimizer.muon_heads": heads, "optimizer.clip_norm": 0.0})
    params, optimizer = parameter_shapes(config.model), build_optimizer(config)
    update = jax.make_jaxpr(lambda gradients, state, params: optimizer.update(gradients, state, params, learning_rate=1e-3))
    counted = product_flops(update(params, jax.eval_shape(optimizer.init, params), params).jaxpr)
    adam = replace(config, optimizer=replace(config.optimizer, name="adamw"))
    assert step_flops(config) - step_flops(adam) == counted > 0
