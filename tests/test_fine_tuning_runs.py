"""A pre-trained run fine-tuned, with two seeds and without its parameters; predictions, scores."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from mhsh import configs
from mhsh.cli.finetune import fine_tuning_fields, summarise
from mhsh.config.fields import parse_value
from mhsh.config.resolve import from_dict
from mhsh.storage.run_folder import RunFolder
from tests.runs import mhsh_here

SHORT = [
    "--config.train.num_steps=4",
    "--config.train.batch_size=8",
    "--config.train.log_interval=1",
    "--config.optimizer.warmup_steps=1",
    "--config.data.sequence_length=32",
    "--config.model.remat_policy=none",  # `auto` would trace to choose it
]
RATE = "--config.optimizer.learning_rate=0.003"
COLOURS = ["red", "green", "blue", "gold"]


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
    ran("train", "--config=bert:2l8h", f"--config.data.source=text:{corpus}", f"--workdir={run}", *changes)
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


def ran(*arguments: str) -> str:
    """What a command prints that must succeed."""
    done = mhsh_here(*arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


def refused(*arguments: str) -> str:
    """The line with which a command refuses."""
    done = mhsh_here(*arguments)
    assert done.returncode == 2 and done.stderr.count("\n") == 1, done.stderr
    return done.stderr


def test_a_task_with_two_seeds(pretrained, glue, tmp_path):
    workdir = tmp_path / "rte"
    finetune = ["finetune", str(pretrained), "--config=glue:rte", f"--config.data.source=tsv:{glue}", *SHORT, RATE]
    finetune += ["--seeds=0,7", f"--workdir={workdir}"]
    assert ran(*finetune).endswith(
        f"next: mhsh predict {workdir}/seed-0 --input=FILE --output=FILE, or mhsh export {workdir}/seed-0 --out=DIR\n"
    )
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
    last = [[*run.rows()][-1] for run in runs]
    for name in ("accuracy", "loss"):
        values = [row[name] for row in last]
        assert summary[name]["by_seed"] == {"0": values[0], "7": values[1]}
        assert summary[name]["mean"] == pytest.approx(sum(values) / 2)
        assert summary[name]["deviation"] == pytest.approx(abs(values[0] - values[1]) / 2**0.5)
    assert last[0]["loss"] != last[1]["loss"]
    # Given again, nothing is trained again.
    metrics = [(run.path / "metrics.jsonl").read_bytes() for run in runs]
    ran(*finetune)
    assert [(run.path / "metrics.jsonl").read_bytes() for run in runs] == metrics
    with runs[1].hold():
        assert "seed-7 is in use: process" in refused(*finetune)

    answers = tmp_path / "answers.tsv"
    predict = ["predict", str(runs[0].path), f"--input={glue}/RTE/test.tsv", f"--output={answers}"]
    ran(*predict)
    answered = [line.split("\t") for line in answers.read_text().split("\n")[1:-1]]
    assert [number for number, _ in answered] == [str(number) for number in range(16)]
    labels = [line.split("\t")[3] for line in (glue / "RTE" / "dev.tsv").read_text().split("\n")[1:-1]]
    right = [answer == label for (_, answer), label in zip(answered, labels, strict=True)]
    assert sum(right) / len(right) == pytest.approx(last[0]["accuracy"])
    # An answer that is there is not written over.
    assert "exists" in refused(*predict)


def test_the_rate_that_is_best_on_the_validation_data_is_chosen(pretrained, glue, tmp_path):
    # The task may have the name of its folder, too.
    rates = ["--rates=1e38,0.3,1e-9", "--config.train.max_skipped_steps=2"]
    together = ["--seeds=0", *rates, "--config.data.task=RTE", f"--workdir={tmp_path / 'both'}"]
    said = ran("finetune", str(pretrained), "--config=glue:rte", f"--config.data.source=tsv:{glue}", *SHORT, *together)
    summary = json.loads((tmp_path / "both/summary.json").read_text())
    best, scores = summary["best"], summary["scores"]
    assert set(scores) == {"lr-0.3", "lr-1e-9"} and best == max(scores, key=lambda name: scores[name])
    assert f"Best on the validation data: {best}\n" in said and "lr-1e38 is left out: " in said
    *_, last = RunFolder(tmp_path / "both" / best / "seed-0").rows()
    figures = {name: {"by_seed": {"0": last[name]}, "mean": last[name], "deviation": None} for name in summary["figures"]}
    assert summary == {"started_from": str(pretrained), "figures": figures, "best": best, "scores": scores}
    assert scores[best] == last["accuracy"]


def test_no_rate_is_best_where_no_score_is_a_number(pretrained, tmp_path):
    """Predictions that are all equal correlate with nothing."""
    (tmp_path / "STS-B").mkdir()
    for name in ("train", "dev"):
        (tmp_path / "STS-B" / f"{name}.tsv").write_text("sentence1\tsentence2\tscore\n" + "red\tred\t5\n" * 8)
    chosen = ["--seeds=0", "--rates=1e-9,2e-9", f"--workdir={tmp_path / 'runs'}", f"--config.data.source=tsv:{tmp_path}"]
    said = refused("finetune", str(pretrained), "--config=glue:stsb", *SHORT, *chosen)
    assert "not a number at any rate" in said and not (tmp_path / "runs/summary.json").exists()


@pytest.mark.parametrize("undefined", [math.nan, math.inf])
def test_a_correlation_that_one_seed_has_not_is_no_number_of_all(undefined):
    pearson = summarise({0: {"pearson": 0.5}, 1: {"pearson": undefined}})["pearson"]
    assert math.isnan(pearson["deviation"]) and not math.isfinite(pearson["mean"])
    assert pearson["by_seed"] == {"0": 0.5, "1": undefined}


def test_questions_are_answered_by_a_model_that_starts_afresh(pretrained, tmp_path):
    def article(number: int) -> dict:
        context = f"The hat is {COLOURS[number % 4]}. The shoe is {COLOURS[(number + 1) % 4]}."
        asked = {"question": "Which colour has the hat?", "answers": [{"text": COLOURS[number % 4], "answer_start": 11}]}
        none = {"question": "Which colour has the coat?", "answers": []}
        qas = [{"id": f"{number}{each['question'][-5]}", "is_impossible": not each["answers"], **each} for each in (asked, none)]
        return {"title": f"Article {number}", "paragraphs": [{"context": context, "qas": qas}]}

    questions = tmp_path / "questions.json"
    questions.write_text(json.dumps({"version": "v2.0", "data": [article(number) for number in range(12)]}))
    config = ["--config=squad:v2", *(f"--config.data.{name}=json:{questions}" for name in ("source", "validation_source"))]
    config += ["--config.data.stride=8", "--config.data.max_question_length=12"]
    said = ran("finetune", str(pretrained), *config, *SHORT, RATE, "--fresh", f"--workdir={tmp_path / 'run'}")
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    figures = summary["figures"]
    assert {"exact", "f1", "HasAns_f1", "NoAns_f1", "best_f1"} <= set(figures)
    assert "24 of 24 validation examples are also training examples: " in said
    trained = RunFolder(tmp_path / "run" / "seed-0")
    assert trained.read_run()["started_from"] is None and summary["started_from"] is None
    assert trained.read_run()["data"]["overlap"] == {"count": 24, "of": 24}
    validated = [row["batch"] for row in trained.rows() if row["split"] == "validation"]
    assert validated and len(set(validated)) == 1

    answers = tmp_path / "answers.json"
    arguments = ["predict", str(tmp_path / "run" / "seed-0"), f"--input={questions}", f"--output={answers}"]
    ran(*arguments, "--null-threshold=-1000000")
    assert set(json.loads(answers.read_text()).values()) == {""}
    answers.unlink()
    ran(*arguments, "--null-threshold=1000000")
    found = json.loads(answers.read_text())
    contexts = {qa["id"]: p["context"] for k in range(12) for p in article(k)["paragraphs"] for qa in p["qas"]}
    assert list(found) == list(contexts)
    assert all(text and text in contexts[number] for number, text in found.items())


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--config=glue:rte", "--seeds=0,0"], "--seeds=0,0: give whole numbers"),
        (["--config=glue:cola", "--config.data.source=tsv:nowhere", "--config.data.sequence_length=64"], "nowhere"),
        (["--config=glue:rte", "--config.model.num_layers=3"], "num_layers"),
    ],
)
def test_what_cannot_be_fine_tuned_is_said_in_a_line(pretrained, tmp_path, arguments, said):
    assert said in refused("finetune", str(pretrained), f"--workdir={tmp_path / 'run'}", *arguments)


@pytest.mark.parametrize(
    ("variant", "changes", "said"),
    [
        ("bert:2l8h", {"model.objective": "clm", "model.next_sentence": False}, "is a causal language model"),
        ("translation:tiny", {}, "an encoder that was trained on WordPiece tokens"),
    ],
)
def test_what_is_no_encoder_is_not_fine_tuned(make_config, tmp_path, variant, changes, said):
    RunFolder.open_for_training(tmp_path / "other", make_config(*variant.split(":"), **changes))
    assert said in refused("finetune", str(tmp_path / "other"), f"--workdir={tmp_path / 'run'}", "--config=glue:rte")


@pytest.mark.parametrize("name", ["run", "bert@2"])  # which is no step of `bert`
def test_seeds_that_start_from_several_checkpoints_have_no_mean(make_config, tmp_path, name):
    """As where a seed is added after the run has trained on."""
    run = RunFolder.open_for_training(tmp_path / name, make_config("bert", "2l8h"))
    begun = RunFolder.make(tmp_path / "rte/seed-0")
    begun.write_run({"started_from": {"lineage": [{"step": 2, "folder": str(run.path)}]}})
    for each, step in ((run, 4), (begun, 4)):
        (each.checkpoints_path / str(step)).mkdir(parents=True)
    said = refused("finetune", str(run.path), "--config=glue:rte", *SHORT, "--seeds=0,1", f"--workdir={tmp_path / 'rte'}")
    assert f"{begun.path} from step 2 and {tmp_path / 'rte/seed-1'} from step 4; fine-tune all" in said


@pytest.mark.parametrize("is_imported", [False, True])
def test_a_run_to_start_from_that_was_moved_is_known_again(make_config, tmp_path, is_imported):
    """It is not another run, and what it has trained on since is seen."""
    run = RunFolder.open_for_training(tmp_path / "before/run", make_config("bert", "2l8h"))

    def save(step: int, seconds: float) -> None:
        (run.checkpoints_path / str(step)).mkdir(parents=True, exist_ok=True)
        if is_imported:
            (run.path / "imported.json").write_text(json.dumps({"sha256": {"model.safetensors": f"{seconds > 0.25}"}}))
            return
        counters = {"tokens": step, "flops": step, "seconds": seconds, "rows": 0}
        (run.checkpoints_path / str(step) / "counters.json").write_text(json.dumps(counters))

    save(2, 0.125)
    fields = fine_tuning_fields(run, configs.load_fields("glue:rte"), 0, fresh=False)
    for path, value in (pair.removeprefix("--config.").split("=") for pair in SHORT):
        fields = configs.override(fields, [(path, parse_value(path, value))], "--config.")
    begun = RunFolder.open_for_training(tmp_path / "before/rte/seed-0", from_dict(fields))
    begun.write_run({"started_from": {"lineage": run.lineage(2)}})
    (begun.checkpoints_path / "1").mkdir(parents=True)
    (tmp_path / "before").rename(tmp_path / "after")
    run, workdir = RunFolder(tmp_path / "after/run"), tmp_path / "after/rte"
    finetune = ["finetune", str(run.path), "--config=glue:rte", *SHORT, "--seeds=0,1", f"--workdir={workdir}"]
    save(4, 0.25)
    assert f"{workdir / 'seed-0'} from step 2 and {workdir / 'seed-1'} from step 4; fine-tune all" in refused(*finetune)
    save(2, 0.5)  # of another run
    assert "holds a run of another config (train.start_from" in refused(*finetune)


@pytest.fixture
def second_phase(pretrained: Path, folder: Path) -> list[str]:
    """The arguments of a phase on longer rows."""
    config = ["train", "--config=bert:2l8h-phase2", f"--config.train.start_from={pretrained}"]
    config += ["--config.data.sequence_length=128", "--config.data.max_predictions=20", "--config.model.max_positions=128"]
    config += ["--config.model.vocab_size=256", "--config.data.validation_fraction=0.2", "--config.model.remat_policy=none"]
    return [*config, f"--config.data.source=text:{folder / 'corpus.txt'}"]


def test_a_second_phase_with_another_vocabulary_is_refused(pretrained, second_phase, tmp_path):
    *tokens, last_but_one, last = (pretrained / "vocab.txt").read_text().splitlines()
    (tmp_path / "other.txt").write_text("".join(f"{token}\n" for token in [*tokens, last, last_but_one]))
    other = f"--config.data.vocab_path={tmp_path / 'other.txt'}"
    said = refused(*second_phase, other, f"--workdir={tmp_path / 'refused'}")
    remedy = f"prepare the data with --config.data.vocab_path={pretrained}"
    assert f"was trained with another vocabulary than the data's; {remedy}" in said


@pytest.mark.slow
def test_a_second_phase_goes_on_with_longer_rows(second_phase, tmp_path):
    ran(*second_phase, f"--workdir={tmp_path / 'second'}")
    record = RunFolder(tmp_path / "second").read_run()
    assert record["started_from"]["moments"] is True and record["started_from"]["step"] == 2
    row = next(RunFolder(tmp_path / "second").rows())
    assert row["learning_rate"] == pytest.approx(1e-4 * 4 / 31, rel=1e-6)  # of 40 steps, 10 of warm-up, the 37th
