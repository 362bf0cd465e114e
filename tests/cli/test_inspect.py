"""mhsh inspect: what it says of a source, a checkpoint and a run, and of what it cannot read."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pyarrow
import pytest
from pyarrow import parquet

from mhsh.cli.main import main
from mhsh.data.wordpiece import SPECIALS
from mhsh.storage.run_folder import RunFolder
from mhsh.sweep.folder import Tuning
from tests.conftest import MakeConfig, load_fields
from tests.interop.small_bert import TOKENS
from tests.sweeps import write_sweep

TEXTS = [f"Document {number} is about the river that runs past the mill." for number in range(40)]


def inspect(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    assert main(["inspect", *map(str, arguments)]) == 0
    return capsys.readouterr().out


def test_a_folder_of_texts(tmp_path: Path, capsys) -> None:
    (tmp_path / "a.txt").write_text("\n\n".join(TEXTS))
    (tmp_path / "b.md").write_bytes("\ufeffWindows\r\n".encode("utf-16"))
    (tmp_path / "c.GZ").write_bytes(pyarrow.compress(b"packed", "gzip", asbytes=True))
    said = inspect(capsys, tmp_path)
    assert said.startswith(f"text:{tmp_path}: 3 files, ")
    assert "1 text in UTF-16 by its mark" in said and "1 text in UTF-8 in gzip" in said
    assert (
        "42 documents, " in said and "a document is the lines up to a blank line (a line with lines:, a file with files:)" in said
    )
    assert f"--config.data.source=text:{tmp_path} " in said


@pytest.mark.parametrize(
    ("name", "source"),
    [("t.jsonl", "jsonl:{}:body"), ("t.parquet", "parquet:{}"), ("t.txt", "text:{}")],
    ids=lambda value: value[:5],
)
def test_the_source_follows_from_the_first_bytes(tmp_path: Path, capsys, name: str, source: str) -> None:
    path = tmp_path / "data"
    if name == "t.parquet":
        parquet.write_table(pyarrow.table({"text": TEXTS}), path)
    else:
        separator, form = ("\n", lambda text: json.dumps({"body": text})) if name == "t.jsonl" else ("\n\n", str)
        path.write_text('{"id": 1}\n' * (name == "t.jsonl") + separator.join(map(form, TEXTS)))
    said = inspect(capsys, path)
    assert f"--config.data.source={source.format(path)} " in said
    assert "40 documents" in said and ("1 without text" in said) == (name == "t.jsonl")
    assert inspect(capsys, source.format(path)) == said


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("one\ntwo", "1 document, 7 characters in all, .*\nthis is one document in all"),
        ("one\n\ntwo\n\nthree", "half of the documents have fewer than 40 characters"),
        ('[\n {"text": "A text that is long enough to be one of its own."}\n]\n\nb', "looks like JSON, "),
        ("<doc>\nText that is long enough to be one of its own.</doc>\n\nb", "looks like XML or HTML"),
        ("id,text\n1,A text that is long enough to be one of its own.\n\nb", "looks like a table"),
        ("id\tlabel\ttext and more text so that it is long enough\n1\t0\tx\n\nb", "looks like a table"),
    ],
)
def test_what_looks_wrong_is_said(tmp_path: Path, capsys, text: str, said: str) -> None:
    (tmp_path / "t.txt").write_text(text)
    found = inspect(capsys, tmp_path / "t.txt")
    assert said.partition(", .*")[0] in found and said.partition("\n")[2] in found


def test_unknown_characters(tmp_path: Path, capsys) -> None:
    vocab = tmp_path / "vocab.txt"
    vocab.write_text("".join(f"{token}\n" for token in (*SPECIALS, *"abc", "##a", "##b", "##c")))
    (tmp_path / "t.txt").write_text("abc cab abc cab abc cab abc cab abc cab\n\nabc abc abc abc abc ABC\n")
    assert "6.25% of its characters are in words" in inspect(capsys, tmp_path / "t.txt", f"--vocab={vocab}")
    assert "0.00% of its characters are in words" in inspect(capsys, tmp_path / "t.txt", f"--vocab={vocab}", "--lowercase")
    (tmp_path / "t.txt").write_text("日本語 " * 40)
    assert main(["inspect", str(tmp_path / "t.txt"), f"--vocab={vocab}"]) == 2
    assert "100% of the characters" in capsys.readouterr().err


def test_a_checkpoint(tmp_path: Path, capsys) -> None:
    config = dict(
        architectures=["BertForSequenceClassification"], model_type="bert", vocab_size=len(TOKENS), hidden_size=16,
        num_hidden_layers=2, num_attention_heads=4, intermediate_size=32, max_position_embeddings=64, type_vocab_size=2,
        hidden_act="gelu", hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1, layer_norm_eps=1e-12,
    )  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    said = inspect(capsys, tmp_path)
    assert "BertForSequenceClassification: 2 layers x 4 heads of 4, D = 16, F = 32, 64 positions" in said
    assert "classes, in the order of the outputs: LABEL_0, LABEL_1\ntheir meaning is not in config.json: " in said
    assert "--labels=A,B,..." in said and "vocab.txt and tokenizer.json are missing" in said
    (tmp_path / "vocab.txt").write_text("".join(f"{token}\n" for token in TOKENS))
    (tmp_path / "config.json").write_text(json.dumps(config | {"id2label": {"0": "no", "1": "yes"}}))
    said = inspect(capsys, tmp_path)
    assert "outputs: no, yes\ntokenizer: WordPiece of" in said
    for architecture, flags in (
        ("BertModel", " --fresh-heads"),
        ("BertForMaskedLM", ""),
        ("BertForQuestionAnswering", " --task=squad:v2"),
        ("BertForSequenceClassification", " --task=glue:TASK"),
    ):
        (tmp_path / "config.json").write_text(json.dumps(config | {"architectures": [architecture]}))
        assert f"mhsh import {tmp_path} --config=bert:12l12h{flags} --out=" in inspect(capsys, tmp_path)


def test_a_run(tmp_path: Path, capsys, make_config: MakeConfig) -> None:
    folder = RunFolder.open_for_training(tmp_path / "my run", make_config("bert", "3l4h"))
    said = inspect(capsys, folder.path)
    assert said.startswith("my run: 3 layers x 4 heads (admin, D = 64), mlm on stdlib, 1,000 steps of 32 x 32 tokens\n")
    assert said.endswith(f"no checkpoint; train it: mhsh train --workdir='{folder.path}'\n")
    for step, more in ((500, f"mhsh train --workdir='{folder.path}'"), (1000, f"mhsh eval '{folder.path}'")):
        (folder.checkpoints_path / str(step)).mkdir(parents=True)
        (folder.checkpoints_path / f"{step}.orbax-checkpoint-tmp").mkdir()
        assert inspect(capsys, folder.path).endswith(f"{step:,}\nto go on: {more}\n")


def test_a_run_or_a_sweep_that_is_here_has_its_name(tmp_path: Path, capsys, make_config: MakeConfig, monkeypatch) -> None:
    monkeypatch.chdir(RunFolder.open_for_training(tmp_path / "my run", make_config("bert", "3l4h")).path)
    assert inspect(capsys, Path()).startswith("my run: 3 layers x 4 heads")
    monkeypatch.chdir(write_sweep(tmp_path / "my sweep", load_fields("bert", "2l8h"), ["seed=0,1"], {}).path)
    assert inspect(capsys, Path()).startswith("my sweep: a sweep of seed")


def test_a_sweep_and_a_folder_of_runs(tmp_path: Path, capsys, fails) -> None:
    """Their JSON is no text of a corpus."""
    path, axes = tmp_path / "my sweep", ["lr=1e-3,2e-3", "seed=0,1"]
    write_sweep(path, load_fields("bert", "2l8h"), axes, {"learning_rate-0.001_seed-0": 2.0, "learning_rate-0.001_seed-1": 2.0})
    assert inspect(capsys, path) == (
        "my sweep: a sweep of learning_rate and seed, 4 runs: 2 finished and 2 not run\n"
        f"to go on: mhsh work '{path}'\nto compare what has run: mhsh compare '{path}'\n"
    )
    said = fails("inspect", str(path / "runs"))
    assert "holds runs: learning_rate-0.001_seed-0 and learning_rate-0.001_seed-1; name one of them, or" in said


def test_what_a_choice_leaves_out_is_not_left_to_run(tmp_path: Path, capsys) -> None:
    axes, ends = ["lr=1e-3,2e-3", "seed=0,1"], {"learning_rate-0.001_seed-0": 2.0, "learning_rate-0.002_seed-0": 3.0}
    for name, more, said in (("s", {}, "2 finished and 1 not run"), ("t", {"learning_rate-0.001_seed-1": 2.1}, "3 finished")):
        folder = write_sweep(tmp_path / name, load_fields("bert", "2l8h"), axes, ends | more)
        folder.open_for(dataclasses.replace(folder.read_plan(), choosing=Tuning("lr", 1)))
        described = inspect(capsys, folder.path)
        assert f"3 runs: {said}\n" in described and ("to go on" in described) == (not more)


def test_the_same_lines_are_at_the_head_of_prepare(tmp_path: Path, capsys) -> None:
    (tmp_path / "t.txt").write_text("\n\n".join(TEXTS))
    source = f"lines:{tmp_path}/t.txt"
    head = inspect(capsys, source).split("to train on it")[0]
    flags = ["--config=bert:2l8h", f"--config.data.source={source}", "--config.data.validation_fraction=0.2", "--workers=1"]
    assert (
        main(["prepare", *flags, "--config.model.vocab_size=300", "--config.data.sequence_length=32", f"--out={tmp_path}/out"]) == 0
    )
    assert capsys.readouterr().out.startswith(head)
