"""BERT: its heads and tied table, initialisation, dropout sites, dtypes, axis names. Its outputs
are compared with transformers (tests/interop/test_golden.py) and full passes (test_generation.py).
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from mhsh.config.entries import SCHEMES
from mhsh.models.build import boxed_parameters, build_model, forward
from mhsh.models.layers import sinusoids
from mhsh.models.losses import compute_metrics
from mhsh.models.parameters import AXES
from tests.compiling import compiled_forward

SEGMENTS = [[1, 1, 1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 1, 0, 0, 0]]


def run(config, params, batch, dropout=None):
    """The outputs, compiled."""
    return compiled_forward(config)(params, batch, dropout)


def test_only_the_masked_positions_meet_the_vocabulary_with_the_logits_that_all_would_have(tiny, make_batch, random_params, error):
    config, batch = tiny(), make_batch(SEGMENTS)
    params = random_params(config)
    everywhere = batch | {"targets_position": np.tile(np.arange(8, dtype=np.int32), (2, 1))}
    outputs, whole = run(config, params, batch), run(config, params, everywhere)
    assert outputs.logits.shape == (2, 3, 48) and whole.logits.shape == (2, 8, 48)
    chosen = np.stack([row[positions] for row, positions in zip(whole.logits, batch["targets_position"], strict=True)])
    assert error(outputs.logits, chosen) < 1e-6
    assert error(outputs.next_sentence, whole.next_sentence) < 1e-6
    # No array of the program holds V numbers for each of the T positions.
    jaxpr = jax.make_jaxpr(lambda params: forward(build_model(config), params, batch, None))(params)
    shapes = {variable.aval.shape for equation in jaxpr.eqns for variable in equation.outvars}
    assert (2, 3, 48) in shapes
    assert not any(shape[-1:] == (48,) and 8 in shape[:-1] for shape in shapes)


def test_sinusoidal_positions_are_added_where_the_table_would_be(tiny, make_batch, random_params, error):
    config, batch = tiny(positions="sinusoidal"), make_batch(SEGMENTS)
    params = random_params(config)
    assert set(params["embeddings"]) == {"token", "token_type", "norm"}
    learned = params | {"embeddings": params["embeddings"] | {"position": jnp.asarray(sinusoids(config.max_positions, 12))}}
    assert error(run(config, params, batch), run(tiny(), learned, batch)) < 1e-6


@pytest.mark.parametrize("init", ["bert", "xavier"])
def test_initial_values(tiny, make_batch, fresh, init):
    """Of a model wide enough for statistics; no two layers and no two heads start alike."""
    config = tiny(init=init, num_heads=2, head_dim=8, embed_dim=32, mlp_dim=64, num_layers=4)
    paths = jax.tree_util.tree_leaves_with_path(fresh(config, make_batch(SEGMENTS)))
    leaves = {"/".join(key.key for key in path): np.asarray(leaf) for path, leaf in paths}
    d, n, h, f = config.embed_dim, config.num_heads, config.head_dim, config.mlp_dim
    # fan-in + fan-out of one layer's kernel
    fans = {f"{name}_kernel": d + n * h for name in ("query", "key", "value", "out")}
    fans |= {"up_kernel": d + f, "down_kernel": f + d, "next_sentence/kernel": d + 2}
    fans |= {"prediction/kernel": d + d, "pooler/kernel": d + d}
    assert len(leaves) > 20
    for path, leaf in leaves.items():
        if path.endswith("bias"):
            assert (leaf == 0).all(), path
        elif path.endswith("scale"):
            assert (leaf == 1).all(), path
        elif config.init == "bert":
            assert np.abs(leaf).max() <= 0.04, path
            # A normal cut at two deviations has 0.8796 of its deviation left; few numbers, wide
            # margin.
            assert leaf.std() == pytest.approx(0.02 * 0.8796, rel=5 / math.sqrt(2 * leaf.size)), path
        elif path.startswith("embeddings"):
            assert leaf.std() == pytest.approx(d**-0.5, rel=5 / math.sqrt(2 * leaf.size)), path
            assert np.abs(leaf).max() > 2 * d**-0.5 or leaf.size < 1000, path  # not truncated
        else:
            bound = math.sqrt(6 / next(fan for name, fan in fans.items() if path.endswith(name)))
            assert 0.9 * bound < np.abs(leaf).max() <= bound, path
            assert leaf.std() == pytest.approx(bound / math.sqrt(3), rel=5 / math.sqrt(2 * leaf.size)), path
    stacked = {path: leaf for path, leaf in leaves.items() if path.startswith("encoder") and path.endswith("kernel")}
    assert len(stacked) == 6
    for path, leaf in stacked.items():
        assert len({layer.tobytes() for layer in leaf}) == 4, path
    query = stacked["encoder/layers/attention/query_kernel"]
    assert not np.allclose(query[:, :, 0], query[:, :, 1])
    assert not np.array_equal(query, stacked["encoder/layers/attention/key_kernel"])


@pytest.mark.parametrize("site", ["hidden_dropout", "attention_dropout", "mlp_dropout", "embedding_dropout"])
def test_each_dropout_acts_alone_and_only_when_asked(tiny, make_batch, random_params, error, site):
    config, batch = tiny(**{site: 0.5}), make_batch(SEGMENTS)
    params = random_params(config)
    plain = run(tiny(), params, batch)
    jax.tree.map(np.testing.assert_array_equal, run(config, params, batch), plain)
    one, again, other = (run(config, params, batch, jax.random.key(seed)) for seed in (0, 0, 1))
    jax.tree.map(np.testing.assert_array_equal, one, again)
    assert error(one, plain) > 1e-2
    assert error(other, one) > 1e-2


@pytest.mark.parametrize("residual", SCHEMES.names())
def test_every_parameter_is_fp32_and_has_axis_names_that_the_mesh_table_knows(tiny, tiny_seq2seq, residual):
    for make in (tiny, tiny_seq2seq):
        boxed = boxed_parameters(make(residual=residual, compute_dtype="bfloat16", positions="learned"))
        boxes = jax.tree_util.tree_leaves_with_path(boxed, is_leaf=lambda leaf: isinstance(leaf, nn.Partitioned))
        assert len(boxes) > 20
        for path, box in boxes:
            name = jax.tree_util.keystr(path)
            assert isinstance(box, nn.Partitioned) and len(box.names) == len(box.value.shape), name
            assert box.value.dtype == "float32", name
            assert set(box.names) <= set(AXES), name
            assert (box.names[:1] == ("layers",)) == ("layers" in name), name


def test_an_answer_is_never_in_the_padding(tiny, make_batch, random_params):
    config, batch = tiny(objective="span", next_sentence=False), make_batch(SEGMENTS)
    params = random_params(config)
    assert set(params) == {"embeddings", "encoder", "span"}
    logits = np.asarray(run(config, params, batch).logits)
    assert logits.shape == (2, 2, 8)
    shares = np.asarray(jax.nn.softmax(logits, axis=-1))
    assert (shares[1, :, 5:] == 0).all() and (shares[1, :, :5] > 0).all() and (shares[0] > 0).all()
    # What stands in the padding changes neither the logits of the others nor the loss.
    garbage = batch | {"inputs": np.where(batch["inputs_segmentation"] > 0, batch["inputs"], 7).astype(np.int32)}
    targets = {"targets": np.array([[1, 3], [0, 4]], np.int32), "weights": np.ones((2, 2), np.float32)}
    losses = [float(compute_metrics(run(config, params, each), targets)["target_loss"].value()) for each in (batch, garbage)]
    assert np.isfinite(losses[0]) and losses[0] == pytest.approx(losses[1], rel=1e-6)
