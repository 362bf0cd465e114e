"""The encoder-decoder against loops over layers and heads; causality, packing, padding; cached
decoding; the shared table.
"""

from __future__ import annotations

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen as nn
from msgspec.structs import replace

from mhsh.config.schema import RESIDUALS
from mhsh.config.shapes import regroup
from mhsh.models.build import build_model, forward
from mhsh.models.generation import decode_step, decoding_params, empty_cache, encode
from mhsh.models.layers import sinusoids
from mhsh.models.losses import compute_metrics, loss_weights, total_loss
from mhsh.training.sharding import AXIS_RULES
from tests.compiling import compiled_forward

TOLERANCE = 1e-5

# Two packed pairs and a short one; the sides differ in length, and so do the pairs.
PACKED = ([[1, 1, 1, 2, 2, 0], [1, 1, 0, 0, 0, 0]], [[1, 1, 2, 2, 2], [1, 1, 1, 0, 0]])
DROPOUT = dict(hidden_dropout=0.3, attention_dropout=0.3, mlp_dropout=0.3, embedding_dropout=0.3)


def run(config, params, batch, dropout=None):
    """The logits, compiled."""
    return compiled_forward(config)(params, batch, dropout).logits


def batch_loss(outputs, batch):
    return total_loss(compute_metrics(outputs, batch, 0.1), loss_weights(batch))


def norm(x, params, epsilon=1e-5):
    centred = x - x.mean(axis=-1, keepdims=True)
    return centred / jnp.sqrt((centred**2).mean(axis=-1, keepdims=True) + epsilon) * params["scale"] + params["bias"]


def attend(params, x, source, may_look):
    """One row: heads one after another, every head with its own output matrix."""
    _, num_heads, head_dim = params["query_kernel"].shape
    out = params["out_bias"]
    for i in range(num_heads):
        query = x @ params["query_kernel"][:, i] + params["query_bias"][i]
        key = source @ params["key_kernel"][:, i] + params["key_bias"][i]
        value = source @ params["value_kernel"][:, i] + params["value_bias"][i]
        scores = jnp.where(may_look, query @ key.T / math.sqrt(head_dim), -1e30)
        exponentials = jnp.exp(scores - scores.max(axis=1, keepdims=True))
        out = out + exponentials / exponentials.sum(axis=1, keepdims=True) @ value @ params["out_kernel"][i]
    return out


def feed(params, x):
    return jnp.maximum(x @ params["up_kernel"] + params["up_bias"], 0) @ params["down_kernel"] + params["down_bias"]


# f joins x, with the parameters p of the residual and DeepNorm's alpha.
JOINS = {
    "post_ln": lambda x, f, p, alpha: norm(x + f(x), p["norm"]),
    "pre_ln": lambda x, f, p, alpha: x + f(norm(x, p["norm"])),
    "admin": lambda x, f, p, alpha: norm(p["omega"] * x + f(x), p["norm"]),
    "deepnorm": lambda x, f, p, alpha: norm(alpha * x + f(x), p["norm"]),
    "rezero": lambda x, f, p, alpha: x + p["alpha"] * f(x),
}


def plain_stack(params, num_layers, sublayers, x, residual, alpha):
    for index in range(num_layers):
        layer = jax.tree.map(lambda stacked: stacked[index], params["layers"])  # noqa: B023
        for name, function in sublayers:
            x = JOINS[residual](x, lambda x: function(layer[name], x), layer[f"{name}_residual"], alpha)  # noqa: B023
    return norm(x, params["final_norm"]) if residual == "pre_ln" else x


def plain_logits(config, params, batch):
    """The whole model as loops over layers and heads, row by row; alphas of DeepNorm for two and
    three layers.
    """
    table, scale = params["embeddings"], math.sqrt(config.embed_dim)

    def row_logits(row):
        source, target = row["inputs_segmentation"], row["targets_segmentation"]
        look_source = (source[:, None] == source[None]) & (source[None] > 0)
        look_across = (target[:, None] == source[None]) & (source[None] > 0)
        look_target = (target[:, None] == target[None]) & (target[None] > 0) & np.tri(len(target), dtype=bool)
        x = scale * table["token"][row["inputs"]] + table["source_position"][row["inputs_position"]]
        sublayers = [("attention", lambda p, x: attend(p, x, x, look_source)), ("feed_forward", feed)]
        x = plain_stack(params["encoder"], 2, sublayers, x, config.residual, 0.81 * 48 ** (1 / 16))
        y = scale * table["token"][row["decoder_inputs"]] + table["target_position"][row["targets_position"]]
        sublayers = [
            ("self_attention", lambda p, y: attend(p, y, y, look_target)),
            ("cross_attention", lambda p, y: attend(p, y, x, look_across)),
            ("feed_forward", feed),
        ]
        y = plain_stack(params["decoder"], 3, sublayers, y, config.residual, 9**0.25)
        return y @ table["token"].T

    return jax.vmap(row_logits)(jax.tree.map(jnp.asarray, dict(batch)))


@pytest.mark.parametrize(
    ("residual", "num_heads"),
    [
        ("deepnorm", 1),  # its alphas depend on both depths
        *(
            pytest.param(name, heads, marks=pytest.mark.slow)
            for name, heads in (("pre_ln", 2), ("post_ln", 1), ("admin", 2), ("rezero", 2))
        ),
    ],
    ids=str,
)
def test_equals_loops_over_layers_and_heads(tiny_seq2seq, make_pairs, random_params, error, residual, num_heads):
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


@functools.cache
def value_and_gradient(config):
    """The loss of params and a batch and its gradient, under one dropout key, compiled."""
    model = build_model(config)
    return jax.jit(jax.value_and_grad(lambda params, batch: batch_loss(forward(model, params, batch, jax.random.key(5)), batch)))


@pytest.mark.slow  # tests/models/test_transformer.py: both stacks are scanned by the same code
@pytest.mark.parametrize(
    ("variant", "dropout"),
    [
        (dict(remat_policy="full"), DROPOUT),
        pytest.param(dict(scan_unroll=2), {}, marks=pytest.mark.slow),
        pytest.param(dict(scan_unroll=2), DROPOUT, marks=pytest.mark.slow),
        pytest.param(dict(remat_policy="dots_no_batch"), DROPOUT, marks=pytest.mark.slow),
    ],
    ids=["full", "unrolled", "unrolled with dropout", "dots_no_batch"],
)
def test_scan_equals_unrolled_equals_remat(tiny_seq2seq, make_pairs, random_params, error, variant, dropout):
    config, batch = tiny_seq2seq(residual="admin", **dropout), make_pairs(*PACKED)
    params = random_params(config)

    changed = value_and_gradient(replace(config, **variant))(params, batch)
    assert error(changed, value_and_gradient(config)(params, batch)) < TOLERANCE


def test_no_position_sees_the_future_or_another_pair(tiny_seq2seq, make_pairs, random_params):
    """d logits[t] / d position vector, every token of both sides standing at a position of its
    own.
    """
    config = tiny_seq2seq(positions="learned", residual="pre_ln")
    sources, targets = np.array([1, 1, 2, 2, 2, 3, 0]), np.array([1, 1, 1, 2, 2, 3, 3, 0])
    batch = make_pairs([sources], [targets])
    batch |= {"inputs_position": np.arange(7, dtype=np.int32)[None], "targets_position": np.arange(8, dtype=np.int32)[None]}
    params, model = random_params(config), build_model(config)
    weighting = jax.random.normal(jax.random.key(0), (48,))

    def logits(source_position, target_position):
        table = params["embeddings"] | {"source_position": source_position, "target_position": target_position}
        return forward(model, params | {"embeddings": table}, batch, None).logits[0] @ weighting

    jacobians = jax.jit(jax.jacrev(logits, argnums=(0, 1)))(
        params["embeddings"]["source_position"], params["embeddings"]["target_position"]
    )
    real = targets > 0
    by_source, by_target = (np.abs(jacobian).max(axis=-1)[real] > 0 for jacobian in jacobians)
    np.testing.assert_array_equal(by_source[:, :7], targets[real, None] == sources[None])
    np.testing.assert_array_equal(by_target[:, :8], ((targets[:, None] == targets[None]) & np.tri(8, dtype=bool))[real])


@pytest.fixture(
    scope="module",
    params=["pre_ln", "admin", *(pytest.param(name, marks=pytest.mark.slow) for name in ("post_ln", "deepnorm", "rezero"))],
)
def packed(request, tiny_seq2seq, make_pairs, random_params):
    """A model, its logits of the packed batch, and the same three pairs in rows of
    their own with more padding.
    """
    config, batch = tiny_seq2seq(residual=request.param), make_pairs(*PACKED)
    params = random_params(config)
    apart = {key: np.zeros((3, 8), rows.dtype) for key, rows in batch.items()}
    for pair, (row, segment) in enumerate([(0, 1), (0, 2), (1, 1)]):
        for key, rows in batch.items():
            mine = batch["inputs_segmentation" if key.startswith("inputs") else "targets_segmentation"][row] == segment
            apart[key][pair, : mine.sum()] = 1 if key.endswith("segmentation") else rows[row, mine]
    return config, params, batch, run(config, params, batch), apart


def test_packed_rows_are_separate_rows_and_padding_changes_nothing(packed, error):
    config, params, batch, logits, apart = packed
    separate = run(config, params, apart)
    expected = jnp.concatenate([separate[0, :2], separate[1, :3], separate[2, :3]])
    assert error(jnp.concatenate([logits[0, :5], logits[1, :3]]), expected) < TOLERANCE
    outputs = compiled_forward(config)
    losses = [float(batch_loss(outputs(params, each, None), each)) for each in (batch, apart)]
    assert losses[0] == pytest.approx(losses[1], rel=TOLERANCE)


def test_what_stands_in_padding_changes_nothing(packed, error):
    config, params, batch, logits, _ = packed
    sides = {"inputs": ("inputs", "inputs_position"), "targets": ("decoder_inputs", "targets", "targets_position")}
    garbage = {
        key: np.where(batch[f"{side}_segmentation"] > 0, batch[key], 5).astype(np.int32)
        for side, keys in sides.items()
        for key in keys
    }
    real = batch["targets_segmentation"] > 0
    changed = run(config, params, batch | garbage)
    assert error(changed[real], logits[real]) < 1e-6
    assert error(changed[~real], logits[~real]) > 1e-2


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
            own = (
                jnp.eye(3, dtype=bool)[None, :, None] & (jnp.arange(length) <= position)[:, None]
            )  # every hypothesis what it wrote
            ancestry_mask = jnp.broadcast_to(own, (rows, 3, length, 3))
            logits, caches = decode_step(model, weights, tokens[:, :, position], position, ancestry_mask, caches, memory)
            return caches, logits

        _, logits = jax.lax.scan(step, (empty_cache(config, rows, 3 * length),) * config.num_decoder_layers, jnp.arange(length))
        return jnp.moveaxis(logits, 0, 2)

    return decode(params, source, tokens), tokens


@pytest.mark.parametrize(
    ("residual", "num_heads"),
    [
        ("pre_ln", 1),
        ("deepnorm", 2),
        ("ln_scaling", 1),  # which counts its layers
        ("hybrid_norm", 2),  # which normalises what is cached
        *(pytest.param(name, 1, marks=pytest.mark.slow) for name in ("post_ln", "admin", "deepnorm", "rezero", "keel", "peri_ln")),
        *(pytest.param(name, 2, marks=pytest.mark.slow) for name in ("post_ln", "pre_ln", "admin", "rezero")),
    ],
    ids=str,
)
def test_cached_decoding_equals_the_whole_forward_pass(tiny_seq2seq, make_pairs, random_params, error, residual, num_heads):
    config = tiny_seq2seq(residual=residual, num_heads=num_heads, positions="learned" if num_heads == 1 else "sinusoidal")
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


def test_one_table_serves_both_sides_and_the_output(tiny_seq2seq, make_pairs, fresh):
    config, batch = tiny_seq2seq(embed_dim=64, vocab_size=480), make_pairs(*PACKED)
    params = fresh(config, batch)
    assert set(params) == {"embeddings", "encoder", "decoder"}
    assert set(params["embeddings"]) == {"token"}
    table = params["embeddings"]["token"]
    assert table.std() == pytest.approx(64**-0.5, rel=0.05)
    model = build_model(config)

    def captured():
        _, state = model.apply({"params": params}, batch, None, capture_intermediates=lambda module, method: True)
        return state["intermediates"]

    seen = jax.jit(captured)()
    for method, tokens, positions in (("source", "inputs", "inputs_position"), ("target", "decoder_inputs", "targets_position")):
        expected = 8 * table[batch[tokens]] + sinusoids(16, 64)[batch[positions]]
        np.testing.assert_allclose(seen["embeddings"][method][0], expected, rtol=1e-5, atol=1e-6)
    hidden = seen["decoder"]["__call__"][0]
    np.testing.assert_allclose(seen["embeddings"]["logits"][0], hidden @ table.T, rtol=1e-4, atol=1e-5)


def test_sinusoids_are_those_of_the_paper_in_another_order():
    table = sinusoids(50, 10)
    interleaved = np.zeros((50, 10))
    for t in range(50):
        for i in range(5):
            interleaved[t, 2 * i] = math.sin(t / 10000 ** (2 * i / 10))
            interleaved[t, 2 * i + 1] = math.cos(t / 10000 ** (2 * i / 10))
    np.testing.assert_allclose(table, np.concatenate([interleaved[:, 0::2], interleaved[:, 1::2]], axis=1), atol=1e-6)
    assert sinusoids(50, 9).shape == (50, 9)


@pytest.mark.parametrize(
    "site", ["hidden_dropout", *(pytest.param(n, marks=pytest.mark.slow) for n in DROPOUT if n != "hidden_dropout")]
)
def test_each_dropout_acts_alone_and_only_when_asked(tiny_seq2seq, make_pairs, random_params, error, site):
    config, batch = tiny_seq2seq(**{site: 0.5}), make_pairs(*PACKED)
    params = random_params(config)
    plain = run(tiny_seq2seq(), params, batch)
    np.testing.assert_array_equal(run(config, params, batch), plain)
    one, other = (run(config, params, batch, jax.random.key(seed)) for seed in (0, 1))
    assert error(one, plain) > 1e-2
    assert error(other, one) > 1e-2


@pytest.mark.slow  # one that trains in every suite: tests/test_translation_runs.py
@pytest.mark.parametrize("residual", RESIDUALS)
@pytest.mark.parametrize("heads_per_layer", [2, 1])
def test_every_scheme_and_grouping_trains(tiny_seq2seq, make_pairs, fresh, residual, heads_per_layer):
    config = regroup(tiny_seq2seq(residual=residual, **dict.fromkeys(DROPOUT, 0.1)), heads_per_layer)
    batch, model, optimizer = make_pairs(*PACKED), build_model(config), optax.adam(3e-3)
    params = fresh(config, batch)
    depths = {stack: len(params[stack]["layers"]["feed_forward"]["up_bias"]) for stack in ("encoder", "decoder")}
    assert depths == {"encoder": 2 * 2 // heads_per_layer, "decoder": 3 * 2 // heads_per_layer}

    @jax.jit
    def train(params):
        def step(carry, key):
            params, state = carry
            loss, gradients = jax.value_and_grad(lambda p: batch_loss(forward(model, p, batch, key), batch))(params)
            updates, state = optimizer.update(gradients, state)
            return (optax.apply_updates(params, updates), state), loss

        return jax.lax.scan(step, (params, optimizer.init(params)), jax.random.split(jax.random.key(0), 30))[1]

    losses = np.asarray(train(params))
    assert np.isfinite(losses).all()
    assert losses[-5:].mean() < losses[:5].mean() - 0.2


@pytest.mark.parametrize("residual", RESIDUALS)
def test_every_parameter_has_axis_names_that_the_mesh_table_knows(tiny_seq2seq, make_pairs, residual):
    model, batch = build_model(tiny_seq2seq(residual=residual, positions="learned")), make_pairs(*PACKED)
    boxed = jax.eval_shape(lambda: model.init(jax.random.key(0), batch, None))["params"]
    known = set(AXIS_RULES) | {"heads"}
    for path, box in jax.tree_util.tree_leaves_with_path(boxed, is_leaf=lambda leaf: isinstance(leaf, nn.Partitioned)):
        name = jax.tree_util.keystr(path)
        assert isinstance(box, nn.Partitioned) and len(box.names) == len(box.value.shape), name
        assert set(box.names) <= known, name
        assert (box.names[:1] == ("layers",)) == ("layers" in name), name


def test_diagnosis_says_which_layer_of_which_stack_is_not_finite(tiny_seq2seq, make_pairs, random_params):
    config, batch = tiny_seq2seq(residual="post_ln"), make_pairs(*PACKED)
    params, model = random_params(config), build_model(config)
    bias = params["decoder"]["layers"]["cross_attention"]["out_bias"]
    params["decoder"]["layers"]["cross_attention"]["out_bias"] = bias.at[1].set(jnp.nan)
    _, seen = jax.jit(lambda: model.apply({"params": params}, batch, None, mutable=["diagnosis"]))()
    finite = {stack: seen["diagnosis"][stack]["layers"]["finite"][0].tolist() for stack in ("encoder", "decoder")}
    assert finite == {"encoder": [True, True], "decoder": [True, False, False]}
