"""The residual schemes against their formulas, their starting values, and the dtype of the
stream.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mhsh.config.entries import SCHEMES
from mhsh.models.admin import real_variance
from mhsh.models.attention import attention_mask
from mhsh.models.build import build_model, forward
from mhsh.models.residual import Stream
from mhsh.models.schemes import closed_form_omega, deepnorm_constants
from mhsh.models.transformer import Context, Encoder, Layer
from mhsh.models.types import Stack, decoder_stack, encoder_stack
from tests.models.plain import JOINS, norm

D = 12


@pytest.fixture
def added(random_like):
    """added(scheme, stream, f): the stream after f, and the scheme's random parameters in
    float64.
    """

    def apply(scheme, stream, sublayer):
        params = random_like(jax.eval_shape(lambda: scheme.init(jax.random.key(0), stream, sublayer)).get("params", {}))
        exact = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params)
        return scheme.apply({"params": params}, stream, sublayer), exact

    return apply


@pytest.mark.parametrize(("num_layers", "base_layers"), [(5, 0), (24, 3)])  # 0: the own number
@pytest.mark.parametrize("residual", JOINS)
def test_formula(tiny, added, error, residual, num_layers, base_layers):
    assert {*JOINS, "block_attn_res", "mhc_lite"} == set(SCHEMES.names())  # which have tests of their own
    config = tiny(residual=residual, num_layers=num_layers, base_layers=base_layers, depth_exponent=0.7)
    stack = encoder_stack(config)
    scheme = SCHEMES[residual].residual(config, stack, "attention")
    rng = np.random.default_rng(0)
    x, matrix = rng.standard_normal((2, 5, D)), rng.standard_normal((D, D))
    stream = SCHEMES[residual].residual.start(config, stack, jnp.asarray(x, jnp.float32), jnp.ones((2, 5), bool))
    out, params = added(scheme, stream, lambda x: jnp.tanh(x @ jnp.asarray(matrix, jnp.float32)))
    alphas = {"deepnorm": (2 * num_layers) ** 0.25, "keel": 2 * num_layers, "completep": ((base_layers or 5) / num_layers) ** 0.7}
    assert (out.carried is None) == (residual != "ln_scaling")
    assert error(out.x, JOINS[residual](x, lambda x: np.tanh(x @ matrix), params, alphas.get(residual, 1), 1e-12)) < 1e-5


@pytest.mark.parametrize(("stack", "per_layer"), [(Stack("encoder", 4, 0), 2), (Stack("decoder", 4, 0), 3)], ids=str)
def test_layer_norm_scaling_counts_the_layers(tiny, added, error, stack, per_layer):
    """Sublayers 0 and 1 are layer 1, of a decoder 0 to 2."""
    config = tiny(residual="ln_scaling")
    scheme = SCHEMES["ln_scaling"].residual(config, stack, "feed_forward")
    stream = scheme.start(config, stack, jax.random.normal(jax.random.key(0), (2, 5, D)), jnp.ones((2, 5), bool))
    for sublayer in range(4 * per_layer):
        following, params = added(scheme, stream, lambda x: 2 * x)
        exact = norm(np.asarray(stream.x, np.float64), params["norm"]) / math.sqrt(sublayer // per_layer + 1)
        assert error(following.x - stream.x, 2 * exact) < 1e-5
        stream = following


def test_hybrid_norm_normalises_what_the_feed_forward_is_added_to(tiny, added, error):
    config = tiny(residual="hybrid_norm")
    scheme = SCHEMES["hybrid_norm"].residual(config, encoder_stack(config), "feed_forward")
    stream = Stream(jax.random.normal(jax.random.key(0), (2, 5, D)), None)
    out, params = added(scheme, stream, jnp.tanh)
    x = norm(np.asarray(stream.x, np.float64), params["norm"])
    assert error(out.x, x + np.tanh(x)) < 1e-5


def test_rezero_starts_as_the_identity_without_a_layer_norm(tiny):
    encoder = Encoder(tiny(residual="rezero"), SCHEMES["rezero"].residual)
    x = jax.random.normal(jax.random.key(0), (2, 4, D))
    segments = jnp.ones((2, 4), int)
    out, variables = jax.jit(lambda: encoder.init_with_output(jax.random.key(1), x, segments, None))()
    np.testing.assert_array_equal(out, x)
    layers = variables["params"]["layers"]
    assert set(layers) == {"attention", "feed_forward", "attention_residual", "feed_forward_residual"}
    assert set(layers["attention_residual"]) == set(layers["feed_forward_residual"]) == {"alpha"}


# arXiv 2203.00555, figure 2: (2N)^1/4 and (8N)^-1/4; beside a decoder 0.81 (N^4 M)^1/16 and 0.87
# (N^4 M)^-1/16; the decoder (3M)^1/4 and (12M)^-1/4. For 100 and 100 layers the powers are
# 100^(5/16) = 4.21697, 300^1/4 = 4.16179, 1200^1/4 = 5.88566.
DEEPNORM = [
    (Stack("encoder", 6, 0), 1.8612, 0.37992),
    (Stack("encoder", 384, 0), 5.2643, 0.13432),
    (Stack("encoder", 100, 100), 3.41574, 0.206309),
    (Stack("encoder", 16, 1), 1.62, 0.435),
    (Stack("decoder", 100, 0), 4.16179, 0.169904),
]


@pytest.mark.parametrize(("stack", "alpha", "beta"), DEEPNORM)
def test_deepnorm_constants(tiny, stack, alpha, beta):
    scheme = SCHEMES["deepnorm"].residual(tiny(residual="deepnorm", embed_dim=4), stack, "attention")
    assert deepnorm_constants(stack) == pytest.approx((alpha, beta), rel=1e-4)
    assert scheme.init_gain(stack) == pytest.approx(beta, rel=1e-4)
    # A sublayer that answers with y on an x orthogonal to it: before the LayerNorm their ratio is
    # alpha.
    x, y = jnp.array([[[1.0, -1.0, 0.0, 0.0]]]), jnp.array([[[0.0, 0.0, 1.0, -1.0]]])
    out, _ = scheme.init_with_output(jax.random.key(0), Stream(x, None), lambda _: y)
    assert out.x[0, 0, 0] / out.x[0, 0, 2] == pytest.approx(alpha, rel=1e-4)


def test_a_stack_counts_its_sublayers_and_knows_its_decoder(tiny, tiny_seq2seq):
    assert encoder_stack(tiny()) == Stack("encoder", 3, 0)
    assert encoder_stack(tiny_seq2seq()) == Stack("encoder", 2, 3)
    assert decoder_stack(tiny_seq2seq()) == Stack("decoder", 3, 0)
    assert [Stack(name, 5, 0).num_sublayers for name in ("encoder", "decoder")] == [10, 15]


# By model: beta of each stack, the number of its sublayers, and its attentions.
STACKS = {
    "bert": {"encoder": (24**-0.25, 6, ["attention"])},
    "seq2seq": {
        "encoder": (0.87 * 48**-0.0625, 4, ["attention"]),
        "decoder": (36**-0.25, 9, ["self_attention", "cross_attention"]),
    },
}


@pytest.mark.parametrize(
    ("name", "init"),
    [("bert", "bert"), ("seq2seq", "xavier")],
)
def test_each_stack_is_scaled_and_starts_by_its_own_depth(tiny, tiny_seq2seq, make_batch, make_pairs, fresh, name, init):
    """DeepNorm scales value, output and feed-forward kernels, Admin sets its omega, and nothing
    else differs from Post-LN.
    """
    make, batch = (tiny, make_batch([[1, 1, 1]])) if name == "bert" else (tiny_seq2seq, make_pairs([[1, 1, 1]], [[1, 1]]))
    schemes = {"post_ln": {}, "deepnorm": {}, "admin": {"admin_omega": "closed_one"}}
    plain, scaled, admin = (fresh(make(residual=residual, init=init, **more), batch) for residual, more in schemes.items())
    for stack, (beta, num_sublayers, attentions) in STACKS[name].items():
        gains = {(module, f"{part}_kernel"): beta for module in attentions for part in ("value", "out")}
        gains |= {("feed_forward", f"{part}_kernel"): beta for part in ("up", "down")}
        for (module, part), leaf in (
            (key, leaf) for key, leaf in leaves(plain[stack]["layers"]) if not key[0].endswith("residual")
        ):
            assert scaled[stack]["layers"][module][part] == pytest.approx(gains.get((module, part), 1.0) * leaf, rel=1e-6), part
            np.testing.assert_array_equal(admin[stack]["layers"][module][part], leaf)
        for module in (*attentions, "feed_forward"):
            np.testing.assert_allclose(admin[stack]["layers"][f"{module}_residual"]["omega"], num_sublayers**0.5, rtol=1e-6)
    for part in plain.keys() - STACKS[name].keys():
        jax.tree.map(np.testing.assert_array_equal, scaled[part], plain[part])


def leaves(layers):
    """((module, parameter), array) of a stack's layers."""
    return [(tuple(key.key for key in path), np.asarray(leaf)) for path, leaf in jax.tree_util.tree_leaves_with_path(layers)]


# 12 sublayers: sqrt(13 / ln 13 - 1); 768, of 384 layers: sqrt(769 / ln 769 - 1) and sqrt(768).
@pytest.mark.parametrize(
    ("admin_omega", "num_sublayers", "expected"),
    [("closed_log", 12, 2.01701), ("closed_log", 768, 10.71), ("closed_one", 768, 27.71), ("profiled", 768, 1.0)],
)
def test_closed_form_omega(admin_omega, num_sublayers, expected):
    assert closed_form_omega(admin_omega, num_sublayers) == pytest.approx(expected, abs=0.005)


def test_real_variance_leaves_padding_out_and_counts_in_fp32():
    x = np.random.default_rng(0).standard_normal((2, 4, D)).astype(np.float32) + 5
    real = np.array([[1, 1, 1, 0], [1, 0, 0, 0]], bool)
    for given in (jnp.asarray(x), jnp.asarray(x, jnp.bfloat16)):
        assert real_variance(given, jnp.asarray(real)) == pytest.approx(np.asarray(given, np.float64)[real].var(), rel=1e-5)


@pytest.mark.parametrize(
    ("residual", "residual_dtype"),
    [*((residual, "bfloat16") for residual in SCHEMES.names()), ("post_ln", "float32")],
)
def test_the_stream_keeps_its_own_dtype_under_bf16_compute(tiny, make_batch, random_params, residual, residual_dtype):
    config = tiny(residual=residual, compute_dtype="bfloat16", residual_dtype=residual_dtype)
    model, batch, params = build_model(config), make_batch([[1, 1, 1, 0]]), random_params(config)
    seen = jax.eval_shape(lambda params: captured(model, params, batch, None), params)
    assert seen["embeddings"].dtype == seen["encoder"].dtype == residual_dtype
    outputs = jax.eval_shape(lambda params: forward(model, params, batch, None), params)
    assert outputs.logits.dtype == outputs.next_sentence.dtype == "float32"
    # Inside a layer the stream keeps it too, while the sublayers compute in bf16.
    scheme, stack = SCHEMES[residual].residual, encoder_stack(config)
    layer, first = Layer(config, scheme, stack), jax.tree.map(lambda leaf: leaf[0], params["encoder"]["layers"])
    stream = scheme.start(config, stack, jnp.zeros((1, 4, D), residual_dtype), jnp.ones((1, 4), bool))
    context = Context(attention_mask(jnp.ones((1, 4), int), causal=False))
    seen = jax.eval_shape(lambda params: captured(layer, params, stream, None, context), first)
    assert seen["attention"].dtype == seen["feed_forward"].dtype == "bfloat16"
    assert seen["attention_residual"].x.dtype == seen["feed_forward_residual"].x.dtype == residual_dtype


def captured(module, params, *inputs):
    """The output of every child of the module, by name."""
    _, state = module.apply({"params": params}, *inputs, capture_intermediates=True)
    return {name: calls["__call__"][0] for name, calls in state["intermediates"].items() if name != "__call__"}


@pytest.mark.parametrize(("residual_dtype", "kept"), [("float32", True), ("bfloat16", False)])
def test_an_fp32_stream_keeps_what_bf16_would_round_away(tiny, residual_dtype, kept):
    config = tiny(residual="pre_ln", compute_dtype="bfloat16", residual_dtype=residual_dtype)
    scheme = SCHEMES["pre_ln"].residual(config, encoder_stack(config), "attention")
    x = jnp.full((1, 2, D), 1000.0, residual_dtype)
    out, _ = scheme.init_with_output(jax.random.key(0), Stream(x, None), lambda x: jnp.full(x.shape, 0.5, jnp.bfloat16))
    assert out.x.dtype == residual_dtype
    assert (np.asarray(out.x, np.float64) == 1000.5).all() == kept
