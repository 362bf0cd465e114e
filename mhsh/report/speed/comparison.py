"""The measurements of bench files: which of two shapes is faster in which setting."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from mhsh.bench.intervals import Interval
from mhsh.bench.results import BenchResults, CandidateResult, SettingResults, read_grid
from mhsh.text import sanitize

Setting = tuple[int, int]  # batch, length


@dataclasses.dataclass(frozen=True)
class BenchFile:
    """A file, and what is in it."""

    path: str
    results: BenchResults

    def device_of(self, candidate: CandidateResult) -> str:
        """The device's name, sanitized, with the number of devices if there are several."""
        environment = self.results.environment
        device = environment["devices"]["kind"]
        if environment["devices"]["platform"] == "cpu":  # its kind is just "cpu"
            device = f"{device} ({environment['processor']}, {environment['cores']} cores)"
        return sanitize(device if candidate.devices == 1 else f"{candidate.devices} x {device}")


@dataclasses.dataclass(frozen=True)
class Measurement:
    """One candidate in one setting of one file."""

    file: str
    kind: str
    device: str  # its name, with the number of devices if there are several
    batch: int
    length: int
    shape: str  # sanitized; the same for the same model in every file, and different from every other model's
    baseline: str | None  # the shape that result.time_ratio is to
    faster: tuple[tuple[str, Interval], ...]  # a shape, and the ratio of this one's speed to its
    result: CandidateResult
    config: Mapping[str, Any]

    @property
    def tokens_per_second(self) -> Interval:
        """Of all devices together."""
        return self.result.seconds.inverse().scaled(float(self.result.work))


@dataclasses.dataclass(frozen=True)
class ShapePair:
    """Two shapes on one device, in all settings in which they took turns."""

    kind: str
    device: str
    shallow: str
    deep: str  # the one with fewer heads a layer
    ratios: Mapping[Setting, Interval]  # time of the shallow one over that of the deep one; above 1 the deep shape is faster

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
    significant_up_to: int | None  # the nearest smaller size whose whole interval is on that side of 1
    significant_from: int | None  # the nearest larger size whose whole interval is on the other side


@dataclasses.dataclass(frozen=True)
class Speed:
    """All measurements."""

    rows: tuple[Measurement, ...]  # in the order of the files, their settings and their turns
    pairs: tuple[ShapePair, ...]
    shapes: tuple[str, ...]
    problems: tuple[str, ...]

    def first(self, kind: str, device: str, shape: str) -> dict[Setting, Measurement]:
        """The measurement of every setting; the first file's where several have one."""
        found: dict[Setting, Measurement] = {}
        for row in self.rows:
            if (row.kind, row.device, row.shape) == (kind, device, shape):
                found.setdefault((row.batch, row.length), row)
        return found


def read_speed(paths: Sequence[str]) -> Speed:
    """Everything in the files.

    Raises:
      UserError: a file is of another kind or damaged.
    """
    files = [BenchFile(path, read_grid(path)) for path in dict.fromkeys(paths)]
    shapes = _shape_names(files)
    rows = [_row(file, cell, each, shapes) for file in files for cell in file.results.cells for each in cell.candidates]
    problems: list[str] = []
    pairs = _pairs(files, shapes, problems)
    return Speed(tuple(rows), tuple(pairs), tuple(dict.fromkeys(shapes.values())), tuple(map(sanitize, dict.fromkeys(problems))))


def verdict(ratio: Interval) -> str:
    """`deep` or `shallow`, the faster one, or `open` where the interval covers 1."""
    return "deep" if ratio.low > 1 else "shallow" if ratio.high < 1 else "open"


def crossings(ratios: Mapping[int, Interval]) -> list[Crossing]:
    """Where the ratio passes 1, from ratios by size (batch or length)."""
    sizes = sorted(ratios)
    found = []
    for left, right in itertools.pairwise(sizes):
        before, after = ratios[left].median, ratios[right].median
        if not (before <= 1 < after or before >= 1 > after):
            continue
        share = math.log(before) / (math.log(before) - math.log(after))
        at = left * (right / left) ** share
        sides = ("shallow", "deep") if after > 1 else ("deep", "shallow")
        significant_up_to = max((size for size in sizes if size <= left and verdict(ratios[size]) == sides[0]), default=None)
        significant_from = min((size for size in sizes if size >= right and verdict(ratios[size]) == sides[1]), default=None)
        found.append(Crossing(at, after > 1, significant_up_to, significant_from))
    return found


def _identity(file: BenchFile, candidate: CandidateResult) -> tuple[str, str, str]:
    model = file.results.configs[candidate.config]["model"]
    return candidate.implementation, candidate.label, json.dumps(model, sort_keys=True)


def _shape_names(files: Sequence[BenchFile]) -> dict[tuple[str, str, str], str]:
    """A name for every model: its label, with a number where two models have the same label."""
    names: dict[tuple[str, str, str], str] = {}
    for file in files:
        for candidate in (each for cell in file.results.cells for each in cell.candidates):
            identity = _identity(file, candidate)
            if identity in names:
                continue
            label = sanitize(candidate.label.removeprefix("mhsh ")) or candidate.name
            number = 1
            while (name := label if number == 1 else f"{label} ({number})") in names.values():
                number += 1
            names[identity] = name
    return names


def _baseline(cell: SettingResults, candidate: CandidateResult) -> CandidateResult | None:
    return next((each for each in cell.candidates if each.name == candidate.baseline), None)


def _row(
    file: BenchFile, cell: SettingResults, candidate: CandidateResult, shapes: Mapping[tuple[str, str, str], str]
) -> Measurement:
    baseline = _baseline(cell, candidate)
    batch, length = cell.batch_and_length
    return Measurement(
        file=sanitize(file.path),
        kind=file.results.kind,
        device=file.device_of(candidate),
        batch=batch,
        length=length,
        shape=shapes[_identity(file, candidate)],
        baseline=None if baseline is None else shapes[_identity(file, baseline)],
        faster=tuple((shapes[_identity(file, other)], times) for other, one, times in _compared(file, cell) if one is candidate),
        result=candidate,
        config=file.results.configs[candidate.config],
    )


def _pairs(files: Sequence[BenchFile], shapes: Mapping[tuple[str, str, str], str], problems: list[str]) -> list[ShapePair]:
    """mhsh's own shapes, each with the one that its file compares it with.

    A line for what cannot be compared is added to `problems`.
    """
    found: dict[tuple[str, str, str, str], dict[Setting, Interval]] = {}
    for file in files:
        for cell in file.results.cells:
            for shallow, deep, times in _compared(file, cell):
                if {shallow.implementation, deep.implementation} != {"mhsh"}:
                    continue
                where = "{}, batch {} x length {}".format(file.path, *cell.batch_and_length)
                if (shallow.work, shallow.devices) != (deep.work, deep.devices):
                    problems.append(f"{where}: {deep.name} and {shallow.name} differ in tokens or devices and are not compared")
                    continue
                names = [shapes[_identity(file, each)] for each in (shallow, deep)]
                by_setting = found.setdefault((file.results.kind, file.device_of(deep), names[0], names[1]), {})
                if cell.batch_and_length in by_setting:
                    problems.append(f"{where}: another file measured this too; the first file is drawn")
                by_setting.setdefault(cell.batch_and_length, times)
    return [ShapePair(*key, ratios) for key, ratios in found.items()]


def _compared(file: BenchFile, cell: SettingResults) -> Iterator[tuple[CandidateResult, CandidateResult, Interval]]:
    """Two candidates, and the ratio of the second one's speed to the first one's. Of mhsh's own
    shapes the deep one is second, whichever is the file's baseline.
    """
    for candidate in cell.candidates:
        baseline = _baseline(cell, candidate)
        if baseline is None or candidate.time_ratio is None:
            continue
        own = {candidate.implementation, baseline.implementation} == {"mhsh"}
        if own and _depth(file, candidate) < _depth(file, baseline):
            yield candidate, baseline, candidate.time_ratio
        else:
            yield baseline, candidate, candidate.time_ratio.inverse()


def _depth(file: BenchFile, candidate: CandidateResult) -> tuple[int, int]:
    """Larger for the deep one of two: fewer heads a layer, then more layers."""
    model = file.results.configs[candidate.config]["model"]
    return -model["num_heads"], model["num_layers"]
