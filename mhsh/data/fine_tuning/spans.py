"""Fine-tuning on SQuAD: questions with every window of their contexts, and the answers' tokens."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterator, Sequence

import numpy as np
from etils import epath
from jaxtyping import Int32

from mhsh.config.schema import ModelConfig, SpanDataConfig
from mhsh.data.corpus import Corpus
from mhsh.data.fine_tuning.squad import Question, SquadData, read_questions
from mhsh.data.fine_tuning.task import FineTuningTask, assemble, load_vocabulary
from mhsh.data.random_numbers import ARTICLE_SPLIT, hash_key
from mhsh.data.tables import Examples, overlap, unigram_entropy
from mhsh.data.tokenizers.wordpiece import WordPieceTokenizer
from mhsh.errors import UserError


@dataclasses.dataclass(frozen=True)
class Window:
    """A part of a question's context that fits an example beside the question. Its token i (from 0)
    is at position `first` + i of the example.
    """

    question: int  # index of the question
    first: int
    spans: Int32[np.ndarray, "tokens 2"]  # of each token, the characters start to stop - 1 of the context
    is_best: np.ndarray  # bool [tokens]: no other window shows more of the context around the token


@dataclasses.dataclass(frozen=True, kw_only=True)
class SpanCorpus(Corpus[WordPieceTokenizer]):
    """Questions. The validation examples are the windows of `validation_data`, in the order of
    `windows`.
    """

    validation_data: SquadData
    windows: tuple[Window, ...]


@dataclasses.dataclass(frozen=True)
class SpanTask(FineTuningTask):
    """Every window of a question's context, and the answer's tokens."""

    data: SpanDataConfig

    def load(self, saved_vocab: epath.PathLike | None = None) -> SpanCorpus:
        """`unigram_entropy` is the lowest loss of a model that ignores the text: the entropy of the
        answers' starts and ends over all windows.
        """
        tokenizer = load_vocabulary(self.model, self.data, saved_vocab)
        train_data, validation_data = _splits(self.data)
        train, train_windows = encode_questions(train_data.questions, tokenizer, self.model, self.data)
        validation, windows = encode_questions(validation_data.questions, tokenizer, self.model, self.data)
        train["targets"] = ends = span_targets(train_data.questions, train_windows)
        validation["targets"] = span_targets(validation_data.questions, windows)
        return SpanCorpus(
            **self.corpus_fields(tokenizer, train, validation),
            unigram_entropy=(unigram_entropy(ends[:, 0]) + unigram_entropy(ends[:, 1])) / 2,
            counts={
                "train_questions": len(train_data.questions),
                "train_rows": len(train_windows),
                "train_rows_with_answer": int((ends[:, 0] > 0).sum()),
                "validation_questions": len(validation_data.questions),
                "validation_rows": len(windows),
                "overlap": overlap(_asked(train_data), _asked(validation_data)),
            },
            validation_data=validation_data,
            windows=windows,
        )


def encode_questions(
    questions: Sequence[Question], tokenizer: WordPieceTokenizer, model: ModelConfig, data: SpanDataConfig
) -> tuple[Examples, tuple[Window, ...]]:
    """The examples [CLS] question [SEP] window [SEP] of all questions, without targets, and their
    windows.

    Windows start every `data.stride` tokens until one reaches the context's end (Devlin et al.
    2018's run_squad.py).
    """
    contexts = list(dict.fromkeys(question.context for question in questions))
    encoded = dict(zip(contexts, tokenizer.encode_with_spans(contexts), strict=True))
    asked = tokenizer.encode_batch([question.question for question in questions])
    first: list[np.ndarray] = []
    second: list[np.ndarray] = []
    windows: list[Window] = []
    for number, (question, whole) in enumerate(zip(questions, asked, strict=True)):
        tokens = whole[: data.max_question_length]
        ids, spans = encoded[question.context]
        room = data.sequence_length - len(tokens) - 3
        bounds = list(_window_bounds(len(ids), room, data.stride))
        best = _best_window(len(ids), bounds)
        for index, (start, stop) in enumerate(bounds):
            first.append(tokens)
            second.append(ids[start:stop])
            windows.append(Window(number, len(tokens) + 2, spans[start:stop], best[start:stop] == index))
    return assemble(first, second, tokenizer, model, data.sequence_length), tuple(windows)


def _window_bounds(tokens: int, room: int, stride: int) -> Iterator[tuple[int, int]]:
    start = 0
    while True:
        stop = min(start + room, tokens)
        yield start, stop
        if stop == tokens:
            return
        start += stride


def _best_window(tokens: int, bounds: Sequence[tuple[int, int]]) -> Int32[np.ndarray, " tokens"]:
    """For each context token, the window with the most context around it: the smaller of the two
    sides counts. Of equals, the first.
    """
    positions = np.arange(tokens)
    around = np.full((len(bounds), tokens), -1.0)
    for number, (start, stop) in enumerate(bounds):
        inside = positions[start:stop]
        # The longer window wins a tie, as in run_squad.py.
        around[number, start:stop] = np.minimum(inside - start, stop - 1 - inside) + 0.01 * (stop - start)
    return around.argmax(axis=0).astype(np.int32)


def span_targets(questions: Sequence[Question], windows: Sequence[Window]) -> Int32[np.ndarray, "windows 2"]:
    """The positions of the first and last token of the first answer. Both are 0, that of [CLS],
    where the window lacks a part of it.
    """
    targets = np.zeros((len(windows), 2), np.int32)
    for index, window in enumerate(windows):
        answers = questions[window.question].answers
        if not answers:
            continue
        start, stop = answers[0].start, answers[0].start + len(answers[0].text)
        covered = np.flatnonzero((window.spans[:, 1] > start) & (window.spans[:, 0] < stop))
        if covered.size and _holds(window, questions[window.question], start, stop):
            targets[index] = window.first + covered[0], window.first + covered[-1]
    return targets


def _holds(window: Window, question: Question, start: int, stop: int) -> bool:
    """Whether the window has the whole answer, except for white space at its ends."""
    text = question.context
    before = text[start : max(start, int(window.spans[0, 0]))]
    after = text[min(stop, int(window.spans[-1, 1])) : stop]
    return not before.strip() and not after.strip()


def _splits(data: SpanDataConfig) -> tuple[SquadData, SquadData]:
    train = read_questions(data.source, "data.source")
    if data.validation_source:
        return train, read_questions(data.validation_source, "data.validation_source")
    titles = sorted({question.title for question in train.questions})
    count = round(data.validation_fraction * len(titles))
    if not 1 <= count < len(titles):
        raise UserError(
            f"data.validation_fraction = {data.validation_fraction} holds out {count} of the {len(titles)} articles of "
            f"{data.source}; name a data.validation_source, or another fraction"
        )
    key = hash_key(data.seed, ARTICLE_SPLIT)
    held_out = set(sorted(titles, key=lambda title: hashlib.blake2b(title.encode("utf-8"), key=key).digest())[:count])
    return (
        dataclasses.replace(train, questions=tuple(question for question in train.questions if question.title not in held_out)),
        dataclasses.replace(train, questions=tuple(question for question in train.questions if question.title in held_out)),
    )


def _asked(data: SquadData) -> list[tuple[str, str]]:
    return [(question.question, question.context) for question in data.questions]
