"""SQuAD: the best answers, against a search over every pair of ends; figures, against the published
ones of two systems, plain references for random data, and the scorers' odd cases by hand.
"""

from __future__ import annotations

import gzip
import json
import math
import re
import string
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from mhsh.data.fine_tuning import Window
from mhsh.data.squad import Answer, Question, SquadData, read_squad
from mhsh.data.wordpiece import SPECIALS, WordPieceTokenizer
from mhsh.errors import UserError
from mhsh.evaluation.squad import exact_match, find_answers, normalize_answer, score_best_thresholds, score_squad, word_f1

TOLERANCE = 1e-9
LONGEST = 3  # tokens of an answer
Gold = Sequence[tuple[str, ...]]  # of question q0, q1, ... the texts of its answers


def squad(version: str, gold: Gold) -> SquadData:
    """Questions q0, q1, ... with these answers."""
    return SquadData(
        version,
        tuple(
            Question(f"q{number}", "?", "", tuple(Answer(text, 0) for text in texts), version == "2.0" and not texts, "")
            for number, texts in enumerate(gold)
        ),
    )


@pytest.mark.realdata
@pytest.mark.parametrize("system", ["v1.1.bert-ensemble", "v2.0.bidaf-selfattn-elmo"])
def test_the_official_figures_of_real_systems(real_data: Path, system: str) -> None:
    folder = real_data / "squad"
    data = read_squad(folder / f"dev-{system[:4]}.rebuilt.json.gz")
    predictions = json.loads(gzip.decompress((folder / "predictions" / f"{system}.json.gz").read_bytes()))
    expected = json.loads((folder / "predictions" / "expected_scores.json").read_text())[system]
    del expected["source"]
    assert expected.pop("missing", 0) == 0
    assert score_squad(data, predictions) == pytest.approx(expected, rel=0, abs=TOLERANCE)


def plain_normalized(text: str) -> list[str]:
    """The words, found one character after the other."""
    kept = "".join(character for character in text.lower() if character not in string.punctuation)
    # A word for an article is bounded by what \w does not match; the rest is split at white space.
    pieces = re.split(r"(\W)", kept)
    return "".join(" " if piece in ("a", "an", "the") else piece for piece in pieces).split()


def plain_f1(prediction: str, answer: str) -> float:
    """Common words counted by crossing them out."""
    predicted, left, common = plain_normalized(prediction), plain_normalized(answer), 0
    expected = len(left)
    for word in predicted:
        if word in left:
            left.remove(word)
            common += 1
    return 2 * common / (len(predicted) + expected) if common else 0.0


WORDS = st.lists(st.sampled_from(["the", "A", "an", "Apple", "apple", "pear,", "p.e.a.r", "-", "über", "the-an", "a's", "\u2028"]))
TEXTS = WORDS.map(" ".join)


@given(TEXTS | st.text(max_size=12), TEXTS | st.text(max_size=12))
def test_normalization_exact_match_and_f1(prediction: str, answer: str) -> None:
    assert normalize_answer(prediction) == " ".join(plain_normalized(prediction))
    assert exact_match(prediction, answer) == (plain_normalized(prediction) == plain_normalized(answer))
    assert word_f1(prediction, answer) == pytest.approx(plain_f1(prediction, answer), abs=TOLERANCE)


def test_normalization_by_hand() -> None:
    assert normalize_answer(" The U.S.A., a\tland\u2028of  An-other THEM ") == "usa land of another them"
    # Only ASCII punctuation goes, and it goes before the articles do.
    assert normalize_answer("»the« a-b 'the'") == "» « ab"
    assert word_f1("the big big apple", "a big red apple") == pytest.approx(2 / 3)
    assert exact_match("the", "") == 1.0
    assert word_f1("the", "") == word_f1("", "") == 0.0


ANSWERS = st.lists(TEXTS.filter(bool), min_size=1, max_size=3).map(tuple)


@given(st.data())
def test_version_1_against_a_plain_reference(data: st.DataObject) -> None:
    gold = data.draw(st.lists(ANSWERS, min_size=1, max_size=5))
    said = {f"q{k}": data.draw(st.sampled_from(texts) | TEXTS) for k, texts in enumerate(gold)}
    exact = f1 = 0.0
    for one, texts in zip(said.values(), gold, strict=True):
        exact += max(plain_normalized(one) == plain_normalized(text) for text in texts)
        f1 += max(plain_f1(one, text) for text in texts)
    expected = {"exact_match": 100 * exact / len(gold), "f1": 100 * f1 / len(gold), "total": len(gold)}
    assert score_squad(squad("1.1", gold), said) == pytest.approx(expected, abs=TOLERANCE)


def plain_v2(texts: tuple[str, ...], said: str) -> tuple[float, float]:
    """Exact match and F1 of one prediction, by the rules of 2.0."""
    answers = [words for words in map(plain_normalized, texts) if words] or [[]]
    words = plain_normalized(said)
    return (
        float(max(words == answer for answer in answers)),
        max(plain_f1(said, " ".join(answer)) if words and answer else float(words == answer) for answer in answers),
    )


@given(st.data())
def test_version_2_against_a_plain_reference(data: st.DataObject) -> None:
    gold = data.draw(st.lists(ANSWERS | st.just(()), min_size=1, max_size=6))
    said = {f"q{k}": data.draw(st.sampled_from((*texts, "")) | TEXTS) for k, texts in enumerate(gold)}
    raw = [plain_v2(texts, said[f"q{k}"]) for k, texts in enumerate(gold)]
    expected: dict[str, float] = {}
    for prefix, chosen in (
        ("", range(len(gold))),
        ("HasAns_", [k for k, texts in enumerate(gold) if texts]),
        ("NoAns_", [k for k, texts in enumerate(gold) if not texts]),
    ):
        if chosen:
            for name, part in (("exact", 0), ("f1", 1)):
                expected[prefix + name] = 100 * sum(raw[k][part] for k in chosen) / len(chosen)
            expected[prefix + "total"] = len(chosen)
    assert score_squad(squad("2.0", gold), said) == pytest.approx(expected, abs=TOLERANCE)


@given(st.data())
def test_thresholds_against_trying_them_all(data: st.DataObject) -> None:
    # Of different numbers other than 0, for ties and "no threshold" are tested by hand; and without
    # an article alone for an answer, which the official scorer's search takes for one.
    gold = data.draw(st.lists(st.sampled_from([("red apple",), ("pear", "the pear"), ()]), min_size=1, max_size=6))
    texts = st.sampled_from(["", "apple", "red apple", "the pear", "fig"])
    said = {f"q{k}": data.draw(texts) for k in range(len(gold))}
    numbers = st.integers(-8, 8).filter(bool)
    probabilities = {f"q{k}": data.draw(numbers) / 4 for k in range(len(gold))}
    assume(len(set(probabilities.values())) == len(gold))
    found = score_best_thresholds(squad("2.0", gold).questions, said, probabilities)
    for part, name in enumerate(("exact", "f1")):
        figures = {}
        for threshold in (-math.inf, *probabilities.values()):
            scores = [
                plain_v2(texts, said[f"q{k}"])[part] if probabilities[f"q{k}"] <= threshold else float(not texts)
                for k, texts in enumerate(gold)
            ]
            figures[threshold] = 100 * sum(scores) / len(gold)
        assert found[f"best_{name}"] == pytest.approx(max(figures.values()), abs=TOLERANCE)
        assert figures[found[f"best_{name}_thresh"] or -math.inf] == pytest.approx(found[f"best_{name}"], abs=TOLERANCE)


def test_thresholds_by_hand() -> None:
    gold = (("apple",), ("pear",), (), ())
    said = {"q0": "apple", "q1": "plum", "q2": "", "q3": "fig"}
    probabilities = {"q3": 0.9, "q2": 0.7, "q1": 0.5, "q0": 0.3}
    found = score_best_thresholds(squad("2.0", gold).questions, said, probabilities)
    # Nothing let in: both impossible ones are right. With q0: three. Then q1 adds nothing, q2
    # nothing, and q3 takes one away.
    assert found["best_exact"] == found["best_f1"] == 75.0
    assert found["best_exact_thresh"] == found["best_f1_thresh"] == 0.3
    # Nothing is worth letting in; and between two of one probability it may stop, as the official
    # scorer does.
    questions = squad("2.0", gold).questions
    found = score_best_thresholds(questions, dict.fromkeys(said, "fig"), dict.fromkeys(said, 0.5))
    assert (found["best_exact"], found["best_exact_thresh"]) == (50.0, 0.0)
    found = score_best_thresholds(questions, said | {"q2": "fig"}, dict.fromkeys(said, 0.5))
    assert (found["best_exact"], found["best_exact_thresh"]) == (75.0, 0.5)


def test_a_question_without_answers_is_no_question_to_score() -> None:
    with pytest.raises(UserError, match="question q1 has no answers to compare with; give data with answers"):
        score_squad(squad("1.1", (("apple",), ())), {"q0": "", "q1": ""})


def answer_case(seed: int) -> tuple[list[Question], list[Window], np.ndarray]:
    """Two questions over one-letter words, the first in two windows that overlap, with random
    logits.
    """
    rng = np.random.default_rng(seed)
    contexts = ["a b c d e f g h", "a b a"]
    questions = [Question(str(k), "?", context, (), True, "t") for k, context in enumerate(contexts)]

    def window(number: int, start: int, stop: int, best: list[int]) -> Window:
        spans = np.array([[2 * k, 2 * k + 1] for k in range(start, stop)], np.int32)
        return Window(number, 3, spans, np.array([k in best for k in range(start, stop)]))

    windows = [window(0, 0, 5, [0, 1, 2, 3]), window(0, 3, 8, [4, 5, 6, 7]), window(1, 0, 3, [0, 1, 2])]
    return questions, windows, rng.standard_normal((3, 2, 10)).astype(np.float32)


@pytest.mark.parametrize("seed", range(3))
def test_every_pair_of_ends_tried_one_by_one(seed):
    questions, windows, logits = answer_case(seed)
    answers = find_answers(questions, windows, logits, LONGEST)
    for number, question in enumerate(questions):
        scores: dict[str, float] = {}
        null = np.inf
        for window, (starts, ends) in zip(windows, logits.astype(np.float64), strict=True):
            if window.question != number:
                continue
            null = min(null, starts[0] + ends[0])
            for i in range(len(window.spans)):
                for j in range(i, min(i + LONGEST, len(window.spans))):
                    if window.is_best[i]:
                        text = question.context[window.spans[i, 0] : window.spans[j, 1]]
                        score = starts[window.first + i] + ends[window.first + j]
                        scores[text] = max(scores.get(text, -np.inf), score)
        best = max(scores, key=scores.__getitem__)
        assert answers[number].best == best
        assert answers[number].null_difference == pytest.approx(null - scores[best], rel=1e-5, abs=1e-6)


def test_a_token_without_a_score_hides_no_other():
    questions, windows, logits = answer_case(0)
    logits[2, 0, windows[2].first + 1] = -np.inf
    expected = find_answers(questions, windows, logits, LONGEST)
    logits[2, 0, windows[2].first + 1] = np.nan
    assert find_answers(questions, windows, logits, LONGEST) == expected


def test_no_answer_is_given_where_it_scores_higher_by_more_than_the_threshold():
    questions, windows, logits = answer_case(0)
    logits[:, :, 0] = 100.0
    first = find_answers(questions, windows, logits, LONGEST)[0]
    assert first.text(None) == first.text(1000.0) == first.best != ""
    assert first.text(0.0) == ""


def test_an_accent_that_the_tokenizer_strips_is_of_the_answer():
    context = "un cafe\u0301 noir"  # decomposed
    [(_, spans)] = WordPieceTokenizer([*SPECIALS, "un", "cafe", "noir"], lowercase=True).encode_with_spans([context])
    logits = np.zeros((1, 2, 6), np.float32)
    logits[:, :, 4] = 1.0
    question, window = Question("q", "?", context, (), True, "t"), Window(0, 3, spans, np.ones(3, bool))
    assert find_answers([question], [window], logits)[0].text(None) == "cafe\u0301"


def test_a_context_without_tokens_has_no_answer():
    question = Question("q", "?", " ", (), True, "t")
    window = Window(0, 3, np.zeros((0, 2), np.int32), np.zeros(0, bool))
    [answer] = find_answers([question], [window], np.zeros((1, 2, 5), np.float32))
    assert answer.text(None) == "" and answer.null_difference == np.inf
