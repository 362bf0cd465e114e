"""`mhsh score`: what it prints of a translation, GLUE and SQuAD, that JAX stays asleep, and what it
refuses besides the rows of bad_inputs.txt.
"""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mhsh.cli.score import glue, squad, translation
from mhsh.errors import UserError
from tests.cli.light_process import mhsh_without_jax

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
    assert translation(hypotheses=(str(lines[0]),), references=str(lines[1]), lowercase=lowercase) == 0
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
    assert translation(**arguments) == 0
    ours = json.loads(capsys.readouterr().out)
    (bleu, _), pairs = sacrebleu(*lines), (ours["bleu"], ours["chrf"])
    assert (ours["pairs"], ours["num_lines"], ours["bleu_signature"]) == (2, 150, bleu["signature"])
    assert [round(each, 4) for each in ours["bleu"]["baseline"]] == [bleu["score"]] * 2
    for each in pairs:
        low, high = each["interval"]
        assert 0 < low < each["difference"] < high


@pytest.fixture
def rte(tmp_path: Path) -> tuple[Path, Path]:
    """Labels and predictions of RTE, the second packed: 3 of 4 right."""
    labels, predictions = tmp_path / "dev.tsv", tmp_path / "RTE.tsv.gz"
    lines = [f"{index}\tOne.\tTwo.\t{label}\n" for index, label in enumerate(["entailment", "not_entailment"] * 2)]
    labels.write_text("".join(["index\tsentence1\tsentence2\tlabel\n", *lines]))
    predictions.write_bytes(gzip.compress(b"index\tprediction\n0\tentailment\n1\tnot_entailment\n2\tnot_entailment\n3\t1\n"))
    return labels, predictions


def test_glue_prints_json_and_never_imports_jax(rte: tuple[Path, Path]) -> None:
    arguments = ["score", "glue", "--task", "RTE", "--labels", str(rte[0]), "--predictions", str(rte[1])]
    done = mhsh_without_jax(*arguments)
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout) == {"task": "rte", "examples": 4, "accuracy": 0.75}
    done = mhsh_without_jax(*arguments[:-1], str(rte[0]))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"mhsh: {rte[0]} line 1 is not the header index<TAB>prediction;")
    assert done.stderr.count("\n") == 1


def test_a_correlation_that_is_not_defined_is_null(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    labels, predictions = tmp_path / "dev.tsv", tmp_path / "predictions.tsv"
    labels.write_text("sentence1\tsentence2\tscore\nA.\tB.\t1.0\nC.\tD.\t2.0\nE.\tF.\t5.0\n")
    predictions.write_text("index\tprediction\n0\t2\n1\t2\n2\t2\n")
    assert glue(task="stsb", labels=str(labels), predictions=str(predictions)) == 0
    found = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)  # no NaN, which is not JSON
    assert found == {"task": "stsb", "examples": 3, "pearson": None, "spearman": None}


def test_labels_without_labels(rte: tuple[Path, Path], tmp_path: Path) -> None:
    unlabelled = tmp_path / "test.tsv"
    unlabelled.write_text("index\tsentence1\tsentence2\n0\tA.\tB.\n")
    with pytest.raises(UserError, match=f"{unlabelled} has no column 'label': it is a test set; give"):
        glue(task="rte", labels=str(unlabelled), predictions=str(rte[1]))


def write(path: Path, content: Any) -> str:
    path.write_bytes(gzip.compress(json.dumps(content).encode()) if path.suffix == ".gz" else json.dumps(content).encode())
    return str(path)


def questions(version: str, *, with_impossible: bool) -> dict[str, Any]:
    """One paragraph with one question that can be answered and perhaps one that cannot."""
    questions: list[dict[str, Any]] = [{"id": "q1", "question": "What?", "answers": [{"text": "an apple", "answer_start": 8}]}]
    if with_impossible:
        questions[0]["is_impossible"] = False
        questions.append({"id": "q2", "question": "Why?", "answers": [], "is_impossible": True})
    return {"version": version, "data": [{"title": "Eden", "paragraphs": [{"context": "Eve ate an apple.", "qas": questions}]}]}


def test_squad_prints_json_and_never_imports_jax(tmp_path: Path) -> None:
    data = write(tmp_path / "dev.json.gz", questions("v2.0", with_impossible=True))
    predictions = write(tmp_path / "predictions.json.gz", {"q1": "Apple!", "q2": "because"})
    arguments = ["score", "squad", "--data", data, "--predictions", predictions]
    done = mhsh_without_jax(*arguments)
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout) == {
        **{"exact": 50.0, "f1": 50.0, "total": 2},
        **{"HasAns_exact": 100.0, "HasAns_f1": 100.0, "HasAns_total": 1},
        **{"NoAns_exact": 0.0, "NoAns_f1": 0.0, "NoAns_total": 1},
        **{"missing": 0, "unknown": 0},
    }
    done = mhsh_without_jax(*arguments[:3], predictions, *arguments[4:])
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"mhsh: {predictions}: Object missing required field `data`; correct the data, or fetch them again\n"


def test_a_file_of_questions_is_no_file_of_predictions(tmp_path: Path) -> None:
    data = write(tmp_path / "dev.json", questions("1.1", with_impossible=False))
    with pytest.raises(UserError, match=f"{data}: the prediction for question"):
        squad(data=data, predictions=data)
