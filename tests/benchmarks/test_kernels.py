"""Operations and bytes of a loop, of what is around it, and of our kernels, counted by hand."""

from __future__ import annotations

import pytest

from benchmarks.hlo.kernels import Work, count_work
from mhsh.planning.hlo import parse_module

# A loop of three iterations that doubles a kilobyte; a product of its result before the end.
PROGRAM = """\
HloModule m

%body (state: (s32[], f32[256])) -> (s32[], f32[256]) {
  %state = (s32[], f32[256]) parameter(0)
  %count = s32[] get-tuple-element(%state), index=0
  %x = f32[256]{0} get-tuple-element(%state), index=1
  %doubled = f32[256]{0} add(%x, %x)
  ROOT %next = (s32[], f32[256]) tuple(%count, %doubled)
}

%condition (state: (s32[], f32[256])) -> pred[] {
  %state = (s32[], f32[256]) parameter(0)
  ROOT %true = pred[] constant(true)
}

ENTRY %main (x: f32[256]) -> f32[256] {
  %x = f32[256]{0} parameter(0)
  %zero = s32[] constant(0)
  %start = (s32[], f32[256]) tuple(%zero, %x)
  %loop = (s32[], f32[256]) while(%start), condition=%condition, body=%body, backend_config={"known_trip_count":{"n":"3"}}
  %last = f32[256]{0} get-tuple-element(%loop), index=1
  ROOT %out = f32[256]{0} multiply(%last, %last)
}
"""


def test_a_loop_and_the_whole():
    whole, loops = count_work(parse_module(PROGRAM))
    assert loops == Work(operations=3, bytes=3 * 3 * 1024)  # two operands and a result each time
    assert whole == Work(operations=4, bytes=4 * 3 * 1024)


@pytest.mark.parametrize(
    "attributes",
    [
        r'backend_config={name = "k", serialized_metadata = "{\22bytes\22: \2296\22}"}',  # Pallas on Triton
        'custom_call_target="mosaic_gpu_v2", frontend_attributes={bytes="96"}',
    ],
)
def test_a_kernel_that_states_its_bytes(attributes):
    program = PROGRAM.replace("multiply(%last, %last)", f"custom-call(%last), {attributes}")
    assert count_work(parse_module(program))[0] == Work(operations=4, bytes=3 * 3 * 1024 + 96)
