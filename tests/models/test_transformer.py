"""The encoder: scan, unrolled loop and rematerialisation are one function; padding and packing
change nothing.
"""

from __future__ import annotations

import contextlib
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from msgspec.structs import replace

from mhsh.config.entries import SCHEMES
from mhsh.models.attention import attention_mask
from mhsh.models.build import build_model, forward
from mhsh.models.losses import compute_metrics, loss_weights, total_loss
from mhsh.models.transformer import REMAT_POLICIES, Context, Encoder, Layer
from mhsh.models.types import encoder_stack
from tests.models.plain import norm

OUTPUTS, EXACT = 1e-6, 1e-12  # of float32, and of float64

SEGMENTS = [[1, 1, 1, 2, 2, 2, 2, 0], [1, 1, 1, 1, 1, 1, 0, 0]]
DROPOUT = dict(hidden_dropout=0.3, attention_dropout=0.3, embedding_dropout=0.3)


def outputs_and_gradients(config, params, batch):
    """Logits and parameter gradients of the loss, with a fixed dropout key."""
    model = build_model(config)

    def loss(params):
        outputs = forward(model, params, batch, jax.random.key(5))
        return total_loss(compute_metrics(outputs, batch), loss_weights(batch)), outputs

    gradients, outputs = jax.jit(jax.grad(loss, has_aux=True))(params)
    return outputs, gradients


@pytest.fixture(scope="module")
def plain_scan(tiny, make_batch, random_params):
    """The config of a plain scan with dropout, parameters, a batch, and what it gives, in
    float64.
    """
    config = tiny(residual="admin", admin_omega="closed_log", num_layers=4, **DROPOUT)
    batch, params = make_batch(SEGMENTS), random_params(config, seed=3)
    config = replace(config, compute_dtype="float64", residual_dtype="float64")
    assert (config.scan_unroll, config.remat_policy) == (0, "none")
    with in_float64():
        params = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float64), params)
        return config, params, batch, outputs_and_gradients(config, params, batch)


@contextlib.contextmanager
def in_float64():
    """What the models compute in float32 is computed in float64: rounding hides nothing."""
    with mock.patch.object(jnp, "float32", jnp.float64), jax.enable_x64(True):
        yield


@pytest.mark.parametrize(
    "variant",
    [
        dict(scan_unroll=3),
        dict(remat_policy="groups"),
        *(pytest.param(dict(remat_policy=name), marks=pytest.mark.slow) for name in REMAT_POLICIES if name != "groups"),
    ],
    ids=str,
)
def test_scan_equals_unrolled_equals_remat(plain_scan, error, variant):
    config, params, batch, (outputs, gradients) = plain_scan
    with in_float64():
        variant_outputs, variant_gradients = outputs_and_gradients(replace(config, **variant), params, batch)
    assert error(variant_outputs, outputs) < EXACT
    assert error(variant_gradients, gradients) < EXACT


def test_dropout_is_drawn_anew_in_every_layer_and_by_every_key(tiny):
    """With equal parameters in all layers and dropout as the only thing that differs, a shared mask
    would show.
    """
    config = tiny(residual="rezero", num_layers=2, **DROPOUT)
    encoder = Encoder(config, SCHEMES["rezero"].residual)
    x = jax.random.normal(jax.random.key(0), (2, 8, 12))
    segments = jnp.asarray(SEGMENTS)

    def zero_share(key):
        """The feed-forward biases set to one and its kernels to zero: each layer then adds exactly
        its dropout mask.
        """
        params = nn.unbox(encoder.init(jax.random.key(1), x, segments, None))["params"]
        params = jax.tree_util.tree_map_with_path(
            lambda path, leaf: jnp.full_like(leaf, path[-1].key in ("alpha", "down_bias")), params
        )
        out = encoder.apply({"params": params}, x, segments, key)
        return (out - x) * (1 - config.hidden_dropout)  # 0, 1 or 2 masks kept this element

    kept = np.round(np.asarray(jax.jit(zero_share)(jax.random.key(0))))
    shares = [float((kept == count).mean()) for count in (0, 1, 2)]
    # Two independent masks that keep 0.7: 0.09, 0.42, 0.49. One shared mask: 0.3, 0, 0.7.
    np.testing.assert_allclose(shares, [0.09, 0.42, 0.49], atol=0.12)
    other = np.round(np.asarray(jax.jit(zero_share)(jax.random.key(1))))
    assert not np.array_equal(kept, other)


# A plain one; one that counts its layers, with a final LayerNorm.
@pytest.mark.parametrize("residual", ["post_ln", "ln_scaling"])
def test_equals_a_python_loop_over_layers(tiny, random_like, error, residual):
    config = tiny(residual=residual)
    strategy = SCHEMES[residual].residual
    encoder, layer = Encoder(config, strategy), Layer(config, strategy, encoder_stack(config))
    segments = jnp.asarray(SEGMENTS)
    mask = attention_mask(segments, causal=False)
    x = jax.random.normal(jax.random.key(0), (2, 8, 12))
    abstract = jax.eval_shape(lambda: encoder.init(jax.random.key(1), x, segments, None))["params"]
    params = random_like(abstract)

    out = jax.jit(lambda params: encoder.apply({"params": params}, x, segments, None))(params)

    one_layer = jax.jit(lambda params, stream: layer.apply({"params": params}, stream, None, Context(mask))[0])
    stream = strategy.start(config, encoder_stack(config), x, segments > 0)
    for index in range(config.num_layers):
        stream = one_layer(jax.tree.map(lambda stacked: stacked[index], params["layers"]), stream)  # noqa: B023
    expected = stream.x
    if strategy.final_norm:
        expected = norm(expected, params["final_norm"], config.layer_norm_epsilon)
    assert error(out, expected) < OUTPUTS


@pytest.fixture(scope="module")
def padded(tiny, make_batch, random_params):
    """A model that predicts every position; no branch of it silent."""
    config = tiny(residual="pre_ln")
    batch = make_batch(SEGMENTS, predicted=8) | {"targets_position": np.tile(np.arange(8, dtype=np.int32), (2, 1))}
    params = random_params(config)
    model = build_model(config)
    return jax.jit(lambda batch: forward(model, params, batch, None)), batch


def test_padding_and_what_stands_in_it_change_nothing(padded, error):
    run, batch = padded
    real = batch["inputs_segmentation"] > 0
    outputs = run(batch)
    rng = np.random.default_rng(3)
    garbage = {
        key: np.where(real, batch[key], rng.integers(0, high, real.shape)).astype(np.int32)
        for key, high in (("inputs", 48), ("inputs_position", 16), ("token_types", 2))
    }
    wider = {key: np.pad(rows, ((0, 0), (0, 5))) if rows.ndim == 2 else rows for key, rows in batch.items()}
    for other in (batch | garbage, wider):
        changed = run(other)
        logits = changed.logits[:, : real.shape[1]]
        assert error(logits[real], outputs.logits[real]) < OUTPUTS
        assert error(changed.next_sentence, outputs.next_sentence) < OUTPUTS
        if other is not wider:  # the garbage was there, and was seen where it stood
            assert error(logits[~real], outputs.logits[~real]) > 1e-2


def test_packed_segments_equal_rows_of_their_own(padded, error):
    run, batch = padded
    packed = run(batch).logits[0, :7]  # 1 1 1 2 2 2 2, then padding
    apart = {key: np.zeros_like(rows) for key, rows in batch.items()}
    apart["targets_position"] = batch["targets_position"]
    for row, start, end in ((0, 0, 3), (1, 3, 7)):
        for key in ("inputs", "inputs_position", "token_types"):
            apart[key][row, : end - start] = batch[key][0, start:end]
        apart["inputs_segmentation"][row, : end - start] = 1
    logits = run(apart).logits
    assert error(jnp.concatenate([logits[0, :3], logits[1, :4]]), packed) < OUTPUTS
