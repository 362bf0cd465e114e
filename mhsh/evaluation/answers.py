"""Answers to SQuAD's questions out of a span model's logits: the best spans of all windows, and how
sure it is of none. No jax.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np
from jaxtyping import Float, Int

from mhsh.data.fine_tuning.spans import Window
from mhsh.data.fine_tuning.squad import Question


@dataclasses.dataclass(frozen=True)
class Candidate:
    """A span of a context."""

    text: str
    score: float  # the sum of the logits of its two ends


@dataclasses.dataclass(frozen=True)
class Answers:
    """What a model answers to one question."""

    candidates: tuple[Candidate, ...]  # of different texts, the best first; none where the context has no token
    null_difference: float  # the score of no answer, less that of the best candidate: the higher, the surer that there is none

    def text(self, threshold: float | None) -> str:
        """The best answer; "" for none, where its difference is above the threshold (None:
        never).
        """
        if not self.candidates or (threshold is not None and self.null_difference > threshold):
            return ""
        return self.candidates[0].text


def find_answers(
    questions: Sequence[Question],
    windows: Sequence[Window],
    logits: Float[np.ndarray, "rows 2 T"],
    *,
    num_best: int,
    max_answer_length: int,
) -> list[Answers]:
    """The answers to every question, as Devlin et al.'s run_squad.py chooses them.

    An answer begins at a token that its window shows best, and has `max_answer_length` tokens at
    most. The score of no answer is that of [CLS] in the window where it is least.
    """
    found: list[list[Candidate]] = [[] for _ in questions]
    nulls = np.full(len(questions), np.inf)
    for window, (starts, ends) in zip(windows, logits, strict=True):
        context = questions[window.question].context
        inside = slice(window.first, window.first + len(window.spans))
        nulls[window.question] = min(nulls[window.question], float(starts[0] + ends[0]))
        for first, last, score in _best_spans(window, starts[inside], ends[inside], num_best, max_answer_length):
            text = context[window.spans[first, 0] : window.spans[last, 1]]
            found[window.question].append(Candidate(text, score))
    return [
        Answers(best := _distinct(candidates, num_best), float(null - best[0].score) if best else np.inf)
        for candidates, null in zip(found, nulls, strict=True)
    ]


def _best_spans(
    window: Window, starts: Float[np.ndarray, " n"], ends: Float[np.ndarray, " n"], num_best: int, max_answer_length: int
) -> Iterator[tuple[int, int, float]]:
    """The first and last token of the `num_best` best spans, and their scores."""
    if not len(starts):
        return
    padded = np.concatenate([ends.astype(np.float64), np.full(max_answer_length - 1, -np.inf)])
    scores = np.lib.stride_tricks.sliding_window_view(padded, max_answer_length) + starts.astype(np.float64)[:, None]
    scores = np.where(window.is_best[:, None], scores, -np.inf)  # [first token, tokens - 1]
    best: Int[np.ndarray, " k"] = np.argsort(-scores, axis=None, kind="stable")[:num_best]
    for place in best.tolist():
        first, more = divmod(place, max_answer_length)
        if scores[first, more] > -np.inf:
            yield first, first + more, float(scores[first, more])


def _distinct(candidates: Sequence[Candidate], num_best: int) -> tuple[Candidate, ...]:
    """The best candidates, each text once."""
    kept: dict[str, Candidate] = {}
    for candidate in sorted(candidates, key=lambda each: -each.score):
        kept.setdefault(candidate.text, candidate)
    return tuple(kept.values())[:num_best]
