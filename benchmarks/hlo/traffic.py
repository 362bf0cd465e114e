"""The bytes that a compiled step moves to and from a device's main memory, read out of its HLO.

  python -m benchmarks.hlo.traffic --config=bert:384l1h --topology=v5e:1x1

compiles the step, without the device, and prints the bytes by part of the step and the buffers
that move most.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

from benchmarks.hlo.arrays import Array, arrays
from benchmarks.hlo.programs import compile_step, read_arguments
from mhsh.planning.hlo import Computation, Instruction, Module, Step, execution

# The parts of a step, by what jax writes into an operation's name. `head` is what follows the last
# layer, forward and backward; `other` has no name or is none of these.
PHASES = ("forward", "recomputed", "backward", "head", "optimizer", "other")
_HEADS = re.compile(r"\bjvp\(loss\)|/(prediction|pooler|next_sentence|classification|span)/")

# They name or regroup arrays and move nothing.
_MOVES_NOTHING = frozenset(
    ("parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all", "optimization-barrier", "call-update")
)
_CALLS_THAT_MOVE_NOTHING = ("AllocateBuffer", "ConcatBitcast")
_SLICES = ("dynamic-slice", "slice", "gather")  # of their first operand they read what they give
_UPDATES = {"dynamic-update-slice": 1, "scatter": 2}  # in place: of the first operand they write what this operand holds
_STATED = re.compile(r'(?:serialized_metadata = "\{\\22|frontend_attributes=\{[^}]*\b)bytes(?:\\22: \\22|=")(\d+)')


class Buffer(NamedTuple):
    """An array in main memory, over all its uses in a step."""

    source: str  # the operation whose result it holds, or the argument that it is
    shape: str
    read: int
    written: int


class Traffic(NamedTuple):
    """One step on one device. Bytes are of main memory, padding to whole tiles included."""

    read: int
    written: int
    by_phase: dict[str, int]  # bytes both ways; all of PHASES
    buffers: tuple[Buffer, ...]  # those that move most, the first the most


class _Move(NamedTuple):
    name: str  # of the instruction whose result the array is
    element: int  # its place in that result
    array: Array
    read: int
    written: int


def count_traffic(module: Module, worst: int = 10) -> Traffic:
    """Adds up what every instruction reads from and writes to main memory, loops in full.

    An operand or a result counts whole, with two exceptions. Of an array that is only sliced the
    slices count, and of one that is updated in place the update. Arrays that the compiler keeps in
    another memory (VMEM) count where they are copied from or to main memory. A custom call reads
    its operands and writes its results once. A collective reads its operand and writes its result.

    Args:
      module: an optimised program.
      worst: how many buffers to name.
    """
    origins = _Origins(module)
    moved: dict[tuple[str, str, int], list[int]] = defaultdict(lambda: [0, 0])
    shapes: dict[tuple[str, str, int], Array] = {}
    names: dict[tuple[str, str, int], Counter[str]] = defaultdict(Counter)
    by_phase = dict.fromkeys(PHASES, 0)
    for step, phase in label_phases(module):
        for move in _moves(module, step):
            key = origins.find(step.computation.name, move.name, move.element)
            moved[key][0] += step.times * move.read
            moved[key][1] += step.times * move.written
            by_phase[phase] += step.times * (move.read + move.written)
            shapes[key] = max(shapes.get(key, move.array), move.array, key=lambda array: array.padded_bytes)
            if move.written:
                names[key][_source(module, step, move.element)] += step.times * move.written
    largest = sorted(moved, key=lambda key: -sum(moved[key]))[:worst]
    buffers = tuple(
        Buffer(_label(module.computations[key[0]], key[1], names[key]), _written_shape(shapes[key]), *moved[key]) for key in largest
    )
    read, written = (sum(both[way] for both in moved.values()) for way in (0, 1))
    return Traffic(read, written, by_phase, buffers)


def label_phases(module: Module) -> Iterator[tuple[Step, str]]:
    """Every instruction that the program runs, and the part of the step that it belongs to."""
    loops = _loop_phases(module)
    for step in execution(module, []):
        yield step, _phase(step.instruction.operation) or loops.get(step.frame.rpartition("/")[2], "other")


def moved_bytes(module: Module, step: Step) -> int:
    """The bytes that one run of an instruction reads from and writes to main memory. Our kernels
    say it: they take a part of an array that all layers have.
    """
    stated = _STATED.search(step.instruction.attributes) if step.instruction.opcode == "custom-call" else None
    return int(stated[1]) if stated else sum(move.read + move.written for move in _moves(module, step))


def _phase(operation_name: str) -> str | None:
    if not operation_name:
        return None
    if "/optimizer/" in operation_name:
        return "optimizer"
    if _HEADS.search(operation_name):
        return "head"
    if "transpose(" in operation_name:
        return "recomputed" if "rematted_computation" in operation_name else "backward"
    return "forward" if "jvp(" in operation_name else "other"


def _loop_phases(module: Module) -> dict[str, str]:
    instructions = (one for computation in module.computations.values() for one in computation.instructions.values())
    return {loop.name: _phase(loop.operation) or "other" for loop in instructions if loop.opcode == "while"}


def _moves(module: Module, step: Step) -> Iterator[_Move]:
    """The arrays that one run of an instruction reads and writes in main memory."""
    computation, instruction = step.computation, step.instruction
    opcode = instruction.opcode
    if opcode in _MOVES_NOTHING or opcode.endswith("-done"):
        return
    if opcode == "custom-call" and instruction.attribute("custom_call_target").strip('"') in _CALLS_THAT_MOVE_NOTHING:
        return
    if opcode == "fusion":
        called = module.computations[instruction.callees()[0]]
        reads = [_read_of(module, called, parameter) for parameter in _parameters(called)]
        writes = _writes_of(module, called)
    else:
        reads, writes = _plain(computation, instruction)
    for name, limit in zip(instruction.operands, reads, strict=False):
        for element, array in enumerate(arrays(computation.instructions[name].shape)):
            amount = array.padded_bytes if limit is None else min(limit, array.padded_bytes)
            if array.memory_space == 0 and amount:
                yield _Move(name, element, array, amount, 0)
    for element, (array, limit) in enumerate(zip(_results(instruction), writes, strict=False)):
        amount = array.padded_bytes if limit is None else limit
        if array.memory_space == 0 and amount:
            yield _Move(instruction.name, element, array, 0, amount)


def _results(instruction: Instruction) -> list[Array]:
    """The arrays that an instruction writes. A `-start` also lists its operands and what its
    `-done` waits for.
    """
    written = arrays(instruction.shape)
    if instruction.opcode == "copy-start":
        return written[:1]  # target, source, what is waited for
    count = len(instruction.operands)
    return written[count : 2 * count] if instruction.opcode.endswith("-start") and len(written) > count else written


def _plain(computation: Computation, instruction: Instruction) -> tuple[list[int | None], list[int | None]]:
    """Bytes read of each operand and written of each result, None where it is all."""
    opcode = instruction.opcode.removesuffix("-start")
    reads: list[int | None] = [None] * len(instruction.operands)
    writes: list[int | None] = [None] * len(_results(instruction))
    if opcode in _SLICES:
        reads[0] = _part(_results(instruction)[0], computation, instruction.operands[0])
    elif opcode in _UPDATES:
        reads[0], writes[0] = 0, _update(computation, instruction)
    return reads, writes


def _part(part: Array, computation: Computation, whole: str) -> int:
    """Bytes of a part of an array. The TPU compiler lets a slice or an update convert: in memory
    the part has the whole's dtype.
    """
    return part._replace(dtype=arrays(computation.instructions[whole].shape)[0].dtype).padded_bytes


def _update(computation: Computation, instruction: Instruction) -> int:
    update = computation.instructions[instruction.operands[_UPDATES[instruction.opcode]]]
    return _part(arrays(update.shape)[0], computation, instruction.operands[0])


def _parameters(computation: Computation) -> list[str]:
    parameters = [one for one in computation.instructions.values() if one.opcode == "parameter"]
    return [one.name for one in sorted(parameters, key=lambda one: int(one.arguments))]


def _read_of(module: Module, computation: Computation, name: str) -> int | None:
    """Bytes that a fusion reads of one of its values in main memory, None for all of them."""
    total = 0
    for user in computation.instructions.values():
        if name not in user.operands:
            continue
        if user.opcode == "bitcast" or _retiles(module, user):
            part = _read_of(module, computation, user.name)
        elif user.opcode in _SLICES and user.operands[0] == name and name not in user.operands[1:]:
            part = _part(arrays(user.shape)[0], computation, name)
            if not _is_result(computation, user.name):  # it may be sliced again
                part = min(part, _read_of(module, computation, user.name) or part)
        elif user.opcode in _UPDATES and user.operands[0] == name and _is_result(computation, user.name):
            part = 0
        elif user.opcode == "fusion":
            called = module.computations[user.callees()[0]]
            inner = [one for one, operand in zip(_parameters(called), user.operands, strict=True) if operand == name]
            parts = [_read_of(module, called, one) for one in inner]
            part = None if None in parts else sum(filter(None, parts))
        elif user.opcode == "tuple":
            continue  # a result that is the argument itself
        else:
            part = None
        if part is None:
            return None
        total += part
    return total


def _retiles(module: Module, instruction: Instruction) -> bool:
    """Whether it is, within a fusion, an array seen in other tiles: a copy in place. A TPU7x's
    programs make one of a whole stack before they slice it.
    """
    in_place = instruction.opcode == "fusion" and "output_to_operand_aliasing" in instruction.attributes
    return in_place and module.computations[instruction.callees()[0]].root.opcode == "copy"


def _roots(computation: Computation) -> list[Instruction]:
    """The results of a fusion, behind bitcasts."""
    root = computation.root
    names = root.operands if root.opcode == "tuple" else [root.name]
    return [_skip_bitcasts(computation, name) for name in names]


def _result(computation: Computation, element: int) -> tuple[Instruction, int]:
    """The instruction that gives a result of a fusion, and the place of that result among those of
    the instruction: a fusion within may give several.
    """
    root = computation.root
    if root.opcode == "tuple":
        return _skip_bitcasts(computation, root.operands[element]), 0
    return _skip_bitcasts(computation, root.name), element


def _skip_bitcasts(computation: Computation, name: str) -> Instruction:
    instruction = computation.instructions[name]
    return _skip_bitcasts(computation, instruction.operands[0]) if instruction.opcode == "bitcast" else instruction


def _is_result(computation: Computation, name: str) -> bool:
    return name in [root.name for root in _roots(computation)]


def _writes_of(module: Module, computation: Computation) -> list[int | None]:
    """Bytes that a fusion writes of each of its results, None for all of them."""
    written: list[int | None] = []
    for root in _roots(computation):
        if root.opcode in _UPDATES:
            written.append(_update(computation, root))
        elif root.opcode == "fusion":
            written += _writes_of(module, module.computations[root.callees()[0]])
        else:
            written.append(None)
    return written


def _updated_operand(module: Module, instruction: Instruction, element: int) -> str | None:
    """The operand that a result is, updated in place; None where it is an array of its own."""
    if instruction.opcode in _UPDATES:
        return instruction.operands[0]
    if instruction.opcode != "fusion":
        return None
    called = module.computations[instruction.callees()[0]]
    inner = _updated_operand(module, *_result(called, element))
    target = None if inner is None else _skip_bitcasts(called, inner)
    return instruction.operands[int(target.arguments)] if target is not None and target.opcode == "parameter" else None


def _value_written(module: Module, computation: Computation, instruction: Instruction, element: int) -> Instruction:
    """The instruction that gives the value of a result, or of its update in place."""
    if instruction.opcode in _UPDATES:
        return _skip_bitcasts(computation, instruction.operands[_UPDATES[instruction.opcode]])
    if instruction.opcode != "fusion":
        return instruction
    called = module.computations[instruction.callees()[0]]
    value = _value_written(module, called, *_result(called, element))
    return _skip_bitcasts(computation, instruction.operands[int(value.arguments)]) if value.opcode == "parameter" else value


def _source(module: Module, step: Step, element: int) -> str:
    """The operation whose value an instruction writes."""
    value = _value_written(module, step.computation, step.instruction, element)
    if value.opcode == "get-tuple-element" and value.operands[0] == next(iter(_parameters(step.computation)), None):
        # A loop's carry: what the body makes of it.
        value = _skip_bitcasts(step.computation, step.computation.root.operands[int(value.attribute("index"))])
    return value.operation or step.instruction.operation


class _Origins:
    """Which array in memory a value is: loops carry arrays along and update them in place, and
    calls take and give them.
    """

    def __init__(self, module: Module):
        self._module = module
        self._first: dict[tuple[str, str, int], tuple[str, str, int]] = {}
        self._loops = {
            loop.attribute("body"): (computation.name, loop)
            for computation in module.computations.values()
            for loop in computation.instructions.values()
            if loop.opcode == "while"
        }
        calls = [
            (call.callees()[0], (computation.name, call))
            for computation in module.computations.values()
            for call in computation.instructions.values()
            if call.opcode in ("call", "call-start") and call.operands
        ]
        times = Counter(called for called, _ in calls)
        # One that is called twice has its arguments from two places.
        self._calls = {called: site for called, site in calls if times[called] == 1}

    def find(self, computation: str, name: str, element: int) -> tuple[str, str, int]:
        """The instruction that first gives the array, and the array's place in its result."""
        key = (computation, name, element)
        if key not in self._first:
            before = self._predecessor(computation, name, element)
            self._first[key] = key if before is None else self.find(*before)
        return self._first[key]

    def _predecessor(self, computation: str, name: str, element: int) -> tuple[str, str, int] | None:
        instruction = self._module.computations[computation].instructions[name]
        if instruction.opcode == "get-tuple-element":
            return computation, instruction.operands[0], int(instruction.attribute("index"))
        if instruction.opcode == "tuple":
            return computation, instruction.operands[element], 0
        if instruction.opcode in ("bitcast", "while", "optimization-barrier", "call-update", "call-done"):
            return computation, instruction.operands[0], element
        if instruction.opcode == "parameter" and computation in self._loops:
            outside, loop = self._loops[computation]
            return outside, loop.operands[0], element
        if instruction.opcode == "parameter" and computation in self._calls:
            outside, call = self._calls[computation]
            return outside, call.operands[int(instruction.arguments)], element
        if instruction.opcode in ("call", "call-start"):
            called = self._module.computations[instruction.callees()[0]]
            return called.name, called.root.name, element
        updated = _updated_operand(self._module, instruction, element)
        return (computation, updated, 0) if updated else None


def _label(computation: Computation, name: str, written: Counter[str]) -> str:
    """The name of a buffer: the operation that writes most of it, or that it is made by."""
    instruction = computation.instructions[name]
    operation = (written.most_common(1)[0][0] if written else "") or instruction.operation
    if operation or not instruction.operands:
        return _short(operation or name)
    return f"{instruction.opcode} of {_label(computation, instruction.operands[0], Counter())}"


def _short(path: str) -> str:
    """An operation's path without what every path of a step has."""
    kept = [part for part in path.replace("\\'", "").split("/") if part not in ("jit(train_step)", "while", "body", "closed_call")]
    return "/".join(kept)


def _written_shape(array: Array) -> str:
    return f"{array.dtype}[{','.join(map(str, array.sizes))}]"


def main() -> None:
    """Prints the traffic of the step that the arguments name."""
    _, module = compile_step(*read_arguments(__doc__))
    traffic = count_traffic(module)
    table = Table("MAIN MEMORY PER STEP AND DEVICE", "GB", box=None, pad_edge=False)
    for phase, moved in traffic.by_phase.items():
        table.add_row(phase, f"{moved / 1e9:.2f}")
    table.add_row("all", f"{(traffic.read + traffic.written) / 1e9:.2f}")
    Console().print(table)
    worst = Table("BUFFERS THAT MOVE MOST", "GB read", "GB written", "", box=None, pad_edge=False)
    for buffer in traffic.buffers:
        worst.add_row(buffer.shape, f"{buffer.read / 1e9:.2f}", f"{buffer.written / 1e9:.2f}", buffer.source)
    Console().print(worst)


if __name__ == "__main__":
    main()
