"""How often each instruction of a compiled program runs: loops with their trip counts, and what
they call.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

from mhsh.planning.hlo_text import Computation, Instruction, Module


class Step(NamedTuple):
    """An instruction as it runs."""

    computation: Computation
    instruction: Instruction
    times: int  # in one run of the program
    frame: str  # the entry, or the loop body that it stands in


def execution(module: Module, unknown: list[str]) -> Iterator[Step]:
    """Every instruction that the program runs, a fusion as one, loops themselves left out.

    Loop bodies run as often as XLA's known_trip_count says where it wrote one, else as start, bound
    and step of the counter do; the names of loops that cannot be followed are added to `unknown`
    and count once. All branches of a conditional run.
    """
    return _run(module, module.computations[module.entry], 1, module.entry, unknown)


def _run(module: Module, computation: Computation, times: int, frame: str, unknown: list[str]) -> Iterator[Step]:
    for instruction in computation.instructions.values():
        if instruction.opcode == "while":
            trips = trip_count(module, computation, instruction)
            if trips is None:
                unknown.append(instruction.name)
            body = module.computations[instruction.attribute("body")]
            runs = times * (1 if trips is None else trips)
            yield from _run(module, body, runs, f"{frame}/{instruction.name}", unknown)
        elif instruction.opcode in ("call", "conditional") or instruction.opcode.startswith("async-start"):
            for name in instruction.called():
                yield from _run(module, module.computations[name], times, frame, unknown)
        else:
            yield Step(computation, instruction, times, frame)


def inside(module: Module, step: Step) -> Iterator[Step]:
    """What a fusion is made of, fusions within it too; any other instruction is its own."""
    if step.instruction.opcode != "fusion":
        yield step
        return
    for name in step.instruction.called():
        computation = module.computations[name]
        for instruction in computation.instructions.values():
            yield from inside(module, Step(computation, instruction, step.times, step.frame))


def trip_count(module: Module, computation: Computation, loop: Instruction) -> int | None:
    """How often a `while` runs; None where its counter cannot be followed."""
    known = re.search(r'known_trip_count"?:\{"?n"?:"?(\d+)', loop.attributes)
    if known:
        return int(known[1])
    condition, body = (module.computations[loop.attribute(name)] for name in ("condition", "body"))
    compare = condition.root
    if compare.opcode != "compare" or compare.attribute("direction") not in ("LT", "LE"):
        return None
    counter = condition.instructions[compare.operands[0]]
    if counter.opcode != "get-tuple-element":
        return None
    index = int(counter.attribute("index"))
    start_of = functools.partial(_element, module, computation, loop.operands[0])
    start, bound = start_of(index), _scalar(module, condition, compare.operands[1], start_of)
    following = _scalar(module, body, body.root.operands[index], start_of) if body.root.opcode == "tuple" else None
    if start is None or bound is None or following is None or following <= start:
        return None
    return max(0, math.ceil((bound - start + (compare.attribute("direction") == "LE")) / (following - start)))


def _element(module: Module, computation: Computation, name: str, index: int) -> int | None:
    """The whole number at `index` of the tuple `name`, where it is one that the text tells."""
    instruction = computation.instructions[name]
    if instruction.opcode == "tuple":
        return _scalar(module, computation, instruction.operands[index], lambda _: None)
    if instruction.opcode in ("copy", "optimization-barrier"):
        return _element(module, computation, instruction.operands[0], index)
    return None


def _scalar(module: Module, computation: Computation, name: str, element: Callable[[int], int | None]) -> int | None:
    """A whole number computed from constants; `element` gives those of the tuple that is the
    computation's first parameter.
    """
    instruction = computation.instructions[name]
    opcode, value = instruction.opcode, functools.partial(_scalar, module, computation, element=element)
    if opcode == "constant":
        return int(instruction.arguments) if re.fullmatch(r"-?\d+", instruction.arguments) else None
    if opcode == "get-tuple-element" and computation.instructions[instruction.operands[0]].opcode == "parameter":
        return element(int(instruction.attribute("index")))
    if opcode == "parameter":
        return element(int(instruction.arguments))
    if opcode in ("copy", "bitcast", "convert", "reshape"):
        return value(instruction.operands[0])
    if opcode in ("add", "subtract"):
        left, right = value(instruction.operands[0]), value(instruction.operands[1])
        return None if left is None or right is None else left + right if opcode == "add" else left - right
    if opcode == "fusion":
        called = module.computations[instruction.called()[0]]
        return _scalar(module, called, called.root.name, lambda place: value(instruction.operands[place]))
    return None
