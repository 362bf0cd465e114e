"""mhsh score translation: BLEU and chrF of a file of hypotheses against a file of references."""

from __future__ import annotations

import argparse
import dataclasses
import json

from mhsh.cli.parser import examples
from mhsh.data.text_files import read_lines
from mhsh.errors import UserError
from mhsh.evaluation.bleu import TranslationScores, score_translations


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags."""
    parser.epilog = examples(
        "mhsh score translation --hypotheses=translated.txt --references=test.de",
        "mhsh score translation --hypotheses=out.txt --references=test.de --lowercase",
    )
    parser.add_argument("--hypotheses", required=True, metavar="FILE", help="a translation a line, plain or .gz")
    parser.add_argument("--references", required=True, metavar="FILE", help="the references, line by line")
    parser.add_argument("--lowercase", action="store_true", help="compare without case")
    parser.add_argument("--json", dest="as_json", action="store_true", help="as JSON")


def run(hypotheses: str, references: str, lowercase: bool, as_json: bool) -> int:
    """Prints the figures with their signatures, as lines of text or as one JSON object.

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
    print(json.dumps(dataclasses.asdict(scores)) if as_json else _in_words(scores))
    return 0


def _in_words(scores: TranslationScores) -> str:
    precisions = "/".join(f"{precision:.1f}" for precision in scores.precisions)
    return "\n".join(
        (
            f"BLEU  {scores.bleu:.2f}  ({precisions}, brevity penalty {scores.brevity_penalty:.3f}, "
            f"length ratio {scores.length_ratio:.3f})  {scores.bleu_signature}",
            f"chrF2 {scores.chrf:.2f}  {scores.chrf_signature}",
            f"lines {scores.num_lines}, exact matches {scores.exact_matches} ({scores.exact_matches / scores.num_lines:.2%})",
        )
    )
