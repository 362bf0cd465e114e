"""SQuAD's questions as rows: each question with every window of its context, and where in the row
the answer stands.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from etils import epath
from jaxtyping import Int32

from mhsh.config.schema import ModelConfig, SpanDataConfig
from mhsh.data.corpus import fingerprint_of
from mhsh.data.entropy import unigram_entropy
from mhsh.data.fine_tuning.corpus import FineTuningCorpus, assemble, load_vocabulary
from mhsh.data.fine_tuning.squad import Question, SquadData, read_prepared_squad, read_squad
from mhsh.data.pretraining.packing import Rows
from mhsh.data.seeds import ARTICLE_SPLIT, derived_seed
from mhsh.data.tokenizers.wordpiece import WordPieceTokenizer
from mhsh.errors import UserError


@dataclasses.dataclass(frozen=True)
class Window:
    """A part of a question's context that fits a row beside the question. A context token i of the
    row (from 0) stands at position `first` + i.
    """

    question: int  # its place among the questions
    first: int
    spans: Int32[np.ndarray, "tokens 2"]  # characters start to stop - 1 of the context, by context token
    is_best: np.ndarray  # bool [tokens]: no other window of the question shows the token with more of its context around it


@dataclasses.dataclass(frozen=True, kw_only=True)
class SpanCorpus(FineTuningCorpus):
    """Questions. The validation rows are the windows of `validation_data`, in the order of
    `windows`.
    """

    data: SpanDataConfig
    validation_data: SquadData
    windows: tuple[Window, ...]
    counts: dict[str, int]

    def summary(self) -> dict[str, Any]:
        """The counts as plain numbers, for run.json and for people."""
        return {"vocab_size": self.tokenizer.vocab_size, "unigram_entropy": self.unigram_entropy, **self.counts}


def load_spans(model: ModelConfig, data: SpanDataConfig, saved_vocab: epath.PathLike | None) -> SpanCorpus:
    """Reads the questions and makes the windows of both splits.

    `unigram_entropy` is the least loss of a model that does not read: the entropy of where answers
    start and end, over all windows.

    Raises:
      UserError: whatever is wrong with the sources, the vocabulary, or their fit to the config.
    """
    tokenizer = load_vocabulary(model, data, saved_vocab)
    train_data, validation_data = _splits(data)
    train_rows, train_windows = question_rows(train_data.questions, tokenizer, model, data)
    train_rows["targets"] = span_targets(train_data.questions, train_windows)
    validation_rows, windows = question_rows(validation_data.questions, tokenizer, model, data)
    validation_rows["targets"] = span_targets(validation_data.questions, windows)
    ends = train_rows["targets"]
    return SpanCorpus(
        data=data,
        tokenizer=tokenizer,
        train=train_rows,
        validation=validation_rows,
        fingerprint=fingerprint_of(
            [token.encode() + b"\n" for token in tokenizer.vocab], {"train": train_rows, "validation": validation_rows}
        ),
        unigram_entropy=(unigram_entropy(ends[:, 0]) + unigram_entropy(ends[:, 1])) / 2,
        validation_data=validation_data,
        windows=windows,
        counts={
            "train_questions": len(train_data.questions),
            "train_rows": len(train_windows),
            "train_rows_with_answer": int((ends[:, 0] > 0).sum()),
            "validation_questions": len(validation_data.questions),
            "validation_rows": len(windows),
        },
    )


def question_rows(
    questions: Sequence[Question], tokenizer: WordPieceTokenizer, model: ModelConfig, data: SpanDataConfig
) -> tuple[Rows, tuple[Window, ...]]:
    """The rows [CLS] question [SEP] window [SEP] of all questions, without targets, and what each
    of them shows.

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
        for place, (start, stop) in enumerate(bounds):
            first.append(tokens)
            second.append(ids[start:stop])
            windows.append(Window(number, len(tokens) + 2, spans[start:stop], best[start:stop] == place))
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
    """By context token, the window in which the lesser of what stands before and after it is
    largest; of equals, the first.
    """
    places = np.arange(tokens)
    around = np.full((len(bounds), tokens), -1.0)
    for number, (start, stop) in enumerate(bounds):
        inside = places[start:stop]
        # The longer window wins a tie, as in run_squad.py.
        around[number, start:stop] = np.minimum(inside - start, stop - 1 - inside) + 0.01 * (stop - start)
    return around.argmax(axis=0).astype(np.int32)


def span_targets(questions: Sequence[Question], windows: Sequence[Window]) -> Int32[np.ndarray, "rows 2"]:
    """The positions of the first and last token of the first answer; both 0, that of [CLS], where
    the window lacks some of it.
    """
    targets = np.zeros((len(windows), 2), np.int32)
    for row, window in enumerate(windows):
        answers = questions[window.question].answers
        if not answers:
            continue
        start, stop = answers[0].start, answers[0].start + len(answers[0].text)
        covered = np.flatnonzero((window.spans[:, 1] > start) & (window.spans[:, 0] < stop))
        if covered.size and _holds(window, questions[window.question], start, stop):
            targets[row] = window.first + covered[0], window.first + covered[-1]
    return targets


def _holds(window: Window, question: Question, start: int, stop: int) -> bool:
    """Whether no token of the answer lies outside the window: what it leaves out of the answer at
    either end is white space.
    """
    text = question.context
    before = text[start : max(start, int(window.spans[0, 0]))]
    after = text[min(stop, int(window.spans[-1, 1])) : stop]
    return not before.strip() and not after.strip()


def _splits(data: SpanDataConfig) -> tuple[SquadData, SquadData]:
    train = _read(data.source, "data.source")
    if data.validation_source:
        return train, _read(data.validation_source, "data.validation_source")
    titles = sorted({question.title for question in train.questions})
    count = round(data.validation_fraction * len(titles))
    if not 1 <= count < len(titles):
        raise UserError(
            f"data.validation_fraction = {data.validation_fraction} holds out {count} of the {len(titles)} articles of "
            f"{data.source}; name a data.validation_source, or another fraction"
        )
    key = derived_seed(data.seed, ARTICLE_SPLIT).to_bytes(4, "little")
    held_out = set(sorted(titles, key=lambda title: hashlib.blake2b(title.encode("utf-8"), key=key).digest())[:count])
    return (
        dataclasses.replace(train, questions=tuple(each for each in train.questions if each.title not in held_out)),
        dataclasses.replace(train, questions=tuple(each for each in train.questions if each.title in held_out)),
    )


def _read(source: str, field: str) -> SquadData:
    """The questions of json:FILE, in SQuAD's form, or of tfds:NAME, a data set with SQuAD's
    features that TFDS has prepared.
    """
    kind, _, rest = source.partition(":")
    if kind == "json" and rest:
        return read_squad(Path(rest).expanduser())
    if kind == "tfds" and rest:
        return read_prepared_squad(rest)
    raise UserError(
        f"{field} = {source!r}; allowed with model.objective = 'span': json:FILE, in SQuAD's form, or tfds:NAME, such as "
        "tfds:squad/v2.0:validation"
    )
