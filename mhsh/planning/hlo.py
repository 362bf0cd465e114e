"""Reading a compiled step's HLO text: which collectives run how often and move how much, and the
FLOPs of its matrix products.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable
from typing import NamedTuple

from mhsh.planning.hlo_execution import Step, execution, inside
from mhsh.planning.hlo_text import Computation, Instruction, Module, arrays, shape_bytes

KINDS = (
    "all-reduce",
    "all-gather",
    "reduce-scatter",
    "all-to-all",
    "ragged-all-to-all",
    "collective-permute",
    "collective-broadcast",
    "between-slices",
)

# What one device sends in a ring over n devices, as a share of the payload (the whole array that is
# reduced or put together).
_RING_SHARE: dict[str, Callable[[int], float]] = {
    "all-reduce": lambda n: 2 * (n - 1) / n,
    "collective-permute": lambda n: 1.0,
    "collective-broadcast": lambda n: 1.0,
    "between-slices": lambda n: 1.0,
}


class Collective(NamedTuple):
    """One collective of the program, over all its runs in a step."""

    kind: str  # one of KINDS; between-slices is the part of a collective that leaves a TPU slice, whose rest is listed apart
    count: int  # runs in a step: the trip counts of the loops around it multiplied
    group: int  # devices that take part together
    payload: int  # bytes of one run: the whole array that is reduced, put together or sent, as one device sees it
    dtypes: tuple[str, ...]
    source: str  # where in the model it comes from: JAX's operation path

    @property
    def bytes(self) -> int:
        """Payload bytes of a step on one device."""
        return self.count * self.payload

    @property
    def sent_bytes(self) -> int:
        """Bytes that one device sends in a step if the collective runs as a ring."""
        return round(self.bytes * _RING_SHARE.get(self.kind, lambda n: (n - 1) / n)(self.group))


class Program(NamedTuple):
    """What the text of an optimised module says about one run of it on one device."""

    collectives: tuple[Collective, ...]
    matrix_flops: int  # a multiply and an add counted as two; loops in full, recomputation included
    unknown_loops: tuple[str, ...]  # loops whose trip count could not be read, counted as one


def read_program(module: Module, num_devices: int) -> Program:
    """Reads the module of a program partitioned over `num_devices`.

    A collective that the compiler split into pieces counts once; groups of one device move nothing
    and are left out.
    """
    found: dict[tuple[str, ...], Collective] = {}
    flops = 0
    unknown: list[str] = []
    for step in (part for whole in execution(module, unknown) for part in inside(module, whole)):
        kind = _collective_kind(step.computation, step.instruction)
        if kind:
            collective, identity = _collective(step, kind, num_devices), _identity(step, kind)
            if collective.group > 1:
                found[identity] = min(found.get(identity, collective), collective, key=lambda one: one.count)
        elif step.instruction.opcode == "dot":
            flops += step.times * _dot_flops(step.computation, step.instruction)
        elif step.instruction.opcode == "convolution":
            flops += step.times * _convolution_flops(step.computation, step.instruction)
    return Program(tuple(found.values()), flops, tuple(unknown))


def _collective_kind(computation: Computation, instruction: Instruction) -> str | None:
    if instruction.opcode == "send" and "xla_megascale" in instruction.attributes:
        return "between-slices"  # what a device hands to its host for the network between slices
    kind = instruction.opcode.removesuffix("-start")
    if kind == "all-reduce" and computation.name.startswith("all-reduce-scatter"):
        return "reduce-scatter"  # the TPU compiler writes one as an all-reduce and a slice in a fusion of this name
    return kind if kind in KINDS else None


def _identity(step: Step, kind: str) -> tuple[str, ...]:
    """What the pieces of one collective have in common. The TPU compiler hides a collective behind
    other work as a chain of pieces, some of them inside loops that run while it is under way: the
    piece that runs least often says how often the collective does. Pieces have a chain's number; a
    channel's does not tell, as jax gives one channel to all collectives that it writes.
    """
    chain = re.search(r'chain_id="(\d+)"', step.instruction.attributes)
    if chain:
        return (kind, step.instruction.attribute("channel_id"), chain[1])
    return (step.frame, kind, step.computation.name, step.instruction.name)


def _collective(step: Step, kind: str, num_devices: int) -> Collective:
    instruction = step.instruction
    group = num_devices if kind in ("collective-permute", "between-slices") else _group_size(instruction, num_devices)
    # What travels has the result's dtype: the TPU compiler folds a conversion of the operand into
    # the collective. The result of a `-start` or a `send` has other things too.
    by_result = kind == "all-reduce" or instruction.opcode in KINDS
    shapes = [instruction.shape] if by_result else [step.computation.instructions[name].shape for name in instruction.operands]
    parts = {"all-gather": not by_result, "reduce-scatter": instruction.opcode == "reduce-scatter"}
    payload = sum(shape_bytes(shape) for shape in shapes) * (group if parts.get(kind, False) else 1)
    dtypes = tuple(sorted({dtype for shape in shapes for dtype in re.findall(r"\b([a-z]+\d+\w*)\[", shape)}))
    return Collective(kind, step.times, group, payload, dtypes, instruction.operation)


def _group_size(instruction: Instruction, num_devices: int) -> int:
    """Devices in one replica group, in each of the three ways HLO writes them."""
    attributes = instruction.attributes
    mesh = re.search(r"replica_groups=mesh\[([^\]]*)\](?:, device_ids=\([^{]*\))?\s*\{([^}]*)\}", attributes)
    if mesh:
        sizes = dict(re.findall(r"'([^']+)'=(\d+)", mesh[1]))
        axes = re.findall(r"'([^']+)'(?::\(\d+\)(\d+))?", mesh[2])
        return math.prod(int(part or sizes[axis]) for axis, part in axes)
    iota = re.search(r"replica_groups=\[(\d+),(\d+)\]<=", attributes)
    if iota:
        return int(iota[2])
    listed = re.search(r"replica_groups=\{\{([\d,]+)\}", attributes)
    return len(listed[1].split(",")) if listed else num_devices


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
    for place in range(len(left) - 2):
        axis = str(place)
        sizes = left[labels[1].index(axis)], right[labels[2].index(axis)], out[labels[3].index(axis)]
        taps *= _real_taps(*sizes, *(window[name][place] if name in window else default for name, default in _WINDOW_DEFAULTS))
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
    places = (o * int(stride) + k * int(rhs_dilate) - low for o in range(out) for k in range(kernel))
    return sum(0 <= place < extent and place % dilation == 0 for place in places)
