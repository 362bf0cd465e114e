"""Fine-tuning: examples [CLS] A [SEP] or [CLS] A [SEP] B [SEP] in memory, each with a target."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
from etils import epath
from jaxtyping import Int32

from mhsh.config.schema import ClassificationDataConfig, ModelConfig, SpanDataConfig
from mhsh.data.batches import Batch, MakeBatch, Selection
from mhsh.data.corpus import Corpus, Task
from mhsh.data.tables import TRAIN, VALIDATION, ArrayTable, Examples, Table, fingerprint_of
from mhsh.data.tokenizers.wordpiece import Tokenizer, WordPieceTokenizer, load_wordpiece
from mhsh.errors import UserError
from mhsh.files import expanded
from mhsh.run_folder import WORDPIECE_FILE

Tokens = Int32[np.ndarray, " _"]


@dataclasses.dataclass(frozen=True)
class FineTuningTask(Task[WordPieceTokenizer]):
    """Examples of `inputs`, `inputs_position`, `inputs_segmentation` [R,T], `token_types` [R,T]
    where the model has them, and `targets`: [R] a class (int32) or a number (float32), or [R,2] the
    first and the last token of an answer (int32).

    Batches have these arrays and float32 `weights`, 1 for every target.
    """

    vocab_file: ClassVar[str] = WORDPIECE_FILE

    data: ClassificationDataConfig | SpanDataConfig

    def batch_maker(self, corpus: Corpus[WordPieceTokenizer], split: str) -> MakeBatch:
        """Batches of the examples as they are."""
        return _batches_of(corpus.train if split == TRAIN else corpus.validation)

    def corpus_fields(self, tokenizer: WordPieceTokenizer, train: Examples, validation: Examples) -> dict[str, Any]:
        """The fields of a corpus that follow from its examples."""
        tokens = [token.encode() + b"\n" for token in tokenizer.vocab]
        return {
            "task": self,
            "tokenizer": tokenizer,
            "train": ArrayTable([train]),
            "validation": ArrayTable([validation]),
            "fingerprint": fingerprint_of(tokens, {TRAIN: train, VALIDATION: validation}),
        }


def _batches_of(table: Table) -> MakeBatch:
    def make(chosen: Selection) -> Batch:
        batch = table.take(chosen.numbers, chosen.length)
        shape = batch["targets"].shape
        return batch | {"weights": np.broadcast_to(chosen.weights.reshape(-1, *[1] * (len(shape) - 1)), shape).copy()}

    return make


def load_vocabulary(
    model: ModelConfig, data: ClassificationDataConfig | SpanDataConfig, saved_vocab: epath.PathLike | None
) -> WordPieceTokenizer:
    """The vocabulary of `saved_vocab` (the run's own) where given, else of data.vocab_path.

    Raises:
      UserError: there is neither, it is no WordPiece vocabulary, or the model has too few
        embeddings for it.
    """
    path = saved_vocab if saved_vocab is not None else data.vocab_path
    if not path:
        raise UserError("data.vocab_path is empty; name the vocab.txt that the encoder was pre-trained with")
    tokenizer = load_wordpiece(expanded(path), data.lowercase)
    if tokenizer.vocab_size > model.vocab_size:
        raise UserError(
            f"the vocabulary {path} has {tokenizer.vocab_size} tokens, more than model.vocab_size = {model.vocab_size}; name the "
            "one that the encoder was pre-trained with"
        )
    return tokenizer


def assemble(
    first: Sequence[Tokens], second: Sequence[Tokens] | None, tokenizer: Tokenizer, model: ModelConfig, length: int
) -> Examples:
    """Examples [CLS] A [SEP], or [CLS] A [SEP] B [SEP] where there is a `second`. Token types are
    those of pre-training; padding is 0.

    Raises:
      ValueError: an example has more than `length` tokens.
      UserError: there are pairs, and the model has one token type.
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
