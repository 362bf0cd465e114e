"""mhsh score squad: the official figures for a file of predictions, against SQuAD 1.1 or 2.0
data.
"""

from __future__ import annotations

import argparse
import json

from mhsh.cli.parser import examples
from mhsh.data.fine_tuning.squad import read_no_answer_probabilities, read_predictions, read_squad
from mhsh.evaluation.squad import score_squad


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags."""
    parser.epilog = examples(
        "mhsh score squad --data=dev-v1.1.json --predictions=answers.json",
        "mhsh score squad --data=dev-v2.0.json --predictions=answers.json",
    )
    parser.add_argument("--data", required=True, metavar="FILE", help="SQuAD's JSON with answers, plain or .gz")
    parser.add_argument("--predictions", required=True, metavar="FILE", help="JSON: the answer of each question's id")
    parser.add_argument("--na-probabilities", metavar="FILE", help="JSON: each id's no-answer probability (2.0 only)")


def run(data: str, predictions: str, na_probabilities: str | None) -> int:
    """Prints the figures as one JSON object, under the names of the official scorer of the data's
    version.

    Raises:
      UserError: a file cannot be read or is malformed, or they do not belong together.
    """
    probabilities = None if na_probabilities is None else read_no_answer_probabilities(na_probabilities)
    print(json.dumps(score_squad(read_squad(data), read_predictions(predictions), probabilities)))
    return 0
