"""The report on what `mhsh bench` measured: which of two shapes is faster in which setting."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from mhsh.bench.results import BenchResults, CandidateResult, Interval, SettingResults, read_grid
from mhsh.report.report import Cell, Column, Point, Points, Reference, Report, Row, Series, Table
from mhsh.text import format_names, numbered, quantity, sanitize, timing

Setting = tuple[int, int]  # batch, length
_SIZES = ("batch", "length")

_RULES = (
    "A time of a bench is the median over its rounds; its interval is distribution-free, from the rounds alone.",
    "A ratio of speeds is the other shape's time over this one's, within each round, in which both met the same disturbances; it "
    "can differ from 1 significantly although the intervals of the two times overlap.",
)


@dataclasses.dataclass(frozen=True)
class Measurement:
    """One candidate in one setting of one file."""

    file: str
    kind: str
    device: str  # its name, with the number of devices if there are several
    batch: int
    length: int
    shape: str  # sanitized; the same for the same model in every file, and different from every other model's
    result: CandidateResult
    config: Mapping[str, Any]
    faster: tuple[tuple[Measurement, Interval], ...] = ()  # another one in its setting, and the ratio of its speed to that one's

    @property
    def tokens_per_second(self) -> Interval:
        """Of all devices together."""
        return self.result.seconds.inverse().scaled(float(self.result.work))


@dataclasses.dataclass(frozen=True)
class ShapePair:
    """Two shapes of mhsh on one device, in all settings in which they took turns."""

    kind: str
    device: str
    shallow: str
    deep: str  # the one with fewer heads a layer
    ratios: Mapping[Setting, Interval]  # time of the shallow one over that of the deep one; above 1 the deep shape is faster

    def lines(self) -> tuple[str, str, dict[int, dict[int, Interval]]]:
        """What is kept, what varies (`length` and `batch`, or with one batch the reverse), and the
        ratios by the kept size and the varied one.
        """
        varied = 0 if len({batch for batch, _ in self.ratios}) > 1 else 1
        found: dict[int, dict[int, Interval]] = {}
        for setting, ratio in sorted(self.ratios.items()):
            found.setdefault(setting[1 - varied], {})[setting[varied]] = ratio
        return _SIZES[1 - varied], _SIZES[varied], dict(sorted(found.items()))


@dataclasses.dataclass(frozen=True)
class Speed:
    """All measurements."""

    rows: tuple[Measurement, ...]  # in the order of the files, their settings and their turns
    pairs: tuple[ShapePair, ...]
    problems: tuple[str, ...]


def read_speed(paths: Sequence[str]) -> Speed:
    """Everything in the files of `mhsh bench train` and `mhsh bench inference`.

    Raises:
      UserError: a file is of another kind or damaged.
    """
    files = {path: read_grid(path) for path in paths}
    names = _shape_names(files.values())
    rows = [row for path, results in files.items() for cell in results.cells for row in _rows(path, results, cell, names)]
    pairs: dict[tuple[str, str, str, str], dict[Setting, Interval]] = {}
    problems: list[str] = []
    for row, (other, ratio) in [(each, other) for each in rows for other in each.faster]:
        where = f"{row.file}, batch {row.batch} x length {row.length}"
        if {row.result.implementation, other.result.implementation} != {"mhsh"}:
            continue
        if (row.result.work, row.result.devices) != (other.result.work, other.result.devices):
            problems.append(f"{where}: {row.shape} and {other.shape} differ in tokens or devices and are not compared")
            continue
        ratios = pairs.setdefault((row.kind, row.device, other.shape, row.shape), {})
        if (row.batch, row.length) in ratios:
            problems.append(f"{where}: another file measured this too; the first file is drawn")
        ratios.setdefault((row.batch, row.length), ratio)
    return Speed(tuple(rows), tuple(ShapePair(*key, ratios) for key, ratios in pairs.items()), tuple(problems))


def speed_report(speed: Speed) -> Report:
    """The measurements in words, as a table and in figures."""
    lowest = min(row.result.seconds.confidence for row in speed.rows)
    confidence = (
        f"Every setting of a bench has its own interval. It holds its true value with a probability of {lowest:.0%} or more: of "
        f"many intervals up to {1 - lowest:.0%} miss it by chance.{' Under six rounds give less than 95%.' * (lowest < 0.95)}"
    )
    findings = tuple(map(finding, speed.pairs))
    shapes = list(dict.fromkeys(row.shape for row in speed.rows))
    return Report(
        title=findings[0] if len(findings) == 1 else f"Speed of {format_names(shapes)}",
        summary=tuple(f"{each}." for each in findings) if len(findings) > 1 else (),
        tables=(_measurements_table(speed.rows),),
        points=(*map(_ratios_figure, speed.pairs), *_quantity_figures(speed.rows)),
        problems=speed.problems,
        rules=(confidence, *_RULES),
    )


def faster(ratio: Interval) -> str:
    """`deep` or `shallow`, or `open` where the interval covers 1."""
    return "deep" if ratio.low > 1 else "shallow" if ratio.high < 1 else "open"


def finding(pair: ShapePair) -> str:
    """In how many settings each shape is faster."""
    found = [faster(ratio) for ratio in pair.ratios.values()]
    where = f"{len(found)} settings" if len(found) > 1 else "1 setting"
    return (
        f"{_noun(pair.kind).capitalize()}: {pair.deep} is faster than {pair.shallow} at {found.count('deep')} of {where}, slower "
        f"at {found.count('shallow')}, with no significant difference at {found.count('open')}"
    )


def _noun(kind: str) -> str:
    return {"train": "training"}.get(kind, kind)


def _identity(results: BenchResults, candidate: CandidateResult) -> tuple[str, str, str]:
    model = results.configs[candidate.config]["model"]
    return candidate.implementation, candidate.label, json.dumps(model, sort_keys=True)


def _shape_names(files: Iterable[BenchResults]) -> dict[tuple[str, str, str], str]:
    """A name for every model: its label, with a number where two models have the same label."""
    candidates = [(file, candidate) for file in files for cell in file.cells for candidate in cell.candidates]
    labels = {_identity(file, each): sanitize(each.label.removeprefix("mhsh ")) or each.name for file, each in candidates}
    return dict(zip(labels, numbered(labels.values()), strict=True))


def _rows(path: str, results: BenchResults, cell: SettingResults, names: Mapping[tuple[str, str, str], str]) -> list[Measurement]:
    """The candidates of a setting, each set against its baseline. Of two shapes of mhsh the deep
    one is set against the shallow one, whichever is the baseline of the file.
    """
    environment = results.environment
    device = environment["devices"]["kind"]
    if environment["devices"]["platform"] == "cpu":  # its kind is just "cpu"
        device = f"{device} ({environment['processor']}, {environment['cores']} cores)"
    rows = {
        each.name: Measurement(
            file=sanitize(path),
            kind=results.kind,
            device=sanitize(device if each.devices == 1 else f"{each.devices} x {device}"),
            batch=cell.batch_and_length[0],
            length=cell.batch_and_length[1],
            shape=names[_identity(results, each)],
            result=each,
            config=results.configs[each.config],
        )
        for each in cell.candidates
    }
    faster: dict[str, list[tuple[Measurement, Interval]]] = {name: [] for name in rows}
    for row in rows.values():
        baseline, ratio = rows.get(row.result.baseline or ""), row.result.time_ratio
        if baseline is None or ratio is None:
            continue
        own = {row.result.implementation, baseline.result.implementation} == {"mhsh"}
        if own and _depth(row) < _depth(baseline):
            faster[baseline.result.name].append((row, ratio))
        else:
            faster[row.result.name].append((baseline, ratio.inverse()))
    return [dataclasses.replace(row, faster=tuple(faster[name])) for name, row in rows.items()]


def _depth(row: Measurement) -> tuple[int, int]:
    """Larger for the deep one of two: fewer heads a layer, then more layers."""
    return -row.config["model"]["num_heads"], row.config["model"]["num_layers"]


def _measurements_table(measured: Sequence[Measurement]) -> Table:
    names = ("shape", "what", "batch", "length", "time", "speed ratio", "to", "tokens/s", "memory", "device", "file")
    columns = tuple(Column(name, numeric=place in (2, 3, 4, 5, 7, 8), rank=place) for place, name in enumerate(names))
    rows = []
    for row in measured:
        sizes, time, memory = (str(row.batch), str(row.length)), _cell(row.result.seconds, timing), row.result.memory_bytes
        rate = _cell(row.tokens_per_second, lambda rate: quantity(rate, "").strip())
        costs = (rate, Cell(quantity(memory, "B"), value=memory))
        # A shape that two others are set against has a row for each of these.
        for ratio in [(_cell(ratio, _format_ratio), other.shape) for other, ratio in row.faster] or [("", "")]:
            rows.append(Row((row.shape, _noun(row.kind), *sizes, time, *ratio, *costs, row.device, row.file)))
    note = "Intervals follow the values. A ratio above 1: this shape is faster than the other one."
    return Table("Time, throughput and memory", columns, tuple(rows), note).without_empty_columns()


def _cell(of: Interval, words: Callable[[float], str]) -> Cell:
    return Cell(words(of.median), note=f"{words(of.low)} to {words(of.high)}", value=of.median, low=of.low, high=of.high)


def _format_ratio(ratio: float) -> str:
    return f"{ratio:.3f}" if ratio < 1 else f"{ratio:.2f}"


def _ratios_figure(pair: ShapePair) -> Points:
    kept, varied, lines = pair.lines()
    series = [
        Series(f"{kept} {size}", tuple(_point(at, ratio, hollow=faster(ratio) == "open") for at, ratio in line.items()))
        for size, line in lines.items()
    ]
    title = f"{_noun(pair.kind).capitalize()} on {pair.device}: speed of {pair.deep} over {pair.shallow}"
    note = "Above 1 the deep shape is faster. Hollow: no significant difference (the interval covers 1)."
    return _figure(title, varied, "ratio of speeds", series, (Reference(1.0, "equally fast", metric=""),), note)


def _quantity_figures(rows: Sequence[Measurement]) -> Iterator[Points]:
    """Latency of inference and throughput of training, against the batch or, with one batch, the
    length. Where several files have one setting, the first one's is drawn.
    """
    for kind, device in dict.fromkeys((row.kind, row.device) for row in rows):
        here = [row for row in rows if (row.kind, row.device) == (kind, device)]
        varied = 0 if len({row.batch for row in here}) > 1 or len({row.length for row in here}) == 1 else 1
        several = len({(row.batch, row.length)[1 - varied] for row in here}) > 1
        lines: dict[str, dict[int, Point]] = {}
        for row in here:
            size, of = (row.batch, row.length), row.result.seconds if kind == "inference" else row.tokens_per_second
            name = f"{row.shape}, {_SIZES[1 - varied]} {size[1 - varied]}" if several else row.shape
            lines.setdefault(name, {}).setdefault(size[varied], _point(size[varied], of))
        series = [Series(name, tuple(point for _, point in sorted(line.items()))) for name, line in lines.items()]
        what, unit = ("latency", "seconds") if kind == "inference" else ("throughput", "tokens/s")
        yield _figure(f"{_noun(kind).capitalize()} on {device}: {what}", _SIZES[varied], f"{what}, {unit}", series)


def _figure(
    title: str, varied: str, y_title: str, series: Sequence[Series], references: tuple[Reference, ...] = (), note: str = ""
) -> Points:
    ticks = tuple((size, f"{size:.0f}") for size in sorted({point.x for each in series for point in each.points}))
    x_title = {"batch": "batch (rows)", "length": "length (tokens)"}[varied]
    return Points(title, x_title, y_title, tuple(series), True, True, ticks, references, note)


def _point(x: int, of: Interval, hollow: bool = False) -> Point:
    return Point(float(x), of.median, of.low, of.high, hollow)
