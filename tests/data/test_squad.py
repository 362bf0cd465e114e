"""SQuAD's files and its copies in TFDS: both versions read, the same rows from either, and every
fault named with its question.
"""

from __future__ import annotations

import copy
import dataclasses
import gzip
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mhsh.data.squad import Answer, Question, SquadData, read_predictions, read_prepared_squad, read_squad
from mhsh.errors import UserError
from tests.data.conftest import tfds_folder
from tests.data.small_fine_tuning import as_json, load_squad, write_squad

CONTEXT = "Ève 😀 ate\u2028an apple,\nthen a pear."


def question(number: int, *answers: Answer, is_impossible: bool = False) -> Question:
    return Question(f"q{number}", "What?", CONTEXT, answers, is_impossible, "Eden")


V1 = SquadData("1.1", (question(1, Answer("apple,\nthen", 13), Answer("a pear", 25)), question(2)))
V2 = SquadData("2.0", (question(1, is_impossible=True), question(2, Answer("Ève", 0))))


@pytest.mark.parametrize("data", [V1, V2], ids=["1.1", "2.0"])
def test_both_versions(tmp_path: Path, data: SquadData) -> None:
    content = as_json(data)
    content["data"][0]["paragraphs"].append({"context": "Nothing.", "qas": []})
    packed, plain = tmp_path / "dev.json.gz", tmp_path / "dev.json"
    packed.write_bytes(gzip.compress(b"\xef\xbb\xbf" + json.dumps(content, ensure_ascii=False).encode()))
    assert read_squad(str(packed)) == data
    for version in ({"version": "v" + data.version}, {"version": "3"}, {"version": 2.0}, {}):  # known by `is_impossible`
        plain.write_text(json.dumps({"data": content["data"], **version}))
        assert read_squad(plain) == data


def changed(data: SquadData, change: Callable[[dict[str, Any], dict[str, Any]], Any]) -> dict[str, Any]:
    """A copy, after `change` of its whole and of its first question."""
    content = copy.deepcopy(as_json(data))
    change(content, content["data"][0]["paragraphs"][0]["qas"][0])
    return content


PLACE = "data[0].paragraphs[0].qas[0]"
FAULTS = [
    (changed(V1, lambda whole, _: whole.update(data=[])), "has no questions"),
    (changed(V1, lambda whole, _: whole["data"][0].pop("title")), "missing required field `title` - at `data[0]`"),
    (changed(V1, lambda _, first: first.update(id=1)), f"Expected `str`, got `int` - at `{PLACE}.id`"),
    (changed(V1, lambda _, first: first.update(id="q2")), "question q2 has the id of an earlier question"),
    (changed(V1, lambda _, first: first["answers"][1].pop("text")), f"missing required field `text` - at `{PLACE}.answers[1]`"),
    (changed(V1, lambda _, first: first["answers"][0].update(answer_start=True)), "Expected `int`, got `bool`"),
    (changed(V1, lambda _, first: first["answers"][0].update(answer_start=-22)), "at answer_start = -22, where"),
    (changed(V1, lambda _, first: first["answers"][0].update(answer_start=10**30)), "where its context has ''"),
    (
        changed(V1, lambda _, first: first["answers"][1].update(answer_start=24)),
        "question q1 answers[1] has the answer 'a pear' at answer_start = 24, where its context has ' a pea'",
    ),
    (changed(V1, lambda _, first: first["answers"][1].update(text="")), "question q1 answers[1] is empty"),
    (changed(V1, lambda _, first: first.update(is_impossible=True)), "question q1 is impossible, and SQuAD 1.1 has no such"),
    (changed(V1, lambda whole, _: whole.update(version="2.0")), "question q1 has no 'is_impossible'"),
    (
        changed(V2, lambda _, first: first.update(answers=[{"text": "Ève", "answer_start": 0}])),
        "question q1 is impossible and has an answer",
    ),
    (["x"], "is damaged: it is not a JSON object"),
]


@pytest.mark.parametrize(("content", "message"), FAULTS)
def test_every_fault_is_named_in_one_line(tmp_path: Path, content: Any, message: str) -> None:
    path = tmp_path / "dev.json"
    path.write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises(UserError, match=re.escape(str(path)) + ":? .*" + re.escape(message)) as caught:
        read_squad(path)
    assert re.search("; (correct|fetch|give)", str(caught.value))


@pytest.mark.parametrize("read", [read_squad, read_predictions])
def test_what_is_no_json(tmp_path: Path, read: Callable[[Path], Any]) -> None:
    path = tmp_path / "file.json"
    for raw, message in (
        (b"", "is damaged or no JSON: Expecting value"),
        (b'{"a": "x", "b": "y", "a": "z"}', "is damaged or no JSON: the key 'a' appears twice in one object"),
        (b'{"a": "\xff"}', "line 1 is not UTF-8: invalid start byte at byte 7"),
        (b"[]", "is damaged: it is not a JSON object"),
    ):
        path.write_bytes(raw)
        with pytest.raises(UserError, match=re.escape(f"{path} {message}")):
            read(path)
    with pytest.raises(UserError, match=r"cannot read .*missing: No such file"):
        read(tmp_path / "missing")


def test_predictions(tmp_path: Path) -> None:
    def written(content: dict[str, Any]) -> Path:
        (tmp_path / "file.json").write_text(json.dumps(content))
        return tmp_path / "file.json"

    assert read_predictions(written({"a": "Ève", "b": ""})) == {"a": "Ève", "b": ""}
    for broken in (None, ["x"]):
        with pytest.raises(UserError, match=r"file.json: the prediction for question b is .*; write a string"):
            read_predictions(written({"a": "", "b": broken}))


@pytest.mark.realdata
def test_the_real_files(real_data: Path) -> None:
    for name, version, total, impossible, articles in (
        ("squad/dev-v1.1.rebuilt.json.gz", "1.1", 10570, 0, 48),
        ("squad/dev-v2.0.rebuilt.json.gz", "2.0", 11873, 5945, 35),
        ("xquad/xquad.de.json.gz", "1.1", 1190, 0, 48),
    ):
        data = read_squad(real_data / name)
        assert (data.version, len(data.questions)) == (version, total)
        assert len({question.title for question in data.questions}) == articles
        assert sum(question.is_impossible for question in data.questions) == impossible
        assert all(bool(question.answers) != question.is_impossible for question in data.questions)


WORDS = ["red", "Green", "😀", "blueish\u2028", "Ève", "gold ."]


def questions_of(version: str, split: str, count: int) -> tuple[Question, ...]:
    """Of contexts of several lengths, a few questions a context: with one or two answers, in 2.0
    some without any.
    """
    questions = []
    for number in range(count):
        context = "  ".join(WORDS[(number // 3 + place) % len(WORDS)] for place in range(2 + number // 3 % 30))
        starts = [number % len(context.rstrip()), 0]
        answers = tuple(Answer(context[start : start + 5].rstrip(), start) for start in starts[: 1 + number % 2])
        impossible = version == "2.0" and number % 3 == 2
        kept = () if impossible else tuple(answer for answer in answers if answer.text)
        questions.append(Question(f"{split}-{number}", f"Who {number}?", context, kept, impossible, f"Title é {number % 7}"))
    return tuple(questions)


# Each beside a sound question, and what is said of it.
BROKEN = {
    "1.0.0": (question(1, Answer("apple", 14)), "has the answer 'apple' at answer_start = 14"),
    "1.0.1": (question(1, Answer("Ève", 0), is_impossible=True), "is impossible and has an answer"),
    "1.0.2": (question(2, Answer("Ève", 0)), "question q2 has the id of an earlier question"),
}


def write_splits(folder: Path, config: str) -> dict[str, str]:
    """Writes the files of both splits of v1.1 or v2.0."""
    sizes = {"train": 100, "validation": 20}
    data = {split: SquadData(config[1:], questions_of(config[1:], split, count)) for split, count in sizes.items()}
    return {split: str(write_squad(folder / f"{split}-{config}.json", questions)) for split, questions in data.items()}


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """The original files, and, under `prepared`, the data sets that TFDS made of them."""
    from tests.data import tfds_builders

    folder = tmp_path_factory.mktemp("squad")
    for config in ("v1.1", "v2.0"):
        tfds_builders.prepare_squad(folder / "prepared", config, "3.0.0", write_splits(folder, config))
    for version, (broken, _) in BROKEN.items():
        path = write_squad(folder / f"broken-{version}.json", SquadData("2.0", (V2.questions[1], broken)))
        tfds_builders.prepare_squad(folder / "prepared", "v2.0", version, {"train": str(path)})
    tfds_builders.prepare(tfds_builders.Quiz, folder / "prepared", num_shards=1)
    return folder


@pytest.fixture
def prepared(folder):
    with tfds_folder(folder / "prepared"):
        yield


def test_the_same_questions_as_in_the_original_files(folder, prepared):
    for config in ("v1.1", "v2.0"):
        for split in ("train", "validation"):
            data, original = read_prepared_squad(f"squad/{config}:{split}"), read_squad(folder / f"{split}-{config}.json")
            assert data.version == original.version == config[1:]
            assert len(data.questions) == len(original.questions) and set(data.questions) == set(original.questions)
    data = read_prepared_squad("squad/v2.0:train")
    assert data.questions != read_squad(folder / "train-v2.0.json").questions, "TFDS shuffles"
    assert read_prepared_squad("squad/v2.0") == read_prepared_squad("squad/v2.0:3.0.0:train") == data
    assert read_prepared_squad("squad/v2.0:train[10:30]") == dataclasses.replace(data, questions=data.questions[10:30])


@pytest.mark.parametrize("config", ["v1.1", "v2.0"])
@pytest.mark.parametrize("own", [True, False])
def test_the_same_rows_as_from_files_in_the_same_order(prepared, vocab, tmp_path, config, own):
    names = [f"squad/{config}", f"squad/{config}:validation"]
    files = [write_squad(tmp_path / f"{number}.json", read_prepared_squad(name)) for number, name in enumerate(names)]
    both = []
    for source, validation in ([f"tfds:{name}" for name in names], [f"json:{path}" for path in files]):
        fields = dict(source=source, validation_source=validation if own else "", validation_fraction=0.3)
        both.append(load_squad(vocab, **fields, sequence_length=24, stride=5, max_question_length=8))
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
    assert BROKEN[version][1] in str(of_tfds.value)
    assert str(of_tfds.value) == str(of_file.value).replace(str(path), f"tfds:squad/v2.0:{version}")


def test_a_data_set_with_other_answers_is_named(prepared):
    with pytest.raises(UserError, match=r"^tfds:quiz: Expected `object`, got `str` - at .*answers\[0\]`; correct the data"):
        read_prepared_squad("quiz")
