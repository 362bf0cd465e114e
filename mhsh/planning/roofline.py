"""The time of a training step on many chips, as a range: FLOPs, bytes of memory and bytes on the
network over public figures of the chips. Nothing here is measured.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping
from typing import NamedTuple, cast

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax.extend.core import Jaxpr, jaxprs_in_params
from msgspec.structs import replace

from mhsh.config.schema import Config
from mhsh.errors import UserError
from mhsh.models.build import build_model, xla_config
from mhsh.models.costs import PEAK_FLOPS, parameter_counts, step_flops
from mhsh.training.memory import footprint, replace_policy, saved_activations, update_bytes
from mhsh.training.mesh import first_device
from mhsh.training.optimizer import build_optimizer
from mhsh.training.plan import Devices, RunPlan, plan_run
from mhsh.training.sharding import axis_rules, shapes_of
from mhsh.training.state import abstract_state, example_batch
from mhsh.training.step import run_inputs, train_step


class Gpu(NamedTuple):
    """The properties of an NVIDIA GPU that XLA's compiler asks for, besides its memory."""

    compute_capability: tuple[int, int]
    multiprocessors: int
    clock_ghz: float
    fp32_lanes: int  # of a multiprocessor
    shared_kib: int  # memory of a multiprocessor; a block has 1 KiB less
    cache_mib: int  # L2


@dataclasses.dataclass(frozen=True)
class Chip:
    """One device as jax sees it (both cores of a v4 or v5p chip taken together, half of a TPU7x).
    Bytes per second are of one direction.

    A domain is a group of devices on one fast network: a TPU slice, or the GPUs at one NVLink
    switch. A slower network connects several domains.
    """

    device_kind: str  # jax's name for it, the key of PEAK_FLOPS
    hbm_bytes: int
    hbm_bandwidth: float
    domain: int  # the most devices of one domain
    link_bandwidth: float  # of all links of one device within the domain
    network_bandwidth: float  # of one device's share of the network between domains
    dimensions: int = 0  # of a TPU slice, such as 2 of a 4x4; 0: a GPU
    gpu: Gpu | None = None  # None: a TPU
    devices_per_chip: int = 1  # devices that are one chip, in the layout of a slice and on a bill

    @property
    def peak_flops(self) -> float:
        """Dense bf16, FLOP/s."""
        return PEAK_FLOPS[self.device_kind]

    @property
    def platform(self) -> str:
        """tpu or gpu."""
        return "tpu" if self.dimensions else "gpu"


# The same data sheets as below, NVIDIA's white papers on the two architectures, and the table of
# compute capabilities in the CUDA C++ Programming Guide.
_A100, _H100 = Gpu((8, 0), 108, 1.41, 64, 164, 40), Gpu((9, 0), 132, 1.98, 128, 228, 50)
# XLA's own targets: github.com/openxla/xla at 300ec95, xla/backends/gpu/target_config/specs.
_B200, _GB200 = Gpu((10, 0), 148, 1.965, 128, 228, 126), Gpu((10, 0), 152, 2.062, 128, 228, 129)

CHIPS = {
    # docs.cloud.google.com/tpu/docs/v4: HBM 32 GiB at 1,200 GB/s, pods of 4,096. Six links of 45
    # GB/s one way, a network of 25 GB/s a host of four chips: jax-ml.github.io/scaling-book/tpus.
    "v4": Chip("TPU v4", 32 * 2**30, 1200e9, 4096, 270e9, 6.25e9, 3),
    # docs.cloud.google.com/tpu/docs/v5e: HBM 16 GB at 800 GB/s; 400 GB/s both ways over 4 ports;
    # 6.4 Tbit/s a pod of 256.
    "v5e": Chip("TPU v5 lite", 16 * 2**30, 800e9, 256, 200e9, 3.125e9, 2),
    # docs.cloud.google.com/tpu/docs/v5p: HBM 95 GiB at 2,765 GB/s; 1,200 GB/s both ways over 6
    # links; 50 Gbit/s a chip; slices of at most 6,144 of a pod's 8,960.
    "v5p": Chip("TPU v5p", 95 * 2**30, 2765e9, 6144, 600e9, 6.25e9, 3),
    # docs.cloud.google.com/tpu/docs/v6e: HBM 32 GB at 1,600 GB/s; 800 GB/s both ways over 4 ports;
    # 25.6 Tbit/s a pod of 256.
    "v6e": Chip("TPU v6 lite", 32 * 2**30, 1600e9, 256, 400e9, 12.5e9, 2),
    # docs.cloud.google.com/tpu/docs/tpu7x: of a chip, which is two devices, 192 GiB at 7,380 GB/s,
    # 1,200 GB/s both ways between chips, 100 Gbit/s beyond; pods of 9,216.
    "tpu7x": Chip("TPU7x", 96 * 2**30, 3690e9, 2 * 9216, 300e9, 6.25e9, 3, devices_per_chip=2),
    # NVIDIA's data sheets of the A100 80GB SXM and the H100 SXM: NVLink 600 and 900 GB/s both ways.
    # Eight GPUs and eight InfiniBand ports of 200 and 400 Gbit/s: user guides of DGX A100 and H100.
    "a100": Chip("NVIDIA A100-SXM4-80GB", 80 * 10**9, 2039e9, 8, 300e9, 25e9, gpu=_A100),
    "h100": Chip("NVIDIA H100 80GB HBM3", 80 * 10**9, 3350e9, 8, 450e9, 50e9, gpu=_H100),
    # HBM 141 GB, NVLink 900 GB/s both ways: NVIDIA's own description of its machine in
    # github.com/mlcommons/inference_results_v4.1. 4.8 TB/s: its announcement of November 2023.
    "h200": Chip("NVIDIA H200", 141 * 10**9, 4800e9, 8, 450e9, 50e9, gpu=_H100),
    # nvidia.com/en-us/data-center/dgx-b200, of eight: 1,440 GB at 64 TB/s, NVLink 14.4 TB/s both
    # ways. And /gb200-nvl72, of 72: 13.4 TB at 576 TB/s, 130 TB/s. A port of 400 Gbit/s a GPU.
    "b200": Chip("NVIDIA B200", 180 * 10**9, 8000e9, 8, 900e9, 50e9, gpu=_B200),
    "gb200": Chip("NVIDIA GB200", 186 * 10**9, 8000e9, 72, 900e9, 50e9, gpu=_GB200),
}

# The share of their peak that matrix products reach, at worst and at best. Assumed for TPUs. On an
# H200 those of 24l16h reached half of it with 2,048 tokens (docs/development/speed.md).
PRODUCT_EFFICIENCY = {"tpu": (0.75, 0.75), "gpu": (0.4, 0.75)}
# Times that an array of the plain backward pass goes through main memory, at most: 4.5 in the
# programs that the compiler makes for a v5p, 0.5 to 3 in those for the other TPUs, 10 to 13 in
# those for an H100.
PASSES = {"tpu": 4.5, "gpu": 14.0}
# How much longer a device sends, at most, than over all its links at once: the axes of a small TPU
# slice do not close to rings, and a collective may take one of them after the other.
SLOWEST_NETWORK = {"tpu": 4, "gpu": 2}
# A GPU starts one operation after the other. Programs compiled for an H100 have 64 (384l1h) to 96
# (12l12h) a layer; 1.5 to 2.5 us for each is assumed.
OPERATIONS_A_LAYER = 80
OPERATION_SECONDS = (1.5e-6, 2.5e-6)

ASSUMPTIONS = (
    f"products reach {PRODUCT_EFFICIENCY['tpu'][1]:.0%} of the chip's dense bf16 peak "
    f"(GPUs: at least {PRODUCT_EFFICIENCY['gpu'][0]:.0%})",
    "memory and network reach their public bandwidth",
    "memory: at least the update, the weights and what is saved; at most "
    f"{PASSES['tpu']:g} (GPUs: {PASSES['gpu']:g}) passes more over what a backward pass reads",
    "network: weights and gradients are sent once a step; over all links at best, over a quarter (GPUs: half) at worst",
    f"GPUs: {OPERATIONS_A_LAYER} operations a layer at {OPERATION_SECONDS[0] * 1e6:g} to {OPERATION_SECONDS[1] * 1e6:g} us",
    "a step takes at least the longest of these parts and at most their sum",
)


class Range(NamedTuple):
    """Two bounds of a figure."""

    low: float
    high: float


class StepTime(NamedTuple):
    """A step of a config on so many chips, on one device."""

    rows: int
    remat_policy: str
    needed_bytes: int
    fits: bool
    products_seconds: Range
    memory_seconds: Range
    network_seconds: Range
    launches_seconds: Range
    step_seconds: Range
    mfu: Range  # by three forward passes, without recomputation
    run_hours: Range
    chip_hours: Range


def step_time(config: Config, chip: Chip, num_chips: int) -> StepTime:
    """The time of a step, and of `train.num_steps` steps, on `num_chips` chips. Raises UserError
    where the mesh or the batch does not divide over the chips, or `mesh.tensor` is above 1, whose
    sums of activations are not estimated.
    """
    num_devices = num_chips * chip.devices_per_chip
    plan = plan_run(config, Devices(num_devices, math.ceil(num_devices / chip.domain), chip.platform, chip.hbm_bytes))
    config, shape = plan.config, plan.mesh_shape
    if shape["tensor"] > 1:
        raise UserError(f"mesh.tensor = {shape['tensor']} has no estimate of time; set it to 1, or compile with --topology")
    plan = plan.count_activations()
    assert plan.remat is not None
    slow, fast = PRODUCT_EFFICIENCY[chip.platform]
    peak_seconds = product_flops(config, shape) / chip.peak_flops
    products = Range(peak_seconds / fast, peak_seconds / slow)
    memory = Range(*(size / chip.hbm_bandwidth for size in memory_bytes(plan, PASSES[chip.platform])))
    sent = network_seconds(config, shape, chip)
    network = Range(sent, sent * SLOWEST_NETWORK[chip.platform])
    launches = launch_seconds(config, chip)
    step = Range(
        max(products.low, memory.low, network.low, launches.low),
        products.high + memory.high + network.high + launches.high,
    )
    useful = step_flops(config) / num_devices / chip.peak_flops
    hours = [seconds * config.train.num_steps / 3600 for seconds in step]
    return StepTime(
        rows=config.train.batch_size // num_devices,
        remat_policy=plan.remat.policy,
        needed_bytes=plan.remat.needed_bytes,
        fits=plan.refusal is None,
        products_seconds=products,
        memory_seconds=memory,
        network_seconds=network,
        launches_seconds=launches,
        step_seconds=step,
        mfu=Range(useful / step.high, useful / step.low),
        run_hours=Range(*hours),
        chip_hours=Range(*(num_chips * time for time in hours)),
    )


@functools.cache
def _product_flops(config: Config) -> int:
    mesh, optimizer = first_device(), build_optimizer(config)
    step = functools.partial(train_step, config=config, model=build_model(config.model), optimizer=optimizer)
    state, batch = abstract_state(config, optimizer, mesh), example_batch(config, config.train.batch_size)
    with jax.set_mesh(mesh), nn.logical_axis_rules(axis_rules(config.model)):
        return _flops_of(jax.make_jaxpr(step)(run_inputs(config, mesh), shapes_of(state), shapes_of(batch)).jaxpr)


def product_flops(config: Config, shape: Mapping[str, int]) -> float:
    """FLOPs of the matrix products of one step on one device of a mesh of that shape, recomputation
    included, a multiply and an add counted as two.

    They are counted in the step as it is traced, by XLA alone: one of our kernels, which a GPU here
    would take, is traced once, however many programs it is. The compiler's program has as many, to
    1 %. A `tensor` axis is taken to divide all of them, though a single head is computed on every
    device.
    """
    train = replace(config.train, batch_size=config.train.batch_size // (shape["data"] * shape["fsdp"]))
    return _product_flops(replace(config, model=xla_config(config.model), train=train)) / shape["tensor"]


def _flops_of(jaxpr: Jaxpr) -> int:
    flops = 0
    for equation in jaxpr.eqns:
        if equation.primitive is jax.lax.dot_general_p:
            (contracted, _), _ = equation.params["dimension_numbers"]
            left, product = (cast(jax.core.ShapedArray, one.aval).shape for one in (equation.invars[0], equation.outvars[0]))
            flops += 2 * math.prod(product) * math.prod(left[axis] for axis in contracted)
        times = equation.params["length"] if equation.primitive is jax.lax.scan_p else 1
        flops += times * sum(map(_flops_of, jaxprs_in_params(equation.params)))
    return flops


def memory_bytes(plan: RunPlan, most_passes: float) -> Range:
    """Bytes that one device moves to and from its memory in a step, at least and at most.

    At least: the update reads and writes parameters and moments and reads gradients; forward pass,
    recomputation and backward pass read the weights; what is saved is written and read. At most:
    every array that a plain backward pass reads goes through memory `most_passes` times more.
    """
    config, boxed, shape = plan.config, plan.boxed, plan.mesh_shape
    needed = footprint(config, boxed, shape)
    rows = config.train.batch_size // config.train.accumulation_steps // (shape["data"] * shape["fsdp"])
    weights = parameter_counts(config.model)["total"] * jnp.dtype(config.model.compute_dtype).itemsize
    passes = config.train.accumulation_steps * (3 * weights + 2 * needed.activations)
    update = update_bytes(config.model, boxed, shape)
    plain = config.train.accumulation_steps * saved_activations(replace_policy(config, "none"), rows)
    return Range(update + passes, update + passes + most_passes * plain)


def network_seconds(config: Config, shape: Mapping[str, int], chip: Chip) -> float:
    """Seconds that one device sends in a step, over all its links.

    Weights are gathered once and gradients scattered once; with `gathered_groups` in each
    micro-batch, and the weights twice. Within a domain of m devices each sends (m-1)/m of both.
    Between k domains, the devices of a domain share (k-1)/k of both.
    """
    devices = math.prod(shape.values())
    weight = jnp.dtype(config.model.compute_dtype).itemsize
    gradient = weight if config.train.gradient_dtype == "compute" else 4
    gathered = weight if shape["fsdp"] > 1 else gradient
    passes = gathered + gradient
    if config.model.remat_policy == "gathered_groups" and shape["fsdp"] > 1:
        passes = config.train.accumulation_steps * (2 * gathered + gradient)
    payload = parameter_counts(config.model)["total"] * passes
    inside, domains = min(devices, chip.domain), math.ceil(devices / chip.domain)
    within = payload * (inside - 1) / inside / chip.link_bandwidth
    return within + payload * (domains - 1) / domains / inside / chip.network_bandwidth


def launch_seconds(config: Config, chip: Chip) -> Range:
    """Seconds that a GPU takes to start the operations of a step; none on a TPU, which runs a whole
    program.
    """
    if chip.platform == "tpu":
        return Range(0.0, 0.0)
    layers = config.model.loops * (config.model.num_layers + config.model.num_decoder_layers)
    return Range(*(config.train.accumulation_steps * layers * OPERATIONS_A_LAYER * seconds for seconds in OPERATION_SECONDS))
