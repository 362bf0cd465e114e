"""Fine-tuning on a task of GLUE: one or two texts an example, and a class or a score."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
from etils import epath

from mhsh.config.schema import ClassificationDataConfig, ModelConfig
from mhsh.data.corpus import Corpus
from mhsh.data.fine_tuning.glue import GlueExample, GlueTask, find_task, read_splits
from mhsh.data.fine_tuning.task import FineTuningTask, assemble, load_vocabulary
from mhsh.data.tables import Examples, overlap, unigram_entropy
from mhsh.data.tokenizers.wordpiece import Tokenizer, WordPieceTokenizer
from mhsh.errors import UserError


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

    def load(self, saved_vocab: epath.PathLike | None = None) -> ClassificationCorpus:
        """`unigram_entropy` is the lowest loss of a model that ignores the texts: the entropy of
        the classes, or the variance of the scores.
        """
        model, data, glue = self.model, self.data, find_task(self.data.task)
        if glue.num_classes != model.num_classes:
            raise UserError(f"model.num_classes = {model.num_classes}; allowed with data.task = {data.task!r}: {glue.num_classes}")
        tokenizer = load_vocabulary(model, data, saved_vocab)
        train, sets = read_splits(glue, data.source)
        validation = [example for examples in sets.values() for example in examples]
        train_examples, train_cut = encode_examples(train, tokenizer, model, data)
        validation_examples, validation_cut = encode_examples(validation, tokenizer, model, data)
        train_examples["targets"] = labels = _targets(glue, train)
        validation_examples["targets"] = _targets(glue, validation)
        evaluation_sets = {name: len(examples) for name, examples in sets.items()}
        return ClassificationCorpus(
            **self.corpus_fields(tokenizer, train_examples, validation_examples),
            unigram_entropy=unigram_entropy(labels) if glue.label_names else float(labels.var()),
            counts={
                "task": glue.name,
                "train": {"rows": len(train)},
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

    Tokens are removed from the end of the longer text, one by one.
    """
    pairs = len(examples[0].texts) == 2
    first = tokenizer.encode_batch([example.texts[0] for example in examples])
    second = tokenizer.encode_batch([example.texts[1] for example in examples]) if pairs else None
    room = data.sequence_length - (3 if pairs else 2)
    if room < (2 if pairs else 1):
        raise UserError(f"data.sequence_length = {data.sequence_length} has no room for the texts of {data.task}; raise it")
    cut = 0
    for index, a in enumerate(first):
        b = second[index] if second is not None else a[:0]
        keep_a, keep_b = kept_lengths(len(a), len(b), room)
        cut += (keep_a, keep_b) != (len(a), len(b))
        first[index] = a[:keep_a]
        if second is not None:
            second[index] = b[:keep_b]
    return assemble(first, second, tokenizer, model, data.sequence_length), cut


def kept_lengths(a: int, b: int, room: int) -> tuple[int, int]:
    """The lengths to which texts of `a` and `b` tokens are cut to fit `room` tokens. The longer one
    is cut first; of equal ones, the second.

    Source: `_truncate_seq_pair` of Devlin et al.'s run_classifier.py, here in closed form.
    """
    if a + b <= room:
        return a, b
    half = room // 2
    if a <= room - half and a <= b:
        return a, room - a
    if b <= half:
        return room - b, b
    return room - half, half


def _targets(task: GlueTask, examples: Sequence[GlueExample]) -> np.ndarray:
    return np.array([example.label for example in examples], np.int32 if task.label_names else np.float32)
