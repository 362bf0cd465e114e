"""SQuAD in TFDS: the same questions, rows and errors as from the files that TFDS was given."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from mhsh.config.fields import SHAPING
from mhsh.config.schema import ModelConfig, SpanDataConfig
from mhsh.data.fine_tuning.task import SpanTask
from mhsh.data.fine_tuning.squad import Answer, Question, SquadData, read_prepared_squad, read_squad
from mhsh.errors import UserError
from tests.conftest import load_fields
from tests.data.conftest import needs_tensorflow, tfds_folder

VOCAB = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "red", "green", "blue", "gold", "##ish", ".", "?", "who", *"0123456789"]
WORDS = ["red", "Green", "😀", "blueish\u2028", "Ève", "gold ."]
CONTEXT = "Ève 😀 ate an apple."


def questions_of(version: str, split: str, count: int) -> tuple[Question, ...]:
    """Of contexts of several lengths, a few questions a context: with one or two answers, in 2.0
    some without any.
    """
    questions = []
    for number in range(count):
        context = "  ".join(WORDS[(number // 3 + place) % len(WORDS)] for place in range(2 + number // 3 % 30))
        starts = [number % len(context.rstrip()), 0]
        answers = tuple(Answer(context[start : start + 5].rstrip(), start) for start in starts[: 1 + number % 2])
        answers = tuple(answer for answer in answers if answer.text)
        impossible = version == "2.0" and number % 3 == 2
        questions.append(
            Question(
                f"{split}-{number}", f"Who {number}?", context, () if impossible else answers, impossible, f"Title é {number % 7}"
            )
        )
    return tuple(questions)


def write_squad(path: Path, data: SquadData) -> str:
    """A file in SQuAD's form with an article a question, in their order."""
    articles = []
    for each in data.questions:
        entry: dict[str, Any] = dict(id=each.id, question=each.question)
        entry["answers"] = [{"text": answer.text, "answer_start": answer.start} for answer in each.answers]
        if data.version == "2.0":
            entry["is_impossible"] = each.is_impossible
            if each.is_impossible:
                entry["plausible_answers"] = [{"text": "anything", "answer_start": 10_000}]
        articles.append({"title": each.title, "paragraphs": [{"context": each.context, "qas": [entry]}]})
    path.write_text(json.dumps({"version": data.version, "data": articles}), encoding="utf-8")
    return str(path)


# Each beside a sound question, and what is said of it.
BROKEN = {
    "1.0.0": (Question("b1", "Who?", CONTEXT, (Answer("apple", 14),), False, "t"), "has the answer 'apple' at answer_start = 14"),
    "1.0.1": (Question("b1", "Who?", CONTEXT, (Answer("Ève", 0),), True, "t"), "is impossible and has an answer"),
    "1.0.2": (Question("b1", "Who?", CONTEXT, (Answer("", 3),), False, "t"), "is empty"),
    "1.0.3": (Question("b1", "Who?", CONTEXT, (Answer("Ève", -1),), False, "t"), "at answer_start = -1, where"),
    "1.0.4": (Question("q0", "Why?", CONTEXT, (Answer("Ève", 0),), False, "t"), "question q0 has the id of an earlier question"),
    # In bytes, as no answer_start is counted.
    "1.0.5": (Question("b1", "Who?", CONTEXT, (Answer("ate", 10),), False, "t"), "has the answer 'ate' at answer_start = 10"),
}


def write_splits(folder: Path, config: str) -> dict[str, str]:
    """Writes the files of both splits of v1.1 or v2.0."""
    sizes = {"train": 100, "validation": 20}
    data = {split: SquadData(config[1:], questions_of(config[1:], split, count)) for split, count in sizes.items()}
    return {split: write_squad(folder / f"{split}-{config}.json", questions) for split, questions in data.items()}


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """The original files, and, under `prepared`, the data sets that TFDS made of them."""
    from tests.data import tfds_builders

    folder = tmp_path_factory.mktemp("squad")
    for config in ("v1.1", "v2.0"):
        tfds_builders.prepare_squad(folder / "prepared", config, "3.0.0", write_splits(folder, config))
    sound = Question("q0", "Who?", CONTEXT, (Answer("Ève", 0),), False, "t")
    for version, (broken, _) in BROKEN.items():
        path = write_squad(folder / f"broken-{version}.json", SquadData("2.0", (sound, broken)))
        tfds_builders.prepare_squad(folder / "prepared", "v2.0", version, {"train": path})
    tfds_builders.prepare(tfds_builders.Quiz, folder / "prepared", num_shards=1)
    return folder


@pytest.fixture
def prepared(folder):
    with tfds_folder(folder / "prepared"):
        yield


def in_any_order(data: SquadData) -> tuple[str, set[Question], int]:
    return data.version, set(data.questions), len(data.questions)


def test_the_same_questions_as_in_the_original_files(folder, prepared):
    for config in ("v1.1", "v2.0"):
        for split in ("train", "validation"):
            data = read_prepared_squad(f"squad/{config}:{split}")
            assert in_any_order(data) == in_any_order(read_squad(folder / f"{split}-{config}.json"))
            assert data.version == config[1:]
    data = read_prepared_squad("squad/v2.0:train")
    assert data.questions != read_squad(folder / "train-v2.0.json").questions, "TFDS shuffles"
    assert read_prepared_squad("squad/v2.0") == read_prepared_squad("squad/v2.0:3.0.0:train") == data
    assert read_prepared_squad("squad/v2.0:train[10:30]") == dataclasses.replace(data, questions=data.questions[10:30])


def test_the_same_rows_as_from_files_in_the_same_order(prepared, tmp_path):
    (tmp_path / "vocab.txt").write_text("".join(token + "\n" for token in VOCAB))
    model = load_fields("bert", "2l8h")["model"] | dict(objective="span", next_sentence=False)
    for path in SHAPING:
        model.pop(path.split(".")[1])
    common = dict(
        vocab_path=str(tmp_path / "vocab.txt"), lowercase=True, sequence_length=24, stride=5, max_question_length=8, seed=0
    )
    for config in ("v1.1", "v2.0"):
        names = [f"squad/{config}", f"squad/{config}:validation"]
        files = [write_squad(tmp_path / f"{config}-{number}.json", read_prepared_squad(name)) for number, name in enumerate(names)]
        for validation, fraction in ((True, 0.5), (False, 0.3)):
            both = []
            for kind, sources in (("tfds", names), ("json", files)):
                source, validation_source = (f"{kind}:{name}" for name in sources)
                data = SpanDataConfig(
                    source=source,
                    validation_source=validation_source if validation else "",
                    validation_fraction=fraction,
                    **common,
                )
                both.append(SpanTask(ModelConfig(**model), data).load())
            assert both[0].fingerprint == both[1].fingerprint
            summary = both[0].summary()
            assert summary == both[1].summary()
            assert summary["train_rows"] > summary["train_questions"] > 50


@pytest.mark.parametrize("version", BROKEN)
def test_the_faults_of_a_file_are_those_of_the_data_set_made_of_it(folder, prepared, version):
    path = folder / f"broken-{version}.json"
    with pytest.raises(UserError) as of_tfds:
        read_prepared_squad(f"squad/v2.0:{version}")
    with pytest.raises(UserError) as of_file:
        read_squad(path)
    message = str(of_tfds.value)
    assert BROKEN[version][1] in message and "\n" not in message
    assert message == str(of_file.value).replace(str(path), f"tfds:squad/v2.0:{version}")


def test_what_is_not_there_is_named(prepared):
    cases = {
        "squad/v1.1:2.0.0": "tfds:squad/v1.1:2.0.0 is not prepared in .*; run: tfds build squad/v1.1:2.0.0 --file_format=",
        "squad/v3.0": "tfds:squad/v3.0 is not prepared in .*; run: tfds build squad/v3.0 --file_format=",
        "squad/v2.0:test": "tfds:squad/v2.0:test: there is no split 'test'; allowed: train, validation",
        "squad/v2.0:train[:101]": r"tfds:squad/v2.0:train\[:101\]: Requested slice .* incompatible with 100 examples; write",
        "squad/v2.0:train:en-de": "tfds:squad/v2.0:train:en-de: en-de is only for sentence pairs; write tfds:DATASET",
        "quiz": r"tfds:quiz: Expected `object`, got `str` - at .*answers\[0\]`; correct the data",
    }
    for name, expected in cases.items():
        with pytest.raises(UserError, match=f"^{expected}") as caught:
            read_prepared_squad(name)
        assert "\n" not in str(caught.value)


@needs_tensorflow
@pytest.mark.slow
def test_tfrecord_gives_the_same(folder, tmp_path):
    from tests.data.tfds_builders import prepare_squad

    for config in ("v1.1", "v2.0"):
        prepare_squad(tmp_path, config, "3.0.0", write_splits(tmp_path, config), "tfrecord")
    for name in ("squad/v1.1", "squad/v2.0", "squad/v2.0:validation"):
        found = []
        for each in (tmp_path, folder / "prepared"):
            with tfds_folder(each):
                found.append(read_prepared_squad(name))
        assert found[0] == found[1]
        assert len(found[0].questions) == (20 if "validation" in name else 100)
