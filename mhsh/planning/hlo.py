"""Reading the HLO text of a compiled program: how often its instructions run, what a GPU starts for
them, and which collectives they are.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import NamedTuple

_COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\{$")
_INSTRUCTION = re.compile(r"^\s+(ROOT )?%?([\w.\-]+) = (.*?) ([a-z][a-z0-9\-]*)\(")
_ARRAY = re.compile(r"\b(pred|[a-z]+\d+\w*)\[([\d,]*)\]")
_CALLED = re.compile(r"\b(?:calls|to_apply|branch_computations|true_computation|false_computation)=(\{[^}]*\}|%?[\w.\-]+)")


class Instruction(NamedTuple):
    """One line of a computation."""

    name: str
    shape: str  # as written, layout included
    opcode: str
    arguments: str  # the text in its parentheses
    attributes: str  # the text behind them

    @property
    def operands(self) -> list[str]:
        """The names of its operands."""
        return re.findall(r"%([\w.\-]+)", self.arguments)

    def attribute(self, name: str) -> str:
        """The text of one attribute, empty where it has none: a number, a name without its %, or a
        list in braces.
        """
        match = re.search(rf"(?:^|, ){name}=(\{{[^}}]*\}}|[^,\s]+)", self.attributes)
        return match[1].removeprefix("%") if match else ""

    @property
    def operation(self) -> str:
        """JAX's path of the operation that it comes from, empty where the compiler names none."""
        match = re.search(r'op_name="([^"]*)"', self.attributes)
        return match[1] if match else ""

    def callees(self) -> list[str]:
        """The computations that it calls, except for those of a loop."""
        return [name for names in _CALLED.findall(self.attributes) for name in re.findall(r"[\w.\-]+", names)]


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
    """The computations of `compiled.as_text()`."""
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
        elif match := _INSTRUCTION.match(line):
            instruction = _instruction(match, line)
            instructions[instruction.name] = instruction
            root = instruction if match[1] else root
    return Module(computations, entry)


def _instruction(match: re.Match[str], line: str) -> Instruction:
    depth, end = 1, match.end()
    while depth and end < len(line):
        depth += {"(": 1, ")": -1}.get(line[end], 0)
        end += 1
    return Instruction(match[2], match[3], match[4], line[match.end() : end - 1], line[end:])


def item_bytes(dtype: str) -> int:
    """Bytes of one element; sizes below a byte are rounded up to one."""
    return 1 if dtype == "pred" else max(1, int(re.findall(r"\d+", dtype)[0]) // 8)


def shape_bytes(shape: str) -> int:
    """Bytes of an array or of a tuple of arrays, padding left out."""
    return sum(item_bytes(dtype) * math.prod(map(int, filter(None, sizes.split(",")))) for dtype, sizes in _ARRAY.findall(shape))


class Step(NamedTuple):
    """An instruction as it runs."""

    computation: Computation
    instruction: Instruction
    times: int  # in one run of the program
    frame: str  # the entry, or the loop body that it is in


def execution(module: Module, unknown: list[str]) -> Iterator[Step]:
    """Every instruction that the program runs, a fusion as one, without the loops themselves.

    Loop bodies run as often as XLA's known_trip_count says where it wrote one, else as start, bound
    and step of the counter do; the names of loops that cannot be followed are added to `unknown`
    and count once. All branches of a conditional run.
    """
    return _run(module, module.computations[module.entry], 1, module.entry, unknown)


def _run(module: Module, computation: Computation, times: int, frame: str, unknown: list[str]) -> Iterator[Step]:
    for instruction in computation.instructions.values():
        if instruction.opcode == "while":
            trips = _trip_count(module, computation, instruction)
            if trips is None:
                unknown.append(instruction.name)
            body = module.computations[instruction.attribute("body")]
            runs = times * (1 if trips is None else trips)
            yield from _run(module, body, runs, f"{frame}/{instruction.name}", unknown)
        elif instruction.opcode in ("call", "call-start", "conditional", "async-start"):
            for name in instruction.callees():
                yield from _run(module, module.computations[name], times, frame, unknown)
        else:
            yield Step(computation, instruction, times, frame)


def expand_fusion(module: Module, step: Step) -> Iterator[Step]:
    """The instructions of a fusion, of fusions within it too; any other instruction is its own."""
    if step.instruction.opcode != "fusion":
        yield step
        return
    for name in step.instruction.callees():
        computation = module.computations[name]
        for instruction in computation.instructions.values():
            yield from expand_fusion(module, Step(computation, instruction, step.times, step.frame))


# They name, regroup or wait for arrays.
_NOT_STARTED = frozenset(("parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all", "opt-barrier"))


def launches(module: Module) -> int:
    """The kernels, copies and library calls that a GPU starts in one run of the program. Those of a
    CUDA graph count one by one.
    """
    return sum(step.times for step in execution(module, []) if is_started(step.instruction))


def is_started(instruction: Instruction) -> bool:
    """Whether a GPU starts something for an instruction."""
    return instruction.opcode not in _NOT_STARTED and not instruction.opcode.endswith("-done")


def _trip_count(module: Module, computation: Computation, loop: Instruction) -> int | None:
    """The number of times that a `while` runs; None where its counter cannot be followed."""
    known = re.search(r'known_trip_count"?:\{"?n"?:"?(\d+)', loop.attributes)
    if known:
        return int(known[1])
    # The TPU compiler writes no such count: a counter goes from a constant to a constant.
    condition, body = (module.computations[loop.attribute(name)] for name in ("condition", "body"))
    compare, carry = condition.root, computation.instructions[loop.operands[0]]
    if (compare.opcode, compare.attribute("direction"), carry.opcode, body.root.opcode) != ("compare", "LT", "tuple", "tuple"):
        return None
    index = int(condition.instructions[compare.operands[0]].attribute("index") or 0)
    add = body.instructions[body.root.operands[index]]
    start, bound = _constant(computation, carry.operands[index]), _constant(condition, compare.operands[1])
    steps = [step for name in add.operands if (step := _constant(body, name))] if add.opcode == "add" else []
    return None if start is None or bound is None or not steps else max(0, math.ceil((bound - start) / steps[0]))


def _constant(computation: Computation, name: str) -> int | None:
    """The whole number that an instruction gives, where it is a constant or a copy of one."""
    instruction = computation.instructions[name]
    if instruction.opcode in ("copy", "bitcast"):
        return _constant(computation, instruction.operands[0])
    is_number = instruction.opcode == "constant" and re.fullmatch(r"-?\d+", instruction.arguments)
    return int(instruction.arguments) if is_number else None


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


class Collective(NamedTuple):
    """One collective of the program, over all its runs in a step."""

    kind: str  # one of KINDS; between-slices is the part of a collective that leaves a TPU slice, whose rest is listed apart
    count: int  # runs in a step: the trip counts of the loops around it multiplied
    group: int  # devices that take part together
    payload: int  # bytes of one run: the whole array that is reduced, put together or sent, as one device sees it
    dtypes: tuple[str, ...]
    source: str  # JAX's operation path

    @property
    def bytes(self) -> int:
        """Payload bytes of a step on one device."""
        return self.count * self.payload

    @property
    def sent_bytes(self) -> int:
        """Bytes that one device sends in a step if the collective runs as a ring: a share of the
        payload.
        """
        gathered = (self.group - 1) / self.group
        undivided = ("collective-permute", "collective-broadcast", "between-slices")
        share = 1.0 if self.kind in undivided else 2 * gathered if self.kind == "all-reduce" else gathered
        return round(self.bytes * share)


def read_collectives(module: Module, num_devices: int) -> tuple[list[Collective], list[str]]:
    """The collectives of a program that is partitioned over `num_devices`, and the loops whose trip
    count is not known, which count as one.

    A collective that the compiler split into pieces counts once. Groups of one device move nothing
    and are left out.
    """
    by_identity: dict[tuple[str, ...], Collective] = {}
    unknown: list[str] = []
    for step in (part for run in execution(module, unknown) for part in expand_fusion(module, run)):
        kind = _collective_kind(step)
        if kind is None:
            continue
        collective, identity = _collective(step, kind, num_devices), _identity(step, kind)
        if collective.group > 1:
            by_identity[identity] = min(by_identity.get(identity, collective), collective, key=lambda one: one.count)
    return list(by_identity.values()), unknown


def _collective_kind(step: Step) -> str | None:
    instruction = step.instruction
    if instruction.opcode == "send" and "xla_megascale" in instruction.attributes:
        return "between-slices"  # what a device hands to its host for the network between slices
    kind = instruction.opcode.removesuffix("-start")
    if kind == "all-reduce" and step.computation.name.startswith("all-reduce-scatter"):
        return "reduce-scatter"  # the TPU compiler writes one as an all-reduce and a slice in a fusion of this name
    return kind if kind in KINDS else None


def _identity(step: Step, kind: str) -> tuple[str, ...]:
    """The key that the pieces of one collective share. The TPU compiler hides a collective behind
    other work as a chain of pieces, some of them inside loops that run while it is under way. The
    piece that runs least often says how often the collective does. Pieces share a chain's number;
    a channel's is not enough, as jax gives one channel to all collectives that it writes.
    """
    chain = re.search(r'chain_id="(\d+)"', step.instruction.attributes)
    if chain:
        return (kind, step.instruction.attribute("channel_id"), chain[1])
    return (step.frame, kind, step.computation.name, step.instruction.name)


def _collective(step: Step, kind: str, num_devices: int) -> Collective:
    instruction = step.instruction
    group = num_devices if kind in ("collective-permute", "between-slices") else _group_size(instruction, num_devices)
    # The bytes on the wire have the result's dtype: the TPU compiler folds a conversion of the
    # operand into the collective. The result of a `-start` or a `send` has other things too.
    by_result = kind == "all-reduce" or instruction.opcode in KINDS
    shapes = [instruction.shape] if by_result else [step.computation.instructions[name].shape for name in instruction.operands]
    is_part = (kind == "all-gather" and not by_result) or instruction.opcode == "reduce-scatter"
    payload = sum(map(shape_bytes, shapes)) * (group if is_part else 1)
    dtypes = tuple(sorted({dtype for shape in shapes for dtype, _ in _ARRAY.findall(shape)}))
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
