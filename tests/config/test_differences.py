"""How two configs differ."""

from __future__ import annotations

from msgspec.structs import replace

from mhsh.config.differences import differences, flatten, format_differences
from mhsh.config.schema import to_dict


def test_equal_configs_do_not_differ(make_config) -> None:
    config = make_config("bert", "2l8h")
    assert differences(config, to_dict(config)) == {}
    assert format_differences(config, config) == ""


def test_every_differing_field_with_both_values(make_config) -> None:
    there, here = make_config("bert", "2l8h"), make_config("bert", "4l4h", **{"optimizer.beta2": 0.98})
    assert differences(there, here) == {
        "model.num_layers": (2, 4),
        "model.num_heads": (8, 4),
        "model.mlp_dim": (256, 128),
        "model.layers_per_group": (1, 2),
        "optimizer.beta2": (0.999, 0.98),
    }
    assert format_differences(there, replace(there, train=replace(there.train, batch_size=16, start_from="run"))) == (
        "train.start_from is '' there, 'run' here; train.batch_size is 8 there, 16 here"
    )


def test_a_field_that_one_config_does_not_have_is_none(make_config) -> None:
    found = differences(make_config("bert", "2l8h"), make_config("translation", "tiny"))
    assert found["data.mask_fraction"] == (0.15, None)
    assert found["data.layout"] == (None, "packed")
    assert found["data.tokenizer"] == ("wordpiece", "bpe")


def test_flat(make_config) -> None:
    flat = flatten(make_config("bert", "2l8h"))
    assert flat["model.num_layers"] == 2 and flat["mesh.data"] == -1
    assert flatten({"model": {"num_layers": 3}, "version": 2}) == {"model.num_layers": 3}
