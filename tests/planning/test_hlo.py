"""Collectives read out of HLO text: loops multiplied and pieces joined, against counts made by
hand.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AxisType, PartitionSpec

from mhsh.planning.hlo import Collective, launches, parse_module, read_collectives, shape_bytes


def compiled_text(function, *arguments) -> str:
    return jax.jit(function).lower(*arguments).compile().as_text()


def over_eight(function, *specs):
    mesh = jax.make_mesh((8,), ("x",), axis_types=(AxisType.Auto,))
    return jax.shard_map(function, mesh=mesh, in_specs=specs, out_specs=PartitionSpec(), check_vma=False)


def test_a_collective_in_nested_loops_counts_as_often_as_it_runs():
    def inner(x, _):
        return jnp.tanh(jax.lax.psum(x, "x")), None

    def outer(x, _):
        x, _ = jax.lax.scan(inner, x, None, length=5)
        return jax.lax.psum(x, "x") * 0.5, None

    text = compiled_text(over_eight(lambda x: jax.lax.scan(outer, x, None, length=3)[0], PartitionSpec()), jnp.ones((16, 4)))
    collectives, unknown = read_collectives(parse_module(text), 8)
    assert not unknown
    assert sorted((one.kind, one.count, one.payload, one.group) for one in collectives) == [
        ("all-reduce", 3, 16 * 4 * 4, 8),
        ("all-reduce", 15, 16 * 4 * 4, 8),
    ]


@pytest.mark.parametrize(
    ("kind", "function", "payload"),
    [
        ("all-gather", lambda x: jax.lax.all_gather(x, "x"), 8 * 64 * 4),
        ("reduce-scatter", lambda x: jax.lax.all_gather(jax.lax.psum_scatter(x, "x", tiled=True), "x"), 64 * 4),
        ("collective-permute", lambda x: jax.lax.ppermute(x, "x", [(i, (i + 1) % 8) for i in range(8)]), 64 * 4),
    ],
)
def test_the_payload_is_the_whole_array(kind, function, payload):
    text = compiled_text(over_eight(function, PartitionSpec("x")), jnp.ones((8 * 64,)))
    collectives, _ = read_collectives(parse_module(text), 8)
    assert [(one.count, one.payload) for one in collectives if one.kind == kind] == [(1, payload)]


@pytest.mark.parametrize(
    ("kind", "sent"),
    [("all-reduce", 2 * 7 / 8), ("all-gather", 7 / 8), ("reduce-scatter", 7 / 8), ("all-to-all", 7 / 8), ("collective-permute", 1)],
)
def test_what_a_ring_sends(kind, sent):
    collective = Collective(kind, count=3, group=8, payload=800, dtypes=("f32",), source="")
    assert collective.bytes == 2400
    assert collective.sent_bytes == 2400 * sent


# What the TPU compiler writes: no trip count, a counter that goes up by two, a gather cut into
# pieces one of which lies inside the loop, and a reduce-scatter as a fusion; 4 of 8 devices in a
# group, in every way of writing groups.
TPU_TEXT = """\
HloModule jit_step, is_scheduled=true

%body (p: (u32[], bf16[4,8])) -> (u32[], bf16[4,8]) {
  %p = (u32[]{:T(128)}, bf16[4,8]{1,0:T(8,128)(2,1)S(1)}) parameter(0)
  %i = u32[]{:T(128)} get-tuple-element(%p), index=0
  %two = u32[] constant(2)
  %next = u32[] add(%i, %two)
  %x = bf16[4,8]{1,0:T(8,128)(2,1)} get-tuple-element(%p), index=1
  %send = (bf16[4,8]{1,0}, bf16[4,8]{1,0}, u32[], u32[]) collective-permute-start(%x), channel_id=5, source_target_pairs={{0,1}}
  %sent = bf16[4,8]{1,0} collective-permute-done(%send)
  %gather = bf16[4,32]{1,0} all-gather(%x), channel_id=9, replica_groups={{0,1,2,3},{4,5,6,7}}, frontend_attributes={chain_id="3"}
  ROOT %t = (u32[], bf16[4,8]{1,0}) tuple(%next, %sent)
}

%condition (q: (u32[], bf16[4,8])) -> pred[] {
  %bound = u32[] constant(7)
  %q = (u32[], bf16[4,8]) parameter(0)
  %j = u32[] get-tuple-element(%q), index=0
  ROOT %less = pred[] compare(%j, %bound), direction=LT, metadata={op_name="jit(step)/while/lt"}
}

%all-reduce-scatter.1 (input: f32[8,16]) -> f32[8,4] {
  %input = f32[8,16]{1,0} parameter(0)
  %sum = f32[8,16]{1,0} all-reduce(%input), channel_id=6, replica_groups=mesh['a'=2,'b'=4] {'b'}, to_apply=%add
  %zero = u32[] constant(0)
  ROOT %slice = f32[8,4]{1,0} dynamic-slice(%sum, %zero, %zero), dynamic_slice_sizes={8,4}
}

ENTRY %main (a: bf16[4,8], g: f32[8,16]) -> bf16[4,8] {
  %a = bf16[4,8]{1,0} parameter(0)
  %g = f32[8,16]{1,0} parameter(1)
  %start = u32[] constant(1)
  %first = bf16[4,32]{1,0} all-gather(%a), channel_id=9, replica_groups={{0,1,2,3},{4,5,6,7}}, frontend_attributes={chain_id="3"}
  %scattered = f32[8,4]{1,0} fusion(%g), kind=kCustom, calls=%all-reduce-scatter.1
  %summed = f32[8,16] all-reduce(%g), replica_groups=mesh['a'=4,'b'=2], device_ids=([2,4]T(1,0)) {'a'}, metadata={op_name="sum"}
  %token = token[] after-all()
  %out-of-the-slice = (f32[8,4]{1,0}, u32[], token[]) send(%scattered, %token), frontend_attributes={_xla_megascale_target="{1,2}"}
  %alone = f32[8,16]{1,0} all-reduce(%g), channel_id=8, replica_groups=[8,1]<=[8], to_apply=%add
  %init = (u32[], bf16[4,8]{1,0}) tuple(%start, %a)
  %loop = (u32[], bf16[4,8]{1,0}) while(%init), condition=%condition, body=%body
  ROOT %out = bf16[4,8]{1,0} get-tuple-element(%loop), index=1
}
"""


def test_collectives_of_one_channel_are_told_apart_and_counted_as_they_travel():
    """jax gives one channel to all collectives that it writes; a conversion may be folded in."""
    text = """
ENTRY %main (a: bf16[4,8], g: f32[8,16]) -> f32[8,16] {
  %a = bf16[4,8]{1,0} parameter(0)
  %g = f32[8,16]{1,0} parameter(1)
  %one = bf16[16,8]{1,0} all-gather(%a), channel_id=1, replica_groups={{0,1,2,3}}, dimensions={0}
  %two = bf16[16,8]{1,0} all-gather(%a), channel_id=1, replica_groups={{0,1,2,3}}, dimensions={0}
  %narrow = bf16[8,16]{1,0} all-reduce(%g), channel_id=1, replica_groups={{0,1,2,3}}, to_apply=%add
  %part = f32[2,16]{1,0} reduce-scatter(%g), channel_id=1, replica_groups={{0,1,2,3}}, dimensions={0}, to_apply=%add
  ROOT %out = f32[8,16]{1,0} copy(%g)
}
"""
    collectives, _ = read_collectives(parse_module(text), 4)
    gather = ("all-gather", 16 * 8 * 2, ("bf16",))
    others = [("all-reduce", 8 * 16 * 2, ("bf16",)), ("reduce-scatter", 8 * 16 * 4, ("f32",))]
    assert [(one.kind, one.payload, one.dtypes) for one in collectives] == [gather, gather, *others]


def test_collectives_in_a_call_beside_others_count():
    """As the compiler puts them on a TPU7x's SparseCores."""
    text = """
%on_a_sparse_core (p: bf16[4,8]) -> bf16[16,8] {
  %p = bf16[4,8]{1,0} parameter(0)
  ROOT %gathered = bf16[16,8]{1,0} all-gather(%p), channel_id=1, replica_groups={{0,1,2,3}}, dimensions={0}
}

ENTRY %main (a: bf16[4,8]) -> bf16[16,8] {
  %a = bf16[4,8]{1,0} parameter(0)
  %start = ((), (), (s32[1]{0:T(128)S(2)})) call-start(), async_execution_thread="sparsecore", to_apply=%on_a_sparse_core
  %update = ((bf16[4,8]{1,0}), bf16[16,8]{1,0}) call-update(%start, %a)
  ROOT %done = bf16[16,8]{1,0} call-done(%update)
}
"""
    collectives, _ = read_collectives(parse_module(text), 4)
    assert [(one.kind, one.count, one.payload) for one in collectives] == [("all-gather", 1, 16 * 8 * 2)]


def test_what_the_tpu_compiler_writes():
    collectives, unknown = read_collectives(parse_module(TPU_TEXT), 8)
    assert not unknown
    assert {one.kind: (one.count, one.group, one.payload) for one in collectives} == {
        "collective-permute": (3, 8, 64),  # counter 1, 3, 5
        "all-gather": (1, 4, 4 * 64),  # its piece inside the loop is not a gather of its own
        "reduce-scatter": (1, 4, 512),
        "between-slices": (1, 8, 128),
        "all-reduce": (1, 4, 512),  # the one of a single device moves nothing
    }
    assert [one.source for one in collectives if one.kind == "all-reduce"] == ["sum"]
    assert {dtype for one in collectives for dtype in one.dtypes} == {"bf16", "f32"}


def test_a_loop_that_cannot_be_followed_is_named():
    text = TPU_TEXT.replace("%start = u32[] constant(1)", "%start = u32[] partition-id()")
    assert read_collectives(parse_module(text), 8)[1] == ["loop"]


def test_bytes_of_shapes():
    assert shape_bytes("f32[2,3]{1,0:T(8,128)S(1)}") == 24
    assert shape_bytes("(bf16[4]{0}, pred[3], /*index=2*/u32[])") == 8 + 3 + 4
    assert shape_bytes("f8e4m3fn[5]") == 5


# What XLA writes for a GPU, shortened: a loop of 12 layers.
GPU_TEXT = """
%body (p: (s32[], f32[8])) -> (s32[], f32[8]) {
  %p = (s32[], f32[8]{0}) parameter(0)
  %i = s32[] get-tuple-element(%p), index=0
  %x = f32[8]{0} get-tuple-element(%p), index=1
  %dot = f32[8]{0} fusion(%x), kind=kCustom, calls=%gemm
  %start = ((f32[8]{0}), f32[8]{0}) all-reduce-start(%dot), replica_groups={{0,1}}
  %done = f32[8]{0} all-reduce-done(%start)
  %copy = f32[8]{0} copy(%done)
  ROOT %t = (s32[], f32[8]{0}) tuple(%i, %copy)
}

ENTRY %main (a: f32[8]) -> f32[8] {
  %a = f32[8]{0} parameter(0)
  %zero = s32[] constant(0)
  %t = (s32[], f32[8]{0}) tuple(%zero, %a)
  %while = (s32[], f32[8]{0}) while(%t), condition=%c, body=%body, backend_config={"known_trip_count":{"n":"12"}}
  %y = f32[8]{0} get-tuple-element(%while), index=1
  ROOT %r = f32[8]{0} fusion(%y), kind=kLoop, calls=%scale
}
"""


def test_what_a_gpu_starts():
    """A product, a sum over two GPUs and a copy in each layer, and an operation after the last."""
    assert launches(parse_module(GPU_TEXT)) == 12 * 3 + 1
