"""A pre-trained run fine-tuned, with two seeds and without its parameters; predictions, scores."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import jax
import pytest

from mhsh.cli.main import main
from mhsh.run_folder import RunFolder

SHORT = [
    "--config.train.num_steps=4",
    "--config.train.batch_size=8",
    "--config.train.log_interval=1",
    "--config.optimizer.warmup_steps=1",
    "--config.optimizer.learning_rate=0.003",
    "--config.data.sequence_length=32",
]
COLOURS = ["red", "green", "blue", "gold"]


@pytest.fixture(scope="module", autouse=True)
def one_device() -> Iterator[None]:
    """Commands in this process see one of its eight devices: that compiles faster."""
    devices = jax.devices
    with mock.patch.object(jax, "devices", lambda *backend: devices(*backend)[:1]):
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fine_tuning")


@pytest.fixture(scope="module")
def pretrained(folder: Path) -> Path:
    """A tiny BERT that has seen two steps of a corpus of colours."""
    corpus = folder / "corpus.txt"
    lines = [f"The {a} hat is not {b}. It is {a}." for a in COLOURS for b in COLOURS if a != b]
    corpus.write_text("\n\n".join("\n".join(lines[k:] + lines[:k]) for k in range(len(lines))) + "\n")
    run = folder / "pretrained"
    changes = ["--config.train.num_steps=2", "--config.optimizer.warmup_steps=1", "--config.train.eval_batches=1"]
    changes += ["--config.model.vocab_size=256", "--config.data.validation_fraction=0.2", "--config.model.remat_policy=none"]
    assert main(["train", "--config=bert:2l8h", f"--config.data.source=text:{corpus}", f"--workdir={run}", *changes]) == 0
    return run


@pytest.fixture(scope="module")
def glue(folder: Path) -> Path:
    """An RTE of colours."""
    lines = ["index\tsentence1\tsentence2\tlabel"]
    for number, (a, b) in enumerate([(a, b) for a in COLOURS for b in COLOURS]):
        lines.append(f"{number}\tThe hat is {a}.\tIt is {b}.\t{'entailment' if a == b else 'not_entailment'}")
    (folder / "RTE").mkdir()
    for name in ("train.tsv", "dev.tsv"):
        (folder / "RTE" / name).write_text("".join(line + "\n" for line in lines))
    test = ["\t".join(line.split("\t")[:3]) for line in lines]
    (folder / "RTE" / "test.tsv").write_text("".join(line + "\n" for line in test))
    return folder


def finetune(pretrained: Path, workdir: Path, *more: str) -> int:
    return main(["finetune", str(pretrained), f"--workdir={workdir}", *more, *SHORT])


def test_a_task_with_two_seeds(pretrained, glue, tmp_path, capsys):
    config = ["--config=glue:rte", f"--config.data.source=tsv:{glue}"]
    workdir = tmp_path / "rte"
    assert finetune(pretrained, workdir, *config, "--seeds=0,7") == 0
    runs = [RunFolder(workdir / f"seed-{seed}") for seed in (0, 7)]
    for run, seed in zip(runs, (0, 7), strict=True):
        assert (run.read_config().train.seed, run.read_config().data.seed) == (seed, seed)
        started_from = run.read_run()["started_from"]
        assert [(each["step"], each["folder"]) for each in started_from.pop("lineage")] == [(2, str(pretrained))]
        assert started_from == {
            "folder": str(pretrained),
            "step": 2,
            "taken": ["embeddings", "encoder", "pooler"],
            "fresh": ["classification"],
            "left": ["next_sentence", "prediction"],
            "moments": False,
        }
        assert (run.path / "vocab.txt").read_bytes() == (pretrained / "vocab.txt").read_bytes()
    summary = json.loads((workdir / "summary.json").read_text())["figures"]
    last = [run.read_metrics().rows[-1] for run in runs]
    for name in ("accuracy", "loss"):
        values = [row[name] for row in last]
        assert summary[name]["by_seed"] == {"0": values[0], "7": values[1]}
        assert summary[name]["mean"] == pytest.approx(sum(values) / 2)
        assert summary[name]["deviation"] == pytest.approx(abs(values[0] - values[1]) / 2**0.5)
    assert last[0]["loss"] != last[1]["loss"]
    # Given again, nothing is trained again.
    metrics = [(run.path / "metrics.jsonl").read_bytes() for run in runs]
    assert finetune(pretrained, workdir, *config, "--seeds=0,7") == 0
    assert [(run.path / "metrics.jsonl").read_bytes() for run in runs] == metrics
    capsys.readouterr()
    with runs[1].held():
        assert finetune(pretrained, workdir, *config, "--seeds=0,7") == 2
    assert "seed-7 is in use: process" in capsys.readouterr().err

    answers = tmp_path / "answers.tsv"
    assert main(["predict", str(runs[0].path), f"--input={glue}/RTE/test.tsv", f"--output={answers}"]) == 0
    assert [line.split("\t")[0] for line in answers.read_text().split("\n")[1:-1]] == [str(number) for number in range(16)]
    capsys.readouterr()
    assert main(["score", "glue", "--task=rte", f"--labels={glue}/RTE/dev.tsv", f"--predictions={answers}"]) == 0
    assert json.loads(capsys.readouterr().out)["accuracy"] == pytest.approx(last[0]["accuracy"])
    # An answer that is there is not written over.
    assert main(["predict", str(runs[0].path), f"--input={glue}/RTE/test.tsv", f"--output={answers}"]) == 2
    assert "exists" in capsys.readouterr().err


def test_the_same_shape_without_what_was_learnt(pretrained, glue, tmp_path):
    config = ["--config=glue:rte", f"--config.data.source=tsv:{glue}", "--fresh"]
    assert finetune(pretrained, tmp_path, *config) == 0
    run = RunFolder(tmp_path / "seed-0")
    assert run.read_run()["started_from"] is None
    assert json.loads((tmp_path / "summary.json").read_text())["started_from"] is None
    assert run.read_config().model.num_layers == RunFolder(pretrained).read_config().model.num_layers


def test_questions_are_answered(pretrained, folder, tmp_path, capsys):
    def article(number: int) -> dict:
        context = f"The hat is {COLOURS[number % 4]}. The shoe is {COLOURS[(number + 1) % 4]}."
        asked = {"question": "Which colour has the hat?", "answers": [{"text": COLOURS[number % 4], "answer_start": 11}]}
        none = {"question": "Which colour has the coat?", "answers": []}
        qas = [{"id": f"{number}{each['question'][-5]}", "is_impossible": not each["answers"], **each} for each in (asked, none)]
        return {"title": f"Article {number}", "paragraphs": [{"context": context, "qas": qas}]}

    questions = tmp_path / "questions.json"
    questions.write_text(json.dumps({"version": "v2.0", "data": [article(number) for number in range(12)]}))
    config = ["--config=squad:v2", f"--config.data.source=json:{questions}", "--config.data.validation_source="]
    config += ["--config.data.validation_fraction=0.25", "--config.data.stride=8", "--config.data.max_question_length=12"]
    assert finetune(pretrained, tmp_path / "run", *config) == 0
    figures = json.loads((tmp_path / "run" / "summary.json").read_text())["figures"]
    assert {"exact", "f1", "HasAns_f1", "NoAns_f1", "best_f1"} <= set(figures)

    answers, details = tmp_path / "answers.json", tmp_path / "details.json"
    arguments = ["predict", str(tmp_path / "run" / "seed-0"), f"--input={questions}", f"--output={answers}"]
    assert main([*arguments, f"--details={details}", "--null-threshold=-1000000"]) == 0
    assert set(json.loads(answers.read_text()).values()) == {""}
    answers.unlink()
    details.unlink()
    assert main([*arguments, f"--details={details}", "--null-threshold=1000000"]) == 0
    found, sure = json.loads(answers.read_text()), json.loads(details.read_text())
    contexts = {qa["id"]: p["context"] for k in range(12) for p in article(k)["paragraphs"] for qa in p["qas"]}
    assert list(found) == list(contexts)
    assert all(text and text in contexts[number] for number, text in found.items())
    assert all(each["best"][0]["text"] == found[number] for number, each in sure.items())
    assert all(sum(best["probability"] for best in each["best"]) == pytest.approx(1) for each in sure.values())
    capsys.readouterr()
    assert main(["score", "squad", f"--data={questions}", f"--predictions={answers}"]) == 0
    assert json.loads(capsys.readouterr().out)["missing"] == 0


def test_questions_that_are_trained_on_validate_nothing(pretrained, tmp_path, capsys):
    context = "The hat is red. The shoe is green."
    qas = [{"id": str(number), "question": f"What is {number}?", "answers": []} for number in range(9)]
    questions = tmp_path / "questions.json"
    content = {"version": "v2.0", "data": [{"title": "Hats", "paragraphs": [{"context": context, "qas": qas}]}]}
    questions.write_text(json.dumps(content).replace('"answers"', '"is_impossible": true, "answers"'))
    sources = [f"--config.data.{name}=json:{questions}" for name in ("source", "validation_source")]
    config = ["--config=squad:v2", *sources, "--config.data.stride=8", "--config.data.max_question_length=12"]
    assert finetune(pretrained, tmp_path / "run", *config) == 0
    assert "9 of 9 validation examples are also training examples: " in capsys.readouterr().out
    run = RunFolder(tmp_path / "run" / "seed-0")
    assert run.read_run()["data"]["overlap"] == {"count": 9, "of": 9}
    validated = [row["batch"] for row in run.read_metrics().rows if row["split"] == "validation"]
    assert validated and len(set(validated)) == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--config=glue:rte", "--seeds=0,0"], "--seeds=0,0: give whole numbers"),
        (["--config=glue:cola", "--config.data.source=tsv:nowhere", "--config.data.sequence_length=64"], "nowhere"),
        (["--config=glue:rte", "--config.model.num_layers=3"], "num_layers"),
    ],
)
def test_what_cannot_be_fine_tuned_is_said_in_a_line(pretrained, tmp_path, capsys, arguments, said):
    capsys.readouterr()
    assert main(["finetune", str(pretrained), f"--workdir={tmp_path / 'run'}", *arguments]) == 2
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1, error


def test_a_causal_model_reads_no_row_in_both_directions(make_config, tmp_path, capsys):
    RunFolder.open_for_training(
        tmp_path / "clm", make_config("bert", "2l8h", **{"model.objective": "clm", "model.next_sentence": False})
    )
    assert main(["finetune", str(tmp_path / "clm"), f"--workdir={tmp_path / 'run'}", "--config=glue:rte"]) == 2
    assert "is a causal language model" in capsys.readouterr().err


def test_a_translation_model_is_no_encoder(make_config, tmp_path, capsys):
    RunFolder.open_for_training(tmp_path / "translation", make_config("translation", "tiny"))
    assert main(["finetune", str(tmp_path / "translation"), f"--workdir={tmp_path / 'run'}", "--config=glue:rte"]) == 2
    assert "an encoder that was trained on WordPiece tokens" in capsys.readouterr().err


@pytest.fixture
def second_phase(pretrained: Path, folder: Path) -> list[str]:
    """The arguments of a phase on longer rows."""
    config = ["train", "--config=bert:2l8h-phase2", f"--config.train.start_from={pretrained}"]
    config += ["--config.data.sequence_length=128", "--config.data.max_predictions=20", "--config.model.max_positions=128"]
    config += ["--config.model.vocab_size=256", "--config.data.validation_fraction=0.2"]
    return [*config, f"--config.data.source=text:{folder / 'corpus.txt'}"]


def test_a_second_phase_with_another_vocabulary_is_refused(pretrained, second_phase, tmp_path, capsys):
    *tokens, last_but_one, last = (pretrained / "vocab.txt").read_text().splitlines()
    (tmp_path / "other.txt").write_text("".join(f"{token}\n" for token in [*tokens, last, last_but_one]))
    other = f"--config.data.vocab_path={tmp_path / 'other.txt'}"
    assert main([*second_phase, other, f"--workdir={tmp_path / 'refused'}"]) == 2
    assert f"was trained with another vocabulary than the data's; prepare the data with --config.data.vocab_path={pretrained}" in (
        capsys.readouterr().err
    )


@pytest.mark.slow
def test_a_second_phase_goes_on_with_longer_rows(second_phase, tmp_path):
    assert main([*second_phase, f"--workdir={tmp_path / 'second'}"]) == 0
    record = RunFolder(tmp_path / "second").read_run()
    assert record["started_from"]["moments"] is True and record["started_from"]["step"] == 2
    row = RunFolder(tmp_path / "second").read_metrics().rows[0]
    assert row["learning_rate"] == pytest.approx(1e-4 * 4 / 31, rel=1e-6)  # of 40 steps, 10 of warm-up, the 37th
