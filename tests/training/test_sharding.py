"""The table of axes: what is sharded over what, and what cannot be divided."""

from __future__ import annotations

import jax
import numpy as np
import optax
import pytest
from jax.sharding import PartitionSpec

from mhsh.errors import UserError
from mhsh.models.build import boxed_parameters
from mhsh.training.mesh import make_mesh
from mhsh.training.optimizer import build_optimizer
from mhsh.training.sharding import (
    MESH_AXES,
    check_divisibility,
    partition_specs,
    process_rows,
    put_batch,
    shardings_of,
)
from mhsh.training.state import abstract_state
from tests.training.states import mesh_of


@pytest.mark.parametrize(
    ("overrides", "shape", "message"),
    [
        ({"train.batch_size": 6}, (4, 1, 1), r"train\.batch_size = 6 .* 4 x 1 does not divide"),
        ({"train.batch_size": 8, "train.accumulation_steps": 4}, (4, 1, 1), r"gives 2 rows"),
        ({"model.embed_dim": 60}, (1, 8, 1), r"model\.embed_dim = 60 .* mesh\.fsdp = 8;.*next multiple: 64"),
        ({"model.vocab_size": 2047}, (1, 1, 2), r"model\.vocab_size = 2047 .* mesh\.tensor = 2;"),
        ({"model.num_heads": 6, "model.heads_per_layer": 6}, (1, 1, 4), r"model\.num_heads = 6 .* mesh\.tensor = 4;"),
    ],
)
def test_what_does_not_divide_is_named(make_config, overrides, shape, message):
    config = make_config("bert", "2l8h", **overrides)
    with pytest.raises(UserError, match=message):
        check_divisibility(config.model, config.train, dict(zip(MESH_AXES, shape, strict=True)))


def test_heads_of_keys_and_values_are_divided_too(make_config):
    message = r"model\.num_kv_heads = 2 is not divisible by mesh\.tensor = 4; .*next multiple: 4"
    shared, whole, shape = make_config("gpt", "6l4h_gqa"), make_config("gpt", "6l4h"), {"data": 1, "fsdp": 1, "tensor": 4}
    with pytest.raises(UserError, match=message):
        check_divisibility(shared.model, shared.train, shape)
    check_divisibility(whole.model, whole.train, shape)
    model = make_config("gpt", "12l2h_gqa").model
    attention = partition_specs(boxed_parameters(model), {"data": 1, "fsdp": 1, "tensor": 2}, model)["encoder"]["layers"][
        "attention"
    ]
    assert attention["query_kernel"] == PartitionSpec(None, None, "tensor", None)
    assert attention["key_kernel"] == PartitionSpec(None, None, None, None), "a single head is never cut"


def test_where_parameters_lie(make_config):
    specs = {}
    for variant in ("2l8h", "16l1h"):
        config = make_config("bert", variant)
        shardings = shardings_of(abstract_state(config, build_optimizer(config), mesh_of(2, 2, 2)))
        params, moments = shardings.params, optax.tree.get(shardings.opt_state, "mu")
        assert moments == params
        layers = params["encoder"]["layers"]
        specs[variant] = {
            "query": layers["attention"]["query_kernel"].spec,
            "up": layers["feed_forward"]["up_kernel"].spec,
            "omega": layers["attention_residual"]["omega"].spec,
            "token": params["embeddings"]["token"].spec,
        }
    assert specs["2l8h"]["query"] == PartitionSpec("fsdp", None, "tensor", None)
    assert specs["16l1h"]["query"] == PartitionSpec("fsdp", None, None, None), "a single head is never cut"
    for spec in specs.values():
        assert spec["up"] == PartitionSpec("fsdp", None, "tensor")
        assert spec["omega"] == PartitionSpec(None, None), "vectors are whole"
        assert spec["token"] == PartitionSpec("tensor", "fsdp")


def test_what_an_optimizer_keeps_in_another_shape_is_whole(make_config):
    """Adafactor's rows and columns; and its groups are of plain paths, not of boxes."""

    def labels(params):
        return jax.tree_util.tree_map_with_path(lambda path, _: "adam" if path[-1].key.endswith("bias") else "rows", params)

    config = make_config("bert", "2l8h")
    groups = {"rows": optax.scale_by_factored_rms(min_dim_size_to_factor=2), "adam": optax.scale_by_adam()}
    state = shardings_of(abstract_state(config, optax.partition(groups, labels), mesh_of(2, 2, 2)))
    rows = optax.tree.get(state.opt_state, "v_row")["encoder"]["layers"]["feed_forward"]
    assert rows["up_kernel"].spec == PartitionSpec()
    moments = optax.tree.get(state.opt_state, "mu")["encoder"]["layers"]["feed_forward"]
    assert moments["up_bias"] == state.params["encoder"]["layers"]["feed_forward"]["up_bias"]


@pytest.mark.parametrize(
    ("fsdp", "layers", "query", "out", "token"),
    [
        (8, 24, ("fsdp", None, None, None), ("fsdp", None, None, None), (None, "fsdp")),
        (16, 24, (None, "fsdp", None, None), (None, "fsdp", None, None), (None, "fsdp")),
        (2, 3, (None, "fsdp", None, None), (None, "fsdp", None, None), ("fsdp", None)),
    ],
)
def test_fsdp_takes_the_first_axis_that_it_divides(make_config, fsdp, layers, query, out, token):
    shape = {"model.num_layers": layers, "model.num_heads": 16, "model.heads_per_layer": 16, "model.vocab_size": 30522}
    model = make_config("bert", "2l8h", **shape).model
    specs = partition_specs(boxed_parameters(model), {"data": 1, "fsdp": fsdp, "tensor": 1}, model)
    attention = specs["encoder"]["layers"]["attention"]
    without_heads = [tuple(None if axis == "tensor" else axis for axis in attention[f"{name}_kernel"]) for name in ("query", "out")]
    assert without_heads == [query, out]
    assert tuple(None if axis == "tensor" else axis for axis in specs["embeddings"]["token"]) == token


def test_a_batch_is_cut_by_rows():
    mesh = make_mesh({"data": 4, "fsdp": 2, "tensor": 1})
    assert process_rows(mesh, 8) == slice(0, 8)
    rows = np.arange(8, dtype=np.int32)[:, None] * np.ones((1, 64), np.int32)
    batch = put_batch({"inputs": rows}, mesh)
    np.testing.assert_array_equal(np.asarray(batch["inputs"]), rows)
    assert {shard.data.shape for shard in batch["inputs"].addressable_shards} == {(1, 64)}
