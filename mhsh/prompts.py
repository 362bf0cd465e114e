"""The texts and numbers that a loaded model is given, checked before it is loaded."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from mhsh.data.wordpiece import MASK
from mhsh.encoding import check_text
from mhsh.errors import UserError

_LARGEST_SEED = 2**32 - 1
_ALLOWED = {  # the least and the largest value
    **dict.fromkeys(("top", "max_tokens", "beam", "batch_tokens"), (1, sys.maxsize)),
    **dict.fromkeys(("temperature", "top_k", "length_penalty"), (0, sys.maxsize)),
    "seed": (0, _LARGEST_SEED),
}


def check_values(**values: object) -> None:
    """Raises UserError where a method of LoadedModel cannot take the value of an argument; texts
    and other arguments are passed over.
    """
    for name, value in values.items():
        if name not in _ALLOWED or not isinstance(value, int | float):
            continue
        least, most = _ALLOWED[name]
        if not least <= value <= most:
            allowed = f"{least} or more" if most > _LARGEST_SEED else f"from {least} to {most}"
            raise UserError(f"{name} = {value}; allowed: {allowed}")


def check_masks(text: str) -> None:
    """Raises UserError where no word of the text is to be found."""
    if MASK not in text:
        raise UserError(f"the text has no {MASK}; write {MASK} where a word is to be found")


def list_texts(texts: str | Sequence[str]) -> list[str]:
    """One text or several, as a list. Raises UserError where there is none, or one holds what is no
    text: a byte that is not UTF-8, or half of a surrogate pair.
    """
    found = [texts] if isinstance(texts, str) else list(texts)
    if not found:
        raise UserError("no text was given; give at least one")
    return [check_text(text, f"text {number}") for number, text in enumerate(found, 1)]
