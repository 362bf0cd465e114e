"""Cycles of kernels whose bundles were counted by hand, in what the compiler wrote for a v5e
(libtpu 0.0.45): lines are cut, and of LayerNorm's variance only the branches are kept.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.hlo.schedule import kernel_cycles, price, read_schedules
from mhsh.planning.hlo import parse_module
from mhsh.planning.roofline import CHIPS

SCHEDULES = read_schedules(Path(__file__).parent / "tpu_schedules")
CLOCK = 1.5e9


def attributes(operation: str, *iterations: int) -> str:
    bounds = ",".join(f'"{count}"' for count in iterations)
    window = f'{{"window_config":{{"estimated_cycles":"40050","iteration_bounds":[{bounds}]}}}}'
    return f'metadata={{op_name="jit(train_step)/{operation}"}}, backend_config={window}'


VMEM = "{1,0:T(8,128)S(1)}"
PRODUCT = attributes("jvp(Bert)/encoder/dot_general", 1, 1, 1)
VARIANCE = attributes("jvp(Bert)/encoder/norm/reduce_sum", 2, 1, 1)
AGAIN = attributes("transpose(jvp(Bert))/encoder/norm/reduce_sum", 2, 1, 1)
ELEMENTWISE = attributes("optimizer/div", 1)


# 12 layers: a product of bf16[128,128] that is in VMEM, and LayerNorm's variance of which the
# compiler writes one schedule for both of its kernels.
TEXT = f"""HloModule jit_train_step, is_scheduled=true

%variance_of (v0: f32[16,128]) -> f32[16,128] {{
  %v0 = f32[16,128]{VMEM} parameter(0)
  ROOT %squares = f32[16,128]{VMEM} multiply(%v0, %v0)
}}

%again_of (w0: f32[16,128]) -> f32[16,128] {{
  %w0 = f32[16,128]{VMEM} parameter(0)
  ROOT %squares.1 = f32[16,128]{VMEM} multiply(%w0, %w0)
}}

%product_of (q0: bf16[128,128], q1: bf16[128,128]) -> bf16[128,128] {{
  %q0 = bf16[128,128]{{1,0:T(8,128)(2,1)S(1)}} parameter(0)
  %q1 = bf16[128,128]{{1,0:T(8,128)(2,1)S(1)}} parameter(1)
  ROOT %convolution = bf16[128,128]{{1,0:T(8,128)(2,1)S(1)}} convolution(%q0, %q1), dim_labels=bf_io->bf
}}

ENTRY %main (x: bf16[128,128], s: f32[16,128]) -> f32[2048] {{
  %x = bf16[128,128]{{1,0:T(8,128)(2,1)S(1)}} parameter(0)
  %s = f32[16,128]{VMEM} parameter(1)
  %product = bf16[128,128]{{1,0:T(8,128)(2,1)S(1)}} fusion(%x, %x), kind=kOutput, calls=%product_of, {PRODUCT}
  %variance = f32[16,128]{VMEM} fusion(%s), kind=kLoop, calls=%variance_of, {VARIANCE}
  %again = f32[16,128]{VMEM} fusion(%variance), kind=kLoop, calls=%again_of, {AGAIN}
  ROOT %elementwise = f32[2048]{{0:T(1024)}} fusion(%again), kind=kLoop, calls=%variance_of, {ELEMENTWISE}
}}
"""
MODULE = parse_module(TEXT)
INSTRUCTIONS = MODULE.computations["main"].instructions


@pytest.mark.parametrize(
    ("kernel", "cycles"),
    [
        ("product", 53),  # 0 to 0x34
        ("elementwise", 9),  # 0 to 8
        # 0 to 0x3da. Its loop is 0x3 to 0x3d9, with the branch at 0x3d5 and the four bundles that
        # wait for it: 983 bundles, twice. The compiler's estimate is 40,050.
        ("variance", 4 + 2 * 983),
    ],
)
def test_kernels_counted_by_hand(kernel, cycles):
    assert kernel_cycles(SCHEDULES[kernel], INSTRUCTIONS[kernel]) == cycles


@pytest.mark.parametrize(("axis", "iterations"), [(0, 2 * 5), (1, 3 * 3), (2, 3 * 5)])
def test_two_cores_split_an_axis_of_a_kernels_window(axis, iterations):
    window = attributes("jvp(Bert)/encoder/dot_general", 3, 5, 1)
    split = f'{window}, "megacore_config":{{"megacore_split_dim":"{axis}","megacore_allreduce_bytes":"4096"}}'
    kernel = parse_module(TEXT.replace(VARIANCE, split)).computations["main"].instructions["variance"]
    assert kernel_cycles({0: 10, 1: 7}, kernel) == 10 + 7 * iterations


def test_a_step_by_part():
    parts = price(MODULE, SCHEDULES, CHIPS["v5e"], CLOCK)
    assert {name: part.cycles for name, part in parts.items() if part.cycles} == {
        "forward": 53 + 1970,
        "backward": 1970,  # like the other: one schedule for both
        "optimizer": 9,
    }
    # 128 rows through four arrays of 128 x 128 take 32 cycles, fewer than the bundles.
    assert parts["forward"].seconds == pytest.approx((53 + 1970) / CLOCK)
    # 2,048 numbers at 800 GB/s take 15 cycles, more than the bundles.
    assert parts["optimizer"].bytes == 2048 * 4
    assert parts["optimizer"].seconds == pytest.approx(2048 * 4 / 800e9)


def test_a_product_takes_at_least_its_flops():
    parts = price(MODULE, {"product": {0: 1}}, CHIPS["v5e"], CLOCK)
    assert parts["forward"].seconds == pytest.approx(2 * 128**3 / 197e12)
