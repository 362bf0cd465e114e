"""The sources recall and copying: every answer follows from its document, and nothing else does."""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter

import pytest

from mhsh.data.documents import documents
from mhsh.data.synthetic_documents import DOCUMENTS, KEYS, LENGTH
from mhsh.errors import UserError


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
