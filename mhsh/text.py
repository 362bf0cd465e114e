"""Numbers, losses and lists as text; and text from files, made safe to show."""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from mhsh.errors import UserError

NOT_RECORDED = "not recorded"
_HASH = re.compile(r"[0-9a-f]{16,}")
_PREFIXES = ((0, ""), (3, "k"), (6, "M"), (9, "G"), (12, "T"), (15, "P"), (18, "E"), (21, "Z"), (24, "Y"))


def duration(seconds: int | float | None) -> str:
    """A duration: `48.2 s`, `3 min 05 s` or `2 h 07 min`."""
    if seconds is None or not math.isfinite(seconds):
        return NOT_RECORDED
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    whole_seconds = round(seconds)
    if whole_seconds < 3600:
        return f"{whole_seconds // 60} min {whole_seconds % 60:02d} s"
    minutes = round(seconds / 60)
    return f"{minutes // 60} h {minutes % 60:02d} min"


def timing(seconds: int | float) -> str:
    """A measured time in the unit that leaves three digits: `1.23 s`, `45.6 ms` or `789 us`."""
    for size, unit in ((1, "s"), (1e-3, "ms"), (1e-6, "us")):
        if seconds >= size:
            return f"{_digits(seconds / size)} {unit}"
    return f"{_digits(seconds * 1e9)} ns"


def count(value: int | float | None) -> str:
    """A count, in full up to 99,999, then with a metric suffix: 512,000 is `512k`, 2.1e15 is
    `2.10P`.
    """
    if value is None or not math.isfinite(value):
        return NOT_RECORDED
    return f"{value:,.0f}" if abs(value) < 1e5 else "".join(_scale_number(value))


def quantity(number: int | float | None, unit: str) -> str:
    """Three digits and a decimal prefix: `12.3 GFLOP/s`. Empty for None and 0."""
    return f"{' '.join(_scale_number(number))}{unit}" if number else ""


def _scale_number(number: int | float) -> tuple[str, str]:
    """Three digits, and the metric prefix that leaves them; 999,960 is 1.00 M, not 1000 k."""
    power, prefix = next(entry for entry in _PREFIXES if abs(number) < 999.5 * 10 ** entry[0] or entry == _PREFIXES[-1])
    return _digits(number / 10**power), prefix


def _digits(number: float) -> str:
    """Three digits, of the rounded number: 99.96 is 100."""
    return f"{number:.{0 if abs(number) >= 99.95 else 1 if abs(number) >= 9.995 else 2}f}"


def whole_numbers(flag: str, text: str, least: int = 1) -> list[int]:
    """The numbers of a list such as 1,4,16, which a flag was given. Raises UserError where one of
    them is not a whole number, is below `least`, or is there twice.
    """
    parts = text.split(",")
    numbers = [int(part) if part.isdecimal() else -1 for part in parts]
    if min(numbers) < least or len(set(numbers)) < len(numbers):
        raise UserError(f"{flag}{text}: give whole numbers of at least {least} with commas between, each once")
    return numbers


def sanitize(text: str) -> str:
    """`text` on one line. U+FFFD replaces control characters (escape sequences), direction
    overrides and undecodable bytes.
    """
    return "".join(character if character.isprintable() else "\ufffd" for character in " ".join(text.split()))


def number_duplicates(names: Iterable[str]) -> list[str]:
    """The names; of equal ones the second gets ` (2)` and so on, so that all are different."""
    unique: list[str] = []
    for name in names:
        candidates = (name if number == 1 else f"{name} ({number})" for number in itertools.count(1))
        unique.append(next(candidate for candidate in candidates if candidate not in unique))
    return unique


def format_list(words: Sequence[str]) -> str:
    """`a`, `a and b`, `a, b and c`; empty for no words."""
    return "".join(words) if len(words) < 2 else f"{', '.join(words[:-1])} and {words[-1]}"


def format_names(names: Sequence[str]) -> str:
    """The names as `format_list`; of more than four the first three and how many others."""
    return format_list(names) if len(names) <= 4 else f"{', '.join(names[:3])} and {len(names) - 3} others"


def shorten(text: str, most: int) -> str:
    """`text` in at most `most` characters: what differs in names stands at their ends, so the
    middle is left out.
    """
    if len(text) <= most:
        return text
    end = (most - 1) // 2
    return f"{text[: most - 1 - end]}\u2026{text[len(text) - end :]}"


def shorten_all(names: Sequence[str], most: int) -> tuple[list[str], str]:
    """The names in at most `most` characters each, and the words that were left out of every one:
    where one is too long, those that all have at the same place, or if they have not equally many
    words, the parts between commas that all have.
    """
    split = [name.split(" ") for name in names]
    between = " " if len({*map(len, split)}) == 1 else ", "
    parts = [name.split(between) for name in names]
    if all(len(name) <= most for name in names) or len(set(names)) == 1:
        shared: set[tuple[int, str]] = set()
    elif between == " ":
        shared = {*enumerate(parts[0])}.intersection(*map(enumerate, parts))
    else:
        shared = {
            (place, part) for name_parts in parts for place, part in enumerate(name_parts) if all(part in each for each in parts)
        }
    distinct = [
        [part for place, part in enumerate(name_parts) if (place, part) not in shared] or name_parts for name_parts in parts
    ]
    common = ", ".join(dict.fromkeys(part.strip(",") for _, part in sorted(shared)))
    return [shorten(between.join(name_parts).strip(","), most) for name_parts in distinct], common


def format_loss(value: float | None) -> str:
    """A loss in nats per token, three decimals; of one near 0, or a huge one, three digits."""
    if value is None:
        return NOT_RECORDED
    if not math.isfinite(value):
        return "not finite"
    return f"{value:.3f}" if 0.0005 <= abs(value) < 1e6 or value == 0 else f"{value:.3g}"


def format_signed(value: float, words: Callable[[float], str] = "{:.3f}".format) -> str:
    """The value in words, after its sign."""
    return ("\u2212" if value < 0 else "+") + words(abs(value))


def format_range(low: float, high: float, words: Callable[[float], str]) -> str:
    """`LOW to HIGH`, each in these words; an end that is not finite is not a bound."""
    if not math.isfinite(low) or not math.isfinite(high):
        return f"up to {words(high)}" if math.isfinite(high) else f"at least {words(low)}" if math.isfinite(low) else "no bound"
    return f"{words(low)} to {words(high)}"


def format_difference(value: float) -> str:
    """`+0.120`, of a difference of losses. A small one keeps a digit instead of becoming 0.000."""
    return format_signed(value, lambda size: f"{size:.3f}" if size >= 0.0005 or size == 0 else f"{size:.1g}")


def format_interval(low: float, high: float) -> str:
    """`+0.120 to +0.340`, of a difference of losses; `up to +0.340` if it has no lower bound."""
    return format_range(low, high, format_difference)


def format_values(values: Sequence[Any]) -> list[str]:
    """Values of a JSON file, each on one line and short: of a hash the first eight digits, of a
    float six, a count with its thousands set apart. In full where that would make two of them the
    same. None is `not recorded`.
    """
    full, short = [_format_full(value) for value in values], [_format_short(value) for value in values]
    return short if len(set(short)) == len(set(full)) else full


def to_json(value: Any, indent: int | None = None) -> str:
    """The value in JSON. A number that is not finite, which JSON does not have, is null."""
    return json.dumps(_finite_or_none(value), indent=indent, allow_nan=False)


def _finite_or_none(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _finite_or_none(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite_or_none(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _format_full(value: Any) -> str:
    if value is None:
        return NOT_RECORDED
    return sanitize(value) or '""' if isinstance(value, str) else sanitize(json.dumps(value, sort_keys=True, ensure_ascii=False))


def _format_short(value: Any) -> str:
    if isinstance(value, str) and _HASH.fullmatch(value):
        return value[:8]
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.6g}"
    if isinstance(value, Mapping) and all(isinstance(entry, str | int | float) for entry in value.values()):
        return sanitize(", ".join(f"{key} {_format_short(entry)}" for key, entry in sorted(value.items())))
    return _format_full(value)
