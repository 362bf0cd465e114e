"""The encoder-decoder against loops over layers and heads; cached decoding; one table."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mhsh.models.build import build_model, forward
from mhsh.models.generation import decode_step, decoding_params, empty_cache, encode
from mhsh.models.layers import sinusoids
from mhsh.models.types import decoder_stack
from tests.compiling import compiled_forward
from tests.models.plain import JOINS, encoder_decoder, norm

TOLERANCE = 1e-5

# Two packed pairs and a short one; the sides differ in length, and so do the pairs.
PACKED = ([[1, 1, 1, 2, 2, 0], [1, 1, 0, 0, 0, 0]], [[1, 1, 2, 2, 2], [1, 1, 1, 0, 0]])


def run(config, params, batch, dropout=None):
    """The logits, compiled."""
    return compiled_forward(config)(params, batch, dropout).logits


def plain_logits(config, params, batch):
    """The whole model as loops over layers and heads; alphas of DeepNorm for two and three
    layers.
    """
    join, epsilon = JOINS[config.residual], config.layer_norm_epsilon
    alphas = {"encoder": 0.81 * 48 ** (1 / 16), "decoder": 9**0.25}
    joins = {stack: lambda x, f, p, alpha=alpha: join(x, f, p, alpha, epsilon) for stack, alpha in alphas.items()}

    def end(stack, x):
        return norm(x, params[stack]["final_norm"], epsilon) if config.residual == "pre_ln" else x

    return encoder_decoder(config, params, jax.tree.map(jnp.asarray, dict(batch)), joins, end) @ params["embeddings"]["token"].T


@pytest.mark.parametrize(
    ("residual", "num_heads"),
    [
        ("deepnorm", 1),  # its alphas depend on both depths
        pytest.param("pre_ln", 2, marks=pytest.mark.slow),  # with a final LayerNorm
    ],
)
def test_equals_loops_over_layers_and_heads(tiny_seq2seq, make_pairs, random_params, error, residual, num_heads):
    """Of packed and padded pairs, which the loops keep apart by their masks."""
    config = tiny_seq2seq(residual=residual, num_heads=num_heads, positions="learned")
    batch, params, model = make_pairs(*PACKED), random_params(config), build_model(config)
    real = batch["targets_segmentation"] > 0
    weighting = jax.random.normal(jax.random.key(0), (*real.shape, config.vocab_size)) * real[:, :, None]

    def weighted(logits):
        def value(params):
            out = logits(params)
            return (out * weighting).sum(), out[real]

        return jax.jit(jax.grad(value, has_aux=True))(params)

    gradients, out = weighted(lambda params: forward(model, params, batch, None).logits)
    expected_gradients, expected = weighted(lambda params: plain_logits(config, params, batch))
    assert error(out, expected) < TOLERANCE
    assert error(gradients, expected_gradients) < TOLERANCE


def decoded(config, params, batch, length):
    """The logits [B,K,T,V] of K = 3 hypotheses a sentence, one position after another, and the
    hypotheses [B,K,T].
    """
    model, rows = build_model(config), len(batch["inputs"])
    tokens = np.random.default_rng(1).integers(3, config.vocab_size, (rows, 3, length)).astype(np.int32)
    source = {key: batch[key] for key in ("inputs", "inputs_position", "inputs_segmentation")}

    @jax.jit
    def decode(params, source, tokens):
        memory, weights = encode(model, params, source), decoding_params(config, params)

        def step(caches, position):
            # Every hypothesis reads what it wrote.
            own = jnp.eye(3, dtype=bool)[None, :, None] & (jnp.arange(length) <= position)[:, None]
            ancestry_mask = jnp.broadcast_to(own, (rows, 3, length, 3))
            logits, caches = decode_step(model, weights, tokens[:, :, position], position, ancestry_mask, caches, memory)
            return caches, logits

        caches = (empty_cache(config, rows, 3 * length),) * decoder_stack(config).num_layers
        _, logits = jax.lax.scan(step, caches, jnp.arange(length))
        return jnp.moveaxis(logits, 0, 2)

    return decode(params, source, tokens), tokens


@pytest.mark.parametrize(
    ("residual", "num_heads"),
    [
        ("ln_scaling", 1),  # which counts its layers
        ("hybrid_norm", 2),  # which normalises what is cached
    ],
)
def test_cached_decoding_equals_the_whole_forward_pass(tiny_seq2seq, make_pairs, random_params, error, residual, num_heads):
    positions = "learned" if num_heads == 1 else "sinusoidal"
    config = tiny_seq2seq(residual=residual, num_heads=num_heads, positions=positions)
    batch = make_pairs([[1] * 5, [1, 1, 0, 0, 0]], [[1] * 7, [1] * 7])
    params = random_params(config)
    logits, tokens = decoded(config, params, batch, 7)
    rows = {key: np.repeat(values, 3, axis=0) for key, values in batch.items()}  # one for each hypothesis
    whole = run(config, params, rows | {"decoder_inputs": tokens.reshape(6, 7)}).reshape(logits.shape)
    for hypothesis in range(3):
        assert error(logits[:, hypothesis], whole[:, hypothesis]) < TOLERANCE
    assert error(logits[:, 0], logits[:, 1]) > 1e-2


def test_decoding_in_bf16_has_a_bf16_cache_and_fp32_logits(tiny_seq2seq, make_pairs, random_params):
    config = tiny_seq2seq(compute_dtype="bfloat16", residual="admin")
    batch = make_pairs([[1] * 5], [[1] * 4])
    params = random_params(config)
    assert {leaf.dtype.name for leaf in jax.tree.leaves(empty_cache(config, 1, 12))} == {"bfloat16"}
    logits, tokens = decoded(config, params, batch, 4)
    whole = run(config, params, batch | {"decoder_inputs": tokens[:, 0]})
    assert logits.dtype == "float32"
    assert np.abs(logits[:, 0] - whole).max() < 0.05 * np.abs(whole).max()


def test_sinusoidal_positions_are_added_where_the_tables_would_be(tiny_seq2seq, make_pairs, random_params, error):
    """One table of tokens serves both sides and the output."""
    config, batch = tiny_seq2seq(), make_pairs(*PACKED)
    params, table = random_params(config), jnp.asarray(sinusoids(config.max_positions, config.embed_dim))
    assert set(params) == {"embeddings", "encoder", "decoder"} and set(params["embeddings"]) == {"token"}
    learned = params | {"embeddings": params["embeddings"] | {"source_position": table, "target_position": table}}
    assert error(run(config, params, batch), run(tiny_seq2seq(positions="learned"), learned, batch)) < 1e-6


def test_dropout_acts_only_when_asked(tiny_seq2seq, make_pairs, random_params, error):
    config, batch = tiny_seq2seq(hidden_dropout=0.5), make_pairs(*PACKED)
    params = random_params(config)
    plain = run(tiny_seq2seq(), params, batch)
    np.testing.assert_array_equal(run(config, params, batch), plain)
    one, other = (run(config, params, batch, jax.random.key(seed)) for seed in (0, 1))
    assert error(one, plain) > 1e-2 and error(other, one) > 1e-2
