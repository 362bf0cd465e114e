"""The published metrics of a fine-tuned model on its run's validation rows, out of its logits. No
jax here.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float, Real

from mhsh.data.fine_tuning.classification import ClassificationCorpus
from mhsh.data.fine_tuning.glue import GlueTask
from mhsh.data.fine_tuning.spans import SpanCorpus
from mhsh.evaluation.answers import find_answers
from mhsh.evaluation.glue import glue_scores
from mhsh.evaluation.squad import score_squad

# Of Devlin et al.'s run_squad.py.
NUM_BEST = 20
MAX_ANSWER_LENGTH = 30


def predicted_labels(task: GlueTask, logits: Float[np.ndarray, "rows C"]) -> Real[np.ndarray, " rows"]:
    """The class of the largest logit, or the number itself where the task is a regression."""
    return logits.argmax(axis=1) if task.label_names else logits[:, 0]


def classification_figures(corpus: ClassificationCorpus, logits: Float[np.ndarray, "rows C"]) -> dict[str, float]:
    """GLUE's metrics of the task; where it has several evaluation sets, the set's name (matched,
    mismatched) stands in front.
    """
    predictions, labels = predicted_labels(corpus.task, logits), corpus.validation["targets"]
    figures: dict[str, float] = {}
    start = 0
    for name, size in corpus.evaluation_sets.items():
        part = slice(start, start + size)
        prefix = f"{name.removeprefix('validation_')}_" if len(corpus.evaluation_sets) > 1 else ""
        scores = glue_scores(corpus.task, labels[part], predictions[part])
        figures |= {prefix + metric: value for metric, value in scores.items()}
        start += size
    return figures


def span_figures(corpus: SpanCorpus, logits: Float[np.ndarray, "rows 2 T"]) -> dict[str, float]:
    """SQuAD's official figures in percent. Of 2.0: with no answer wherever it scores higher than
    the best one, and under best_ with the threshold on that difference which suits these questions
    best.
    """
    data = corpus.validation_data
    answers = find_answers(data.questions, corpus.windows, logits, num_best=NUM_BEST, max_answer_length=MAX_ANSWER_LENGTH)
    threshold = 0.0 if data.version == "2.0" else None
    by_id = dict(zip((question.id for question in data.questions), answers, strict=True))
    figures = dict(score_squad(data, {name: each.text(threshold) for name, each in by_id.items()}, None))
    if data.version == "2.0":
        differences = {name: each.null_difference for name, each in by_id.items()}
        scores = score_squad(data, {name: each.text(None) for name, each in by_id.items()}, differences)
        figures |= {name: value for name, value in scores.items() if name.startswith("best_")}
    return {name: float(value) for name, value in figures.items() if name not in ("missing", "unknown")}
