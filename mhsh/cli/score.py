"""Scores the predictions of any system against references, each task by its own metrics."""

from __future__ import annotations

import dataclasses
import json
import math

import numpy as np

from mhsh.data.glue import find_task, read_glue, read_submission
from mhsh.data.squad import read_predictions, read_squad
from mhsh.data.text_files import read_lines
from mhsh.errors import UserError
from mhsh.evaluation.bleu import score_translations
from mhsh.evaluation.glue import score_glue
from mhsh.evaluation.squad import score_squad

EXAMPLES = (
    "mhsh score translation --hypotheses=translated.txt --references=test.de",
    "mhsh score translation --hypotheses=out.txt --references=test.de --lowercase",
    "mhsh score glue --task=cola --labels=dev.tsv --predictions=CoLA.tsv",
    "mhsh score glue --task=mnli --labels=dev_matched.tsv --predictions=MNLI-m.tsv",
    "mhsh score squad --data=dev-v1.1.json --predictions=answers.json",
    "mhsh score squad --data=dev-v2.0.json --predictions=answers.json",
)


def translation(*, hypotheses: str, references: str, lowercase: bool = False) -> int:
    """BLEU and chrF of lines, by sacreBLEU, with their signatures, as JSON.

    Args:
      hypotheses: a file with a translation a line, plain or .gz
      references: a file with the references, line by line
      lowercase: compare without case

    Raises:
      UserError: a file cannot be read or is no UTF-8, the files differ in lines, or they hold none.
    """
    hypothesis_lines, reference_lines = read_lines(hypotheses), read_lines(references)
    if len(hypothesis_lines) != len(reference_lines):
        raise UserError(
            f"{hypotheses} has {len(hypothesis_lines)} lines, {references} {len(reference_lines)}; "
            "give files in which line k is the translation of the same sentence"
        )
    if not hypothesis_lines:
        raise UserError(f"{hypotheses} and {references} are empty; there is nothing to score")
    scores = score_translations(hypothesis_lines, reference_lines, lowercase=lowercase)
    print(json.dumps(dataclasses.asdict(scores)))
    return 0


def glue(*, task: str, labels: str, predictions: str) -> int:
    """The metrics of one GLUE task, as JSON; null for a correlation of values that are all equal.

    Args:
      task: cola, sst2, mrpc, stsb, qqp, mnli, qnli, rte or wnli
      labels: the task's original TSV with labels, plain or .gz
      predictions: a file of index, tab, prediction, as one hands them in to GLUE

    Raises:
      UserError: there is no such task, a file cannot be read or is malformed, the labels' file has
        none, or the predictions are not for its examples.
    """
    known = find_task(task)
    examples = read_glue(known, labels)
    if examples[0].label is None:
        raise UserError(f"{labels} has no column {known.label_column!r}: it is a test set; give a file with labels")
    predicted = read_submission(known, predictions, examples)
    scores = score_glue(known, np.array([example.label for example in examples]), np.array(predicted))
    metrics = {name: None if math.isnan(score) else score for name, score in scores.items()}
    print(json.dumps({"task": known.name, "examples": len(examples), **metrics}))
    return 0


def squad(*, data: str, predictions: str) -> int:
    """Exact match and F1 of SQuAD 1.1 or 2.0, as JSON with the official scorer's names.

    Args:
      data: SQuAD's JSON with answers, plain or .gz
      predictions: JSON: the answer of each question's id

    Raises:
      UserError: a file cannot be read or is malformed, or they do not belong together.
    """
    print(json.dumps(score_squad(read_squad(data), read_predictions(predictions))))
    return 0


KINDS = {"translation": translation, "glue": glue, "squad": squad}
