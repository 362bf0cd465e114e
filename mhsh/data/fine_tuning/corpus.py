"""Rows with one answer each, as fine-tuning reads them: [CLS] A [SEP] or [CLS] A [SEP] B [SEP], and
what the model owes for it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import grain
import numpy as np
from etils import epath
from jaxtyping import Int32

from mhsh.config.schema import ClassificationDataConfig, ModelConfig, SpanDataConfig
from mhsh.data.batches import Batch, ProcessRows, batches_of_rows
from mhsh.data.corpus import Corpus
from mhsh.data.pretraining.packing import Rows
from mhsh.data.seeds import ROW_ORDER, derived_seed
from mhsh.data.tokenizers.wordpiece import Tokenizer, WordPieceTokenizer, load_wordpiece
from mhsh.errors import UserError
from mhsh.run_folder import WORDPIECE_FILE

Tokens = Int32[np.ndarray, " _"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class FineTuningCorpus(Corpus):
    """Rows in memory: `inputs`, `inputs_position`, `inputs_segmentation` [R,T], `token_types` [R,T]
    where the model has them, and `targets`: [R] a class (int32) or a number (float32), or [R,2] the
    first and the last token of an answer (int32).
    """

    data: ClassificationDataConfig | SpanDataConfig
    tokenizer: Tokenizer
    train: Rows
    validation: Rows

    @property
    def num_train_rows(self) -> int:
        """R."""
        return len(self.train["inputs"])

    def save_vocab(self, folder: epath.PathLike) -> None:
        """Writes vocab.txt."""
        self.tokenizer.save(epath.Path(folder) / WORDPIECE_FILE)

    def train_steps(self, batch_size: int, rows: ProcessRows | None = None) -> grain.MapDataset[Batch]:
        """As `Corpus.train_steps`: batches of the rows' arrays and float32 `weights`, 1 for every
        target.
        """
        stream = _stream(self.train).shuffle(seed=derived_seed(self.data.seed, ROW_ORDER)).repeat()

        def finish(batch: Batch, positions: range) -> None:
            batch["weights"] = np.ones(batch["targets"].shape, np.float32)

        return batches_of_rows(stream, len(stream) // batch_size, batch_size, rows, finish)

    def validation_batches(self, batch_size: int, rows: ProcessRows | None = None) -> grain.MapDataset[Batch]:
        """As `Corpus.validation_batches`."""
        return batches_in_order(self.validation, batch_size, rows)


def batches_in_order(table: Rows, batch_size: int, rows: ProcessRows | None = None) -> grain.MapDataset[Batch]:
    """ceil(R / B) batches of the rows in their order; the last is filled with rows of weight 0."""
    stream, num_rows = _stream(table), len(table["inputs"])

    def finish(batch: Batch, positions: range) -> None:
        real = (np.array(positions) < num_rows).astype(np.float32)
        batch["weights"] = np.broadcast_to(real.reshape(-1, *[1] * (batch["targets"].ndim - 1)), batch["targets"].shape).copy()

    # The positions past the end begin again at the first row.
    return batches_of_rows(stream.repeat(), -(-num_rows // batch_size), batch_size, rows, finish)


def _stream(table: Rows) -> grain.MapDataset[Batch]:
    return grain.MapDataset.range(len(table["inputs"])).map(lambda index: {name: values[index] for name, values in table.items()})


def load_vocabulary(
    model: ModelConfig, data: ClassificationDataConfig | SpanDataConfig, saved_vocab: epath.PathLike | None
) -> WordPieceTokenizer:
    """That of `saved_vocab` (the run's own) where given, else of data.vocab_path.

    Raises:
      UserError: neither is there, it is no WordPiece vocabulary, or the model has too few
        embeddings for it.
    """
    path = saved_vocab if saved_vocab is not None else data.vocab_path
    if not path:
        raise UserError("data.vocab_path is empty; name the vocab.txt that the encoder was pre-trained with")
    tokenizer = load_wordpiece(epath.Path(path).expanduser(), data.lowercase)
    if tokenizer.vocab_size > model.vocab_size:
        raise UserError(
            f"the vocabulary {path} has {tokenizer.vocab_size} tokens, more than model.vocab_size = {model.vocab_size}; name the "
            "one that the encoder was pre-trained with"
        )
    return tokenizer


def assemble(
    first: Sequence[Tokens], second: Sequence[Tokens] | None, tokenizer: Tokenizer, model: ModelConfig, length: int
) -> Rows:
    """Rows [CLS] A [SEP], or [CLS] A [SEP] B [SEP] where there is a `second`; token types as in
    pre-training, padding 0.

    Raises:
      ValueError: a row has more than `length` tokens.
    """
    count = len(first)
    inputs = np.full((count, length), tokenizer.pad_id, np.int32)
    segmentation, types = np.zeros_like(inputs), np.zeros_like(inputs)
    mark = np.array([tokenizer.sep_id], np.int32)
    for row, a in enumerate(first):
        parts = [np.array([tokenizer.cls_id], np.int32), a, mark]
        length_a = 2 + len(a)
        if second is not None:
            parts += [second[row], mark]
        tokens = np.concatenate(parts)
        inputs[row, : len(tokens)] = tokens
        segmentation[row, : len(tokens)] = 1
        types[row, length_a : len(tokens)] = 1
    rows = {
        "inputs": inputs,
        "inputs_position": np.where(segmentation, np.arange(length, dtype=np.int32), 0).astype(np.int32),
        "inputs_segmentation": segmentation,
    }
    return rows | ({"token_types": types} if model.num_token_types else {})
