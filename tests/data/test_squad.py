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

from mhsh.data.squad import Answer, Question, SquadData, read_squad
from mhsh.errors import UserError
from tests.data.small_fine_tuning import as_json

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


def test_what_is_no_json(tmp_path: Path) -> None:
    path = tmp_path / "file.json"
    for raw, message in (
        (b"", "is damaged or not JSON: Expecting value"),
        (b'{"a": "x", "b": "y", "a": "z"}', "is damaged or not JSON: the key 'a' appears twice in one object"),
        (b'{"a": "\xff"}', "line 1 is not UTF-8: invalid start byte at byte 7"),
        (b"[]", "is damaged: it is not a JSON object"),
    ):
        path.write_bytes(raw)
        with pytest.raises(UserError, match=re.escape(f"{path} {message}")):
            read_squad(path)
    with pytest.raises(UserError, match=r"cannot read .*missing: No such file"):
        read_squad(tmp_path / "missing")


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
