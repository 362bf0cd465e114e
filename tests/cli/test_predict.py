"""`mhsh predict` on a run of translation, as training leaves it: every line in its place, from
files and through pipes.
"""

from __future__ import annotations

import functools
import gzip
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from mhsh.cli.finetune import merge_encoder
from mhsh.cli.predict import run
from mhsh.config.resolve import from_dict
from mhsh.data.wordpiece import WordPieceTokenizer
from mhsh.errors import UserError
from mhsh.evaluation.translation import model_decoder, translate_lines
from mhsh.storage.run_folder import RunFolder
from mhsh.training.checkpoints.checkpoint import Checkpoints
from mhsh.training.state import TrainState
from tests.conftest import ROOT, load_fields
from tests.data.small_fine_tuning import VOCAB, model_config
from tests.evaluation.small_translation import MAX_POSITIONS, random_params, small_config, small_model, small_tokenizer

STEPS = (4, 8)
BATCH_TOKENS = 512  # one program: all lines are one batch
LINES = ["the in a", "", "sich", "der und die und das mit den", " \t", "zu of to to is a", "Straße 😀", "das"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A run with two checkpoints, each of other random parameters."""
    folder = RunFolder.open_for_training(tmp_path_factory.mktemp("runs") / "trained", small_config())
    small_tokenizer().save(folder.path / "tokenizer.json")
    folder.write_run({"status": "finished", "vocabulary": folder.vocabulary_hash(small_config())})
    checkpoints = Checkpoints(folder.checkpoints_path, keep=5)
    for step in STEPS:
        checkpoints.save(step, jax.device_put(TrainState(random_params(step), {}, np.int32(step))))
    checkpoints.close()
    return str(folder.path)


def options(**changed: Any) -> dict[str, Any]:
    return {"beam": 3, "batch_tokens": BATCH_TOKENS, **changed}


def expected(params: Any) -> list[str]:
    decode = model_decoder(small_model(), params, num_hypotheses=3, length_penalty=0.6)
    translated = translate_lines(
        LINES, small_tokenizer(), decode, max_positions=MAX_POSITIONS, batch_tokens=BATCH_TOKENS, cut_overlong=False
    )
    return translated.lines


@functools.cache
def expected_of_step(step: int) -> list[str]:
    return expected(random_params(step))


def written(path: Path, lines: list[str]) -> str:
    content = "".join(line + "\n" for line in lines).encode("utf-8")
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return str(path)


def test_files(trained, tmp_path):
    output = tmp_path / "out.de"
    assert run(trained, **options(input=written(tmp_path / "source.en.gz", LINES), output=str(output))) == 0
    lines = output.read_text(encoding="utf-8").split("\n")
    assert lines == [*expected_of_step(8), ""]
    assert lines[1] == lines[4] == ""


def test_an_older_step_and_an_average(trained, tmp_path):
    source = written(tmp_path / "source.en", LINES)
    mean = jax.tree.map(lambda a, b: (a + b) / 2, random_params(4), random_params(8))
    found = {}
    for name, changed in {"older": {"step": 4}, "average": {"average": 2}}.items():
        run(trained, **options(input=source, output=str(tmp_path / name), **changed))
        found[name] = (tmp_path / name).read_text(encoding="utf-8").split("\n")[:-1]
    assert found == {"older": expected_of_step(4), "average": expected(mean)}
    assert found["older"] != found["average"]


@pytest.mark.slow
def test_as_a_process_between_pipes(trained):
    overlong = " ".join(["der"] * MAX_POSITIONS)
    command = [sys.executable, "-m", "mhsh", "predict", trained, "--beam=3", "--overlong=cut", "--batch-tokens=64"]
    given = "\n".join([*LINES, overlong]).encode()  # no end to the last line
    compiling = {name: value for name, value in os.environ.items() if name.startswith(("JAX_", "XLA_"))}
    environment = compiling | {"PATH": "/usr/bin:/bin", "LC_ALL": "C", "PYTHONUTF8": "0"}
    done = subprocess.run(command, cwd=ROOT, input=given, capture_output=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.decode("utf-8").split("\n")
    assert lines[:-2] == expected_of_step(8)
    assert len(lines) == len(LINES) + 2
    assert lines[-1] == ""
    assert done.stderr.decode() == f"mhsh predict: 1 lines were cut to model.max_positions = {MAX_POSITIONS} tokens\n"


def test_no_lines_at_all(trained, tmp_path):
    run(trained, **options(input=written(tmp_path / "empty", []), output=str(tmp_path / "out")))
    assert (tmp_path / "out").read_bytes() == b""


def test_an_overlong_line_leaves_no_output(trained, tmp_path):
    source = written(tmp_path / "overlong", ["der", " ".join(["der"] * MAX_POSITIONS)])
    with pytest.raises(UserError, match="line 2 has 33 tokens with its end mark, more than"):
        run(trained, **options(input=source, output=str(tmp_path / "out")))
    assert not (tmp_path / "out").exists()


def test_a_vocabulary_that_does_not_match(trained, tmp_path):
    copied = Path(shutil.copytree(trained, tmp_path / "copied"))
    for change in (lambda path: path.write_bytes(path.read_bytes() + b" "), Path.unlink):
        change(copied / "tokenizer.json")
        with pytest.raises(UserError, match=r"tokenizer\.json is missing, or is not the vocabulary that the run began with"):
            run(str(copied), **options(input=written(tmp_path / "source", LINES)))


QUESTION = {"id": "a", "question": "Red?", "answers": []}
SQUAD = {"data": [{"title": "a", "paragraphs": [{"context": "Red.", "qas": [QUESTION]}]}]}


@pytest.mark.parametrize(("config", "text"), [("glue:cola", "index\tsentence\n0\tRed.\n"), ("squad:v1", json.dumps(SQUAD))])
def test_examples_are_not_read_by_another_vocabulary(tmp_path, config, text):
    fields = merge_encoder(load_fields(*config.split(":")), model_config("mlm", max_positions=384), "vocab.txt", True)
    fields["train"] = load_fields("bert", "2l8h")["train"] | fields["train"]
    folder = RunFolder.open_for_training(tmp_path / "run", from_dict(fields))
    WordPieceTokenizer(VOCAB, lowercase=True).save(folder.path / "vocab.txt")
    folder.write_run({"vocabulary": "of another file"})
    (tmp_path / "input").write_text(text)
    with pytest.raises(UserError, match=r"vocab\.txt is missing, or is not the vocabulary that the run began with"):
        run(str(folder.path), input=str(tmp_path / "input"), output=str(tmp_path / "out"))
