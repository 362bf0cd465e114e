"""Losses, shares and recorded values as short text."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mhsh.text import NOT_RECORDED, sanitize

_HASH = re.compile(r"[0-9a-f]{16,}")
_MOST_NAMES = 4  # in one sentence


# Residual schemes, by their names on the command line, as papers write them; `$` encloses formulas.
SCHEME_NAMES = {
    "post_ln": "Post-LN",
    "pre_ln": "Pre-LN",
    "admin": "Admin",
    "admin_closed_log": r"Admin, closed form $O(\log n)$",
    "admin_closed_one": "Admin, closed form $O(1)$",
    "deepnorm": "DeepNorm",
    "rezero": "ReZero",
    "keel": "Keel",
    "peri_ln": "Peri-LN",
    "ln_scaling": "LayerNorm scaling",
    "completep": "CompleteP",
    "hybrid_norm": "HybridNorm",
}


def format_loss(value: float | None) -> str:
    """A loss in nats per token, three decimals."""
    if value is None:
        return NOT_RECORDED
    return f"{value:.3f}" if math.isfinite(value) else "not finite"


def format_loss_difference(value: float) -> str:
    """A difference of two losses. A small one keeps a digit instead of becoming 0.000."""
    return f"{value:.3f}" if abs(value) >= 0.0005 or value == 0 else f"{value:.1g}"


def format_signed(value: float, words: Callable[[float], str]) -> str:
    """The value in words, after its sign."""
    return ("\u2212" if value < 0 else "+") + words(abs(value))


def format_interval(low: float, high: float) -> str:
    """`+0.120 to +0.340`, of a difference of losses; `any to +0.340` if it has no lower bound."""
    return format_range(low, high, lambda end: format_signed(end, format_loss_difference))


def format_range(low: float, high: float, words: Callable[[float], str]) -> str:
    """`LOW to HIGH`, each in these words; `any` for an end that is not finite."""
    return " to ".join(words(end) if math.isfinite(end) else "any" for end in (low, high))


def format_recorded(value: Any) -> str:
    """Any value of a JSON file on one line. None is `not recorded`."""
    if value is None:
        return NOT_RECORDED
    if isinstance(value, str):
        return sanitize(value) or '""'
    return sanitize(json.dumps(value, sort_keys=True, ensure_ascii=False))


def format_distinct(values: Sequence[Any]) -> list[str]:
    """The values as `format_recorded` gives them, but short for readers: of a hash the first eight
    digits, of a float six, a count with its thousands set apart. In full where that would make two
    of them the same.
    """
    full, short = [format_recorded(value) for value in values], [_short(value) for value in values]
    return short if len(set(short)) == len(set(full)) else full


def _short(value: Any) -> str:
    if isinstance(value, str) and _HASH.fullmatch(value):
        return value[:8]
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.6g}"
    if isinstance(value, Mapping) and all(isinstance(each, str | int | float) for each in value.values()):
        return sanitize(", ".join(f"{key} {_short(each)}" for key, each in sorted(value.items())))
    return format_recorded(value)


def format_list(words: Sequence[str]) -> str:
    """`a`, `a and b`, `a, b and c`; empty for no words."""
    return "".join(words) if len(words) < 2 else f"{', '.join(words[:-1])} and {words[-1]}"


def shorten(text: str, most: int) -> str:
    """`text` in at most `most` characters: what differs in names stands at their ends, so the
    middle is left out.
    """
    if len(text) <= most:
        return text
    end = (most - 1) // 2
    return f"{text[: most - 1 - end]}\u2026{text[len(text) - end :]}"


def format_names(names: Sequence[str]) -> str:
    """As `format_list`, but of more than _MOST_NAMES names the first ones and how many others."""
    if len(names) <= _MOST_NAMES:
        return format_list(names)
    shown = names[: _MOST_NAMES - 1]
    return f"{', '.join(shown)} and {len(names) - len(shown)} others"
