"""mhsh score: BLEU and chrF of translations, of any system."""

from __future__ import annotations

import dataclasses
import sys
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Annotated

from cyclopts import Parameter

from mhsh.data.text_files import read_lines
from mhsh.errors import UserError
from mhsh.evaluation.bleu import compare_translations, score_translations
from mhsh.text import to_json

EXAMPLES = (
    "mhsh score --hypotheses=translated.txt --references=test.de",
    "mhsh score --hypotheses b*.de --baseline a*.de --references=r.de",
)


def run(
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
    _note_forms({references: reference_lines, **dict(zip((*hypotheses, *baseline), (*systems, *baselines), strict=True))})
    scores = dataclasses.asdict(score_translations(systems[0], reference_lines, lowercase=lowercase))
    if not baseline:
        print(to_json(scores))
        return 0
    compared = compare_translations(systems, baselines, reference_lines, lowercase=lowercase)
    signatures = {name: scores[name] for name in ("bleu_signature", "chrf_signature")}
    found = {name: dataclasses.asdict(paired) for name, paired in compared.items()}
    print(to_json({"num_lines": len(reference_lines), "pairs": len(systems), **found, **signatures}))
    return 0


def _lines_beside(path: str, references: str, number: int) -> list[str]:
    lines = read_lines(path)
    if len(lines) != number:
        raise UserError(
            f"{path} has {len(lines)} lines, {references} {number}; "
            "give files in which line k is the translation of the same sentence"
        )
    return lines


def _note_forms(files: Mapping[str, Sequence[str]]) -> None:
    """Says on standard error which files are not in Unicode's composed form where others are: for
    BLEU and chrF the same letter is then another one. All that mhsh translates is composed.
    """
    numbers = {path: sum(not unicodedata.is_normalized("NFC", line) for line in lines) for path, lines in files.items()}
    if not all(numbers.values()):
        for path, number in numbers.items():
            if number:
                print(
                    f"mhsh score: {path} has letters that are not composed (NFC) in {number} of {len(files[path])} lines, other "
                    "files have none: equal letters count as different; convert it to NFC",
                    file=sys.stderr,
                )
