"""SQuAD 1.1 and 2.0 (Rajpurkar et al. 2016, 2018): questions, from JSON."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import msgspec

from mhsh.data.text_files import open_unpacked
from mhsh.errors import UserError
from mhsh.storage.files import expand_user, parse_object
from mhsh.storage.questions import exists

# The values of `version` in the official files.
_VERSIONS = {"1.1": "1.1", "v1.1": "1.1", "2.0": "2.0", "v2.0": "2.0"}


class Answer(msgspec.Struct, frozen=True):
    """A span of a context; context[start : start + len(text)] == text."""

    text: str
    start: int = msgspec.field(name="answer_start")  # in characters (code points)


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
    """The questions of a file, in order."""

    version: str  # 1.1 or 2.0
    questions: tuple[Question, ...]


def read_questions(source: str, field: str) -> SquadData:
    """The questions of json:FILE, in SQuAD's form. Errors name the config's `field`."""
    kind, _, path = source.partition(":")
    if kind != "json" or not path:
        raise UserError(f"{field} = {source!r}; allowed with model.objective = 'span': json:FILE, in SQuAD's form")
    if not exists(file := expand_user(path)):
        raise UserError(
            f"{field} = {source!r} does not exist; name one that does (an empty data.validation_source holds out a part of "
            "data.source)"
        )
    return read_squad(str(file))


def check_answers(data: SquadData, where: str = "") -> None:
    """Raises UserError, which begins with `where`, where a question that is not impossible has no
    answer: predictions have nothing to be compared with.
    """
    for question in data.questions:
        if not question.answers and not question.is_impossible:
            raise UserError(f"{where}question {question.id} has no answers to compare with; give data with answers")


class _Question(msgspec.Struct):
    id: str
    question: str
    answers: tuple[Answer, ...]
    is_impossible: bool | msgspec.UnsetType = msgspec.UNSET


class _Paragraph(msgspec.Struct):
    context: str
    qas: list[_Question]


class _Article(msgspec.Struct):
    title: str
    paragraphs: list[_Paragraph]


class _File(msgspec.Struct):
    data: list[_Article]
    version: Any = None


def read_squad(path: str | Path) -> SquadData:
    """The questions of a file (JSON, perhaps compressed); of version 2.0 where it gives none and a
    question has `is_impossible`. Raises UserError where the form is another or a question, which is
    named, is wrong.
    """
    with open_unpacked(path) as (_, opened):
        content = parse_object(opened.read(), str(path))
    try:
        file = msgspec.convert(content, _File)
    except msgspec.ValidationError as error:
        raise _damage_error(f"{path}: {str(error).replace('`$.', '`')}") from error
    paragraphs = [(article.title, paragraph) for article in file.data for paragraph in article.paragraphs]
    entries = [(entry, paragraph.context, title) for title, paragraph in paragraphs for entry in paragraph.qas]
    if not entries:
        raise UserError(f"{path} has no questions; fetch the data again")
    version = _VERSIONS.get(file.version) if isinstance(file.version, str) else None
    if version is None:
        version = "2.0" if any(entry.is_impossible is not msgspec.UNSET for entry, _, _ in entries) else "1.1"
    questions: dict[str, Question] = {}
    for entry, context, title in entries:
        at = f"{path}: question {entry.id}"
        if entry.id in questions:
            raise _damage_error(f"{at} has the id of an earlier question")
        questions[entry.id] = _question(entry, context, title, version, at)
    return SquadData(version, tuple(questions.values()))


def _question(entry: _Question, context: str, title: str, version: str, at: str) -> Question:
    is_impossible = entry.is_impossible is True
    if version == "2.0" and entry.is_impossible is msgspec.UNSET:
        raise _damage_error(f"{at} has no 'is_impossible'")
    if version == "1.1" and is_impossible:
        raise _damage_error(f"{at} is impossible, and SQuAD 1.1 has no such questions")
    if is_impossible and entry.answers:
        raise _damage_error(f"{at} is impossible and has an answer")
    for number, answer in enumerate(entry.answers):
        text, start = answer.text, answer.start
        if not text:
            raise _damage_error(f"{at} answers[{number}] is empty")
        if start < 0 or not context.startswith(text, start):
            here = context[start:][: len(text)] if start >= 0 else ""
            raise _damage_error(
                f"{at} answers[{number}] has the answer {text!r} at answer_start = {start}, where its context has {here!r}"
            )
    return Question(entry.id, entry.question, context, entry.answers, is_impossible, title)


def _damage_error(what: str) -> UserError:
    return UserError(f"{what}; correct the data, or fetch them again")
