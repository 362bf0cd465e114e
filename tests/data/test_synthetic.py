"""Number words against num2words itself, held-out numbers against all training pairs, and pairs
that hang on their number alone. Recall and copying: every answer follows from its document.
"""

from __future__ import annotations

import itertools
import math
import random
import re
from collections import Counter

import pytest
from num2words import num2words

from mhsh.data.documents import documents
from mhsh.data.subword import train_subword
from mhsh.data.synthetic import (
    DOCUMENTS,
    HELD_OUT_PAIRS,
    KEYS,
    LENGTH,
    _english,
    _german,
    held_out_pairs,
    is_held_out_number,
    training_pairs,
)
from mhsh.errors import UserError
from tests.data.conftest import printed

COUNT = 20_000


@pytest.fixture(scope="module")
def pairs() -> list[tuple[str, str]]:
    return list(training_pairs(COUNT))


def words_of(number: int) -> list[str]:
    """Every way in which a pair of the source could name the number, as num2words says it."""
    return [num2words(number), num2words(number, to="ordinal"), num2words(number, to="year")]


def numbers_at_the_edges() -> list[int]:
    rng = random.Random(5)
    edges = [
        base + offset for base in (0, 100, 1000, 1100, 2000, 21_000, 100_000, 101_000, 999_000) for offset in (0, 1, 12, 21, 100)
    ]
    return [*edges, 999_999, *(rng.randrange(1_000_000) for _ in range(150))]


@pytest.mark.parametrize("form", ["cardinal", "ordinal"])
def test_words_put_together_are_those_of_num2words(form: str) -> None:
    english, german = ("the ", "der ") if form == "ordinal" else ("", "")
    for number in numbers_at_the_edges():
        assert _english(form, number, 0) == english + num2words(number, lang="en", to=form)
        assert _german(form, number, 0) == german + num2words(number, lang="de", to=form)


def test_dates() -> None:
    assert _english("date", 1987, 31 + 28 + 2) == "the third of March nineteen eighty-seven"
    assert _german("date", 1987, 31 + 28 + 2) == "der dritte März neunzehnhundertsiebenundachtzig"
    assert (_english("date", 2005, 0), _german("date", 2005, 0)) == (
        "the first of January two thousand and five",
        "der erste Januar zweitausendfünf",
    )
    assert _english("date", 1600, 364) == "the thirty-first of December sixteen hundred"
    assert (_english("year", 1905, 0), _german("year", 1905, 0)) == ("the year nineteen oh-five", "das Jahr neunzehnhundertfünf")


def test_held_out_are_runs_of_fifty_spread_over_the_scale() -> None:
    starts = [start for start in range(0, 1_000_000, 50) if is_held_out_number(start)]
    assert starts[:3] == [350, 1300, 2250]
    assert starts[-1] == 999_750
    assert len(starts) * 50 / 1_000_000 == pytest.approx(1 / 19, abs=1e-4)
    for start in starts[:: len(starts) // 20]:
        assert [is_held_out_number(start + offset) for offset in (-1, 0, 49, 50)] == [False, True, True, False]
    # No place within a thousand is held out throughout, so every ending is learnt.
    assert {start % 1000 for start in range(0, 5000, 50) if not is_held_out_number(start)} == set(range(0, 1000, 50))


def test_no_training_pair_names_a_held_out_number(pairs: list[tuple[str, str]]) -> None:
    named = {word: number for number in range(0, 5000) for word in words_of(number)}
    seen = set()
    for english, _ in pairs:
        said = re.sub(r"^the (year )?(\S+ of [A-Z]\w+ )?", "", english)
        if said in named:
            seen.add(named[said])
    assert len(seen) > 2000  # the test looks at something
    assert not any(map(is_held_out_number, seen))


def test_held_out_pairs_are_new_and_made_of_known_words(pairs: list[tuple[str, str]]) -> None:
    fresh = held_out_pairs()
    assert len(fresh) == len(set(fresh)) == HELD_OUT_PAIRS == 1000
    assert set(fresh).isdisjoint(pairs)
    for side in (0, 1):
        assert {pair[side] for pair in fresh}.isdisjoint(pair[side] for pair in pairs)
    known = {word for english, _ in pairs for word in re.findall(r"\w+|,|-", english)}
    assert {word for english, _ in fresh for word in re.findall(r"\w+|,|-", english)} <= known
    # German joins its words, so there it is the pieces of a vocabulary that must have been met.
    tokenizer = train_subword([text for pair in pairs for text in pair], 400)
    met, needed = (
        {number for ids in tokenizer.encode_batch([german for _, german in side]) for number in ids.tolist()}
        for side in (pairs, fresh)
    )
    assert needed <= met


def test_a_pair_hangs_on_its_number_alone(pairs: list[tuple[str, str]]) -> None:
    assert list(training_pairs(5000)) == pairs[:5000]
    assert list(itertools.islice(training_pairs(10**12), 100)) == pairs[:100]
    forms = [re.match(r"the year|the \S+ of [A-Z]|the |", english) for english, _ in pairs]
    shares = [sum(form is not None and form[0][:8] == start for form in forms) / COUNT for start in ("", "the year")]
    assert shares == pytest.approx([0.55, 0.05], abs=0.02)


def test_pairs_are_the_same_in_every_process_whatever_its_locale(pairs: list[tuple[str, str]]) -> None:
    code = "import sys\nfrom mhsh.data.synthetic import training_pairs\n"
    code += "print(hash(0), *training_pairs(300), sep='\\n')"
    found = printed(code, LC_ALL="de_DE.UTF-8", PYTHONHASHSEED="3")
    assert found.split("\n")[1:-1] == [str(pair) for pair in pairs[:300]]


@pytest.mark.parametrize("count", [1, 2, 3])
def test_every_answer_is_the_sum_of_the_digits_of_its_keys(count: int) -> None:
    texts = list(itertools.islice(documents(f"recall:{count}"), 300))
    assert {len(text) for text in texts} == {LENGTH}
    assert len(set(texts)) == len(texts)
    answers: Counter[str] = Counter()
    for text in texts:
        first, rest = text[: 2 * len(KEYS)], text[2 * len(KEYS) :]
        digits = dict(re.findall("([a-h])([0-9])", first))
        assert "".join(sorted(digits)) == KEYS
        questions = re.findall(f"([a-h]{{{count}}})([0-9])", rest)
        assert len(questions) == len(rest) // (count + 1)
        for keys, answer in questions:
            assert len(set(keys)) == count
            assert int(answer) == sum(int(digits[key]) for key in keys) % 10
        answers.update(answer for _, answer in questions)
    assert min(answers.values()) / answers.total() > 0.08  # no answer can be guessed
    assert len({text[: 2 * len(KEYS) : 2] for text in texts}) > 290  # nor the place of a key


def test_copying_repeats_its_letters_to_the_end() -> None:
    texts = list(itertools.islice(documents("copying:30"), 300))
    assert all(text == (text[:30] * 5)[:LENGTH] for text in texts)
    letters = Counter("".join(text[:30] for text in texts))
    entropy = -sum(number / letters.total() * math.log(number / letters.total()) for number in letters.values())
    assert entropy == pytest.approx(math.log(26), abs=0.005)


def test_documents_are_the_same_each_time_and_end() -> None:
    texts = list(documents("copying:5"))
    assert len(texts) == DOCUMENTS
    assert texts == list(documents("copying:5"))


@pytest.mark.parametrize("source", ["recall:0", "recall:9", "recall:two", "copying:64", "copying:-1", "recall:²"])
def test_a_number_out_of_range_is_refused_with_the_range(source: str) -> None:
    with pytest.raises(UserError, match=r"give a number from 1 to (8|63)"):
        next(documents(source))
