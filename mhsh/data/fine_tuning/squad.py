"""SQuAD 1.1 (Rajpurkar et al. 2016) and 2.0 (Rajpurkar et al. 2018): questions, and predictions for
them, in its JSON form.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mhsh.data.text_files import unpacked
from mhsh.errors import UserError
from mhsh.files import parse_object

# The values that `version` has in the official files.
_VERSIONS = {"1.1": "1.1", "v1.1": "1.1", "2.0": "2.0", "v2.0": "2.0"}
_KINDS = {list: "a list", str: "a string", int: "a whole number", bool: "true or false"}


@dataclasses.dataclass(frozen=True, slots=True)
class Answer:
    """A span of a context; context[start : start + len(text)] == text."""

    text: str
    start: int  # in characters (code points)


@dataclasses.dataclass(frozen=True, slots=True)
class Question:
    """A question about a paragraph."""

    id: str
    question: str
    context: str
    answers: tuple[Answer, ...]  # what several people answered; empty where it is impossible, or where nobody was asked
    is_impossible: bool  # the context does not hold the answer; never in 1.1
    title: str  # of the article


@dataclasses.dataclass(frozen=True)
class SquadData:
    """The questions of a file or of TFDS, in their order there."""

    version: str  # 1.1 or 2.0
    questions: tuple[Question, ...]


def read_squad(path: str | Path) -> SquadData:
    """The questions of a file (JSON, plain, .gz or .xz).

    Raises:
      UserError: the file cannot be read or is no JSON, or whatever `parse_squad` finds wrong with
        it.
    """
    return parse_squad(str(path), _read_json(path))


def parse_squad(source: str, content: dict[str, Any]) -> SquadData:
    """The questions of what SQuAD's JSON form holds.

    The version is what the content says it is; where it says nothing of the sort, it is 2.0 if a
    question says whether it is impossible.

    Args:
      source: where the content is from, as errors show it.

    Raises:
      UserError: the content lacks a key, has a value of the wrong kind, two questions of one id, an
        answer that does not stand at its answer_start, or an impossible question with an answer; or
        it has no questions.
    """
    entries = list(_entries(source, content))
    if not entries:
        raise UserError(f"{source} has no questions; fetch the data again")
    named = content.get("version")
    version = _VERSIONS.get(named) if isinstance(named, str) else None
    if version is None:
        version = "2.0" if any("is_impossible" in entry.fields for entry in entries) else "1.1"
    return SquadData(version, tuple(_question(entry, version) for entry in entries))


def read_predictions(path: str | Path) -> dict[str, str]:
    """The answers by question id, "" for none, of a file of predictions in SQuAD's form: one JSON
    object (plain, .gz or .xz).

    Raises:
      UserError: the file cannot be read or is not of that form, or has an id twice.
    """
    predictions = _read_json(path)
    for question_id, text in predictions.items():
        if not isinstance(text, str):
            raise UserError(f"{path}: the prediction for question {question_id} is {text!r}; write a string, empty for no answer")
    return predictions


def read_no_answer_probabilities(path: str | Path) -> dict[str, float]:
    """A number by question id, the higher the surer that there is no answer; one JSON object
    (plain, .gz or .xz).

    Raises:
      UserError: the file cannot be read or is not of that form, has an id twice, or a number that
        is not finite.
    """
    numbers = _read_json(path)
    for question_id, number in numbers.items():
        # Whole numbers of JSON may be larger than any float.
        if isinstance(number, bool) or not isinstance(number, int | float) or not abs(number) <= sys.float_info.max:
            raise UserError(f"{path}: the no-answer probability of question {question_id} is {number!r}; write a finite number")
    return numbers


def _read_json(path: str | Path) -> dict[str, Any]:
    with unpacked(Path(path)) as file:
        return parse_object(file.read(), str(path))


@dataclasses.dataclass(frozen=True)
class _Entry:
    """A question as the content has it, and where: the source, then the way to it through the
    nested objects.
    """

    where: str
    title: str
    context: str
    fields: dict[str, Any]


def _entries(source: str, content: dict[str, Any]) -> Iterator[_Entry]:
    ids: set[str] = set()
    for article_number, article in enumerate(_field(content, "data", list, f"{source}: the file")):
        where = f"{source}: data[{article_number}]"
        title = _field(article, "title", str, where)
        for paragraph_number, paragraph in enumerate(_field(article, "paragraphs", list, where)):
            place = f"{where}.paragraphs[{paragraph_number}]"
            context = _field(paragraph, "context", str, place)
            for number, fields in enumerate(_field(paragraph, "qas", list, place)):
                question_id = _field(fields, "id", str, f"{place}.qas[{number}]")
                if question_id in ids:
                    raise _broken(f"{place}.qas[{number}]", f"has the id of a question before it, {question_id}")
                ids.add(question_id)
                yield _Entry(f"{source}: question {question_id}", title, context, fields)


def _question(entry: _Entry, version: str) -> Question:
    where, fields = entry.where, entry.fields
    text = _field(fields, "question", str, where)
    answers = tuple(
        _answer(answer, entry.context, f"{where} answers[{number}]")
        for number, answer in enumerate(_field(fields, "answers", list, where))
    )
    is_impossible = False
    if version == "2.0" or "is_impossible" in fields:
        is_impossible = _field(fields, "is_impossible", bool, where)
    if is_impossible and version == "1.1":
        raise _broken(where, "is impossible, and SQuAD 1.1 has no such questions")
    if is_impossible and answers:
        raise _broken(where, "is impossible and has an answer")
    return Question(fields["id"], text, entry.context, answers, is_impossible, entry.title)


def _answer(fields: Any, context: str, where: str) -> Answer:
    text = _field(fields, "text", str, where)
    start = _field(fields, "answer_start", int, where)
    if not text:
        raise _broken(where, "is empty")
    if start < 0:
        raise _broken(where, f"has answer_start = {start}")
    if not context.startswith(text, start):
        found = context[start:][: len(text)]
        raise _broken(where, f"has the answer {text!r} at answer_start = {start}, where its context has {found!r}")
    return Answer(text, start)


def _field(entry: Any, key: str, kind: type, where: str) -> Any:
    if not isinstance(entry, dict):
        raise _broken(where, "is not an object")
    if key not in entry:
        raise _broken(where, f"has no {key!r}")
    value = entry[key]
    # True is an int for Python, not for JSON.
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise _broken(where, f"has a field {key!r} that is not {_KINDS[kind]}")
    return value


def _broken(where: str, what: str) -> UserError:
    return UserError(f"{where} {what}; correct the data, or fetch them again")
