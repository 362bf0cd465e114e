"""The residual schemes against their formulas, their starting values, and the dtype of the
stream.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mhsh.config.schema import INITS, RESIDUALS
from mhsh.models.build import build_model, forward
from mhsh.models.costs import parameter_shapes
from mhsh.models.residual import STRATEGIES, Stream, closed_form_omega, deepnorm_constants, real_variance
from mhsh.models.transformer import Encoder, EncoderLayer
from mhsh.models.types import Stack, decoder_stack, encoder_stack

D = 12


def layer_norm(x, params, epsilon=1e-12):
    """(x - mean) / sqrt(var + epsilon) * scale + bias, over the last axis."""
    mean = x.mean(axis=-1, keepdims=True)
    variance = ((x - mean) ** 2).mean(axis=-1, keepdims=True)
    return (x - mean) / np.sqrt(variance + epsilon) * params["scale"] + params["bias"]


FORMULAS = {
    "post_ln": lambda x, f, p, num_layers: layer_norm(x + f(x), p["norm"]),
    "pre_ln": lambda x, f, p, num_layers: x + f(layer_norm(x, p["norm"])),
    "admin": lambda x, f, p, num_layers: layer_norm(p["omega"] * x + f(x), p["norm"]),
    "deepnorm": lambda x, f, p, num_layers: layer_norm((2 * num_layers) ** 0.25 * x + f(x), p["norm"]),
    "rezero": lambda x, f, p, num_layers: x + p["alpha"] * f(x),
    "keel": lambda x, f, p, num_layers: layer_norm(2 * num_layers * x + f(layer_norm(x, p["inner_norm"])), p["norm"]),
    "peri_ln": lambda x, f, p, num_layers: x + layer_norm(f(layer_norm(x, p["norm"])), p["output_norm"]),
    "ln_scaling": lambda x, f, p, num_layers: x + f(layer_norm(x, p["norm"])),  # of the first layer
    "completep": lambda x, f, p, num_layers: x + (3 / num_layers) ** 0.7 * f(layer_norm(x, p["norm"])),
    "hybrid_norm": lambda x, f, p, num_layers: x + f(x),  # around attention
}


def test_every_scheme_has_a_formula_here():
    assert set(FORMULAS) == set(STRATEGIES) == set(RESIDUALS)


@pytest.mark.parametrize("num_layers", [1, 24])
@pytest.mark.parametrize("residual", RESIDUALS)
def test_formula(tiny, random_like, error, residual, num_layers):
    config = tiny(residual=residual, num_layers=num_layers, base_layers=3, depth_exponent=0.7)
    scheme = STRATEGIES[residual](config, encoder_stack(config), "attention")
    rng = np.random.default_rng(0)
    x, matrix = rng.standard_normal((2, 5, D)), rng.standard_normal((D, D))
    stream = STRATEGIES[residual].start(jnp.asarray(x, jnp.float32), jnp.ones((2, 5), bool))

    def sublayer(x):
        return jnp.tanh(x @ jnp.asarray(matrix, jnp.float32))

    params = random_like(jax.eval_shape(lambda: scheme.init(jax.random.key(0), stream, sublayer)).get("params", {}))
    out = scheme.apply({"params": params}, stream, sublayer)
    exact = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params)
    expected = FORMULAS[residual](x, lambda x: np.tanh(x @ matrix), exact, num_layers)
    assert (out.carried is None) == (residual != "ln_scaling")
    assert error(out.x, expected) < 1e-5


@pytest.mark.parametrize("residual", RESIDUALS)
def test_where_the_stream_is_a_sum_the_last_layer_ends_in_a_layer_norm(tiny, residual):
    encoder = parameter_shapes(tiny(residual=residual))["encoder"]
    assert ("final_norm" in encoder) == (residual in ("pre_ln", "peri_ln", "ln_scaling", "completep", "hybrid_norm"))


def test_layer_norm_scaling_counts_the_layers(tiny, random_like, error):
    """Sublayers 0 and 1 are layer 1, of a decoder 0 to 2."""
    config = tiny(residual="ln_scaling")
    for stack, per_layer in ((Stack("encoder", 4, 0), 2), (Stack("decoder", 4, 0), 3)):
        scheme = STRATEGIES["ln_scaling"](config, stack, "feed_forward")
        stream = scheme.start(jax.random.normal(jax.random.key(0), (2, 5, D)), jnp.ones((2, 5), bool))
        params = random_like(jax.eval_shape(lambda: scheme.init(jax.random.key(0), stream, lambda x: x))["params"])  # noqa: B023
        for sublayer in range(4 * per_layer):
            following = scheme.apply({"params": params}, stream, lambda x: 2 * x)
            exact = layer_norm(np.asarray(stream.x, np.float64), params["norm"]) / math.sqrt(sublayer // per_layer + 1)
            assert error(following.x - stream.x, 2 * exact) < 1e-5
            stream = following


def test_hybrid_norm_normalises_what_the_feed_forward_is_added_to(tiny, random_like, error):
    config = tiny(residual="hybrid_norm")
    scheme = STRATEGIES["hybrid_norm"](config, encoder_stack(config), "feed_forward")
    stream = Stream(jax.random.normal(jax.random.key(0), (2, 5, D)), None)
    params = random_like(jax.eval_shape(lambda: scheme.init(jax.random.key(0), stream, jnp.tanh))["params"])
    x = layer_norm(np.asarray(stream.x, np.float64), params["norm"])
    assert error(scheme.apply({"params": params}, stream, jnp.tanh).x, x + np.tanh(x)) < 1e-5


def test_completep_is_pre_ln_at_the_depth_where_it_was_tuned(tiny, make_batch, random_params):
    config = tiny(residual="completep")
    batch, params = make_batch([[1, 1, 1]]), random_params(config)
    logits = [forward(build_model(tiny(residual=residual)), params, batch, None).logits for residual in ("completep", "pre_ln")]
    np.testing.assert_array_equal(*logits)


def test_rezero_has_no_layer_norm_in_its_layers(tiny):
    layers = parameter_shapes(tiny(residual="rezero"))["encoder"]["layers"]
    assert set(layers["attention_residual"]) == set(layers["feed_forward_residual"]) == {"alpha"}


def test_rezero_starts_as_the_identity(tiny):
    encoder = Encoder(tiny(residual="rezero"), STRATEGIES["rezero"])
    x = jax.random.normal(jax.random.key(0), (2, 4, D))
    segments = jnp.ones((2, 4), int)
    out, variables = jax.jit(lambda: encoder.init_with_output(jax.random.key(1), x, segments, None))()
    np.testing.assert_array_equal(out, x)
    assert len(jax.tree.leaves(variables)) > 2


# arXiv 2203.00555, figure 2: (2N)^1/4 and (8N)^-1/4; beside a decoder 0.81 (N^4 M)^1/16 and 0.87
# (N^4 M)^-1/16; the decoder (3M)^1/4 and (12M)^-1/4. For 100 and 100 layers the powers are
# 100^(5/16) = 4.21697, 300^1/4 = 4.16179, 1200^1/4 = 5.88566.
DEEPNORM = [
    (Stack("encoder", 6, 0), 1.8612, 0.37992),
    (Stack("encoder", 24, 0), 2.6321, 0.26864),
    (Stack("encoder", 384, 0), 5.2643, 0.13432),
    (Stack("encoder", 100, 100), 3.41574, 0.206309),
    (Stack("encoder", 16, 1), 1.62, 0.435),
    (Stack("decoder", 100, 0), 4.16179, 0.169904),
    (Stack("decoder", 27, 0), 3.0, 0.235702),
]


@pytest.mark.parametrize(("stack", "alpha", "beta"), DEEPNORM)
def test_deepnorm_constants(tiny, stack, alpha, beta):
    scheme = STRATEGIES["deepnorm"](tiny(residual="deepnorm", embed_dim=4), stack, "attention")
    assert deepnorm_constants(stack) == pytest.approx((alpha, beta), rel=1e-4)
    assert scheme.init_gain(stack) == pytest.approx(beta, rel=1e-4)
    # A sublayer that answers with y on an x orthogonal to it: before the LayerNorm their ratio is
    # alpha.
    x = jnp.array([[[1.0, -1.0, 0.0, 0.0]]])
    y = jnp.array([[[0.0, 0.0, 1.0, -1.0]]])
    out, _ = scheme.init_with_output(jax.random.key(0), Stream(x, None), lambda _: y)
    assert out.x[0, 0, 0] / out.x[0, 0, 2] == pytest.approx(alpha, rel=1e-4)


def test_a_stack_counts_its_sublayers_and_knows_its_decoder(tiny, tiny_seq2seq):
    assert encoder_stack(tiny()) == Stack("encoder", 3, 0)
    assert encoder_stack(tiny_seq2seq()) == Stack("encoder", 2, 3)
    assert decoder_stack(tiny_seq2seq()) == Stack("decoder", 3, 0)
    assert [Stack(name, 5, 0).num_sublayers for name in ("encoder", "decoder")] == [10, 15]


@pytest.mark.parametrize("init", [pytest.param(init, marks=pytest.mark.slow if init == "bert" else ()) for init in INITS])
def test_deepnorm_scales_value_output_and_feed_forward_kernels_and_no_others(tiny, make_batch, fresh, init):
    batch = make_batch([[1, 1, 1]])
    plain = fresh(tiny(residual="post_ln", init=init), batch)
    scaled = fresh(tiny(residual="deepnorm", init=init), batch)
    beta = (8 * 3) ** -0.25
    expected = {
        ("attention", "query_kernel"): 1.0,
        ("attention", "key_kernel"): 1.0,
        ("attention", "value_kernel"): beta,
        ("attention", "out_kernel"): beta,
        ("feed_forward", "up_kernel"): beta,
        ("feed_forward", "down_kernel"): beta,
    }
    layers, scaled_layers = plain["encoder"].pop("layers"), scaled["encoder"].pop("layers")
    for (module, name), factor in expected.items():
        np.testing.assert_allclose(scaled_layers[module][name], factor * layers[module][name], rtol=1e-6, err_msg=name)
    kernels = {(module, name) for module, params in layers.items() for name in params if name.endswith("kernel")}
    assert kernels == set(expected)
    # Embeddings and heads are no part of the scheme.
    jax.tree.map(np.testing.assert_array_equal, plain, scaled)


# 384L1H: 768 sublayers. sqrt(769 / ln 769 - 1) and sqrt(768).
@pytest.mark.parametrize(("admin_omega", "expected"), [("closed_log", 10.71), ("closed_one", 27.71), ("profiled", 1.0)])
def test_closed_form_omega_of_384_layers(tiny, admin_omega, expected):
    assert closed_form_omega(admin_omega, 768) == pytest.approx(expected, abs=0.005)


def test_each_stack_is_scaled_and_starts_by_its_own_depth(tiny_seq2seq, make_pairs, fresh):
    """Two encoder layers (4 sublayers) and three decoder layers (9)."""
    batch = make_pairs([[1, 1, 1]], [[1, 1]])
    plain = fresh(tiny_seq2seq(residual="post_ln"), batch)
    scaled = fresh(tiny_seq2seq(residual="deepnorm"), batch)
    admin = fresh(tiny_seq2seq(residual="admin", admin_omega="closed_one"), batch)
    for stack, beta, attentions, n in (
        ("encoder", 0.87 * 48**-0.0625, ["attention"], 4),
        ("decoder", 36**-0.25, ["self_attention", "cross_attention"], 9),
    ):
        gains = {(module, f"{name}_kernel"): 1.0 for module in attentions for name in ("query", "key")}
        gains |= {(module, f"{name}_kernel"): beta for module in attentions for name in ("value", "out")}
        gains |= {("feed_forward", f"{name}_kernel"): beta for name in ("up", "down")}
        for (module, name), gain in gains.items():
            before, after = (tree[stack]["layers"][module][name] for tree in (plain, scaled))
            np.testing.assert_allclose(after, gain * before, rtol=1e-6, err_msg=f"{stack} {module} {name}")
        for module in (*attentions, "feed_forward"):
            np.testing.assert_allclose(admin[stack]["layers"][f"{module}_residual"]["omega"], n**0.5, rtol=1e-6)
    jax.tree.map(np.testing.assert_array_equal, scaled["embeddings"], plain["embeddings"])


def test_a_fresh_admin_model_holds_the_closed_form(tiny, make_batch, fresh):
    params = fresh(tiny(residual="admin", admin_omega="closed_log", num_layers=6), make_batch([[1, 1, 1]]))
    # 12 sublayers: sqrt(13 / ln 13 - 1)
    for name in ("attention_residual", "feed_forward_residual"):
        omega = params["encoder"]["layers"][name]["omega"]
        assert omega.shape == (6, D)
        np.testing.assert_allclose(omega, 2.01701, rtol=1e-5)


def test_real_variance_leaves_padding_out_and_counts_in_fp32():
    x = np.random.default_rng(0).standard_normal((2, 4, D)).astype(np.float32) + 5
    real = np.array([[1, 1, 1, 0], [1, 0, 0, 0]], bool)
    assert real_variance(jnp.asarray(x), jnp.asarray(real)) == pytest.approx(x[real].astype(np.float64).var(), rel=1e-5)
    rounded = jnp.asarray(x, jnp.bfloat16)
    expected = np.asarray(rounded, np.float64)[real].var()
    assert real_variance(rounded, jnp.asarray(real)) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(
    ("residual", "residual_dtype"),
    [
        *((residual, "bfloat16") for residual in RESIDUALS),
        ("post_ln", "float32"),
        *(pytest.param(residual, "float32", marks=pytest.mark.slow) for residual in RESIDUALS if residual != "post_ln"),
    ],
)
def test_the_stream_keeps_its_own_dtype_under_bf16_compute(tiny, make_batch, random_params, residual, residual_dtype):
    config = tiny(residual=residual, compute_dtype="bfloat16", residual_dtype=residual_dtype)
    model, batch, params = build_model(config), make_batch([[1, 1, 1, 0]]), random_params(config)
    seen = jax.eval_shape(lambda params: captured(model, params, batch, None), params)
    assert seen["embeddings"].dtype == seen["encoder"].dtype == residual_dtype
    assert jax.eval_shape(lambda params: forward(model, params, batch, None).logits, params).dtype == "float32"
    # Inside a layer the stream keeps it too, while the sublayers compute in bf16.
    layer = EncoderLayer(config, STRATEGIES[residual])
    stream = STRATEGIES[residual].start(jnp.zeros((1, 4, D), residual_dtype), jnp.ones((1, 4), bool))
    mask = jnp.ones((1, 1, 4, 4), bool)
    seen = jax.eval_shape(lambda params: captured(layer, params, stream, None, mask), one_layer(params))
    assert seen["attention"].dtype == seen["feed_forward"].dtype == "bfloat16"
    assert seen["attention_residual"].x.dtype == seen["feed_forward_residual"].x.dtype == residual_dtype


def one_layer(params):
    """The parameters of the first layer."""
    return jax.tree.map(lambda stacked: stacked[0], params["encoder"]["layers"])


def captured(module, params, *inputs):
    """The output of every child of the module, by name."""
    _, state = module.apply({"params": params}, *inputs, capture_intermediates=True)
    return {name: calls["__call__"][0] for name, calls in state["intermediates"].items() if name != "__call__"}


@pytest.mark.parametrize(("residual_dtype", "kept"), [("float32", True), ("bfloat16", False)])
def test_an_fp32_stream_keeps_what_bf16_would_round_away(tiny, residual_dtype, kept):
    config = tiny(residual="pre_ln", compute_dtype="bfloat16", residual_dtype=residual_dtype)
    scheme = STRATEGIES["pre_ln"](config, encoder_stack(config), "attention")
    x = jnp.full((1, 2, D), 1000.0, residual_dtype)
    out, _ = scheme.init_with_output(jax.random.key(0), Stream(x, None), lambda x: jnp.full(x.shape, 0.5, jnp.bfloat16))
    assert out.x.dtype == residual_dtype
    assert (np.asarray(out.x, np.float64) == 1000.5).all() == kept
