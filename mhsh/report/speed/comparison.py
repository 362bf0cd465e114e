"""Shapes side by side: what bench files measured, which of two shapes is faster at which setting,
and where that turns.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from mhsh.bench.schema import BenchFile, Cell, Entry, Interval, read_bench
from mhsh.report.render.sanitize import sanitize

Setting = tuple[int, int]  # batch, length


@dataclasses.dataclass(frozen=True)
class Row:
    """One candidate at one setting of one file."""

    file: str
    kind: str
    device: str  # in words; of several, how many
    batch: int
    length: int
    shape: str  # sanitized; the same for the same model in every file, and unlike every other model's
    baseline: str | None  # the shape that entry.time_ratio is to
    entry: Entry
    config: Mapping[str, Any]

    @property
    def tokens_per_second(self) -> Interval:
        """Of all devices together."""
        return self.entry.seconds.inverse().scaled(float(self.entry.work))


@dataclasses.dataclass(frozen=True)
class Pair:
    """Two shapes on one device, over all settings at which they took turns."""

    kind: str
    device: str
    shallow: str
    deep: str  # that with fewer heads a layer
    ratios: Mapping[Setting, Interval]  # time of the shallow one over that of the deep one; above 1 the deep one is faster

    @property
    def batches(self) -> list[int]:
        """Ascending."""
        return sorted({batch for batch, _ in self.ratios})

    @property
    def lengths(self) -> list[int]:
        """Ascending."""
        return sorted({length for _, length in self.ratios})


@dataclasses.dataclass(frozen=True)
class Crossing:
    """Where two shapes are equally fast, between two measured sizes."""

    at: float  # the logarithm of the ratio is taken to be linear in that of the size
    deep_beyond: bool  # whether the deep one is the faster of them above it
    told_up_to: int | None  # the nearest smaller size whose interval is on that side of 1 as a whole
    told_from: int | None  # the nearest larger one, on its side


@dataclasses.dataclass(frozen=True)
class Speed:
    """All that was measured."""

    rows: tuple[Row, ...]  # in the order of the files, their settings and their turns
    pairs: tuple[Pair, ...]
    shapes: tuple[str, ...]
    problems: tuple[str, ...]

    def first(self, kind: str, device: str, shape: str) -> dict[Setting, Row]:
        """The row of every setting; where files measured one twice, that of the first file."""
        found: dict[Setting, Row] = {}
        for row in self.rows:
            if (row.kind, row.device, row.shape) == (kind, device, shape):
                found.setdefault((row.batch, row.length), row)
        return found


def read_speed(paths: Sequence[str]) -> Speed:
    """Everything in the files.

    Raises:
      UserError: one of them is of another kind or damaged.
    """
    files = [read_bench(path) for path in dict.fromkeys(paths)]
    shapes = _shape_names(files)
    rows = [_row(file, cell, entry, shapes) for file in files for cell in file.cells for entry in cell.entries]
    problems: list[str] = []
    pairs = _pairs(files, shapes, problems)
    return Speed(tuple(rows), tuple(pairs), tuple(dict.fromkeys(shapes.values())), tuple(map(sanitize, dict.fromkeys(problems))))


def verdict(ratio: Interval) -> str:
    """`deep` or `shallow`, whichever is faster, or `open` where the interval covers 1."""
    return "deep" if ratio.low > 1 else "shallow" if ratio.high < 1 else "open"


def crossings(ratios: Mapping[int, Interval]) -> list[Crossing]:
    """Where the ratio passes 1, by size (a batch or a length)."""
    sizes = sorted(ratios)
    found = []
    for left, right in itertools.pairwise(sizes):
        before, after = ratios[left].median, ratios[right].median
        if not (before <= 1 < after or before >= 1 > after):
            continue
        share = math.log(before) / (math.log(before) - math.log(after))
        at = left * (right / left) ** share
        sides = ("shallow", "deep") if after > 1 else ("deep", "shallow")
        told_up_to = max((size for size in sizes if size <= left and verdict(ratios[size]) == sides[0]), default=None)
        told_from = min((size for size in sizes if size >= right and verdict(ratios[size]) == sides[1]), default=None)
        found.append(Crossing(at, after > 1, told_up_to, told_from))
    return found


def _identity(file: BenchFile, entry: Entry) -> tuple[str, str, str]:
    return entry.implementation, entry.label, json.dumps(file.configs[entry.config]["model"], sort_keys=True)


def _shape_names(files: Sequence[BenchFile]) -> dict[tuple[str, str, str], str]:
    """A name for every model, from its label; a number follows where two models have one label."""
    names: dict[tuple[str, str, str], str] = {}
    for file in files:
        for cell in file.cells:
            for entry in cell.entries:
                identity = _identity(file, entry)
                if identity in names:
                    continue
                label = sanitize(entry.label.removeprefix("mhsh ")) or entry.name
                number = 1
                while (name := label if number == 1 else f"{label} ({number})") in names.values():
                    number += 1
                names[identity] = name
    return names


def _row(file: BenchFile, cell: Cell, entry: Entry, shapes: Mapping[tuple[str, str, str], str]) -> Row:
    baseline = next((each for each in cell.entries if each.name == entry.baseline), None)
    return Row(
        file=sanitize(file.path),
        kind=file.kind,
        device=_device(file, entry),
        batch=cell.batch,
        length=cell.length,
        shape=shapes[_identity(file, entry)],
        baseline=None if baseline is None else shapes[_identity(file, baseline)],
        entry=entry,
        config=file.configs[entry.config],
    )


def _device(file: BenchFile, entry: Entry) -> str:
    return sanitize(file.device if entry.devices == 1 else f"{entry.devices} x {file.device}")


def _pairs(files: Sequence[BenchFile], shapes: Mapping[tuple[str, str, str], str], problems: list[str]) -> list[Pair]:
    """Of mhsh's own shapes, each against the one that its file compares it with. What cannot be
    compared goes to `problems`.
    """
    found: dict[tuple[str, str, str, str], dict[Setting, Interval]] = {}
    for file in files:
        for cell in file.cells:
            for entry in cell.entries:
                baseline = next((each for each in cell.entries if each.name == entry.baseline), None)
                if baseline is None or entry.time_ratio is None or {entry.implementation, baseline.implementation} != {"mhsh"}:
                    continue
                where = f"{file.path}, batch {cell.batch} x length {cell.length}"
                if (entry.work, entry.devices) != (baseline.work, baseline.devices):
                    problems.append(f"{where}: {entry.name} and {baseline.name} differ in tokens or devices and are not compared")
                    continue
                theirs, its = shapes[_identity(file, baseline)], shapes[_identity(file, entry)]
                if _depth(file, entry) < _depth(file, baseline):
                    key, ratio = (file.kind, _device(file, entry), its, theirs), entry.time_ratio
                else:
                    key, ratio = (file.kind, _device(file, entry), theirs, its), entry.time_ratio.inverse()
                cells = found.setdefault(key, {})
                if (cell.batch, cell.length) in cells:
                    problems.append(f"{where}: another file measured this too; the first one named is drawn")
                cells.setdefault((cell.batch, cell.length), ratio)
    return [Pair(*key, ratios) for key, ratios in found.items()]


def _depth(file: BenchFile, entry: Entry) -> tuple[int, int]:
    """Larger for the deep one of two: fewer heads a layer, then more layers."""
    model = file.configs[entry.config]["model"]
    return -model["num_heads"], model["num_layers"]
