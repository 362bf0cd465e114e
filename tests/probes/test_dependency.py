"""Shares of the final residual stream: they sum to 1, and are those of a stream that was added up
by hand.
"""

from __future__ import annotations

from typing import Any, ClassVar

import jax
import numpy as np
import pytest
from flax import linen as nn

from mhsh.config.entries import SCHEMES, add_residual
from mhsh.errors import UserError
from mhsh.models.layers import LayerNorm
from mhsh.models.residual import Residual, Stream, Weights
from mhsh.probes.dependency import dependency
from tests.models.plain import JOINS, norm

SEGMENTS = [[1] * 8, [1, 1, 1, 2, 2, 2, 2, 0], [1, 1, 0, 0, 0, 0, 0, 0]]


def total(shares) -> float:
    return float(sum(np.sum(each) for each in shares.values()))


DECODER = dict(objective="clm", next_sentence=False, positions="rotary", norm="rms", bias=False, head="tied")


@pytest.mark.parametrize(
    ("residual", "fields"),
    [("admin", {}), ("rezero", {}), ("pre_ln", DECODER), ("block_attn_res", {"residual_blocks": 2}), ("mhc_lite", {})],
    ids=str,
)
def test_shares_sum_to_one(tiny, make_batch, random_params, residual, fields):
    config = tiny(residual=residual, **fields)
    shares = dependency(config, random_params(config), make_batch(SEGMENTS))["encoder"]
    assert set(shares) == {"attention", "feed_forward", "input", "biases"} and len(shares["attention"]) == 3
    assert total(shares) == pytest.approx(1, abs=1e-4)
    assert min(abs(share) for share in shares["attention"]) > 1e-4
    assert (shares["biases"] == 0) == (residual in ("rezero", "pre_ln"))


class Gate(Weights):
    config: Any

    @nn.compact
    def __call__(self, x):
        kernel = self.param("gate_kernel", nn.initializers.normal(1.0), (self.config.embed_dim,))
        return nn.sigmoid(x @ kernel)[..., None]


@pytest.mark.usefixtures("forgotten")
def test_a_scheme_whose_stream_is_no_sum_of_parts_is_refused(tiny, make_batch, random_params):
    """A user's, with a gate that is computed from the stream; as Weights, it is held constant."""

    @add_residual("gated")
    class Gated(Residual):
        gate: ClassVar[type] = Gate

        @nn.compact
        def __call__(self, stream, sublayer):
            return Stream(stream.x + self.gate(self.config, name="gate_of")(stream.x) * sublayer(stream.x), None)

    config, batch = tiny(residual="gated"), make_batch(SEGMENTS)
    params = random_params(config)
    assert total(dependency(config, params, batch)["encoder"]) == pytest.approx(1, abs=1e-4)
    Gated.gate = type("Free", (nn.Module,), {"__annotations__": {"config": Any}, "__call__": Gate.__call__})
    with pytest.raises(UserError, match=r"'gated': the shares in the encoder sum to .*, not to 1, .*\.residual\.Weights"):
        dependency(config, params, batch)


@pytest.mark.usefixtures("forgotten")
def test_a_scheme_may_call_its_parts_by_keyword(tiny, make_batch, random_params):
    @add_residual("named")
    class Named(Residual):
        @nn.compact
        def __call__(self, stream, sublayer):
            added = Gate(self.config, name="gate_of")(x=stream.x) * sublayer(stream.x)
            return Stream(LayerNorm(self.config, name="norm")(x=stream.x + added), None)

    config = tiny(residual="named")
    assert total(dependency(config, random_params(config), make_batch(SEGMENTS))["encoder"]) == pytest.approx(1, abs=1e-4)


@pytest.mark.parametrize("residual", JOINS)
def test_constant_branches_are_followed_by_hand(tiny, make_batch, random_params, residual):
    """Sublayers whose kernels are 0 put out their last bias alone, so that every part of the stream
    can be written down.
    """
    config = tiny(residual=residual, num_layers=2)
    params, batch = random_params(config), make_batch(SEGMENTS)
    layers = jax.tree.map(np.asarray, params["encoder"]["layers"])
    for sublayer, kernel in (("attention", "out_kernel"), ("feed_forward", "down_kernel")):
        layers[sublayer] = layers[sublayer] | {kernel: np.zeros_like(layers[sublayer][kernel])}
    params = params | {"encoder": params["encoder"] | {"layers": layers}}
    shares = dependency(config, params, batch)["encoder"]

    real = batch["inputs_segmentation"] > 0
    table = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params["embeddings"])
    x = table["token"][batch["inputs"]] + table["position"][batch["inputs_position"]] + table["token_type"][batch["token_types"]]
    x = norm(x, table["norm"])[real]
    parts = {"input": x, "biases": np.zeros_like(x)}
    for layer in range(2):
        for sublayer, bias in (("attention", "out_bias"), ("feed_forward", "down_bias")):
            join = jax.tree.map(lambda leaf: np.float64(leaf[layer]), layers.get(f"{sublayer}_residual", {}))  # noqa: B023
            branch = np.broadcast_to(layers[sublayer][bias][layer].astype(np.float64), x.shape)
            if residual == "hybrid_norm" and sublayer == "feed_forward":
                parts = through_norm(parts, join["norm"])
            shortcut = {"admin": join.get("omega", 1.0), "deepnorm": 4**0.25, "keel": 4.0}.get(residual, 1.0)
            parts = {name: shortcut * part for name, part in parts.items()}
            name = f"{sublayer} {layer}"
            parts[name] = join["alpha"] * branch if residual == "rezero" else branch
            if residual == "peri_ln":  # its bias is of the biases
                added = norm(branch, join["output_norm"])
                parts[name] = added - join["output_norm"]["bias"]
                parts["biases"] = parts["biases"] + join["output_norm"]["bias"]
            if residual in ("post_ln", "admin", "deepnorm", "keel"):
                parts = through_norm(parts, join["norm"])
    if SCHEMES[residual].residual.final_norm:
        parts = through_norm(parts, jax.tree.map(np.float64, params["encoder"]["final_norm"]))
    y = sum(parts.values())
    expected = {name: np.mean(part * (y - y.mean())) / y.var() for name, part in parts.items()}
    found = {name: shares[name] for name in ("input", "biases")} | {
        f"{sublayer} {layer}": shares[sublayer][layer] for sublayer in ("attention", "feed_forward") for layer in range(2)
    }
    assert found == pytest.approx(expected, abs=2e-5)


def through_norm(parts, params):
    """The parts after a LayerNorm with the statistics of their sum."""
    deviation = sum(parts.values()).std(axis=-1, keepdims=True)
    after = {name: (part - part.mean(axis=-1, keepdims=True)) / deviation * params["scale"] for name, part in parts.items()}
    return after | {"biases": after["biases"] + params["bias"]}


def test_padding_counts_for_nothing(tiny, make_batch, random_params):
    config = tiny()
    params, batch = random_params(config), make_batch(SEGMENTS)
    garbage = batch | {"inputs": np.where(batch["inputs_segmentation"] == 0, 3, batch["inputs"]).astype(np.int32)}
    found, again = (dependency(config, params, each)["encoder"] for each in (batch, garbage))
    assert found["attention"] == pytest.approx(again["attention"], rel=1e-5)


def test_both_stacks_of_a_translation_model(tiny_seq2seq, make_pairs, random_params):
    config = tiny_seq2seq(residual="admin")
    found = dependency(config, random_params(config), make_pairs([[1, 1, 1, 1, 0], [1, 1, 2, 2, 2]], [[1, 1, 1, 0], [1, 2, 2, 2]]))
    assert list(found) == ["encoder", "decoder"] and len(found["decoder"]["cross_attention"]) == 3
    assert [total(shares) for shares in found.values()] == pytest.approx([1, 1], abs=1e-4)
