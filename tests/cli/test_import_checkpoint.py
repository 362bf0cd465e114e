"""`mhsh import` on the command line: checkpoints into run folders and, by `mhsh export`, out again;
mistakes in one line.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file

from mhsh.cli.main import main
from mhsh.storage.run_folder import RunFolder
from mhsh.training.checkpoints.checkpoint import Checkpoints
from mhsh.training.optimizer import build_optimizer
from mhsh.training.state import TrainState, abstract_state
from tests.interop.small_bert import GOLDEN, TOKENS
from tests.runs import mhsh
from tests.training.states import mesh_of

CONFIG = "--config=bert:2l8h"
# The golden checkpoints have 16 positions.
COLA = ["--task=glue:cola", "--task.data.sequence_length=12"]
MNLI = ["--task=glue:mnli", "--task.data.sequence_length=12"]
SHORT = ["--config.data.sequence_length=12", "--config.data.max_predictions=4"]


@pytest.fixture
def golden(tmp_path) -> Path:
    """A checkpoint that transformers saved, its vocabulary with it."""
    return Path(shutil.copytree(GOLDEN / "pretraining", tmp_path / "there"))


def test_a_checkpoint_becomes_a_run_and_goes_out_again(capsys, tmp_path, golden):
    out = tmp_path / "run"
    assert main(["import", str(golden), CONFIG, *SHORT, "--config.train.seed=3", f"--out={out}"]) == 0
    head, printed = capsys.readouterr().out.split(str(out), 1)
    assert main(["inspect", str(golden)]) == 0
    assert capsys.readouterr().out.startswith(head) and head.count("\n") == 2
    assert printed.startswith(f": BertForPreTraining of {golden}, 2 layers x 3 heads of 4, D = 12, F = 20")

    folder = RunFolder(out)
    config = folder.read_config()
    assert (config.model.residual, config.model.num_heads, config.model.vocab_size) == ("post_ln", 3, 31)
    assert config.data.tokenizer == "wordpiece" and config.train.seed == 3
    assert (out / "vocab.txt").read_text(encoding="utf-8").split("\n")[:-1] == list(TOKENS)
    record = json.loads((out / "imported.json").read_text())
    assert record["source"] == str(golden) and len(record["sha256"]["model.safetensors"]) == 64

    # What a run that goes on asks for, on another mesh: parameters, an untouched optimiser, step 0.
    optimizer = build_optimizer(config)
    checkpoints = Checkpoints(folder.checkpoints_path, keep=1)
    assert checkpoints.steps() == [0]
    state: TrainState = checkpoints.restore(0, abstract_state(config, optimizer, mesh_of(8, 1, 1)))
    fresh = optimizer.init(state.params)
    assert jax.tree.structure(state.opt_state) == jax.tree.structure(fresh)
    jax.tree.map(np.testing.assert_array_equal, state.opt_state, fresh)
    assert int(state.step) == 0
    table = load_file(golden / "model.safetensors")["bert.embeddings.word_embeddings.weight"]
    np.testing.assert_array_equal(state.params["embeddings"]["token"], table)

    # And out again, bit for bit.
    again = tmp_path / "again"
    assert main(["export", str(out), f"--out={again}"]) == 0
    assert f"{again}: BertForPreTraining of {out}, step 0, 2 layers x 3 heads of 4" in capsys.readouterr().out
    before, after = load_file(golden / "model.safetensors"), load_file(again / "model.safetensors")
    assert before.keys() == after.keys() and all(before[name].tobytes() == after[name].tobytes() for name in before)
    assert (again / "vocab.txt").read_bytes() == (golden / "vocab.txt").read_bytes()
    assert (again / "model.safetensors").stat().st_mode == (again / "config.json").stat().st_mode
    written = {"README.md", "config.json", "model.safetensors", "tokenizer_config.json", "vocab.txt"}
    assert {path.name for path in again.iterdir()} == written


def test_characters_that_its_vocabulary_lacks(fails, tmp_path, golden):
    """The training of an import counts them as any training does."""
    (tmp_path / "corpus.txt").write_text("\n\n".join(f"漢字かな {n}" for n in range(60)), encoding="utf-8")
    corpus, out = f"--config.data.source=text:{tmp_path}/corpus.txt", tmp_path / "run"
    assert main(["import", str(golden), CONFIG, *SHORT, corpus, f"--out={out}"]) == 0
    error = fails("train", f"--workdir={out}")
    assert "% of the characters" in error and "data.tokenizer=bytes" in error


@pytest.mark.slow
def test_fresh_heads_are_those_that_training_would_start_from(capsys, tmp_path, golden):
    """And they are named; so is what is left out."""
    out = tmp_path / "run"
    arguments = ["import", str(golden), CONFIG, *SHORT, "--config.model.next_sentence=False", "--fresh-heads", f"--out={out}"]
    assert main(arguments) == 0
    printed = capsys.readouterr().out
    assert "drawn fresh by train.seed = 0: prediction/kernel, prediction/bias, prediction/norm/scale" in printed
    assert "left out, as nothing reads them: bert.pooler.dense.bias, bert.pooler.dense.weight, cls.predictions.bias" in printed
    config = RunFolder(out).read_config()
    optimizer = build_optimizer(config)
    checkpoints = Checkpoints(RunFolder(out).checkpoints_path, keep=1)
    params = checkpoints.restore_params(0, abstract_state(config, optimizer, mesh_of(1, 1, 1)).params)
    kernel = np.asarray(params["prediction"]["kernel"])
    assert 0.01 < kernel.std() < 0.03 and not np.any(params["prediction"]["output_bias"])
    tensors = load_file(golden / "model.safetensors")
    assert not np.array_equal(kernel.T, tensors["cls.predictions.transform.dense.weight"])


def test_a_fine_tuned_checkpoint_needs_its_task(capsys, fails, tmp_path):
    """The task's config goes over one for pre-training; its classes are put into the task's order,
    and get their names on the way out.
    """
    there = Path(shutil.copytree(GOLDEN / "classification", tmp_path / "there"))
    out, again = tmp_path / "run", tmp_path / "again"
    arguments = ["import", str(there), CONFIG, *MNLI, f"--out={out}"]
    assert "the checkpoint calls its classes LABEL_0, LABEL_1, LABEL_2, which does not say" in fails(*arguments)
    assert main([*arguments, "--labels=contradiction,entailment,neutral"]) == 0
    printed = capsys.readouterr().out
    assert "note: its classes are contradiction, entailment, neutral; they are put into the order of mnli" in printed
    assert "classes: entailment, neutral, contradiction\n" in printed
    config = RunFolder(out).read_config()
    assert (config.model.objective, config.model.num_classes, config.data.task) == ("classification", 3, "mnli")
    assert main(["export", str(out), f"--out={again}"]) == 0
    written = json.loads((again / "config.json").read_text())
    assert written["id2label"] == {"0": "entailment", "1": "neutral", "2": "contradiction"}
    before, after = (load_file(folder / "model.safetensors") for folder in (there, again))
    for name, values in before.items():
        moved = values[[1, 2, 0]] if name.startswith("classifier.") else values
        assert moved.tobytes() == after[name].tobytes()
    assert "it has 3 labels, the --config has model.num_classes = 2" in fails(
        "import", str(there), CONFIG, *COLA, f"--out={tmp_path / 'cola'}"
    )


def test_no_flag_is_dropped(fails, tmp_path):
    """What a checkpoint, a task or another flag decides is refused by name; beside --task, --config
    changes what the task leaves open, and what it does not.
    """
    there = str(GOLDEN / "classification")
    labels = "--labels=entailment,neutral,contradiction"
    start = ["import", there, CONFIG, "--task=glue:mnli", labels, f"--out={tmp_path / 'run'}", "--config.data.sequence_length=12"]
    decided = "has no effect: the checkpoint or the other flag makes it"
    for flag, said in {
        "--config.model.num_layers=4": f"--config.model.num_layers=4 {decided} 2; leave",
        "--config.model.heads_per_layer=1": "--config.model.heads_per_layer changes the shape of a fresh model; a checkpoint keeps",
        "--config.data.max_predictions=3": "--config.data.max_predictions: the config has no field 'data.max_predictions'",
        "--task.data.sequence_length=8": f"--task.data.sequence_length=8 {decided} 12",
    }.items():
        assert said in fails(*start, flag)
    assert main([*start, "--config.optimizer.learning_rate=0.5", "--config.train.seed=7", "--config.model.num_layers=2"]) == 0
    config = RunFolder(tmp_path / "run").read_config()
    assert (config.data.sequence_length, config.optimizer.learning_rate, config.train.seed) == (12, 0.5, 7)


@pytest.mark.parametrize("flags", [SHORT, [*COLA, "--fresh-heads"]], ids=["pre-training", "task"])
def test_an_imported_run_starts_from_no_other(fails, tmp_path, golden, flags):
    """Not with the config of a second phase either, which keeps the moments of the first."""
    arguments = ["import", str(golden), "--config=bert:2l8h-phase2", *flags, f"--out={tmp_path / 'run'}"]
    said = fails(*arguments, "--config.train.start_from=runs/first")
    assert "--config.train.start_from=runs/first has no effect: the checkpoint" in said and not (tmp_path / "run").exists()
    assert main(arguments) == 0
    train = RunFolder(tmp_path / "run").read_config().train
    assert (train.start_from, train.keep_moments) == ("", False)


def test_vocabularies(fails, tmp_path, golden):
    """Of the checkpoint; of --config where it has none; never one that does not fit."""
    out = f"--out={tmp_path / 'run'}"
    arguments = ["import", str(golden), CONFIG, *SHORT, out]
    (golden / "vocab.txt").rename(tmp_path / "vocab.txt")
    assert "holds no vocab.txt and no tokenizer.json" in fails(*arguments)
    (golden / "vocab.txt").write_text("\n".join([*TOKENS, *(f"w{n}" for n in range(20))]) + "\n", encoding="utf-8")
    assert "the vocabulary has 38 tokens, the checkpoint's token table 31" in fails(*arguments)
    (golden / "vocab.txt").unlink()
    assert not (tmp_path / "run").exists()

    assert main([*arguments, f"--config.data.vocab_path={tmp_path / 'vocab.txt'}", "--config.data.lowercase=False"]) == 0
    data = RunFolder(tmp_path / "run").read_config().data
    assert data.vocab_path == str(tmp_path / "vocab.txt") and not data.lowercase


def test_what_the_tokenizer_says_goes_before_the_config(fails, tmp_path, golden):
    (golden / "tokenizer_config.json").write_text('{"do_lower_case": false}')
    arguments = ["import", str(golden), CONFIG, *SHORT, f"--out={tmp_path / 'run'}"]
    for flag, kept in (("--config.data.vocab_path=/nowhere", "''"), ("--config.data.lowercase=true", "False")):
        assert f"{flag} has no effect: the checkpoint makes it {kept}; leave out that flag" in fails(*arguments, flag)
    assert main(arguments) == 0
    data = RunFolder(tmp_path / "run").read_config().data
    assert data.vocab_path == "" and not data.lowercase


def test_checkpoints_that_do_not_fit_the_config(fails, capsys, tmp_path, golden):
    out = f"--out={tmp_path / 'run'}"
    said = "--labels names the classes of a head for GLUE; add --task=glue:TASK, or leave it out"
    assert said in fails("import", str(golden), CONFIG, *SHORT, out, "--labels=a,b")
    assert "its heads are of objective 'mlm', the --config has" in fails("import", str(golden), "--config=translation:6l8h", out)
    assert "the --config has model.objective = 'classification'" in fails("import", str(golden), CONFIG, *COLA, out)
    # The positions are the checkpoint's, the length of the rows is the config's.
    arguments = ["import", str(golden), CONFIG, out]
    error = fails(*arguments)
    assert "the checkpoint has 16 positions, fewer than data.sequence_length = 64; add --config.data.sequence_length=16" in error
    assert not (tmp_path / "run").exists()
    assert main([*arguments, error.split()[-1]]) == 0, "the advice, followed once"
    note = "note: the checkpoint has 16 positions, the config 64; rows have data.sequence_length = 16 tokens"
    assert note in capsys.readouterr().out


def test_a_checkpoint_may_have_more_positions_than_the_config(tmp_path, golden):
    """Its own count, whatever the config's is."""
    few = ["--config.model.max_positions=16", "--config.data.sequence_length=16"]
    at_eight = "def get_config():\n    from mhsh import configs\n    fields = configs.load_fields('bert:2l8h')\n"
    at_eight += "    fields['model']['max_positions'] = 8\n    fields['data']['sequence_length'] = 8\n    return fields\n"
    (tmp_path / "eight.py").write_text(at_eight)
    for number, flags in enumerate(([f"--config={tmp_path}/eight.py", "--config.data.sequence_length=12"], [CONFIG, *few])):
        assert main(["import", str(golden), *flags, "--config.data.max_predictions=4", f"--out={tmp_path / str(number)}"]) == 0
        assert RunFolder(tmp_path / str(number)).read_config().model.max_positions == 16


@pytest.mark.slow
def test_training_goes_on_from_a_checkpoint(tmp_path, golden):
    """In processes of their own: imported, scored, trained as was printed, exported."""
    (tmp_path / "corpus.txt").write_text("\n\n".join("The number goes. " * 5 + "the " * n for n in range(60)), encoding="utf-8")
    own = [CONFIG, *SHORT, f"--config.data.source=text:{tmp_path}/corpus.txt", "--config.train.num_steps=4"]
    own += ["--config.optimizer.warmup_steps=0", "--config.train.eval_interval=0"]

    def said_by(*arguments: str) -> str:
        done = mhsh(*arguments)
        assert done.returncode == 0, done.stderr
        return done.stdout

    said = said_by("import", str(golden), *own, f"--out={tmp_path / 'run'}")
    assert said.endswith(f"to train it further: mhsh train --workdir={tmp_path / 'run'}\n")
    assert json.loads(said_by("eval", str(tmp_path / "run")))["step"] == 0
    # A batch may be larger than all rows, where nothing trains.
    said_by("import", str(golden), *own, "--config.train.batch_size=2048", f"--out={tmp_path / 'wide'}")
    assert json.loads(said_by("eval", str(tmp_path / "wide")))["batches"] == 1
    assert "resuming from the checkpoint of step 0" in said_by("train", f"--workdir={tmp_path / 'run'}")
    assert RunFolder(tmp_path / "run").newest_checkpoint() == 4
    assert RunFolder(tmp_path / "run").read_run()["imported"] is not None
    assert "step 4" in said_by("export", str(tmp_path / "run"), f"--out={tmp_path / 'again'}")
    before, after = (load_file(folder / "model.safetensors") for folder in (golden, tmp_path / "again"))
    assert all(0 < np.abs(before[name] - after[name]).max() < 0.1 for name in before)
