"""GLUE in TFDS: the same examples and rows as from the original files that TFDS was given."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import pytest

from mhsh.config.fields import SHAPING
from mhsh.config.schema import ClassificationDataConfig, ModelConfig
from mhsh.data.fine_tuning.task import ClassificationCorpus, SpanCorpus, ClassificationTask
from mhsh.data.fine_tuning.glue import GLUE_TASKS, find_file, read_splits
from mhsh.errors import UserError
from tests.conftest import load_fields
from tests.data.conftest import tfds_folder

VOCAB = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "red", "green", "blue", "##ish", ".", '"', *"0123456789"]
WORDS = ["red", "Green", 'blue "blue', "blueish\u2028", "ü", "violet ."]
# A column for each text, how labels are written, and the name of the label's column, as in the
# original files.
LAYOUTS: dict[str, tuple[list[str], list[str], str]] = {
    "cola": (["sentence"], ["0", "1"], ""),
    "sst2": (["sentence"], ["0", "1"], "label"),
    "mrpc": (["#1 String", "#2 String"], ["0", "1"], "Quality"),
    "stsb": (["sentence1", "sentence2"], ["0.000", "4.750", "5.000", "2.333"], "score"),
    "qqp": (["question1", "question2"], ["0", "1"], "is_duplicate"),
    "mnli": (["sentence1", "sentence2"], ["entailment", "contradiction", "neutral"], "gold_label"),
    "qnli": (["question", "sentence"], ["not_entailment", "entailment"], "label"),
    "rte": (["sentence1", "sentence2"], ["not_entailment", "entailment"], "label"),
    "wnli": (["sentence1", "sentence2"], ["0", "1"], "label"),
}


def lines_of(task: str, start: int, count: int) -> list[str]:
    """A file of the task's layout: its header, and examples with numbers of their own."""
    texts, labels, column = LAYOUTS[task]
    lines = [] if task == "cola" else ["\t".join(["id", "#1 ID", "#2 ID", *texts, column])]
    for number in range(start, start + count):
        words = [WORDS[number % len(WORDS)]] * (1 + number % 7)
        sentences = [f"{number} {side} {' '.join(words)}" for side in range(len(texts))]
        label = labels[number % len(labels)]
        # CoLA's columns: source, label, mark, sentence.
        cells = ["x", label, "", *sentences] if task == "cola" else [str(number), str(number), "7", *sentences, label]
        lines.append("\t".join(cells))
    return lines


def write(path: Path, lines: list[str], mark: str = "") -> str:
    path.parent.mkdir(exist_ok=True)
    path.write_text(mark + "".join(line + "\n" for line in lines), encoding="utf-8")
    return str(path)


def write_task(folder: Path, name: str) -> dict[str, tuple[str, str]]:
    """The original files of a task; and the file that TFDS makes each split of (for MRPC the
    examples of both, and the ids).
    """
    task = GLUE_TASKS[name]
    files = {"train": "train.tsv", **dict(task.evaluation_files)}
    splits = {}
    for number, (split, file_name) in enumerate(files.items()):
        lines = lines_of(name, 100 * number, 40 if split == "train" else 9)
        path = write(folder / task.folder / file_name, lines)
        splits[split] = (path, "")
        if name == "mrpc":
            # TFDS takes the examples whose ids are listed, out of a file that begins with a byte
            # order mark.
            others = lines_of(name, 1000, 30)[1:]
            mixed = [lines[0], *others[:10], *lines[1:5], *others[10:], *lines[5:]]
            ids = ["\t".join(line.split("\t")[1:3]) for line in lines]
            splits[split] = (write(folder / "msr" / file_name, mixed, "\ufeff"), write(folder / "msr" / f"ids-{file_name}", ids))
    return splits


def load(task: str, source: str, vocab: Path) -> tuple[ClassificationCorpus, list[list[int]]]:
    """The corpus, and the indices of the examples of every split."""
    model = load_fields("bert", "2l8h")["model"]
    for path in SHAPING:
        model.pop(path.split(".")[1])
    model |= dict(objective="classification", vocab_size=30522, next_sentence=False, num_classes=GLUE_TASKS[task].num_classes)
    data = ClassificationDataConfig(task=task, source=source, vocab_path=str(vocab), lowercase=True, sequence_length=16, seed=0)
    corpus = ClassificationTask(ModelConfig(**model), data).load()
    train, sets = read_splits(GLUE_TASKS[task], data.source)
    return corpus, [[example.index for example in examples] for examples in (train, *sets.values())]


@pytest.fixture(scope="module")
def vocab(tmp_path_factory) -> Path:
    return Path(write(tmp_path_factory.mktemp("vocab") / "vocab.txt", VOCAB))


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """The original files of all tasks, and, under `prepared`, the data sets that TFDS made of them
    and of others.
    """
    from tests.data.tfds_builders import prepare_glue

    folder = tmp_path_factory.mktemp("glue")
    splits = {name: write_task(folder, name) for name in GLUE_TASKS}
    only_train = {"train": splits["rte"]["train"]}
    sets: list[tuple[str, str, dict[str, tuple[str, str]], dict[str, Any]]] = [(task, "2.0.0", splits[task], {}) for task in splits]
    # Older versions, which are broken here.
    sets += [
        ("rte", "1.0.0", splits["rte"], {"label_classes": ["not_entailment", "entailment"]}),
        ("rte", "1.0.1", only_train, {"label_classes": ["entailment", "not_entailment"]}),
        ("wnli", "1.0.0", splits["wnli"], {"label_column": "no such column"}),
        ("stsb", "1.0.0", splits["stsb"], {"label_column": "no such column"}),
        ("stsb", "1.0.1", splits["stsb"], {"label_column": "no such column", "label_classes": ["unlike", "like"]}),
        ("qnli", "1.0.0", splits["qnli"], {"text_features": {"premise": "question", "sentence": "sentence"}}),
    ]
    for task, version, files, changes in sets:
        prepare_glue(folder / "prepared", task, version, files, changes)
    return folder


@pytest.mark.parametrize("task", GLUE_TASKS.values(), ids=GLUE_TASKS)
def test_the_same_rows_in_the_same_order_as_from_the_original_files(folder, vocab, task):
    original, _ = load(task.name, f"tsv:{folder}", vocab)
    with tfds_folder(folder / "prepared"):
        corpus, indices = load(task.name, "tfds:glue", vocab)
        named, _ = load(task.name, "tfds:glue:2.0.0", vocab)
    assert corpus.fingerprint == named.fingerprint == original.fingerprint
    summary = corpus.summary()
    assert summary == named.summary() == original.summary()
    assert summary["cut_texts"] > 0 and summary["train"]["rows"] == 40
    # TFDS counts MRPC's examples before it divides them.
    assert indices[0] == ([*range(10, 14), *range(34, 70)] if task.name == "mrpc" else [*range(40)])
    if task.name == "mnli":
        assert summary["validation"] == {"rows": 18, "validation_matched": 9, "validation_mismatched": 9}


def test_what_is_wrong_with_a_data_set_is_named_in_one_line(folder, vocab):
    cases = {
        ("rte", "1.0.0"): (
            "tfds:glue/rte:1.0.0:train numbers the labels of rte as not_entailment, entailment, GLUE as entailment, "
            "not_entailment; class numbers would change their meaning"
        ),
        ("rte", "1.0.1"): "tfds:glue/rte:1.0.1:validation: there is no split 'validation'; allowed: train",
        ("rte", "3.0.0"): "tfds:glue/rte:3.0.0 is not prepared in .*; run: tfds build glue/rte:3.0.0 --file_format=array_record",
        ("wnli", "1.0.0"): (
            r"tfds:glue/wnli:1.0.0:train: the record with idx \d+ has the label -1, which is not from 0 to 1 \(-1: none, as in "
            r"test sets\); prepare the data set again"
        ),
        ("stsb", "1.0.0"): r"tfds:glue/stsb:1.0.0:train: the record with idx \d+ has the label -1, which is not from 0 to 5",
        ("stsb", "1.0.1"): "tfds:glue/stsb:1.0.1:train numbers the labels of stsb as unlike, like, GLUE as a score",
        (
            "qnli",
            "1.0.0",
        ): "tfds:glue/qnli:1.0.0:train has the features idx, label, premise, sentence, but not 'question'; name a data set",
    }
    for (task, version), expected in cases.items():
        with tfds_folder(folder / "prepared"), pytest.raises(UserError, match=f"^{expected}") as caught:
            load(task, f"tfds:glue:{version}", vocab)
        assert "\n" not in str(caught.value)


@pytest.mark.realdata
def test_the_real_files(real_data, tmp_path):
    """Of the smaller tasks; of MRPC, TFDS takes other files than GLUE has."""
    from tests.data.tfds_builders import prepare_glue

    vocab = real_data / "vocab" / "bert-base-uncased-vocab.txt"
    for name in ("cola", "stsb", "rte", "wnli"):
        task = GLUE_TASKS[name]
        splits = {}
        for split, file_name in (("train", "train.tsv"), ("validation", "dev.tsv")):
            path = tmp_path / f"{name}-{file_name}"
            path.write_bytes(gzip.decompress(find_file(task, real_data / "glue", file_name).read_bytes()))
            splits[split] = (str(path), "")
        prepare_glue(tmp_path / "prepared", name, "2.0.0", splits)
        original, _ = load(name, f"tsv:{real_data / 'glue'}", vocab)
        with tfds_folder(tmp_path / "prepared"):
            corpus, _ = load(name, "tfds:glue", vocab)
        assert (corpus.fingerprint, corpus.summary()) == (original.fingerprint, original.summary()), name
