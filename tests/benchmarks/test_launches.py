"""Operations counted in a list of thunks as XLA writes it."""

from __future__ import annotations

from benchmarks.hlo.launches import Body, read_thunks

# Shortened: a graph of two kernels; a loop whose body is a graph of two kernels, a copy of a slice
# and a kernel; a copy.
THUNKS = """\
000: kCommandBuffer [source       | next=002 (1)]
    001: kCustomKernel [source | sink] loop_add_fusion grid: [1, 1, 1]
    002: kCopy         [source | sink] kCopy
003: kWhile         [prev=000 (1) | next=010 (1)]
condition:
    004: kCustomKernel [source | sink] loop_compare_fusion
  body:
    000: kCommandBuffer [source | next=007 (1)]
        005: kCustomKernel [source | sink] gemm_fusion_dot
        006: kCustomKernel [source | sink] fusion_3
    007: kDynamicSliceFusion [prev=000 (1) | next=009 (1)] params=1, results=1
        008: kCopy [source | sink] kCopy
    009: kCustomKernel [prev=007 (1) | sink] loop_add_fusion_4
010: kCopy         [prev=003 (1) | sink] kCopy
"""


def test_a_graph_is_started_as_one():
    assert read_thunks(THUNKS.splitlines()) == [Body(operations=3, by_host=2), Body(operations=4, by_host=3)]


# A loop within a graph.
LOOP_IN_A_GRAPH = """\
000: kCommandBuffer [source | sink]
    001: kCustomKernel [source | next=002 (1)] loop_add_fusion
    002: kWhile        [prev=001 (1)  | next=006 (1) ]
condition:
        003: kCustomKernel [source | sink] loop_compare_fusion
      body:
        004: kCustomKernel [source | next=005 (1)] gemm_fusion_dot
        005: kCustomKernel [prev=004 (1) | sink] fusion_3
    006: kCopy         [prev=002 (1) | sink] kCopy
"""


def test_the_host_starts_nothing_of_a_loop_in_a_graph():
    assert read_thunks(LOOP_IN_A_GRAPH.splitlines()) == [Body(operations=2, by_host=1), Body(operations=2, by_host=0)]
