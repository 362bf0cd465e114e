"""Fine-tuning on GLUE and SQuAD: examples [CLS] A [SEP] or [CLS] A [SEP] B [SEP], each with a
target.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import numpy as np
from etils import epath
from jaxtyping import Int32

from mhsh.config.schema import ClassificationDataConfig, ModelConfig, SpanDataConfig
from mhsh.data.batches import Batch, Selection
from mhsh.data.corpus import Corpus, Task
from mhsh.data.glue import GlueExample, GlueTask, find_task, read_splits
from mhsh.data.random_numbers import ARTICLE_SPLIT, hash_key
from mhsh.data.squad import Question, SquadData, check_answers, read_questions
from mhsh.data.tables import TRAIN, VALIDATION, ArrayTable, Examples, fingerprint_of, overlap, unigram_entropy
from mhsh.data.wordpiece import Tokenizer, WordPieceTokenizer, check_known, count_unknown, load_wordpiece, unknown_fraction
from mhsh.errors import UserError
from mhsh.storage.files import expand_user
from mhsh.storage.run_folder import WORDPIECE_FILE

_TEXTS_LOOKED_AT = 10_000  # for unknown characters

Tokens = Int32[np.ndarray, " _"]


@dataclasses.dataclass(frozen=True)
class FineTuningTask(Task[WordPieceTokenizer]):
    """Examples of `inputs`, `inputs_position`, `inputs_segmentation` [R,T], `token_types` [R,T]
    where the model has them, and `targets`: [R] a class (int32) or a number (float32), or [R,2] the
    first and the last token of an answer (int32).

    Batches have these arrays and float32 `weights`, 1 for every target.
    """

    vocab_file: ClassVar[str] = WORDPIECE_FILE
    unknown_remedy: ClassVar[str] = "take a run that was pre-trained on such text"

    data: ClassificationDataConfig | SpanDataConfig

    def read_tokenizer(self, path: epath.PathLike) -> WordPieceTokenizer:
        tokenizer = load_wordpiece(expand_user(path), self.data.lowercase)
        return self.check_tokenizer(tokenizer, f"the vocabulary {path}", "name the one that the encoder was pre-trained with")

    def tokenizer(self, saved_vocab: epath.PathLike | None) -> WordPieceTokenizer:
        """The vocabulary of the run, where it has one, or else of data.vocab_path."""
        path = saved_vocab if saved_vocab is not None else self.data.vocab_path
        if not path:
            raise UserError("data.vocab_path is empty; name the vocab.txt that the encoder was pre-trained with")
        return self.read_tokenizer(path)

    def make_batch(self, tokenizer: WordPieceTokenizer, split: str, examples: Examples, chosen: Selection) -> Batch:
        shape = examples["targets"].shape
        weights = chosen.weights.reshape(-1, *[1] * (len(shape) - 1))
        return examples | {"weights": np.broadcast_to(weights, shape).copy()}

    def unknown_characters(self, tokenizer: WordPieceTokenizer, texts: Sequence[str]) -> dict[str, float]:
        """The share of unknown characters in the first training texts, which must be below half."""
        sample = texts[:_TEXTS_LOOKED_AT]
        counted = count_unknown(sample, tokenizer.encode_batch(sample), tokenizer)
        check_known(counted, f"data.source = {self.data.source!r}", self.unknown_remedy)
        return {"unknown_character_fraction": unknown_fraction(counted)}

    def corpus_fields(self, tokenizer: WordPieceTokenizer, train: Examples, validation: Examples) -> dict[str, Any]:
        """The fields of a corpus that follow from its examples."""
        tokens = [token.encode() + b"\n" for token in tokenizer.vocab]
        return {
            "task": self,
            "tokenizer": tokenizer,
            "train": ArrayTable(train),
            "validation": ArrayTable(validation),
            "fingerprint": fingerprint_of(tokens, {TRAIN: train, VALIDATION: validation}),
        }


def assemble(
    first: Sequence[Tokens], second: Sequence[Tokens] | None, tokenizer: Tokenizer, model: ModelConfig, length: int
) -> Examples:
    """Examples [CLS] A [SEP], or [CLS] A [SEP] B [SEP] where there is a `second`. Raises ValueError
    where one has more than `length` tokens, UserError where a pair has a model of one token type.
    """
    if second is not None and model.num_token_types == 1:
        raise UserError(
            "the task has pairs of texts, and the second of a pair is of token type 1, but model.num_token_types = 1; fine-tune a "
            "run with 0, or with 2 or more"
        )
    inputs = np.full((len(first), length), tokenizer.pad_id, np.int32)
    segmentation, types = np.zeros_like(inputs), np.zeros_like(inputs)
    for index, a in enumerate(first):
        b = [] if second is None else [second[index], [tokenizer.sep_id]]
        tokens = np.concatenate([[tokenizer.cls_id], a, [tokenizer.sep_id], *b])
        inputs[index, : len(tokens)] = tokens
        segmentation[index, : len(tokens)] = 1
        types[index, len(a) + 2 : len(tokens)] = 1
    examples = {
        "inputs": inputs,
        "inputs_position": np.where(segmentation, np.arange(length, dtype=np.int32), 0).astype(np.int32),
        "inputs_segmentation": segmentation,
    }
    return examples | ({"token_types": types} if model.num_token_types else {})


# GLUE: one or two texts an example, and a class or a score.


@dataclasses.dataclass(frozen=True, kw_only=True)
class ClassificationCorpus(Corpus[WordPieceTokenizer]):
    """A task of GLUE. The validation examples are those of `evaluation_sets`, one set after the
    other.
    """

    glue: GlueTask
    evaluation_sets: dict[str, int]  # the number of examples of each


@dataclasses.dataclass(frozen=True)
class ClassificationTask(FineTuningTask):
    """One or two texts an example, and a class or a score."""

    data: ClassificationDataConfig

    def check_source(self) -> None:
        read_splits(find_task(self.data.task), self.data.source)

    def load(self, saved_vocab: epath.PathLike | None = None) -> ClassificationCorpus:
        """`unigram_entropy` is the lowest loss of a model that ignores the texts: the entropy of
        the classes, or the variance of the scores.
        """
        model, data, glue = self.model, self.data, find_task(self.data.task)
        if glue.num_classes != model.num_classes:
            raise UserError(f"model.num_classes = {model.num_classes}; allowed with data.task = {data.task!r}: {glue.num_classes}")
        tokenizer = self.tokenizer(saved_vocab)
        train, sets = read_splits(glue, data.source)
        validation = [example for examples in sets.values() for example in examples]
        train_examples, train_cut = encode_examples(train, tokenizer, model, data)
        validation_examples, validation_cut = encode_examples(validation, tokenizer, model, data)
        dtype = np.int32 if glue.label_names else np.float32
        train_examples["targets"] = labels = np.array([example.label for example in train], dtype)
        validation_examples["targets"] = np.array([example.label for example in validation], dtype)
        evaluation_sets = {name: len(examples) for name, examples in sets.items()}
        return ClassificationCorpus(
            **self.corpus_fields(tokenizer, train_examples, validation_examples),
            unigram_entropy=unigram_entropy(labels) if glue.label_names else float(labels.var()),
            counts={
                "task": glue.name,
                "train": {"rows": len(train), **self.unknown_characters(tokenizer, [" ".join(example.texts) for example in train])},
                "validation": {"rows": len(validation), **evaluation_sets},
                "cut_texts": train_cut + validation_cut,
                "overlap": overlap((example.texts for example in train), [example.texts for example in validation]),
            },
            glue=glue,
            evaluation_sets=evaluation_sets,
        )


def encode_examples(
    examples: Sequence[GlueExample], tokenizer: Tokenizer, model: ModelConfig, data: ClassificationDataConfig
) -> tuple[Examples, int]:
    """The encoded examples, without targets, and how many were cut.

    Tokens are removed from the end of the longer text, one by one; of equally long ones, from the
    second. Source: `_truncate_seq_pair` of Devlin et al.'s run_classifier.py.
    """
    pairs = len(examples[0].texts) == 2
    room = data.sequence_length - (3 if pairs else 2)
    if room < (2 if pairs else 1):
        raise UserError(f"data.sequence_length = {data.sequence_length} has no room for the texts of {data.task}; raise it")
    first = tokenizer.encode_batch([example.texts[0] for example in examples])
    second = tokenizer.encode_batch([example.texts[1] for example in examples]) if pairs else [first[0][:0]] * len(first)
    cut = 0
    for index, (a, b) in enumerate(zip(first, second, strict=True)):
        keep_a, keep_b = len(a), len(b)
        cut += keep_a + keep_b > room
        while keep_a + keep_b > room:
            keep_a, keep_b = (keep_a - 1, keep_b) if keep_a > keep_b else (keep_a, keep_b - 1)
        first[index], second[index] = a[:keep_a], b[:keep_b]
    return assemble(first, second if pairs else None, tokenizer, model, data.sequence_length), cut


# SQuAD: every window of a question's context, and the answer's tokens.


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

    def check_source(self) -> None:
        _splits(self.data)

    def load(self, saved_vocab: epath.PathLike | None = None) -> SpanCorpus:
        """`unigram_entropy` is the lowest loss of a model that ignores the text: the entropy of the
        answers' starts and ends over all windows.
        """
        tokenizer = self.tokenizer(saved_vocab)
        train_data, validation_data = _splits(self.data)
        train, train_windows = encode_questions(train_data.questions, tokenizer, self.model, self.data)
        validation, windows = encode_questions(validation_data.questions, tokenizer, self.model, self.data)
        train["targets"] = ends = span_targets(train_data.questions, train_windows)
        validation["targets"] = span_targets(validation_data.questions, windows)
        asked, held_out = ([(each.question, each.context) for each in data.questions] for data in (train_data, validation_data))
        return SpanCorpus(
            **self.corpus_fields(tokenizer, train, validation),
            unigram_entropy=(unigram_entropy(ends[:, 0]) + unigram_entropy(ends[:, 1])) / 2,
            counts={
                "train_questions": len(train_data.questions),
                "train_rows": len(train_windows),
                "train_rows_with_answer": int((ends[:, 0] > 0).sum()),
                "train": self.unknown_characters(tokenizer, [question.context for question in train_data.questions]),
                "validation_questions": len(validation_data.questions),
                "validation_rows": len(windows),
                "overlap": overlap(asked, held_out),
            },
            validation_data=validation_data,
            windows=windows,
        )


def _splits(data: SpanDataConfig) -> tuple[SquadData, SquadData]:
    """The questions of both splits. Those of validation have answers: a test set would be found out
    after the last step, before its checkpoint is saved.
    """
    train, validation = _read_splits(data)
    name = "validation_source" if data.validation_source else "source"
    check_answers(validation, f"data.{name} = {getattr(data, name)!r}: ")
    return train, validation


def _read_splits(data: SpanDataConfig) -> tuple[SquadData, SquadData]:
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

    def side(is_held_out: bool) -> SquadData:
        questions = (question for question in train.questions if (question.title in held_out) == is_held_out)
        return dataclasses.replace(train, questions=tuple(questions))

    return side(False), side(True)


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
    while start + room < tokens:
        yield start, start + room
        start += stride
    yield start, tokens


def _best_window(tokens: int, bounds: Sequence[tuple[int, int]]) -> Int32[np.ndarray, " tokens"]:
    """For each context token, the first window with the most context on its smaller side."""
    positions = np.arange(tokens)
    around = np.full((len(bounds), tokens), -1.0)
    for number, (start, stop) in enumerate(bounds):
        inside = positions[start:stop]
        # The longer window wins a tie, as in run_squad.py.
        around[number, start:stop] = np.minimum(inside - start, stop - 1 - inside) + 0.01 * (stop - start)
    return around.argmax(axis=0).astype(np.int32)


def span_targets(questions: Sequence[Question], windows: Sequence[Window]) -> Int32[np.ndarray, "windows 2"]:
    """The positions of the first and last token of the first answer. Both are 0, that of [CLS],
    where the window lacks a part of it other than white space.
    """
    targets = np.zeros((len(windows), 2), np.int32)
    for index, window in enumerate(windows):
        question = questions[window.question]
        if not question.answers:
            continue
        answer, text = question.answers[0], question.context
        start, stop = answer.start, answer.start + len(answer.text)
        covered = np.flatnonzero((window.spans[:, 1] > start) & (window.spans[:, 0] < stop))
        if not covered.size:
            continue
        before = text[start : max(start, int(window.spans[0, 0]))]
        after = text[min(stop, int(window.spans[-1, 1])) : stop]
        if not before.strip() and not after.strip():
            targets[index] = window.first + covered[0], window.first + covered[-1]
    return targets
