"""`mhsh score squad`, as a real process and in this one: its JSON, what it refuses, and that JAX
stays asleep.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from mhsh.cli.score import squad as run
from mhsh.errors import UserError
from tests.cli.light_process import mhsh_without_jax


def write(path: Path, content: Any) -> str:
    path.write_bytes(gzip.compress(json.dumps(content).encode()) if path.suffix == ".gz" else json.dumps(content).encode())
    return str(path)


def squad(version: str, *, with_impossible: bool) -> dict[str, Any]:
    """One paragraph with one question that can be answered and perhaps one that cannot."""
    questions: list[dict[str, Any]] = [{"id": "q1", "question": "What?", "answers": [{"text": "an apple", "answer_start": 8}]}]
    if with_impossible:
        questions[0]["is_impossible"] = False
        questions.append({"id": "q2", "question": "Why?", "answers": [], "is_impossible": True})
    return {"version": version, "data": [{"title": "Eden", "paragraphs": [{"context": "Eve ate an apple.", "qas": questions}]}]}


def test_a_process_of_its_own_prints_json_and_never_imports_jax(tmp_path: Path) -> None:
    data = write(tmp_path / "dev.json.gz", squad("v2.0", with_impossible=True))
    predictions = write(tmp_path / "predictions.json.gz", {"q1": "Apple!", "q2": "because"})
    probabilities = write(tmp_path / "na_probs.json", {"q1": 0.25, "q2": 0.75})
    arguments = ["score", "squad", "--data", data, "--predictions", predictions]
    done = mhsh_without_jax(*arguments, "--na-probabilities", probabilities)
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout) == {
        **{"exact": 50.0, "f1": 50.0, "total": 2},
        **{"HasAns_exact": 100.0, "HasAns_f1": 100.0, "HasAns_total": 1},
        **{"NoAns_exact": 0.0, "NoAns_f1": 0.0, "NoAns_total": 1},
        **{"best_exact": 100.0, "best_exact_thresh": 0.25, "best_f1": 100.0, "best_f1_thresh": 0.25},
        **{"missing": 0, "unknown": 0},
    }
    done = mhsh_without_jax(*arguments[:3], predictions, *arguments[4:])
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"mhsh: {predictions}: Object missing required field `data`; correct the data, or fetch them again\n"


def test_version_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = write(tmp_path / "dev.json", squad("1.1", with_impossible=False))
    predictions = write(tmp_path / "predictions.json", {"q1": "the apple tree", "x": ""})
    assert run(data=data, predictions=predictions) == 0
    found = json.loads(capsys.readouterr().out)
    assert found == {"exact_match": 0.0, "f1": pytest.approx(200 / 3), "total": 1, "missing": 0, "unknown": 1}


def test_files_that_do_not_fit(tmp_path: Path) -> None:
    first = write(tmp_path / "first.json", squad("1.1", with_impossible=False))
    second = write(tmp_path / "second.json", squad("v2.0", with_impossible=True))
    predictions, others = write(tmp_path / "p.json", {"q1": "", "q2": ""}), write(tmp_path / "o.json", {"q1": 0.5})
    for arguments, message in (
        ((tmp_path / "missing", predictions, None), "missing: No such file or directory"),
        ((first, tmp_path / "missing", None), "missing: No such file or directory"),
        ((first, predictions, tmp_path / "missing"), "missing: No such file or directory"),
        ((first, first, None), f"{first}: the prediction for question version is '1.1'|the prediction for question data is"),
        ((first, predictions, others), "the data are SQuAD 1.1"),
        ((second, predictions, others), "question q2 has a prediction and no no-answer probability"),
    ):
        with pytest.raises(UserError, match=message):
            names = ("data", "predictions", "na_probabilities")
            run(**{name: str(path) for name, path in zip(names, arguments, strict=True) if path is not None})
