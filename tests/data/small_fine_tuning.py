"""A small vocabulary, configs and files for fine-tuning."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from mhsh.config.fields import SHAPING
from mhsh.config.schema import ClassificationDataConfig, ModelConfig, SpanDataConfig
from mhsh.data.fine_tuning import ClassificationCorpus, ClassificationTask, SpanCorpus, SpanTask
from mhsh.data.squad import SquadData
from tests.conftest import load_fields

VOCAB = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "red", "green", "blue", "##ish", ".", "?", "where", "gold", "##en"]


def model_config(objective: str, **changes: Any) -> ModelConfig:
    shape = load_fields("bert", "2l8h")["model"]
    for path in SHAPING:
        shape.pop(path.split(".")[1])
    return ModelConfig(**shape | dict(objective=objective, next_sentence=False) | changes)


def span_data(**changes: Any) -> SpanDataConfig:
    fields = dict(source="json:none", validation_source="", validation_fraction=0.5, vocab_path="none", lowercase=True)
    return SpanDataConfig(**fields | dict(sequence_length=14, stride=3, max_question_length=4, seed=0) | changes)


def load_glue(task: str, source: str, vocab: Path, sequence_length: int = 16, **model: Any) -> ClassificationCorpus:
    data = dict(task=task, source=source, vocab_path=str(vocab), lowercase=True, sequence_length=sequence_length, seed=0)
    return ClassificationTask(
        model_config("classification", **dict(num_classes=2) | model), ClassificationDataConfig(**data)
    ).load()


def load_squad(vocab: Path, **data: Any) -> SpanCorpus:
    return SpanTask(model_config("span"), span_data(vocab_path=str(vocab), **data)).load()


def write_squad(path: Path, data: SquadData) -> Path:
    path.write_text(json.dumps(as_json(data)), encoding="utf-8")
    return path


def as_json(data: SquadData) -> dict[str, Any]:
    """Questions in SQuAD's form, with an article a question, in their order."""
    articles = []
    for each in data.questions:
        answers = [{"text": answer.text, "answer_start": answer.start} for answer in each.answers]
        entry: dict[str, Any] = dict(id=each.id, question=each.question, answers=answers)
        if data.version == "2.0":
            entry["is_impossible"] = each.is_impossible
            if each.is_impossible:  # as in the training set; mhsh does not read them
                entry["plausible_answers"] = [{"text": "anything", "answer_start": 10_000}]
        articles.append({"title": each.title, "paragraphs": [{"context": each.context, "qas": [entry]}]})
    return {"version": data.version, "data": articles}
