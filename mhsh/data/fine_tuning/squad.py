"""SQuAD 1.1 and 2.0 (Rajpurkar et al. 2016, 2018): questions and predictions, from JSON or TFDS."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mhsh.data.text_files import unpacked
from mhsh.data.tfds import open_split
from mhsh.errors import UserError
from mhsh.files import parse_object

# The values of `version` in the official files.
_VERSIONS = {"1.1": "1.1", "v1.1": "1.1", "2.0": "2.0", "v2.0": "2.0"}
# In TFDS. The plausible answers of impossible questions in SQuAD 2.0 are not read.
_TFDS_FEATURES = ("title", "context", "id", "question", "answers")
_TFDS_IS_IMPOSSIBLE = "is_impossible"
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
    answers: tuple[Answer, ...]  # by several people; empty if it is impossible, or in a test set
    is_impossible: bool  # the context has no answer; never in 1.1
    title: str  # of the article


@dataclasses.dataclass(frozen=True)
class SquadData:
    """The questions of a file or of TFDS, in order."""

    version: str  # 1.1 or 2.0
    questions: tuple[Question, ...]


def read_squad(path: str | Path) -> SquadData:
    """The questions of a file (JSON, plain, .gz or .xz).

    Raises:
      UserError: the file cannot be read or is not JSON, or as in `parse_squad`.
    """
    return parse_squad(str(path), _read_json(path))


def read_prepared_squad(name: str) -> SquadData:
    """The questions of one split that TFDS has prepared, in the order of its files (shuffled).

    Args:
      name: DATASET[:SPLIT], such as squad/v1.1, squad/v2.0:validation or
        squad/v2.0:3.0.0:train[:10%]; the default of SPLIT is train. Other data sets with the same
        features work too.

    Raises:
      UserError: the split cannot be opened or lacks a feature, or as in `parse_squad`.
    """
    split = open_split(name)
    features = [*_TFDS_FEATURES, _TFDS_IS_IMPOSSIBLE] if _TFDS_IS_IMPOSSIBLE in split.features else _TFDS_FEATURES
    return parse_squad(f"tfds:{name}", {"data": [_article(record) for record in split.records(*features)]})


def _article(record: dict[str, Any]) -> dict[str, Any]:
    """A record of TFDS in SQuAD's JSON form: an article with one question."""
    answers = record.pop("answers")
    if isinstance(answers, dict):  # TFDS stores a sequence of objects as an object of sequences
        answers = [dict(zip(answers, values, strict=True)) for values in zip(*answers.values(), strict=True)]
    paragraph = {"context": record.pop("context"), "qas": [record | {"answers": answers}]}
    return {"title": record.pop("title"), "paragraphs": [paragraph]}


def parse_squad(source: str, content: dict[str, Any]) -> SquadData:
    """The questions in the content of SQuAD's JSON form.

    If the content does not give its version, it is 2.0 if a question has `is_impossible`.

    Args:
      source: where the content is from, for errors.

    Raises:
      UserError: the content lacks a key, has a value of the wrong type, the same id twice, an
        answer that is not at its answer_start, or an impossible question with an answer; or it has
        no questions.
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
    """The answers by question id ("" for none) in a file of one JSON object (plain, .gz or .xz).

    Raises:
      UserError: the file cannot be read or has another form, or an id occurs twice.
    """
    predictions = _read_json(path)
    for question_id, text in predictions.items():
        if not isinstance(text, str):
            raise UserError(f"{path}: the prediction for question {question_id} is {text!r}; write a string, empty for no answer")
    return predictions


def read_no_answer_probabilities(path: str | Path) -> dict[str, float]:
    """Numbers by question id in a file of one JSON object; higher means no answer is more likely.

    Raises:
      UserError: the file cannot be read or has another form, an id occurs twice, or a number is not
        finite.
    """
    numbers = _read_json(path)
    for question_id, number in numbers.items():
        # Integers in JSON may be larger than any float.
        if isinstance(number, bool) or not isinstance(number, int | float) or not abs(number) <= sys.float_info.max:
            raise UserError(f"{path}: the no-answer probability of question {question_id} is {number!r}; write a finite number")
    return numbers


def _read_json(path: str | Path) -> dict[str, Any]:
    with unpacked(path) as file:
        return parse_object(file.read(), str(path))


@dataclasses.dataclass(frozen=True)
class _Entry:
    """A question before it is checked."""

    where: str  # the source, then the path through the nested objects
    title: str
    context: str
    fields: dict[str, Any]


def _entries(source: str, content: dict[str, Any]) -> Iterator[_Entry]:
    ids: set[str] = set()
    for article_number, article in enumerate(_field(content, "data", list, f"{source}: the file")):
        where = f"{source}: data[{article_number}]"
        title = _field(article, "title", str, where)
        for paragraph_number, paragraph in enumerate(_field(article, "paragraphs", list, where)):
            path = f"{where}.paragraphs[{paragraph_number}]"
            context = _field(paragraph, "context", str, path)
            for number, fields in enumerate(_field(paragraph, "qas", list, path)):
                question_id = _field(fields, "id", str, f"{path}.qas[{number}]")
                if question_id in ids:
                    raise _broken(f"{path}.qas[{number}]", f"has the id of an earlier question, {question_id}")
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
    # True is an int in Python, not in JSON.
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise _broken(where, f"has a field {key!r} that is not {_KINDS[kind]}")
    return value


def _broken(where: str, what: str) -> UserError:
    return UserError(f"{where} {what}; correct the data, or fetch them again")
