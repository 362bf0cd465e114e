"""`mhsh score glue`, as a real process and in this one: its JSON, what it refuses, and that JAX
stays asleep.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from mhsh.cli.score import glue as run
from mhsh.data.fine_tuning.glue import GLUE_TASKS, find_file, read_glue, write_submission
from mhsh.errors import UserError
from mhsh.evaluation.glue import score_glue
from tests.cli.light_process import mhsh_without_jax


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    """Labels and predictions of RTE, the second packed: 3 of 4 right."""
    labels, predictions = tmp_path / "dev.tsv", tmp_path / "RTE.tsv.gz"
    lines = [f"{index}\tOne.\tTwo.\t{label}\n" for index, label in enumerate(["entailment", "not_entailment"] * 2)]
    labels.write_text("".join(["index\tsentence1\tsentence2\tlabel\n", *lines]))
    predictions.write_bytes(gzip.compress(b"index\tprediction\n0\tentailment\n1\tnot_entailment\n2\tnot_entailment\n3\t1\n"))
    return labels, predictions


def test_a_process_of_its_own_prints_json_and_never_imports_jax(files: tuple[Path, Path]) -> None:
    arguments = ["score", "glue", "--task", "RTE", "--labels", str(files[0]), "--predictions", str(files[1])]
    done = mhsh_without_jax(*arguments)
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout) == {"task": "rte", "examples": 4, "accuracy": 0.75}
    done = mhsh_without_jax(*arguments[:-1], str(files[0]))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"mhsh: {files[0]} line 1 is not the header index<TAB>prediction;")
    assert done.stderr.count("\n") == 1


def test_two_metrics_and_an_undefined_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    labels, predictions = tmp_path / "dev.tsv", tmp_path / "predictions.tsv"
    labels.write_text("sentence1\tsentence2\tscore\nA.\tB.\t1.0\nC.\tD.\t2.0\nE.\tF.\t5.0\n")
    predictions.write_text("index\tprediction\n0\t-1\n1\t0\n2\t0.5\n")
    assert run(task="stsb", labels=str(labels), predictions=str(predictions)) == 0
    found = json.loads(capsys.readouterr().out)
    assert found == {"task": "stsb", "examples": 3, "pearson": pytest.approx(51 / 3276**0.5), "spearman": pytest.approx(1.0)}
    predictions.write_text("index\tprediction\n0\t2\n1\t2\n2\t2\n")
    assert run(task="stsb", labels=str(labels), predictions=str(predictions)) == 0
    # Not NaN, which is no JSON.
    assert json.loads(capsys.readouterr().out, parse_constant=pytest.fail) == {
        "task": "stsb",
        "examples": 3,
        "pearson": None,
        "spearman": None,
    }


def test_files_that_do_not_fit(files: tuple[Path, Path], tmp_path: Path) -> None:
    unlabelled = tmp_path / "test.tsv"
    unlabelled.write_text("index\tsentence1\tsentence2\n0\tA.\tB.\n")
    for arguments, message in (
        (("squad", files[0], files[1]), "'squad' is not a task of GLUE; allowed: cola, "),
        (("qnli", files[0], files[1]), "line 1 is not a header of QNLI: there is no column 'question'"),
        (("rte", unlabelled, files[1]), f"{unlabelled} has no column 'label': it is a test set; give"),
        (("rte", tmp_path / "missing", files[1]), "missing: No such file or directory"),
        (("rte", files[0], tmp_path / "missing"), "missing: No such file or directory"),
    ):
        with pytest.raises(UserError, match=message):
            run(**dict(zip(("task", "labels", "predictions"), map(str, arguments), strict=True)))


@pytest.mark.realdata
@pytest.mark.parametrize("name", ["cola", "sst2", "mrpc", "stsb", "rte", "wnli"])
def test_a_random_system_on_the_real_data(real_data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    task, generator = GLUE_TASKS[name], np.random.default_rng(0)
    labels = find_file(task, real_data / "glue", "dev.tsv")
    examples = read_glue(task, labels)
    expected = np.array([example.label for example in examples])
    predicted = generator.integers(0, 2, len(examples)) if task.label_names else generator.uniform(0, 5, len(examples))
    predictions = tmp_path / f"{task.folder}.tsv"
    write_submission(task, predictions, [example.index for example in examples], predicted.tolist())
    assert run(task=task.folder, labels=str(labels), predictions=str(predictions)) == 0
    found = json.loads(capsys.readouterr().out)
    assert found == {"task": name, "examples": len(examples), **score_glue(task, expected, predicted)}
