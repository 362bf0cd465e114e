"""The footprint against counts by hand and by XLA, and the remat policy that `auto` becomes."""

from __future__ import annotations

import jax
import pytest
from msgspec.structs import replace

from mhsh.models.build import build_model
from mhsh.models.costs import parameter_shapes
from mhsh.models.parameters import parameter_path
from mhsh.training import memory
from mhsh.training.memory import CANDIDATES, USABLE_SHARE, Footprint, choose_remat, footprint, replace_policy, saved_activations
from mhsh.training.mesh import first_device
from mhsh.training.optimizer import build_optimizer
from mhsh.training.state import abstract_state
from mhsh.training.step import compile_train_step
from tests.training.states import boxed_of

ONE_DEVICE = {"data": 1, "fsdp": 1, "tensor": 1}
D, F, V, P, L, N, H = 16, 24, 32, 8, 3, 2, 4


@pytest.fixture(scope="module")
def tiny(make_config):
    """tiny(**overrides): a three-layer Post-LN BERT whose bytes can be counted on paper."""
    base = {
        "model.residual": "post_ln",
        "model.num_layers": L,
        "model.num_heads": N,
        "model.heads_per_layer": 0,
        "model.head_dim": H,
        "model.embed_dim": D,
        "model.mlp_dim": F,
        "model.vocab_size": V,
        "model.max_positions": P,
        "data.sequence_length": P,
        "data.max_predictions": 3,
        "train.batch_size": 8,
    }
    return lambda **overrides: make_config("bert", "2l8h", **base | overrides)


def footprint_of(config, mesh_shape) -> Footprint:
    return footprint(config, boxed_of(config), mesh_shape)


def parameter_bytes(fsdp=1, tensor=1, tensor_heads=None, kernel_bytes=4):
    """Bytes on one device: matrices are sharded over fsdp, vectors are whole; N, F and V are
    sharded over tensor. All but the kernels is fp32.
    """
    heads = N if tensor_heads is None else tensor_heads
    f, v, n = F // tensor, V // tensor, heads // tensor
    kernels = L * (4 * D * n * H + 2 * D * f) + 2 * D * D  # of a layer; of the two heads
    layer = 3 * n * H + D + f + D + 2 * 2 * D
    embeddings = P * D + 2 * D + 2 * D
    prediction = D + 2 * D + v
    next_sentence = D + D * 2 + 2
    return kernels // fsdp * kernel_bytes + 4 * (v * D // fsdp + L * layer + embeddings + prediction + next_sentence)


def test_bytes_on_one_device(tiny):
    """Counted on paper: a layer 552 + 808 + 64 numbers, embeddings 704, prediction 336, next
    sentence 306.
    """
    whole = footprint_of(tiny(), ONE_DEVICE)
    assert whole.parameters == whole.gradients == 4 * (3 * (552 + 808 + 64) + 704 + 336 + 306) == parameter_bytes()
    # Two moments of every parameter, and two int32 counts: Adam's and the schedule's.
    assert whole.optimizer == 2 * whole.parameters + 4
    assert whole.total == whole.parameters + whole.gradients + whole.optimizer + whole.activations


@pytest.mark.parametrize("mesh", [{"fsdp": 2}, {"tensor": 2}, {"fsdp": 4, "tensor": 2}, {"data": 8}], ids=str)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_bytes_are_divided_as_the_mesh_says(tiny, mesh, dtype):
    """Where fsdp shards them, kernels are gathered in the dtype of their use."""
    part = footprint_of(tiny(**{"model.compute_dtype": dtype}), ONE_DEVICE | mesh)
    shares = {axis: size for axis, size in mesh.items() if axis != "data"}
    assert part.parameters == parameter_bytes(**shares)
    if "fsdp" in mesh:
        whole = parameter_bytes(**shares | {"fsdp": 1}, kernel_bytes=2 if dtype == "bfloat16" else 4)
        assert part.gathered == part.gradients == whole
    else:
        assert (part.gathered, part.gradients) == (0, part.parameters)
    assert part.optimizer == 2 * part.parameters + 4


def test_gathered_groups_have_one_group_of_layers_at_once(tiny):
    """Three layers are groups of one: a third of the layers' kernels and vectors."""
    config, mesh = tiny(**{"model.remat_policy": "gathered_groups"}), ONE_DEVICE | {"fsdp": 4}
    part, whole = footprint_of(config, mesh), footprint_of(replace_policy(config, "groups"), mesh)
    layer = 552 + 808 + 64
    assert whole.gathered - part.gathered == 4 * (L - 2) * layer, "the next one is gathered meanwhile"
    assert part.gradients == part.parameters + 4 * layer
    assert part[-2:] == whole[-2:], "activations are those of groups"


def test_a_single_head_is_whole_on_every_device(tiny):
    """N = 1 is not cut on `tensor`, F and V are: as if its heads axis were two long and halved."""
    part = footprint_of(tiny(**{"model.num_heads": 1}), ONE_DEVICE | {"tensor": 2})
    assert part.parameters == parameter_bytes(tensor=2, tensor_heads=2)


def test_activations_are_those_of_one_device_and_one_micro_batch(tiny):
    whole = footprint_of(tiny(), ONE_DEVICE).activations
    assert whole == saved_activations(tiny(), 8)
    halved = saved_activations(tiny(), 4)
    assert footprint_of(tiny(), ONE_DEVICE | {"data": 2}).activations == halved
    assert footprint_of(tiny(), ONE_DEVICE | {"fsdp": 2}).activations == halved
    assert footprint_of(tiny(**{"train.accumulation_steps": 2}), ONE_DEVICE).activations == halved
    assert footprint_of(tiny(), ONE_DEVICE | {"tensor": 2}).activations == whole


def test_one_trace_serves_all_sources_and_seeds(make_config):
    config = make_config("bert", "2l8h")
    saved, traced = saved_activations(config, 3), memory._saved_activations.cache_info().misses
    other = replace(config, data=replace(config.data, source="text:other.txt", vocab_path="vocab.txt", seed=7))
    assert saved_activations(other, 3) == saved and memory._saved_activations.cache_info().misses == traced


@pytest.mark.parametrize(("heads", "projections"), [(N, 4 * N), (1, 4)], ids=["as four products", "narrow, in one"])
def test_what_a_layer_saves(tiny, heads, projections):
    """`full`: its input [B, T, D] in fp32, its vectors, and the two words of each of its four
    dropout masks. `projections`: also queries, keys, values, what attention makes of them
    [B,T,N,H], and the hidden layer [B,T,F].
    """

    def of_a_layer(policy: str) -> int:
        config = {"model.remat_policy": policy, "model.num_heads": heads}
        shallow, deep = (saved_activations(tiny(**config, **{"model.num_layers": depth}), 8) for depth in (2, 3))
        return deep - shallow

    layers = parameter_shapes(tiny(**{"model.num_heads": heads, "model.num_layers": 1}).model)["encoder"]["layers"]
    leaves = jax.tree_util.tree_leaves_with_path(layers)
    vectors = sum(leaf.size for path, leaf in leaves if not parameter_path(path).endswith("kernel"))
    assert of_a_layer("full") == 4 * (8 * P * D + vectors + 4 * 2)
    assert of_a_layer("projections") - of_a_layer("full") == 8 * P * (projections * H + F) * 4


@pytest.mark.parametrize("platform", CANDIDATES)
def test_the_first_that_fits_is_chosen(make_config, platform):
    config = make_config("bert", "16l1h", **{"model.num_layers": 36, "model.remat_policy": "auto"})
    needs = {policy: footprint_of(replace_policy(config, policy), ONE_DEVICE).total for policy in CANDIDATES[platform]}
    assert list(needs.values()) == sorted(needs.values(), reverse=True)
    for policy, needed in needs.items():
        just_enough = int(needed / USABLE_SHARE) + 1
        assert choose_remat(config, boxed_of(config), ONE_DEVICE, just_enough, platform).policy == policy
    # Where nothing fits by this count, the leanest is tried all the same.
    last = choose_remat(config, boxed_of(config), ONE_DEVICE, 1, platform)
    assert (last.policy, last.needed_bytes) == ("groups", needs["groups"])
    assert str(last) == f"remat_policy groups: needs about {needs['groups'] / 2**30:.2f} GiB of 0.00 GiB a device"


@pytest.mark.slow
@pytest.mark.parametrize("variant", ["2l8h", "16l1h"])
def test_the_compiled_step_needs_least_with_groups(make_config, variant):
    """By XLA's own count of temporaries, 36 layers need less with each policy that `auto` tries."""

    def temporaries(policy: str) -> int:
        config = make_config("bert", variant, **{"model.num_layers": 36, "model.remat_policy": policy, "train.batch_size": 16})
        config = replace(config, mesh=replace(config.mesh, data=1))
        model, optimizer = build_model(config.model), build_optimizer(config)
        mesh = first_device()
        compiled = compile_train_step(config, model, optimizer, mesh, abstract_state(config, optimizer, mesh))
        return compiled.memory_analysis().temp_size_in_bytes

    sizes = [temporaries(policy) for policy in CANDIDATES["cpu"]]
    assert sizes == sorted(sizes, reverse=True)
