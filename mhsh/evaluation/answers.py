"""From a span model's logits to answers to SQuAD's questions. Without jax."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from mhsh.data.fine_tuning.spans import Window
from mhsh.data.fine_tuning.squad import Question

# As in the run_squad.py of Devlin et al.
_NUM_BEST = 20
_MAX_ANSWER_LENGTH = 30


@dataclasses.dataclass(frozen=True)
class Candidate:
    """A span of a context."""

    text: str
    score: float  # the sum of the logits of its two ends


@dataclasses.dataclass(frozen=True)
class Answers:
    """A model's answers to one question."""

    candidates: tuple[Candidate, ...]  # with different texts, best first; empty if the context has no tokens
    null_difference: float  # the score of no answer minus that of the best candidate

    def text(self, threshold: float | None) -> str:
        """The best answer; "" if there is none, or if `null_difference` is above the threshold."""
        if not self.candidates or (threshold is not None and self.null_difference > threshold):
            return ""
        return self.candidates[0].text

    def details(self) -> dict[str, Any]:
        """The candidates with their probabilities among themselves, and `null_difference`, for
        JSON.
        """
        scores = np.array([candidate.score for candidate in self.candidates])
        shares = np.exp(scores - scores.max(initial=-np.inf))
        return {
            "no_answer_difference": self.null_difference if np.isfinite(self.null_difference) else None,
            "best": [
                {"text": candidate.text, "score": candidate.score, "probability": float(share / shares.sum())}
                for candidate, share in zip(self.candidates, shares, strict=True)
            ],
        }


def find_answers(
    questions: Sequence[Question],
    windows: Sequence[Window],
    logits: Float[np.ndarray, "rows 2 T"],
    *,
    num_best: int = _NUM_BEST,
    max_answer_length: int = _MAX_ANSWER_LENGTH,
) -> list[Answers]:
    """The answers to every question, chosen as in the run_squad.py of Devlin et al.

    An answer begins at a token whose `is_best` is true and has at most `max_answer_length` tokens.
    The score of no answer is that of [CLS], the lowest of all windows of the question.
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
    """The first token, the last token and the score of the `num_best` best spans."""
    if not len(starts):
        return
    padded = np.concatenate([ends.astype(np.float64), np.full(max_answer_length - 1, -np.inf)])
    scores = np.lib.stride_tricks.sliding_window_view(padded, max_answer_length) + starts.astype(np.float64)[:, None]
    scores = np.where(window.is_best[:, None], scores, -np.inf)  # [first token, tokens - 1]
    best: Int[np.ndarray, " k"] = np.argsort(-scores, axis=None, kind="stable")[:num_best]
    for index in best.tolist():
        first, more = divmod(index, max_answer_length)
        if scores[first, more] > -np.inf:
            yield first, first + more, float(scores[first, more])


def _distinct(candidates: Sequence[Candidate], num_best: int) -> tuple[Candidate, ...]:
    """The `num_best` best candidates, each text once."""
    kept: dict[str, Candidate] = {}
    for candidate in sorted(candidates, key=lambda each: -each.score):
        kept.setdefault(candidate.text, candidate)
    return tuple(kept.values())[:num_best]
