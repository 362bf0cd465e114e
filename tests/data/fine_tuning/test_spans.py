"""SQuAD's windows: nothing of a context is left out, targets point at the answers, articles are
held out whole.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mhsh.config.fields import SHAPING
from mhsh.config.schema import ModelConfig, SpanDataConfig
from mhsh.data.fine_tuning.squad import Answer, Question
from mhsh.data.tokenizers.wordpiece import WordPieceTokenizer
from mhsh.errors import UserError
from tests.conftest import load_fields

WORDS = ["red", "green", "blue", "gold"]
VOCAB = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS, "##ish", "##en", ".", "?", "where"]


def model_config() -> ModelConfig:
    shape = load_fields("bert", "2l8h")["model"]
    for path in SHAPING:
        shape.pop(path.split(".")[1])
    return ModelConfig(**shape | dict(objective="span", next_sentence=False))


def data_config(**changes) -> SpanDataConfig:
    fields = dict(
        source="json:none",
        validation_source="",
        validation_fraction=0.5,
        vocab_path="none",
        lowercase=True,
        sequence_length=14,
        stride=3,
        max_question_length=4,
        seed=0,
    )
    return SpanDataConfig(**fields | changes)


def question(context: str, answer: str | None, start: int, number: int = 0, title: str = "t") -> Question:
    answers = () if answer is None else (Answer(answer, start),)
    return Question(f"q{number}", "Where red?", context, answers, answer is None, title)


CONTEXTS = st.lists(st.sampled_from([*WORDS, "redish", "golden", ".", "violet"]), min_size=1, max_size=30)


@settings(max_examples=60, deadline=None)
@given(CONTEXTS, st.data())
def test_windows_hold_the_whole_context_and_targets_find_the_answer(words, data):
    first = data.draw(st.integers(0, len(words) - 1))
    last = data.draw(st.integers(first, len(words) - 1))
    context = "  ".join(words)
    start = len("  ".join(words[:first])) + (2 if first else 0)
    answer = "  ".join(words[first : last + 1])
    assert context.startswith(answer, start)

    tokenizer, config = WordPieceTokenizer(VOCAB, lowercase=True), data_config()
    asked = [question(context, answer, start)]
    rows, windows = encode_questions(asked, tokenizer, model_config(), config)
    [whole] = tokenizer.encode_batch([context])
    # Every token of the context is shown, in order, and in exactly one window best.
    shown = [row[window.first : window.first + len(window.spans)] for row, window in zip(rows["inputs"], windows, strict=True)]
    starts = [k * config.stride for k in range(len(windows))]
    for tokens, at in zip(shown, starts, strict=True):
        np.testing.assert_array_equal(tokens, whole[at : at + len(tokens)])
    assert starts[-1] + len(shown[-1]) == len(whole)
    best = np.zeros(len(whole), int)
    for window, at in zip(windows, starts, strict=True):
        best[at : at + len(window.spans)] += window.is_best
    np.testing.assert_array_equal(best, 1)

    targets = span_targets(asked, windows)
    held = 0
    for (begin, end), window, tokens, at in zip(targets, windows, shown, starts, strict=True):
        covered = [
            k for k, (a, b) in enumerate(tokenizer.encode_with_spans([context])[0][1]) if b > start and a < start + len(answer)
        ]
        if begin:
            text = context[window.spans[begin - window.first, 0] : window.spans[end - window.first, 1]]
            assert text == answer
            held += 1
        else:
            assert end == 0
            assert covered[0] < at or covered[-1] >= at + len(tokens)
    assert held or len(covered) > config.sequence_length - 4 - 3 - config.stride


def write_squad(path: Path, questions: list[Question], version: str) -> Path:
    articles = {}
    for each in questions:
        entry = {
            "id": each.id,
            "question": each.question,
            "answers": [{"text": a.text, "answer_start": a.start} for a in each.answers],
        }
        if version == "2.0":
            entry["is_impossible"] = each.is_impossible
        articles.setdefault(each.title, []).append({"context": each.context, "qas": [entry]})
    data = [{"title": title, "paragraphs": paragraphs} for title, paragraphs in articles.items()]
    path.write_text(json.dumps({"version": version, "data": data}))
    return path


@pytest.fixture
def load(tmp_path: Path):
    def make(questions: list[Question], **changes) -> SpanCorpus:
        path = write_squad(tmp_path / "questions.json", questions, "2.0")
        (tmp_path / "vocab.txt").write_text("".join(token + "\n" for token in VOCAB))
        data = data_config(source=f"json:{path}", vocab_path=str(tmp_path / "vocab.txt"), **changes)
        return SpanTask(model_config(), data).load()

    return make


def test_articles_are_held_out_whole(load):
    questions = [question("red green blue", "green", 4, number, title=f"article {number % 4}") for number in range(12)]
    corpus = load(questions)
    held_out = {each.title for each in corpus.validation_data.questions}
    assert len(held_out) == 2 and len(corpus.validation_data.questions) == 6
    assert corpus.counts["train_questions"] == 6 and corpus.counts["train_rows_with_answer"] == 6
    again = load(questions, seed=1)
    assert len(again.validation_data.questions) == 6


def test_a_question_without_an_answer_points_at_cls(load):
    questions = [question("red green blue", None if number % 2 else "green", 4, number, title=f"{number}") for number in range(8)]
    corpus = load(questions, validation_fraction=0.25)
    rows = corpus.train.all()
    np.testing.assert_array_equal(rows["inputs"][:, 0], 2)
    answered = rows["targets"][:, 0] > 0
    assert 0 < answered.sum() < len(answered)
    # [CLS] where red ? [SEP] red green blue [SEP]
    np.testing.assert_array_equal(np.unique(rows["targets"], axis=0), [[0, 0], [6, 6]])


def test_what_does_not_fit(load):
    questions = [question("red green blue", "green", 4, number) for number in range(3)]
    with pytest.raises(UserError, match=r"data\.validation_fraction = 0\.5 holds out 0 of the 1 articles"):
        load(questions)


@pytest.mark.parametrize("source", ["questions.json", "json:", "tfds:", "tsv:a", "text:a"])
def test_what_is_no_source(load, source):
    questions = [question("red green blue", "green", 4, number) for number in range(3)]
    with pytest.raises(
        UserError, match=rf"data\.validation_source = '{source}'; allowed with .*: json:FILE, .* or tfds:NAME, such as"
    ):
        load(questions, validation_source=source)
