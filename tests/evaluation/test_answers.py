"""The best answers of a span model, against a search over every pair of ends, one by one."""

from __future__ import annotations

import numpy as np
import pytest

from mhsh.data.fine_tuning.spans import Window
from mhsh.data.fine_tuning.squad import Question
from mhsh.evaluation.squad import find_answers

LONGEST = 3


def make_case(seed: int) -> tuple[list[Question], list[Window], np.ndarray]:
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


@pytest.mark.parametrize("seed", range(5))
def test_every_pair_of_ends_tried_one_by_one(seed):
    questions, windows, logits = make_case(seed)
    answers = find_answers(questions, windows, logits, num_best=50, max_answer_length=LONGEST)
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
        expected = sorted(scores.items(), key=lambda item: -item[1])
        assert [each.text for each in answers[number].candidates] == [text for text, _ in expected]
        assert [each.score for each in answers[number].candidates] == pytest.approx([score for _, score in expected], rel=1e-6)
        assert answers[number].null_difference == pytest.approx(null - expected[0][1], rel=1e-5, abs=1e-6)


def test_no_answer_is_given_where_it_scores_higher_by_more_than_the_threshold():
    questions, windows, logits = make_case(0)
    logits[:, :, 0] = 100.0
    first = find_answers(questions, windows, logits, num_best=5, max_answer_length=LONGEST)[0]
    assert first.text(None) == first.candidates[0].text != ""
    assert first.text(0.0) == ""
    assert first.text(1000.0) == first.candidates[0].text
    assert len(first.candidates) == 5


def test_a_context_without_tokens_has_no_answer():
    question = Question("q", "?", " ", (), True, "t")
    window = Window(0, 3, np.zeros((0, 2), np.int32), np.zeros(0, bool))
    [answers] = find_answers([question], [window], np.zeros((1, 2, 5), np.float32), num_best=5, max_answer_length=LONGEST)
    assert answers.candidates == () and answers.text(None) == "" and answers.null_difference == np.inf
