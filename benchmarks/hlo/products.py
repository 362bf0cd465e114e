"""The FLOPs of a compiled program's matrix products, read out of its HLO text."""

from __future__ import annotations

import functools
import math
import re

from benchmarks.hlo.arrays import arrays
from mhsh.planning.hlo import Computation, Instruction, Module, Step, execution, expand_fusion


def product_flops(module: Module) -> int:
    """FLOPs of one run, a multiply and an add counted as two, loops in full and recomputation
    included.
    """
    return sum(step.times * flops_of(module, step) for step in execution(module, []))


def flops_of(module: Module, step: Step) -> int:
    """FLOPs of one run of an instruction."""
    flops = 0
    for part in expand_fusion(module, step):
        if part.instruction.opcode == "dot":
            flops += _dot_flops(part.computation, part.instruction)
        elif part.instruction.opcode == "convolution":
            flops += _convolution_flops(part.computation, part.instruction)
    return flops


def _sizes(shape: str) -> tuple[int, ...]:
    (array,) = arrays(shape)
    return array.sizes


def _dot_flops(computation: Computation, dot: Instruction) -> int:
    left = _sizes(computation.instructions[dot.operands[0]].shape)
    contracted = [left[int(axis)] for axis in re.findall(r"\d+", dot.attribute("lhs_contracting_dims"))]
    return 2 * math.prod(_sizes(dot.shape)) * math.prod(contracted)


def _convolution_flops(computation: Computation, convolution: Instruction) -> int:
    """The TPU compiler writes matrix products as convolutions, batch axes as window axes of which
    most taps meet padding; taps that meet padding or dilation cost nothing. The count is that of
    XLA's HloCostAnalysis.
    """
    left, right = (_sizes(computation.instructions[name].shape) for name in convolution.operands[:2])
    out = _sizes(convolution.shape)
    labels = re.match(r"(\w+)_(\w+)->(\w+)", convolution.attribute("dim_labels"))
    assert labels is not None, convolution
    window = _window(convolution)
    taps = 1
    for index in range(len(left) - 2):
        axis = str(index)
        sizes = left[labels[1].index(axis)], right[labels[2].index(axis)], out[labels[3].index(axis)]
        taps *= _real_taps(*sizes, *(window[name][index] if name in window else default for name, default in _WINDOW_DEFAULTS))
    groups, batch_groups = (int(convolution.attribute(name) or 1) for name in ("feature_group_count", "batch_group_count"))
    features, kernels, rows = left[labels[1].index("f")], right[labels[2].index("o")], left[labels[1].index("b")]
    return 2 * (features // groups) * kernels * (rows // batch_groups) * taps


_WINDOW_DEFAULTS = (("stride", "1"), ("pad", "0_0"), ("lhs_dilate", "1"), ("rhs_dilate", "1"))


def _window(convolution: Instruction) -> dict[str, list[str]]:
    text = re.search(r"window=\{([^}]*)\}", convolution.attributes)
    return {} if not text else {name: values.split("x") for name, values in re.findall(r"(\w+)=(\S+)", text[1])}


@functools.cache
def _real_taps(size: int, kernel: int, out: int, stride: str, pad: str, lhs_dilate: str, rhs_dilate: str) -> int:
    """Pairs of an output position and a kernel position of one window axis that meet an element of
    the input.
    """
    low, dilation, extent = int(pad.split("_")[0]), int(lhs_dilate), (size - 1) * int(lhs_dilate) + 1
    if kernel == 1 and int(stride) == 1 and dilation == 1 and low == 0:
        return min(out, size)
    positions = (o * int(stride) + k * int(rhs_dilate) - low for o in range(out) for k in range(kernel))
    return sum(0 <= position < extent and position % dilation == 0 for position in positions)
