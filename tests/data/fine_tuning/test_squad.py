"""SQuAD's files: both versions read, and every fault named with its question."""

from __future__ import annotations

import copy
import gzip
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mhsh.data.fine_tuning.squad import Answer, Question, SquadData, read_no_answer_probabilities, read_predictions, read_squad
from mhsh.errors import UserError

CONTEXT = "Ève 😀 ate\u2028an apple,\nthen a pear."
V1: dict[str, Any] = {
    "version": "1.1",
    "data": [
        {
            "title": "Eden",
            "paragraphs": [
                {
                    "context": CONTEXT,
                    "qas": [
                        {
                            "id": "a1",
                            "question": "What?",
                            "answers": [{"text": "apple,\nthen", "answer_start": 13}, {"text": "a pear", "answer_start": 25}],
                        },
                        {"id": "a2", "question": "Who?", "answers": []},
                    ],
                },
                {"context": "Nothing.", "qas": []},
            ],
        },
    ],
}
V2 = {
    "version": "v2.0",
    "data": [
        {
            "title": "Eden",
            "paragraphs": [
                {
                    "context": CONTEXT,
                    "qas": [
                        {
                            "id": "b1",
                            "question": "Why?",
                            "answers": [],
                            "is_impossible": True,
                            # As in the training set, which mhsh does not read.
                            "plausible_answers": [{"text": "anything", "answer_start": 0}],
                        },
                        {"id": "b2", "question": "Who?", "answers": [{"text": "Ève", "answer_start": 0}], "is_impossible": False},
                    ],
                }
            ],
        }
    ],
}
FIRST, SECOND = Answer("apple,\nthen", 13), Answer("a pear", 25)
V1_READ = SquadData(
    "1.1",
    (
        Question("a1", "What?", CONTEXT, (FIRST, SECOND), False, "Eden"),
        Question("a2", "Who?", CONTEXT, (), False, "Eden"),
    ),
)
V2_READ = SquadData(
    "2.0",
    (
        Question("b1", "Why?", CONTEXT, (), True, "Eden"),
        Question("b2", "Who?", CONTEXT, (Answer("Ève", 0),), False, "Eden"),
    ),
)


def written(path: Path, content: Any) -> Path:
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


@pytest.mark.parametrize(("content", "expected"), [(V1, V1_READ), (V2, V2_READ)], ids=["1.1", "2.0"])
def test_both_versions(tmp_path: Path, content: dict[str, Any], expected: SquadData) -> None:
    plain, packed = written(tmp_path / "dev.json", content), tmp_path / "dev.json.gz"
    packed.write_bytes(gzip.compress(b"\xef\xbb\xbf" + json.dumps(content, ensure_ascii=False).encode()))
    assert read_squad(plain) == read_squad(str(packed)) == expected


def test_a_file_that_does_not_name_its_version(tmp_path: Path) -> None:
    for content, expected in ((V1, V1_READ), (V2, V2_READ)):
        for version in ({}, {"version": "3"}, {"version": 2.0}):
            assert read_squad(written(tmp_path / "dev.json", {"data": content["data"], **version})) == expected


def changed(content: dict[str, Any], change: Callable[[dict[str, Any], dict[str, Any]], Any]) -> dict[str, Any]:
    """A copy, after `change` of its whole and of its first question."""
    content = copy.deepcopy(content)
    change(content, content["data"][0]["paragraphs"][0]["qas"][0])
    return content


A1, PLACE = "question a1", "data[0].paragraphs[0]"
FAULTS = [
    (changed(V1, lambda whole, _: whole.pop("data")), "missing required field `data`"),
    (changed(V1, lambda whole, _: whole.update(data=[])), "has no questions"),
    (changed(V1, lambda whole, _: whole.update(data={})), "Expected `array`, got `object` - at `data`"),
    (changed(V1, lambda whole, _: whole.update(data=["x"])), "Expected `object`, got `str` - at `data[0]`"),
    (changed(V1, lambda whole, _: whole["data"][0].pop("title")), "missing required field `title` - at `data[0]`"),
    (changed(V1, lambda whole, _: whole["data"][0].pop("paragraphs")), "missing required field `paragraphs` - at `data[0]`"),
    (
        changed(V1, lambda whole, _: whole["data"][0]["paragraphs"][0].pop("context")),
        f"missing required field `context` - at `{PLACE}`",
    ),
    (
        changed(V1, lambda whole, _: whole["data"][0]["paragraphs"][0].update(qas=None)),
        f"Expected `array`, got `null` - at `{PLACE}.qas`",
    ),
    (changed(V1, lambda _, first: first.pop("id")), f"missing required field `id` - at `{PLACE}.qas[0]`"),
    (changed(V1, lambda _, first: first.update(id=1)), f"Expected `str`, got `int` - at `{PLACE}.qas[0].id`"),
    (changed(V1, lambda _, first: first.update(id="a2")), "question a2 has the id of an earlier question"),
    (changed(V1, lambda _, first: first.pop("question")), f"missing required field `question` - at `{PLACE}.qas[0]`"),
    (changed(V1, lambda _, first: first.pop("answers")), f"missing required field `answers` - at `{PLACE}.qas[0]`"),
    (
        changed(V1, lambda _, first: first["answers"][1].pop("text")),
        f"missing required field `text` - at `{PLACE}.qas[0].answers[1]`",
    ),
    (
        changed(V1, lambda _, first: first["answers"][1].pop("answer_start")),
        f"missing required field `answer_start` - at `{PLACE}.qas[0].answers[1]`",
    ),
    (changed(V1, lambda _, first: first["answers"][0].update(answer_start="13")), "Expected `int`, got `str`"),
    (changed(V1, lambda _, first: first["answers"][0].update(answer_start=True)), "Expected `int`, got `bool`"),
    (changed(V1, lambda _, first: first["answers"][0].update(answer_start=-22)), "at answer_start = -22, where"),
    (changed(V1, lambda _, first: first["answers"][0].update(answer_start=10**30)), "where its context has ''"),
    (
        changed(V1, lambda _, first: first["answers"][1].update(answer_start=24)),
        f"{A1} answers[1] has the answer 'a pear' at answer_start = 24, where its context has ' a pea'",
    ),
    (changed(V1, lambda _, first: first["answers"][1].update(text="")), f"{A1} answers[1] is empty"),
    (changed(V1, lambda _, first: first.update(is_impossible=True)), f"{A1} is impossible, and SQuAD 1.1 has no such questions"),
    (changed(V1, lambda whole, _: whole.update(version="2.0")), f"{A1} has no 'is_impossible'"),
    (
        changed(V2, lambda _, first: first.update(is_impossible=1)),
        "Expected `bool`, got `int`",
    ),
    (
        changed(V2, lambda _, first: first.update(answers=[{"text": "Ève", "answer_start": 0}])),
        "question b1 is impossible and has an answer",
    ),
    (["x"], "is damaged: it is not a JSON object"),
]


@pytest.mark.parametrize(("content", "message"), FAULTS)
def test_every_fault_is_named_in_one_line(tmp_path: Path, content: Any, message: str) -> None:
    path = written(tmp_path / "dev.json", content)
    with pytest.raises(UserError, match=re.escape(str(path)) + ":? .*" + re.escape(message)) as caught:
        read_squad(path)
    assert re.search("; (correct|fetch|give)", str(caught.value))


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"", "is damaged or no JSON: Expecting value"),
        (b'{"a": "b"', "is damaged or no JSON: Expecting"),
        (b'{"a": 1' + b"1" * 5000 + b"}", "is damaged or no JSON: Exceeds the limit"),
        (b"[" * 200_000, "is damaged or no JSON: maximum recursion depth exceeded"),
        (b'{"a": "x", "b": "y", "a": "z"}', "is damaged or no JSON: the key 'a' appears twice in one object"),
        (b'{"a": "\xff"}', "is damaged or no JSON: 'utf-8' codec can't decode byte 0xff in position 7"),
        (b"[]", "is damaged: it is not a JSON object"),
    ],
)
@pytest.mark.parametrize("read", [read_squad, read_predictions, read_no_answer_probabilities])
def test_what_is_no_json(tmp_path: Path, raw: bytes, message: str, read: Callable[[Path], Any]) -> None:
    path = tmp_path / "file.json"
    path.write_bytes(raw)
    with pytest.raises(UserError, match=re.escape(f"{path} {message}")):
        read(path)
    with pytest.raises(UserError, match=r"cannot read .*missing: No such file"):
        read(tmp_path / "missing")


def test_predictions_and_probabilities(tmp_path: Path) -> None:
    path = tmp_path / "predictions.json"
    assert read_predictions(written(path, {"a": "Ève", "b": ""})) == {"a": "Ève", "b": ""}
    assert read_no_answer_probabilities(written(path, {"a": 0.25, "b": -7})) == {"a": 0.25, "b": -7}
    for broken in (None, 1, ["x"]):
        with pytest.raises(UserError, match=rf"{path}: the prediction for question b is .*; write a string"):
            read_predictions(written(path, {"a": "", "b": broken}))
    for broken in (None, True, "0.5", float("nan"), float("-inf"), 10**400):
        with pytest.raises(UserError, match=rf"{path}: the no-answer probability of question b is .*; write a finite number"):
            read_no_answer_probabilities(written(path, {"a": 0.0, "b": broken}))


@pytest.mark.realdata
def test_the_real_files(real_data: Path) -> None:
    for name, version, total, impossible, articles in (
        ("squad/dev-v1.1.rebuilt.json.gz", "1.1", 10570, 0, 48),
        ("squad/dev-v2.0.rebuilt.json.gz", "2.0", 11873, 5945, 35),
        ("xquad/xquad.en.json.gz", "1.1", 1190, 0, 48),
        ("xquad/xquad.de.json.gz", "1.1", 1190, 0, 48),
    ):
        data = read_squad(real_data / name)
        assert data.version == version
        assert len(data.questions) == total
        assert len({question.title for question in data.questions}) == articles
        assert sum(question.is_impossible for question in data.questions) == impossible
        assert all(bool(question.answers) != question.is_impossible for question in data.questions)
