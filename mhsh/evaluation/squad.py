"""Answers to SQuAD's questions from a span model's logits; exact match and F1 as the official
scorers of 1.1 and 2.0 compute them. Nothing here imports jax.
"""

from __future__ import annotations

import collections
import dataclasses
import re
import string
import unicodedata
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from jaxtyping import Float

from mhsh.data.fine_tuning import Window
from mhsh.data.squad import Question, SquadData, check_answers

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_WITHOUT_PUNCTUATION = str.maketrans("", "", string.punctuation)


@dataclasses.dataclass(frozen=True)
class FoundAnswer:
    """A model's answer to one question."""

    best: str  # "" if the context has no tokens
    null_difference: float  # the score of no answer minus that of the best

    def text(self, threshold: float | None) -> str:
        """The answer; "" if there is none, or if `null_difference` is above the threshold."""
        return "" if threshold is not None and self.null_difference > threshold else self.best


def find_answers(
    questions: Sequence[Question], windows: Sequence[Window], logits: Float[np.ndarray, "rows 2 T"], max_answer_length: int = 30
) -> list[FoundAnswer]:
    """The answer to every question, by the rules and numbers of Devlin et al.'s run_squad.py: the
    span with the largest sum of the logits of its two ends, which begins at a token whose `is_best`
    is true. The score of none is the lowest of [CLS].
    """
    best, scores = [""] * len(questions), np.full(len(questions), -np.inf)
    nulls = np.full(len(questions), np.inf)
    for window, (starts, ends) in zip(windows, logits, strict=True):
        number, inside = window.question, slice(window.first, window.first + len(window.spans))
        nulls[number] = min(nulls[number], float(starts[0] + ends[0]))
        first, last, score = _best_span(window, starts[inside], ends[inside], max_answer_length)
        if score > scores[number]:
            context, stop = questions[number].context, int(window.spans[last, 1])
            while stop < len(context) and unicodedata.category(context[stop]) == "Mn":  # an accent that the tokenizer stripped
                stop += 1
            best[number], scores[number] = context[window.spans[first, 0] : stop], score
    return [FoundAnswer(text, float(difference)) for text, difference in zip(best, nulls - scores, strict=True)]


def _best_span(
    window: Window, starts: Float[np.ndarray, " n"], ends: Float[np.ndarray, " n"], max_answer_length: int
) -> tuple[int, int, float]:
    """The first token, the last token and the score of the best span; -inf where there is none."""
    if not len(starts):
        return 0, 0, -np.inf
    padded = np.concatenate([ends.astype(np.float64), np.full(max_answer_length - 1, -np.inf)])
    scores = np.lib.stride_tricks.sliding_window_view(padded, max_answer_length) + starts.astype(np.float64)[:, None]
    # [first token, tokens - 1]; nan is no score
    scores = np.where(window.is_best[:, None] & (scores > -np.inf), scores, -np.inf)
    first, more = divmod(int(scores.argmax()), max_answer_length)
    return first, first + more, float(scores[first, more])


def score_squad(data: SquadData, predictions: Mapping[str, str]) -> dict[str, float | int]:
    """The metrics of the official scorer, under its names, in percent: of SQuAD 1.1 `exact_match`
    and `f1`, of 2.0 `exact` and `f1`, also for questions with (HasAns_) and without an answer
    (NoAns_). Raises UserError where a question has neither an answer nor is impossible.
    """
    check_answers(data)
    return (_score_v2 if data.version == "2.0" else _score_v1)(data.questions, predictions)


def score_best_thresholds(
    questions: Sequence[Question], predictions: Mapping[str, str], no_answer_scores: Mapping[str, float]
) -> dict[str, float]:
    """`best_exact` and `best_f1` of SQuAD 2.0, in percent: of the threshold (`_thresh`) on the
    scores, above which no answer is given, that is best for these questions.
    """
    metrics: dict[str, float] = {}
    for name, metric in _METRICS_V2.items():
        best, threshold = _best_threshold(questions, predictions, _raw_scores_v2(questions, predictions, metric), no_answer_scores)
        metrics |= {f"best_{name}": best, f"best_{name}_thresh": threshold}
    return metrics


def normalize_answer(text: str) -> str:
    """The answer in lower case, without ASCII punctuation and articles, with single spaces."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_WITHOUT_PUNCTUATION)).split())


def exact_match(prediction: str, answer: str) -> float:
    """1 if both are equal after `normalize_answer`, else 0."""
    return float(normalize_answer(prediction) == normalize_answer(answer))


def word_f1(prediction: str, answer: str) -> float:
    """The harmonic mean of precision and recall of the words, with repetitions."""
    predicted, expected = normalize_answer(prediction).split(), normalize_answer(answer).split()
    shared = sum((collections.Counter(predicted) & collections.Counter(expected)).values())
    if not shared:
        return 0.0
    precision, recall = shared / len(predicted), shared / len(expected)
    return 2 * precision * recall / (precision + recall)


def _score_v1(questions: Sequence[Question], predictions: Mapping[str, str]) -> dict[str, float | int]:
    exact, f1 = (
        sum(max(metric(predictions[question.id], answer.text) for answer in question.answers) for question in questions)
        for metric in (exact_match, word_f1)
    )
    return {"exact_match": 100.0 * exact / len(questions), "f1": 100.0 * f1 / len(questions), "total": len(questions)}


def _score_v2(questions: Sequence[Question], predictions: Mapping[str, str]) -> dict[str, float | int]:
    scores = {name: _raw_scores_v2(questions, predictions, metric) for name, metric in _METRICS_V2.items()}
    metrics: dict[str, float | int] = {}
    for prefix, group in (
        ("", questions),
        ("HasAns_", [question for question in questions if not question.is_impossible]),
        ("NoAns_", [question for question in questions if question.is_impossible]),
    ):
        if group:
            for name, values in scores.items():
                metrics[prefix + name] = 100.0 * sum(values[question.id] for question in group) / len(group)
            metrics[f"{prefix}total"] = len(group)
    return metrics


def _raw_scores_v2(
    questions: Sequence[Question], predictions: Mapping[str, str], metric: Callable[[str, str], float]
) -> dict[str, float]:
    """The score of every question."""
    scores = {}
    for question in questions:
        # An answer that normalises to nothing, such as "the", is none.
        answers = [answer.text for answer in question.answers if normalize_answer(answer.text)] or [""]
        scores[question.id] = max(metric(predictions[question.id], answer) for answer in answers)
    return scores


def _f1_v2(prediction: str, answer: str) -> float:
    """The `word_f1` of both, but 1 if neither has a word: no answer was right."""
    if not normalize_answer(prediction) and not normalize_answer(answer):
        return 1.0
    return word_f1(prediction, answer)


_METRICS_V2 = {"exact": exact_match, "f1": _f1_v2}


def _best_threshold(
    questions: Sequence[Question],
    predictions: Mapping[str, str],
    scores: Mapping[str, float],
    no_answer_scores: Mapping[str, float],
) -> tuple[float, float]:
    """The best score of any threshold, in percent, and that threshold. It admits predictions one by
    one, in the order of their scores. Like the official scorer, it may stop between equal scores,
    where no threshold could, and its first threshold is 0.
    """
    impossible = {question.id: question.is_impossible for question in questions}
    current = best = float(sum(impossible[question_id] for question_id in scores))
    threshold = 0.0
    for question_id in sorted(no_answer_scores, key=no_answer_scores.__getitem__):
        if not impossible[question_id]:
            current += scores[question_id]
        elif predictions[question_id]:
            current -= 1
        if current > best:
            best, threshold = current, no_answer_scores[question_id]
    return 100.0 * best / len(questions), threshold
