"""SQuAD as TFDS's own builder writes it from the original files: the same questions and rows, and
the same faults named.
"""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import pytest

from mhsh.config.schema import ModelConfig, SpanDataConfig
from mhsh.data.fine_tuning.spans import load_spans
from mhsh.data.fine_tuning.squad import Answer, Question, SquadData, read_squad
from mhsh.errors import UserError
from tests.conftest import load_fields
from tests.data.tfds_process import needs_tensorflow, needs_tfds, python

VOCAB = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "red", "green", "blue", "gold", "##ish", ".", "?", "who", *"0123456789"]
WORDS = ["red", "Green", "😀", "blueish\u2028", "Ève", "gold ."]
CONTEXT = "Ève 😀 ate an apple."

# TFDS's own builder, but for the download. The arguments: the format; of every data set the config,
# the version, and the file of each split. Keys are numbers, as TFDS wants no key twice. And a data
# set with SQuAD's features, whose answers are plain texts.
PREPARE = """
import json
import sys
from pathlib import Path
import tensorflow_datasets as tfds
from tensorflow_datasets.datasets.squad import squad_dataset_builder as squad


class Squad(squad.Builder, skip_registration=True):
    name = "squad"
    pkg_dir_path = Path(squad.__file__).parent

    def _split_generators(self, dl_manager):
        return {split: enumerate(example for _, example in self._generate_examples(path)) for split, path in SPLITS.items()}


class Quiz(tfds.core.GeneratorBasedBuilder, skip_registration=True):
    VERSION = tfds.core.Version("1.0.0")

    def _info(self):
        names = ("title", "context", "id", "question")
        features = {name: tfds.features.Text() for name in names} | {"answers": tfds.features.Sequence(tfds.features.Text())}
        return tfds.core.DatasetInfo(builder=self, features=tfds.features.FeaturesDict(features))

    def _split_generators(self, dl_manager):
        return {"train": self._generate_examples()}

    def _generate_examples(self):
        yield 0, {"title": "t", "context": "red", "id": "q0", "question": "Who?", "answers": ["red"]}


for config, version, SPLITS in json.loads(sys.argv[2]):
    Squad.VERSION = tfds.core.Version(version)
    builder = Squad(config=config, file_format=sys.argv[1])
    builder.download_and_prepare(download_config=tfds.download.DownloadConfig(num_shards=2))
Quiz(file_format=sys.argv[1]).download_and_prepare()
"""
# All data sets in one process, which takes longer to start than to read; for each the questions, or
# what the user would be told.
READ = """
import dataclasses
import json
import sys
from mhsh.data.fine_tuning.squad_tfds import read_prepared_squad
from mhsh.errors import UserError

answers = []
for name in json.loads(sys.argv[2]):
    try:
        answers.append(dataclasses.asdict(read_prepared_squad(name)))
    except UserError as error:
        answers.append(str(error))
assert "tensorflow" not in sys.modules or sys.argv[1] == "tfrecord"
print(json.dumps(answers))
"""
LOAD = """
import json
import sys
from mhsh.config.schema import ModelConfig, SpanDataConfig
from mhsh.data.fine_tuning.spans import load_spans

answers = []
for model, data in json.loads(sys.argv[1]):
    corpus = load_spans(ModelConfig(**model), SpanDataConfig(**data), None)
    answers.append([corpus.fingerprint, corpus.summary()])
print(json.dumps(answers))
"""


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
    "1.0.3": (Question("b1", "Who?", CONTEXT, (Answer("Ève", -1),), False, "t"), "has answer_start = -1"),
    "1.0.4": (Question("q0", "Why?", CONTEXT, (Answer("Ève", 0),), False, "t"), "has the id of a question before it, q0"),
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
    folder = tmp_path_factory.mktemp("squad")
    sets = [(config, "3.0.0", write_splits(folder, config)) for config in ("v1.1", "v2.0")]
    sound = Question("q0", "Who?", CONTEXT, (Answer("Ève", 0),), False, "t")
    for version, (broken, _) in BROKEN.items():
        path = write_squad(folder / f"broken-{version}.json", SquadData("2.0", (sound, broken)))
        sets.append(("v2.0", version, {"train": path}))
    (folder / "prepared").mkdir()
    python(PREPARE, folder / "prepared", "array_record", json.dumps(sets))
    return folder


def read(data_dir: Path, names: list[str], file_format: str = "array_record") -> list[SquadData | str]:
    """For every name the questions, or what the user would be told."""

    def data(found: dict[str, Any]) -> SquadData:
        questions = [
            Question(**question | {"answers": tuple(Answer(**answer) for answer in question["answers"])})
            for question in found["questions"]
        ]
        return SquadData(found["version"], tuple(questions))

    answers = json.loads(python(READ, data_dir, file_format, json.dumps(names)))
    return [answer if isinstance(answer, str) else data(answer) for answer in answers]


def in_any_order(data: SquadData) -> tuple[str, set[Question], int]:
    return data.version, set(data.questions), len(data.questions)


@needs_tfds
def test_the_same_questions_as_in_the_original_files(folder):
    names = [f"squad/{config}:{split}" for config in ("v1.1", "v2.0") for split in ("train", "validation")]
    found = read(folder / "prepared", names)
    for name, data in zip(names, found, strict=True):
        config, split = name.removeprefix("squad/").split(":")
        original = read_squad(folder / f"{split}-{config}.json")
        assert in_any_order(data) == in_any_order(original)
        assert data.version == config[1:]
    assert found[2].questions != read_squad(folder / "train-v2.0.json").questions, "TFDS shuffles"
    named = read(folder / "prepared", ["squad/v2.0", "squad/v2.0:3.0.0:train", "squad/v2.0:train[10:30]"])
    assert named[:2] == [found[2], found[2]]
    assert named[2] == dataclasses.replace(found[2], questions=found[2].questions[10:30])


@needs_tfds
def test_the_same_rows_as_from_files_in_the_same_order(folder, tmp_path):
    (tmp_path / "vocab.txt").write_text("".join(token + "\n" for token in VOCAB))
    model = load_fields("bert", "2l8h")["model"] | dict(objective="span", next_sentence=False)
    model.pop("heads_per_layer")
    common = dict(
        vocab_path=str(tmp_path / "vocab.txt"), lowercase=True, sequence_length=24, stride=5, max_question_length=8, seed=0
    )
    prepared, originals = [], []
    for config in ("v1.1", "v2.0"):
        names = [f"squad/{config}", f"squad/{config}:validation"]
        files = [
            write_squad(tmp_path / f"{config}-{number}.json", data) for number, data in enumerate(read(folder / "prepared", names))
        ]
        for validation, fraction in ((True, 0.5), (False, 0.3)):
            fields = common | dict(validation_fraction=fraction)
            prepared.append(fields | dict(source=f"tfds:{names[0]}", validation_source=f"tfds:{names[1]}" if validation else ""))
            originals.append(fields | dict(source=f"json:{files[0]}", validation_source=f"json:{files[1]}" if validation else ""))
    answers = json.loads(python(LOAD, folder / "prepared", json.dumps([(model, data) for data in prepared])))
    for (fingerprint, summary), data in zip(answers, originals, strict=True):
        original = load_spans(ModelConfig(**model), SpanDataConfig(**data), None)
        assert (fingerprint, summary) == (original.fingerprint, original.summary())
        assert summary["train_rows"] > summary["train_questions"] > 50


@needs_tfds
def test_the_faults_of_a_file_are_those_of_the_data_set_made_of_it(folder):
    said = read(folder / "prepared", [f"squad/v2.0:{version}" for version in BROKEN])
    for message, (version, (_, fault)) in zip(said, BROKEN.items(), strict=True):
        assert isinstance(message, str) and fault in message and "\n" not in message
        path = folder / f"broken-{version}.json"
        with pytest.raises(UserError) as caught:
            read_squad(path)
        assert message == str(caught.value).replace(str(path), f"tfds:squad/v2.0:{version}")


@needs_tfds
def test_what_is_not_there_is_named(folder):
    cases = {
        "squad/v1.1:2.0.0": "tfds:squad/v1.1:2.0.0 is not prepared in .*; run: tfds build squad/v1.1:2.0.0 --file_format=",
        "squad/v3.0": "tfds:squad/v3.0 is not prepared in .*; run: tfds build squad/v3.0 --file_format=",
        "squad/v2.0:test": "tfds:squad/v2.0:test: there is no split 'test'; allowed: train, validation",
        "squad/v2.0:train[:101]": r"tfds:squad/v2.0:train\[:101\]: Requested slice .* incompatible with 100 examples; write",
        "squad/v2.0:train:en-de": "tfds:squad/v2.0:train:en-de: en-de is for sentence pairs; write tfds:DATASET",
        "quiz": r"tfds:quiz: question q0 answers\[0\] is not an object; correct the data",
    }
    for said, expected in zip(read(folder / "prepared", list(cases)), cases.values(), strict=True):
        assert isinstance(said, str) and re.match(expected, said) and "\n" not in said, said


@needs_tfds
@needs_tensorflow
@pytest.mark.slow
def test_tfrecord_gives_the_same(folder, tmp_path):
    sets = [(config, "3.0.0", write_splits(tmp_path, config)) for config in ("v1.1", "v2.0")]
    python(PREPARE, tmp_path, "tfrecord", json.dumps(sets))
    names = ["squad/v1.1", "squad/v2.0", "squad/v2.0:validation"]
    found = read(tmp_path, names, "tfrecord")
    assert found == read(folder / "prepared", names)
    assert isinstance(found[0], SquadData) and len(found[0].questions) == 100
