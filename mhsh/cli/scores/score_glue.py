"""mhsh score glue: the metrics of one GLUE task for a file of predictions, against a file with
labels.
"""

from __future__ import annotations

import argparse
import json
import math

import numpy as np

from mhsh.cli.parser import examples
from mhsh.data.fine_tuning.glue import find_task, read_glue, read_submission
from mhsh.errors import UserError
from mhsh.evaluation.glue import score_glue


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags."""
    parser.epilog = examples(
        "mhsh score glue --task=cola --labels=dev.tsv --predictions=CoLA.tsv",
        "mhsh score glue --task=mnli --labels=dev_matched.tsv --predictions=MNLI-m.tsv",
    )
    names = "cola, sst2, mrpc, stsb, qqp, mnli, qnli, rte or wnli"
    parser.add_argument("--task", dest="glue_task", required=True, metavar="T", help=names)
    parser.add_argument("--labels", required=True, metavar="FILE", help="the task's original TSV with labels, plain or .gz")
    parser.add_argument("--predictions", required=True, metavar="FILE", help="index<TAB>prediction, as one hands them in to GLUE")


def run(glue_task: str, labels: str, predictions: str) -> int:
    """Prints the metrics as one JSON object; null for a correlation of values that are all equal.

    Raises:
      UserError: there is no such task, a file cannot be read or is malformed, the labels' file has
        none, or the predictions are not for its examples.
    """
    task = find_task(glue_task)
    examples = read_glue(task, labels)
    if examples[0].label is None:
        raise UserError(f"{labels} has no column {task.label_column!r}: it is a test set; give a file with labels")
    predicted = read_submission(task, predictions, examples)
    scores = score_glue(task, np.array([example.label for example in examples]), np.array(predicted))
    figures = {name: None if math.isnan(score) else score for name, score in scores.items()}
    print(json.dumps({"task": task.name, "examples": len(examples), **figures}))
    return 0
