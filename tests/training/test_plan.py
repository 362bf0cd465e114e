"""The plan of a run: its mesh, its remat policy, and whether it fits."""

from mhsh.config.schema import Config
from mhsh.models.costs import parameter_counts
from mhsh.training.memory import CANDIDATES, USABLE_SHARE, footprint, replace_policy
from mhsh.training.plan import Devices, RunPlan, plan_run
from tests.training.states import boxed_of

ONE_DEVICE = {"data": 1, "fsdp": 1, "tensor": 1}


def test_what_cannot_fit_is_refused_with_what_needs_it_and_what_fits(make_config):
    deep = {"model.num_layers": 64, "model.remat_policy": "auto"}

    def planned(least: int, **mesh: int) -> RunPlan:
        config = make_config("bert", "2l8h", **deep, **{f"mesh.{axis}": mesh.get(axis, 1) for axis in ONE_DEVICE})
        return plan_run(config, Devices(4, 1, "tpu", least))

    config = planned(2**40, data=4).config
    least = footprint(replace_policy(config, "gathered_groups"), boxed_of(config), ONE_DEVICE | {"fsdp": 4}).total
    said, count = planned(least, data=4).refusal, parameter_counts(config.model)["total"]
    assert said is not None and said.startswith(f"out of memory: {count:,} parameters need ")
    assert all(part in said for part in ("(weights ", "gradients ", "moments ", "activations "))
    assert said.endswith("; take --config.model.remat_policy=gathered_groups --config.mesh.data=1 --config.mesh.fsdp=4")
    assert planned(least, data=1, fsdp=4).refusal is None
    assert planned(least // 8, data=4).refusal.endswith("; take more devices, or a smaller model")


def test_activations_of_a_named_policy_are_left_to_the_compiler(make_config):
    config: Config = make_config("bert", "2l8h", **{"model.remat_policy": "none"})
    needed = footprint(config, boxed_of(config), ONE_DEVICE)
    least = needed.total - needed.activations
    assert plan_run(config, Devices(1, 1, "tpu", least)).refusal is None
    assert plan_run(config, Devices(1, 1, "tpu", least - 1)).refusal is not None
    # Where a slice is paid for, or a time estimated, they count.
    counted = [plan_run(config, Devices(1, 1, "tpu", most)).count_activations() for most in (needed.total, needed.total - 1)]
    assert [plan.remat.needed_bytes for plan in counted if plan.remat] == [needed.total] * 2
    assert [plan.refusal is None for plan in counted] == [True, False]


def test_a_named_policy_stands_and_auto_is_resolved_for_this_machine(make_config):
    config: Config = make_config("bert", "2l8h", **{"model.remat_policy": "full"})
    plan = plan_run(config)
    assert (plan.config, plan.remat, plan.refusal) == (config, None, None)
    plan = plan_run(replace_policy(config, "auto"))
    assert plan.remat is not None and plan.remat.policy == plan.config.model.remat_policy == CANDIDATES["cpu"][0]
    assert plan.remat.needed_bytes <= USABLE_SHARE * plan.remat.device_bytes


def test_without_a_known_memory_auto_needs_least(make_config):
    plan = plan_run(make_config("bert", "2l8h", **{"model.remat_policy": "auto"}), Devices(1, 1, "tpu", None))
    assert (plan.config.model.remat_policy, plan.refusal) == (CANDIDATES["tpu"][-1], None)
