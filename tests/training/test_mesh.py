"""How many devices each axis of the mesh has: as the config says, or chosen by counted bytes."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from mhsh.config.schema import MeshConfig
from mhsh.errors import UserError
from mhsh.models.costs import parameter_counts
from mhsh.training.memory import update_bytes
from mhsh.training.mesh import make_mesh, mesh_shape
from mhsh.training.plan import plan_run
from mhsh.training.sharding import MESH_AXES
from tests.training.states import boxed_of


def with_mesh(config, *axes):
    return replace(config, mesh=MeshConfig(**dict(zip(MESH_AXES, axes, strict=True))))


@pytest.mark.parametrize(
    ("axes", "devices", "shape"),
    [
        ((-1, 1, 1), 8, (8, 1, 1)),
        ((2, -1, 2), 8, (2, 2, 2)),
        ((2, 2, 2), 8, (2, 2, 2)),
        ((-1, 1, 1), 1, (1, 1, 1)),
        ((-1, -1, 1), 1, (1, 1, 1)),
        ((-1, 4, 1), 8, (2, 4, 1)),
        ((1, -1, 1), 8, (1, 8, 1)),
    ],
)
def test_an_open_axis_takes_what_is_left(make_config, axes, devices, shape):
    config = with_mesh(make_config("bert", "2l8h"), *axes)
    made, choice = mesh_shape(config, boxed_of(config), devices)
    assert (tuple(made.values()), choice) == (shape, None), "there is nothing to choose"


@pytest.mark.parametrize("axes", [(-1, 3, 1), (2, 2, 1), (16, 1, 1), (-1, -1, 3)])
def test_a_mesh_that_does_not_make_the_devices_is_refused(make_config, axes):
    with pytest.raises(UserError, match=rf"mesh\.data x mesh\.fsdp x mesh\.tensor = {axes[0]} x {axes[1]} x .* 8 devices"):
        mesh_shape(config := with_mesh(make_config("bert", "2l8h"), *axes), boxed_of(config), 8)


@pytest.mark.parametrize(
    ("variant", "devices", "slices", "overrides", "shape", "reason"),
    [
        ("24l16h", 16, 1, {}, (1, 16, 1), "an update moves"),
        ("384l1h", 16, 1, {}, (1, 16, 1), "an update moves"),
        ("384l1h", 8, 1, {"optimizer.name": "muon"}, (1, 8, 1), "an update moves"),
        ("2l8h", 8, 1, {}, (8, 1, 1), "an update moves"),
        ("24l16h", 32, 2, {}, (32, 1, 1), "there are 2 slices"),
        ("24l16h", 16, 1, {"mesh.tensor": 2}, (8, 1, 2), "mesh.tensor shards the matrices"),
        ("24l16h", 16, 1, {"optimizer.name": "muon"}, (16, 1, 1), "muon's products"),
        ("24l16h", 3, 1, {}, (3, 1, 1), "model.embed_dim = 1024 is not divisible by mesh.fsdp = 3"),
    ],
)
def test_counted_bytes_choose_between_data_and_fsdp(make_config, variant, devices, slices, overrides, shape, reason):
    config = make_config("bert", variant, **{"train.batch_size": 96} | overrides)
    made, choice = mesh_shape(config, boxed_of(config), devices, slices)
    assert choice is not None and choice.reason.startswith(reason)
    assert tuple(made.values()) == shape


def test_what_an_update_moves_by_hand(make_config):
    """AdamW reads and writes a parameter and two moments, and reads a gradient: 28 bytes."""
    config = make_config("bert", "24l16h")
    total = parameter_counts(config.model)["total"]
    boxed = boxed_of(config)
    data, fsdp = (update_bytes(config.model, boxed, dict(zip(MESH_AXES, shape, strict=True))) for shape in ((16, 1, 1), (1, 16, 1)))
    assert data == 28 * total + 2 * 4, "and Adam's count"
    assert fsdp == pytest.approx(data / 16, rel=0.1), "vectors are whole"


def test_the_chosen_mesh_is_made(make_config):
    config = make_config("bert", "2l8h", **{"model.embed_dim": 1024, "model.mlp_dim": 8192})
    assert dict(make_mesh(plan_run(config).mesh_shape).shape) == {"data": 1, "fsdp": 8, "tensor": 1}
