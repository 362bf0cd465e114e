"""What shapes and costs say in words: the columns of their tables, one sentence a finding, and the
rules behind them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec.structs import astuple

from mhsh.bench.intervals import Interval
from mhsh.report.render import csv_file
from mhsh.report.render.format import format_list
from mhsh.report.render.table import Table
from mhsh.report.speed.comparison import Measurement, ShapePair, Speed, crossings, verdict
from mhsh.report.speed.cost import Cost
from mhsh.text import quantity, timing

MARK = "written by mhsh speed"  # as of outputs.MARK
HOW_TO_READ = "Above 1 the deep one is faster. Black line: equally fast. Hatched: the interval covers 1, not told apart."
_RULES = (
    "A time is the median over the rounds; its interval is distribution-free, from the rounds alone.",
    "A ratio is taken within each round, in which both shapes met the same disturbances; it can be told apart from 1 although the "
    "two times' own intervals overlap.",
    "Every setting has an interval of its own: where many are looked at, about one in twenty misses its true value by chance.",
    "Between two measured sizes, the crossing is read off a straight line of the ratio's logarithm over that of the size.",
)
_COST_RULES = (
    "Steps to the target are linear between two validations of the run. Device-hours are these steps times the bench's median step "
    "time times its devices; their interval is the bench's alone: how much seeds differ is not in it. Data loading, evaluations "
    "and checkpoints are not counted.",
)


def rules(speed: Speed, with_costs: bool) -> tuple[str, ...]:
    """How the numbers are made."""
    lowest = min(row.result.seconds.confidence for row in speed.rows)
    confidence = (
        f"Every interval holds its true value with a probability of {lowest:.1%} or more; under six rounds give less than 95%."
    )
    return (confidence, *_RULES, *(_COST_RULES if with_costs else ()))


def span(interval: Interval | None, word: Callable[[float], str]) -> str:
    """`1.20 ms (1.10 ms to 1.40 ms)`; nothing for nothing."""
    return f"{word(interval.median)} ({word(interval.low)} to {word(interval.high)})" if interval else ""


def times(ratio: float) -> str:
    """A ratio with three digits or more."""
    return f"{ratio:.3f}" if ratio < 1 else f"{ratio:.2f}"


def _rate(rate: float) -> str:
    return quantity(rate, "").strip()


# Heading, and what stands under it.
ROW_COLUMNS: tuple[tuple[str, Callable[[Measurement], str]], ...] = (
    ("shape", lambda row: row.shape),
    ("what", lambda row: row.kind),
    ("device", lambda row: row.device),
    ("batch", lambda row: str(row.batch)),
    ("length", lambda row: str(row.length)),
    ("time (interval)", lambda row: span(row.result.seconds, timing)),
    ("tokens/s", lambda row: _rate(row.tokens_per_second.median)),
    ("memory", lambda row: quantity(row.result.memory_bytes, "B")),
    ("time ratio (interval)", lambda row: span(row.result.time_ratio, times)),
    ("to", lambda row: row.baseline or ""),
    ("file", lambda row: row.file),
)
COST_COLUMNS: tuple[tuple[str, Callable[[Cost], str]], ...] = (
    ("run", lambda cost: cost.run),
    ("device-hours (interval)", lambda cost: cost.refusal or span(cost.hours, _hours)),
    ("steps to target", lambda cost: "" if cost.steps is None else f"{'at most ' if cost.at_most else ''}{cost.steps:,.1f}"),
    ("step (interval)", lambda cost: span(cost.step, timing)),
    ("shape", lambda cost: cost.shape or ""),
    ("device", lambda cost: cost.device or ""),
    ("remark", lambda cost: cost.remark or ""),
)


def _hours(hours: float) -> str:
    return f"{hours:#.3g}" if hours < 100 else f"{hours:,.0f}"


def headline(speed: Speed) -> str:
    """One line for the whole."""
    if len(speed.pairs) == 1:
        return finding(speed.pairs[0])
    if len({(pair.shallow, pair.deep) for pair in speed.pairs}) == 1:
        kinds = format_list([kind_name(kind) for kind in dict.fromkeys(pair.kind for pair in speed.pairs)])
        return f"Speed in {kinds}: {speed.pairs[0].deep} against {speed.pairs[0].shallow}"
    return f"Speed of {len(speed.shapes)} shapes" if len(speed.shapes) > 1 else f"Speed of {speed.shapes[0]}"


def kind_name(kind: str) -> str:
    """Of the bench, as a noun."""
    return {"train": "training"}.get(kind, kind)


def pair_title(pair: ShapePair) -> str:
    """What stands in the cells of its map."""
    return f"{kind_name(pair.kind)}: time of {pair.shallow} over that of {pair.deep}"


def finding(pair: ShapePair) -> str:
    """In how many settings which one is faster."""
    found = [verdict(ratio) for ratio in pair.ratios.values()]
    deep, shallow, unclear = (found.count(each) for each in ("deep", "shallow", "open"))
    where = f"{len(found)} settings" if len(found) > 1 else "1 setting"
    return (
        f"{kind_name(pair.kind).capitalize()}: {pair.deep} is faster than {pair.shallow} at {deep} of {where}, slower at "
        f"{shallow}, not told apart at {unclear}"
    )


def turning_points(pair: ShapePair) -> list[str]:
    """Where the two are equally fast: along the batch for every length, or along the length where
    there is one batch alone.
    """
    along_batch = len(pair.batches) > 1
    kept, varied = ("length", "batch") if along_batch else ("batch", "length")
    lines = []
    for size in pair.lengths if along_batch else pair.batches:
        line = {(b if along_batch else t): r for (b, t), r in pair.ratios.items() if (t if along_batch else b) == size}
        found = crossings(line)
        for crossing in found:
            first, second = (pair.shallow, pair.deep) if crossing.deep_beyond else (pair.deep, pair.shallow)
            sure = [f"{first} up to {varied} {crossing.significant_up_to}"] if crossing.significant_up_to else []
            sure += [f"{second} from {varied} {crossing.significant_from} on"] if crossing.significant_from else []
            what = f"{second} overtakes {first} at {varied} {crossing.at:.3g}"
            certain = f"told apart: {format_list(sure)}" if sure else "neither side of it is told apart from equal"
            lines.append(f"At {kept} {size}, {what} ({certain}).")
        if not found:
            faster = pair.deep if next(iter(line.values())).median > 1 else pair.shallow
            lines.append(f"At {kept} {size}, the lines do not cross: the median of {faster} is the lower one throughout.")
    return lines


def to_csv(rows: Sequence[Measurement]) -> bytes:
    """Every row with all digits, for a spreadsheet or a plotting tool; the first line is a comment
    that says who wrote it.
    """
    estimates = [f"{name}_{field}" for name in ("seconds", "time_ratio") for field in Interval.__struct_fields__]
    columns = [
        *("kind", "device", "batch", "length", "shape", "implementation", "devices", "tokens", "tokens_per_second", "memory_bytes"),
        *(*estimates, "time_ratio_to", "file"),
    ]
    lines = []
    for row in rows:
        result = row.result
        ratio = astuple(result.time_ratio) if result.time_ratio else [""] * len(Interval.__struct_fields__)
        numbers = [*astuple(result.seconds), *ratio]
        facts = [result.implementation, result.devices, result.work, row.tokens_per_second.median, result.memory_bytes]
        lines.append([row.kind, row.device, row.batch, row.length, row.shape, *facts, *numbers, row.baseline, row.file])
    return f"# {MARK}\n".encode() + csv_file.to_csv(Table(columns, lines))
