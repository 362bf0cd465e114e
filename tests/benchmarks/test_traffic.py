"""Bytes to and from main memory, each figure counted by hand: on compiled programs of this machine,
and on text as the TPU compiler writes it.
"""

from __future__ import annotations

from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from benchmarks.hlo.arrays import Array, arrays
from benchmarks.hlo.traffic import PHASES, count_traffic
from mhsh.planning.hlo import parse_module


def traffic_of(function, *arguments, **options):
    return count_traffic(parse_module(jax.jit(function, **options).lower(*arguments).compile().as_text()))


ROW = 64 * 1024 * 4  # bytes of float32[64,1024]


def test_an_elementwise_function_reads_its_operands_and_writes_its_result():
    ones = jnp.ones((64, 1024))
    traffic = traffic_of(lambda x, y: jnp.tanh(x) * y + 1.0, ones, ones)
    assert (traffic.read, traffic.written) == (2 * ROW, ROW)


def test_a_matrix_product_reads_both_factors_once():
    traffic = traffic_of(lambda x, w: x @ w, jnp.ones((64, 1024)), jnp.ones((1024, 32)))
    assert (traffic.read, traffic.written) == (ROW + 1024 * 32 * 4, 64 * 32 * 4)


def test_a_loop_reads_a_slice_of_a_stack_and_writes_one_each_time():
    def body(carry, x):
        return carry, jnp.sin(x)

    traffic = traffic_of(lambda xs: jax.lax.scan(body, 0.0, xs)[1], jnp.ones((7, 64, 1024)))
    assert [(buffer.shape, buffer.read, buffer.written) for buffer in traffic.buffers[:2]] == [
        ("f32[7,64,1024]", 0, 2 * 7 * ROW),  # filled with zeros, then written row by row
        ("f32[7,64,1024]", 7 * ROW, 0),
    ]
    assert traffic.read == pytest.approx(7 * ROW, rel=1e-3)  # and the counter


def test_a_gather_reads_the_rows_it_takes():
    traffic = traffic_of(lambda table, rows: table[rows], jnp.ones((4096, 1024)), jnp.arange(64))
    assert traffic.written == ROW
    assert traffic.read == pytest.approx(ROW, rel=1e-2)  # and the row numbers


def test_an_update_in_place_writes_the_update():
    traffic = traffic_of(
        lambda table, row: jax.lax.dynamic_update_slice(table, row, (3, 0)),
        jnp.ones((4096, 1024)),
        jnp.ones((1, 1024)),
        donate_argnums=0,
    )
    assert traffic.written == 1024 * 4
    assert traffic.read == 1024 * 4 + 2 * 4  # the row, and where it goes


# What the TPU compiler writes, shortened: a loop of 12 layers whose stream stays in VMEM (S(1)).
# Each layer takes its own bf16 slice of a float32 stack, multiplies, and writes into a stack of
# bf16[12,16,64]; then a custom call reads the stream and writes main memory.
TPU_TEXT = (Path(__file__).parent / "tpu_loop.hlo").read_text()
# Rows of 1,000 and of 64 are padded to 1,024 and 128.
STACK_SLICE, OUTPUT_SLICE, WEIGHTS = 16 * 1024 * 4, 16 * 128 * 2, 1000 * 128 * 2


def test_what_the_tpu_compiler_writes():
    traffic = count_traffic(parse_module(TPU_TEXT))
    assert [tuple(buffer) for buffer in traffic.buffers] == [
        ("state.params[stack]", "f32[12,16,1000]", 12 * STACK_SLICE, 0),
        ("state.params[kernel]", "bf16[1000,64]", WEIGHTS, 0),
        # The custom call reads all of it.
        ("jvp(Bert)/encoder/layers/query/dot_general", "bf16[12,16,64]", 12 * OUTPUT_SLICE, 12 * OUTPUT_SLICE),
        ("transpose(jvp(Bert))/encoder/kernel", "f32[16,64]", 0, 16 * 128 * 4),
    ]
    assert traffic.read == sum(buffer.read for buffer in traffic.buffers)
    assert traffic.written == sum(buffer.written for buffer in traffic.buffers)
    assert traffic.by_phase == dict.fromkeys(PHASES, 0) | {
        "forward": 12 * (STACK_SLICE + OUTPUT_SLICE),
        "backward": 12 * OUTPUT_SLICE + 16 * 128 * 4,
        "other": WEIGHTS,
    }


# A fusion in a fusion, which updates two stacks in place, as the compiler for a v5e makes of 100
# layers with fsdp.
BOTH = "(f32[12,16]{1,0}, f32[12,16]{1,0})"
PARAMETERS = """
  %p0 = f32[12,16]{1,0} parameter(0)
  %p1 = f32[12,16]{1,0} parameter(1)
  %p2 = f32[1,16]{1,0} parameter(2)
  %p3 = s32[] parameter(3)"""
NESTED = f"""HloModule nested

%inner (p0: f32[12,16], p1: f32[12,16], p2: f32[1,16], p3: s32[]) -> {BOTH} {{{PARAMETERS}
  %zero = s32[] constant(0)
  %left = f32[12,16]{{1,0}} dynamic-update-slice(%p0, %p2, %p3, %zero)
  %right = f32[12,16]{{1,0}} dynamic-update-slice(%p1, %p2, %p3, %zero)
  ROOT %both = {BOTH} tuple(%left, %right)
}}

%outer (p0: f32[12,16], p1: f32[12,16], p2: f32[1,16], p3: s32[]) -> {BOTH} {{{PARAMETERS}
  ROOT %within = {BOTH} fusion(%p0, %p1, %p2, %p3), kind=kLoop, calls=%inner
}}

ENTRY %main (p0: f32[12,16], p1: f32[12,16], p2: f32[1,16], p3: s32[]) -> {BOTH} {{{PARAMETERS}
  %outside = {BOTH} fusion(%p0, %p1, %p2, %p3), kind=kLoop, calls=%outer
  %first = f32[12,16]{{1,0}} get-tuple-element(%outside), index=0
  %second = f32[12,16]{{1,0}} get-tuple-element(%outside), index=1
  ROOT %out = {BOTH} tuple(%first, %second)
}}
"""


def test_stacks_updated_by_a_fusion_in_a_fusion():
    traffic = count_traffic(parse_module(NESTED))
    row = 16 * 4
    assert (traffic.read, traffic.written) == (row + 4, 2 * row)
    written = [(buffer.source, buffer.written) for buffer in traffic.buffers if buffer.written]
    assert sorted(written) == [("p0", row), ("p1", row)]


# As the compiler for a TPU7x slices a stack, whose tiles it first reads as others.
RETILED = """HloModule retiled

%tiles (p0: bf16[12,16,128]) -> bf16[12,16,128] {
  %p0 = bf16[12,16,128]{2,1,0:T(16,128)(2,1)} parameter(0)
  ROOT %copy = bf16[12,16,128]{2,1,0:T(8,128)(2,1)} copy(%p0)
}

%slice (p0: bf16[12,16,128], p1: s32[]) -> bf16[1,16,128] {
  %p0 = bf16[12,16,128]{2,1,0:T(16,128)(2,1)} parameter(0)
  %p1 = s32[] parameter(1)
  %zero = s32[] constant(0)
  %tiled = bf16[12,16,128]{2,1,0:T(8,128)(2,1)} fusion(%p0), kind=kLoop, output_to_operand_aliasing={{}: (0, {})}, calls=%tiles
  ROOT %row = bf16[1,16,128]{2,1,0:T(8,128)(2,1)} dynamic-slice(%tiled, %p1, %zero, %zero), dynamic_slice_sizes={1,16,128}
}

ENTRY %main (x: bf16[12,16,128], at: s32[]) -> bf16[1,16,128] {
  %x = bf16[12,16,128]{2,1,0:T(16,128)(2,1)} parameter(0)
  %at = s32[] parameter(1)
  ROOT %out = bf16[1,16,128]{2,1,0:T(8,128)(2,1)} fusion(%x, %at), kind=kLoop, calls=%slice
}
"""


def test_a_slice_of_a_stack_that_is_read_in_other_tiles():
    row = 16 * 128 * 2
    traffic = count_traffic(parse_module(RETILED))
    assert (traffic.read, traffic.written) == (row + 4, row)


# A row of the four layers of an iteration, as the compiler for GPUs takes one.
SLICED_TWICE = """HloModule twice

%third (p0: f32[12,4,16], p1: s32[]) -> f32[16] {
  %p0 = f32[12,4,16]{2,1,0} parameter(0)
  %p1 = s32[] parameter(1)
  %zero = s32[] constant(0)
  %layers = f32[1,4,16]{2,1,0} dynamic-slice(%p0, %p1, %zero, %zero), dynamic_slice_sizes={1,4,16}
  %rows = f32[4,16]{1,0} bitcast(%layers)
  %row = f32[1,16]{1,0} slice(%rows), slice={[2:3], [0:16]}
  ROOT %out = f32[16]{0} bitcast(%row)
}

ENTRY %main (x: f32[12,4,16], at: s32[]) -> f32[16] {
  %x = f32[12,4,16]{2,1,0} parameter(0)
  %at = s32[] parameter(1)
  ROOT %out = f32[16]{0} fusion(%x, %at), kind=kLoop, calls=%third
}
"""


def test_of_a_slice_that_is_sliced_again_the_inner_slice_is_read():
    traffic = count_traffic(parse_module(SLICED_TWICE))
    assert (traffic.read, traffic.written) == (16 * 4 + 4, 16 * 4)


# A stack of 12 rows is made of zeros, and a computation that is called writes one row of it.
CALLED = """HloModule called

%update (p0: f32[12,16], p1: f32[1,16], p2: s32[]) -> f32[12,16] {
  %p0 = f32[12,16]{1,0} parameter(0)
  %p1 = f32[1,16]{1,0} parameter(1)
  %p2 = s32[] parameter(2)
  ROOT %row = f32[12,16]{1,0} dynamic-update-slice(%p0, %p1, %p2, %p2)
}

ENTRY %main (x: f32[1,16], at: s32[]) -> f32[12,16] {
  %x = f32[1,16]{1,0} parameter(0)
  %at = s32[] parameter(1)
  %zero = f32[] constant(0)
  %stack = f32[12,16]{1,0} broadcast(%zero), dimensions={}
  ROOT %out = f32[12,16]{1,0} call(%stack, %x, %at), to_apply=%update
}
"""


def test_a_call_takes_and_gives_the_same_array():
    row = 16 * 4
    traffic = count_traffic(parse_module(CALLED))
    assert [(buffer.shape, buffer.read, buffer.written) for buffer in traffic.buffers[:2]] == [
        ("f32[12,16]", 0, 12 * row + row),
        ("f32[1,16]", row, 0),
    ]


def test_only_so_many_buffers_are_named():
    every, two = (count_traffic(parse_module(TPU_TEXT), worst) for worst in (10, 2))
    assert two.buffers == every.buffers[:2]
    assert two.read == every.read


@pytest.mark.parametrize(
    ("operation_name", "phase"),
    [
        ("jit(train_step)/jvp(Bert)/encoder/while/body/layers/norm/mul", "forward"),
        ("jit(train_step)/transpose(jvp(Bert))/encoder/while/body/checkpoint/layers/norm/mul", "backward"),
        ("jit(train_step)/transpose(jvp(Bert))/encoder/while/body/checkpoint/rematted_computation/layers/norm/mul", "recomputed"),
        ("jit(train_step)/transpose(jvp(Bert))/prediction/dot_general", "head"),
        ("jit(train_step)/jvp(loss)/reduce_max", "head"),
        ("jit(train_step)/optimizer/mul", "optimizer"),
        ("jit(train_step)/reduce_sum", "other"),
    ],
)
def test_the_part_of_a_step_that_an_operation_belongs_to(operation_name, phase):
    text = f"""HloModule one

ENTRY %main (x: f32[8,128]) -> f32[8,128] {{
  %x = f32[8,128]{{1,0}} parameter(0)
  ROOT %y = f32[8,128]{{1,0}} sine(%x), metadata={{op_name="{operation_name}"}}
}}
"""
    assert count_traffic(parse_module(text)).by_phase[phase] == 2 * 8 * 128 * 4


@pytest.mark.parametrize(
    ("shape", "array", "padded"),
    [
        ("f32[16,1000]{1,0:T(8,128)}", Array("f32", (16, 1000), (1, 0), (8, 128), 0), 16 * 1024 * 4),
        ("f32[1000,9]{0,1:T(8,128)S(1)}", Array("f32", (1000, 9), (0, 1), (8, 128), 1), 16 * 1024 * 4),
        ("bf16[64]{0:T(256)(128)(2,1)S(1)}", Array("bf16", (64,), (0,), (256,), 1), 256 * 2),
        ("s32[]{:T(128)S(6)}", Array("s32", (), (), (128,), 6), 4),
        ("pred[3,5]", Array("pred", (3, 5), (), (), 0), 15),
    ],
)
def test_padding_to_whole_tiles(shape, array, padded):
    assert arrays(shape) == [array]
    assert array.padded_bytes == padded
