"""GLUE's examples as rows: their tokens, what is cut, the weights of filler rows, the sets of
MNLI.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mhsh.config.fields import SHAPING
from mhsh.config.schema import ClassificationDataConfig, ModelConfig
from mhsh.data.fine_tuning.task import ClassificationTask, kept_lengths
from mhsh.data.fine_tuning.glue import GLUE_TASKS, read_splits
from mhsh.errors import UserError
from tests.conftest import load_fields

VOCAB = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "red", "green", "blue", "##ish", "."]
PAD, UNK, CLS, SEP = 0, 1, 2, 3
RED, GREEN, BLUE, ISH, STOP = 5, 6, 7, 8, 9


def data_config(task: str, source: str, vocab_path: str, length: int) -> ClassificationDataConfig:
    return ClassificationDataConfig(task=task, source=source, vocab_path=vocab_path, lowercase=True, sequence_length=length, seed=0)


@pytest.fixture
def load(make_config, tmp_path: Path):
    """load("rte", {"train.tsv": [...]}, num_classes=2, sequence_length=12): the corpus of these
    lines.
    """

    def make(task: str, files: dict[str, list[str]], *, sequence_length: int = 12, folder: str = "RTE", **changes: Any):
        (tmp_path / folder).mkdir()
        for name, lines in files.items():
            (tmp_path / folder / name).write_text("".join(line + "\n" for line in lines))
        (tmp_path / "vocab.txt").write_text("".join(token + "\n" for token in VOCAB))
        shape = load_fields("bert", "2l8h")["model"]
        for path in SHAPING:
            shape.pop(path.split(".")[1])
        model = ModelConfig(**shape | dict(objective="classification", next_sentence=False, num_classes=2) | changes)
        data = data_config(task, f"tsv:{tmp_path}", str(tmp_path / "vocab.txt"), sequence_length)
        return ClassificationTask(model, data).load()

    return make


HEADER = "index\tsentence1\tsentence2\tlabel"
LINES = [
    HEADER,
    "0\tRed green.\tBlueish\tnot_entailment",
    "1\tred red red red red red red red\tgreen green green\tentailment",
    "2\tred\tviolet\tentailment",
]


def test_the_rows_of_pairs(load):
    corpus = load("rte", {"train.tsv": LINES, "dev.tsv": LINES[:2]})
    np.testing.assert_array_equal(
        corpus.train.all()["inputs"],
        [
            [CLS, RED, GREEN, STOP, SEP, BLUE, ISH, SEP, PAD, PAD, PAD, PAD],
            [CLS, RED, RED, RED, RED, RED, RED, SEP, GREEN, GREEN, GREEN, SEP],  # two of the longer text went
            [CLS, RED, SEP, UNK, SEP, PAD, PAD, PAD, PAD, PAD, PAD, PAD],
        ],
    )
    np.testing.assert_array_equal(corpus.train.all()["token_types"][0], [0] * 5 + [1] * 3 + [0] * 4)
    np.testing.assert_array_equal(corpus.train.all()["inputs_segmentation"][0], [1] * 8 + [0] * 4)
    np.testing.assert_array_equal(corpus.train.all()["inputs_position"][0], [*range(8), 0, 0, 0, 0])
    np.testing.assert_array_equal(corpus.train.all()["targets"], [1, 0, 0])
    assert corpus.summary()["cut_texts"] == 1
    assert corpus.summary()["overlap"] == {"count": 1, "of": 1}
    assert corpus.unigram_entropy == pytest.approx(-(1 / 3) * np.log(1 / 3) - (2 / 3) * np.log(2 / 3))


def test_every_epoch_has_every_row_once_and_validation_counts_none_twice(load):
    corpus = load("rte", {"train.tsv": LINES, "dev.tsv": LINES})
    batches = [corpus.train_steps(1)[step] for step in range(6)]
    for epoch in (batches[:3], batches[3:]):
        assert sorted(tuple(batch["inputs"][0]) for batch in epoch) == sorted(map(tuple, corpus.train.all()["inputs"]))
    assert all(batch["weights"].tolist() == [1.0] for batch in batches)
    validation = corpus.validation_batches(2)
    assert len(validation) == 2
    np.testing.assert_array_equal(
        np.concatenate([validation[k]["inputs"] for k in range(2)])[:3], corpus.validation.all()["inputs"]
    )
    np.testing.assert_array_equal([validation[k]["weights"] for k in range(2)], [[1, 1], [1, 0]])


def test_scores_are_numbers(load):
    lines = ["index\tgenre\tsentence1\tsentence2\tscore", "0\tx\tred\tgreen\t2.500", "1\tx\tred\tred\t5.000"]
    corpus = load("stsb", {"train.tsv": lines, "dev.tsv": lines}, num_classes=1, folder="STS-B")
    assert corpus.train.all()["targets"].dtype == np.float32
    np.testing.assert_array_equal(corpus.train.all()["targets"], [2.5, 5.0])
    assert corpus.unigram_entropy == pytest.approx(1.25**2)


def test_mnli_has_two_evaluation_sets(load):
    header = "index\tsentence1\tsentence2\tgold_label"
    lines = [header, "0\tred\tgreen\tneutral", "1\tred\tred\tentailment"]
    files = {"train.tsv": lines, "dev_matched.tsv": lines, "dev_mismatched.tsv": lines[:2]}
    corpus = load("mnli", files, num_classes=3, folder="MNLI")
    assert corpus.evaluation_sets == {"validation_matched": 2, "validation_mismatched": 1}
    np.testing.assert_array_equal(corpus.validation.all()["targets"], [1, 0, 1])


@pytest.mark.parametrize(
    ("task", "changes", "said"),
    [
        ("rte", dict(num_classes=3), r"model\.num_classes = 3; allowed with data\.task = 'rte': 2"),
        ("rte", dict(sequence_length=4), r"data\.sequence_length = 4 has no room for the texts of rte"),
        ("nli", {}, r"'nli' is not a task of GLUE"),
        ("rte", dict(num_token_types=1), r"the second of a pair is of token type 1, but model\.num_token_types = 1"),
    ],
)
def test_what_does_not_fit(load, task, changes, said):
    with pytest.raises(UserError, match=said):
        load(task, {"train.tsv": LINES, "dev.tsv": LINES}, **changes)


def test_a_file_without_labels_trains_nothing(load):
    with pytest.raises(UserError, match=r"train\.tsv has no column 'label'"):
        load("rte", {"train.tsv": ["index\tsentence1\tsentence2", "0\tred\tred"], "dev.tsv": LINES})


@pytest.mark.parametrize(
    "source", ["rte", "text:a", "tfds:", "tfds:glue/rte", "tfds:glue:", "tfds:glue:2.0.0:train", "tfds:super_glue"]
)
def test_what_is_no_source(source):
    data = data_config("rte", source, "none", 12)
    with pytest.raises(UserError, match=rf"data\.source = '{source}'; allowed with .*: tsv:DIR, tfds:glue, tfds:glue:VERSION"):
        read_splits(GLUE_TASKS["rte"], data.source)


def test_texts_are_cut_one_token_at_a_time_from_the_longer_one():
    for room in range(2, 12):
        for a in range(20):
            for b in range(20):
                left, right = a, b
                while left + right > room:
                    if left > right:
                        left -= 1
                    else:
                        right -= 1
                assert kept_lengths(a, b, room) == (left, right), (a, b, room)
