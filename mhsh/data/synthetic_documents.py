"""The sources `recall` and `copying`: documents whose later half can be told from the earlier one,
made without a download.

What cannot be told is drawn uniformly, so the lowest loss that any model can have is known. With
bytes and rows of 128 tokens each row is a document.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from string import ascii_lowercase

import numpy as np

from mhsh.data.random_numbers import SYNTHETIC_DOCUMENTS
from mhsh.errors import UserError

DOCUMENTS = 30_000
LENGTH = 127  # characters; [SEP] follows
KEYS = "abcdefgh"


def recall(argument: str) -> Iterator[str]:
    """Associative recall of so many keys at once: `c7a3...` gives each key a digit, `ac0` asks for
    the last digit of the sum of those of a and c. With one key it is plain recall.
    """
    count = _number("recall", argument, len(KEYS))
    rng = np.random.default_rng((SYNTHETIC_DOCUMENTS, count))
    every = np.tile(np.arange(len(KEYS)), (LENGTH, 1))
    for _ in range(DOCUMENTS):
        digits, order = rng.integers(10, size=len(KEYS)), rng.permutation(len(KEYS))
        asked = rng.permuted(every, axis=1)[:, :count]  # different keys
        answers = digits[asked].sum(axis=1) % 10
        lines = itertools.chain(zip(order[:, None], digits[order], strict=True), zip(asked, answers, strict=True))
        yield "".join("".join(KEYS[key] for key in keys) + str(digit) for keys, digit in lines)[:LENGTH]


def copying(argument: str) -> Iterator[str]:
    """So many letters, again and again."""
    count = _number("copying", argument, LENGTH // 2)
    rng = np.random.default_rng((SYNTHETIC_DOCUMENTS, count, 0))
    for _ in range(DOCUMENTS):
        word = "".join(ascii_lowercase[letter] for letter in rng.integers(len(ascii_lowercase), size=count))
        yield (word * LENGTH)[:LENGTH]


def _number(name: str, argument: str, most: int) -> int:
    if not argument.isascii() or not argument.isdigit() or not 1 <= int(argument) <= most:
        raise UserError(f"data.source = '{name}:{argument}': give a number from 1 to {most}")
    return int(argument)
