"""What `mhsh bench` measured, as a part of the report: which of two shapes is faster in which
setting, and what a run costs to the target on the machine of the bench.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from mhsh.bench.intervals import Interval
from mhsh.bench.results import BenchResults, CandidateResult, SettingResults, read_grid
from mhsh.config.fields import all_fields, differences
from mhsh.config.schema import Step
from mhsh.report.report import Cell, Column, Point, Points, Reference, Report, Row, Series, Table
from mhsh.text import format_list, format_loss, format_names, numbered, quantity, sanitize, timing
from mhsh.verdict.findings import Comparison
from mhsh.verdict.runs import Run

Setting = tuple[int, int]  # batch, length
_SIZES = ("batch", "length")

_RULES = (
    "A time of a bench is the median over its rounds; its interval is distribution-free, from the rounds alone.",
    "A ratio of speeds is the other shape's time over this one's, within each round, in which both met the same disturbances; it "
    "can differ from 1 significantly although the intervals of the two times overlap.",
    "Between two measured sizes, the logarithm of the ratio is taken to be linear in the logarithm of the size.",
)
_COST_RULE = (
    "Device-hours to the target are the steps to it times the bench's median step time times its devices. Their interval is that "
    "of the step time alone. Data loading, evaluations and checkpoints are not counted."
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


def speed_report(speed: Speed, comparisons: Sequence[Comparison] = ()) -> Report:
    """The report on speed, with the device-hours of the runs that are compared."""
    lowest = min(row.result.seconds.confidence for row in speed.rows)
    confidence = (
        f"Every setting of a bench has its own interval. It holds its true value with a probability of {lowest:.0%} or more: of "
        f"many intervals up to {1 - lowest:.0%} miss it by chance.{' Under six rounds give less than 95%.' * (lowest < 0.95)}"
    )
    findings = [f"{finding(pair)}." for pair in speed.pairs] if len(speed.pairs) > 1 else []
    costs = tuple(table for each in comparisons if (table := _costs_table(each, speed.rows)) is not None)
    return Report(
        title=_title(speed),
        summary=(*findings, *(line for pair in speed.pairs for line in turning_points(pair))),
        tables=(*costs, _measurements_table(speed.rows)),
        points=(*map(_ratios_figure, speed.pairs), *_quantity_figures(speed.rows)),
        problems=speed.problems,
        rules=(confidence, *_RULES, *([_COST_RULE] if costs else [])),
    )


def appended(report: Report, speed: Report) -> Report:
    """The report, with what is said and shown of speed after its own."""
    return dataclasses.replace(
        report,
        summary=(*report.summary, f"{speed.title}.", *speed.summary),
        tables=(*report.tables, *speed.tables),
        points=(*report.points, *speed.points),
        problems=(*report.problems, *speed.problems),
        rules=(*report.rules, *speed.rules),
    )


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
        significant_up_to = max((size for size in sizes if size <= left and faster(ratios[size]) == sides[0]), default=None)
        significant_from = min((size for size in sizes if size >= right and faster(ratios[size]) == sides[1]), default=None)
        found.append(Crossing(at, after > 1, significant_up_to, significant_from))
    return found


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


def turning_points(pair: ShapePair) -> list[str]:
    """Where two shapes are equally fast: along the batch for each length, or, with only one batch,
    along the length.
    """
    kept, varied, lines = pair.lines()
    said, kind = [], _noun(pair.kind).capitalize()
    for size, line in lines.items():
        found = crossings(line)
        for crossing in found:
            first, second = (pair.shallow, pair.deep) if crossing.deep_beyond else (pair.deep, pair.shallow)
            sure = [f"{first} up to {varied} {crossing.significant_up_to}"] if crossing.significant_up_to else []
            sure += [f"{second} from {varied} {crossing.significant_from} on"] if crossing.significant_from else []
            what = f"{second} overtakes {first} at {varied} {crossing.at:.3g}"
            certain = f"significant: {format_list(sure)}" if sure else "significant on neither side"
            said.append(f"{kind} at {kept} {size}: {what} ({certain}).")
        if not found:
            ahead = pair.deep if next(iter(line.values())).median > 1 else pair.shallow
            said.append(f"{kind} at {kept} {size}: the lines do not cross, and {ahead} has the lower median everywhere.")
    return said


def _title(speed: Speed) -> str:
    if len(speed.pairs) == 1:
        return finding(speed.pairs[0])
    shapes = list(dict.fromkeys(row.shape for row in speed.rows))
    return f"Speed of {format_names(shapes)}"


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
    note = "Behind each number stands its interval. A ratio above 1: this shape is faster than the other one."
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


def _costs_table(comparison: Comparison, rows: Sequence[Measurement]) -> Table | None:
    """Device-hours of every run that trained, on each device that was benched with its shape and
    batch. None if none trained.
    """
    measured = comparison.measured
    benches = [row for row in rows if row.kind == "train" and row.result.implementation == "mhsh"]
    shown = [
        _cost_row(member.run, values.costs["step"][member.replicate], member.replicate in values.at_most, row, reason)
        for group, values in zip(comparison.experiment.groups, measured.values, strict=True)
        for member in group.trained
        if member.run is not None
        for row, reason in _benches_of(member.run, benches)
    ]
    if measured.target is None or not shown:
        return None
    names = ("run", "device-hours", "steps to the target", "time of a step", "shape", "device", "remark")
    columns = tuple(Column(name, numeric=place in (1, 2, 3)) for place, name in enumerate(names))
    what = f"{_noun(measured.measure.split)} loss {format_loss(measured.target)} on the benched device"
    title = f"{comparison.name}: Device-hours to {what}".removeprefix(": ")
    return Table(title, columns, tuple(shown)).without_empty_columns()


def _benches_of(run: Run, benches: Sequence[Measurement]) -> list[tuple[Measurement | None, str]]:
    """The first bench of its shape and batch on each device, and in what else they differ; or None,
    and why there is none.
    """
    compared = [(row, _differences(run, row, "changes")) for row in benches]
    first: dict[str, Measurement] = {}
    for row in (row for row, differing in compared if not differing):
        first.setdefault(row.device, row)
    if first:
        return [(row, "; ".join(_differences(run, row, "named"))) for row in first.values()]
    if not compared:
        return [(None, "no file of mhsh bench train is named")]
    row, differing = min(compared, key=lambda each: len(each[1]))
    shown = "; ".join(differing[:4]) + ("; ..." if len(differing) > 4 else "")
    return [(None, f"no bench has its shape and batch; the nearest, {row.shape} in {row.file}, differs: {shown}")]


def _cost_row(run: Run, steps: float, at_most: bool, row: Measurement | None, remark: str) -> Row:
    if math.isnan(steps):
        return Row((run.name, *[""] * 5, "did not reach the target"))
    cells = (Cell(""), Cell(f"{'at most ' * at_most}{steps:,.1f}", value=steps), *[""] * 3)
    if row is not None:
        hours = _cell(
            row.result.seconds.scaled(steps * row.result.devices / 3600),
            lambda hours: f"{hours:#.3g}" if hours < 100 else f"{hours:,.0f}",
        )
        cells = (hours, cells[1], _cell(row.result.seconds, timing), row.shape, row.device)
    return Row((run.name, *cells, sanitize(remark)))


def _differences(run: Run, row: Measurement, step: Step) -> list[str]:
    """The fields in which a run and a bench differ, of those that do this to the time of a step."""
    found = differences(run.config, row.config)
    fields = [field for field in all_fields(run.config.model.objective) if field.step == step and field.path in found]
    return ["{} is {!r} in the run and {!r} in the bench".format(field.path, *found[field.path]) for field in fields]
