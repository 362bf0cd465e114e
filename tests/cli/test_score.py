"""`mhsh score`: what it prints of translations. What it refuses is in bad_inputs.txt."""

from __future__ import annotations

import json
import subprocess
import sys
import unicodedata
from pathlib import Path

import numpy as np
import pytest

from mhsh.cli.score import run

WORDS = ["Der", "Haus", "Häuser", ",", ".", ";", "1,5", "3.2", "%", "&amp;", "Straßenbahn-Halt", "„", "U.S.", "😀", "can't", "<br>"]


@pytest.fixture
def lines(tmp_path: Path) -> tuple[Path, Path]:
    """References with every sort of mark, and hypotheses in which every fifth word is another one;
    some lines are empty.
    """
    generator = np.random.default_rng(0)
    references = [" ".join(generator.choice(WORDS, generator.integers(1, 25))) for _ in range(150)]
    hypotheses = [
        " ".join(generator.choice(WORDS) if generator.random() < 0.2 else word for word in line.split(" ")) for line in references
    ]
    hypotheses[3:6] = ["", "   ", references[5]]
    paths = tmp_path / "hypotheses.de", tmp_path / "references.de"
    for path, lines in zip(paths, (hypotheses, references), strict=True):
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return paths


def sacrebleu(hypotheses: Path, references: Path, *flags: str) -> list[dict[str, str]]:
    arguments = [str(references), "-i", str(hypotheses), "-m", "bleu", "chrf", "-w", "4", "--force", *flags]
    done = subprocess.run([sys.executable, "-m", "sacrebleu", *arguments], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


@pytest.mark.parametrize("lowercase", [False, True])
def test_as_sacrebleu_itself(lines, capsys, lowercase):
    assert run(hypotheses=(str(lines[0]),), references=str(lines[1]), lowercase=lowercase) == 0
    ours = json.loads(capsys.readouterr().out)
    bleu, chrf = sacrebleu(*lines, *(["-lc", "--chrf-lowercase"] if lowercase else []))
    assert 10 < ours["bleu"] < 90
    assert (round(ours["bleu"], 4), ours["bleu_signature"]) == (bleu["score"], bleu["signature"])
    assert (round(ours["chrf"], 4), ours["chrf_signature"]) == (chrf["score"], chrf["signature"])
    assert f"case:{'lc' if lowercase else 'mixed'}" in ours["bleu_signature"]
    pairs = zip(*(path.read_text(encoding="utf-8").strip("\n").split("\n") for path in lines), strict=True)
    assert ours["num_lines"] == 150 and ours["exact_matches"] == sum(a.strip() == b.strip() for a, b in pairs) > 0


def test_the_difference_to_a_baseline_has_an_interval(lines, capsys):
    arguments = dict(hypotheses=(str(lines[1]),) * 2, baseline=(str(lines[0]),) * 2, references=str(lines[1]))
    assert run(**arguments) == 0
    ours = json.loads(capsys.readouterr().out)
    (bleu, _), pairs = sacrebleu(*lines), (ours["bleu"], ours["chrf"])
    assert (ours["pairs"], ours["num_lines"], ours["bleu_signature"]) == (2, 150, bleu["signature"])
    assert [round(each, 4) for each in ours["bleu"]["baseline"]] == [bleu["score"]] * 2
    for each in pairs:
        low, high = each["interval"]
        assert 0 < low < each["difference"] < high


def test_files_in_two_forms_of_unicode_are_named(lines, tmp_path, capsys):
    """ "ä" in one character and in two: the same to a reader, not to BLEU."""
    other = tmp_path / "decomposed.de"
    other.write_text(unicodedata.normalize("NFD", lines[1].read_text(encoding="utf-8")), encoding="utf-8")
    for hypotheses, references in ((lines[1], other), (other, lines[1])):
        assert run(hypotheses=(str(hypotheses),), references=str(references)) == 0
        printed = capsys.readouterr()
        assert json.loads(printed.out)["bleu"] < 95
        assert printed.err.startswith(f"mhsh score: {other} has letters that are not composed (NFC) in 80 of 150 lines")
        assert printed.err.count("\n") == 1
    for path in (lines[1], other):
        assert run(hypotheses=(str(path),), references=str(path)) == 0
        assert not capsys.readouterr().err
