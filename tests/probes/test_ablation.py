"""Ablation: against models built without a layer, with permuted parameters, and silent branches."""

from __future__ import annotations

import functools

import jax
import numpy as np
import pytest
from msgspec.structs import replace

from mhsh.models.build import build_model, forward
from mhsh.models.losses import compute_metrics, loss_weights, total_loss
from mhsh.probes.ablation import ablation
from mhsh.probes.similarity import similarity

SEGMENTS = [[1] * 8, [1, 1, 1, 2, 2, 2, 2, 0]]


def loss(config, params, batch):
    return float(compiled_loss(config)(params, batch))


@functools.cache
def compiled_loss(config):
    def of(params, batch):
        outputs = forward(build_model(config), params, batch, None)
        return total_loss(compute_metrics(outputs, batch), loss_weights(batch))

    return jax.jit(of)


def with_layers(params, order, stack="encoder"):
    """The parameters of these layers alone, in this order."""
    layers = jax.tree.map(lambda leaf: leaf[np.array(order)], params[stack]["layers"])
    return params | {stack: params[stack] | {"layers": layers}}


@pytest.fixture(scope="module", params=["admin", pytest.param("pre_ln", marks=pytest.mark.slow)])
def ablated(request, tiny, make_batch, random_params):
    config = tiny(residual=request.param, num_layers=4)
    params, batches = random_params(config), [make_batch(SEGMENTS, seed=seed) for seed in (0, 1)]
    return config, params, batches, ablation(config, params, batches)["encoder"]


def test_it_is_the_loss_of_a_model_with_these_layers_in_this_order(ablated):
    config, params, batches, found = ablated

    def expected(order):
        model = replace(config, num_layers=len(order))
        return pytest.approx([loss(model, with_layers(params, order), batch) for batch in batches], rel=1e-5)

    assert found["whole"] == expected([0, 1, 2, 3])
    assert found["skipped"] == [expected([each for each in range(4) if each != layer]) for layer in range(4)]
    assert found["swapped"] == [expected(order) for order in ([1, 0, 2, 3], [0, 2, 1, 3], [0, 1, 3, 2])]
    assert list(found["without_last"]) == ["1", "2", "4"]
    assert found["without_last"]["1"] == found["skipped"][3]
    assert found["without_last"]["2"] == expected([0, 1])
    influence = [1 - np.array(similarity(config, params, batch)["encoder"]["cosine"]) for batch in batches]
    np.testing.assert_allclose(found["influence"], np.array(influence).T)


def silenced(params, layers, names):
    """The parameters with these of the encoder's sublayers at 0 in some layers."""
    stacked = dict(params["encoder"]["layers"])
    for sublayer, prefix in (("attention", "out"), ("feed_forward", "down")):
        for name in (f"{prefix}_{name}" for name in names):
            leaf = np.array(stacked[sublayer][name])
            leaf[layers] = 0
            stacked[sublayer] = stacked[sublayer] | {name: leaf}
    return params | {"encoder": params["encoder"] | {"layers": stacked}}


@pytest.mark.parametrize("residual", ["ln_scaling", "block_attn_res"])
def test_a_layer_keeps_its_number_when_another_is_skipped(tiny, make_batch, random_params, residual):
    """In a stream that is a sum, a layer is skipped where its branches put out nothing; also where
    a block begins in it.
    """
    config = tiny(residual=residual, residual_blocks=2)
    params, batch = random_params(config), make_batch(SEGMENTS)
    found = ablation(config, params, [batch])["encoder"]
    expected = loss(config, silenced(params, [1], ("kernel", "bias")), batch)
    assert found["skipped"][1] == pytest.approx([expected], rel=1e-5)


def test_later_layers_that_add_a_constant_depend_on_none(tiny, make_batch, random_params):
    config = tiny(residual="pre_ln")
    params, batch = random_params(config), make_batch(SEGMENTS)
    later = ablation(config, params, [batch])["encoder"]["later"]
    assert later[0] > 0.01 and later[1] > 0.01 and later[2] == 0
    constant = silenced(params, slice(None), ("kernel",))
    np.testing.assert_allclose(ablation(config, constant, [batch])["encoder"]["later"], 0, atol=1e-6)


def test_later_changes_by_hand(tiny, make_batch, random_params):
    """Without layer 1 of two, layer 2 reads the embeddings; its stream, less what it read."""
    config = tiny(residual="rezero", num_layers=2)
    params, batch = random_params(config), make_batch(SEGMENTS)

    def output(order, name):
        model = build_model(replace(config, num_layers=len(order)))
        _, state = model.apply(
            {"params": with_layers(params, order)}, batch, None, capture_intermediates=lambda module, _: module.name == name
        )
        return np.asarray(state["intermediates"][name]["__call__"][0], np.float64)

    embedded, first, second, both = output([0], "embeddings"), *(output(order, "encoder") for order in ([0], [1], [0, 1]))
    added, alone = both - first, second - embedded
    relative = np.linalg.norm(alone - added, axis=-1) / np.linalg.norm(added, axis=-1)
    expected = relative[batch["inputs_segmentation"] > 0].mean()
    assert ablation(config, params, [batch])["encoder"]["later"] == pytest.approx([expected, 0], rel=1e-4)


def test_both_stacks_of_a_translation_model(tiny_seq2seq, make_pairs, random_params):
    config = tiny_seq2seq()
    params, batch = random_params(config), make_pairs([[1, 1, 1, 2, 2]], [[1, 1, 2, 2]])
    found = ablation(config, params, [batch])
    assert {stack: len(figures["skipped"]) for stack, figures in found.items()} == {"encoder": 2, "decoder": 3}
    shorter = replace(config, num_decoder_layers=2)
    expected = loss(shorter, with_layers(params, [0, 2], "decoder"), batch)
    assert found["decoder"]["skipped"][1] == pytest.approx([expected], rel=1e-5)
