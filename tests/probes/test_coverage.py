"""How many positions a token draws on: by the entropy, and on models as plain numpy has it."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import entropy

from mhsh.probes import coverage as measured
from mhsh.probes.coverage import coverage
from tests.models.plain import norm

SEGMENTS = [[1] * 8, [1, 1, 1, 2, 2, 2, 2, 0], [1, 1, 0, 0, 0, 0, 0, 0]]


def effective_number(rows):
    return np.asarray(measured.effective_number(jnp.asarray(rows)))


def rollout(layers, residual_share):
    return np.asarray(measured.rollout(jnp.asarray(layers), residual_share))


def test_it_is_the_exponential_of_the_entropy_whatever_the_sum():
    rows = np.random.default_rng(0).dirichlet(np.full(12, 0.3), 50).astype(np.float32)
    rows[0] = [1.0] * 7 + [0.0] * 5  # seven positions count as seven
    expected = np.exp(entropy(rows.astype(float), axis=-1))
    assert expected[0] == pytest.approx(7)
    np.testing.assert_allclose(effective_number(0.3 * rows), expected, rtol=1e-5)


def test_a_rollout_is_a_product_from_the_left():
    layers = np.random.default_rng(1).dirichlet(np.ones(5), (4, 5)).astype(np.float32)
    expected = np.eye(5)
    for depth, (layer, rolled) in enumerate(zip(layers, rollout(layers, 0.25), strict=True)):
        expected = (0.25 * np.eye(5) + 0.75 * layer) @ expected
        np.testing.assert_allclose(rolled, expected, rtol=1e-5, err_msg=f"layer {depth}")
        np.testing.assert_allclose(rolled.sum(axis=1), 1, rtol=1e-5)


def test_the_positions_with_the_largest_weight_are_counted_once_a_query():
    rows = np.random.default_rng(2).dirichlet(np.ones(6), (4, 3, 5))  # [L, N, T, S]
    is_largest = (rows == rows.max(axis=-1, keepdims=True)).any(axis=1)
    in_layer, so_far = measured.argmax_numbers(jnp.asarray(is_largest))
    for t in range(5):
        seen = set()
        for depth in range(4):
            largest = {int(np.argmax(rows[depth, head, t])) for head in range(3)}
            seen |= largest
            assert (in_layer[depth, t], so_far[depth, t]) == (len(largest), len(seen))


def test_a_model_that_looks_at_all_it_may_see_evenly(tiny, make_batch, random_params):
    config = tiny(residual="admin")
    params = random_params(config)
    attention = params["encoder"]["layers"]["attention"]
    params["encoder"]["layers"]["attention"] = (
        attention | {"query_kernel": attention["query_kernel"] * 0} | {"query_bias": attention["query_bias"] * 0}
    )
    (found,) = coverage(config, params, make_batch(SEGMENTS))["encoder"].values()
    # 8 queries see 8, 3 see 3, 4 see 4, 2 see 2: the mean over the 17 real ones.
    mean = (8 * 8 + 3 * 3 + 4 * 4 + 2 * 2) / 17
    assert found["visible"] == pytest.approx(mean)
    np.testing.assert_allclose(found["heads"], np.full((3, 2), mean), rtol=1e-5)
    np.testing.assert_allclose(found["layers"], np.full(3, mean), rtol=1e-5)
    assert found["argmax_layers"] == found["argmax_stack"] == [1, 1, 1]  # the first of those that tie
    np.testing.assert_allclose(found["rollout_without_residual"], np.full(3, mean), rtol=1e-5)
    assert (np.diff(found["rollout"]) > 0).all() and found["rollout"][-1] < mean


@pytest.mark.parametrize("residual", ["post_ln", "pre_ln"])
def test_the_first_layer_of_a_model_equals_plain_numpy(tiny, make_batch, random_params, residual):
    config = tiny(residual=residual, objective="clm", next_sentence=False, num_layers=1)
    params, batch = random_params(config), make_batch(SEGMENTS)
    (found,) = coverage(config, params, batch)["encoder"].values()
    tree = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params)
    table, layers = tree["embeddings"], tree["encoder"]["layers"]
    x = table["token"][batch["inputs"]] + table["position"][batch["inputs_position"]] + table["token_type"][batch["token_types"]]
    x = norm(x, table["norm"])
    if residual == "pre_ln":
        x = norm(x, {name: leaf[0] for name, leaf in layers["attention_residual"]["norm"].items()})
    query, key = (
        np.einsum("BTD,DNH->BNTH", x, layers["attention"][f"{name}_kernel"][0])
        + layers["attention"][f"{name}_bias"][0][None, :, None]
        for name in ("query", "key")
    )
    heads, layer, largest, queries = np.zeros(2), 0.0, 0, 0
    for row, segments in enumerate(SEGMENTS):
        for t, segment in enumerate(segments):
            if segment:
                seen = [s for s in range(t + 1) if segments[s] == segment]
                scores = query[row, :, t] @ key[row][:, seen].transpose(0, 2, 1) / 2.0
                weights = np.stack([np.exp(scores[i, i]) / np.exp(scores[i, i]).sum() for i in range(2)])
                heads += np.exp(entropy(weights, axis=1))
                layer += np.exp(entropy(weights.mean(axis=0)))
                largest += len(set(weights.argmax(axis=1)))
                queries += 1
    np.testing.assert_allclose(found["heads"], [heads / queries], rtol=1e-4)
    np.testing.assert_allclose(found["layers"], [layer / queries], rtol=1e-4)
    np.testing.assert_allclose(found["rollout_without_residual"], [layer / queries], rtol=1e-4)
    assert found["argmax_layers"] == found["argmax_stack"] == [pytest.approx(largest / queries)]
    assert largest > queries  # the two heads do not always agree


def test_padding_counts_for_nothing(tiny, make_batch, random_params):
    config = tiny()
    params, batch = random_params(config), make_batch(SEGMENTS)
    found = coverage(config, params, batch)["encoder"]["attention"]
    padding = batch["inputs_segmentation"] == 0
    garbage = batch | {"inputs": np.where(padding, (batch["inputs"] + 7) % 48, batch["inputs"]).astype(np.int32)}
    wider = {key: np.pad(rows, ((0, 0), (0, 4))) if rows.ndim == 2 else rows for key, rows in garbage.items()}
    for name, figure in coverage(config, params, wider)["encoder"]["attention"].items():
        np.testing.assert_allclose(figure, found[name], rtol=1e-5, err_msg=name)


def test_a_translation_model_has_all_three(tiny_seq2seq, make_pairs, random_params):
    config = tiny_seq2seq()
    sources, targets = [[1, 1, 1, 1, 0], [1, 1, 2, 2, 2]], [[1, 1, 1, 0], [1, 2, 2, 2]]
    found = coverage(config, random_params(config), make_pairs(sources, targets))
    assert list(found) == ["encoder", "decoder"] and set(found["decoder"]) == {"self_attention", "cross_attention"}
    # Targets: 3 of the first row see 4 sources each; of the second 1 sees 2 and 3 see 3.
    assert found["decoder"]["cross_attention"]["visible"] == pytest.approx((3 * 4 + 2 + 3 * 3) / 7)
    assert found["decoder"]["self_attention"]["visible"] == pytest.approx((1 + 2 + 3 + 1 + 1 + 2 + 3) / 7)
    assert all(1 <= each[-1] <= figures["visible"] for figures in found["decoder"].values() for each in [figures["argmax_stack"]])
    assert "rollout" not in found["decoder"]["cross_attention"] and len(found["decoder"]["self_attention"]["rollout"]) == 3
