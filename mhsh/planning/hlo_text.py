"""HLO text as computations and instructions: names, shapes, operands and attributes, nothing
interpreted.
"""

from __future__ import annotations

import math
import re
from typing import NamedTuple

_COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\{$")
_INSTRUCTION = re.compile(r"^\s+(ROOT )?%?([\w.\-]+) = (.*?) ([a-z][a-z0-9\-]*)\(")
_ARRAY = re.compile(r"\b(pred|[a-z]+\d+\w*)\[([\d,]*)\](?:\{([^}]*)\})?")
_CALLED = re.compile(r"\b(?:calls|to_apply|branch_computations|true_computation|false_computation)=(\{[^}]*\}|%?[\w.\-]+)")


class Array(NamedTuple):
    """An array as a shape writes it: bf16[16,128,64]{2,1,0:T(8,128)(2,1)S(1)}."""

    dtype: str
    sizes: tuple[int, ...]
    minor_to_major: tuple[int, ...]  # the axes from the innermost out; empty: as they stand
    tile: tuple[int, ...]  # of the innermost axes, which are padded to a multiple of it; empty: none
    memory_space: int  # 0: the device's main memory; on TPUs 1 is VMEM

    @property
    def bytes(self) -> int:
        """Without padding; sizes below a byte are rounded up to one."""
        return math.prod(self.sizes) * _item_bytes(self.dtype)

    @property
    def padded_bytes(self) -> int:
        """With the innermost axes padded to whole tiles."""
        order = self.minor_to_major or tuple(reversed(range(len(self.sizes))))
        sizes = [self.sizes[axis] for axis in reversed(order)]
        for back, tile in enumerate(reversed(self.tile), 1):
            if back <= len(sizes):
                sizes[-back] = -(-sizes[-back] // tile) * tile
        return math.prod(sizes) * _item_bytes(self.dtype)


class Instruction(NamedTuple):
    """One line of a computation."""

    name: str
    shape: str  # as written, layout included
    opcode: str
    arguments: str  # what stands in its parentheses
    attributes: str  # what follows them

    @property
    def operands(self) -> list[str]:
        """The names of its operands."""
        return re.findall(r"%([\w.\-]+)", self.arguments)

    def attribute(self, name: str) -> str:
        """The text of one attribute, empty where it has none: a number, a name without its %, or a
        list in braces.
        """
        found = re.search(rf"(?:^|, ){name}=(\{{[^}}]*\}}|[^,\s]+)", self.attributes)
        return found[1].removeprefix("%") if found else ""

    @property
    def operation(self) -> str:
        """JAX's path of the operation that it comes from, empty where the compiler names none."""
        found = re.search(r'op_name="([^"]*)"', self.attributes)
        return found[1] if found else ""

    def called(self) -> list[str]:
        """The computations it calls, loops' excluded."""
        return [name for found in _CALLED.findall(self.attributes) for name in re.findall(r"[\w.\-]+", found)]


class Computation(NamedTuple):
    """Instructions by name, in the order of the text."""

    name: str
    instructions: dict[str, Instruction]
    root: Instruction


class Module(NamedTuple):
    """A whole program; `entry` names the computation that runs."""

    computations: dict[str, Computation]
    entry: str


def parse_module(text: str) -> Module:
    """The computations of `compiled.as_text()`.

    Raises:
      ValueError: the text has no entry computation.
    """
    computations: dict[str, Computation] = {}
    entry = name = ""
    instructions: dict[str, Instruction] = {}
    root: Instruction | None = None
    for line in text.splitlines():
        if header := _COMPUTATION.match(line):
            name, instructions, root = header[2], {}, None
            entry = name if header[1] else entry
        elif line.startswith("}") and root is not None:
            computations[name] = Computation(name, instructions, root)
        elif found := _INSTRUCTION.match(line):
            instruction = _instruction(found, line)
            instructions[instruction.name] = instruction
            root = instruction if found[1] else root
    if not entry:
        raise ValueError("the text is not that of an HLO module: it has no ENTRY computation")
    return Module(computations, entry)


def arrays(shape: str) -> list[Array]:
    """The array of a shape, or all those of a tuple."""
    return [_array(*found) for found in _ARRAY.findall(shape)]


def shape_bytes(shape: str) -> int:
    """Bytes of an array or of a tuple of arrays, padding left out."""
    return sum(array.bytes for array in arrays(shape))


def _array(dtype: str, sizes: str, layout: str) -> Array:
    order, _, rest = layout.partition(":")
    tile, space = re.search(r"T\(([\d,]*)\)", rest), re.search(r"S\((\d+)\)", rest)
    return Array(dtype, _numbers(sizes), _numbers(order), _numbers(tile[1]) if tile else (), int(space[1]) if space else 0)


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in text.split(",") if number)


def _item_bytes(dtype: str) -> int:
    return 1 if dtype == "pred" else max(1, int(re.findall(r"\d+", dtype)[0]) // 8)


def _instruction(found: re.Match[str], line: str) -> Instruction:
    depth, end = 1, found.end()
    while depth and end < len(line):
        depth += {"(": 1, ")": -1}.get(line[end], 0)
        end += 1
    return Instruction(found[2], found[3], found[4], line[found.end() : end - 1], line[end:])
