"""Initialisers: with the fans of the ungrouped shape, every grouping of a shipped config starts
alike; positions and activations against their formulas.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from msgspec.structs import replace

from mhsh.config.schema import ModelConfig
from mhsh.config.shapes import regroup
from mhsh.models import layers
from mhsh.models.attention import MultiHeadAttention, attention_mask
from mhsh.models.layers import ACTIVATIONS, FeedForward, sinusoids
from tests.conftest import MakeConfig

ROWS, LENGTH, DRAWS = 8, 64, 4
SHIPPED = [("quickstart", "6l4h_post_ln", "xavier"), ("evidence", "heads", "bert"), ("translation", "tiny", "fairseq")]


def groupings(model: ModelConfig) -> list[ModelConfig]:
    return [regroup(model, n) for n in range(model.num_heads, 0, -1) if model.num_heads % n == 0]


def start(model: ModelConfig) -> tuple[float, float, float]:
    """The variances of attention and of feed-forward outputs, summed over the layers, and the
    deviation of the attention logits; on inputs of unit variance.
    """
    model = replace(model, compute_dtype="float32", residual_dtype="float32")
    attention, feed_forward = MultiHeadAttention(model), FeedForward(model)
    mask = attention_mask(jnp.ones((ROWS, LENGTH), jnp.int32), causal=False)

    @jax.jit
    def one_layer(key: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        x_key, attention_key, feed_forward_key = jax.random.split(key, 3)
        x = jax.random.normal(x_key, (ROWS, LENGTH, model.embed_dim))
        attended, variables = attention.init_with_output(attention_key, x, None, mask, None)
        params = nn.unbox(variables["params"])
        query, key = (jnp.einsum("BTD,DNH->BTNH", x, params[f"{name}_kernel"]) for name in ("query", "key"))
        logits = jnp.einsum("BTNH,BSNH->BNTS", query, key) * model.head_dim**-0.5
        fed, _ = feed_forward.init_with_output(feed_forward_key, x, None)
        return jnp.var(attended), jnp.var(fed), jnp.var(logits)

    # As many heads and hidden units are drawn for every grouping.
    draws = round(DRAWS * model.layers_per_group)
    attended, fed, logits = np.mean([one_layer(key) for key in jax.random.split(jax.random.key(0), draws)], axis=0)
    return model.num_layers * attended, model.num_layers * fed, logits**0.5


@pytest.mark.parametrize(("task", "variant", "init"), SHIPPED)
def test_all_groupings_start_alike(make_config: MakeConfig, task: str, variant: str, init: str) -> None:
    model = make_config(task, variant, **{"model.init": init, "model.fans": "ungrouped"}).model
    found = np.array([start(each) for each in groupings(model)])
    np.testing.assert_allclose(found / found[0], 1, rtol=0.1)


def test_with_their_own_fans_they_do_not(make_config: MakeConfig) -> None:
    model = make_config("evidence", "heads", **{"model.fans": "own"}).model
    found = np.array([start(model), start(regroup(model, 1))])
    assert (found[1] / found[0] > 1.5).all()


@pytest.mark.parametrize(("kernel", "fans"), [("query_kernel", 4), ("value_kernel", 4), ("out_kernel", 2)])
def test_fairseq_draws_queries_keys_and_values_as_one_matrix(make_config: MakeConfig, kernel: str, fans: int) -> None:
    """Uniform between +-sqrt(6 / (fans D)), where N H = D."""
    model = make_config("quickstart", "6l4h_post_ln", **{"model.init": "fairseq"}).model
    x = jnp.zeros((1, 1, model.embed_dim))
    params = MultiHeadAttention(model).init(
        jax.random.key(0), x, None, attention_mask(jnp.ones((1, 1), jnp.int32), causal=False), None
    )["params"]
    values = np.asarray(params[kernel].value)
    limit = (6 / (fans * model.embed_dim)) ** 0.5
    assert 0.98 * limit < np.abs(values).max() <= limit
    assert values.std() == pytest.approx(limit / 3**0.5, rel=0.05)


def test_sinusoids_are_those_of_the_paper_in_another_order() -> None:
    table = sinusoids(50, 10)
    interleaved = np.zeros((50, 10))
    for t in range(50):
        for i in range(5):
            interleaved[t, 2 * i] = math.sin(t / 10000 ** (2 * i / 10))
            interleaved[t, 2 * i + 1] = math.cos(t / 10000 ** (2 * i / 10))
    np.testing.assert_allclose(table, np.concatenate([interleaved[:, 0::2], interleaved[:, 1::2]], axis=1), atol=1e-6)
    assert sinusoids(50, 9).shape == (50, 9)


@pytest.mark.parametrize("name", ["gelu", "gelu_tanh"])
def test_activations_and_their_derivatives_are_jaxs_own(name: str) -> None:
    x, approximate = jnp.linspace(-12.0, 12.0, 100_001), name == "gelu_tanh"
    values, slopes = jax.vmap(jax.value_and_grad(ACTIVATIONS[name]))(x)
    plain, plain_slopes = jax.vmap(jax.value_and_grad(lambda value: jax.nn.gelu(value, approximate=approximate)))(x)
    assert np.abs(values - plain).max() < 1e-6 and np.abs(slopes - plain_slopes).max() < 1e-6


def test_rows_as_one_axis_transpose_nothing_and_give_the_same_bits(
    make_config: MakeConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = replace(make_config("bert", "2l8h").model, compute_dtype="float32")
    x, found = jax.random.normal(jax.random.key(0), (2, 8, model.embed_dim)), {}
    params = FeedForward(model).init(jax.random.key(1), x, None)
    for platform in ("cpu", "tpu"):
        monkeypatch.setattr(layers, "current_platform", lambda name=platform: name)
        step = jax.jit(jax.value_and_grad(lambda params, x: (FeedForward(model).apply(params, x, None) ** 2).sum(), argnums=(0, 1)))
        program = step.lower(params, x).compile()
        found[platform] = program.as_text().count(" transpose("), program(params, x)
    assert (found["cpu"][0], found["tpu"][0]) == (0, 2)
    jax.tree.map(np.testing.assert_array_equal, found["cpu"][1], found["tpu"][1])
