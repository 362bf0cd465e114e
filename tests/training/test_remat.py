"""Which rematerialisation policy `auto` becomes, and what each saves."""

from __future__ import annotations

import jax
import pytest
from msgspec.structs import replace

from mhsh.models.build import build_model
from mhsh.models.transformer import group_sizes
from mhsh.training.footprint import footprint
from mhsh.training.optimizer import build_optimizer
from mhsh.training.remat import CANDIDATES, USABLE_SHARE, choose_remat, resolve_remat, with_policy
from mhsh.training.sharding import make_mesh
from mhsh.training.state import abstract_state
from mhsh.training.step import compile_train_step

ONE_DEVICE = {"data": 1, "fsdp": 1, "tensor": 1}


def test_groups_are_as_many_as_layers_in_a_group_where_that_divides():
    assert group_sizes(384) in ((24, 16), (16, 24))
    assert group_sizes(144) == (12, 12)
    assert group_sizes(7) in ((7, 1), (1, 7))
    for num_layers in range(1, 60):
        groups, size = group_sizes(num_layers)
        assert groups * size == num_layers


@pytest.mark.parametrize("candidates", CANDIDATES.values(), ids=list(CANDIDATES))
def test_the_first_that_fits_is_chosen(make_config, candidates):
    config = make_config("bert", "16l1h", **{"model.num_layers": 36, "model.remat_policy": "auto"})
    needs = {policy: footprint(with_policy(config, policy), ONE_DEVICE).total for policy in candidates}
    assert list(needs.values()) == sorted(needs.values(), reverse=True)
    for policy, needed in needs.items():
        just_enough = int(needed / USABLE_SHARE) + 1
        assert choose_remat(config, ONE_DEVICE, just_enough, candidates).policy == policy
    # Where nothing fits by this count, the leanest is tried all the same.
    last = choose_remat(config, ONE_DEVICE, 1, candidates)
    assert (last.policy, last.needed_bytes) == ("groups", needs["groups"])
    assert str(last) == f"remat_policy groups: needs about {needs['groups'] / 2**30:.2f} GiB of 0.00 GiB a device"


def test_a_named_policy_stands_and_auto_is_resolved_for_this_machine(make_config):
    config = make_config("bert", "2l8h", **{"model.remat_policy": "full"})
    mesh = make_mesh(config)
    assert resolve_remat(config, mesh) == (config, None)
    resolved, choice = resolve_remat(with_policy(config, "auto"), mesh)
    assert choice is not None and choice.policy == resolved.model.remat_policy == CANDIDATES["cpu"][0]
    assert choice.needed_bytes <= USABLE_SHARE * choice.device_bytes


@pytest.mark.slow
@pytest.mark.parametrize("variant", ["2l8h", "16l1h"])
def test_the_compiled_step_needs_least_with_groups(make_config, variant):
    """By XLA's own count of temporaries, 36 layers need less with each policy that `auto` tries."""

    def temporaries(policy: str) -> int:
        config = make_config("bert", variant, **{"model.num_layers": 36, "model.remat_policy": policy, "train.batch_size": 16})
        config = replace(config, mesh=replace(config.mesh, data=1))
        model, optimizer = build_model(config.model), build_optimizer(config)
        mesh = make_mesh(config, jax.devices()[:1])
        compiled = compile_train_step(config, model, optimizer, mesh, abstract_state(config, optimizer, mesh))
        return compiled.memory_analysis().temp_size_in_bytes

    sizes = [temporaries(policy) for policy in CANDIDATES["cpu"]]
    assert sizes == sorted(sizes, reverse=True)
