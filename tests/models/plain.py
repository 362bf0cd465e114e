"""A Transformer in its slowest form, from the formulas: heads and layers one after another. For
numpy arrays in numpy, for JAX arrays in JAX. Arrays are [B,T,D], parameters those of the modules.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np

from mhsh.config.entries import SCHEMES
from mhsh.models.transformer import Encoder

SEGMENTS = np.array([[1, 1, 1, 2, 2, 2, 2, 0], [1, 1, 1, 1, 1, 1, 0, 0]])


def library(x):
    return jnp if isinstance(x, jax.Array) else np


def norm(x, params, epsilon=1e-12):
    """(x - mean) / sqrt(var + epsilon) * scale + bias, over the last axis."""
    centred = x - x.mean(axis=-1, keepdims=True)
    deviation = library(x).sqrt((centred**2).mean(axis=-1, keepdims=True) + epsilon)
    return centred / deviation * params["scale"] + params["bias"]


def may_look(segments, source_segments, *, causal=False):
    """[B,T,S]: whether a query attends to a key: same segment, no padding (0), not the future."""
    look = (segments[:, :, None] == source_segments[:, None]) & (source_segments[:, None] > 0)
    return look & np.tri(segments.shape[1], dtype=bool) if causal else look


def head(params, i, x, source, look):
    """softmax(Q W_i^Q (K W_i^K)^T / sqrt(H)) V W_i^V."""
    query, key, value = (
        array @ params[f"{name}_kernel"][:, i] + params[f"{name}_bias"][i]
        for name, array in (("query", x), ("key", source), ("value", source))
    )
    scores = library(x).where(look, query @ key.swapaxes(-1, -2) / math.sqrt(key.shape[-1]), -1e30)
    exponentials = library(x).exp(scores - scores.max(axis=-1, keepdims=True))
    return exponentials / exponentials.sum(axis=-1, keepdims=True) @ value


def attention(params, x, source, look):
    """The sum of the heads, each with its own output matrix [H,D]."""
    heads = range(params["out_kernel"].shape[0])
    return sum((head(params, i, x, source, look) @ params["out_kernel"][i] for i in heads), start=params["out_bias"])


def feed_forward(params, x, activation=lambda hidden: hidden * (hidden > 0)):
    return activation(x @ params["up_kernel"] + params["up_bias"]) @ params["down_kernel"] + params["down_bias"]


# How f joins x, with the parameters p of the residual scheme; alpha is the scheme's constant.
JOINS = {
    "post_ln": lambda x, f, p, alpha, epsilon: norm(x + f(x), p["norm"], epsilon),
    "pre_ln": lambda x, f, p, alpha, epsilon: x + f(norm(x, p["norm"], epsilon)),
    "admin": lambda x, f, p, alpha, epsilon: norm(p["omega"] * x + f(x), p["norm"], epsilon),
    "deepnorm": lambda x, f, p, alpha, epsilon: norm(alpha * x + f(x), p["norm"], epsilon),
    "rezero": lambda x, f, p, alpha, epsilon: x + p["alpha"] * f(x),
    "keel": lambda x, f, p, alpha, epsilon: norm(alpha * x + f(norm(x, p["inner_norm"], epsilon)), p["norm"], epsilon),
    "peri_ln": lambda x, f, p, alpha, epsilon: x + norm(f(norm(x, p["norm"], epsilon)), p["output_norm"], epsilon),
    "ln_scaling": lambda x, f, p, alpha, epsilon: x + f(norm(x, p["norm"], epsilon)) / alpha,
    "completep": lambda x, f, p, alpha, epsilon: x + alpha * f(norm(x, p["norm"], epsilon)),
    "hybrid_norm": lambda x, f, p, alpha, epsilon: x + f(x),  # around attention
}


def run_stack(params, sublayers, x, join):
    """The layers of an encoder or a decoder; `join(x, f, p)` adds a sublayer to the stream."""
    for index in range(len(params["layers"]["feed_forward"]["up_bias"])):
        layer = jax.tree.map(lambda stacked: stacked[index], params["layers"])  # noqa: B023
        for name, function in sublayers.items():
            x = join(x, lambda x: function(layer[name], x), layer[f"{name}_residual"])  # noqa: B023
    return x


def encoder_decoder(config, params, batch, joins, end=lambda stack, x: x):
    """The decoder's output; `joins` by stack, and `end` follows the last layer of each."""
    table, sources, targets = params["embeddings"], batch["inputs_segmentation"], batch["targets_segmentation"]

    def embed(side, tokens, positions):
        return math.sqrt(config.embed_dim) * table["token"][batch[tokens]] + table[f"{side}_position"][batch[positions]]

    within = may_look(sources, sources)
    sublayers = {"attention": lambda p, x: attention(p, x, x, within), "feed_forward": feed_forward}
    x = run_stack(params["encoder"], sublayers, embed("source", "inputs", "inputs_position"), joins["encoder"])
    encoded = end("encoder", x)
    own, across = may_look(targets, targets, causal=True), may_look(targets, sources)
    sublayers = {
        "self_attention": lambda p, y: attention(p, y, y, own),
        "cross_attention": lambda p, y: attention(p, y, encoded, across),
        "feed_forward": feed_forward,
    }
    y = run_stack(params["decoder"], sublayers, embed("target", "decoder_inputs", "targets_position"), joins["decoder"])
    return end("decoder", y)


def encoder_errors(config, random_like, error, plain):
    """How far an encoder on SEGMENTS is from plain(params, x) of the same parameters: its weighted
    output with all gradients in float32, and the output in float64.
    """
    encoder = Encoder(config, SCHEMES[config.residual].residual)
    x, segments = jax.random.normal(jax.random.key(0), (*SEGMENTS.shape, config.embed_dim)), jnp.asarray(SEGMENTS)
    params = random_like(jax.eval_shape(lambda: encoder.init(jax.random.key(1), x, segments, None))["params"])
    weights = jax.random.normal(jax.random.key(2), x.shape) * (SEGMENTS > 0)[:, :, None]

    def of(run):
        return jax.jit(jax.value_and_grad(lambda params, x: (weights * run(params, x)).sum(), argnums=(0, 1)))(params, x)

    found = of(lambda params, x: encoder.apply({"params": params}, x, segments, None))
    exact = plain(jax.tree.map(np.float64, params), np.float64(x))
    return error(found, of(plain)), error(found[0], (np.float64(weights) * exact).sum())
