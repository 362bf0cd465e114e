"""Metrics of a model on its run's validation data: losses, and the metrics that tasks publish."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Array, Float

from mhsh.data.fine_tuning import ClassificationCorpus, SpanCorpus
from mhsh.data.pairs import Pair
from mhsh.data.subword import SubwordTokenizer
from mhsh.errors import NotFinite
from mhsh.evaluation.glue import predicted_labels, score_glue
from mhsh.evaluation.squad import find_answers, score_best_thresholds, score_squad
from mhsh.evaluation.translation import model_decoder, translate_lines
from mhsh.models.losses import WeightedSums, weighted_mean
from mhsh.models.seq2seq import Seq2Seq
from mhsh.models.types import Batch

_BATCH_TOKENS = 4096  # of source sentences, translated at once
_MAX_PARTS = 20  # enough for Student's t, and short enough for a row of metrics.jsonl


class Evaluation(NamedTuple):
    """The metrics of an evaluation, and the loss in parts of its batches."""

    values: dict[str, float]
    loss_parts: list[float]  # of consecutive parts of the batches, as many in each; at most _MAX_PARTS


def evaluate(step: Callable[[Any, Batch], WeightedSums], params: Any, batches: Iterable[Batch]) -> Evaluation:
    """The metrics of `step` over all batches: each sum is divided by its weight at the end."""
    return _make_evaluation([jax.device_get(step(params, batch)) for batch in batches])


def evaluate_rows(
    step: Callable[[Any, Batch], tuple[WeightedSums, Array]], params: Any, batches: Iterable[Batch], num_rows: int
) -> tuple[Evaluation, Float[np.ndarray, "rows ..."]]:
    """The metrics, as `evaluate` computes them, and the logits of the first `num_rows` rows; the
    other rows are padding.
    """
    batch_sums: list[tuple[WeightedSums, np.ndarray]] = [jax.device_get(step(params, batch)) for batch in batches]
    return _make_evaluation([sums for sums, _ in batch_sums]), np.concatenate([logits for _, logits in batch_sums])[:num_rows]


def _make_evaluation(batch_sums: Sequence[WeightedSums]) -> Evaluation:
    parts = np.array_split(np.arange(len(batch_sums)), min(len(batch_sums), _MAX_PARTS))
    means = (_means([batch_sums[batch] for batch in part.tolist()]) for part in parts)
    return Evaluation(_means(batch_sums), [values["target_loss"] for values in means])


def _means(batch_sums: Sequence[WeightedSums]) -> dict[str, float]:
    totals: dict[str, tuple[float, float]] = {}
    for sums in batch_sums:
        for name, each in sums.items():
            total, weight = totals.get(name, (0.0, 0.0))
            totals[name] = (total + float(each.sum), weight + float(each.weight))
    return {name: weighted_mean(*each) for name, each in totals.items()}


def classification_metrics(corpus: ClassificationCorpus, logits: Float[np.ndarray, "rows C"]) -> dict[str, float]:
    """GLUE's metrics of the task on its validation rows; of MNLI as matched_ and mismatched_. They
    are nan where a logit is not finite, by which no class is chosen.
    """
    predictions, labels = predicted_labels(corpus.glue, logits), corpus.validation.all()["targets"]
    metrics: dict[str, float] = {}
    start = 0
    for name, size in corpus.evaluation_sets.items():
        part = slice(start, start + size)
        prefix = f"{name.removeprefix('validation_')}_" if len(corpus.evaluation_sets) > 1 else ""
        scores = dict.fromkeys(corpus.glue.metrics, math.nan)
        if np.isfinite(logits[part]).all():
            scores = score_glue(corpus.glue, labels[part], predictions[part])
        metrics |= {prefix + metric: value for metric, value in scores.items()}
        start += size
    return metrics


def span_metrics(corpus: SpanCorpus, logits: Float[np.ndarray, "rows 2 T"]) -> dict[str, float]:
    """SQuAD's official metrics on the validation questions, in percent. In SQuAD 2.0 a question is
    unanswered if no answer scores higher than the best; best_ is of the best threshold. All but the
    counts are nan where a logit is not finite.
    """
    data = corpus.validation_data
    answers = find_answers(data.questions, corpus.windows, logits)
    threshold = 0.0 if data.version == "2.0" else None
    by_id = dict(zip((question.id for question in data.questions), answers, strict=True))
    metrics = dict(score_squad(data, {name: answer.text(threshold) for name, answer in by_id.items()}))
    if data.version == "2.0":
        differences = {name: answer.null_difference for name, answer in by_id.items()}
        metrics |= score_best_thresholds(data.questions, {name: answer.text(None) for name, answer in by_id.items()}, differences)
    is_finite = np.isfinite(logits).all()
    return {name: float(value) if is_finite or name.endswith("total") else math.nan for name, value in metrics.items()}


def translation_metrics(
    model: Seq2Seq, params: Any, tokenizer: SubwordTokenizer, pairs: Sequence[Pair], *, num_hypotheses: int, length_penalty: float
) -> dict[str, float]:
    """`bleu` and `chrf` (0 to 100, by sacreBLEU) and `exact_match` (the share of equal lines); nan
    where the model's probabilities are not finite.
    """
    from mhsh.evaluation.bleu import score_translations  # not above: no other model needs sacreBLEU

    try:
        translated = translate_lines(
            [pair.source for pair in pairs],
            tokenizer,
            model_decoder(model, params, num_hypotheses=num_hypotheses, length_penalty=length_penalty),
            max_positions=model.config.max_positions,
            batch_tokens=_BATCH_TOKENS,
            cut_overlong=True,
        )
    except NotFinite:
        return dict.fromkeys(("bleu", "chrf", "exact_match"), math.nan)
    scores = score_translations(translated.lines, [pair.target for pair in pairs], lowercase=False)
    return {"bleu": scores.bleu, "chrf": scores.chrf, "exact_match": scores.exact_matches / scores.num_lines}
