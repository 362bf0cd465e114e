"""Estimated steps: parts worked out by hand, bounds against compiled programs, and every mesh."""

from __future__ import annotations

import dataclasses
import functools
import json
import re

import pytest
from msgspec.structs import replace

from benchmarks.hlo import products
from mhsh.models.build import build_model
from mhsh.models.costs import PEAK_FLOPS, parameter_counts, step_flops
from mhsh.models.kernels.select import allow_interpreter
from mhsh.planning.hlo import parse_module
from mhsh.planning.roofline import CHIPS, PASSES, launch_seconds, memory_bytes, network_seconds, product_flops, step_time
from mhsh.training.mesh import first_device
from mhsh.training.optimizer import build_optimizer
from mhsh.training.plan import Devices, RunPlan, plan_run
from mhsh.training.state import abstract_state
from mhsh.training.step import compile_train_step
from tests.conftest import ROOT

ONE = {"data": 1, "fsdp": 1, "tensor": 1}


@pytest.fixture(scope="module")
def config_of(make_config):
    return functools.partial(make_config, "bert", "2l8h")


def plan_of(config) -> RunPlan:
    return plan_run(config, Devices(1, 1, "tpu", None))


def test_every_chip_has_a_peak():
    assert {chip.device_kind for chip in CHIPS.values()} <= PEAK_FLOPS.keys()


@pytest.mark.parametrize(
    "policy", ["none", "projections", *(pytest.param(name, marks=pytest.mark.slow) for name in ("dots", "full"))]
)
def test_the_compiled_program_has_as_many_flops_as_the_traced_step(config_of, policy):
    config = config_of(**{"model.remat_policy": policy, "mesh.data": 1})
    mesh, optimizer = first_device(), build_optimizer(config)
    step = compile_train_step(config, build_model(config.model), optimizer, mesh, abstract_state(config, optimizer, mesh))
    assert product_flops(config, ONE) == pytest.approx(products.product_flops(parse_module(step.as_text() or "")), rel=0.01)


def test_flops_are_divided_over_the_mesh(config_of):
    config = config_of(**{"model.remat_policy": "none", "train.batch_size": 16, "train.accumulation_steps": 2})
    whole = product_flops(config, ONE)
    assert whole == pytest.approx(step_flops(config), rel=0.01)
    assert product_flops(config, {"data": 2, "fsdp": 2, "tensor": 2}) == pytest.approx(whole / 8, rel=0.01)


def test_flops_do_not_depend_on_the_device_here(config_of):
    """A GPU takes our kernels, of which a trace has the products of one program alone."""
    config = config_of(**{"model.kernels": "fused", "model.remat_policy": "none", "mesh.data": 1})
    with allow_interpreter():
        assert product_flops(config, ONE) == pytest.approx(step_flops(config), rel=0.01)


def test_memory_by_hand(config_of):
    """AdamW reads and writes a parameter and two moments, and reads a gradient: 28 bytes. Weights
    are read three times.
    """
    config = config_of(**{"model.remat_policy": "none", "train.batch_size": 8})
    parameters = parameter_counts(config.model)["total"]
    weights = 3 * parameters * {"float32": 4, "bfloat16": 2}[config.model.compute_dtype]
    bounds = memory_bytes(plan_of(config), PASSES["tpu"])
    saved = (bounds.low - 28 * parameters - weights) / 2
    assert bounds.high - bounds.low == pytest.approx(4.5 * saved, rel=1e-3), "without remat, what is saved is what is read"
    half = memory_bytes(plan_of(replace(config, train=replace(config.train, batch_size=4))), PASSES["tpu"])
    assert half.high - half.low == pytest.approx(2.25 * saved, rel=0.02), "activations grow with the rows, weights do not"


@pytest.mark.parametrize("step", ["24l16h 128", "384l1h 128", "384l1h 512", "144l1h 128"])
def test_counted_traffic_lies_between_the_bounds(make_config, step):
    """The programs that the compiler made for four kinds of TPU (docs/tpu_matrix.jsonl)."""
    shape, length = step.split()
    lines = map(json.loads, (ROOT / "docs/tpu_matrix.jsonl").read_text().splitlines())
    counted = [line for line in lines if line["step"].startswith(f"bert:{step} one chip ")]
    fields = {"train.batch_size": 2048 // int(length), "train.accumulation_steps": 1, "data.sequence_length": int(length)}
    config = make_config("bert", shape, **fields, **{"model.remat_policy": counted[0]["remat_policy"], "mesh.data": 1})
    bounds = memory_bytes(plan_of(config), PASSES["tpu"])
    assert len(counted) == 4
    for line in counted:
        assert bounds.low < line["moved_bytes"] < bounds.high


@pytest.mark.parametrize(
    ("chip", "shape", "seconds"),
    [
        *(("v5e", "24l16h", 50.8e-3), ("v5e", "384l1h", 81.3e-3), ("v5p", "24l16h", 20.8e-3)),
        *(("v5p", "384l1h", 43.7e-3), ("v6e", "24l16h", 24.2e-3), ("v6e", "384l1h", 44.1e-3)),
    ],
)
def test_the_compilers_schedule_lies_in_the_range(make_config, chip, shape, seconds):
    """One chip, 16 rows of 128 tokens (docs/development/speed.md)."""
    config = make_config("bert", shape, **{"train.batch_size": 16, "train.accumulation_steps": 1, "mesh.data": 1})
    time = step_time(config, CHIPS[chip], 1)
    assert time.remat_policy == "projections"
    assert time.step_seconds.low < seconds < time.step_seconds.high


@pytest.mark.parametrize(
    ("shape", "rows", "seconds"),
    [
        *(("24l16h", 16, 23.6e-3), ("384l1h", 16, 128.8e-3), ("384l1h", 64, 304.2e-3)),
        *(pytest.param(*more, marks=pytest.mark.slow) for more in (("24l16h", 64, 64.3e-3), ("12l12h", 16, 9.5e-3))),
    ],
)
def test_what_an_h200_took_lies_in_the_range(make_config, shape, rows, seconds):
    """Rows of 128 tokens (docs/development/speed.md)."""
    fields = {"train.batch_size": rows, "train.accumulation_steps": 1, "mesh.data": 1, "data.sequence_length": 128}
    time = step_time(make_config("bert", shape, **fields), CHIPS["h200"], 1)
    assert time.remat_policy == "projections"
    assert time.step_seconds.low < seconds < time.step_seconds.high


@pytest.mark.slow
@pytest.mark.parametrize(("place", "shape"), [(0, "24l16h"), (1, "384l1h")])
def test_the_page_of_planning_has_these_times(make_config, place, shape):
    rows = re.findall(r"^\| (\d+) (v5e|v5p|h100) \| (.+) \|$", (ROOT / "docs/plan.md").read_text(encoding="utf-8"), flags=re.M)
    assert len(rows) == 3
    for number, kind, cells in rows:
        time = step_time(make_config("bert", shape, **{"train.batch_size": 256}), CHIPS[kind], int(number))
        milliseconds = [1e3 * seconds for seconds in time.step_seconds]
        words = [f"{low:.0f} to {high:.0f}" for low, high in (milliseconds, time.chip_hours)]
        assert cells.split(" | ")[place::2] == words


def test_a_ring_within_a_domain_by_hand(config_of):
    """16 chips send 15/16 of the weights and of the gradients, with data as with fsdp."""
    config = config_of(**{"train.gradient_dtype": "float32", "model.compute_dtype": "float32"})
    payload = 4 * parameter_counts(config.model)["total"]
    for data, fsdp in ((16, 1), (1, 16), (4, 4)):
        shape = {"data": data, "fsdp": fsdp, "tensor": 1}
        assert network_seconds(config, shape, CHIPS["v5e"]) == pytest.approx(2 * 15 / 16 * payload / 200e9)
    assert network_seconds(config, ONE, CHIPS["v5e"]) == 0


def test_nodes_share_the_network_by_hand(config_of):
    """32 GPUs in four nodes: an eighth of everything goes over each port."""
    config = config_of(**{"train.gradient_dtype": "float32"})
    payload = 4 * parameter_counts(config.model)["total"]
    expected = 2 * (7 / 8 * payload / 450e9 + 3 / 4 * payload / 8 / 50e9)
    assert network_seconds(config, {"data": 32, "fsdp": 1, "tensor": 1}, CHIPS["h200"]) == pytest.approx(expected)


def test_only_a_gpu_launches_operations(config_of):
    config = config_of()
    assert launch_seconds(config, CHIPS["v5p"]) == (0, 0)
    assert launch_seconds(config, CHIPS["h100"]) == pytest.approx((2 * 80 * 1.5e-6, 2 * 80 * 2.5e-6))


@pytest.mark.parametrize(("kind", "mesh"), [("v5e", (-1, 1)), ("v5e", (1, 4)), ("h100", (2, 2)), ("b200", (1, -1))])
def test_the_bounds_hold_the_parts(config_of, kind, mesh):
    config = config_of(**{"mesh.data": mesh[0], "mesh.fsdp": mesh[1]})
    time = step_time(config, CHIPS[kind], 4)
    parts = time.products_seconds, time.memory_seconds, time.network_seconds, time.launches_seconds
    lows, highs = [part.low for part in parts], [part.high for part in parts]
    assert time.step_seconds == (max(lows), pytest.approx(sum(highs)))
    assert time.rows == config.train.batch_size // 4 and time.fits
    assert time.mfu.high == pytest.approx(step_flops(config) / 4 / CHIPS[kind].peak_flops / time.step_seconds.low)
    assert time.chip_hours.low == pytest.approx(4 * config.train.num_steps * time.step_seconds.low / 3600)


def test_a_tpu7x_chip_is_two_devices(config_of):
    """By Google's page: 2,307 TFLOP/s, 192 GiB at 7,380 GB/s, links of 600 GB/s one way."""
    half = CHIPS["tpu7x"]
    figures = half.peak_flops, half.hbm_bytes, half.hbm_bandwidth, half.link_bandwidth, half.network_bandwidth
    assert [2 * figure for figure in figures] == [2307e12, 192 * 2**30, 7380e9, 600e9, 12.5e9]
    time = step_time(config_of(), half, 4)
    assert time.rows == config_of().train.batch_size // 8
    assert time.chip_hours.low == pytest.approx(4 * time.run_hours.low)


def test_a_model_that_does_not_fit_is_told(config_of):
    small = dataclasses.replace(CHIPS["v5e"], hbm_bytes=2**20)
    time = step_time(config_of(), small, 1)
    assert not time.fits and time.remat_policy == "groups"
