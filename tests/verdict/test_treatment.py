"""The factors of a treatment, and their names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from mhsh.verdict.treatment import factors
from tests.judging import DEEPER

FACTORS = {
    "head grouping": {f"model.{name}": value for name, value in DEEPER.items()},
    "depth": {"model.num_layers": 4},
    "depth at equal size": {"model.layers_at_equal_size": 4},
    "width of a head": {"model.heads_at_equal_width": 4},
    "width": {"model.mlp_dim": 1024},
    "residual scheme": {"model.residual": "pre_ln"},
    "positions": {"model.positions": "sinusoidal"},
    "normalisation": {"model.qk_norm": True},
}


@pytest.mark.parametrize("name", FACTORS)
def test_the_factor_of_a_treatment_is_named(make_config: Callable[..., Any], name: str):
    def config(**changes: Any) -> Any:
        return make_config("bert", "2l8h", **{"model.heads_per_layer": 0}, **changes)

    assert factors(config(**FACTORS[name]), config()) == (name,)
    if name != "residual scheme":
        both = factors(config(**FACTORS[name], **FACTORS["residual scheme"]), config())
        assert set(both) == {name, "residual scheme"}


@pytest.mark.parametrize(
    ("deep", "grouping"), [((4, 4, 2, 128), True), ((4, 2, 2, 128), False), ((2, 4, 2, 128), False), ((4, 4, 2, 64), False)]
)
def test_both_stacks_and_their_feed_forward_are_regrouped_or_nothing_is(make_config: Callable[..., Any], deep: Any, grouping: bool):
    def config(*sizes: int) -> Any:
        names = ("num_layers", "num_decoder_layers", "num_heads", "mlp_dim")
        shape = {f"model.{name}": size for name, size in zip(names, sizes, strict=True)}
        return make_config("translation", "tiny", **{"model.heads_per_layer": 0}, **shape)

    assert (factors(config(*deep), config(2, 2, 4, 256)) == ("head grouping",)) == grouping


def test_heads_of_keys_and_values_are_a_factor(make_config: Callable[..., Any]):
    shared, whole = make_config("gpt", "6l4h_gqa"), make_config("gpt", "6l4h")
    assert factors(make_config("gpt", "12l2h_gqa"), shared) == ("head grouping",)
    assert factors(shared, whole) == ("heads a layer",)
    sized = make_config("gpt", "6l4h", **{"model.kv_heads_at_equal_size": 2})
    assert factors(sized, whole) == ("heads of keys and values at equal size",)
    assert set(factors(make_config("gpt", "6l4h_gqa", **{"model.mlp_dim": 360}), whole)) == {"heads a layer", "width"}
    assert factors(make_config("gpt", "6l4h", **{"model.mlp_dim": 353}), whole) == ("width",)
    assert factors(make_config("gpt", "6l4h_gqa", **{"model.heads_at_equal_width": 2}), shared) == ("width of a head",)
    assert set(factors(make_config("gpt", "12l2h_gqa"), whole)) == {"heads a layer", "depth", "width"}


def test_passes_over_the_layers_are_a_factor(make_config: Callable[..., Any]):
    """With as many layers passed, what differs is that they are shared."""
    looped, plain = make_config("gpt", "6l4h_x2"), make_config("gpt", "6l4h")
    assert factors(looped, plain) == ("passes over the layers",)
    assert factors(looped, make_config("gpt", "6l4h", **{"model.num_layers": 12})) == ("sharing of the layers",)
    assert set(factors(looped, make_config("gpt", "12l2h"))) == {"depth", "passes over the layers", "heads a layer", "width"}
