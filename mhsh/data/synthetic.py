"""Sources that are made without a download.

`numbers`: numbers and dates in English and German words, by num2words. Some numbers are held out:
no training pair has one, as a cardinal, an ordinal, a year or in a date. Training has all the words
of their names, so a model that has learnt to read and write numbers can translate them.

`recall` and `copying`: documents whose later half can be told from the earlier one. What cannot be
told is drawn uniformly, so the lowest loss that any model can have is known. With bytes and rows of
128 tokens each row is a document.
"""

from __future__ import annotations

import datetime
import functools
import itertools
from collections.abc import Iterator
from string import ascii_lowercase

import numpy as np

from mhsh.data.random_numbers import NUMBERS, SYNTHETIC_DOCUMENTS
from mhsh.errors import UserError

DOCUMENTS = 30_000
LENGTH = 127  # characters of a document; [SEP] follows
KEYS = "abcdefgh"

PAIRS_PER_EPOCH = 100_000
HELD_OUT_PAIRS = 1_000

_MOST = 999_999
_YEARS = range(1000, 2850)
# Held out are the runs of _RUN numbers whose index is _HELD_OUT_RUN modulo _EVERY: 350 to 399, 1300
# to 1349, 2250 to 2299, ... 999750 to 999799, one number in 19. A thousand has 20 runs, so
# neighbouring thousands lack different ones.
_RUN, _EVERY, _HELD_OUT_RUN = 50, 19, 7

_FIRST_DAY = datetime.date(2001, 1, 1)  # of a year of 365 days
# Not the calendar module's names, which are those of the process's locale.
_ENGLISH_MONTHS = "January February March April May June July August September October November December".split()  # noqa: SIM905
_GERMAN_MONTHS = "Januar Februar März April Mai Juni Juli August September Oktober November Dezember".split()  # noqa: SIM905
_FORMS = ("cardinal", "ordinal", "year", "date")
_FORM_SHARES = (0.55, 0.25, 0.05, 0.15)

# Pairs drawn at once: numpy draws a block of random numbers as fast as a few.
_BLOCK = 4096


def is_held_out_number(number: int) -> bool:
    """Whether no training pair has this number in any form."""
    return number // _RUN % _EVERY == _HELD_OUT_RUN


def training_pairs(count: int) -> Iterator[tuple[str, str]]:
    """The pairs 0 to count - 1, English and German, without held-out numbers. Pair k is the same
    for every count.
    """
    blocks = (_pairs(block, from_held_out=False) for block in itertools.count())
    return itertools.islice(itertools.chain.from_iterable(blocks), count)


def held_out_pairs() -> list[tuple[str, str]]:
    """1,000 different pairs, English and German, of held-out numbers alone. Their forms have the
    shares of the training pairs.
    """
    pairs: dict[tuple[str, str], None] = {}
    for pair in itertools.chain.from_iterable(_pairs(block, from_held_out=True) for block in itertools.count()):
        pairs[pair] = None
        if len(pairs) == HELD_OUT_PAIRS:
            break
    return list(pairs)


def _pairs(block: int, from_held_out: bool) -> Iterator[tuple[str, str]]:
    """The pairs of one block. Its random numbers depend on its index alone."""
    rng = np.random.default_rng((NUMBERS, from_held_out, block))
    forms = rng.choice(len(_FORMS), _BLOCK, p=_FORM_SHARES)
    # Half of the numbers are uniform up to the highest one, half in their number of digits, so that
    # training has short ones too.
    highest = np.where(rng.random(_BLOCK) < 0.5, _MOST + 1, 10 ** rng.integers(1, 7, _BLOCK))
    fractions, days = rng.random(_BLOCK), rng.integers(0, 365, _BLOCK)
    for form, high, fraction, day in zip(forms.tolist(), highest.tolist(), fractions.tolist(), days.tolist(), strict=True):
        numbers = _YEARS if _FORMS[form] in ("year", "date") else range(1 if _FORMS[form] == "ordinal" else 0, high)
        number = _number_on_side(numbers[int(fraction * len(numbers))], from_held_out)
        yield _english(_FORMS[form], number, day), _german(_FORMS[form], number, day)


def _number_on_side(number: int, from_held_out: bool) -> int:
    """A number that is held out (or is not): the given one if it is on that side, else the one at
    the same index of a run that is.
    """
    if is_held_out_number(number) == from_held_out:
        return number
    cycle, index = divmod(number, _RUN * _EVERY)
    if from_held_out:
        return cycle * _RUN * _EVERY + _HELD_OUT_RUN * _RUN + index % _RUN
    return number - _RUN


@functools.cache
def _words(number: int, language: str, form: str = "cardinal") -> str:
    """The words of a number by num2words, which is slow: all names are put together from a few
    thousand of its results.
    """
    from num2words import num2words  # not above: no other source needs it

    return num2words(number, lang=language, to=form)


def _english(form: str, number: int, day: int) -> str:
    if form == "year":
        return f"the year {_words(number, 'en', 'year')}"
    if form == "date":
        date = _FIRST_DAY + datetime.timedelta(day)
        return f"the {_words(date.day, 'en', 'ordinal')} of {_ENGLISH_MONTHS[date.month - 1]} {_words(number, 'en', 'year')}"
    article = "the " if form == "ordinal" else ""
    thousands, rest = divmod(number, 1000)
    if not thousands:
        return article + _words(rest, "en", form)
    if not rest:
        return f"{article}{_words(thousands, 'en')} thousand{'th' if form == 'ordinal' else ''}"
    return f"{article}{_words(thousands, 'en')} thousand{' and' if rest < 100 else ','} {_words(rest, 'en', form)}"


def _german(form: str, number: int, day: int) -> str:
    if form == "year":
        return f"das Jahr {_words(number, 'de', 'year')}"
    if form == "date":
        date = _FIRST_DAY + datetime.timedelta(day)
        return f"der {_words(date.day, 'de', 'ordinal')} {_GERMAN_MONTHS[date.month - 1]} {_words(number, 'de', 'year')}"
    article = "der " if form == "ordinal" else ""
    thousands, rest = divmod(number, 1000)
    if thousands < 2:
        return article + _words(number, "de", form)
    # What follows the thousands has the form it has after one thousand: "hundertste" alone, but
    # "eintausendeinhundertste".
    if rest:
        return article + _words(thousands, "de") + _words(1000 + rest, "de", form).removeprefix("ein")
    return f"{article}{_words(thousands, 'de')}tausend{'ste' if form == 'ordinal' else ''}"


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
    """Documents of so many random letters, again and again."""
    count = _number("copying", argument, LENGTH // 2)
    rng = np.random.default_rng((SYNTHETIC_DOCUMENTS, count, 0))
    for _ in range(DOCUMENTS):
        word = "".join(ascii_lowercase[letter] for letter in rng.integers(len(ascii_lowercase), size=count))
        yield (word * LENGTH)[:LENGTH]


def _number(name: str, argument: str, most: int) -> int:
    if not argument.isascii() or not argument.isdigit() or not 1 <= int(argument) <= most:
        raise UserError(f"data.source = '{name}:{argument}': give a number from 1 to {most}")
    return int(argument)
