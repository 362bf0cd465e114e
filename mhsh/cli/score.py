"""Scores the predictions of any system against references, each task by its own metrics."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import Annotated

import numpy as np
from cyclopts import Parameter

from mhsh.data.glue import find_task, read_glue, read_submission
from mhsh.data.squad import read_predictions, read_squad
from mhsh.data.text_files import read_lines
from mhsh.errors import UserError
from mhsh.evaluation.bleu import compare_translations, score_translations
from mhsh.evaluation.glue import score_glue
from mhsh.evaluation.squad import score_squad

EXAMPLES = (
    "mhsh score translation --hypotheses=translated.txt --references=test.de",
    "mhsh score translation --hypotheses b*.de --baseline a*.de --references=r.de",
    "mhsh score glue --task=cola --labels=dev.tsv --predictions=CoLA.tsv",
    "mhsh score glue --task=mnli --labels=dev_matched.tsv --predictions=MNLI-m.tsv",
    "mhsh score squad --data=dev-v1.1.json --predictions=answers.json",
    "mhsh score squad --data=dev-v2.0.json --predictions=answers.json",
)


def translation(
    *,
    hypotheses: Annotated[tuple[str, ...], Parameter(consume_multiple=True)],
    references: str,
    baseline: Annotated[tuple[str, ...], Parameter(consume_multiple=True)] = (),
    lowercase: bool = False,
) -> int:
    """BLEU and chrF of lines, by sacreBLEU, with their signatures, as JSON; with --baseline the
    difference to it, with its 95 % interval over other sentences and other seeds.

    Args:
      hypotheses: a file with a translation a line, plain or compressed; with --baseline one or
        more, such as those of several seeds
      references: a file with the references, line by line
      baseline: as many files of another system, in the same order of seeds
      lowercase: compare without case
    """
    if len(baseline) != len(hypotheses) and (baseline or len(hypotheses) > 1):
        raise UserError(
            f"--hypotheses has {len(hypotheses)} files, --baseline {len(baseline)}; give one file without --baseline, "
            "or as many of each, in the same order of seeds"
        )
    reference_lines = read_lines(references)
    if not reference_lines:
        raise UserError(f"{references} is empty; there is nothing to score")
    systems, baselines = (
        [_lines_beside(path, references, len(reference_lines)) for path in paths] for paths in (hypotheses, baseline)
    )
    scores = dataclasses.asdict(score_translations(systems[0], reference_lines, lowercase=lowercase))
    if not baseline:
        print(json.dumps(scores))
        return 0
    compared = compare_translations(systems, baselines, reference_lines, lowercase=lowercase)
    signatures = {name: scores[name] for name in ("bleu_signature", "chrf_signature")}
    found = {name: dataclasses.asdict(paired) for name, paired in compared.items()}
    print(json.dumps({"num_lines": len(reference_lines), "pairs": len(systems), **found, **signatures}))
    return 0


def _lines_beside(path: str, references: str, number: int) -> list[str]:
    lines = read_lines(path)
    if len(lines) != number:
        raise UserError(
            f"{path} has {len(lines)} lines, {references} {number}; "
            "give files in which line k is the translation of the same sentence"
        )
    return lines


def glue(*, task: str, labels: str, predictions: str) -> int:
    """The metrics of one GLUE task, as JSON; null for a correlation of values that are all equal.

    Args:
      task: cola, sst2, mrpc, stsb, qqp, mnli, qnli, rte or wnli
      labels: the task's original TSV with labels, plain or compressed
      predictions: a file of index, tab, prediction, as one hands them in to GLUE
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
      data: SQuAD's JSON with answers, plain or compressed
      predictions: JSON: the answer of each question's id
    """
    print(json.dumps(score_squad(read_squad(data), read_predictions(predictions))))
    return 0


KINDS = {"translation": translation, "glue": glue, "squad": squad}
