"""The findings on speed as sentences, and the rules behind them."""

from __future__ import annotations

from mhsh.report.speed.comparison import ShapePair, Speed, crossings, verdict
from mhsh.verdict.words import format_list

MARK = "written by mhsh speed"  # as of outputs.MARK
HOW_TO_READ = "Above 1 the deep shape is faster. Line: equally fast. Hatched: no significant difference (the interval covers 1)."
_RULES = (
    "A time is the median over the rounds; its interval is distribution-free, from the rounds alone.",
    "A ratio of speeds is the other shape's time over this one's, within each round, in which both met the same disturbances; it "
    "can differ from 1 significantly although the intervals of the two times overlap.",
    "Between two measured sizes, the logarithm of the ratio is taken to be linear in the logarithm of the size.",
)
_COST_RULES = (
    "Steps to the target are linear between two validations of the run. Device-hours are these steps times the bench's median step "
    "time times its devices. Their interval is that of the step time alone; differences between seeds are not in it. Data loading, "
    "evaluations and checkpoints are not counted.",
)


def rules(speed: Speed, with_costs: bool) -> tuple[str, ...]:
    """How the numbers are computed."""
    lowest = min(row.result.seconds.confidence for row in speed.rows)
    confidence = (
        f"Every setting has its own interval. It holds its true value with a probability of {lowest:.0%} or more: of many "
        f"intervals up to {1 - lowest:.0%} miss it by chance.{' Under six rounds give less than 95%.' * (lowest < 0.95)}"
    )
    return (confidence, *_RULES, *(_COST_RULES if with_costs else ()))


def format_ratio(ratio: float) -> str:
    """With three digits or more."""
    return f"{ratio:.3f}" if ratio < 1 else f"{ratio:.2f}"


def headline(speed: Speed) -> str:
    """The page's title."""
    if len(speed.pairs) == 1:
        return finding(speed.pairs[0])
    if len({(pair.shallow, pair.deep) for pair in speed.pairs}) == 1:
        kinds = format_list([kind_name(kind) for kind in dict.fromkeys(pair.kind for pair in speed.pairs)])
        return f"Speed in {kinds}: {speed.pairs[0].deep} against {speed.pairs[0].shallow}"
    return f"Speed of {len(speed.shapes)} shapes" if len(speed.shapes) > 1 else f"Speed of {speed.shapes[0]}"


def kind_name(kind: str) -> str:
    """A kind of bench as a noun."""
    return {"train": "training"}.get(kind, kind)


def pair_title(pair: ShapePair) -> str:
    """What the map of a pair shows."""
    return f"{kind_name(pair.kind)}: speed of {pair.deep} over {pair.shallow}"


def finding(pair: ShapePair) -> str:
    """In how many settings each shape is faster."""
    found = [verdict(ratio) for ratio in pair.ratios.values()]
    deep, shallow, unclear = (found.count(each) for each in ("deep", "shallow", "open"))
    where = f"{len(found)} settings" if len(found) > 1 else "1 setting"
    return (
        f"{kind_name(pair.kind).capitalize()}: {pair.deep} is faster than {pair.shallow} at {deep} of {where}, slower at "
        f"{shallow}, with no significant difference at {unclear}"
    )


def turning_points(pair: ShapePair) -> list[str]:
    """Where two shapes are equally fast: along the batch for each length, or, with only one batch,
    along the length.
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
            certain = f"significant: {format_list(sure)}" if sure else "significant on neither side"
            lines.append(f"At {kept} {size}, {what} ({certain}).")
        if not found:
            faster = pair.deep if next(iter(line.values())).median > 1 else pair.shallow
            lines.append(f"At {kept} {size}, the lines do not cross: {faster} has the lower median everywhere.")
    return lines
