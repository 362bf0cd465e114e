"""The parts of a standard decoder, each against its formula, and the whole as it is trained."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from msgspec.structs import replace

from mhsh import configs
from mhsh.config.entries import SCHEMES
from mhsh.configs import gpt
from mhsh.models.attention import MultiHeadAttention, attention_mask
from mhsh.models.build import build_model, forward
from mhsh.models.costs import parameter_shapes
from mhsh.models.layers import FeedForward, HeadNorm, LayerNorm, rotate, rotation
from mhsh.models.losses import compute_metrics
from tests.compiling import compiled_forward

POSITIONS = np.array([[0, 1, 2, 3, 500, 0, 1], [7, 6, 5, 4, 3, 2, 1]], np.int32)
DECODER = dict(gpt.DECODER["model"], next_sentence=False, num_token_types=0, num_heads=4)


@pytest.fixture(scope="module")
def decoder(tiny):
    """decoder(num_kv_heads=2): a decoder of three layers of four heads."""
    return functools.partial(tiny, **DECODER)


@pytest.mark.parametrize("theta", [10_000.0, 1_000_000.0])
def test_a_rotation_multiplies_complex_numbers(decoder, theta):
    """Element i and element i + H/2 are one number, which exp(1j t theta^(-2i/H)) turns."""
    width = 6
    config = decoder(head_dim=width, rope_theta=theta)
    x = np.random.default_rng(0).standard_normal((*POSITIONS.shape, 3, width)).astype(np.float32)
    found = rotate(jnp.asarray(x), rotation(config, jnp.asarray(POSITIONS)))
    for b, t, n in np.ndindex(*POSITIONS.shape, 3):
        for i in range(width // 2):
            number = complex(x[b, t, n, i], x[b, t, n, i + width // 2]) * np.exp(1j * POSITIONS[b, t] * theta ** (-2 * i / width))
            np.testing.assert_allclose(found[b, t, n, [i, i + width // 2]], [number.real, number.imag], atol=2e-4)


@pytest.mark.parametrize("kind", ["rms", "layer"])
@pytest.mark.parametrize("norm", [LayerNorm, HeadNorm])
def test_norms_and_their_gradients(decoder, norm, kind):
    """The epsilon is as large as it must be for its place to show."""
    config = decoder(layer_norm_epsilon=0.1, norm=kind)
    width = config.embed_dim if norm is LayerNorm else config.head_dim
    rng = np.random.default_rng(0)
    x, back, scale = (jnp.asarray(rng.standard_normal(shape) + 3, jnp.float32) for shape in ((2, 5, width), (2, 5, width), width))

    def plain(x):
        x = x - jnp.mean(x, axis=-1, keepdims=True) if kind == "layer" else x
        return x / jnp.sqrt(jnp.mean(x**2, axis=-1, keepdims=True) + 0.1) * scale

    assert norm(config).init(jax.random.key(0), x)["params"].keys() == {"scale"}
    found, found_back = jax.vjp(functools.partial(norm(config).apply, {"params": {"scale": scale}}), x)
    wanted, wanted_back = jax.vjp(plain, x)
    np.testing.assert_allclose(found, wanted, atol=1e-5)
    np.testing.assert_allclose(found_back(back)[0], wanted_back(back)[0], atol=1e-5)


@pytest.mark.parametrize("bias", [True, False])
def test_a_gated_feed_forward_part(decoder, random_like, bias):
    config = decoder(bias=bias)
    module, x = FeedForward(config), jax.random.normal(jax.random.key(0), (2, 5, config.embed_dim))
    params = random_like(jax.eval_shape(lambda: module.init(jax.random.key(0), x, None)["params"]))
    assert {name.split("_")[1] for name in params} == ({"kernel", "bias"} if bias else {"kernel"})
    plain = {
        name: np.float64(params.get(name, 0)) for part in ("up", "gate", "down") for name in (f"{part}_kernel", f"{part}_bias")
    }
    gate = x @ plain["gate_kernel"] + plain["gate_bias"]
    hidden = gate / (1 + np.exp(-gate)) * (x @ plain["up_kernel"] + plain["up_bias"])
    wanted = hidden @ plain["down_kernel"] + plain["down_bias"]
    np.testing.assert_allclose(module.apply({"params": params}, x, None), wanted, atol=1e-5)


@pytest.mark.parametrize("fields", [{}, {"qk_norm": True}, {"bias": True, "positions": "learned"}], ids=str)
@pytest.mark.parametrize("kv_heads", [1, 2])
def test_shared_keys_and_values_are_repeated_ones(decoder, random_like, kv_heads, fields):
    """Outputs, and gradients: a shared kernel has the sum of those of its repetitions."""
    shared = decoder(num_kv_heads=kv_heads, **fields)
    whole = replace(shared, num_kv_heads=0)
    segments = jnp.asarray([[1] * 5 + [2] * 3])
    x, mask = jax.random.normal(jax.random.key(0), (1, 8, shared.embed_dim)), attention_mask(segments, causal=True)
    arguments = (x, None, mask, None, rotation(shared, jnp.asarray([[0, 1, 2, 3, 4, 0, 1, 2]])))
    module = MultiHeadAttention(shared)
    params = random_like(jax.eval_shape(lambda: module.init(jax.random.key(0), *arguments)["params"]))
    axes = {"key_kernel": 1, "value_kernel": 1, "key_bias": 0, "value_bias": 0}

    def repeated(params):
        return {name: jnp.repeat(leaf, 4 // kv_heads, axis=axes[name]) if name in axes else leaf for name, leaf in params.items()}

    def one(params):
        return module.apply({"params": params}, *arguments)

    def other(params):
        return MultiHeadAttention(whole).apply({"params": repeated(params)}, *arguments)

    def squares(params, f):
        outputs = f(params)
        return jnp.sum(outputs**2), outputs

    run = jax.jit(jax.grad(squares, has_aux=True), static_argnums=1)
    gradients, outputs = zip(*(run(params, f) for f in (one, other)), strict=True)
    np.testing.assert_allclose(*outputs, atol=1e-5)
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-4), *gradients)


def test_a_plain_head_is_one_product(decoder, random_params, make_batch):
    """Untied with the token table as its matrix: the same logits, and no other parameter."""
    tied, untied = decoder(), decoder(head="untied")
    params, batch = random_params(tied), make_batch([[1] * 8])
    assert params.keys() == {"embeddings", "encoder"} and params["embeddings"].keys() == {"token"}
    logits = compiled_forward(tied)(params, batch, None).logits
    own = params | {"prediction": {"kernel": params["embeddings"]["token"].T}}
    assert jax.tree.structure(own) == jax.tree.structure(parameter_shapes(untied))
    np.testing.assert_allclose(compiled_forward(untied)(own, batch, None).logits, logits, atol=1e-5)


@pytest.mark.parametrize("residual", SCHEMES.names())
def test_a_decoder_has_any_residual_scheme(decoder, random_params, make_batch, residual):
    """No token is seen before its time, and every parameter has a finite gradient that is not 0."""
    config = decoder(residual=residual, num_kv_heads=2)
    model, params, batch = build_model(config), random_params(config), make_batch([[1] * 8])

    @jax.jit
    @functools.partial(jax.grad, has_aux=True)
    def gradients_and_logits(params, batch):
        outputs = forward(model, params, batch, None)
        targets = {"targets": batch["inputs"], "weights": np.ones((1, 8), np.float32)}
        return compute_metrics(outputs, batch | targets)["target_loss"].value(), outputs.logits

    gradients, logits = gradients_and_logits(params, batch)
    changed = batch | {"inputs": np.where(np.arange(8) < 5, batch["inputs"], 47 - batch["inputs"]).astype(np.int32)}
    _, others = gradients_and_logits(params, changed)
    np.testing.assert_array_equal(others[:, :5], logits[:, :5])
    assert np.abs(others[:, 5:] - logits[:, 5:]).max() > 0.01
    for path, gradient in jax.tree_util.tree_leaves_with_path(gradients):
        assert np.isfinite(gradient).all() and np.abs(gradient).max() > 0, path


@pytest.mark.parametrize("variants", [("6l4h", "24l1h"), ("6l4h_gqa", "12l2h_gqa")])
def test_all_groupings_start_alike(variants):
    """With the same deviation of every kernel of a layer."""
    deviations = []
    for variant in variants:
        config = configs.get(f"gpt:{variant}")
        batch = {name: jnp.zeros((1, 2), jnp.int32) for name in ("inputs", "inputs_position", "inputs_segmentation")}
        model = build_model(config.model)
        params = jax.jit(lambda model=model, batch=batch: nn.unbox(model.init(jax.random.key(0), batch, None))["params"])()
        layers = params["encoder"]["layers"]
        deviations.append([float(jnp.std(leaf)) for name in ("attention", "feed_forward") for leaf in layers[name].values()])
    np.testing.assert_allclose(*deviations, rtol=0.02)
